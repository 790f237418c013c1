"""The problems of a replay: every family, every kind of pin, the large searches."""

from dataclasses import dataclass

from search_time import CASES


@dataclass(frozen=True)
class Problem:
    """One planning problem. options: words of `meshwright plan` after the model."""

    name: str
    model: str
    options: tuple[str, ...]

    def arguments(self) -> list[str]:
        return ["plan", self.model, *self.options]


def _problem(name: str, model: str, cluster: str, sizes: str, dtype: str, *more: str) -> Problem:
    """Make a problem. sizes: "SEQxBATCH". more: pins KEY=VALUE, or options such as --no-search."""
    seq, batch = sizes.split("x")
    words = ["--cluster", cluster, "--seq", seq, "--global-batch", batch, "--dtype", dtype]
    # Pinned, so that a new precision or a new default does not change the question.
    pins = [p for p in more if "=" in p]
    if not any(pin.startswith("precision=") for pin in pins):
        pins.append("precision=pure")
        pins += ["rounding=nearest"] if dtype == "bf16" else []
    words += [word for pin in pins for word in ("--pin", pin)]
    return Problem(name, model, (*words, *(m for m in more if "=" not in m)))


SMALL = (
    _problem("free-cpu", "tiny", "cpu:4", "64x8", "f32"),
    _problem("tp-zero2", "tiny-llama", "cpu:4", "64x8", "f32", "tp=2", "dp=2", "zero=2"),
    _problem("pp-1f1b", "tiny-mistral", "cpu:4", "64x8", "f32", "pp=2", "dp=2", "schedule=1f1b"),
    _problem(
        "no-search", "tiny-qwen2", "h200:4", "256x16", "bf16", "dp=4", "zero=3", "--no-search"
    ),
    _problem("tp-sharded", "tiny-qwen3", "h200:4", "256x16", "bf16", "tp=4", "shard_weights=1"),
    _problem(
        *("interleaved", "tiny-gemma2", "h200:8", "256x16", "bf16"),
        *("pp=2", "tp=2", "dp=2", "zero=1", "schedule=interleaved", "chunks=2"),
    ),
    _problem(
        *("zbv-master", "tiny-gemma3", "h200:4", "256x16", "bf16"),
        *("pp=2", "dp=2", "schedule=zbv", "precision=master", "reduce_dtype=f32"),
    ),
    _problem("recompute", "tiny-gpt2", "h200:8", "256x32", "bf16", "tp=2", "recompute=all"),
    _problem("free-125m", "llama-125m", "h200:4", "1024x32", "bf16"),
    _problem(
        *("offload-on", "llama-1b", "h200:4", "4096x32", "bf16", "recompute=cheap", "offload=on"),
    ),
    _problem("offload-free", "llama-13b", "h200:1", "4096x8", "bf16"),
    _problem("nodes", "llama-125m", "h100:8x2", "1024x64", "bf16", "offload=off", "micro_batch=2"),
)

LARGE = tuple(
    _problem(name, case.model, case.cluster, f"{case.seq}x{case.global_batch}", "bf16")
    for name, case in CASES.items()
)
