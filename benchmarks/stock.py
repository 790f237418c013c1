"""One training step: emitted programs against the stock classes of transformers, one card, one run.

    python benchmarks/stock.py PROGRAM=CONFIG_DIR [...] --batches 8,4x2 [--attention sdpa,...]

Of each pair the program runs first, then the class of the folder's config.json in bf16: AdamW
fused, clip 1.0, cross-entropy in chunks of 2048 tokens, each decoder layer under torch.compile,
experts by the library's grouped matmul. --batches: how the class takes the rows of a step, a
micro-batch or micro-batch x count; each is tried under each of --attention (by the library's names;
sdpa knows no soft-cap), with a layer's activations computed again in backward where it says `r`
behind; one that fails or runs out of memory is a row, too. An encoder-decoder reads its tokens as
the source as well, with a mask of padding; an image-text model begins each row with an image.
stock_configs.py writes both folders.
"""

import argparse
import gc
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))

import train_step

CHUNK = 2048
_KINDS = ("Seq2SeqLM", "ImageTextToText")


class Stock(nn.Module):
    """A stock class with its loss in chunks of tokens, never all logits at once."""

    def __init__(self, folder: str, again: bool, attention: str) -> None:
        super().__init__()
        import transformers

        config = transformers.AutoConfig.from_pretrained(folder)
        options: dict[str, Any] = {"attn_implementation": attention, "dtype": torch.bfloat16}
        if hasattr(config, "num_experts") or hasattr(config, "num_local_experts"):
            options["experts_implementation"] = "grouped_mm"
        self.pairs, self.tower = config.is_encoder_decoder, getattr(config, "vision_config", None)
        kind = transformers.AutoModelForCausalLM
        if self.pairs or self.tower:
            kind = getattr(transformers, f"AutoModelFor{_KINDS[bool(self.tower)]}")
        self.hf = kind.from_config(config, **options).train()
        self.again, self.cap = again, getattr(config, "final_logit_softcapping", None)
        self.vocab = config.get_text_config(decoder=True).vocab_size
        for layer in _layers(self.hf.base_model, self.pairs):
            layer.compile(dynamic=False)
            if again:
                layer.forward = _again(layer.forward)
        self.chunk = torch.compile(self._chunk, dynamic=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor, count: int) -> torch.Tensor:
        """tokens and labels [B, S] -> their share of the mean over `count` labels, float32 []."""
        given = {"input_ids": tokens}
        if self.pairs:
            given |= {"decoder_input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if self.tower:
            given = self._with_images(tokens)
        hidden = self._base(**given, use_cache=False).last_hidden_state.flatten(0, 1)
        total = hidden.new_zeros((), dtype=torch.float32)
        for h, y in zip(hidden.split(CHUNK), labels.flatten().split(CHUNK), strict=True):
            total = total + self.chunk(h, y)
        return total / count

    def _with_images(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tokens whose first ones stand for an image, as many as it has patches, and pixels."""
        size, token = self.tower.image_size, self.hf.config.image_token_id
        ids = tokens.masked_fill(tokens == token, 0)
        ids[:, : (size // self.tower.patch_size) ** 2] = token
        shape = (len(ids), self.tower.num_channels, size, size)
        return {"input_ids": ids, "pixel_values": torch.randn(shape, device=ids.device).bfloat16()}

    def _base(self, **given: Any) -> Any:
        """The class without its head; T5 names no base of its own."""
        base = self.hf.base_model
        if base is not self.hf:
            return base(**given)
        tokens = given.pop("decoder_input_ids")
        source = base.encoder(input_ids=given["input_ids"], attention_mask=given["attention_mask"])
        return base.decoder(
            input_ids=tokens,
            encoder_hidden_states=source.last_hidden_state,
            encoder_attention_mask=given["attention_mask"],
            use_cache=False,
        )

    def _chunk(self, h: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.hf.lm_head(h).float()
        if self.cap:
            logits = self.cap * torch.tanh(logits / self.cap)
        return nn.functional.cross_entropy(logits, y, reduction="sum")


def _layers(base: nn.Module, pairs: bool) -> list[nn.Module]:
    """Return the layers of a class, of its encoder and decoder."""
    stacks = (base.encoder, base.decoder) if pairs else (base,)
    if hasattr(base, "vision_tower"):
        stacks = (base.vision_tower.encoder, base.language_model)
    names = ("h", "layers", "block")
    return [
        layer
        for stack in stacks
        for layer in next(getattr(stack, name) for name in names if hasattr(stack, name))
    ]


def _again(forward: Any) -> Any:
    return lambda *given, **named: checkpoint(forward, *given, use_reentrant=False, **named)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", nargs="+", metavar="PROGRAM=CONFIG_DIR")
    parser.add_argument("--batches", default="4x2", metavar="MxN,...")
    parser.add_argument("--attention", default="sdpa", metavar="NAME,...")
    parser.add_argument("--seq", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    device = train_step._start()
    train_step._report(train_step._reference(device), given)
    for pair in given.pairs:
        program, _, folder = pair.partition("=")
        train_step._report(train_step._program(program, given, device), given)
        _clear()
        for how, batch in product(given.attention.split(","), given.batches.split(",")):
            train_step._report(_stock(folder, batch, how, given, device), given)
            _clear()


def _clear() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    torch._dynamo.reset()


def _stock(
    folder: str, batch: str, attention: str, given: argparse.Namespace, device: torch.device
) -> dict:
    head = {"what": "stock", "model": Path(folder).name, "micro_batch": batch}
    head["attention"] = attention
    try:
        return head | _run(folder, batch, attention, given, device)
    except torch.OutOfMemoryError:
        return head | {"out_of_memory": True}
    except Exception as error:
        return head | {"failed": f"{type(error).__name__}: {str(error)[:200]}"}


def _run(
    folder: str, batch: str, attention: str, given: argparse.Namespace, device: torch.device
) -> dict:
    size, _, times = batch.rstrip("r").partition("x")
    rows = int(size) * int(times or 1)
    torch.manual_seed(0)
    with device:
        model = Stock(folder, batch.endswith("r"), attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.lr, betas=(0.9, 0.95), fused=True)
    tokens, labels = train_step._batch(model.vocab, rows, given.seq, device, 0)
    count = rows * given.seq

    def step() -> tuple[float, float]:
        total = torch.zeros((), device=device)
        for t, y in zip(tokens.split(int(size)), labels.split(int(size)), strict=True):
            loss = model(t, y, count)
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return float(total), float(norm)

    return train_step._time(step, given, device, count)


if __name__ == "__main__":
    main()
