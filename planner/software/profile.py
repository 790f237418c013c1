"""Software profiles: where another stack differs from the programs that we emit.

profiles.toml beside this file has some, and a user's file the same form. Each difference is priced
by the planner's own cost of the work named; nothing is fitted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from ..hardware.cluster import ClusterError
from ..headed_toml import read_tables
from .kernels import KINDS

HEADER = "# meshwright software v1"
BUILT_IN = Path(__file__).with_name("profiles.toml")
ZERO_LEVELS = range(4)


@dataclass(frozen=True)
class Software:
    """Ways of a stack to run a layout.

    fused: whether a compiler makes pointwise ops one kernel; else each reads and writes memory by
    itself. library_kernels: which of norm and rope are then a kernel each that keeps what enters it
    alone. joins_sums: whether the sums over rows of a norm's backward, which its weight's gradient
    is, are made in the pass that gives its input's. kernel_us: of the host's time, to issue a
    kernel where nothing is compiled. layer_us: of the host's time, that forward and backward of a
    layer take at least. waits: whether the host issues no kernel before the last one has ended, as
    under CUDA_LAUNCH_BLOCKING. matmul_share, attention_share: of the rate of our matmuls and of our
    attention that the stack's own reach. waves_of: of how many multiprocessors each wave of tiles
    takes all, of matmuls that begin no tile beside another wave's; 0 where tiles leave none idle.
    attention_passes: reads and writes of all scores in forward and in backward, of an attention
    that keeps them in memory; empty where it does not. odd_heads_f32: whether its matmuls run at
    the rate of float32 where the size of a head is no multiple of 8. loss_passes: the same of all
    logits, of a loss that is not computed in chunks. gathers_logits: whether each tp rank gathers
    all of them for it. adds_apart: whether gradients of micro-batches are added by kernels of their
    own. recomputes_whole: whether a block that keeps nothing is computed again to its end, its
    collectives included, and not as far as backward asks for. reduces_once: whether gradients
    travel once a step under ZeRO 3. reduces_last: under which levels of ZeRO they travel after the
    last backward, all of a rank's together, and not beside it. reduces_whole: whether they are
    all-reduced, though a rank updates a share of them. broadcasts: whether parameters are whole on
    a rank that updates them, under ZeRO 1 and 2, and are sent by one rank after the other.
    slice_us: of the host's time in a step under ZeRO 1 and 2, for each slice of a parameter, of
    which each data rank has one. overlaps_tensor: whether collectives of a split layer run beside
    the matmuls they feed, in a piece a rank, the first of which is waited for; none hides more than
    the matmuls take. waits_for_sums: whether of these only a single matmul's result is summed over
    ranks beside it, and not the sum of several. cuts_sequence: whether each tp rank has its share
    of the sequence between split layers, also where our layout has all of it there: what ours
    all-reduces is then scattered and gathered. gathers_again: whether what entered a split layer is
    gathered again in backward. scatters_sends: whether each tp rank sends its share of what all of
    them hold to the next stage, which gathers it. waits_for_sends: whether a rank computes nothing
    while it sends to another stage or receives from it. float8: whether matmuls of layers are in
    fp8, where a card has a rate of it, their operands cast with one scale each. keeps_layers:
    whether a layer of which some is computed again keeps what enters it, and not what enters each
    half, which backward computes again; with recomputes_whole a layer that keeps nothing keeps no
    more, either.

    Of memory: casts_shards: whether a rank's share of parameters is in float32 alone, and is cast
    as it is gathered, under ZeRO 3. copies_gathered: whether what is gathered then is copied out of
    a buffer that nothing else may lie in. kept_copies: values as wide as what enters a layer that
    it keeps beside those that its backward reads, such as copies in another order. keeps_gathered:
    such values that a layer keeps gathered, where each tp rank has a share of them. logits_held:
    how often a loss on whole logits holds their bytes: as they are left out, themselves, and in
    float32 a copy and a gradient. grad_bytes: of a gradient's element on a rank before ZeRO cuts
    it, 0 where it is as in our programs. flat_bytes: of an element of the share that a rank
    updates, in what the optimizer's step takes, such as flat copies of gradients and roots of
    moments; copy_bytes: the same of its largest parameter alone, at another time. outside_gib: GiB
    of a device for the driver and buffers of the stack. communicator_gib: for each communicator.
    fragments: of what the allocator holds for activations and temporaries, the share that it cannot
    use. The last three and copies are 0 where memory is read as torch's own peak, and not off the
    device.
    """

    name: str
    fused: bool = True
    library_kernels: tuple[str, ...] = ()
    joins_sums: bool = False
    kernel_us: float = 0.0
    layer_us: float = 0.0
    waits: bool = False
    matmul_share: float = 1.0
    attention_share: float = 1.0
    waves_of: int = 0
    attention_passes: tuple[int, ...] = ()
    odd_heads_f32: bool = False
    loss_passes: tuple[int, ...] = ()
    gathers_logits: bool = False
    adds_apart: bool = False
    recomputes_whole: bool = False
    reduces_once: bool = False
    reduces_last: tuple[int, ...] = ()
    reduces_whole: bool = False
    broadcasts: bool = False
    slice_us: float = 0.0
    overlaps_tensor: bool = False
    waits_for_sums: bool = False
    cuts_sequence: bool = False
    gathers_again: bool = False
    scatters_sends: bool = False
    waits_for_sends: bool = False
    float8: bool = False
    keeps_layers: bool = False
    casts_shards: bool = False
    copies_gathered: bool = False
    kept_copies: float = 0.0
    keeps_gathered: float = 0.0
    logits_held: float = 5.0
    grad_bytes: int = 0
    flat_bytes: int = 0
    copy_bytes: int = 0
    outside_gib: float = 0.0
    communicator_gib: float = 0.0
    fragments: float = 0.0


def read_software(spec: str) -> Software:
    """Return a built-in profile by its name, or that of a file. Raises ClusterError."""
    known = _read(BUILT_IN)
    if spec in known:
        return known[spec]
    path = Path(spec)
    if path.suffix != ".toml":
        raise ClusterError(
            f"--software {spec}: unknown; give {', '.join(known)}, or a .toml file of that form"
        )
    found = list(_read(path).values())
    if len(found) != 1:
        raise ClusterError(f"--software {path}: give one [NAME] in it, {len(found)} are there")
    return found[0]


def _read(path: Path) -> dict[str, Software]:
    tables = read_tables(path, HEADER, "--software")
    return {name: _software(path, name, table) for name, table in tables.items()}


def _software(path: Path, name: str, table: object) -> Software:
    if not isinstance(table, Mapping):
        raise ClusterError(f"--software {path}: {name} = {table!r}; write [{name}] and its entries")
    forms = {item.name: item for item in fields(Software) if item.name != "name"}
    found = {key: value for key, value in table.items() if key != "sources"}
    for key, value in found.items():
        where = f"--software {path}: [{name}] {key}"
        if key not in forms:
            raise ClusterError(f"{where}: unknown; give {', '.join(forms)}, or sources")
        if not _fits(key, value):
            raise ClusterError(
                f"{where} is {_short(value)}; {_WANTED.get(key, 'give true or false')}"
            )
    if isinstance(every := found.get(_LEVELS), bool):
        found[_LEVELS] = list(ZERO_LEVELS) if every else []
    found |= {key: tuple(found[key]) for key in (*_PASSES, _LIBRARY, _LEVELS) if key in found}
    return Software(name, **found)


_MOST = 1e6  # of any number: larger ones are slips, and lead to times that no number holds
_MOST_SHARE = 2  # of a rate of ours: a larger one is a slip, such as percent
_NUMBERS: dict[str, Callable[[float], bool]] = {
    "kernel_us": lambda us: us >= 0,
    "layer_us": lambda us: us >= 0,
    "slice_us": lambda us: us >= 0,
    "matmul_share": lambda share: 1 / _MOST <= share <= _MOST_SHARE,
    "attention_share": lambda share: 1 / _MOST <= share <= _MOST_SHARE,
    "kept_copies": lambda times: times >= 0,
    "keeps_gathered": lambda times: times >= 0,
    "logits_held": lambda times: times >= 0,
    "outside_gib": lambda size: size >= 0,
    "communicator_gib": lambda size: size >= 0,
    "fragments": lambda share: 0 <= share < 1,
} | dict.fromkeys(
    ("waves_of", "grad_bytes", "flat_bytes", "copy_bytes"),
    lambda size: isinstance(size, int) and size >= 0,
)
_PASSES, _LIBRARY = ("attention_passes", "loss_passes"), "library_kernels"
_LEVELS = "reduces_last"
_WANTED = {
    "kernel_us": "give us of 0 or more, 1e6 at most",
    "layer_us": "give us of 0 or more, 1e6 at most",
    "slice_us": "give us of 0 or more, 1e6 at most",
    "matmul_share": f"give a share above 0, 1e-6 at least and {_MOST_SHARE} at most",
    "attention_share": f"give a share above 0, 1e-6 at least and {_MOST_SHARE} at most",
    "kept_copies": "give a number of values of 0 or more, 1e6 at most",
    "keeps_gathered": "give a number of values of 0 or more, 1e6 at most",
    "logits_held": "give times of 0 or more, 1e6 at most",
    "waves_of": "give a whole number of 0 or more, 1e6 at most",
    "grad_bytes": "give whole bytes of 0 or more, 1e6 at most",
    "flat_bytes": "give whole bytes of 0 or more, 1e6 at most",
    "copy_bytes": "give whole bytes of 0 or more, 1e6 at most",
    "outside_gib": "give GiB of 0 or more, 1e6 at most",
    "communicator_gib": "give GiB of 0 or more, 1e6 at most",
    "fragments": "give a share from 0 to below 1",
    _LIBRARY: f"give a list of {', '.join(KINDS)}",
    _LEVELS: "give true, false or a list of levels of ZeRO, such as [1, 2]",
} | dict.fromkeys(_PASSES, "give two numbers of passes, of forward and backward, such as [2, 4]")


def _short(value: object) -> str:
    """Return a value as it is shown: its beginning where it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _fits(key: str, value: object) -> bool:
    if key in _NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return value <= _MOST and _NUMBERS[key](value)
    if key in _PASSES:
        counts = isinstance(value, list) and all(type(n) is int and 0 <= n <= _MOST for n in value)
        return counts and isinstance(value, list) and len(value) == 2
    if key == _LIBRARY:
        return isinstance(value, list) and all(kind in KINDS for kind in value)
    if key == _LEVELS and isinstance(value, list):
        return all(type(level) is int and level in ZERO_LEVELS for level in value)
    return isinstance(value, bool)
