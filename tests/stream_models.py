"""Models of which several values cross from layer to layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, HEADS, VOCAB, LAYERS = 16, 4, 32, 3


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Mix(nn.Module):
    """Causal attention whose values are mixed with those of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        value = self.v(x)
        mixed = value if first is None else 0.75 * value + 0.25 * first
        q, k, v = (
            y.view(*y.shape[:2], HEADS, DIM // HEADS).transpose(1, 2)
            for y in (self.q(x), self.k(x), mixed)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).reshape(x.shape)), value


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.norm_2 = Norm(), Mix(), Norm()
        self.up, self.down = nn.Linear(DIM, 24, bias=False), nn.Linear(24, DIM, bias=False)

    def forward(self, x: Tensor, first: Tensor | None) -> tuple[Tensor, Tensor]:
        mixed, value = self.mix(self.norm(x), first)
        x = x + mixed
        return x + self.down(F.gelu(self.up(self.norm_2(x)))), value


class ValueResidual(nn.Module):
    """Every layer reads the values of the first one (Zhou et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, first = self.embed(tokens), None
        for layer in self.layers:
            x, value = layer(x, first)
            first = value if first is None else first
        return self.head(self.norm(x))


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = Norm(), nn.Linear(DIM, 24), nn.Linear(24, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x))))


class TwoStreams(nn.Module):
    """Two streams, each changed by a function of the other (Gomez et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Half() for _ in range(2 * LAYERS))
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        a = self.embed(tokens)
        b = a * 0.5
        for index in range(0, len(self.layers), 2):
            a = a + self.layers[index](b)
            b = b + self.layers[index + 1](a)
        return self.head(self.norm(a + b))


class Placed(nn.Module):
    """A table of positions that the caller names, as the library's GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCAB, DIM), nn.Embedding(2 * DIM, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = Norm(), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor, position_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is None
        x = self.embed(tokens) + self.places(position_ids)
        for layer in self.layers:
            x, _ = layer(x * torch.cos(0.1 * position_ids.to(x.dtype)).unsqueeze(-1), None)
        return self.head(self.norm(x))


class PlacedPlain(Placed):
    """The same model, given its positions."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens, torch.arange(tokens.shape[1]).expand_as(tokens))


class Masked(Placed):
    """A forward that asks for what no step gives."""

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(tokens, attention_mask)


class Named(nn.Module):
    """Submodules, parameters and buffers under names that Python does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module("lambda", nn.Embedding(VOCAB, DIM))
        self.add_module("2", Norm())
        self.add_module("2_norm", nn.LayerNorm(DIM))
        self.add_module("a-b", nn.Linear(DIM, DIM))
        self.add_module("3:x", nn.LayerNorm(DIM))
        self.register_buffer("4 table", torch.linspace(0, 1, DIM).cos())
        self.register_parameter("5", nn.Parameter(torch.ones(DIM)))
        self.add_module("saved", nn.Linear(DIM, VOCAB, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        parts, table = dict(self.named_modules()), dict(self.named_buffers())
        x = parts["lambda"](tokens) * (table["4 table"] * 2).sin()
        x = x + parts["2"](x) * dict(self.named_parameters())["5"]
        x = x + parts["a-b"](parts["2_norm"](x))
        return parts["saved"](parts["3:x"](x))


class Gated(nn.Module):
    """A mask of the first layer that all layers read, and a tail without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x, _ = self.layers[0](self.embed(tokens), None)
        positive, half = x > 0, 0.5 * x
        for layer in self.layers[1:]:
            x = layer(x, None)[0] + torch.where(positive, 0.1 * x, -0.1 * x)
            half = 0.5 * half + x
        return self.head(x + torch.tanh(x + half))
