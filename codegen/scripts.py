"""The scripts that start a program's ranks: `launch.sh` on a machine, `job.sbatch` under Slurm."""

from meshwright.ir.plan import Plan

# Seconds before the end of a job's time, in which the step under way ends and a checkpoint is
# written.
_STOP_S = 600

_SLURM = """#!/usr/bin/env bash
#SBATCH --job-name={model}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
{gpus}#SBATCH --exclusive
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@{stop_s}
#SBATCH --requeue
# {devices} ranks ({mesh}). Submit from this folder: sbatch job.sbatch --data ... --steps ...
# A day is a default: sbatch --time=HH:MM:SS takes another. {stop_s} s before the end the ranks
# save and stop, and the job is queued again; it goes on from its newest checkpoint, as after a
# lost node.
set -euo pipefail
export MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
export NNODES="$SLURM_JOB_NUM_NODES"
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then set -- "$@" --resume auto; fi

stopped=""
trap 'stopped=1; kill -USR1 "$steps"' USR1
# torchrun would die of the signal, so it is started deaf to it; the ranks listen.
srun bash -c 'trap "" USR1; NODE_RANK=$SLURM_NODEID exec bash launch.sh "$@"' launch "$@" &
steps=$!
code=0
wait "$steps" || code=$?
if [ -n "$stopped" ]; then
    code=0
    wait "$steps" || code=$?
    if [ "$code" -ne 0 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
fi
exit "$code"
"""


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


def slurm_script(plan: Plan) -> str:
    """Return `job.sbatch`. A job that comes to the end of its time saves, and waits for another."""
    devices = plan.mesh.num_devices
    per_node = min(devices, plan.devices_per_node)
    return _SLURM.format(
        model=plan.model,
        nodes=-(-devices // per_node),
        gpus="" if plan.device_type == "cpu" else f"#SBATCH --gpus-per-node={per_node}\n",
        devices=devices,
        mesh=plan.mesh,
        stop_s=_STOP_S,
    )
