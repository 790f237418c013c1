"""Random cases of the law: a model, a plan's pins and batches, all from one seed."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshwright.planner.hardware.topology import OUTER
from meshwright.planner.pipeline.schedules import chunks_of
from meshwright.runtime.optimizers.options import NAMES, OptimizerOptions, parse_group

IGNORED = -100
STEPS = 3
# One rate a step; they differ, so that a rate handed over wrong shows.
RATES = (0.01, 0.02, 0.01)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")
ODD = "odd"  # of ops that nobody registered, tests/odd_model.py
DROPPED = "dropped"  # of a dropout in every place, tests/dropped_model.py
SOME = "some"  # recompute values drawn by name
EACH = "each"  # every instance recomputes what is drawn for it
# A pipeline's schedules in turn, with their chunks.
SCHEDULES = [
    ("1f1b", None),
    ("gpipe", None),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", None),
    ("zbv", None),
]
# Of bf16: precision, dtype of reductions, settings of the optimizer.
STOCHASTIC = (("rounding", "stochastic"),)
NARROW = [
    ("pure", None, ()),
    ("pure", "f32", ()),
    ("pure", "f32", STOCHASTIC),
    ("master", None, ()),
    ("master", "bf16", ()),
]
NARROW_OPTIMIZERS = ["adamw", "sgd", "lion", "schedule-free", "muon", "adafactor"]
MIN_SEGMENTS = 6  # embedding, two layers of attention and feed-forward, head
SEQS = (1, 5, 7, 8, 12, 16)
NARROW_SEQ = 5  # the shortest where rounding of a narrow dtype is compared


def chosen_seed() -> int:
    """The seed of this run: MESHWRIGHT_SEED, or 0."""
    return int(os.environ.get("MESHWRIGHT_SEED", "0"))


@dataclass(frozen=True)
class ModelDraw:
    """Which random model: its sizes follow from these four. stock: the class of transformers."""

    family: str
    stock: bool
    variant: int
    seed: int

    @property
    def name(self) -> str:
        return f"{'hf-' if self.stock else ''}{self.family}-{self.variant}"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case. empty: a micro-batch without labels; tail: the last rows without labels.

    precision, reduce_dtype: pins, of bf16. cuts: pin the stage cuts at random, else leave them to
    the planner. random_costs: plan for a cluster of random costs. price: of a resident byte, in us.
    clip: global-norm clip. freeze: patterns of names of parameters that are not trained.
    """

    number: int
    seed: int
    model: ModelDraw
    dtype: str = "f64"
    precision: str = "pure"
    reduce_dtype: str | None = None
    pp: int = 1
    rep: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    seq: int = 8
    outer: str = "pp"
    zero: int = 0
    recompute: str = "cheap"
    schedule: str = "1f1b"
    chunks: int | None = None
    shard_weights: bool = False
    cuts: bool = False
    random_costs: bool = False
    price: float | None = None
    empty: bool = False
    tail: bool = False
    clip: float = 1.0
    compiled: bool = False
    optimizer: str = "adamw"
    settings: tuple[tuple[str, object], ...] = ()
    groups: tuple[str, ...] = ()
    steps: int = STEPS
    freeze: tuple[str, ...] = ()
    resume: int = 0  # steps before the run is saved and taken up again, 0: never
    order: str | None = None  # of the sequence over cp, None: the planner's choice

    @property
    def rates(self) -> list[float]:
        return [RATES[step % len(RATES)] for step in range(self.steps)]

    @property
    def options(self) -> OptimizerOptions:
        return OptimizerOptions(
            name=self.optimizer,
            clip=self.clip,
            groups=tuple(map(parse_group, self.groups)),
            **dict(self.settings),  # type: ignore[arg-type]
        )

    @property
    def rounding(self) -> str | None:
        """The pin that weights of bf16 without masters need."""
        pure = self.dtype == "bf16" and self.precision == "pure"
        return dict(self.settings).get("rounding", "nearest") if pure else None

    @property
    def world(self) -> int:
        return self.pp * self.rep * self.dp * self.cp * self.tp

    @property
    def rows(self) -> int:
        """Rows of one data-parallel rank."""
        return self.micro_batch * self.accumulation

    @property
    def global_batch(self) -> int:
        return self.rows * self.rep * self.dp

    @property
    def num_stages(self) -> int:
        return self.pp * chunks_of(self.schedule, self.chunks)

    def __str__(self) -> str:
        rep = f"rep{self.rep}" if self.rep > 1 else ""
        rep += "" if self.cp == 1 else f"cp{self.cp}{self.order or ''}"
        mesh = f"pp{self.pp}{rep}dp{self.dp}tp{self.tp}"
        kind = f"{self.dtype}{'-compiled' if self.compiled else ''}"
        kind += f"-{self.precision}" if self.precision != "pure" else ""
        kind += f"-reduced-{self.reduce_dtype}" if self.reduce_dtype else ""
        kind += "-stochastic" if dict(self.settings).get("rounding") == "stochastic" else ""
        kind += f"-{self.optimizer}" if self.optimizer != "adamw" else ""
        mesh += "outer" if self.outer == "dp" else ""
        how = f"{mesh}-{self.schedule}-zero{self.zero}"
        kind += f"-resumed{self.resume}" if self.resume else ""
        kind += "-frozen" if self.freeze else ""
        return f"seed{self.seed}-{self.number:03d}-{self.model.name}-{how}-{kind}"


