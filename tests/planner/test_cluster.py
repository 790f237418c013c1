"""Clusters: the text that parses back, names, counts, collective times."""

import re
from dataclasses import fields, replace

import pytest

from meshwright.planner.hardware.catalogue import CATALOGUE
from meshwright.planner.hardware.cluster import (
    KNOWN_BY,
    TRITON,
    UNREAD_SHARE,
    AttentionReading,
    ClusterError,
    Sources,
    collective_us,
)
from meshwright.planner.hardware.cluster_file import (
    format_cluster,
    parse_cluster,
    parse_cluster_text,
    resized,
)
from meshwright.planner.hardware.usable import usable_bytes


@pytest.mark.parametrize(
    "spec", [*CATALOGUE, "cpu:4", "h200:8", "h100:8x16", "a100:2x2", "h100:8x4,network=efa"]
)
def test_the_text_parses_back_byte_equal(spec: str) -> None:
    cluster = parse_cluster(spec)
    text = format_cluster(cluster)
    assert text.startswith("# meshwright cluster v1\n")
    assert parse_cluster_text(text) == cluster
    assert format_cluster(parse_cluster_text(text)) == text


def test_counts(tmp_path) -> None:
    assert parse_cluster("cpu").num_devices == 1
    assert parse_cluster("h100:8x16").num_devices == 128
    path = tmp_path / "mine.toml"
    path.write_text(format_cluster(parse_cluster("h200:4")))
    assert parse_cluster(str(path)) == parse_cluster("h200:4")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("h20:8", "did you mean 'h200'?"),
        ("mystery:8", "the catalogue holds cpu, h200, h100, a100"),
        ("h200:0", "h200:DEVICES"),
        ("h200:", "h200:DEVICES"),
        ("h200:8x", "h200:DEVICES"),
        ("h200:16", "holds 8 devices, asked for 16"),
        ("nowhere.toml", "cannot be read"),
    ],
)
def test_a_bad_name_says_the_way_out(spec: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words.replace("?", r"\?")):
        parse_cluster(spec)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("cluster v1", "cluster v2", "first line must be"),
        ("memory_bytes = 8589934592", "memory_bytes = 0", "device.memory_bytes is 0"),
        (
            "host_link_bytes_per_s = 10000000000.0",
            "host_link_bytes_per_s = 0",
            "host_link_bytes_per_s is 0",
        ),
        ("launch_us = 5.0\n", "", "'launch_us' is missing"),
        ("launch_us = 5.0\n", "launch_us = 5.0\ncall = 1.0\n", "device.call is no entry"),
        ("span = 4", "span = [", "not TOML"),
        ("launch_us = 5.0", 'launch_us = "soon"', "wrong form"),
    ],
)
def test_a_bad_text_names_the_entry(old: str, new: str, words: str) -> None:
    text = format_cluster(parse_cluster("cpu:4"))
    assert old in text
    with pytest.raises(ClusterError, match=words):
        parse_cluster_text(text.replace(old, new))


def test_measured_collectives_are_met_at_their_readings() -> None:
    h200 = parse_cluster("h200:8")
    assert collective_us(h200, "all_reduce", 2**29, 8) == 2747
    assert collective_us(h200, "all_gather", 2**20, 2) == 13
    assert collective_us(h200, "all_gather", 2**30, 2) == pytest.approx(2 * 1125, rel=0.03)
    assert collective_us(h200, "all_reduce", 2**40, 1) == 0


def test_a_group_beyond_the_node_pays_the_slower_link() -> None:
    h100 = parse_cluster("h100:8x2")
    inside, outside = (collective_us(h100, "all_gather", 2**29, n) for n in (8, 16))
    assert outside > 5 * inside


