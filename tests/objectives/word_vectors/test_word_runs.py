"""Word vectors the usual way: prepare, pretrain, a stop, a resume to the last bit, a run to look at and to build on."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import etude
from etude.cli import main as cli
from etude.errors import UserError
from etude.hub.vector_files import read_vectors
from etude.hub.vector_runs import export_vectors, import_vectors, open_vectors
from etude.hub.word_vectors import WordVectors
from etude.objectives.word_vectors.kernels import compiles
from etude.pretraining import pretrain as pretraining
from etude.runs.run import Run
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.train.loop import Loop

Prepared = Callable[[str], Path]
STEPS = {"train.steps": 9, "train.batch_tokens": 1000, "train.save_every": 4, "train.eval_every": 3, "model.width": 16,
         "train.eval_tokens": 1000, "train.log_every": 2, "train.device": "cpu", "train.seed": 3}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "skipgram-toy": {},
    "cbow-toy": {},
    "fasttext-toy": {"model.buckets": 300},
    "glove-toy": {"objective.window": 5},
}


@pytest.fixture(scope="module")
def runs(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    made: dict[str, Run] = {}

    def make(name: str) -> Run:
        if name not in made:
            folder = tmp_path_factory.mktemp("words") / name
            made[name] = pretraining.pretrain(
                name, prepared("word:600"), folder, quiet=True, overrides=STEPS | SYSTEMS[name]
            )
        return made[name]

    return make


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_what_cannot_start_leaves_no_folder_and_what_breaks_later_keeps_it(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, folder = prepared("word:600"), tmp_path / "run"
    with pytest.raises(UserError, match="a kernel for a GPU"):
        pretraining.pretrain(
            "skipgram-toy", corpus, folder, quiet=True, overrides=STEPS | {"objective.engine": "hogwild"}
        )
    assert not folder.exists()
    advance = Loop.advance

    def breaks(self: Loop, step: Any) -> Any:
        if step.number == 5:
            raise UserError("it broke")
        return advance(self, step)

    monkeypatch.setattr(Loop, "advance", breaks)
    with pytest.raises(UserError, match="it broke"):
        pretraining.pretrain("skipgram-toy", corpus, folder, quiet=True, overrides=STEPS)
    assert list((folder / "checkpoints").iterdir()) and metrics(folder)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_stop_and_a_resume_leave_no_trace(
    name: str, runs: Callable[[str], Run], prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread, the compiled loops: weights, GloVe's squares and every line of the log agree to the last bit."""
    whole = runs(name)
    assert compiles() and whole.recipe.objective.threads == 1 and whole.recipe.objective.engine == "auto"
    advance, stops = Loop.advance, [2, 5, 7]

    def stopping(self: Loop, step: Any) -> None:
        if stops and step.number + 1 == stops[0]:
            stops.pop(0)
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, step)

    monkeypatch.setattr(Loop, "advance", stopping)
    corpus = prepared("word:600")
    run = pretraining.pretrain(name, corpus, tmp_path / "x", quiet=True, overrides=STEPS | SYSTEMS[name])
    while not run.finished:
        run = pretraining.resume(run.folder, quiet=True)
    assert not stops
    one, other = load_file(whole.folder / "model.safetensors"), load_file(run.folder / "model.safetensors")
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert metrics(whole.folder) == metrics(run.folder)
    last = "checkpoints/step-000000000009"
    if name == "glove-toy":
        one, other = (load_file(folder / last / "carried.safetensors") for folder in (whole.folder, run.folder))
        assert all(torch.equal(one[key], other[key]) for key in one) and float(one["squares.0"].max()) > 1
    losses = [line["loss"] for line in metrics(whole.folder) if line["split"] == "valid"]
    assert losses[-1] < losses[0]
    assert int(one["model.counts" if "model.counts" in one else "squares.0"].max()) > 0


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_is_an_encoder_like_any_other(name: str, runs: Callable[[str], Run]) -> None:
    run = runs(name)
    loaded = etude.load(run.folder)
    vectors = WordVectors.from_run(run)
    word = vectors.words[50]
    [first], [second] = (loaded.states([loaded.tokenizer.encode(text).ids], "last") for text in (word, f"the {word} ."))
    np.testing.assert_allclose(first[0], vectors.vectors([word])[0], rtol=1e-6)
    np.testing.assert_array_equal(first[0], second[1])  # whatever stands around: a homonym's vector cannot move
    strange = loaded.encode(["Unheardofword"])[0]
    if name == "fasttext-toy":
        assert isinstance(loaded.tokenizer, OpenVocabularyTokenizer)
        np.testing.assert_allclose(strange, vectors.vectors(["Unheardofword"], "subwords")[0], rtol=1e-4, atol=1e-7)
    else:
        np.testing.assert_allclose(strange, vectors.matrix[-100:].mean(0), rtol=1e-4, atol=1e-7)
    with pytest.raises(etude.errors.UserError, match="no language-model head"):
        loaded.logits([[7]])


