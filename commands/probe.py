"""`meshwright probe`: the machine at hand as a cluster file."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.files import write_text
from meshwright.runtime.given import check_file_place

from .doing import Doing
from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.api.probing import Probed
    from meshwright.planner.hardware.cluster import Device

DEFAULT = Path("cluster.toml")


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "probe",
        _run,
        "Measure this machine and write a cluster file that plan takes: matmul rates by type, "
        "attention by head size and length, memory bandwidth, the shortest kernel, the link to the "
        "host, collectives by kind, size and group, what one takes from compute beside it, and the "
        "memory that the driver and communicators hold. Without a GPU it measures CPU ranks.",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=None,
        metavar="FILE",
        help=f"the file to write, FILE.toml; written over if it is named (default: {DEFAULT})",
    )
    parser.add_argument(
        "--full", action="store_true", help="more sizes, for longer: minutes in place of seconds"
    )


def _run(arguments: argparse.Namespace) -> None:
    path = arguments.output or DEFAULT
    if path.suffix != ".toml":
        raise ValueError(f"{path}: a cluster file ends in .toml; call it {path}.toml")
    if arguments.output is None and path.exists():
        raise ValueError(f"{path} is there already: -o {path} writes over it, or give another file")
    check_file_place("--output", path)
    from meshwright.api.here import remember_probed
    from meshwright.api.probing import probe
    from meshwright.planner.hardware.cluster_file import format_cluster

    with Doing() as say:
        found = probe(full=arguments.full, name=path.stem, say=say)
    write_text(path, format_cluster(found.cluster))
    if why := remember_probed(path):
        print(why, file=sys.stderr)
    print_result(arguments, _facts(found, path), _text(found, path))


def _facts(found: "Probed", path: Path) -> dict[str, Any]:
    cluster, device = found.cluster, found.cluster.device
    return {
        "file": str(path),
        "device": device.name,
        "devices": cluster.num_devices,
        "matmul_flops_per_s": dict(device.matmul_flops_per_s),
        "memory_bytes_per_s": device.hbm_bytes_per_s,
        "launch_us": device.launch_us,
        "host_link_bytes_per_s": cluster.host_link_bytes_per_s,
        "host_link_alone_bytes_per_s": found.host_alone_bytes_per_s,
        "link_bytes_per_s": cluster.levels[0].bytes_per_s,
        "overlap_price": cluster.overlap_price,
        "context_bytes": device.context_bytes,
        "communicator_bytes": device.communicator_bytes,
    }


def _of(backend: str) -> str:
    return f" by {backend}" if backend else ""


def _deeper(device: "Device") -> str:
    depth = device.tile_depth
    return f"; a tile costs {depth:.0f} elements of the contracted dimension" if depth else ""


def _alone(found: "Probed") -> str:
    ways = [f"{way} {rate / 1e9:.3g}" for way, rate in found.host_alone_bytes_per_s.items()]
    return f" at once; alone {', '.join(ways)}" if ways else ""


def _text(found: "Probed", path: Path) -> str:
    cluster, device = found.cluster, found.cluster.device
    sources = dict(device.sources)
    rates = ", ".join(
        f"{name} {rate / 1e12:.3g}"
        for name, rate in device.matmul_flops_per_s
        if sources.get(name, "").startswith("measured")
    )
    lines = [
        f"{cluster.num_devices} x {device.name}",
        f"matmuls    {rates} Tflop/s{_deeper(device)}",
        *(
            f"attention  heads of {r.head_dim} at {r.positions:,} tokens{_of(r.backend)}: forward "
            f"{r.forward / 1e12:.3g}, backward {r.backward / 1e12:.3g} Tflop/s"
            for r in device.attention_readings
        ),
        f"memory     {device.hbm_bytes_per_s / 1e9:,.0f} GB/s; a kernel takes "
        f"{device.launch_us:g} us beside its bytes",
        f"host link  {cluster.host_link_bytes_per_s / 1e9:.3g} GB/s each way{_alone(found)}",
    ]
    if cluster.num_devices > 1:
        link = cluster.levels[0]
        lines.append(
            f"{link.name}  {link.bytes_per_s / 1e9:,.3g} GB/s, {link.alpha_us:.0f} us; compute "
            f"beside it takes {cluster.overlap_price:.0%} of the shared time more"
        )
    if device.context_bytes:
        links = f", a communicator {device.communicator_bytes / 2**20:,.0f}"
        links = links if device.communicator_bytes else ""
        lines.append(f"context    {device.context_bytes / 2**20:,.0f} MiB of each device{links}")
    lines.append(f"{path} written; what was not measured is of {found.like}, and says so")
    return "\n".join([*lines, f"plan with --cluster {path}, or auto here"])