def test_a_ring_over_more_nodes_reaches_less_of_the_bandwidth() -> None:
    link = parse_cluster("h100:8x2").levels[1]
    assert [link.share(n) for n in (2, 4, 16, 128)] == [1.0, 1.0, 0.889, 0.722]
    assert 0.833 < link.share(24) < 0.889  # between readings
    assert link.share(256) == pytest.approx(0.722**2 / 0.778)  # as from 64 to 128
    assert parse_cluster("cpu:2x2").levels[1].share(2) == 1.0  # none is known


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ("[[4, 1.0], [4, 0.9]]", r"by_nodes must grow, are \[4, 4\]"),
        ("[[0, 1.0], [4, 0.9]]", r"by_nodes must grow, are \[0, 4\]"),
        ("[[4, 1.0], [8, 0.0]]", r"up to 1, are \[1.0, 0.0\]"),
        ("[[4, 1.5]]", r"up to 1, are \[1.5\]"),
        ("[4, 1.0]", "wrong form"),
    ],
)
def test_bad_shares_of_nodes_are_named(shares: str, words: str) -> None:
    text = format_cluster(parse_cluster("h100:8x16"))
    line = next(line for line in text.splitlines() if line.startswith("by_nodes = "))
    with pytest.raises(ClusterError, match=words):
        parse_cluster_text(text.replace(line, f"by_nodes = {shares}"))


@pytest.mark.parametrize(
    "hops",
    [
        "[500.0]",
        "[500.0, -1.0]",
        "[nan, 1.0]",
        "[1e300, 1e300]",
        '["1", "2"]',
        "[true, true]",
        "500.0",
    ],
)
def test_a_hop_has_two_times_above_0(hops: str) -> None:
    text = format_cluster(parse_cluster("h100:8x4,network=efa"))
    with pytest.raises(ClusterError, match=r"mine.*hop_us is .*; give two times in us above 0"):
        parse_cluster_text(re.sub(r"(hop_us =) .*", rf"\1 {hops}", text), "mine.toml")


@pytest.mark.parametrize("field", ["context_bytes", "communicator_bytes", "overlap_price"])
def test_what_a_probe_alone_reads_stays_in_its_file(field: str) -> None:
    cluster = parse_cluster("h200:2")
    device = replace(cluster.device, context_bytes=2**29, communicator_bytes=2**28)
    text = format_cluster(replace(cluster, device=device, overlap_price=0.25))
    again = parse_cluster_text(text)
    assert (again.device.context_bytes, again.device.communicator_bytes) == (2**29, 2**28)
    assert again.overlap_price == 0.25 and format_cluster(again) == text
    assert "context_bytes" not in format_cluster(cluster)
    for value in ("-1", "1e30"):
        with pytest.raises(ClusterError, match=rf"mine.*{field} is .*must be from 0 to"):
            parse_cluster_text(re.sub(rf"\n({field}) = .*", rf"\n\1 = {value}", text), "mine.toml")


def test_a_plan_leaves_more_free_where_context_and_communicators_hold_more() -> None:
    """The least share is kept for all; on 12 GiB a context of 1.5 and links of 0.2 each leave 58 of
    thousand beside them."""
    cluster = parse_cluster("h200:2")
    memory = cluster.device.memory_bytes
    read = replace(cluster.device, context_bytes=804 * 2**20, communicator_bytes=300 * 2**20)
    for device in (cluster.device, read):
        assert usable_bytes(replace(cluster, device=device)) == pytest.approx(0.91 * memory)
    small = replace(read, memory_bytes=12 * 2**30, context_bytes=3 * 2**29)
    left = usable_bytes(replace(cluster, device=small))
    assert left == pytest.approx((1 - 0.058) * 12 * 2**30 - 3 * 2**29 - 4 * 300 * 2**20)
    alone = usable_bytes(replace(parse_cluster("h200:1"), device=small))
    assert alone == left + 4 * 300 * 2**20