def test_files_and_back(runs: Callable[[str], Run], tmp_path: Path) -> None:
    """A run to a file, the file to a run: the same vectors, and those of unknown words by sub-words."""
    for name, file in (("skipgram-toy", "a.vec"), ("cbow-toy", "a.bin"), ("fasttext-toy", "f.bin")):
        form = export_vectors(runs(name), tmp_path / file)
        assert form == {"a.vec": "word2vec", "a.bin": "word2vec-binary", "f.bin": "fasttext"}[file]
        wanted, found = WordVectors.from_run(runs(name)), read_vectors(tmp_path / file)
        assert found.words == wanted.words
        np.testing.assert_allclose(found.matrix, wanted.matrix, rtol=0 if "fast" not in name else 1e-5, atol=1e-7)
        run = import_vectors(tmp_path / file, tmp_path / f"run-{file}")
        again = open_vectors(run.folder)
        np.testing.assert_array_equal(again.matrix, open_vectors(run.folder).matrix)
        np.testing.assert_allclose(again.matrix, wanted.matrix, rtol=0 if "fast" not in name else 1e-5, atol=1e-7)
        if name == "fasttext-toy":
            assert again.counts is not None and wanted.counts is not None
            assert again.counts.tolist() == wanted.counts.tolist()
            np.testing.assert_array_equal(
                again.vectors(["unheardof"], "subwords"), wanted.vectors(["unheardof"], "subwords")
            )
            export_vectors(run, tmp_path / "again.bin")
            assert (tmp_path / "again.bin").read_bytes() == (tmp_path / file).read_bytes()
    export_vectors(runs("glove-toy"), tmp_path / "g.txt", "glove")
    run = import_vectors(tmp_path / "g.txt", tmp_path / "run-g")
    loaded = etude.load(run.folder)
    np.testing.assert_array_equal(
        loaded.encode(["Unheardofword"])[0], read_vectors(tmp_path / "g.txt").unknown_row
    )  # the file's own <unk>
    with pytest.raises(etude.errors.UserError, match="--form"):
        export_vectors(runs("glove-toy"), tmp_path / "g.dat")


def test_finetune_and_features_take_them(runs: Callable[[str], Run], tmp_path: Path) -> None:
    words = WordVectors.from_run(runs("fasttext-toy")).words
    chance = np.random.default_rng(0)
    lines = []
    for number in range(48):
        text = [*chance.choice(words[50:90], 4), ("goodness", "badnesses")[number % 2]]  # unknown words decide
        lines.append(json.dumps({"text": " ".join(chance.permutation(text)), "label": str(number % 2)}))
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    changes = {
        "train.epochs": 10,
        "train.lr": 0.05,
        "train.batch_examples": 8,
        "train.warmup": 0.0,
        "train.device": "cpu",
    }
    train = tmp_path / "train.jsonl"
    base = runs("fasttext-toy").folder
    tuned = etude.finetune(
        base, "classify", train=train, out=tmp_path / "tuned", dev=train, quiet=True, settings=changes
    )
    assert tuned.evaluate(train, intervals=False)["accuracy"].value > 0.9, "the letters of unknown words reach the task"
    again = etude.inference.task_model.TaskModel.open(tmp_path / "tuned")
    assert again.predict(["goodness", "badnesses"]) == tuned.predict(["goodness", "badnesses"])
    from etude.inference.features import extract

    [vector] = extract(etude.load(base), [f"{words[60]} {words[61]}"])
    np.testing.assert_allclose(
        vector[0], WordVectors.from_run(Run(base)).vectors([words[60], words[61]]).mean(0), rtol=1e-5
    )


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["etude", *map(str, words)])
    with pytest.raises(SystemExit) as done:
        cli.main()
    return int(done.value.code or 0)


def test_commands(
    runs: Callable[[str], Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs("skipgram-toy")
    words = WordVectors.from_run(run).words[30:36]
    assert command(monkeypatch, "show", "neighbours", run.folder, words[0], "-n", "4") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert command(monkeypatch, "show", "analogy", run.folder, *words[:3], "--rule", "multiply") == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert command(monkeypatch, "show", "neighbours", run.folder, "zzzz") == 2
    assert "'zzzz' is not among" in capsys.readouterr().err
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{one}\t{other}\t{number}\n" for number, (one, other) in enumerate(
        zip(words, words[1:] + words[:1], strict=True)
    )))  # fmt: skip
    assert command(monkeypatch, "show", "scores", run.folder, pairs, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 6
    text = tmp_path / "text.txt"
    text.write_text(f"{words[0]} zzzz zzzz {words[1]}\n")
    assert command(monkeypatch, "show", "unknown", run.folder, text) == 0
    shown = capsys.readouterr().out
    assert "50.00%  unknown, 1 different" in shown and "2  zzzz" in shown
    assert command(monkeypatch, "export", run.folder, "-o", tmp_path / "v.bin") == 0
    assert command(monkeypatch, "import", tmp_path / "v.bin", "-o", tmp_path / "back") == 0
    assert "word2vec" in capsys.readouterr().out
    assert command(monkeypatch, "show", "neighbours", tmp_path / "v.bin", words[0]) == 0
    assert command(monkeypatch, "show", "neighbours", tmp_path / "back", words[0]) == 0
    once, twice = np.array_split(np.array(capsys.readouterr().out.splitlines()), 2)
    assert once.tolist() == twice.tolist() and len(once) == 10
