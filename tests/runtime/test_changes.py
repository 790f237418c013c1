"""What a resume says it changes, and what it refuses to change without being told to."""

import pytest

from meshwright.runtime.training.changes import Course, changes, jumps, table
from meshwright.runtime.training.options import run_options

COSINE = {"steps": 100, "warmup": 10, "lr": 1e-3}
CONSTANT = {**COSINE, "schedule": "constant"}


def course(options: dict | None, **facts: object) -> Course:
    known = None if options is None else run_options(options)
    given = {"samples": 80, "batches": 20, "seq": 32, "seed": 0, "data": "demo", "identity": "a"}
    return Course(known, **{**given, **facts})


# then, now, what changes (option: values), what the jump at step 20 says.
CASES = {
    "nothing": (course(COSINE), course(COSINE), {}, []),
    "longer, constant": (
        course(CONSTANT),
        course({**CONSTANT, "steps": 200}),
        {"--steps": ("100", "200")},
        [],
    ),
    "longer, cosine": (
        course(COSINE),
        course({**COSINE, "steps": 200}),
        {"--steps": ("100", "200")},
        ["step 20 would be 9.729e-04 by --steps 100 as before and is 9.939e-04 by --steps 200"],
    ),
    "rate": (
        course(CONSTANT),
        course({**CONSTANT, "lr": 2e-3}),
        {"--lr": ("0.001", "0.002")},
        ["would be 1.000e-03 by --lr 0.001 as before and is 2.000e-03 by --lr 0.002"],
    ),
    "a warm-up that is over": (
        course(CONSTANT),
        course({**CONSTANT, "warmup": 5}),
        {"--warmup": ("10", "5")},
        [],
    ),
    "decay": (
        course(COSINE),
        course({**COSINE, "weight_decay": 0.0, "log_every": 7}),
        {"--weight-decay": ("0.1", "0.0")},
        [],
    ),
    "groups": (
        course(COSINE),
        course({**COSINE, "groups": ["*norm*:lr_scale=0.5"]}),
        {"--group": ("none", "*norm*:lr_scale=0.5")},
        ["by --group none and have them by --group *norm*:lr_scale=0.5"],
    ),
    "loss": (
        course(COSINE),
        course({**COSINE, "callbacks": ["py:mine:Watch"]}, loss="py:mine:smoothed"),
        {"plan's --loss": ("cross-entropy", "py:mine:smoothed")},
        ["trained with the loss cross-entropy, this program has py:mine:smoothed"],
    ),
    "batch": (
        course(COSINE),
        course(COSINE, samples=160),
        {"global batch": ("4", "8")},
        ["has seen 80 rows of 32 tokens in 20 batches"],
    ),
    "batch once more": (
        course(COSINE, mixed=True),
        course(COSINE, samples=160),
        {"global batch": ("4", "8")},
        ["its last batches are of 4 rows of 32 tokens, those of this plan's --global-batch and"],
    ),
    "seed": (
        course(COSINE),
        course(COSINE, seed=5),
        {"--seed": (0, 5)},
        ["seed 0, this run has 5"],
    ),
    "data": (
        course(COSINE),
        course(COSINE, data="file:x", identity="b"),
        {"--data": ("demo", "file:x")},
        ["data demo (a), this run has file:x (b)"],
    ),
    "data that moved": (course(COSINE), course(COSINE, data="file:/elsewhere"), {}, []),
    "an older checkpoint": (course(None), course({**COSINE, "lr": 1.0}), {}, []),
}


@pytest.mark.parametrize("name", CASES)
def test_changes_are_listed_and_jumps_told_with_both_numbers(name: str) -> None:
    then, now, listed, said = CASES[name]
    found = changes(then, now)
    assert {change.option: (change.then, change.now) for change in found} == listed
    jumped = jumps(20, then, now)
    assert len(jumped) == len(said)
    assert all(part in jump for part, jump in zip(said, jumped, strict=True)), jumped


def test_the_table_has_columns() -> None:
    then, now, *_ = CASES["rate"]
    assert table(changes(then, now)).splitlines() == [
        "this resume changes:",
        "  option  then   now",
        "  --lr    0.001  0.002",
    ]
