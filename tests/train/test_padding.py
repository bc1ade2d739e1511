"""Batches of labelled examples padded to few shapes: the same losses, gradients, counts and FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.models import transformer
from etude.objectives.base import Batch
from etude.tasks import classify, similarity, span, tag
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples
from etude.tasks.similarity import RatedPair
from etude.tasks.span.questions import Question
from etude.tasks.tag.sentences import TaggedSentence
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.loop import Loop
from etude.train.padding import grain_of, pad_batch
from etude.train.recorded_step import StepRecorder
from etude.train.settings import Settings
from etude.train.static_batch import signature
from tests.train.test_recorded_step import Replay, weights

WORDS = [f"w{number}" for number in range(40)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:60", [" ".join(WORDS)] * 3)


def texts(count: int, longest: int = 30) -> list[str]:
    chance = np.random.default_rng(0)
    return [" ".join(chance.choice(WORDS, chance.integers(1, longest))) for _ in range(count)]


def task_and_model(tokenizer: Tokenizer, direction: Any = "both", **settings: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 32, "heads": 2, "context": 48, "vocab": tokenizer.vocab, "init_deviation": 0.2}
    model = transformer.build(transformer.Settings(**shape, direction=direction, segments=2))
    task = classify.build(classify.Settings(dropout=0.0, **settings), model, tokenizer, {"labels": ["a", "b"]})
    items = [LabelledText((text,), "ab"[len(text) % 2]) for text in texts(96)]
    return task, model, task.rows(Examples(items, "made", [f"made:{n}" for n in range(len(items))]))


@pytest.mark.parametrize("number", range(6))
def test_shapes_are_few_and_every_sequence_has_a_token(tokenizer: Tokenizer, number: int) -> None:
    task, _, rows = task_and_model(tokenizer)
    plain = task.batch([rows[16 * number + index] for index in range(16)], Chance(0, 0))
    padded = pad_batch(plain)
    assert len(padded.tokens) % grain_of(plain.size) == 0
    assert len(padded.tokens) - plain.size <= grain_of(plain.size) + padded.padding
    assert padded.layout.lengths.min() >= 1 and padded.layout.lengths.max() <= padded.layout.longest <= 48
    assert padded.size == plain.size and padded.lengths.tolist() == plain.lengths.tolist()
    assert padded.sequences == plain.sequences == 16
    assert torch.equal(padded.tokens[: plain.size], plain.tokens)
    assert torch.equal(padded.layout.bounds, torch.from_numpy(padded.layout.host))


@pytest.mark.parametrize(
    ("direction", "settings"),
    [
        ("both", {}),
        ("both", {"pooling": "mean"}),
        ("both", {"pooling": "ends"}),
        ("causal", {"language_model": 0.5}),
    ],
    ids=["start", "mean", "ends", "language model"],
)
def test_padding_changes_no_loss_and_no_gradient(tokenizer: Tokenizer, direction: str, settings: dict) -> None:
    task, model, rows = task_and_model(tokenizer, direction, **settings)
    check_padding(task, model, task.batch([rows[number] for number in range(16)], Chance(0, 0)))


def check_padding(task: Any, model: Any, plain: Any) -> None:
    """Assert that a batch has the same losses, counts, gradients and FLOPs with padding as without."""
    padded = pad_batch(plain)
    assert padded.padding and task.pads_batches
    results = []
    for batch in (plain, padded):
        terms = task.loss(model, batch)
        sum(term.sum for term in terms.values()).backward()
        grads = {n: p.grad for n, p in [*model.named_parameters(), *task.named_parameters()] if p.grad is not None}
        results.append(({n: t.sum.detach() for n, t in terms.items()}, {n: t.count for n, t in terms.items()}, grads))
        model.zero_grad()
        task.zero_grad()
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[0][2], results[1][2], rtol=1e-4, atol=1e-5)
    assert task.flops(model, padded) == task.flops(model, plain)


def test_tags_of_words_too(tokenizer: Tokenizer) -> None:
    _, model, _ = task_and_model(tokenizer)
    facts = {"labels": ["X", "Y"], "scheme": None, "encoding": None, "usual": "X", "characters": False}
    task: Any = tag.build(tag.Settings(dropout=0.0), model, tokenizer, facts)
    lines = [line.split() for line in texts(16, longest=80)]  # the longest are read in two windows
    items = [TaggedSentence(words, ["XY"[len(words) % 2]] * len(words), False) for words in lines]
    rows = task.rows(Examples(items, "made", [f"made:{n}" for n in range(len(items))]))
    plain = task.batch([rows[number] for number in range(16)], Chance(0, 0))
    assert plain.sequences > 16
    check_padding(task, model, plain)
    assert signature(pad_batch(plain)) == signature(pad_batch(task.batch([rows[n] for n in range(16)], Chance(1, 1))))
    crf: Any = tag.build(tag.Settings(head="crf"), model, tokenizer, facts)
    assert not crf.pads_batches, "it reads one word after the other"


@pytest.mark.parametrize("null", ["span", "head"])
def test_answers_in_texts_too(tokenizer: Tokenizer, null: Any) -> None:
    _, model, _ = task_and_model(tokenizer)
    task: Any = span.build(span.Settings(dropout=0.0, null=null), model, tokenizer, {"null": True, "threshold": 0.0})
    lines = texts(32, longest=20)
    items = [
        Question(f"q{n}", ask, text, ((text.split()[0], 0),) if n % 3 else ())
        for n, (ask, text) in enumerate(zip(lines[:16], lines[16:], strict=True))
    ]
    rows = task.rows(Examples(items, "made", [f"made:{n}" for n in range(len(items))]))
    check_padding(task, model, task.batch([rows[number] for number in range(16)], Chance(0, 0)))


def test_values_of_pairs_too(tokenizer: Tokenizer) -> None:
    _, model, _ = task_and_model(tokenizer)
    task = similarity.build(similarity.Settings(dropout=0.0), model, tokenizer, {"mean": 2.0, "deviation": 1.0})
    lines = texts(32)
    items = [RatedPair((a, b), float(len(a) % 5)) for a, b in zip(lines[:16], lines[16:], strict=True)]
    rows = task.rows(Examples(items, "made", [f"made:{n}" for n in range(len(items))]))
    plain = task.batch([rows[number] for number in range(16)], Chance(0, 0))
    own, padded = task.loss(model, plain), task.loss(model, pad_batch(plain))
    torch.testing.assert_close(own["loss"].sum, padded["loss"].sum)


class PaddingLoop(Loop):
    def _to_device(self, batch: Batch) -> Batch:
        return batch


def test_padded_steps_are_recorded_shape_by_shape(tmp_path: Path, tokenizer: Tokenizer) -> None:
    loops = []
    for name in ("ordinary", "recorded"):
        task, model, rows = task_and_model(tokenizer)
        settings = Settings(steps=30, batch_examples=8, lr=1e-3, precision="float32", workers=0, log_every=10)
        loop = PaddingLoop(tmp_path / name, model, task, rows, settings, total=30)
        loop.loader.pad = True
        if name == "recorded":
            assert loop.optimizer is not None
            loop.recorder = StepRecorder(loop._take_step, loop.optimizer, loop.device, Replay)
        loop.run()
        loops.append(loop)
    ordinary, recorded = loops
    assert recorded.recorder is not None
    shapes = {signature(recorded.loader.step(number).batches[0]) for number in range(30)}
    replays = [r.graph.replays for r in recorded.recorder.recordings.values() if isinstance(r.graph, Replay)]
    assert 2 <= len(shapes) <= 10 and len(replays) >= 2 and sum(replays) >= 10
    expected = weights(ordinary)
    for key, value in weights(recorded).items():
        assert torch.equal(value, expected[key]), key
    assert (
        ordinary.state.tokens
        == recorded.state.tokens
        == sum(batch.size for number in range(30) for batch in recorded.loader.step(number).batches)
    )
