"""The folder of a program: file names and texts. Emission is deterministic."""

import ast
import json

from meshwright.ir.dtypes import TORCH_NAMES
from meshwright.ir.mesh import Mesh
from meshwright.ir.placement import local_outer
from meshwright.ir.plan import Bucket, Param, Plan
from meshwright.ir.sizes import evaluate, format_size
from meshwright.ir.text.plan_text import format_plan, plan_hash

from .needs import needs_source
from .schedule import schedule_source
from .scripts import launch_script
from .stage import stage_source
from .writer import Writer


def emit(plan: Plan) -> dict[str, str]:
    """{path in the program folder: text}; the runtime's own files are copied beside them."""
    files = {
        "plan.txt": format_plan(plan),
        "layout.py": layout_source(plan),
        "schedule.py": schedule_source(plan),
        "constants.json": _constants(plan),
        "report.json": _report(plan),
        "needs.json": needs_source(plan),
        "main.py": _MAIN,
        "launch.sh": launch_script(plan),
    }
    if plan.identity:
        files["identity.json"] = f"{plan.identity}\n"
    for stage in range(plan.num_stages):
        files[f"stage_{stage:02d}.py"] = stage_source(plan, stage)
    for path, text in files.items():
        if path.endswith(".py"):
            ast.parse(text, path)  # a slip of this package shows here, not on the cluster
    return files


def layout_source(plan: Plan) -> str:
    """`layout.py`: mesh, batch, parameters and buckets as literals."""
    writer = Writer()
    writer.lines(
        f'"""What every rank of {plan.model} shares; plan {plan_hash(plan)}."""',
        "",
        "from runtime.layout import Bucket, Entry, Input, Layout, Param",
        "",
    )
    axes = ", ".join(f'"{name}": {size}' for name, size in plan.mesh.axes)
    with writer.block("LAYOUT = Layout("):
        writer.lines(
            f'model="{plan.model}",',
            f'dtype="{TORCH_NAMES[plan.dtype]}",',
            f"mesh={{{axes}}},  # major to minor",
            f"stage_ranks={plan.stage_ranks},  # of every stage its pp coordinate",
            f"micro_batch={plan.micro_batch},",
            f"num_microbatches={plan.num_microbatches},",
            f"seq={plan.seq},",
            f"vocab_size={plan.vocab_size},",
            f"zero={plan.zero},",
            f"master={plan.precision == 'master'},",
            *_summed_in_float32(plan),
            f'reduce_dtype="{TORCH_NAMES[plan.reduce_dtype]}",',
            f"flops_per_token={plan.flops_per_token!r},",
            f'optimizer="{plan.optimizer}",',
        )
        with writer.block("inputs=("):
            for item in plan.inputs:
                shape = _names(tuple(map(format_size, item.shape)))
                writer.line(f'Input("{item.role}", "{TORCH_NAMES[item.dtype]}", {shape}),')
        writer.line("),")
        if plan.mirrored:
            writer.line(
                "mirrored=True,  # of 2n chunks of the sequence rank r has r and 2n - 1 - r"
            )
        if plan.replays:
            writer.line("replays=True,  # functions are recorded once, issued as CUDA graphs")
        tables, biases = plan.tables(), plan.router_biases()
        with writer.block("params=("):
            for param in plan.params:
                flags = {
                    "hidden": len(param.shape) == 2 and param.name not in tables | biases,
                    "router_bias": param.name in biases,
                }
                _param(writer, param, plan.mesh, [name for name, held in flags.items() if held])
        writer.line("),")
        with writer.block("buckets=("):
            for bucket in plan.buckets:
                _bucket(writer, bucket, plan)
        writer.line("),")
    writer.line(")")
    return writer.text()


def _summed_in_float32(plan: Plan) -> list[str]:
    """What a layout of narrow weights without masters says."""
    if not plan.rounding:
        return []
    lines = [f'rounding="{plan.rounding}",']
    if plan.grad_dtype != plan.dtype:
        lines.append(f"wide_grads=True,  # {plan.num_microbatches} micro-batches are summed")
    return lines


def _param(writer: Writer, param: Param, mesh: Mesh, flags: list[str]) -> None:
    shards = [
        f'({dim}, {evaluate(local_outer(param.placement, shard.axis, mesh), {})}, "{shard.axis}")'
        for dim, all_shards in enumerate(param.placement.dims)
        for shard in all_shards
    ]
    cuts = "(" + ", ".join(shards) + ("," if len(shards) == 1 else "") + ")"
    shape = tuple(evaluate(s, {}) for s in param.shape)
    said = "".join(f", {flag}=True" for flag in flags)
    writer.line(f'Param("{param.name}", {shape}, {cuts}, "{param.init}"{said}),')


def _bucket(writer: Writer, bucket: Bucket, plan: Plan) -> None:
    with writer.block("Bucket("):
        writer.line(f'"{bucket.name}", {bucket.numel}, {plan.homes(bucket)},')
        with writer.block("("):
            for e in bucket.entries:
                shape = plan.param(e.param).local_shape(plan.mesh)
                flags = f"partial={_names(e.partial)}, decay={e.decay}"
                writer.line(f'Entry("{e.param}", {e.offset}, {shape}, {flags}),')
        writer.line("),")
        if not bucket.trainable:
            writer.line("trainable=False,")
        if bucket.dtype != plan.dtype:
            writer.line(f'dtype="{TORCH_NAMES[bucket.dtype]}",')
    writer.line("),")


def _names(axes: tuple[str, ...]) -> str:
    """A tuple of names as emitted text."""
    return "(" + ", ".join(f'"{axis}"' for axis in axes) + ("," if len(axes) == 1 else "") + ")"


def _constants(plan: Plan) -> str:
    rows = [
        f'  "{digest}": ["{TORCH_NAMES[dtype]}", {[evaluate(s, {}) for s in shape]}, "{data}"]'
        for digest, dtype, shape, data in plan.constants
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n" if rows else "{}\n"


def _report(plan: Plan) -> str:
    """What was predicted, for the run to set beside what it measures."""
    report = {"plan": plan_hash(plan), "cluster": plan.cluster, "predicted": dict(plan.costs)}
    return json.dumps(report, indent=1) + "\n"


_MAIN = '''\
"""Entry of the program: `bash launch.sh --data ... --steps ...`, or torchrun main.py directly."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # also where PYTHONSAFEPATH is set

from runtime.entry import main

if __name__ == "__main__":
    main(Path(__file__).parent)
'''
