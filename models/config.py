"""The shape of a dense decoder, as one frozen record."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ModelError, nearest

_CHOICES = {
    "norm": ("rms", "rms_plus_one", "layer"),
    "activation": ("silu", "gelu_tanh"),
    "bias": ("none", "qkv", "all"),
    "positions": ("rope", "learned"),
    "rope_scaling": ("none", "linear", "llama3"),
}
_POSITIVE = ("dim", "layers", "heads", "kv_heads", "ffn", "vocab", "head_dim", "max_seq", "window")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and switches of one dense decoder.

    dim, layers, ffn, vocab: model width, number of blocks, feed-forward width, vocabulary.
    heads, kv_heads: query heads; key and value heads (None: as many as query heads).
    head_dim: width of one head (None: dim / heads).
    max_seq: longest sequence the model is meant for; the size of the table of learned positions.
    norm, norm_eps: "rms" scales by w, "rms_plus_one" by 1 + w (Gemma), "layer" has a bias.
    post_norms: also norm what attention and feed-forward return (Gemma 2 and 3).
    qk_norm: norm each head's q and k before the rotation (Qwen3, Gemma 3).
    activation, gated: act(gate(x)) * up(x) if gated (SwiGLU, GeGLU), else act(up(x)).
    bias: which linear layers have one: "none", "qkv" (Qwen2), "all" (GPT-2; never the head).
    positions: "rope" or "learned" (GPT-2).
    rope_theta: RoPE base; rope_local_theta, if given, is the base in windowed layers (Gemma 3),
        which are then left unscaled.
    rope_scaling, rope_factor: "linear" divides every frequency by rope_factor; "llama3" divides
        the low ones (Llama 3.1), blending between wavelengths of rope_original_seq divided by
        rope_high_freq_factor and by rope_low_freq_factor.
    window: a windowed layer's query i sees keys j with i - window < j <= i.
    window_pattern: which layers are windowed, repeated over the layers.
    attention_softcap, logit_softcap: x becomes cap * tanh(x / cap), on scores or on logits.
    query_scale: factor on q @ k (None: head_dim ** -0.5).
    embed_scale: factor on the embedding's output (Gemma: sqrt(dim)).
    tied: the head shares the embedding's weight.
    init_std: standard deviation of every weight matrix at the start.
    scaled_residual_init: matrices that end in the residual stream start at
        init_std / sqrt(2 * layers) (GPT-2).

    Raises ModelError where fields contradict each other.
    """

    dim: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int | None = None
    head_dim: int | None = None
    max_seq: int | None = None
    norm: str = "rms"
    norm_eps: float = 1e-5
    post_norms: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    gated: bool = True
    bias: str = "none"
    positions: str = "rope"
    rope_theta: float = 10_000.0
    rope_local_theta: float | None = None
    rope_scaling: str = "none"
    rope_factor: float = 1.0
    rope_low_freq_factor: float = 1.0
    rope_high_freq_factor: float = 4.0
    rope_original_seq: int = 8192
    window: int | None = None
    window_pattern: tuple[bool, ...] = (True,)
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    query_scale: float | None = None
    embed_scale: float = 1.0
    tied: bool = False
    init_std: float = 0.02
    scaled_residual_init: bool = False

    def __post_init__(self) -> None:
        for field in _POSITIVE:
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ModelError(f"{field} = {value}: must be at least 1")
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if value not in choices:
                raise ModelError(f"{field} = {value!r}: unknown; {nearest(str(value), choices)}")
        self._check_heads()
        self._check_positions()

    def _check_heads(self) -> None:
        if self.head_dim is None and self.dim % self.heads:
            raise ModelError(
                f"dim = {self.dim} is not a multiple of heads = {self.heads}; give head_dim"
            )
        if self.heads % self.key_heads:
            raise ModelError(
                f"heads = {self.heads} is not a multiple of kv_heads = {self.key_heads}"
            )

    def _check_positions(self) -> None:
        if self.positions == "learned" and self.max_seq is None:
            raise ModelError('positions = "learned" needs max_seq')
        if self.positions == "rope" and self.head_size % 2:
            raise ModelError(f"head_dim = {self.head_size}: RoPE needs an even one")
        if not self.window_pattern:
            raise ModelError("window_pattern is empty; give at least one entry")

    @property
    def key_heads(self) -> int:
        """Key and value heads, resolved."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def head_size(self) -> int:
        """Width of one head, resolved."""
        return self.dim // self.heads if self.head_dim is None else self.head_dim

    @property
    def score_scale(self) -> float:
        """Factor on q @ k, resolved."""
        return self.head_size**-0.5 if self.query_scale is None else self.query_scale

    @property
    def num_parameters(self) -> int:
        """Elements of all weights; a tied head counts once."""
        norm = self.dim * (2 if self.norm == "layer" else 1)
        query, keys = self.heads * self.head_size, self.key_heads * self.head_size
        inner = (2 if self.gated else 1) * self.ffn
        layer = self.dim * (2 * query + 2 * keys) + self.dim * (inner + self.ffn)
        if self.bias != "none":
            layer += query + 2 * keys
        if self.bias == "all":
            layer += self.dim + inner + self.dim
        layer += norm * (4 if self.post_norms else 2) + (2 * self.head_size if self.qk_norm else 0)
        places = (self.max_seq or 0) * self.dim if self.positions == "learned" else 0
        tables = self.vocab * self.dim * (1 if self.tied else 2) + places
        return self.layers * layer + norm + tables

    def window_of(self, layer: int) -> int | None:
        """The window of one layer, None where it attends to the whole past."""
        return self.window if self.window_pattern[layer % len(self.window_pattern)] else None

    def is_local(self, layer: int) -> bool:
        """Return whether the layer rotates by rope_local_theta."""
        return self.rope_local_theta is not None and self.window_of(layer) is not None
