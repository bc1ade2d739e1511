"""N steps equal any split of N by kill and resume, bit for bit; ranks and micro-batches change nothing but rounding."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from etude.pretraining import pretrain as pretraining
from etude.runs.source import held_out
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from tests.train.forked_ranks import RankServer

KILLED, STOPPED = -9, 3

ENCODER = """
name: exact
tokenizer: wordpiece:600
model: {kind: transformer, layers: 2, width: 32, heads: 2, context: 32, segments: 2, pooler: true, norm: post,
        embedding_norm: true, dropout: 0.1, attention_dropout: 0.1, embedding_dropout: 0.1}
objective: {kind: masked, sentence: next, row_tokens: 64}
train: {steps: 12, batch_tokens: 256, micro_tokens: 128, lr: 1e-3, save_every: 3, eval_every: 4, eval_tokens: 512,
        log_every: 2, workers: 2, optimizer: adam, device: cpu, precision: float32, seed: 5}
"""
LANES = """
name: exact-lanes
tokenizer: wordpiece:600
model: {kind: recurrent, layers: 2, width: 16, cells: 24, dropout: 0.1}
objective: {kind: bilm, unroll: 16}
train: {steps: 12, batch_tokens: 128, micro_tokens: 64, lr: 1e-2, save_every: 3, eval_every: 4, eval_tokens: 512,
        log_every: 2, workers: 1, device: cpu, precision: float32, seed: 5}
"""
LETTERS = """
name: exact-letters
tokenizer: word:600
model: {kind: recurrent, layers: 2, width: 16, cells: 24, dropout: 0.1,
        characters: {filters: [[1, 8], [3, 16]], embedding: 8, highways: 1}}
objective: {kind: bilm, unroll: 16, softmax: sampled, candidates: 64}
train: {steps: 12, batch_tokens: 128, micro_tokens: 64, lr: 1e-2, save_every: 3, eval_every: 4, eval_tokens: 512,
        log_every: 2, workers: 1, device: cpu, precision: float32, seed: 5}
"""
WORDS = """
name: exact-words
tokenizer: word:600
model: {kind: static, width: 16}
objective: {kind: skipgram, engine: batched, row_tokens: 128}  # the compiled engine: tests/objectives/test_word_runs.py
train: {steps: 12, batch_tokens: 512, lr: 0.05, save_every: 3, eval_every: 4, eval_tokens: 512,
        log_every: 2, workers: 1, device: cpu, precision: float32, seed: 5}