def draw_cases(seed: int, count: int, max_world: int, repeats: int = 2) -> list[Case]:
    """`count` cases: families, stock and own, and meshes come in turn, the rest at random.

    repeats: how many rounds over all families draw the same models, which are traced once: with
    one dtype and the same frozen parameters.
    """
    rng = random.Random(f"cases/{seed}/{max_world}")
    sources = _endless(rng, [(f, stock) for f in FAMILIES for stock in (False, True)])
    meshes = _endless(rng, _meshes(max_world))
    dtypes = _endless(rng, ["f64", "f64", "f64", "f32"])
    schedules = _endless(rng, SCHEDULES)
    optimizers = _endless(rng, ["adamw"] * 3 + [name for name in NAMES if name != "adamw"])
    resumes = _endless(rng, [0, 0, 0, 1, 2])
    cases: list[Case] = []
    traced: dict[ModelDraw, str] = {}
    for number in range(count):
        family, stock = next(sources)
        variant = number // (len(FAMILIES) * 2 * repeats)
        model = ModelDraw(family, stock, variant, seed)
        dtype = traced.setdefault(model, next(dtypes))
        cases.append(_case(rng, number, model, dtype, next(meshes), schedules))
        cases[-1] = replace(
            cases[-1],
            optimizer=_optimizer(cases[-1], optimizers),
            resume=next(resumes),
            outer=random.Random(f"outer/{seed}/{number}").choice(OUTER),
        )
        cases[-1] = _some_dropped(_some_odd(_some_frozen(_split_data(cases[-1]))))
    return cases


def _some_frozen(case: Case) -> Case:
    """The first or the second layer of some cases is not trained."""
    rng = random.Random(f"freeze/{case.seed}/{case.model}")
    if rng.random() >= 0.15:
        return case
    return replace(case, freeze=rng.choice((("*.0.*",), ("*.1.*",))))


def _some_odd(case: Case) -> Case:
    """The model of some cases consists of ops that nobody registered.

    It has one stage and no layers by number; in float32 a rounding may change what topk picks.
    """
    rng = random.Random(f"odd/{case.seed}/{case.number}")
    fits = (
        case.pp == 1 and case.dtype == "f64" and not case.freeze and case.seq % (4 * case.cp) == 0
    )
    if not fits or rng.random() >= 0.25:
        return case
    return replace(case, model=ModelDraw(ODD, False, 0, 0))


def _some_dropped(case: Case) -> Case:
    """The model of some cases has dropout in a place of its own."""
    rng = random.Random(f"dropped/{case.seed}/{case.number}")
    if case.model.family == ODD or case.freeze or rng.random() >= 0.12:
        return case
    return replace(case, model=ModelDraw(DROPPED, False, rng.randrange(6), 0))


