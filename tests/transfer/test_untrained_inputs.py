"""Who fine-tunes on what pre-training never read, later positions or second texts, is told that it learnt nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import etude
from etude.pretraining.pretrain import pretrain
from etude.runs.run import Run

SHORT = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.context": 64, "objective.length": 16,
    "objective.row_tokens": 64, "train.steps": 3, "train.batch_tokens": 256, "train.workers": 0, "train.save_every": 0,
    "train.eval_every": 0, "train.weight_decay": 0.0, "train.warmup": 0,
}  # fmt: skip
QUICK = {"train.steps": 1, "train.batch_examples": 2}


@pytest.fixture(scope="module")
def run(prepared: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A BERT whose 64 positions met sequences of 16."""
    corpus = prepared("wordpiece:300,lower")
    return pretrain("bert-toy", corpus, tmp_path_factory.mktemp("short") / "bert", quiet=True, overrides=SHORT)


def examples(path: Path, *sizes: int) -> Path:
    lines = [{"text": "the inn " * (size // 2), "label": "ab"[number % 2]} for number, size in enumerate(sizes)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_positions_beyond_the_sequences_stay_as_drawn(
    run: Run, prepared: Callable[[str], Path], tmp_path: Path
) -> None:
    shorter = SHORT | {"train.steps": 1}
    other = pretrain("bert-toy", prepared("wordpiece:300,lower"), tmp_path / "bert", quiet=True, overrides=shorter)
    name = "bert.embeddings.position_embeddings.weight"
    one, another = (load_file(folder / "model.safetensors")[name] for folder in (run.folder, other.folder))
    assert torch.equal(one[16:], another[16:]) and not (one[:16] == another[:16]).all(1).any()


def test_longer_examples_are_counted(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = examples(tmp_path / "train.jsonl", 4, 4, 30, 40)
    etude.finetune(run.folder, "classify", train=file, out=tmp_path / "long", quiet=True, settings=QUICK)
    assert "train.jsonl: 2 of 4 examples are longer than 16 tokens, the sequences of pre-training" in caplog.text
    assert "Set task.length=16, or pre-train with objective.length=64." in caplog.text


@pytest.mark.parametrize(("sizes", "changes"), [((4, 4, 30, 40), {"task.length": 16}), ((4, 4, 6, 8), {})])
def test_others_are_told_nothing(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, sizes: tuple[int, ...], changes: dict[str, object]
) -> None:
    file = examples(tmp_path / "train.jsonl", *sizes)
    etude.finetune(run.folder, "classify", train=file, out=tmp_path / "x", quiet=True, settings=QUICK | changes)
    assert "the sequences of pre-training" not in caplog.text


def test_a_run_that_went_on_from_other_weights_may_have_learnt_them_there(
    run: Run, prepared: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"train.steps": 1, "objective.length": 16, "train.workers": 0}
    pretrain(run.folder, prepared("wordpiece:300,lower"), tmp_path / "more", quiet=True, overrides=changes)
    file = examples(tmp_path / "train.jsonl", 30, 40)
    etude.finetune(tmp_path / "more", "classify", train=file, out=tmp_path / "x", quiet=True, settings=QUICK)
    assert "the sequences of pre-training" not in caplog.text


def test_pairs_after_single_texts(
    prepared: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpus, file = prepared("wordpiece:300,lower"), tmp_path / "pairs.jsonl"
    lines = [{"text_a": "the inn", "text_b": "the old inn", "label": label} for label in "ab" * 2]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    cases = {
        "single": {"objective.sentence": "none", "objective.pair_rate": 0.0},
        "pairs": {"objective.sentence": "none", "objective.pair_rate": 0.9},
        "next": {},
        "without": {"objective.sentence": "none", "objective.pair_rate": 0.0, "model.segments": 0},
    }
    for name, changes in cases.items():
        caplog.clear()
        start = pretrain("bert-toy", corpus, tmp_path / name, quiet=True, overrides=SHORT | changes)
        etude.finetune(start.folder, "pair", train=file, out=tmp_path / f"{name}-tuned", quiet=True, settings=QUICK)
        assert ("pre-training read single texts" in caplog.text) == (name == "single"), name