"""


def recipe_file(folder: Path, text: str) -> Path:
    path = folder / "exact.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def same_run(one: Path, two: Path) -> None:
    """Weights, optimiser and metrics of two finished runs agree to the last bit (but for seconds)."""
    left, right = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left), "final weights differ"
    kept = [{path.name for path in (run / "checkpoints").glob("step-*")} for run in (one, two)]
    assert f"step-{last_step(one):012d}" in kept[0] & kept[1]
    for folder in sorted(kept[0] & kept[1]):  # a stop by signal keeps one more and so forgets an older one
        for file in sorted(path.name for path in (one / "checkpoints" / folder).glob("*.safetensors")):
            a, b = (load_file(run / "checkpoints" / folder / file) for run in (one, two))
            assert a.keys() == b.keys()
            assert all(torch.equal(a[name], b[name]) for name in a), f"{folder}/{file} differs"
    assert metrics(one) == metrics(two)


def last_step(run: Path) -> int:
    return int(metrics(run)[-1]["step"])  # type: ignore[call-overload]


def metrics(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def disturbed(server: RankServer, folder: Path, recipe: Path, corpus: Path, moments: list[str]) -> Path:
    """A run that dies at each moment in turn and is resumed after each."""
    run = folder / "disturbed"
    words: list[object] = ["start", recipe, corpus, run]
    for moment in moments:
        [code] = server.run(0, *words, moment)
        assert code == (STOPPED if moment.startswith("term") else KILLED), f"{moment}: {server.output()}"
        words = ["resume", run]
    assert server.run(0, *words, "never") == [0], server.output()
    return run


@pytest.mark.parametrize(
    ("text", "moments"),
    [
        (ENCODER, ["step:2", "half:6", "writing:6", "evaluation:8", "term:11"]),
        (LANES, ["step:5", "evaluation:8", "writing:12"]),
        (LETTERS, ["step:5", "term:7", "writing:9"]),
        (WORDS, ["writing:3", "term:7"]),
    ],
    ids=["encoder", "lanes", "letters", "words"],
)
def test_kills_lose_nothing(
    tmp_path: Path, prepared, single_thread, server: RankServer, text: str, moments: list[str]
) -> None:
    recipe = recipe_file(tmp_path, text)
    corpus = prepared("word:600" if "word:600" in text else "wordpiece:600")
    whole = pretraining.pretrain(recipe, corpus, tmp_path / "whole", quiet=True)
    same_run(whole.folder, disturbed(server, tmp_path, recipe, corpus, moments))
    assert len(metrics(whole.folder)) == 12 // 2 + 12 // 4


@pytest.mark.slow
def test_twenty_random_kills_in_a_row(tmp_path: Path, prepared, single_thread, server: RankServer) -> None:
    recipe, corpus = recipe_file(tmp_path, ENCODER), prepared("wordpiece:600")
    whole = pretraining.pretrain(recipe, corpus, tmp_path / "whole", quiet=True)
    for number in range(20):
        draw = random.Random(number)
        steps = sorted(draw.sample([1, 2, 3, 4, 5, 6, 7, 10, 11], 3))  # not 8 or 9: a stop there saves what is to fail
        moments = [f"{draw.choice(['step', 'term'])}:{step}" for step in steps]
        moments[draw.randrange(3)] = draw.choice(["half:9", "writing:9", "evaluation:8", "writing:12"])
        moments.sort(key=lambda moment: int(moment.split(":")[1]))
        folder = tmp_path / str(number)
        folder.mkdir()
        same_run(whole.folder, disturbed(server, folder, recipe, corpus, moments))


def test_workers_change_no_bit(tmp_path: Path, prepared, single_thread) -> None:
    recipe, corpus = recipe_file(tmp_path, ENCODER), prepared("wordpiece:600")
    runs = [
        pretraining.pretrain(
            recipe, corpus, tmp_path / str(n), quiet=True, overrides={"train.workers": n, "train.steps": 6}
        )
        for n in (0, 1, 3)
    ]
    for other in runs[1:]:
        same_run(runs[0].folder, other.folder)


@pytest.mark.parametrize("text", [ENCODER, LANES], ids=["encoder", "lanes"])
def test_micro_batches_and_ranks_change_rounding_only(
    tmp_path: Path, prepared, single_thread, server: RankServer, text: str
) -> None:
    # plain descent: Adam divides by the size of a gradient, so where the true one is 0 (the bias of a key) it would
    # make steps of full size out of rounding
    plain = (
        text.replace("dropout: 0.1", "dropout: 0.0").replace("steps: 12", "steps: 4").replace("optimizer: adam, ", "")
    )
    plain = plain.replace("seed: 5", "seed: 5, optimizer: sgd")
    recipe, corpus = recipe_file(tmp_path, plain), prepared("wordpiece:600")
    whole = pretraining.pretrain(recipe, corpus, tmp_path / "whole", quiet=True, overrides={"train.micro_tokens": None})
    parts = pretraining.pretrain(recipe, corpus, tmp_path / "parts", quiet=True, overrides={"train.micro_tokens": 64})
    words = ["start", recipe, corpus, tmp_path / "ranks", "never"]
    if text == ENCODER:
        assert server.run_by_agent(2, *words) == [0], server.output()
    else:
        assert server.run(2, *words) == [0, 0], server.output()
    expected = load_file(whole.folder / "model.safetensors")
    for name in ("parts", "ranks"):
        found = load_file(tmp_path / name / "model.safetensors")
        for key, tensor in expected.items():
            difference = (found[key] - tensor).norm() / tensor.norm().clamp(min=1.0)
            assert difference < 1e-6, f"{name}: {key} differs by {difference:.2e}"
        for one, two in zip(metrics(tmp_path / name), metrics(whole.folder), strict=True):
            assert one["loss"] == pytest.approx(two["loss"], rel=1e-6)
    assert parts.finished


def test_fewer_held_out_rows_than_ranks_are_evaluated(
    tmp_path: Path, world_text: Path, single_thread, server: RankServer
) -> None:
    corpus = tmp_path / "corpus"
    prepare(str(world_text), corpus, tokenizer="wordpiece:600", valid=0.001, workers=1)
    text = ENCODER.replace("dropout: 0.1", "dropout: 0.0").replace("row_tokens: 64", "row_tokens: 1024")
    text = text.replace("batch_tokens: 256, micro_tokens: 128", "batch_tokens: 2048").replace("steps: 12", "steps: 1")
    recipe = recipe_file(tmp_path, text)
    assert held_out(Corpus.open(corpus)).total < 1024  # one row
    alone = pretraining.pretrain(recipe, corpus, tmp_path / "alone", quiet=True)
    assert server.run(2, "start", recipe, corpus, tmp_path / "ranks", "never") == [0, 0], server.output()
    expected, valid = (
        next(line for line in metrics(run) if line["split"] == "valid") for run in (alone.folder, tmp_path / "ranks")
    )
    assert valid["accuracy"] == expected["accuracy"] and valid["loss"] == pytest.approx(expected["loss"], rel=1e-6)


def test_resume_without_a_checkpoint_starts_at_zero(
    tmp_path: Path, prepared, single_thread, server: RankServer
) -> None:
    recipe, corpus = recipe_file(tmp_path, ENCODER), prepared("wordpiece:600")
    whole = pretraining.pretrain(recipe, corpus, tmp_path / "whole", quiet=True)
    run = disturbed(server, tmp_path, recipe, corpus, ["step:1"])
    same_run(whole.folder, run)
