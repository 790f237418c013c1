"""Stock `transformers` models from a folder with a config.json, their attention handed over.

Attention goes through the library's public AttentionInterface under the name "meshwright". Under a
name that has no mask function registered, the library makes no dense mask. The first call from
each attention module leaves an AttentionCore in it as `core`, so that a tracer finds the same
cores here as in our own models; `build` makes that call on meta tensors.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .attention import AttentionCore
from .errors import ModelError
from .hf_extra import transformers_for
from .source import ModelSource

_NAME = "meshwright"


class HuggingFaceCausalLM(nn.Module):
    """A stock causal language model behind the forward of this room: tokens to logits.

    Parameters keep the library's names behind the prefix `hf.`.
    """

    def __init__(self, hf: nn.Module) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens, int64 [B, S] -> logits [B, S, V]."""
        return self.hf(input_ids=tokens, use_cache=False).logits


def hugging_face_source(spec: str, folder: Path) -> ModelSource:
    """The source of the model that a folder's config.json describes; of its text part, if it has
    parts. Weights are not read.

    Raises ModelError on a folder or config that cannot be used; `build` raises it where the
    model's attention is none of ours.
    """
    return replace(stock_source(spec, read_hf_config(spec, folder)), folder=folder)


def stock_source(spec: str, config: Any) -> ModelSource:
    """The source of the stock class of a `transformers` config; no folder of its own.

    Raises ModelError as `hugging_face_source` does.
    """
    _check(spec, config)
    max_seq = getattr(config, "max_position_embeddings", None)
    rebuild = partial(_build, spec)
    build = partial(rebuild, config)
    return ModelSource(
        spec,
        config.vocab_size,
        max_seq,
        build,
        hf_config=config,
        rebuild=rebuild,
    )


def config_of_fields(spec: str, fields: dict[str, Any]) -> Any:
    """The `transformers` config of the fields that its JSON had; newer ones take their defaults.

    Raises ModelError where the library refuses them.
    """
    values = {key: value for key, value in fields.items() if key != "transformers_version"}
    try:
        return transformers_for(spec).AutoConfig.for_model(**values)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{spec}: its config is refused: {str(error).splitlines()[0]}") from error


def read_hf_config(spec: str, folder: Path) -> Any:
    """The `transformers` config of a folder's config.json; of its text part, if it has parts.

    spec: what the user called it. Raises ModelError where there is none that can be used.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{spec}: no file {folder / 'config.json'}; hf: takes a local folder")
    try:
        config = transformers_for(spec).AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except ModelError:
        raise
    except Exception as error:
        # The library's messages run to paragraphs of advice; the first line says what is wrong.
        raise ModelError(f"{spec}: config.json refused: {str(error).splitlines()[0]}") from error
    return config.get_text_config(decoder=True)


def _check(spec: str, config: Any) -> None:
    causal = transformers_for(spec).models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in causal:
        raise ModelError(f"{spec}: {config.model_type} is no causal language model of transformers")
    if getattr(config, "attention_chunk_size", None) is not None:
        raise ModelError(f"{spec}: chunked attention is not built yet; causal and window are")
    for name, value in config.to_dict().items():
        in_body = not name.startswith(("summary", "classifier"))
        if in_body and "drop" in name and type(value) in (int, float) and value > 0:
            raise ModelError(f"{spec}: {name} = {value}: dropout is refused; set it to 0")


def _build(spec: str, config: Any) -> nn.Module:
    transformers = transformers_for(spec)
    transformers.AttentionInterface.register(_NAME, _attend)
    model = transformers.AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=_NAME, dtype=torch.get_default_dtype()
    )
    # With one the library reads the tokens, to warn of padding without a mask: there are none on
    # meta, and loss is asked of labels alone.
    model.config.pad_token_id = None
    wrapped = HuggingFaceCausalLM(model)
    _attach_cores(spec, wrapped)
    return wrapped


def _attach_cores(spec: str, model: nn.Module) -> None:
    # In bfloat16, for grouped matmuls of experts take nothing else on meta.
    named = (*model.named_parameters(), *model.named_buffers())
    on_meta = {name: _on_meta(tensor.detach()) for name, tensor in named}
    tokens = torch.zeros(1, 4, dtype=torch.int64, device="meta")
    try:
        with torch.no_grad():
            torch.func.functional_call(model, on_meta, (tokens,))
    except ModelError as error:
        raise ModelError(f"{spec}: {error}") from None
    except Exception as error:
        raise ModelError(f"{spec}: the model does not run on meta tensors: {error}") from error
    if not any(isinstance(module, AttentionCore) for module in model.modules()):
        raise ModelError(f"{spec}: no layer attends through transformers' AttentionInterface")


def _on_meta(tensor: Tensor) -> Tensor:
    return tensor.to("meta", torch.bfloat16 if tensor.is_floating_point() else tensor.dtype)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: query [B, H, S, D] to output [B, S, H, D]."""
    _refuse(module, attention_mask, dropout, extra)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    core = getattr(module, "core", None)
    if core is None:
        core = module.core = AttentionCore(scale, sliding_window, softcap)
    assert (core.scale, core.window, core.softcap) == (scale, sliding_window, softcap)
    return core(query, key, value).transpose(1, 2).contiguous(), None


def _refuse(module: nn.Module, mask: Tensor | None, dropout: float, extra: dict[str, Any]) -> None:
    kind = type(module).__name__
    if dropout > 0:
        raise ModelError(f"{kind}: attention dropout {dropout} is refused; set it to 0")
    if extra.get("s_aux") is not None:
        raise ModelError(f"{kind}: attention sinks are not built yet")
    if mask is not None or not getattr(module, "is_causal", True):
        raise ModelError(f"{kind}: only causal and windowed attention is built, no other mask")
