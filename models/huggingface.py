"""Stock `transformers` models from a folder with a config.json, with their kernels handed over.

A causal language model reads tokens, an encoder-decoder a source beside them. A class is built in
one of these ways, the first that its forward takes; an encoder-decoder begins with the second:

    rules   attention through the library's AttentionInterface, each layer with the rule of its mask
    either  the same, a layer whose mask has no such rule with a tensor
    masks   the same, each layer with its mask as a tensor
    own     attention as the class itself writes it

Experts go through the library's ExpertsInterface in each. The first call of a layer leaves a core
in it, so that a tracer finds the same cores here as in our own models; `build` makes that call on
meta tensors. The class as the library builds it, all of it eager, is `ModelSource.plain`: what a
capture is compared with.
"""

from __future__ import annotations

import copy
import logging
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .attention import AttentionCore
from .dense_attention import DenseCore, chosen_mask, window_mask
from .errors import ModelError, said_of
from .experts import apply_experts
from .hf_adapters import take_over_adapters
from .hf_extra import transformers_for
from .hf_images import HuggingFaceImageText, check_images, image_text
from .hf_kernels import kernels_of
from .hf_looped_experts import take_over_loops
from .hf_masks import Visible, either_mask, one_document_a_row, rule_mask
from .hf_routers import called, check_routers, router_factor
from .modes import without_modes
from .recurrence import RecurrenceCore
from .router_load import RouterLoad
from .source import ModelSource

IMAGES = "hf-images"  # of a spec that takes a class with its images
_EXPERTS = "meshwright"
_OWN = "eager"
# Ways of attending, as the library knows them by name.
_RULES, _EITHER, _MASKS = "meshwright", "meshwright_either", "meshwright_masks"


class HuggingFaceCausalLM(nn.Module):
    """A stock causal language model behind the forward of this room: tokens to logits.

    Parameters keep the library's names behind the prefix `hf.`. plain: the class calls the kernels
    of its own file, else ours.
    """

    def __init__(self, hf: nn.Module, plain: bool = True) -> None:
        super().__init__()
        self.hf = hf
        self.recurrence = None if plain else RecurrenceCore()
        self.router_load = None if plain else RouterLoad()
        self.router_factor = router_factor(hf)

    def forward(self, tokens: Tensor) -> Tensor | dict[str, Tensor]:
        """tokens, int64 [B, S] -> logits [B, S, V]; with the load or the loss of its routers where
        the class makes a loss of them."""
        core, given = self.recurrence, {"input_ids": tokens}
        kernels = nullcontext() if core is None else kernels_of(self.hf, core)
        with one_document_a_row(), kernels:
            return called(self.hf, self.router_load, given, self.router_factor)


class HuggingFaceSeq2Seq(nn.Module):
    """A stock encoder-decoder of text behind a forward of tokens and a source to logits.

    Parameters keep the library's names behind the prefix `hf.`. start: the id that the decoder
    reads where no token comes before. pad: the id behind the end of a source, which no position
    attends to.
    """

    def __init__(self, hf: nn.Module, start: int, pad: int) -> None:
        super().__init__()
        self.hf, self.start, self.pad = hf, start, pad

    def forward(self, tokens: Tensor, source: Tensor) -> Tensor:
        """tokens, source, int64 [B, S], negative where nothing stands -> logits [B, S, V]."""
        with one_document_a_row():
            return self.hf(
                input_ids=source.masked_fill(source < 0, self.pad),
                attention_mask=(source >= 0).to(torch.int64),
                decoder_input_ids=tokens.masked_fill(tokens < 0, self.start),
                use_cache=False,
            ).logits


def hugging_face_source(spec: str, folder: Path) -> ModelSource:
    """The source of the model that a folder's config.json describes; of its text part, if it has
    parts. Weights are not read.

    Raises ModelError on a folder or config that cannot be used; `build` raises it where the
    model's attention is none of ours.
    """
    config = read_hf_config(spec, folder, whole=spec.startswith(f"{IMAGES}:"))
    return replace(stock_source(spec, config), folder=folder)