def test_a_network_of_a_file_holds_for_more_nodes(tmp_path) -> None:
    path = tmp_path / "one.toml"
    text = format_cluster(parse_cluster("h100:8x2")).replace("nodes = 2", "nodes = 1")
    path.write_text(text)
    link = resized(f"{path},network=efa", 8, 2).levels[-1]
    assert (link.name, link.hop_us) == (
        "efa",
        parse_cluster("h100:8x2,network=efa").levels[-1].hop_us,
    )
    with pytest.raises(ClusterError, match="network is given 2 times; give one"):
        parse_cluster("h100:8x4,network=efa,network=roce")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("full_mesh = 4", "full_mesh = 3", "full_mesh is 3, must be 0 for a switch or at least 4"),
        ("full_mesh = 4", "full_mesh = -4", "full_mesh is -4, must be 0"),
        ("full_mesh = 4", "full_mesh = true", "full_mesh is true; give a number"),
        ("full_mesh = 4", 'full_mesh = "yes"', "wrong form"),
        ("span = 8", "span = 8\nfull_mesh = 8", "this level spans 8 devices, a node holds 4"),
    ],
)
def test_a_bad_mesh_is_named(old: str, new: str, words: str) -> None:
    text = format_cluster(parse_cluster("h200-4gpu:4x2"))
    assert old in text
    with pytest.raises(ClusterError, match=words) as caught:
        parse_cluster_text(text.replace(old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    "alpha_us bytes_per_s hbm_bytes_per_s memory_bytes launch_us call_us host_link_bytes_per_s "
    "bf16".split(),
)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1.0", "1e400"])
def test_a_figure_is_a_number_that_is_not_below_0(entry: str, value: str) -> None:
    text = format_cluster(parse_cluster("h100:8x4"))
    bad, count = re.subn(rf"(?m)^({entry} =) [0-9.].*", rf"\1 {value}", text, count=1)
    assert count == 1
    with pytest.raises(ClusterError, match=rf"mine\.toml: .*{entry} is"):
        parse_cluster_text(bad, "mine.toml")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("alpha_us", "true"),
        ("memory_bytes", "false"),
        ("span", "inf"),
        ("nodes", "2.5"),
        ("context_bytes", "inf"),
    ],
)
def test_an_entry_has_its_kind_of_number(entry: str, value: str) -> None:
    cluster = parse_cluster("h100:8x4")
    text = format_cluster(replace(cluster, device=replace(cluster.device, context_bytes=2**29)))
    bad = re.sub(rf"(?m)^({entry} =) [0-9].*", rf"\1 {value}", text, count=1)
    with pytest.raises(ClusterError, match=rf"mine\.toml: [a-z.]*{entry} is {value}; give a"):
        parse_cluster_text(bad, "mine.toml")


FORMS = {
    'devices_per_node = "eight"': "devices_per_node has the wrong form: 'eight'; give a number",
    f"span = {'9' * 400}": r"levels.span has the wrong form: 9+\.\.\.; give a number",
    "nodes = [2]": r"nodes has the wrong form: \[2\]; give a number",
    'bf16 = "fast"': "matmul_flops_per_s.bf16 has the wrong form: 'fast'; give a number",
    "attention_readings = 3": "readings has the wrong form: 3; give rows .head size, positions",
    "attention_readings = [64, 1024, 3e14, 2e14]": "wrong form: .*; give rows .head size",
    "attention_readings = [[64, 1024, 3e14]]": "wrong form: .*; give rows .head size",
    'attention_readings = [[64, 1024, 3e14, "fast"]]': "wrong form: .*; give rows .head size",
    "attention_readings = [[64, 1024, 3e14, 2e14, 5]]": "wrong form: .*; give rows .head size",
    "us = [8.0, 16.0]": "curves of all_reduce have 5 bytes and 2 us; give as many of both",
    'us = ["a", 1, 1, 1, 1]': "levels.curves.us has the wrong form: .*; give a list of numbers",
    "by_nodes = [[4, 1.0, 2]]": "levels.by_nodes has the wrong form: .*; give pairs .nodes, share",
}


@pytest.mark.parametrize("line", FORMS)
def test_an_entry_of_another_form_says_what_it_takes(line: str) -> None:
    text = format_cluster(parse_cluster("h200:8x2"))
    bad, count = re.subn(rf"(?m)^{line.partition(' ')[0]} = [0-9\[].*", line, text, count=1)
    assert count == 1
    with pytest.raises(ClusterError, match=FORMS[line]) as caught:
        parse_cluster_text(bad, "mine.toml")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("mine.toml: ")


def test_a_link_joins_all_devices() -> None:
    text = format_cluster(parse_cluster("h200:8")).replace("nodes = 1", "nodes = 2")
    said = r"mine.toml: no link joins all 16 devices \(nodes = 2, devices_per_node = 8\): nvlink "
    with pytest.raises(ClusterError, match=f"{said}spans 8; add .*span = 16"):
        parse_cluster_text(text, "mine.toml")
    assert parse_cluster_text(text.replace("span = 8", "span = 16")).num_devices == 16


