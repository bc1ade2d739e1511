"""Classification over every family of models: framing, pooling, over-fitting, and predictions that stand alone."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static, transformer
from etude.nn.packed import pack
from etude.objectives.base import Stat
from etude.tasks import classify
from etude.tasks.classify import Classify, Settings, build, pool
from etude.tasks.reading import Examples
from etude.text.tokenizer import Specials, Tokenizer

WORDS = ["이", "영화", "정말", "좋다", "나쁘다", "film", "good", "bad", "very", "not", "really", "plot", "actor", "end"]
LABELS = ["bad", "good"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:40", [" ".join(WORDS)] * 3)


def examples(count: int = 14, seed: int = 0) -> Examples:
    """Texts of 1 to 6 words; the label has no rule but the text, so it can only be learnt by heart."""
    chance = np.random.default_rng(seed)
    texts = [" ".join(chance.choice(WORDS, chance.integers(1, 7))) for _ in range(count)]
    texts = list(dict.fromkeys(texts))
    labels = [LABELS[chance.integers(2)] for _ in texts]
    return Examples(texts, labels, "made.jsonl", list(range(1, len(texts) + 1)))


def model_of(kind: str, vocab: int) -> Any:
    torch.manual_seed(0)
    if kind == "static":
        return static.build(static.Settings(width=24, vocab=vocab))
    if kind == "recurrent":
        return recurrent.build(recurrent.Settings(layers=2, width=12, cells=24, vocab=vocab, dropout=0.0))
    return transformer.build(
        transformer.Settings(
            layers=2, width=24, heads=2, context=32, vocab=vocab, pooler=kind == "pooled", init_deviation=0.15,
            direction="causal" if kind == "causal" else "both",
        )
    )  # fmt: skip


KINDS = ["both", "pooled", "causal", "recurrent", "static"]


def train(task: Classify, model: Any, data: Examples, steps: int = 100) -> list[float]:
    rows = task.rows(data, seed=0)
    optimizer = torch.optim.Adam([*model.parameters(), *task.parameters()], lr=0.01)
    losses = []
    for step in range(steps):
        batch = task.batch([rows[number] for number in range(len(rows))], Chance(0, step))
        term = task.loss(model, batch)["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
        losses.append(float(term.sum.detach()) / term.count)
        if losses[-1] < 0.02:
            break
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_a_small_set_by_heart_and_predicts_alone(tokenizer: Tokenizer, kind: str, monkeypatch: Any) -> None:
    data = examples()
    model = model_of(kind, tokenizer.vocab)
    task = build(Settings(dropout=0.0), model, tokenizer, LABELS)
    if kind == "static":  # word order and repetition are all that tells some texts apart: vectors cannot know
        data = Examples(["good film", "bad plot", "good end", "bad actor"], ["good", "bad"] * 2, "made", [1, 2, 3, 4])
    losses = train(task, model, data)
    assert losses[0] > 0.5 and losses[-1] < 0.05
    labels, scores = task.predict(model, data.texts)
    assert labels == data.labels and task.evaluate(model, data)["accuracy"] == 1.0
    np.testing.assert_allclose(scores.sum(1), 1.0, atol=1e-6)
    assert model.training and task.training, "prediction must leave the mode as it was"

    order = np.random.default_rng(1).permutation(len(data))
    turned, turned_scores = task.predict(model, [data.texts[number] for number in order])
    assert turned == [labels[number] for number in order]
    np.testing.assert_allclose(turned_scores, scores[order], atol=1e-5)
    monkeypatch.setattr(classify, "TOKENS", 1)  # every text alone
    _, alone = task.predict(model, data.texts)
    np.testing.assert_allclose(alone, scores, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_framing_follows_the_family(tokenizer: Tokenizer, kind: str) -> None:
    model = model_of(kind, tokenizer.vocab)
    task = build(Settings(), model, tokenizer, LABELS)
    (ids,), cut = task.sequences(["good film"])
    words = tokenizer.encode("good film").ids.tolist()
    special = tokenizer.special
    wanted = {
        "both": ([special.start, *words, special.separator], "start"),
        "pooled": ([special.start, *words, special.separator], "start"),
        "causal": ([special.start, *words, special.end], "last"),
        "recurrent": ([special.end, *words, special.end], "mean"),
        "static": (words, "mean"),
    }[kind]
    assert (ids.tolist(), task.pooling, cut) == (*wanted, 0)


@pytest.mark.parametrize("how", ["start", "mean", "last", "max"])
def test_pooling_by_hand(how: Any) -> None:
    sequences = [[1], [2, 3, 4], [5, 6]]
    layout = pack(sequences).layout
    last = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    found = pool(last, layout, how)
    parts = [last[0:1], last[1:4], last[4:6]]
    reduce = {"start": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0), "max": lambda x: x.amax(0)}
    wanted = torch.stack([reduce[how](part) for part in parts])
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(wanted)
    one, other = (torch.autograd.grad((x * weight).sum(), last, retain_graph=True)[0] for x in (found, wanted))
    torch.testing.assert_close(one, other)


def test_the_pooler_is_used_where_there_is_one(tokenizer: Tokenizer) -> None:
    model = model_of("pooled", tokenizer.vocab)
    task = build(Settings(dropout=0.0), model, tokenizer, LABELS)
    packed = pack(task.sequences(["good film", "bad"])[0])
    states = model(packed).last
    wanted = torch.tanh(model.pooler(states[[0, 4]]))
    torch.testing.assert_close(task.vectors(model, packed), wanted)
    plain = build(Settings(pooling="max"), model, tokenizer, LABELS)
    torch.testing.assert_close(plain.vectors(model, packed)[1], states[4:].amax(0))


def test_rows_are_examples_of_their_own_length_again_and_again(tokenizer: Tokenizer) -> None:
    data = examples()
    task = build(Settings(), model_of("both", tokenizer.vocab), tokenizer, LABELS)
    rows = task.rows(data, seed=0)
    assert len(rows) == len(data) and rows.row_tokens is None and rows.shuffle
    again = rows[len(rows) + 2]
    assert again.index == len(rows) + 2 and again.tokens.tolist() == rows[2].tokens.tolist()
    assert [LABELS[rows[number].label] for number in range(len(rows))] == data.labels
    batch = task.batch([replace(rows[number], slot=number) for number in (3, 1)], Chance(0, 0))
    assert batch.layout.lengths.tolist() == [len(rows[3].tokens), len(rows[1].tokens)], "no padding"
    assert batch.counts == {"loss": 2} and batch.labels.tolist() == [rows[3].label, rows[1].label]
    assert batch.layout.longest == 32 and batch.slots.tolist() == [3, 1]


def test_micro_batches_add_up(tokenizer: Tokenizer) -> None:
    data, model = examples(), model_of("both", tokenizer.vocab)
    task = build(Settings(dropout=0.0), model, tokenizer, LABELS)
    rows = task.rows(data, seed=0)
    everything = [rows[number] for number in range(12)]
    whole = task.metrics(model, task.batch(everything, Chance(0, 0)))
    parts: dict[str, Stat] = {}
    for start in range(0, 12, 5):
        for name, stat in task.metrics(model, task.batch(everything[start : start + 5], Chance(0, 0))).items():
            parts[name] = parts[name] + stat if name in parts else stat
    assert set(whole) == {"loss", "accuracy"} and whole["loss"].weight == 1.0 and whole["accuracy"].weight is None
    for name, stat in whole.items():
        assert stat.count == parts[name].count == 12
        assert stat.mean == pytest.approx(parts[name].mean, rel=1e-6)
    term = task.loss(model, task.batch(everything, Chance(0, 0)))["loss"]
    assert float(term.sum.detach()) / term.count == pytest.approx(whole["loss"].mean, rel=1e-6)


def test_long_texts_are_cut_counted_and_told(tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("both", tokenizer.vocab)
    task = build(Settings(), model, tokenizer, LABELS)
    data = Examples(["good " * 30, "good " * 31, "bad"], ["good", "good", "bad"], "long.csv", [2, 3, 4])
    with caplog.at_level(logging.WARNING, logger="etude"):
        rows = task.rows(data, seed=0)
    assert rows.cut == 1 and "long.csv: 1 of 3 texts are longer than 32 tokens" in caplog.text
    assert len(rows[0].tokens) == len(rows[1].tokens) == 32 and rows[1].tokens[-1] == tokenizer.special.separator
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="etude"):
        labels, _ = task.predict(model, data.texts)
    assert len(labels) == 3 and "1 of 3" in caplog.text
    shorter = build(Settings(length=5), model, tokenizer, LABELS)
    assert [len(ids) for ids in shorter.sequences(data.texts)[0]] == [5, 5, 3]


def test_flops_by_hand(tokenizer: Tokenizer) -> None:
    for kind, pooler in (("both", 0), ("pooled", 2 * 24 * 24)):
        model = model_of(kind, tokenizer.vocab)
        task = build(Settings(), model, tokenizer, LABELS)
        rows = task.rows(examples(), seed=0)
        batch = task.batch([rows[0], rows[1]], Chance(0, 0))
        head = 2 * 24 * 2
        assert task.flops(model, batch) == 3 * (model.flops(batch.layout.lengths) + 2 * (head + pooler))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_does_the_same(tokenizer: Tokenizer, kind: str) -> None:
    model = model_of(kind, tokenizer.vocab)
    texts = examples().texts
    for pooling in ("start", "mean", "last", "max"):
        task = build(Settings(pooling=pooling), model.cpu(), tokenizer, LABELS)
        _, wanted = task.predict(model, texts)
        _, found = task.cuda().predict(model.cuda(), texts)
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_what_it_refuses(tokenizer: Tokenizer) -> None:
    model = model_of("both", tokenizer.vocab)
    task = build(Settings(), model, tokenizer, LABELS)
    with pytest.raises(UserError, match="only"):
        build(Settings(), model, tokenizer, ["one"])
    with pytest.raises(UserError, match=r"made\.csv:7: the label 'fine'"):
        task.rows(Examples(["x"], ["fine"], "made.csv", [7]), seed=0)
    with pytest.raises(UserError, match="without labels"):
        task.rows(Examples(["x"], None, "made.csv", [7]), seed=0)
    with pytest.raises(UserError, match="Text 2 of 2 is empty"):
        task.predict(model, ["good", "  "])
    with pytest.raises(UserError, match="separator"):
        classify.framing(model, Specials(end=0))
    with pytest.raises(UserError, match="end token"):
        classify.framing(model_of("causal", 10), Specials(start=0))
    assert classify.framing(model_of("causal", 10), Specials(end=0)) == ([], [0], "last")
    labels, scores = task.predict(model, [])
    assert labels == [] and scores.shape == (0, 2)