def stock_source(spec: str, config: Any) -> ModelSource:
    """The source of the stock class of a `transformers` config; no folder of its own.

    Raises ModelError as `hugging_face_source` does.
    """
    _check(spec, config)
    rebuild = partial(_build, spec)
    return ModelSource(
        spec,
        _vocabulary(spec, config),
        _longest(config),
        partial(rebuild, config),
        hf_config=config,
        rebuild=rebuild,
        plain=partial(_plain, spec, config),
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


def read_hf_config(spec: str, folder: Path, whole: bool = False) -> Any:
    """The `transformers` config of a folder's config.json; of its text part, if it has parts.

    spec: what the user called it. whole: with all parts. Raises ModelError where there is none that
    can be used.
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
    text = config.get_text_config(decoder=True)
    return config if whole or is_seq2seq(spec, config) else text


def _check(spec: str, config: Any) -> None:
    causal = transformers_for(spec).models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    if spec.startswith(f"{IMAGES}:"):
        if not reads_images(spec, config):
            raise ModelError(
                f"{spec}: {config.model_type} is no image-text model of transformers; write hf:"
            )
        check_images(spec, config)
    elif type(config) not in causal and not is_seq2seq(spec, config):
        raise ModelError(
            f"{spec}: {config.model_type} is no causal language model of transformers, and no "
            "encoder-decoder of text"
        )
    if is_seq2seq(spec, config):
        _check_router(spec, config)
        _check_router(spec, config.get_text_config(decoder=True))


def _check_router(spec: str, config: Any) -> None:
    """Raise ModelError where the class adds a loss of its routers to that of its labels."""
    names = ("router_aux_loss_coef", "aux_loss_coef")
    factor = next((getattr(config, n) for n in names if getattr(config, n, None)), 0.0)
    if factor and getattr(config, "output_router_logits", False):
        raise ModelError(
            f"{spec}: its config has output_router_logits = true, so that its class adds {factor:g}"
            " times a loss of how all tokens of a batch are routed; a plan knows that of models "
            "without an encoder of text, so set it to false"
        )


def reads_images(spec: str, config: Any) -> bool:
    """Tell whether a class is taken with its images, which its spec asks for."""
    return spec.startswith(f"{IMAGES}:") and is_image_text(spec, config)


def is_image_text(spec: str, config: Any) -> bool:
    """Tell whether a config is of a class that reads images beside text."""
    known = transformers_for(spec).models.auto.modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return type(config) in known and hasattr(config, "vision_config")


def is_seq2seq(spec: str, config: Any) -> bool:
    """Tell whether a config is of a class with an encoder and a decoder, not of its decoder."""
    pairs = transformers_for(spec).models.auto.modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    named = config.architectures or ()
    decoder_alone = any(name.endswith("ForCausalLM") for name in named)
    return bool(config.is_encoder_decoder) and type(config) in pairs and not decoder_alone


def _vocabulary(spec: str, config: Any) -> int:
    """Return how many tokens a model has. Raises ModelError where source and target have other
    ones."""
    if reads_images(spec, config):
        return int(config.get_text_config(decoder=True).vocab_size)
    if hasattr(config, "vocab_size"):
        return int(config.vocab_size)
    parts = {name: getattr(config, name, None) for name in ("encoder", "decoder")}
    sizes = {getattr(part, "vocab_size", None) for part in parts.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        raise ModelError(
            f"{spec}: {config.model_type} has one vocabulary for its source and another for its "
            "target; a plan takes one for both"
        )
    return size


def _longest(config: Any) -> int | None:
    """Return the most tokens of a row that a config states, of encoder and decoder both."""
    names = ("max_position_embeddings", "max_encoder_position_embeddings")
    text = config.get_text_config(decoder=True) if hasattr(config, "vision_config") else config
    stated = (getattr(text, name, None) for name in (*names, "max_decoder_position_embeddings"))
    # A class of any length, as XLNet, states -1.
    return min((length for length in stated if length is not None and length > 0), default=None)


def _build(spec: str, config: Any) -> nn.Module:
    """The class in the first way that takes tokens on meta; in its own where none does."""
    _register(transformers_for(spec))
    causal = not (is_seq2seq(spec, config) or reads_images(spec, config))
    for way in (_RULES, _MASKS) if causal else (_EITHER, _MASKS):
        try:
            model = _made(spec, config, way, _EXPERTS)
        except KeyError:  # a class with a table of its own for the ways of attending
            continue
        if _attach_cores(model):
            return model
    model = _made(spec, config, _OWN, _EXPERTS)
    _attach_cores(model)
    return model


def _plain(spec: str, config: Any) -> nn.Module:
    """The class as the library builds it, every part eager."""
    return _made(spec, config, _OWN, "eager")


def _register(transformers: Any) -> None:
    """Tell the library of our attention, masks and experts; once more changes nothing."""
    from transformers.integrations.moe import ExpertsInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    tensor_mask = partial(_tensor_mask, eager_mask)
    either = partial(either_mask, tensor_mask)
    masks = {_RULES: rule_mask, _EITHER: either, _MASKS: tensor_mask}
    for name, mask in masks.items():
        transformers.AttentionInterface.register(name, _attend)
        AttentionMaskInterface.register(name, mask)
    ExpertsInterface.register(_EXPERTS, apply_experts)


def _tensor_mask(make: Any, **given: Any) -> Tensor:
    """The library's mask for eager attention, which classes calculate with: added to the scores.
    It is never left out, and its rule called once on all places."""
    skips = dict.fromkeys(("allow_is_causal_skip", "allow_is_bidirectional_skip"), False)
    return make(**given | skips | {"use_vmap": False})


def _made(spec: str, config: Any, attention: str, experts: str) -> nn.Module:
    library, seq2seq = transformers_for(spec), is_seq2seq(spec, config)
    images = reads_images(spec, config)
    auto = library.AutoModelForImageTextToText if images else library.AutoModelForCausalLM
    make = (library.AutoModelForSeq2SeqLM if seq2seq else auto).from_config
    options = {"attn_implementation": attention, "dtype": torch.get_default_dtype()}
    try:
        model = make(copy.deepcopy(config), experts_implementation=experts, **options)
    except (TypeError, ValueError):  # a class without experts, or that lets none take their place
        model = _built(spec, make, copy.deepcopy(config), options)
    _hold_buffers(model)
    if experts == _EXPERTS:
        check_routers(spec, model)
        take_over_loops(spec, model)
        take_over_adapters(model)
    if seq2seq:
        return HuggingFaceSeq2Seq(model, *start_and_pad(spec, config))
    if images:
        return image_text(spec, config, model, plain=experts != _EXPERTS)
    # With one the library reads the tokens, to warn of padding without a mask: there are none on
    # meta, and loss is asked of labels alone.
    with suppress(Exception):  # the library's own kind, of a config that must have one
        model.config.pad_token_id = None
    return HuggingFaceCausalLM(model, plain=experts != _EXPERTS)


def _hold_buffers(model: nn.Module) -> None:
    """Make frozen parameters of the buffers of floats that a class is stored with: their values
    come with weights, as those of the bias by which DeepSeek's routers choose do."""
    buffers = dict(model.named_buffers())
    for name, value in model.state_dict(keep_vars=True).items():
        if name in buffers and value.is_floating_point():
            place, _, own = name.rpartition(".")
            module = model.get_submodule(place)
            delattr(module, own)
            module.register_parameter(own, nn.Parameter(value, requires_grad=False))


def start_and_pad(spec: str, config: Any) -> tuple[int, int]:
    """Return the id that a decoder reads first, and the one that fills up a source.

    Raises ModelError where a config names neither.
    """
    pad, decoder = config.pad_token_id, getattr(config, "decoder", None)
    # A class with a config of its decoder begins with the token that begins a text.
    firsts = (
        getattr(config, "decoder_start_token_id", None),
        getattr(decoder, "bos_token_id", None),
    )
    start = next((token for token in (*firsts, pad) if token is not None), None)
    if start is None:
        raise ModelError(
            f"{spec}: config.json names no decoder_start_token_id, which the decoder reads first"
        )
    return start, start if pad is None else pad


def _built(spec: str, make: Any, config: Any, options: dict[str, Any]) -> nn.Module:
    try:
        return make(config, **options)
    except KeyError:
        raise
    except Exception as error:
        raise ModelError(f"{spec}: its class does not build: {said_of(error)}") from error


def _attach_cores(model: nn.Module) -> bool:
    """Call a model on meta tensors; return whether it ran, and attends through a core.

    Nothing is followed of the call, as it has no values and the parameters are not its own.
    """
    named = (*model.named_parameters(), *model.named_buffers())
    with without_modes():
        on_meta = {name: _on_meta(tensor) for name, tensor in named}
        tokens = torch.zeros(1, 4, dtype=torch.int64, device="meta")
    given: tuple[Tensor, ...] = (tokens,)
    if isinstance(model, HuggingFaceSeq2Seq):
        given = tokens, tokens
    elif isinstance(model, HuggingFaceImageText):
        with without_modes():
            given = model.row_of_zeros()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch's own log of a call that fails
    try:
        with torch.no_grad(), without_modes():
            torch.func.functional_call(model, on_meta, given)
    except Exception:  # whatever a class does with a mask that is none
        return False
    finally:
        logging.disable(before)
    return any(isinstance(module, AttentionCore | DenseCore) for module in model.modules())


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | Visible | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    indices: Tensor | None = None,
    position_bias: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: query [B, H, S, D] to output [B, S, H, D].

    The mask says what is seen, as in the library's eager attention, and of that `indices` [B, S, K]
    the keys that a query chose; a bias [B, H, S, S] is added to the scores. Sinks of heads [H] are
    `s_aux`, those of queries [B, H, S, 1] `sinks`. What else a class hands over in `extra` counts
    for nothing here: where it does in the class, the proof tells.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sinks = s_aux if sinks is None else sinks
    plain = indices is None and position_bias is None and not dropout
    given = (query, key, value) if sinks is None else (query, key, value, sinks)
    if isinstance(attention_mask, Visible) and plain:
        core = _core(module, AttentionCore, scale, attention_mask.window, softcap)
        out = core(*given)
    elif attention_mask is None and plain:
        out = _core(module, AttentionCore, scale, None, softcap, False)(*given)
    else:
        core, mask = _core(module, DenseCore, scale, softcap), attention_mask
        if isinstance(mask, Visible):
            mask = window_mask(query.shape[2], mask.window, query.device)
        if indices is not None:
            mask = chosen_mask(mask, indices, key.shape[2])
        out = core(query, key, value, mask, sinks, position_bias, dropout)
    return out.transpose(1, 2).contiguous(), None


def _core(module: nn.Module, kind: type[nn.Module], *numbers: float | None) -> nn.Module:
    """The core of a layer for these numbers; a layer that is called with several has several."""
    known = module.__dict__.setdefault("_cores", {})
    key = (kind, *numbers)
    if key not in known:
        known[key] = f"core_{len(known)}" if known else "core"
        setattr(module, known[key], kind(*numbers))
    return getattr(module, known[key])
