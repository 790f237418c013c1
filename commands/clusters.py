"""`meshwright clusters`: the catalogue, one of its nodes in full, and a file to edit."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.api.files import write_text
from meshwright.runtime.given import check_file_place

from .output import print_result
from .parsers import add_command

if TYPE_CHECKING:
    from meshwright.planner.hardware.cluster import Cluster, LinkLevel

# What a cluster file's entries mean, in its own units.
MEANINGS = {
    "name": "what plans and reports call it",
    "devices_per_node": "devices of a node",
    "nodes": "equal nodes",
    "host_link_bytes_per_s": "device to host, one direction, a device",
    "host_memory_bytes": "of a node, for all its devices",
    "type": "as torch names it: cuda or cpu",
    "hbm_bytes_per_s": "memory bandwidth of a device, reads and writes together",
    "memory_bytes": "of a device",
    "launch_us": "least time of a kernel, with its launch queued ahead",
    "call_us": "of the host's time, to issue one compiled function; 0 where it is the device",
    "efficiency": "share of the rates below that large matmuls reach; 1 where they were measured",
    "attention_flops_per_s": "forward and backward of the fused kernel; without it the matmul rate",
    "alpha_us": "latency of a collective over these links",
    "bytes_per_s": "one direction, a device",
    "by_nodes": "[nodes, share of bytes_per_s that a ring over so many reaches], ...",
    "hop_us": "of one more node of a ring, one more doubling in a tree; twice in an all_reduce",
    "full_mesh": "devices joined pair by pair, each pair by an equal share; without it a switch",
    "span": "devices that these links join",
    "collective": "all_reduce, all_gather, reduce_scatter, all_to_all or send_recv",
    "group": "neighbouring ranks that take part",
    "bytes": "largest buffer on a rank, of each reading",
    "us": "time of each reading",
}


def add(commands: Any) -> None:
    """Add the command and its parts."""
    parser = commands.add_parser(
        "clusters",
        help="list the catalogue of hardware, show a node, write a cluster file",
        description="List the catalogue of hardware, show one node in full with the source of each "
        "figure, or write a cluster file to edit.",
    )
    parts = parser.add_subparsers(title="parts", required=True, metavar="PART")
    add_command(parts, "list", _list, "List the nodes of the catalogue.")
    show = add_command(parts, "show", _show, "Show a cluster with every figure and its source.")
    show.add_argument("name", help="as --cluster takes it: h200:8, h100:8x16, a TOML file")
    new = add_command(parts, "new", _new, "Write a cluster file whose entries are explained.")
    new.add_argument("file", type=Path, help="the file to write, FILE.toml")
    new.add_argument(
        "--like", default="h200:8", metavar="NAME", help="whose figures it starts with"
    )


def _list(arguments: argparse.Namespace) -> None:
    from meshwright.planner.hardware.catalogue import CATALOGUE
    from meshwright.runtime.training.changes import columns

    rows = [_row(cluster) for cluster in CATALOGUE.values()]
    facts = [_facts(cluster) for cluster in CATALOGUE.values()]
    print_result(arguments, {"clusters": facts}, "\n".join(columns(rows)))


def _row(cluster: "Cluster") -> tuple[str, ...]:
    device = cluster.device
    rate = device.matmul_rate("bf16") / 1e12
    links = ", ".join(map(_link, cluster.levels))
    return (
        cluster.name,
        device.name,
        f"{device.memory_bytes / 2**30:.0f} GiB",
        f"{rate:,.0f} bf16 TFLOP/s" if rate >= 1 else f"{rate:.2g} bf16 TFLOP/s",
        f"{device.hbm_bytes_per_s / 1e12:.3g} TB/s",
        f"{cluster.devices_per_node} a node",
        links,
    )


def _link(level: "LinkLevel") -> str:
    pair = f", {level.pair_bytes_per_s / 1e9:,.0f} of it a pair" if level.full_mesh else ""
    return f"{level.name} {level.bytes_per_s / 1e9:,.0f} GB/s{pair}"


def _facts(cluster: "Cluster") -> dict[str, Any]:
    device = cluster.device
    return {
        "name": cluster.name,
        "device": device.name,
        "memory_bytes": device.memory_bytes,
        "matmul_bf16_flops_per_s": device.matmul_rate("bf16"),
        "memory_bytes_per_s": device.hbm_bytes_per_s,
        "devices_per_node": cluster.devices_per_node,
        "links_bytes_per_s": {level.name: level.bytes_per_s for level in cluster.levels},
    }


def _show(arguments: argparse.Namespace) -> None:
    from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster

    cluster = parse_cluster(arguments.name)
    text = format_cluster(cluster).rstrip("\n")
    print_result(arguments, {**_facts(cluster), "text": text}, text)


def _new(arguments: argparse.Namespace) -> None:
    from meshwright.planner.hardware.cluster_file import format_cluster, parse_cluster

    path = arguments.file
    if path.suffix != ".toml":
        raise ValueError(f"{path}: a cluster file ends in .toml; call it {path}.toml")
    if path.exists():
        raise ValueError(f"{path} exists; give another name, or remove it first")
    check_file_place("FILE", path)
    cluster = replace(parse_cluster(arguments.like), name=path.stem)
    write_text(path, explained(format_cluster(cluster)))
    said = f"{path} written with the figures of {arguments.like}; plan with --cluster {path}"
    print_result(arguments, {"file": str(path), "like": arguments.like}, said)


def explained(text: str) -> str:
    """Return a cluster's text with the meaning of each entry beside it; it parses as before."""
    lines, table = [], ""
    for line in text.splitlines():
        table = line if line.startswith("[") else table
        name = line.partition(" = ")[0]
        explains = name in MEANINGS and "sources" not in table and len(line) < 80
        lines.append(f"{line}  # {MEANINGS[name]}" if explains else line)
    return "\n".join(lines) + "\n"
