"""Models of what emitted text gets wrong easily: numbers made of sizes, odd schemas, odd names."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DIM, VOCAB = 8, 32


class Inner(nn.Module):
    """Tokens through an embedding, a linear layer, what a subclass makes of it, and the head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, DIM)
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)

    def inner(self, a: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.lm_head(x + self.inner(self.fc(x)))


class Sized(Inner):
    """Sizes beside every operator, as alphas, fills, ends, and in numbers that are no integers."""

    def inner(self, a: Tensor) -> Tensor:
        s = a.shape[1]
        places = torch.arange(s)
        a = a / (s + 3) + a * (s - 1) - (s - 2) + (s - 2) / (a * a + 1)
        a = torch.add(a, a * a, alpha=s - 3) + torch.sub(a, s - 1, alpha=s + 1) / (s * 7)
        a = a * (1 / s) + a * s**-0.5 * (s // 2) + a * (s % 3) - max(s - 3, 1) - -1
        a = a.clamp(max=s - 3.5) * (places / (s + 1))[:, None] - a.mean((1, 2), keepdim=True)
        a = a + a.var(1, keepdim=True) + a.std(-1, correction=0, keepdim=True)
        far = (places[:, None] - places[None, :] + s - 1).to(a.dtype) @ a / (s * s)
        a = far + a.cumsum(1) / torch.arange(1, s + 1)[:, None] + torch.full((2 * s - 1,), s - 1)[0]
        return (
            a + a[:, s - 1 :] + a[..., -7::3].sum(-1, keepdim=True) + torch.eye(s).to(a.dtype) @ a
        )


class Schemas(Inner):
    """Ops whose arguments stand in another order than their attributes, and their gradients."""

    def inner(self, a: Tensor) -> Tensor:
        a = F.elu(a, 1.3) + F.log_softmax(a, -1) + F.threshold(a, 0.01, 0.7)
        a = F.hardtanh(a, -2.0, 3.0) + F.softplus(a, 2.0, 0.1) + a.clamp(-1.0, 2.0)
        a = a + torch.where(a > 0, torch.where(a > 1, 2.0, 3.0), a) + torch.addcdiv(a, a, a * a + 1)
        a = a + torch.where(a != a, float("nan"), a) + (a > 0).sum(-1, keepdim=True, dtype=a.dtype)
        a = F.normalize(a, dim=-1) + a.norm(3, dim=-1, keepdim=True) + torch.maximum(a, a * a)
        a = (
            a
            + a.max(-1, keepdim=True).values
            + torch.cumprod(a, -1)
            + a.amax(keepdim=True)[:0].sum()
        )
        a = a + a.gather(1, torch.zeros_like(a, dtype=torch.int64)) + a.logsumexp(-1, keepdim=True)
        flat = a.reshape(-1, DIM)
        bias, weight = torch.linspace(0, 1, DIM).to(a.dtype), torch.eye(DIM).to(a.dtype)
        a = torch.addmm(bias, flat, weight, beta=0.5, alpha=2).view(a.shape)
        a = torch.baddbmm(bias, a, weight.expand(a.shape[0], DIM, DIM), beta=0.5, alpha=2)
        return torch.baddbmm(bias / 0, a, weight.expand(a.shape[0], DIM, DIM), beta=0)


_NAMES = """
    dy d_dy dy_5 x x_2 params saved grads grad_proj proj d_proj lambda lambda_ 1 _1 sum sum_ torch
    kernels B S TP None True
""".split()


class Scaled(Inner):
    """Parameters without dims and with one."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(1))

    def inner(self, a: Tensor) -> Tensor:
        return torch.tanh(a * self.gain + self.shift.squeeze(0))


class Alike(nn.Module):
    """Parameters without dims and with one, buffers and layers under names that text needs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        for layer in self.layers:
            for index, name in enumerate(_NAMES):
                shape = ((), (1,), (DIM,))[index % 3]
                layer.register_parameter(name, nn.Parameter(torch.full(shape, 0.5)))
        self.up, self.up_2 = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM, bias=False)
        for name in ("lambda", "lambda_", "loss", "labels", "constants"):
            self.register_buffer(name, torch.linspace(0.1, 1.0, DIM))
        self.denominator = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            y = x * x.mean(-1, keepdim=True)
            for name in _NAMES:
                y = torch.sin(y * layer._parameters[name] + y)
            x = x + layer(y)
        for up in (self.up, self.up_2):
            x = x + up(torch.cos(x))
        for name, table in self.named_buffers():
            x = x + torch.tanh(x * table * (len(name) * table).sin())
        return self.denominator(x)
