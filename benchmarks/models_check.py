"""Check one language model of `transformers` against the law, on four plans in float64.

The oracle is the stock class as the library builds it, with its own eager attention and its own
loop over experts, in train() under autograd, updated by torch.optim.SGD; an encoder-decoder reads
padded sources, and the labels that came before. The other side are emitted
programs, each rank in a process: loss and gradients of the first step, the parameters after two.
"""

import contextlib
import copy
import io
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from equivalence.boxes import assemble
from equivalence.pool import Pool
from equivalence.worker import Job as RankJob
from models_images import PREFIX, given_to, image_rows
from models_tiny import auto_class, parameters, reads_pairs, tiny_config, with_options
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import meshwright as mw
from meshwright.api.planning import proven_capture
from meshwright.api.programs import write_program
from meshwright.ir.capture.initialisers import default_dtype
from meshwright.ir.ops.registry import definition
from meshwright.ir.plan import Plan
from meshwright.ir.sizes import evaluate
from meshwright.ir.traced import Traced
from meshwright.models import load_model
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import Pins
from meshwright.proof.draws import Site, drawn, sites_of
from meshwright.runtime.engine.initial import initial_value
from meshwright.runtime.engine.inputs import step_draws
from meshwright.runtime.optimizers.options import OptimizerOptions
from meshwright.runtime.training.program import decode

SEQ, ROWS, STEPS, RATE, SEED = 16, 4, 2, 0.1, 0
IGNORED, NOTHING, MOST_PARAMETERS = -100, -1, 30_000_000
# Pins by plan; each has as many ranks as its axis.
PLANS = {
    "one": {},
    "dp=2": {"dp": 2},
    "tp=2": {"tp": 2, "shard_weights": 1},
    "pp=2": {"pp": 2},
}
# Each product of two of them, on four ranks.
PAIRS = {
    "dp=2 tp=2": {"dp": 2, "tp": 2, "shard_weights": 1},
    "dp=2 pp=2": {"dp": 2, "pp": 2},
    "tp=2 pp=2": {"tp": 2, "pp": 2, "shard_weights": 1},
}
TOLERANCE = 1e-9  # of the largest element
_LEAST = 1e-12  # of the largest gradient: what is smaller is rounding
_OPTIMIZER = OptimizerOptions(name="sgd", momentum=0.9, weight_decay=0.0, clip=0.0)
_TIMEOUT_S = 60.0
# In place of the constants that a class starts from: a bias of 0 or a scale of 1 hides the
# gradients of what it multiplies, and a cut that is wrong.
_MOVED = {"constant(0.0)": "normal(0.0, 0.05)", "constant(1.0)": "normal(1.0, 0.05)"}


class Widened(TorchFunctionMode):
    """Casts to a float become casts to float64, as a plan in float64 has it."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        func = Tensor.double if func in (Tensor.float, Tensor.half, Tensor.bfloat16) else func
        wide = {key: _wide(value) for key, value in (kwargs or {}).items()}
        return func(*map(_wide, args), **wide)


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if narrow else value


def check(name: str, pool: Pool, plans: tuple[str, ...] = tuple(PLANS)) -> dict[str, Any]:
    """Return the result of a model type: by plan "equal" or why not, and what tp=2 cuts.

    name: such as `llama`, `llama+7` with the random options of seed 7, or `images:llava`.
    """
    found: dict[str, Any] = {"model": name, "plans": {}}
    kind, _, seed = name.partition("+")
    try:
        config = tiny_config(kind)
        if seed:
            config, found["options"] = with_options(kind, int(seed))
        if (size := parameters(config)) > MOST_PARAMETERS:
            raise ValueError(f"its small sizes leave {size:,} parameters")
    except Exception as error:
        return found | {"result": "no config", "said": _line(error)}
    with tempfile.TemporaryDirectory(prefix=f"{config.model_type}-") as folder:
        config.save_pretrained(folder)
        try:
            traced = _captured(folder, kind.startswith(PREFIX))
        except Exception as error:
            return found | {"result": kind_of(error), "said": _line(error).replace(folder, name)}
        for plan in plans:
            result, said = _checked(plan, config, traced, Path(folder), pool, found)
            found["plans"][plan] = result
            if result != "equal":
                found.setdefault("said", f"{plan}: {said.replace(folder, name)}")
    order = ("wrong", "traceback", "refused", "equal")
    return found | {"result": min(found["plans"].values(), key=order.index)}


def kind_of(error: Exception) -> str:
    """Tell a refusal, which says in one line what to do, from a traceback."""
    if isinstance(error, WrongError):
        return "wrong"
    refused = isinstance(error, mw.MeshwrightError | ValueError) and "\n" not in str(error).strip()
    return "refused" if refused else "traceback"


class WrongError(AssertionError):
    """A program whose numbers are not the oracle's."""


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    own = isinstance(error, mw.MeshwrightError | WrongError)
    return lines[0] if own else f"{type(error).__name__}: {lines[-1]}"


