"""The loop that an expert would write has the loss of the model class as it is: it is a faster way to the same step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import train_speed
from training_speed import peers
from training_speed.workloads import Work


def test_an_experts_loss_is_that_of_the_class() -> None:
    work = Work("tiny", "bert-mini", "bert", 64, 12, 3, small=True)
    torch.manual_seed(0)
    model = peers.peer_model(work, 0.0, peers.use_no_mask()).train()
    batch = peers.peer_batch(work, work.batch)
    places = (batch["labels"].flatten() >= 0).nonzero()[:, 0]
    assert len(places)
    loss = peers.expert_loss(work, model)(batch["input_ids"], batch["labels"], places)
    model.set_attn_implementation("sdpa")
    assert torch.allclose(loss, model(**batch).loss, atol=1e-5)


def test_an_unknown_work_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["train_speed.py", "--small", "--only", "bert-128"])
    with pytest.raises(SystemExit):
        train_speed.main()
    assert "no work bert-128: there are bert-small-128" in capsys.readouterr().err
