"""Classification over every family of models: framing, pooling, over-fitting, and predictions that stand alone."""

from __future__ import annotations

import logging
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static, transformer
from etude.objectives.base import Stat
from etude.tasks import base, bootstrap, relation
from etude.tasks.bootstrap import bootstrap_counts
from etude.tasks.classify import Classify, LabelledText, Settings, build
from etude.tasks.data.examples import Examples
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

WORDS = ["이", "영화", "정말", "좋다", "나쁘다", "film", "good", "bad", "very", "not", "really", "plot", "actor", "end"]
LABELS = ["bad", "good"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:40", [" ".join(WORDS)] * 3)


def examples(count: int = 14, seed: int = 0) -> Examples[LabelledText]:
    """Texts of 1 to 6 words; the label has no rule but the text, so it can only be learnt by heart."""
    chance = np.random.default_rng(seed)
    texts = [" ".join(chance.choice(WORDS, chance.integers(1, 7))) for _ in range(count)]
    texts = list(dict.fromkeys(texts))
    labels = [LABELS[chance.integers(2)] for _ in texts]
    return made(texts, labels)


def made(texts: list[str], labels: list[str | None] | list[str], source: str = "made.jsonl") -> Examples[LabelledText]:
    items = [LabelledText((text,), label) for text, label in zip(texts, labels, strict=True)]
    return Examples(items, source, [f"{source}:{line}" for line in range(1, len(items) + 1)])


def classifier(settings: Settings, model: Any, tokenizer: Tokenizer) -> Classify:
    return build(settings, model, tokenizer, {"labels": LABELS})


def labels_of(answers: list[dict[str, Any]]) -> list[str]:
    return [answer["label"] for answer in answers]


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
    task = classifier(Settings(dropout=0.0), model, tokenizer)
    if kind == "static":  # word order and repetition are all that tells some texts apart: vectors cannot know
        data = made(["good film", "bad plot", "good end", "bad actor"], ["good", "bad"] * 2)
    losses = train(task, model, data)
    assert losses[0] > 0.5 and losses[-1] < 0.05
    labels, scores = labels_of(task.predict(model, data)), task.probabilities(model, data)
    assert labels == [item.label for item in data] and task.evaluate(model, data)["accuracy"].value == 1.0
    np.testing.assert_allclose(scores.sum(1), 1.0, atol=1e-6)
    assert model.training and task.training, "prediction must leave the mode as it was"

    order = np.random.default_rng(1).permutation(len(data))
    shuffled = data.part(order)
    turned, turned_scores = labels_of(task.predict(model, shuffled)), task.probabilities(model, shuffled)
    assert turned == [labels[number] for number in order]
    np.testing.assert_allclose(turned_scores, scores[order], atol=1e-5)
    monkeypatch.setattr(base, "TOKENS", 1)  # every text alone
    alone = task.probabilities(model, data)
    np.testing.assert_allclose(alone, scores, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_framing_follows_the_family(tokenizer: Tokenizer, kind: str) -> None:
    model = model_of(kind, tokenizer.vocab)
    task = classifier(Settings(), model, tokenizer)
    ((framed,),) = task.rows(made(["good film"], ["good"])).framed
    words = tokenizer.encode("good film").ids.tolist()
    special = tokenizer.special
    wanted = {
        "both": ([special.start, *words, special.separator], "start"),
        "pooled": ([special.start, *words, special.separator], "start"),
        "causal": ([special.start, *words, special.end], "last"),
        "recurrent": ([special.end, *words, special.end], "mean"),
        "static": (words, "mean"),
    }[kind]
    assert (framed.tokens.tolist(), task.pooled.pooling, framed.cut) == (*wanted, False)


def test_the_pooler_is_used_where_there_is_one(tokenizer: Tokenizer) -> None:
    model = model_of("pooled", tokenizer.vocab)
    task = classifier(Settings(dropout=0.0), model, tokenizer)
    rows = task.rows(made(["good film", "bad"], LABELS))
    packed = task.batch([rows[0], rows[1]], Chance(0, 0))
    states = model(packed).last
    wanted = torch.tanh(model.pooler(states[[0, 4]]))
    torch.testing.assert_close(task.pooled.vectors(model, states, packed), wanted)
    plain = classifier(Settings(pooling="max"), model, tokenizer)
    torch.testing.assert_close(plain.pooled.vectors(model, states, packed)[1], states[4:].amax(0))


def test_rows_are_examples_of_their_own_length_again_and_again(tokenizer: Tokenizer) -> None:
    data = examples()
    task = classifier(Settings(), model_of("both", tokenizer.vocab), tokenizer)
    rows = task.rows(data, seed=0)
    assert len(rows) == len(data) and rows.row_tokens is None and rows.shuffle
    again = rows[len(rows) + 2]
    assert again.index == len(rows) + 2 and again.tokens.tolist() == rows[2].tokens.tolist()
    assert [LABELS[rows[number].label] for number in range(len(rows))] == [item.label for item in data]
    batch = task.batch([replace(rows[number], slot=number) for number in (3, 1)], Chance(0, 0))
    assert batch.layout.lengths.tolist() == [len(rows[3].tokens), len(rows[1].tokens)], "no padding"
    assert batch.counts == {"loss": 2} and batch.labels.tolist() == [rows[3].label, rows[1].label]
    assert batch.layout.longest == 32 and batch.slots.tolist() == [3, 1]


def test_micro_batches_add_up(tokenizer: Tokenizer) -> None:
    data, model = examples(), model_of("both", tokenizer.vocab)
    task = classifier(Settings(dropout=0.0), model, tokenizer)
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
    task = classifier(Settings(), model, tokenizer)
    data = made(["good " * 30, "good " * 31, "bad"], ["good", "good", "bad"], "long.csv")
    with caplog.at_level(logging.WARNING, logger="etude"):
        rows = task.rows(data, seed=0)
    assert rows.cut == 1 and "long.csv: 1 of 3 texts are longer than 32 tokens" in caplog.text
    assert len(rows[0].tokens) == len(rows[1].tokens) == 32 and rows[1].tokens[-1] == tokenizer.special.separator
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="etude"):
        answers = task.predict(model, data)
    assert len(answers) == 3 and "1 of 3" in caplog.text
    shorter = classifier(Settings(length=5), model, tokenizer)
    assert [len(row.tokens) for row in map(shorter.rows(data).__getitem__, range(3))] == [5, 5, 3]


def test_flops_by_hand(tokenizer: Tokenizer) -> None:
    for kind, pooler in (("both", 0), ("pooled", 2 * 24 * 24)):
        model = model_of(kind, tokenizer.vocab)
        task = classifier(Settings(), model, tokenizer)
        rows = task.rows(examples(), seed=0)
        batch = task.batch([rows[0], rows[1]], Chance(0, 0))
        head = 2 * 24 * 2
        assert task.flops(model, batch) == 3 * (model.flops(batch.layout.lengths) + 2 * (head + pooler))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_does_the_same(tokenizer: Tokenizer, kind: str) -> None:
    model = model_of(kind, tokenizer.vocab)
    data = examples()
    for pooling in ("start", "mean", "last", "max"):
        task = build(Settings(pooling=pooling), model.cpu(), tokenizer, {"labels": LABELS})
        wanted = task.probabilities(model, data)
        found = task.cuda().probabilities(model.cuda(), data)
        np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_what_it_refuses(tokenizer: Tokenizer) -> None:
    model = model_of("both", tokenizer.vocab)
    task = classifier(Settings(), model, tokenizer)
    with pytest.raises(UserError, match="only"):
        build(Settings(), model, tokenizer, {"labels": ["one"]})
    with pytest.raises(UserError, match=r"made\.csv:2: the label 'fine'"):
        task.rows(made(["x", "x"], ["good", "fine"], "made.csv"))
    with pytest.raises(UserError, match=r"made\.csv:1: this example has no label"):
        task.evaluate(model, made(["x"], [None], "made.csv"))
    with pytest.raises(UserError, match=r"made\.csv:1: the tokenizer leaves nothing"):
        task.predict(model, made([" "], [None], "made.csv"))
    with pytest.raises(UserError, match="is no label"):
        classifier(Settings(positive="goood"), model, tokenizer)
    with pytest.raises(UserError, match=r"task\.nothing=goood is no label"):
        classifier(Settings(nothing="goood", score="micro_f1"), model, tokenizer)
    assert relation.scoring(relation.Settings(), {"labels": ["a", "b"]}).counted == [0, 1]  # its default need not occur
    with pytest.raises(UserError, match="sees both sides"):
        classifier(Settings(language_model=0.5), model, tokenizer)
    with pytest.raises(UserError, match="separator"):
        model.frame(Specials(end=0))
    with pytest.raises(UserError, match="end token"):
        model_of("causal", 10).frame(Specials(start=0))
    frame = model_of("causal", 10).frame(Specials(end=0))
    assert (frame.before, frame.between, frame.after, frame.pooling) == ([], [0], [0], "last")


def test_scores_have_intervals(tokenizer: Tokenizer) -> None:
    model = model_of("both", tokenizer.vocab)
    task = classifier(Settings(score="mcc"), model, tokenizer)
    scores = task.evaluate(model, examples())
    assert task.score == "mcc" and set(scores) == {"accuracy", "macro_f1", "mcc", "f1"}
    for score in scores.values():
        assert score.low <= score.value <= score.high and score.count == len(examples())
    assert scores["accuracy"].high > scores["accuracy"].low
    bare = task.evaluate(model, examples(), intervals=False)
    assert bare["mcc"].value == scores["mcc"].value == bare["mcc"].low == bare["mcc"].high


def test_intervals_of_many_labels_take_the_memory_of_one_table() -> None:
    counts = np.eye(100, dtype=np.int64) * 3 + 1
    tracemalloc.start()
    score = bootstrap_counts(counts, lambda table: float(np.trace(table) / table.sum()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6 and score.low < score.value < score.high
    cells, draw = counts[:3, :3], np.random.default_rng(0)
    tables = draw.multinomial(cells.sum(), cells.ravel() / cells.sum(), size=bootstrap.ROUNDS).reshape(-1, 3, 3)
    few = bootstrap_counts(cells, lambda table: float(np.trace(table)))
    assert (few.low, few.high) == tuple(np.percentile([np.trace(table) for table in tables], [2.5, 97.5]))


def test_the_auxiliary_loss_is_that_of_a_language_model(tokenizer: Tokenizer) -> None:
    """GPT-1: every next token of the framed sequence, none across a bound."""
    model = model_of("causal", tokenizer.vocab)
    task = classifier(Settings(language_model=0.5, dropout=0.0), model, tokenizer)
    rows = task.rows(made(["good film", "bad"], LABELS))
    batch = task.batch([rows[0], rows[1]], Chance(0, 0))
    terms = task.loss(model, batch)
    logits = model(batch).last @ model.embedding.tokens.weight.t()
    wanted = sum(
        torch.nn.functional.cross_entropy(logits[i], batch.tokens[i + 1]) for i in (0, 1, 2, 4, 5)
    )  # sequences of 4 and 3 tokens
    assert batch.counts == {"loss": 2, "language_model": 5} and terms["language_model"].weight == 0.5
    torch.testing.assert_close(terms["language_model"].sum, wanted)
    with_it = 2 * tokenizer.vocab * 24 * 5
    plain = classifier(Settings(), model, tokenizer)
    assert task.flops(model, batch) == plain.flops(model, batch) + 3 * with_it
