"""Plan stock classes at their published sizes, from nothing: seconds and memory of each.

    python benchmarks/real_sizes.py [NAME ...] [--cluster h100:8x16]

Writes a config.json of the published values, then runs `meshwright plan hf:DIR` for rows of 4,096
tokens, 512 a step, with an empty cache: capture, proof and search. Prints the wall-clock time and
the largest resident memory of one of its processes. The plan is looked at by its exit code alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stock_configs import write_config

SECONDS, GIB = 90.0, 6.0  # what each may take on two cores

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3.1-405b": (
        "LlamaConfig",
        {"vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248}
        | {"num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8},
    ),
    "qwen3-235b-a22b": (
        "Qwen3MoeConfig",
        {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288}
        | {"num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4}
        | {"head_dim": 128, "moe_intermediate_size": 1536, "num_experts": 128}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True, "tie_word_embeddings": False},
    ),
    "deepseek-v3": (
        "DeepseekV3Config",
        {"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432}
        | {"moe_intermediate_size": 2048, "num_hidden_layers": 61, "n_routed_experts": 256}
        | {"num_attention_heads": 128, "num_key_value_heads": 128, "first_k_dense_replace": 3},
    ),
    "gpt-oss-120b": (
        "GptOssConfig",
        {"num_hidden_layers": 36, "num_local_experts": 128, "hidden_size": 2880}
        | {"intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8},
    ),
    "gemma-3-27b": (
        "Gemma3TextConfig",
        {"vocab_size": 262208, "hidden_size": 5376, "intermediate_size": 21504}
        | {"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16}
        | {"head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 168},
    ),
    "qwen3-next-80b-a3b": (
        "Qwen3NextConfig",
        {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120}
        | {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2},
    ),
    "mistral-large": (
        "MistralConfig",
        {"vocab_size": 32768, "hidden_size": 12288, "intermediate_size": 28672}
        | {"num_hidden_layers": 88, "num_attention_heads": 96, "num_key_value_heads": 8}
        | {"head_dim": 128, "sliding_window": None},
    ),
    "falcon-h1-34b": (
        "FalconH1Config",
        {"vocab_size": 261120, "hidden_size": 5120, "intermediate_size": 21504}
        | {"num_hidden_layers": 72, "num_attention_heads": 20, "num_key_value_heads": 4}
        | {"head_dim": 128, "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128}
        | {"mamba_n_groups": 2, "mamba_d_state": 256},
    ),
}


def planned(folder: Path, cluster: str, cache: Path) -> tuple[int, float, float, str]:
    """Return the exit code of `plan`, its seconds, its largest memory in GiB, and its last line."""
    sizes = ["--seq", "4096", "--global-batch", "512", "-o", str(folder / "plan.txt")]
    command = [sys.executable, "-m", "meshwright.cli", "plan", f"hf:{folder}", *sizes]
    began = time.monotonic()
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    with open(folder / "said.txt", "w+") as said:
        run = subprocess.Popen(
            [*command, "--cluster", cluster], env=environment, stdout=said, stderr=said
        )
        _, status, used = os.wait4(run.pid, 0)
        seconds, code = time.monotonic() - began, os.waitstatus_to_exitcode(status)
        said.seek(0)
        last = (said.read().strip().splitlines() or [""])[-1] if code else ""
    return code, seconds, used.ru_maxrss / 2**20, last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*CONFIGS, []])
    parser.add_argument("--cluster", default="h100:8x16")
    given = parser.parse_args()
    print(f"| class | exit | s (at most {SECONDS:g}) | GiB (at most {GIB:g}) |")
    print("|---|---|---|---|", flush=True)
    for name in given.names or CONFIGS:
        with tempfile.TemporaryDirectory() as place:
            kind, fields = CONFIGS[name]
            folder = Path(place) / name
            write_config(folder, kind, fields | {"max_position_embeddings": 32768})
            code, seconds, gib, said = planned(folder, given.cluster, Path(place) / "cache")
        print(f"| {name} | {code} {said[:200]} | {seconds:.1f} | {gib:.2f} |", flush=True)


if __name__ == "__main__":
    main()
