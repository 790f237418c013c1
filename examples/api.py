"""Plan, compile and train on two CPU ranks: python examples/api.py OUT (ranks import this file)."""

import sys
from pathlib import Path

from torch import Tensor, nn

import meshwright as mw


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.down(nn.functional.gelu(self.up(x))))


def rows(index: int, length: int) -> list[int]:
    return [(5 * index + 3 * place) % 64 for place in range(length)]


def stop_when_learnt(event: mw.Event) -> None:
    if event.loss is not None and event.loss < 0.5:
        event.request_stop()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    plan = mw.plan(Tiny, cluster="cpu:2", job=mw.Job(seq=16, global_batch=8, pins={"dp": 2}))
    program = mw.compile(plan, out / "program")
    options = {"steps": 200, "lr": 2e-2, "no_compile": True, "out": str(out / "run")}
    result = mw.run(program, data=rows, callbacks=[stop_when_learnt], **options)
    print(f"{result.state} at a loss of {result.loss:.3f}: {result.checkpoints[-1]}")