def _split_data(case: Case) -> Case:
    """Data ranks become context ranks in some cases, replicas of sharded storage in others."""
    rng = random.Random(f"rep/{case.seed}/{case.number}")
    if case.dp % 2 == 0 and case.seq % (2 * case.tp) == 0 and rng.random() < 0.6:
        orders = (None, "mirrored") if case.seq % 4 == 0 else (None,)
        order = random.Random(f"order/{case.seed}/{case.number}").choice(orders)
        return replace(case, cp=2, dp=case.dp // 2, order=order)
    if case.dp < 4 or case.dp % 2 or rng.random() < 0.5:
        return case
    return replace(case, rep=2, dp=case.dp // 2, zero=max(case.zero, 1))


def draw_narrow_cases(seed: int, count: int, max_world: int) -> list[Case]:
    """Cases in bf16; precisions and dtypes of reductions come in turn."""
    rng = random.Random(f"narrow/{seed}/{max_world}")
    kinds = _endless(rng, NARROW)
    optimizers = _endless(rng, NARROW_OPTIMIZERS)
    drawn = draw_cases(seed, 4 * count, max_world, repeats=count)
    several = [case for case in drawn if case.dp > 1 and case.model.family != ODD]
    cases = []
    for number, case in enumerate(several[:count]):
        precision, reduce_dtype, settings = next(kinds)
        cases.append(
            replace(
                case, number=500 + number, dtype="bf16", precision=precision, settings=settings,
                reduce_dtype=reduce_dtype, optimizer=next(optimizers),
                seq=max(case.seq, NARROW_SEQ),
            )
        )  # fmt: skip
    return cases


def _optimizer(case: Case, optimizers: Iterator[str]) -> str:
    """The next one that can be compared.

    A bias of keys without rotation has a gradient that is rounding, and so have queries and keys
    of one position; Lion and Adafactor would make steps of it. In float32 Lion makes steps of any
    gradient that is.
    """
    while True:
        name = next(optimizers)
        rounding = case.model.family == "gpt2" or case.seq == 1
        if not (name in ("lion", "adafactor") and rounding) and not (
            name == "lion" and case.dtype == "f32"
        ):
            return name


def _endless(rng: random.Random, items: list) -> Iterator:
    """Every item once per round, each round in an order of its own."""
    while True:
        yield from rng.sample(items, len(items))


def _meshes(max_world: int) -> list[tuple[int, int, int]]:
    sizes = range(1, max_world + 1)
    triples = [(pp, dp, tp) for pp in sizes for dp in sizes for tp in sizes]
    return [m for m in triples if m[0] * m[1] * m[2] <= max_world and m[0] <= 4]


def _case(
    rng: random.Random,
    number: int,
    model: ModelDraw,
    dtype: str,
    mesh: tuple[int, int, int],
    schedules: Iterator[tuple[str, int | None]],
) -> Case:
    pp, dp, tp = mesh
    accumulation = rng.choice((1, 2, 3, 5) if pp > 1 else (1, 2, 3))
    schedule, chunks = _schedule(schedules, pp)
    if schedule == "interleaved":
        accumulation = pp * rng.choice((1, 1, 2))
    return Case(
        number=number,
        seed=model.seed,
        model=model,
        dtype=dtype,
        pp=pp,
        dp=dp,
        tp=tp,
        micro_batch=rng.choice((1, 1, 2, 2, 3)),
        accumulation=accumulation,
        seq=_seq(rng, dtype),
        zero=rng.choice((0, 1, 2, 3)),
        recompute=rng.choice(("cheap", "all", "none", SOME, EACH)),
        schedule=schedule,
        chunks=chunks,
        shard_weights=tp > 1 and rng.random() < 0.5,
        cuts=pp > 1 and rng.random() < 0.5,
        random_costs=tp > 1 and rng.random() < 0.7,
        price=rng.choice((None, 0.0, 1e-4, 1e-2)),
        empty=rng.random() < 0.4,
        tail=rng.random() < 0.4,
        clip=rng.choice((1.0, 0.1)),
    )


def _seq(rng: random.Random, dtype: str) -> int:
    """One position in float64 only: gradients of its queries and keys are rounding, of which AdamW
    makes steps, and a label or two tell little of the noise of a narrow dtype."""
    seq = rng.choice(SEQS)
    return seq if dtype == "f64" else max(seq, NARROW_SEQ)


def _schedule(schedules: Iterator[tuple[str, int | None]], pp: int) -> tuple[str, int | None]:
    """The next schedule whose stages have a segment each, in the smallest model."""
    while pp > 1:
        name, chunks = next(schedules)
        if pp * chunks_of(name, chunks) <= MIN_SEGMENTS:
            return name, chunks
    return "1f1b", None


def batches(case: Case, vocab: int) -> list[tuple[Tensor, Tensor]]:
    """Tokens and labels [global batch, seq] of every step."""
    generator = torch.Generator().manual_seed(case.seed * 100_003 + case.number)
    return [_batch(case, vocab, generator) for _ in range(case.steps)]


def _batch(case: Case, vocab: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = case.global_batch
    tokens = torch.randint(vocab, (rows, case.seq), generator=generator)
    labels = torch.randint(vocab, (rows, case.seq), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORED
    if case.tail:
        labels[-max(1, rows // 4) :] = IGNORED
    if case.empty and rows > case.micro_batch:
        first = case.micro_batch * int(
            torch.randint(rows // case.micro_batch, (), generator=generator)
        )
        labels[first : first + case.micro_batch] = IGNORED
    if bool((labels == IGNORED).all()):
        labels[0] = tokens[0]
    return tokens, labels


def random_names(case: Case, names: list[str]) -> str:
    """A third of the value names, as the pin `recompute` takes them."""
    rng = random.Random(f"recompute/{case.seed}/{case.number}")
    return ",".join(rng.sample(names, -(-len(names) // 3)))


def random_cuts(case: Case, num_instances: int) -> str:
    """First instances of the later stages, as the pin `cuts` takes them."""
    rng = random.Random(f"cuts/{case.seed}/{case.number}")
    starts = rng.sample(range(1, num_instances), case.num_stages - 1)
    return ",".join(map(str, sorted(starts)))
