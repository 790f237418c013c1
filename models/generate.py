"""Samples of a model in Hugging Face's layout, through `transformers` and its KV cache."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import ModelError
from .hf_extra import transformers_for
from .huggingface import is_image_text, is_seq2seq, read_hf_config, start_and_pad


@dataclass(frozen=True)
class Sampling:
    """max_tokens new ones, `samples` times. temperature 0 takes the likeliest token; top_k 0: all.

    Raises ModelError for a number out of range.
    """

    max_tokens: int = 128
    samples: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"max_tokens": 1, "samples": 1, "temperature": 0, "top_k": 0}
        for name, low in least.items():
            if not getattr(self, name) >= low:
                raise ModelError(f"{name} = {getattr(self, name)}: give at least {low}")
        if not 0 < self.top_p <= 1:
            raise ModelError(f"top_p = {self.top_p}: give more than 0 and at most 1")


_NUL = 0  # ends a document of bytes


class Bytes:
    """A byte a token; an id that is none is a mark of what cannot be read."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(min(token, 255) for token in tokens).decode(errors="replace")


def generate(
    folder: Path, prompt: str, sampling: Sampling, tokenizer: str | None, named: str = ""
) -> list[str]:
    """Texts that go on from `prompt`, prompt included; of an encoder-decoder, what it makes of it.

    folder: of a config.json and safetensors. tokenizer: "bytes", a tokenizers JSON file or a
    folder; None takes bytes where the vocabulary is theirs. named: what messages call the weights,
    the folder if not given.
    Raises ModelError where the vocabularies do not fit, or the folder does not load.
    """
    model, where = _model(folder), named or str(folder)
    coder = Bytes() if tokenizer in (None, "bytes") else _tokenizer(tokenizer)
    vocab = model.config.get_text_config().vocab_size
    tokens = coder.encode(prompt) or [10]
    if tokenizer is None and vocab != 256:
        raise ModelError(f"{where} has {vocab} tokens, bytes are 256; give its --tokenizer")
    if max(tokens) >= vocab:
        raise ModelError(f"the tokenizer gave token {max(tokens)}, {where} has {vocab}")
    pairs = bool(model.config.is_encoder_decoder)
    before = 0 if pairs else len(tokens)
    _check_length(model.config.get_text_config(), before, sampling.max_tokens)
    torch.manual_seed(sampling.seed)
    # A source of bytes ends as a document of shards does; other tokenizers end it themselves.
    given = [*tokens, _NUL] if pairs and isinstance(coder, Bytes) else tokens
    ids = torch.tensor([given] * sampling.samples, device=model.device)
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **_words(sampling))
    return [coder.decode(row.tolist()[int(pairs) :]) for row in out]


def _check_length(config: Any, given: int, more: int) -> None:
    """Raise ModelError where a prompt and its samples are longer than what a model takes."""
    most = getattr(config, "max_position_embeddings", None)
    if most is not None and given + more > most:
        raise ModelError(
            f"a prompt of {given} tokens and --max-tokens {more} are past the model's {most} "
            f"positions; give at most {max(most - given, 0)}"
        )


def _words(sampling: Sampling) -> dict[str, Any]:
    """The library's words for what was asked."""
    words = {"max_new_tokens": sampling.max_tokens, "use_cache": True, "pad_token_id": 0}
    if sampling.temperature == 0:
        return {**words, "do_sample": False}
    return {
        **words,
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
    }


def _model(folder: Path) -> Any:
    transformers = transformers_for("generate")
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} holds no config.json; give a Hugging Face folder")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} holds 0 safetensors files; other weights are not opened")
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # no log or pipe wants "Loading weights"
    config = read_hf_config(str(folder), folder)
    pairs = is_seq2seq(str(folder), config)
    kind = transformers.AutoModelForSeq2SeqLM if pairs else transformers.AutoModelForCausalLM
    if is_image_text(str(folder), read_hf_config(str(folder), folder, whole=True)):
        kind = transformers.AutoModelForImageTextToText  # of a prompt of text alone
    model = kind.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
    )
    # Of the model's own ways to sample only the tokens that end a text, and the one that begins a
    # target: penalties and the like of a generation_config.json would come in unasked.
    end = model.generation_config.eos_token_id
    start = start_and_pad(str(folder), config)[0] if pairs else None
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=end, decoder_start_token_id=start
    )
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _tokenizer(path: str) -> Any:
    transformers = transformers_for("generate")
    if Path(path).is_file():
        return transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    return transformers.AutoTokenizer.from_pretrained(
        path, local_files_only=True, trust_remote_code=False
    )
