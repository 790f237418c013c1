"""The script that starts a program's ranks on a machine."""

from meshwright.ir.plan import Plan


def launch_script(plan: Plan) -> str:
    """Return `launch.sh`, which runs where it is called: paths are relative to that."""
    return f"""#!/usr/bin/env bash
# Runs the program on this machine: {plan.mesh.num_devices} ranks ({plan.mesh}).
# On several nodes set NNODES, NODE_RANK and MASTER_ADDR on each.
set -euo pipefail
PROGRAM="$(cd "$(dirname "$0")" > /dev/null && pwd)"
RANKS={plan.mesh.num_devices}
NNODES="${{NNODES:-1}}"
exec torchrun --nnodes "$NNODES" --node-rank "${{NODE_RANK:-0}}" \\
    --nproc-per-node "$((RANKS / NNODES))" \\
    --master-addr "${{MASTER_ADDR:-127.0.0.1}}" --master-port "${{MASTER_PORT:-29400}}" \\
    "$PROGRAM/main.py" "$@"
"""
