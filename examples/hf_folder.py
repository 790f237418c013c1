"""Make a small Hugging Face folder, a Llama of random weights: python examples/hf_folder.py OUT"""

import sys

import torch
import transformers

SIZES = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}


def main(out: str) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(out)
    print(f"{out}: a Llama of random weights, without a tokenizer")


if __name__ == "__main__":
    main(sys.argv[1])