@contextmanager
def _quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _captured(folder: str, images: bool) -> Traced:
    """The capture of a folder's model, proven."""
    source = load_model(f"{'hf-images' if images else 'hf'}:{folder}")
    with _quiet():
        return proven_capture(source, mw.Job(SEQ, ROWS, dtype="f64"), lambda _: None)[0]


def _checked(
    name: str, config: Any, traced: Traced, folder: Path, pool: Pool, found: dict[str, Any]
) -> tuple[str, str]:
    """Plan, write and run one plan; return its result and what was said."""
    try:
        plan = _plan(name, traced)
        if name.startswith("tp"):
            found["cut"] = cut_share(traced, plan)
        _compare(plan, config, folder / f"program-{name}", pool, sites_of(traced.graph))
    except Exception as error:
        return kind_of(error), _line(error)
    return "equal", ""


def _plan(name: str, traced: Traced) -> Plan:
    given = {**PLANS, **PAIRS}[name]
    pins = Pins(micro_batch=1 if "pp" in given else 2, **given)
    world = int(np.prod([given.get(axis, 1) for axis in ("dp", "tp", "pp")]))
    cluster = parse_cluster(f"cpu:{world}")
    made = make_plan(traced, cluster, seq=SEQ, global_batch=ROWS, pins=pins)
    params = tuple(replace(p, init=_MOVED.get(p.init, p.init)) for p in made.params)
    return replace(made, params=params)


def cut_share(traced: Traced, plan: Plan) -> float:
    """The share of the bytes of matmul weights that the tensor axis cuts."""
    weights = matmul_weights(traced)
    sizes = {p.name: np.prod([evaluate(n, {}) for n in p.shape]) for p in plan.params}
    cut = {p.name for p in plan.params if any(p.placement.dims)}
    whole = sum(sizes[name] for name in weights)
    return float(sum(sizes[name] for name in weights & cut) / max(whole, 1))


def matmul_weights(traced: Traced) -> set[str]:
    """Names of the parameters that a matmul multiplies by, through views of them or not."""
    of = {i.value.name: i.ref for i in traced.graph.inputs_of("param") if len(i.value.shape) > 1}
    found = set()
    for op in traced.graph.ops:
        kind = definition(op)
        if kind.free or kind.cast:
            if op.inputs and op.inputs[0] in of:
                of[op.output.name] = of[op.inputs[0]]
        elif kind.matmul_weight or op.target in ("linear", "addmm", "matmul"):
            found |= {of[name] for name in op.inputs if name in of}
    return found


class _Step(NamedTuple):
    """Rows of a step: tokens and labels, int64 [ROWS, SEQ], and by role what else is read."""

    tokens: Tensor
    labels: Tensor
    others: dict[str, Tensor] = {}


def _batches(plan: Plan, config: Any) -> list[_Step]:
    generator = torch.Generator().manual_seed(SEED)
    found = []
    for _ in range(STEPS):
        ids = torch.randint(3, plan.vocab_size, (ROWS, SEQ + 1), generator=generator)
        labels = ids[:, 1:].clone()
        labels[0, :3] = IGNORED
        own = _Step(ids[:, :-1].contiguous(), labels)
        if any(i.role == "images" for i in plan.inputs):
            own = _images(own, plan, generator)
        found.append(_pairs(own, generator) if reads_pairs(config) else own)
    return found


def _images(step: _Step, plan: Plan, generator: torch.Generator) -> _Step:
    """Put an image into each row, of the sizes that a plan states."""
    sizes = {i.role: [evaluate(n, {"B": ROWS, "S": SEQ}) for n in i.shape] for i in plan.inputs}
    shape, (_, count) = sizes["images"][1:], sizes["places"]
    ids, labels, others = image_rows(step.tokens, step.labels, tuple(shape), count, generator)
    return _Step(ids, labels.where(step.labels != IGNORED, IGNORED), others)


def _pairs(step: _Step, generator: torch.Generator) -> _Step:
    """Make sources of the tokens and targets of the labels, each row of a length of its own."""
    sizes = torch.randint(1, SEQ + 1, (2, ROWS, 1), generator=generator)
    past = torch.arange(SEQ) >= sizes
    labels = step.labels.abs().masked_fill(past[1], IGNORED)
    tokens = torch.cat([torch.full((ROWS, 1), NOTHING), labels[:, :-1]], 1)
    source = step.tokens.masked_fill(past[0], NOTHING)
    return _Step(tokens.clamp(min=NOTHING), labels, {"source": source})


def _compare(plan: Plan, config: Any, folder: Path, pool: Pool, sites: Mapping[int, Site]) -> None:
    """Run a plan's program and the stock class; raise WrongError where they differ."""
    data = _batches(plan, config)
    write_program(plan, folder)
    steps = [(step.tokens.numpy(), step.labels.numpy(), RATE) for step in data]
    job = RankJob(folder, plan.mesh.num_devices, steps, SEED, asdict(_OPTIMIZER), False, _TIMEOUT_S)
    others = tuple({role: x.numpy() for role, x in step.others.items()} for step in data)
    ranks = pool.run(replace(job, others=others))
    losses, grads, params = _oracle(config, plan, data, sites)
    for step, (own, other) in enumerate(zip(ranks[0].losses, losses, strict=True)):
        if not abs(own - other) <= TOLERANCE * abs(other):
            raise WrongError(f"loss of step {step} is {own!r}, the class's own {other!r}")
    _same("gradient", assemble(plan, ranks, lambda r: r.grads, trained=True), grads)
    _same("updated parameter", assemble(plan, ranks, lambda r: r.params), params)


