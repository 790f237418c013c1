"""The environment that a rank starts CUDA and NCCL with."""

import os
from pathlib import Path

import pytest

from meshwright.runtime.launch.device_settings import set_for

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
MIXING = "NCCL_GRAPH_MIXING_SUPPORT"


@pytest.mark.parametrize(
    ("needs", "queues"), [('{"stages": 1}', None), ('{"stages": 2}', "32"), (None, None)]
)
def test_only_pipelines_ask_for_more_queues(
    needs: str | None, queues: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {})
    if needs is not None:
        (tmp_path / "needs.json").write_text(needs)
    set_for(tmp_path)
    assert (os.environ.get(QUEUES), os.environ[MIXING]) == (queues, "0")


def test_what_is_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {MIXING: "1", "PYTORCH_CUDA_ALLOC_CONF": "x"})
    set_for(tmp_path)
    assert os.environ[MIXING] == "1"
    assert "PYTORCH_ALLOC_CONF" not in os.environ
