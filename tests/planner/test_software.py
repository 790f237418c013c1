"""A layout under another stack: each difference costs what it says, and files are checked."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from families import planned

import meshwright
from meshwright.cli import main
from meshwright.ir.errors import MeshwrightError
from meshwright.ir.ops.registry import definition
from meshwright.ir.plan import Plan
from meshwright.planner.hardware.cluster import collective_us
from meshwright.planner.hardware.cluster_file import parse_cluster
from meshwright.planner.search.make_plan import make_plan
from meshwright.planner.search.pins import parse_pins
from meshwright.planner.simulate.predict import predict
from meshwright.planner.software.memory import Layers
from meshwright.planner.software.profile import BUILT_IN, Software, read_software
from meshwright.planner.software.step import model_under, step_us
from meshwright.planner.software.work import filled_share, layer_of

CLUSTER = parse_cluster("h200:1")
# Without time of the host, and with a memory so slow that passes over it are most of the step.
_FREE = {"call_us": 0.0, "launch_us": 0.0}  # recorded or not, kernels take the same
SLOW = replace(CLUSTER, device=replace(CLUSTER.device, hbm_bytes_per_s=1e9, **_FREE))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=none", seq=64)


def test_a_profile_without_differences_is_our_own_step(plan: Plan) -> None:
    own = predict(plan, SLOW).step_us
    assert step_us(plan, SLOW, Software("same")) == own


def test_a_loss_on_whole_logits_takes_its_passes(plan: Plan) -> None:
    """Three passes of ours become six; the logits are kept, so no matmul is made again."""
    logits = plan.micro_batch * plan.seq * plan.vocab_size * 4
    own = predict(plan, SLOW).step_us
    whole = step_us(plan, SLOW, Software("whole", loss_passes=(2, 4)))
    (more,) = {step_us(plan, SLOW, Software("more", loss_passes=(3, 5))) - whole}
    assert more == pytest.approx(plan.num_microbatches * 2 * logits / 1e9 * 1e6)
    assert whole > own


def test_attention_at_half_the_rate_takes_twice_as_long(plan: Plan) -> None:
    model, own = predict(plan, SLOW).model, predict(plan, SLOW).step_us
    works = [unit.work for unit in model.stages[0]]
    us = sum(work.forward.attention_us + work.backward.attention_us for work in works)
    half = step_us(plan, SLOW, Software("half", attention_share=0.5))
    assert us > 0 and half - own == pytest.approx(plan.num_microbatches * us)


def test_scores_in_memory_take_their_passes(plan: Plan) -> None:
    """[B, H, S, S] in the dtype of the queries, of each layer: 3 of forward and 5 of backward."""
    layers = sum(".attention" in unit.name for unit in plan.instances)
    queries = next(
        (op, piece)
        for piece in plan.pieces
        for op in piece.graph.ops
        if definition(op).queries == 0
    )
    heads = queries[1].graph.values[queries[0].inputs[0]].shape[1]
    scores = plan.micro_batch * heads * plan.seq**2 * 4
    none, kept = (
        step_us(plan, SLOW, Software("kept", attention_passes=passes))
        for passes in ((0, 0), (3, 5))
    )
    assert layers > 1
    assert kept - none == pytest.approx(plan.num_microbatches * layers * 8 * scores / 1e9 * 1e6)


def test_odd_heads_run_at_the_rate_of_float32(tmp_path: Path) -> None:
    """Two matmuls of all scores in forward, four in backward: of heads of 4 features at that rate,
    of heads of 8 not, whatever the profile says."""
    odd = Software("odd", attention_passes=(0, 0), odd_heads_f32=True)
    job = meshwright.Job(seq=64, global_batch=4, pins={"micro_batch": 2, "recompute": "none"})
    for heads, dtype in ((16, "f32"), (8, "bf16")):
        file = tmp_path / "model.toml"
        file.write_text(f'preset = "tiny-gpt2"\nheads = {heads}\n')
        asked = replace(job, dtype="bf16")
        narrow = meshwright.plan(str(file), cluster="h200:1", job=asked).decisions
        units = model_under(narrow, SLOW, odd).stages[0]
        us = sum(u.work.forward.attention_us + u.work.backward.attention_us for u in units)
        layers, flops = 2, 12 * narrow.micro_batch * 64 * narrow.seq**2  # dim of 64
        rate = SLOW.device.matmul_rate(dtype)
        assert us == pytest.approx(layers * flops / rate * 1e6)


def test_a_split_layer_waits_for_one_piece_a_rank() -> None:
    """Of two ranks half of what is exchanged is waited for."""
    split = planned("tiny-llama", "h200:2", "tp=2", "micro_batch=2", "shard_weights=1", seq=64)
    cluster = replace(parse_cluster("h200:2"), device=SLOW.device)
    model = predict(split, cluster).model
    works = [unit.work for unit in model.stages[0]]
    us = sum(work.forward.collective_us + work.backward.collective_us for work in works)
    own = step_us(split, cluster, Software("same"))
    beside = step_us(split, cluster, Software("beside", overlaps_tensor=True))
    assert us > 0 and own - beside == pytest.approx(split.num_microbatches * us / 2)


def test_sums_over_rows_of_a_norm_read_nothing_anew() -> None:
    """A backward that makes row statistics again has them apart: of each norm no more than two
    values are read for its weight alone."""
    plan = planned("tiny-llama", "h200:1", "micro_batch=2", "recompute=all", seq=64)
    own, joined = (step_us(plan, SLOW, Software("s", joins_sums=j)) for j in (False, True))
    weights = [p for p in plan.params if "norm" in p.name]
    value = plan.micro_batch * plan.seq * math.prod(weights[0].local_shape(plan.mesh)) * 4
    read_us = plan.num_microbatches * 2 * len(weights) * value / 1e9 * 1e6
    assert 0 < own - joined <= read_us * (1 + 1e-9)


def test_a_sequence_that_is_cut_spares_pointwise_ops_on_a_whole_one() -> None:
    """Each of two ranks makes half of them; of what lies in shares already, nothing is spared."""
    words = "tp=2", "micro_batch=2", "shard_weights=1", "shard_sequence=0"
    cluster = replace(parse_cluster("h200:2"), device=SLOW.device)
    plan = planned("tiny-llama", "h200:2", *words, seq=64)
    own, cut = (step_us(plan, cluster, Software("s", cuts_sequence=c)) for c in (False, True))
    works = [unit.work for unit in predict(plan, cluster).model.stages[0]]
    us = sum(work.forward.pointwise_us + work.backward.pointwise_us for work in works)
    assert 0 < own - cut < plan.num_microbatches * us / 2


def test_a_stage_that_waits_for_its_sends_takes_them_in_turn() -> None:
    """Of two stages each waits once in forward and once in backward, of every micro-batch."""
    plan = planned("tiny-llama", "h200:2", "pp=2", "micro_batch=1", seq=64)
    cluster = replace(parse_cluster("h200:2"), device=SLOW.device)
    send_us = predict(plan, cluster).model.send_us[0]
    waiting = model_under(plan, cluster, Software("w", waits_for_sends=True))
    own, longer = predict(plan, cluster).model.stages, waiting.stages
    for stage, other in zip(own, longer, strict=True):
        for name in ("forward", "backward"):
            us = (sum(getattr(unit.work, name).us for unit in units) for units in (stage, other))
            assert -next(us) + next(us) == pytest.approx(send_us)
    assert send_us > 0 == sum(waiting.send_us)


def test_gradients_added_apart_are_read_and_written_once_more(plan: Plan) -> None:
    own = predict(plan, SLOW).step_us
    apart = step_us(plan, SLOW, Software("apart", adds_apart=True))
    model = predict(plan, SLOW).model
    added = sum(unit.work.added_bytes for unit in model.stages[0])
    assert added > 0 and plan.num_microbatches == 2
    matmuls_us = sum(unit.sums_us for unit in model.stages[0])  # which add nothing any more
    assert apart - own == pytest.approx(3 * added / 1e9 * 1e6 - plan.num_microbatches * matmuls_us)


def test_matmuls_at_half_the_rate_take_twice_as_long(plan: Plan) -> None:
    model, own = predict(plan, SLOW).model, predict(plan, SLOW).step_us
    works = [unit.work for unit in model.stages[0]]
    us = sum(work.forward.matmul_us + work.backward.matmul_us for work in works)
    half = step_us(plan, SLOW, Software("half", matmul_share=0.5))
    assert us > 0 and half - own == pytest.approx(plan.num_microbatches * us)


def test_a_wave_of_tiles_takes_all_multiprocessors(plan: Plan) -> None:
    """Of one tile on eight, seven are idle; of nine, seven in the second wave."""
    assert filled_share(128 * 8, 256, 8) == filled_share(256, 128 * 8, 8) == 1
    assert filled_share(128, 256, 8) == 1 / 8
    assert filled_share(128 * 9, 256, 8) == 9 / 16
    assert filled_share(64, 256, 1) == 0.5
    us = [step_us(plan, SLOW, Software("waves", waves_of=n)) for n in (0, 1, 100)]
    assert us[0] < us[1] < us[2]


def test_a_block_that_keeps_nothing_runs_its_forward_again_to_the_end() -> None:
    """Ours stops at what backward asks for: the last matmul and its collective are not made."""
    words = "tp=2", "micro_batch=2", "shard_weights=1", "recompute=all"
    plan = planned("tiny-llama", "h200:2", *words, seq=64)
    cluster = replace(parse_cluster("h200:2"), device=SLOW.device)
    work = {u.name: u.work for u in predict(plan, cluster).model.stages[0]}
    software = Software("whole", recomputes_whole=True)
    theirs = {u.name: u.work for u in model_under(plan, cluster, software).stages[0]}
    kept = planned("tiny-llama", "h200:2", *words[:3], "recompute=none", seq=64)
    apart = {u.name: u.work for u in predict(kept, cluster).model.stages[0]}
    (name,) = (name for name in work if name.endswith("0.ffn"))
    for lane in ("matmul_us", "collective_us"):
        forward, backward = getattr(work[name].forward, lane), getattr(apart[name].backward, lane)
        assert getattr(theirs[name].backward, lane) == pytest.approx(forward + backward), lane
    assert theirs[name].backward.matmul_us > work[name].backward.matmul_us
    (head,) = (name for name in work if "head" in name)
    assert theirs[head] == work[head]


def test_a_host_that_waits_adds_its_time_to_every_kernel(plan: Plan) -> None:
    own = step_us(plan, SLOW, Software("same"))
    times = [step_us(plan, SLOW, Software("w", waits=True, kernel_us=us)) for us in (0.0, 1.0, 2.0)]
    assert (
        times[0] == own and times[2] - own == pytest.approx(2 * (times[1] - own)) and times[1] > own
    )


def test_reductions_after_the_last_backward_are_waited_for_together() -> None:
    plan = planned("tiny-llama", "h200:2", "dp=2", "micro_batch=2", "zero=1", seq=64)
    cluster = parse_cluster("h200:2")
    last = Software("last", reduces_last=(1,))
    own = predict(plan, cluster).model
    times = [unit.reduce_us for unit in own.stages[0] if unit.reduce_us]
    latencies = [collective_us(cluster, k, 0.0, 2) for k in ("reduce_scatter", "all_gather")]
    model = model_under(plan, cluster, last)
    together = own.refresh_us[0] + sum(times) - (len(times) - 1) * sum(latencies)
    assert len(times) > 2 and model.refresh_us[0] == pytest.approx(together)
    assert not any(unit.reduce_us for unit in model.stages[0])
    ways = ({"reduces_whole": True}, {"broadcasts": True})
    for way in ways:  # together or one by one, no less than the longest of each kind
        apart, joined = (
            model_under(plan, cluster, Software("w", reduces_last=levels, **way))
            for levels in ((), (1,))
        )
        longest = max(unit.reduce_us for unit in apart.stages[0])
        assert joined.refresh_us[0] >= longest + min(apart.refresh_us[0], latencies[1])
    other = model_under(plan, cluster, Software("other levels", reduces_last=(0, 2)))
    assert [unit.reduce_us for unit in other.stages[0] if unit.reduce_us] == times
    assert other.refresh_us == own.refresh_us


def test_a_host_handles_each_layer_and_each_slice_of_a_parameter() -> None:
    words = "dp=4", "micro_batch=1", "zero=1"
    plan, cluster = planned("tiny-llama", "h200:4", *words, seq=64), parse_cluster("h200:4")
    own = step_us(plan, cluster, Software("same"))
    slow = [step_us(plan, cluster, Software("l", layer_us=us)) for us in (1e5, 2e5)]
    layers = {i.name.rpartition(".")[0] for i in plan.instances if "." in i.name}
    # Beyond what the device computes meanwhile all of it is the host's.
    assert slow[1] - slow[0] == pytest.approx(1e5 * len(layers) * plan.num_microbatches, rel=1e-3)
    names = {entry.param for bucket in plan.buckets for entry in bucket.entries}
    sliced = step_us(plan, cluster, Software("s", slice_us=7.0))
    assert sliced - own == pytest.approx(7.0 * 4 * len(names))


def test_the_host_runs_no_backward_of_a_frozen_layer_and_forward_again_where_nothing_is_kept() -> (
    None
):
    cluster, pins = parse_cluster("h200:1"), ["micro_batch=1", "recompute=none"]
    steps = []
    for freeze, words in (("", pins), ("embed*,layers.0.*", pins),
                          ("", [pins[0], "recompute=all"])):  # fmt: skip
        traced = meshwright.trace("tiny-llama", dtype="bf16", freeze=freeze)
        plan = make_plan(traced, cluster, seq=64, global_batch=4, pins=parse_pins(words))
        slow = [step_us(plan, cluster, Software("l", layer_us=us)) for us in (3e5, 6e5)]
        steps.append((slow[1] - slow[0]) / 3e5 / plan.num_microbatches)
    layers = len({layer_of(unit.name) for unit in predict(plan, cluster).model.stages[0]} - {""})
    assert steps[0] == pytest.approx(layers, rel=1e-3)
    assert steps[1] == pytest.approx(layers - 2 / 3, rel=1e-3)
    assert steps[2] == pytest.approx(layers * 4 / 3, rel=1e-3)


def test_a_layer_that_two_stages_share_takes_the_host_once_and_keeps_its_copies() -> None:
    words = "pp=2", "dp=1", "micro_batch=1", "cuts=2", "recompute=none"
    plan, cluster = planned("tiny-llama", "h200:2", *words, seq=64), parse_cluster("h200:2")
    model = model_under(plan, cluster, Software("l", layer_us=6e5))
    half = [u for stage in model.stages for u in stage if layer_of(u.name) == "layers.0"]
    assert [len(stage) for stage in model.stages][0] == 2 and len(half) == 2
    assert sum(u.work.forward.call_us + u.work.backward.call_us for u in half) == pytest.approx(6e5)
    stages = predict(plan, cluster).model.stages
    kept = [
        sum(u.work.kept_bytes for stage in stages for u in Layers(plan, cluster, one).units(stage))
        for one in (Software("c", kept_copies=4.0), Software("s"))
    ]
    layers = len({layer_of(u.name) for stage in stages for u in stage} - {""})
    assert kept[0] - kept[1] == pytest.approx(4 * layers * half[0].work.entry_bytes)


def test_a_stack_keeps_what_it_gathers_or_gathers_it_again() -> None:
    words = "tp=2", "micro_batch=2", "shard_weights=1", "shard_sequence=0", "recompute=none"
    plan = planned("tiny-llama", "h200:2", *words, seq=64)
    cluster = parse_cluster("h200:2")
    whole, cut, again = (
        Software("s", cuts_sequence=cuts, gathers_again=more)
        for cuts, more in ((False, False), (True, False), (True, True))
    )
    stage = predict(plan, cluster).model.stages[0][1:2]
    sizes = [
        next(iter(Layers(plan, cluster, one).units(stage))).work.kept_bytes
        for one in (whole, cut, again)
    ]
    # Of attention what enters it and what enters its projections, whole on both ranks.
    width = stage[0].work.entry_bytes
    assert sizes[1] == sizes[2] and sizes[0] - sizes[1] >= 2 * width / 2
    cut_already = planned("tiny-llama", "h200:2", *words[:3], words[4], "price=1", seq=64)
    traffic = {
        one: model_under(cut_already, cluster, one).stages[0][1].work.forward.collective_us
        for one in (whole, again)
    }
    assert traffic[whole] == traffic[again] > 0
    copies = Software("s", kept_copies=3.0, keeps_gathered=4.0)
    layer = predict(plan, cluster).model.stages[0][1:3]
    held = (
        sum(u.work.kept_bytes for u in Layers(plan, cluster, s).units(layer))
        for s in (copies, whole)
    )
    assert next(held) - next(held) == pytest.approx((3 / 2 + 4 / 2) * width)
    unit = {
        one: model_under(plan, cluster, one).stages[0][1].work.backward.collective_us
        for one in (whole, cut, again)
    }
    size = model_under(plan, cluster, whole).stages[0][1].work.entry_bytes
    reduced, scattered, gathered = (
        collective_us(cluster, kind, size, 2)
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
    )
    assert unit[cut] / unit[whole] == pytest.approx((scattered + gathered) / reduced)
    assert (unit[again] - unit[cut]) / unit[whole] == pytest.approx(gathered / reduced)


def test_what_all_ranks_hold_is_sent_in_shares_and_gathered() -> None:
    words = "tp=8", "pp=2", "micro_batch=2", "shard_weights=1", "shard_sequence=0"
    plan = planned("tiny-llama", "h200:8x2", *words, seq=64)
    cluster = parse_cluster("h200:8x2")
    own = predict(plan, cluster).model.send_us[0]
    shared = model_under(plan, cluster, Software("shares", scatters_sends=True)).send_us[0]
    slow = replace(cluster, levels=(cluster.levels[0], replace(cluster.levels[1], bytes_per_s=1e5)))
    size = predict(plan, cluster).model.stages[0][-1].work.exit_bytes
    after = model_under(plan, slow, Software("shares", scatters_sends=True)).send_us[0]
    assert size > 0 and shared != own
    assert after - shared == pytest.approx(size / 8 * (1 / 1e5 - 1 / 40e9) * 1e6)


def test_eager_ops_read_and_write_by_themselves_and_kernels_are_issued_one_by_one(
    plan: Plan,
) -> None:
    own = predict(plan, SLOW).step_us
    eager = step_us(plan, SLOW, Software("eager", fused=False))
    assert eager > 1.2 * own
    slow_host = step_us(plan, SLOW, Software("host", fused=False, kernel_us=1e6))
    kernels = slow_host / 1e6
    assert kernels > 100 * plan.num_microbatches


def test_the_command_shows_both(
    plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.txt"
    assert main(["plan", "tiny-llama", "--cluster", "h200:1", "--seq", "64", "--global-batch", "4",
                 "--no-search", "-o", str(file)]) == 0  # fmt: skip
    capsys.readouterr()
    words = ["what-if", "--plan", str(file), "--cluster", "h200:1", "--cluster", "h100:1"]
    assert main([*words, "--software", "pytorch-eager"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()[1:4]
    assert "by pytorch-eager" in head and all(" ms, " in row for row in rows)


def test_a_search_prices_the_plan_that_it_finds_under_the_other_stack() -> None:
    job = meshwright.Job(seq=64, global_batch=8, pins={"pp": 2}, effort="fast")
    (answer,) = meshwright.what_if(
        "tiny-llama", clusters=["h200:2"], job=job, software="pytorch-eager"
    )
    own = meshwright.plan("tiny-llama", cluster="h200:2", job=job).decisions
    theirs = step_us(own, parse_cluster("h200:2"), read_software("pytorch-eager"))
    assert answer.step is not None and answer.step.step_us != theirs == answer.software_us
    assert answer.software_bytes is not None  # and ours has the workspace of what it records
    assert 0 < answer.step.peak_bytes - answer.software_bytes < 2**25


def test_a_layout_that_only_the_other_stack_holds_is_priced_all_the_same(tmp_path: Path) -> None:
    """Its gradients take half of the bytes of ours."""
    file = tmp_path / "narrow.toml"
    file.write_text("# meshwright software v1\n[narrow]\ngrad_bytes = 1\n")
    pins = {"pp": 1, "dp": 1, "tp": 1, "micro_batch": 2, "recompute": "none", "offload": "off"}
    job = meshwright.Job(seq=64, global_batch=4, pins=pins, effort="fast")
    (answer,) = meshwright.what_if(
        "tiny-llama", clusters=["h200:1"], sweeps=["device.memory_gb=0.0025"], job=job,
        software=str(file),
    )  # fmt: skip
    assert answer.step is None and answer.software_us is not None
    assert answer.software_bytes is not None and answer.software_bytes < answer.need_bytes


WRONG = {
    "other": "the first line must be",
    "# meshwright software v1\n[a]\nfused = 1\n": "[a] fused is 1; give true or false",
    "# meshwright software v1\n[a]\nloss_passes = [2]\n": "two numbers of passes",
    "# meshwright software v1\n[a]\nkernel_us = -1\n": "give us of 0 or more",
    f"# meshwright software v1\n[a]\nkernel_us = {'9' * 400}\n": "9...; give us of 0 or more",
    f"# meshwright software v1\n[a]\nwaves_of = {'9' * 400}\n": "give a whole number of 0",
    f"# meshwright software v1\n[a]\nloss_passes = [1, {'9' * 400}]\n": "give two numbers",
    "# meshwright software v1\n[a]\noutside_gib = inf\n": "is inf; give GiB of 0 or more, 1e6",
    "# meshwright software v1\n[a]\nmatmul_share = 1e-320\n": "1e-6 at least",
    "# meshwright software v1\n[a]\nmatmul_share = 3.0\n": "1e-6 at least and 2 at most",
    "# meshwright software v1\n[a]\nattention_share = 92\n": "is 92; give a share above 0",
    "# meshwright software v1\n[a]\nattention_share = 0\n": "give a share above 0",
    "# meshwright software v1\n[a]\ngrad_bytes = 1.5\n": "give whole bytes of 0 or more",
    "# meshwright software v1\n[a]\nfragments = 1\n": "give a share from 0 to below 1",
    "# meshwright software v1\n[a]\nspeed = 3\n": "[a] speed: unknown; give fused, library",
    "# meshwright software v1\n[a]\nlibrary_kernels = ['gelu']\n": "give a list of norm, rope",
    "# meshwright software v1\na = 3\n": "write [a] and its entries",
    "# meshwright software v1\n[a]\n[b]\n": "give one [NAME] in it, 2 are there",
    "# meshwright software v1\n[a\n": "not TOML",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_by_its_entry(text: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(MeshwrightError) as caught:
        read_software(str(path))
    assert WRONG[text] in str(caught.value) and "--software" in str(caught.value)


def test_an_unknown_name_is_refused_with_those_that_are_there() -> None:
    names = ", ".join(
        ("pytorch-eager", "pytorch-compiled", "megatron-2022", "megatron-deepspeed-2022",
         "megatron-2025", "kempnerforge-2026", "internevo-2023", "nanotron-2025",
         "torchtitan-2024")
    )  # fmt: skip
    with pytest.raises(MeshwrightError, match=f"unknown; give {names}, or"):
        read_software("jax")
    assert "sources" in BUILT_IN.read_text()


def test_a_backward_in_two_changes_as_a_whole_one_does() -> None:
    """At half the rate of matmuls both halves take twice as long in them; a transfer that the stack
    waits for makes the first half longer."""
    pins = "pp=2", "dp=1", "tp=1", "micro_batch=1", "recompute=none", "schedule=zb-h1"
    cluster = replace(parse_cluster("h200:2"), device=SLOW.device)
    plan = planned("tiny-llama", "h200:2", *pins, seq=64)
    own = model_under(plan, cluster, Software("same"))
    half = model_under(plan, cluster, Software("half", matmul_share=0.5))
    waits = model_under(plan, cluster, Software("waits", waits_for_sends=True))
    for stage, (units, slower) in enumerate(zip(own.stages, half.stages, strict=True)):
        for unit, other in zip(units, slower, strict=True):
            ours, theirs = unit.work.split, other.work.split
            assert ours is not None and theirs is not None
            for phase, twice in (
                (ours.input_grad, theirs.input_grad),
                (ours.weight_grad, theirs.weight_grad),
            ):
                assert twice.matmul_us == pytest.approx(2 * phase.matmul_us)
                assert twice.pointwise_us == pytest.approx(phase.pointwise_us)
        first, waiting = units[0].work.split, waits.stages[stage][0].work.split
        assert first is not None and waiting is not None
        more = waiting.input_grad.collective_us - first.input_grad.collective_us
        assert more == pytest.approx(own.send_us[0]) and more > 0
