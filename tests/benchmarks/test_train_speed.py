"""The loop that an expert would write has the loss of the model class as it is: it is a faster way to the same step."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import train_speed
from training_speed import peers
from training_speed.workloads import Work

from etude.train import openmp


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


def test_an_experts_causal_loss_is_that_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2}
    full = transformers.GPT2Config
    monkeypatch.setattr(transformers, "GPT2Config", lambda **given: full(**given, **shape))
    work = Work("tiny", "gpt2", "gpt2", 64, 12, 3)
    torch.manual_seed(0)
    model = peers.peer_model(work, 0.0, peers.use_no_mask()).train()
    batch = peers.peer_batch(work, work.batch)
    loss = peers.expert_loss(work, model)(batch["input_ids"], batch["labels"], torch.empty(0, dtype=torch.long))
    model.set_attn_implementation("sdpa")
    assert torch.allclose(loss, model(**batch).loss, atol=1e-5)


def test_an_experts_electra_learns_what_the_joint_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws are replaced by the best token, so that both see the same replaced text."""
    import transformers

    full, small = transformers.ElectraConfig, {"num_hidden_layers": 2, "embedding_size": 16}
    monkeypatch.setattr(transformers, "ElectraConfig", lambda **given: full(**{**given, **small}))
    monkeypatch.setattr(torch, "rand_like", lambda tensor, **_: torch.full_like(tensor, 0.5, dtype=torch.float32))
    work = Work("tiny", "electra-small", "electra", 64, 12, 3)
    torch.manual_seed(0)
    model = peers.peer_model(work, 0.0, peers.use_no_mask()).train()
    batch = peers.peer_batch(work, work.batch)
    places = (batch["labels"].flatten() >= 0).nonzero()[:, 0]
    loss = peers.expert_loss(work, model)(batch["input_ids"], batch["labels"], places)
    assert torch.allclose(loss, model(**batch).loss, atol=1e-4)


def test_an_unknown_work_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["train_speed.py", "--small", "--only", "bert-128"])
    with pytest.raises(SystemExit):
        train_speed.main()
    assert "no work bert-128: there are bert-small-128" in capsys.readouterr().err


def test_a_side_that_fails_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A work that failed on our side ended the whole table."""
    script = """#!/bin/sh
case "$*" in
*"--side etude --only odd"*) echo 'RuntimeError: no such kernel' >&2; exit 1 ;;
*etude*) echo '{"tokens_per_second": 300, "flops_per_token": 6, "peak": 9, "memory": 1, "waited": 0}' ;;
*) echo '{"tokens_per_second": 200, "memory": 1, "peak": 9}' ;;
esac
"""
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    works = tuple(Work(name, "bert-mini", "bert", 64, 12, 3, small=True) for name in ("odd", "fine"))
    monkeypatch.setattr(train_speed, "SMALL", works)
    monkeypatch.setattr(train_speed.peak, "measure_peak", lambda *_: 9.0)
    words = ["--peers", "expert", "--rounds", "2", "--out", str(tmp_path / "rows.json")]
    monkeypatch.setattr(sys, "argv", ["train_speed.py", "--small", *words])
    train_speed.main()
    text = capsys.readouterr().out
    assert "odd              etude: RuntimeError: no such kernel" in text and "1.50x" in text
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["work"] for row in rows] == ["odd", "fine"] and len(rows[1]["rounds"]) == 2


def test_all_sides_are_started_once_before_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, str, int]] = []

    def start_side(side: str, work: Work, options: object, steps: int) -> dict[str, object]:
        started.append((side, work.name, steps))
        return {"failed": "out of memory"} if side == "expert" else {}

    monkeypatch.setattr(train_speed, "start_side", start_side)
    train_speed.compile_first(["etude", "expert"], train_speed.SMALL, argparse.Namespace())
    assert sorted(started) == [("etude", "bert-small-128", 1), ("expert", "bert-small-128", 1)]
    assert "s; out of memory" in capsys.readouterr().out


def test_peers_wait_and_allocate_in_their_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an idle machine threads that spin are faster; what the user sets is for both sides."""
    monkeypatch.setattr(os, "environ", {"HOME": "/", "MIMALLOC_PURGE_DELAY": "-1", **openmp.SETTINGS})
    assert train_speed.choose_environment("trainer") == {"HOME": "/"}
    assert train_speed.choose_environment("etude") == os.environ
    monkeypatch.setitem(os.environ, "GOMP_SPINCOUNT", "300000")
    assert train_speed.choose_environment("loop")["GOMP_SPINCOUNT"] == "300000"