@pytest.mark.parametrize("value", ["nan", "inf", "-5000.0", "0.0"])
def test_a_reading_is_above_0(value: str) -> None:
    text = format_cluster(parse_cluster("h200:8"))
    for entry in ("us", "attention_readings", "attention_flops_per_s"):
        bad, count = re.subn(
            rf"(?m)^({entry} = \[+[^\n]*?)[0-9.e+]+(\]+)$", rf"\g<1>{value}\2", text
        )
        if count == 0:  # readings have the name of a kernel last
            bad, count = re.subn(r"(\[64, 4096, )[0-9.e+]+", rf"\g<1>{value}", text)
        assert count, entry
        with pytest.raises(ClusterError, match="must be a number above 0"):
            parse_cluster_text(bad, "mine.toml")


def test_a_link_without_a_word_of_a_mesh_is_switched() -> None:
    text = format_cluster(parse_cluster("h200:4"))
    assert "full_mesh" not in text
    link = parse_cluster_text(text).levels[0]
    assert link.pair_bytes_per_s == link.group_bytes_per_s(3) == link.bytes_per_s
    assert "full_mesh = 4" in format_cluster(parse_cluster("h200-4gpu:2"))


def figures(item: object, left_out: str) -> set[str]:
    """Names of the fields that hold numbers, as far as they are set."""
    held = {f.name: getattr(item, f.name) for f in fields(item)}  # type: ignore[arg-type]
    return {k for k, v in held.items() if v and not isinstance(v, str)} - set(left_out.split())


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_figure_of_the_catalogue_says_where_it_is_from(name: str) -> None:
    cluster, device = CATALOGUE[name], CATALOGUE[name].device
    left_out = "sources levels device nodes span overlap_price"  # one for all, with its source
    left_out += " clock"  # of a step
    rates = {dtype for dtype, _ in device.matmul_flops_per_s}
    wanted = figures(device, left_out) - ({"efficiency"} if device.efficiency == 1 else set())
    if rates <= dict(device.sources).keys():
        wanted -= {"matmul_flops_per_s"}
    for needed, sources in (
        (wanted, device.sources),
        (figures(cluster, left_out), cluster.sources),
        *((figures(level, left_out), level.sources) for level in cluster.levels),
    ):
        assert needed <= dict(sources).keys()
        _check_known(sources, needed | rates)


def _check_known(sources: Sources, names: set[str]) -> None:
    for figure, text in sources:
        how, _, where = text.partition(": ")
        assert figure in names and how in KNOWN_BY, (figure, text)
        assert len(where) >= 5 or text == "assumed", (figure, text)


def test_two_mi300x_have_one_link_between_them() -> None:
    """Read on such a node: 47.7 GB/s of bus bandwidth over two of them, 312.9 over eight."""
    node, size = parse_cluster("mi300x:8"), 2**32
    bus = {
        n: 2 * (n - 1) / n * size / collective_us(node, "all_reduce", size, n) / 1e3 for n in (2, 8)
    }
    assert bus[2] == pytest.approx(47.7, rel=0.1)
    assert bus[8] == pytest.approx(312.9, rel=0.01)


def test_attention_runs_at_the_readings_of_its_head_size_and_length() -> None:
    read = AttentionReading
    device = replace(
        parse_cluster("h200:1").device,
        attention_readings=(read(64, 4096, 1.0, 2.0), read(128, 2048, 3.0, 5.0),
                            read(128, 4096, 5.0, 9.0)),
    )  # fmt: skip
    assert device.attention_rate(64, 99) == (1.0, 2.0)
    assert device.attention_rate(16, 9999) == (0.25, 0.5)  # a quarter of the tiles of 64
    assert device.attention_rate(96, 1024) == (0.75 * 3.0, 0.75 * 5.0)  # of the tiles of 128
    assert device.attention_rate(128, 3072) == (4.0, 7.0)
    assert device.attention_rate(256, 8192) == (5.0, 9.0)
    assert device.attention_rate(128, 2048, TRITON) == (
        3.0 * UNREAD_SHARE[0], 5.0 * UNREAD_SHARE[1],
    )  # fmt: skip
    own = replace(
        device, attention_readings=(*device.attention_readings, read(256, 512, 6.0, 8.0, TRITON))
    )
    assert own.attention_rate(64, 99, TRITON) == (1.5, 2.0)
    assert own.attention_rate(128, 3072) == (4.0, 7.0)
    without = replace(device, attention_readings=())
    assert without.attention_rate(64, 1, TRITON) is None
    assert without.attention_rate(64, 1) == without.attention_flops_per_s