def _same(what: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare by name; what the program does not hold must have no gradient in the class."""
    if missing := sorted(expected.keys() - found.keys()):
        raise WrongError(f"{what} {missing[0]} is not in the program")
    scale = max(float(x.abs().max()) for x in expected.values() if x.numel())
    for name, own in found.items():
        other = expected.get(name, torch.zeros_like(own))
        off = float((own - other).abs().max()) if own.numel() else 0.0
        size = max(float(other.abs().max()) if other.numel() else 0.0, _LEAST * scale / TOLERANCE)
        if not off <= TOLERANCE * size:
            raise WrongError(f"{what} {name} is off by {off:.3g}, its largest element {size:.3g}")


def _of_routers(module: nn.Module, out: Any) -> Tensor | float:
    """What a class adds for its routers, as it does where it is given labels."""
    names = ("router_aux_loss_coef", "aux_loss_coef")
    holders = (module, module.config.get_text_config(decoder=True))
    found = (getattr(holder, name, None) for holder in holders for name in names)
    factor = next((x for x in found if x is not None), 0.0)
    own = getattr(out, "aux_loss", None)
    return 0.0 if own is None else factor * own


def _oracle(
    config: Any, plan: Plan, data: list[_Step], sites: Mapping[int, Site]
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """Losses, gradients of the first step and last parameters of the stock class, its dropouts
    replaced by the draws of the run."""
    module = stock_model(config)
    params: dict[str, Tensor] = dict(_named(module))
    stored = {
        digest: decode_constant(dtype, shape, text) for digest, dtype, shape, text in plan.constants
    }
    planned = {p.name for p in plan.params}
    for param in plan.params:
        shape = tuple(evaluate(size, {}) for size in param.shape)
        value = initial_value(
            param.name, shape, param.init, seed=SEED, dtype=torch.float64,
            device=torch.device("cpu"), stored=stored,
        )  # fmt: skip
        params[param.name].data.copy_(value)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    losses, grads = [], {}
    for step, batch in enumerate(data):
        optimizer.zero_grad()
        draws = drawn(sites, torch.arange(ROWS), SEQ, step_draws(SEED, step))
        with default_dtype(torch.float64), Widened(), draws:
            out = module(**_read(batch, config, module), use_cache=False)
        logits = out.logits
        total = nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        loss = total / (batch.labels != IGNORED).sum() + _of_routers(module, out)
        loss.backward()
        losses.append(float(loss.detach()))
        if not grads:
            grads = {n: p.grad.clone() for n, p in params.items() if p.grad is not None}
        optimizer.step()
    kept = {n: p.detach() for n, p in params.items() if n in planned}
    # A gradient of 0 of what no plan holds, as of rows that nothing reads.
    live = {n: g for n, g in grads.items() if n in planned or bool(g.any())}
    return losses, live, kept


def _read(step: _Step, config: Any, module: nn.Module) -> dict[str, Tensor]:
    """What a stock class is given for a step."""
    if "images" in step.others:
        return given_to(module, step.tokens, step.others)
    if not step.others:
        return {"input_ids": step.tokens}
    source = step.others["source"]
    pad, start = config.pad_token_id, getattr(config, "decoder_start_token_id", None)
    if start is None:
        start = config.decoder.bos_token_id if hasattr(config, "decoder") else pad
    return {
        "input_ids": source.masked_fill(source == NOTHING, pad),
        "attention_mask": (source != NOTHING).long(),
        "decoder_input_ids": step.tokens.masked_fill(step.tokens == NOTHING, start),
    }


def decode_constant(dtype: str, shape: Any, text: str) -> Tensor:
    """A constant of a plan as a tensor."""
    from meshwright.ir.dtypes import TORCH_NAMES

    return decode(TORCH_NAMES[dtype], [evaluate(size, {}) for size in shape], text)


def stock_model(config: Any) -> nn.Module:
    """The class as the library builds it, in float64 and train(), eager in all that it swaps."""
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float64}
    make = auto_class(config).from_config
    own = copy.deepcopy(config)
    with default_dtype(torch.float64), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            module = make(own, experts_implementation="eager", **options)
        except (TypeError, ValueError):  # a class without experts, or that swaps none
            module = make(own, **options)
    return module.double().train()


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and the buffers that are stored with them, by the names that plans give them."""
    for name, param in module.named_parameters():
        yield f"hf.{name}", param
    stored, buffers = module.state_dict(keep_vars=True), dict(module.named_buffers())
    for name in stored.keys() & buffers.keys():
        if buffers[name].is_floating_point():
            yield f"hf.{name}", buffers[name]
