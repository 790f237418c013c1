"""Config folders of stock classes at their public sizes, and programs of them for `stock.py`.

    python benchmarks/stock_configs.py OUT [NAME ...] [--compile h200:1]

Writes OUT/NAME/config.json. With --compile it plans each for a cluster, in pure bf16 as `stock.py`
runs the class, and writes OUT/NAME-program; where meshwright is installed, no GPU is needed.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

_LLAMA = {"vocab_size": 32000, "hidden_act": "silu", "rms_norm_eps": 1e-5}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3-4b": (
        "Gemma3TextConfig",
        {"vocab_size": 262208, "hidden_size": 2560, "intermediate_size": 10240}
        | {"num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4}
        | {"head_dim": 256, "sliding_window": 1024, "query_pre_attn_scalar": 256},
    ),
    "gemma2-9b": (
        "Gemma2Config",
        {"vocab_size": 256000, "hidden_size": 3584, "intermediate_size": 14336}
        | {"num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8}
        | {"head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256},
    ),
    "bart-large": (
        "BartConfig",
        {"d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "dropout": 0.0}
        | {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "encoder_attention_heads": 16}
        | {"decoder_attention_heads": 16, "vocab_size": 50265},
    ),
    "t5-v1.1-large": (
        "T5Config",
        {"d_model": 1024, "d_kv": 64, "d_ff": 2816, "num_layers": 24, "num_decoder_layers": 24}
        | {"num_heads": 16, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
        | {"dropout_rate": 0.0, "vocab_size": 32128, "decoder_start_token_id": 0},
    ),
    "llava-1.5-8": (  # 8 of its 32 layers of text, its whole tower
        "LlavaConfig",
        {
            "text_config": {"model_type": "llama", "vocab_size": 32064, "hidden_size": 4096}
            | {"intermediate_size": 11008, "num_hidden_layers": 8, "num_attention_heads": 32}
            | {"max_position_embeddings": 4096},
            "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024}
            | {"intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
            | {"image_size": 336, "patch_size": 14},
            "image_token_id": 32000,
        },
    ),
    "gpt2-xl": (
        "GPT2Config",
        {"n_embd": 1600, "n_layer": 48, "n_head": 25, "resid_pdrop": 0.0}
        | {"embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "qwen3-8b": (
        "Qwen3Config",
        {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288}
        | {"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
        | {"head_dim": 128, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    ),
    "mistral-7b": (
        "MistralConfig",
        _LLAMA
        | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "phi-3-mini": (
        "Phi3Config",
        {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "sliding_window": 2047},
    ),
    "olmo2-7b": (
        "Olmo2Config",
        {"vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008}
        | {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32},
    ),
    "qwen3-30b-a3b-8": (  # 8 of its 48 layers
        "Qwen3MoeConfig",
        {"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144}
        | {"num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4}
        | {"head_dim": 128, "moe_intermediate_size": 768, "num_experts": 128}
        | {"num_experts_per_tok": 8, "norm_topk_prob": True, "tie_word_embeddings": False},
    ),
}
# Tokens of a row, and rows a step where they are not 8.
SEQ = {"mistral-7b": 16384, "gpt2-xl": 1024, "bart-large": 512, "t5-v1.1-large": 512}
SEQ |= {"llava-1.5-8": 2048}
ROWS = {"mistral-7b": 2, "gpt2-xl": 32, "bart-large": 64, "t5-v1.1-large": 64}
ROWS |= {"llava-1.5-8": 16}
_OWN_LENGTH = ("gpt2-xl", "bart-large", "t5-v1.1-large", "llava-1.5-8")


def write(name: str, out: Path) -> Path:
    kind, fields = CONFIGS[name]
    longest = {} if name in _OWN_LENGTH else {"max_position_embeddings": 32768}
    return write_config(out / name, kind, fields | longest)


def write_config(folder: Path, kind: str, fields: dict[str, Any]) -> Path:
    """Write config.json of a model with a config of class `kind`; return its folder."""
    import transformers

    plain = kind.replace("TextConfig", "Config")
    named = {"GPT2Config": "GPT2LMHeadModel"}
    config = getattr(transformers, kind)(**fields)
    pairs = config.is_encoder_decoder or hasattr(config, "vision_config")
    head = "ForConditionalGeneration" if pairs else "ForCausalLM"
    config.architectures = [named.get(kind, plain.replace("Config", head))]
    config.save_pretrained(folder)
    return folder


def compiled(name: str, folder: Path, cluster: str) -> None:
    """Plan and compile a class for a cluster, beside its config."""
    plan, program = folder.with_name(f"{name}.plan"), folder.with_name(f"{name}-program")
    sizes = ["--seq", str(SEQ.get(name, 4096)), "--global-batch", str(ROWS.get(name, 8))]
    pure = ["--dtype", "bf16", "--pin", "precision=pure", "--pin", "rounding=nearest"]
    meshwright = [sys.executable, "-m", "meshwright.cli"]
    where = ["--cluster", cluster, "-o", str(plan)]
    kind = "hf-images" if "vision_config" in CONFIGS[name][1] else "hf"
    subprocess.run([*meshwright, "plan", f"{kind}:{folder}", *sizes, *pure, *where], check=True)
    subprocess.run([*meshwright, "compile", str(plan), "-o", str(program)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=[*CONFIGS, []])
    parser.add_argument("--compile", metavar="CLUSTER")
    given = parser.parse_args()
    for name in given.names or CONFIGS:
        folder = write(name, given.out)
        print(folder, flush=True)
        if given.compile:
            compiled(name, folder, given.compile)


if __name__ == "__main__":
    main()
