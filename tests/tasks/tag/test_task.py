"""Taggers over every family of models: learning by heart, predictions that stand alone, long sentences."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static, transformer
from etude.models.layer_features import LayerFeatures
from etude.nn.packed import Layout
from etude.tasks import base, bootstrap
from etude.tasks.data.examples import Examples
from etude.tasks.tag import task as tag
from etude.tasks.tag.encodings import convert, first_breach
from etude.tasks.tag.entities import EntityScore
from etude.tasks.tag.scores import TagScoring
from etude.tasks.tag.task import Settings, TaggedSentence, Tagger, build, learn, parse, read
from etude.text.tokenizer.tokenizer import Tokenizer

NAMES = {"PER": ["Kim", "Lee", "Ada"], "LOC": ["Seoul", "서울"], "ORG": ["bank", "학교"]}
OTHERS = ["the", "went", "to", "of", "saw", "갔다", "and", "unhappily"]


@pytest.fixture(scope="module", autouse=True)
def _short_bootstraps() -> Iterator[None]:
    """Intervals of 100 rounds, which differ little from those of a thousand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "ROUNDS", 100)
        patch.setattr(bootstrap.bootstrap, "__defaults__", (True, 0, 100))  # `rounds` is ROUNDS as it was at import
        yield


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = [*OTHERS, *(name for names in NAMES.values() for name in names)]
    return Tokenizer.train("wordpiece:110", [" ".join(words)] * 4)


def examples(count: int = 12, seed: int = 0) -> Examples[TaggedSentence]:
    """Sentences of names and other words; some names have two words."""
    chance = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(chance.integers(1, 5)):
            words.append(str(chance.choice(OTHERS)))
            tags.append("O")
            if chance.random() < 0.6:
                kind = str(chance.choice(list(NAMES)))
                for place in range(chance.integers(1, 3)):
                    words.append(str(chance.choice(NAMES[kind])))
                    tags.append(f"{'I' if place else 'B'}-{kind}")
        items.append(TaggedSentence(words, tags, False))
    return Examples(items, "made.conll", [f"made.conll:{number + 1}" for number in range(count)])


def model_of(kind: str, vocab: int, context: int = 64) -> Any:
    torch.manual_seed(0)
    if kind == "static":
        return static.build(static.Settings(width=24, vocab=vocab))
    if kind == "recurrent":
        return recurrent.build(recurrent.Settings(layers=2, width=12, cells=24, vocab=vocab, dropout=0.0))
    return transformer.build(
        transformer.Settings(
            layers=2, width=24, heads=2, context=context, vocab=vocab, init_deviation=0.15,
            direction="causal" if kind == "causal" else "both", segments=2 if kind == "both" else 0,
        )
    )  # fmt: skip


def made(tokenizer: Tokenizer, model: Any, data: Examples[TaggedSentence], **changes: Any) -> Tagger:
    settings = Settings(**{"dropout": 0.0, "cells": 12, "projection": 10, **changes})
    return build(settings, model, tokenizer, json.loads(json.dumps(learn(data, settings))))


def train(task: Tagger, model: Any, data: Examples[TaggedSentence], steps: int = 80, lr: float = 0.02) -> list[float]:
    rows = task.rows(data, seed=0)
    wanted = [p for p in [*model.parameters(), *task.parameters()] if p.requires_grad]
    optimizer = torch.optim.Adam(wanted, lr=lr)
    losses = []
    for step in range(steps):
        batch = task.batch([rows[number] for number in range(len(rows))], Chance(0, step))
        term = task.loss(model, batch)["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
        losses.append(float(term.sum.detach()) / term.count)
        if losses[-1] < 0.03 * losses[0]:
            break
    return losses


CASES = [
    ("both", "linear"), ("both", "crf"), ("both", "projection_bilstm_crf"),
    ("causal", "bilstm"), ("recurrent", "linear"), ("static", "bilstm_crf"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "head"), CASES)
def test_it_learns_by_heart_and_predicts_alone(tokenizer: Tokenizer, kind: str, head: str, monkeypatch: Any) -> None:
    data = examples(8)
    model = model_of(kind, tokenizer.vocab)
    task = made(tokenizer, model, data, head=head, deviation=0.1, piece="last" if kind == "causal" else "first")
    losses = train(task, model, data, lr=0.03)
    assert losses[-1] < 0.1 * losses[0], (losses[0], losses[-1])
    answers = task.predict(model, data)
    assert [answer["tags"] for answer in answers] == [item.tags for item in data]
    assert [answer["tokens"] for answer in answers] == [item.words for item in data]
    scores = task.evaluate(model, data, intervals=False)
    assert task.score == "entity_f1" and scores["entity_f1"].value == scores["accuracy"].value == 1.0
    assert model.training and task.training, "prediction must leave the mode as it was"

    order = np.random.default_rng(1).permutation(len(data)).tolist()
    for tokens, chosen in ((16_384, order), (1, order[:5])):  # in another order; and every sentence alone
        monkeypatch.setattr(base, "TOKENS", tokens)
        for number, answer in zip(chosen, task.predict(model, data.part(chosen)), strict=True):
            assert answer["tags"] == answers[number]["tags"]
            np.testing.assert_allclose(answer["scores"], answers[number]["scores"], atol=1e-5)


def test_an_untrained_tagger_does_not_know(tokenizer: Tokenizer) -> None:
    """So that learning by heart above is no accident."""
    model = model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, examples())
    assert task.evaluate(model, examples(), intervals=False)["entity_f1"].value < 0.5


@pytest.mark.parametrize(
    ("layers", "combine", "width"), [("last4", "concat", 72), ("all", "mix", 24), ([0, -1], "concat", 48)]
)
@pytest.mark.parametrize("frozen", [True, False])
def test_it_reads_chosen_layers_frozen_or_tuned(
    tokenizer: Tokenizer, layers: Any, combine: Any, width: int, frozen: bool
) -> None:
    data = examples()
    wrapped = model_of("both", tokenizer.vocab)
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    model = LayerFeatures(wrapped, layers, combine, frozen)
    task = made(tokenizer, model, data, head="crf", deviation=0.1)
    assert task.head.output.in_features == model.width == width
    losses = train(task, model, data, steps=12)
    assert losses[-1] < losses[0] * 0.8
    same = all(torch.equal(tensor, before[name]) for name, tensor in wrapped.state_dict().items())
    assert same == frozen


# --- schemes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "iobes"])
@pytest.mark.parametrize("encoding", ["iob1", "iob2", "iobes", None])
def test_chunks_are_learnt_in_one_scheme_and_written_in_that_of_the_files(
    tokenizer: Tokenizer, scheme: Any, encoding: Any
) -> None:
    data = examples()
    for item in data:
        item.tags[:] = convert(item.tags, scheme)
    model = model_of("static", tokenizer.vocab)
    task = made(tokenizer, model, data, encoding=encoding, head="crf")
    assert (task.scheme, task.encoding) == (scheme, encoding or scheme)
    assert len(task.labels) == (13 if task.encoding == "iobes" else 7)
    rows = task.rows(data)
    for number, item in enumerate(data):
        learnt = [task.labels[tag] for tag in rows[number].tags]
        assert learnt == convert(item.tags, task.encoding)
    for answer in task.predict(model, data):
        assert first_breach(answer["tags"], scheme) is None, "constraints hold even before training"


def test_constraints(tokenizer: Tokenizer) -> None:
    data = examples()
    model = model_of("both", tokenizer.vocab)

    def illegal(**changes: Any) -> int:
        torch.manual_seed(1)
        task = made(tokenizer, model, data, deviation=3.0, **changes)
        return sum(first_breach(answer["tags"], "iob2") is not None for answer in task.predict(model, data))

    assert illegal(head="linear") > 0 and illegal(head="linear", constraints="decoding") == 0
    assert illegal(head="crf", constraints="none") > 0 and illegal(head="crf") == 0
    assert made(tokenizer, model, data, head="crf", constraints="training").head.crf.constrain_training
    with pytest.raises(UserError, match="needs a CRF"):
        made(tokenizer, model, data, constraints="training")
    frozen_rules = made(tokenizer, model, data, constraints="decoding")
    assert not any(p.requires_grad for p in frozen_rules.head.crf.parameters())


def parts_of_speech() -> Examples[TaggedSentence]:
    items = [TaggedSentence(["the", "bank", "saw"], ["DET", "NOUN", "VERB"], False),
             TaggedSentence(["Kim"], ["PROPN"], False),
             TaggedSentence(["the", "Seoul", "bank"], ["DET", "NOUN", "NOUN"], False)]  # fmt: skip
    return Examples(items, "pos.conllu", ["pos.conllu:1", "pos.conllu:5", "pos.conllu:7"])


def test_parts_of_speech_have_no_encoding_of_chunks() -> None:
    with pytest.raises(UserError, match=r"task\.encoding=iobes writes chunks"):
        learn(parts_of_speech(), Settings(encoding="iobes"))


def test_numbers_in_the_place_of_tags_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """Files of Hugging Face number the classes of ner_tags: their entities were scored as plain tags, unsaid."""
    item = parse({"tokens": ["Anna", "runs"], "ner_tags": [1, 0]}, {}, "x:1")
    numbers = Examples([item], "x.jsonl", ["x:1"])
    with caplog.at_level(logging.WARNING, "etude"):
        assert tag.learn(numbers, Settings())["scheme"] is None
    assert "x.jsonl: the tags are numbers" in caplog.text and "B-PER" in caplog.text
    caplog.clear()
    tag.learn(numbers, Settings(scheme="none"))
    assert not caplog.text


def test_parts_of_speech_are_scored_by_accuracy(tokenizer: Tokenizer, caplog: Any) -> None:
    data = parts_of_speech()
    model = model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, data, head="crf", deviation=0.1)
    assert (task.scheme, task.score, task.usual) == (None, "accuracy", "NOUN")
    train(task, model, data)
    assert task.evaluate(model, data)["accuracy"].value == 1.0
    assert set(task.evaluate(model, data)) == {"accuracy", "tag_macro_f1"}
    assert "entities" not in task.predict(model, data)[0]
    strange = Examples([TaggedSentence(["the", "saw"], ["DET", "ODD"], False)], "b", ["b:1"])
    with caplog.at_level(logging.WARNING, "etude"):
        assert task.evaluate(model, strange)["accuracy"].value == 0.5
    assert "1 words have tags the model has never seen (ODD)" in caplog.text
    with pytest.raises(UserError, match=r"b:1, word 2: the tag 'ODD' is not one the model knows"):
        task.rows(strange)
    for wrong, message in (({"constraints": "decoding"}, "rules of chunks"), ({"score": "entity_f1"}, "no chunks")):
        with pytest.raises(UserError, match=message):
            made(tokenizer, model, data, **wrong)


# --- long sentences ---------------------------------------------------------------------------------


def test_long_sentences_are_read_in_windows_or_cut_and_told(tokenizer: Tokenizer, caplog: Any) -> None:
    data = examples(6)
    words, tags = ([one for item in data for one in getattr(item, name)] for name in ("words", "tags"))
    data.items.append(TaggedSentence(words, tags, False))
    data.places.append("made.conll:99")
    model = model_of("both", tokenizer.vocab, context=24)
    with caplog.at_level(logging.WARNING, "etude"):
        task = made(tokenizer, model, data, deviation=0.1)
        train(task, model, data, lr=0.03)
    assert "1 of 7 sentences are longer than 24 tokens and are read in windows" in caplog.text
    assert task.predict(model, data)[6]["tags"] == tags

    caplog.clear()
    cut = made(tokenizer, model, data, long="cut")
    cut.load_state_dict(task.state_dict())
    with caplog.at_level(logging.WARNING, "etude"):
        answers = cut.predict(model, data)
    assert "1 of 7 sentences are longer than 24 tokens and were cut" in caplog.text
    kept = len(cut.rows(data)[6].units)
    assert 0 < kept < len(words) == len(answers[6]["tags"])
    assert answers[6]["tags"][kept:] == ["O"] * (len(words) - kept)
    assert answers[6]["scores"][kept:] == [0.0] * (len(words) - kept) and min(answers[6]["scores"][:kept]) > 0
    score = EntityScore()
    for item, answer in zip(data, answers, strict=True):
        score.add(item.tags, answer["tags"])
    assert cut.evaluate(model, data)["entity_recall"].value == score.micro.recall < 1, "what was cut off is missed"


@pytest.mark.parametrize("kind", ["both", "recurrent", "static"])
def test_a_sentence_in_windows_is_one_sentence_to_the_head(tokenizer: Tokenizer, kind: str) -> None:
    """The biLSTM and the CRF run over all its words, whatever the windows below."""
    data = examples(6)
    model = model_of(kind, tokenizer.vocab)
    task = made(tokenizer, model, data, head="bilstm_crf", length=5)
    rows = task.rows(data)
    batch = task.batch([rows[n] for n in range(6)], Chance(0, 0))
    assert len(batch.layout.lengths) > 6 and batch.layout.lengths.max() <= 5
    assert batch.words.lengths.tolist() == [len(item.words) for item in data] and batch.counts["loss"] == 6
    assert batch.layout.lengths[: len(rows[0].bounds) - 1].sum() == len(rows[0].tokens)
    whole = made(tokenizer, model, data, head="bilstm_crf")
    whole.load_state_dict(task.state_dict())
    same = whole.predict(model, data) == task.predict(model, data)
    assert same == (kind == "static"), "word vectors see no context, so windows change nothing"


# --- characters -------------------------------------------------------------------------------------


def klue() -> Examples[TaggedSentence]:
    texts = [("이순신 장군은 서울에 갔다", [("PS", 0, 6), ("LC", 8, 10)]), ("서울 학교", [("LC", 0, 2)]), ("갔다", [])]
    items = []
    for text, chunks in texts:
        tags = ["O"] * len(text)
        for kind, start, stop in chunks:
            tags[start:stop] = [f"B-{kind}", *[f"I-{kind}"] * (stop - start - 1)]
        items.append(TaggedSentence(list(text), tags, True))
    return Examples(items, "klue.jsonl", [f"klue.jsonl:{n}" for n in (1, 2, 3)])


@pytest.mark.parametrize("encoding", [None, "iobes"])
def test_text_tagged_by_character(encoding: Any) -> None:
    data = klue()
    tokenizer = Tokenizer.train("wordpiece:45", ["이순신 장군 서울 갔다 학교"] * 4 + ["은 에"])
    model = model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, data, encoding=encoding, deviation=0.1)
    assert task.characters and task.score == "entity_macro_f1"
    train(task, model, data)
    answers = task.predict(model, data)
    assert [answer["tags"] for answer in answers] == [item.tags for item in data], "spaces within an entity too"
    assert answers[0]["entities"][0] == {"type": "PS", "start": 0, "end": 6, "text": "이순신 장군"}
    assert answers[0]["scores"][3] == 0.0, "nobody looks at a space"
    assert task.evaluate(model, data)["entity_macro_f1"].value == 1.0
    plain = Examples([parse({"tokens": "서울 학교"}, {}, "line 1", labelled=False)], "pipe", ["line 1"])
    assert task.predict(model, plain)[0]["tokens"] == list("서울 학교"), "a plain line is cut into characters"
    with pytest.raises(UserError, match="has learnt tags of characters, and here are tags of words"):
        task.evaluate(model, examples(2))


def test_spaces_are_not_scored() -> None:
    """KLUE's code leaves them out of gold and prediction; here the tagger finds all but tags no space."""
    data = klue()
    gold = [[t for c, t in zip(item.words, item.tags, strict=True) if c != " "] for item in data]
    from etude.tasks.tag.scores import scores

    found = scores(gold, gold, "iob2")
    assert found["entity_macro_f1"].value == 1.0 and found["accuracy"].count == 3
    assert found["entity_f1"].low <= found["entity_f1"].value <= found["entity_f1"].high


# --- scores -----------------------------------------------------------------------------------------


def test_scores_are_those_of_the_counts_and_intervals_hold_them() -> None:
    from etude.tasks.tag.scores import scores

    chance = np.random.default_rng(0)
    gold = [item.tags for item in examples(60)]
    predicted = [[tag if chance.random() < 0.8 else "O" for tag in tags] for tags in gold]
    found = scores(gold, predicted, "iob2")
    lenient, strict = EntityScore(), EntityScore("iob2")
    for one, other in zip(gold, predicted, strict=True):
        lenient.add(one, other)
        strict.add(one, other)
    assert found["entity_f1"].value == lenient.micro.f1 and found["entity_precision"].value == lenient.micro.precision
    assert found["entity_macro_f1"].value == pytest.approx(strict.macro.f1, abs=1e-15)
    assert {k.partition(".")[2] for k in found if "." in k} == {"LOC", "ORG", "PER"}
    assert found["entity_f1.PER"].value == lenient.by_type["PER"].f1
    for score in found.values():
        assert score.low < score.value < score.high and score.count == 60
    again = scores(gold, predicted, "iob2", intervals=False)
    assert all(again[name].low == again[name].high == found[name].value for name in found)


# --- rows, cost, files ------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["linear", "bilstm_crf"])
def test_the_loss_of_parts_adds_up(tokenizer: Tokenizer, head: str) -> None:
    data = examples()
    model = model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, data, head=head)
    rows = task.rows(data)
    assert len(rows) == len(data) and rows[len(rows) + 2].tokens.tolist() == rows[2].tokens.tolist()
    assert rows[len(rows) + 2].index == len(rows) + 2 and rows[0].segments is not None
    whole = task.batch([rows[n] for n in range(12)], Chance(0, 0))
    parts = [task.batch([rows[n] for n in range(start, start + 4)], Chance(0, 0)) for start in (0, 4, 8)]
    sums = [task.loss(model, batch)["loss"].sum.detach() for batch in (whole, *parts)]
    torch.testing.assert_close(sums[0], torch.stack(sums[1:]).sum(), rtol=1e-5, atol=1e-5)
    assert whole.counts["loss"] == sum(part.counts["loss"] for part in parts)
    assert whole.counts["loss"] == (12 if head == "bilstm_crf" else sum(len(item.words) for item in data))
    metrics = task.metrics(model, whole)
    assert metrics["loss"].weight == 1.0 and metrics["accuracy"].count == sum(len(item.words) for item in data)
    forward = model.flops(whole.layout.lengths) + task.head.flops(whole.words.total)
    assert task.flops(model, whole) == 3 * forward > 3 * model.flops(whole.layout.lengths)
    moved = whole.to("cpu")
    assert moved.words is not whole.words and moved.words.host is whole.words.host


@pytest.mark.parametrize("constraints", [None, "decoding"])
def test_padding_is_in_no_metric(tokenizer: Tokenizer, constraints: Any) -> None:
    model, data = model_of("both", tokenizer.vocab), examples()
    task = made(tokenizer, model, data, constraints=constraints)
    rows = task.rows(data)
    batch = task.batch([rows[number] for number in range(len(rows))], Chance(0, 0))
    plain, padded = (task.metrics(model.eval(), each) for each in (batch, batch.pad([30, 31], 64)))
    for name, stat in plain.items():
        assert float(padded[name].mean) == pytest.approx(float(stat.mean), rel=1e-4), name


def test_answers_of_a_probe_are_decoded_where_the_head_is(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of a GPU read the bounds of sentences there."""
    data, model = examples(3), model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, data, constraints="decoding")
    logits = [np.zeros((len(item.words), len(task.labels)), np.float32) for item in data]
    devices: list[tuple[str, str]] = []

    def decode(scores: Tensor, words: Layout) -> tuple[Tensor, Tensor]:
        devices.append((scores.device.type, words.bounds.device.type))
        return torch.zeros(len(scores), dtype=torch.int64), torch.zeros(len(scores))

    monkeypatch.setattr(task.head, "decode", decode)
    task.head.to("meta")
    assert len(task.answers(data, task.unlabelled_rows(data), logits)) == 3
    assert devices == 3 * [("meta", "meta")]


def test_every_parameter_of_the_head_learns(tokenizer: Tokenizer) -> None:
    """Two rates need two groups: all of the head is under the task, and nothing of it idle."""
    model = model_of("both", tokenizer.vocab)
    data = examples()
    task = made(tokenizer, model, data, head="projection_bilstm_crf", lstm_layers=2)
    rows = task.rows(data)
    task.loss(model, task.batch([rows[n] for n in range(12)], Chance(0, 0)))["loss"].sum.backward()
    idle = [name for name, p in task.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert idle == [] and len(list(task.parameters())) > 10
    again = build(task.settings, model, tokenizer, task.facts())
    again.load_state_dict(task.state_dict())
    assert [a["tags"] for a in again.predict(model, data)] == [a["tags"] for a in task.predict(model, data)]


def test_labels_beyond_those_of_training_are_refused(tokenizer: Tokenizer) -> None:
    data = examples()
    model = model_of("static", tokenizer.vocab)
    task = made(tokenizer, model, data)
    strange = Examples([TaggedSentence(["the", "Kim"], ["O", "B-PRE"], False, [7, 8])], "d.conll", ["d.conll:7"])
    with pytest.raises(
        UserError, match=r"d\.conll:8: the tag 'B-PRE' is not one the model knows. Did you mean 'B-PER'"
    ):
        task.rows(strange)
    other = Examples([TaggedSentence(["the", "Kim"], ["O", "S-PER"], False, [7, 8])], "d.conll", ["d.conll:7"])
    with pytest.raises(UserError, match=r"d\.conll:8: the tag 'S-PER' has no place in iob2"):
        task.evaluate(model, other)
    only = Examples([TaggedSentence(["a"], ["X"], False)], "d", ["d:1"])
    with pytest.raises(UserError, match="only \\['X'\\]"):
        made(tokenizer, model, only)


def test_the_module_is_a_task() -> None:
    assert set(tag.COLUMNS) == {"tokens", "tags"} and next(iter(tag.COLUMNS)) == "tokens"
    assert all(hasattr(tag, name) for name in ("SUMMARY", "Settings", "parse", "read", "learn", "build"))


# --- the built-in world -----------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "score"), [("ner", "entity_f1"), ("upos", "accuracy")])
def test_the_world_is_learnt_and_told_on_sentences_not_seen(tmp_path: Path, column: str, score: str) -> None:
    from etude.world import World

    for split, count in (("train", 200), ("valid", 80)):
        told = World(seed=0, language="en").task("tags", split, count)
        (tmp_path / f"{split}.jsonl").write_text("\n".join(json.dumps(one) for one in told), encoding="utf-8")
    data, unseen = (read(tmp_path / f"{split}.jsonl", {"tags": column}) for split in ("train", "valid"))
    tokenizer = Tokenizer.train("wordpiece:800", [" ".join(item.words) for item in data])
    model = model_of("both", tokenizer.vocab)
    task = made(tokenizer, model, data, deviation=0.1)
    before = task.evaluate(model, unseen)
    rows = task.rows(data)
    optimizer = torch.optim.Adam([*model.parameters(), *task.parameters()], lr=0.01)
    for step in range(60):
        batch = task.batch([rows[step * 15 + number] for number in range(15)], Chance(0, step))
        term = task.loss(model, batch)["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
    after = task.evaluate(model, unseen)
    assert task.score == score and after[score].low > before[score].high + 0.2


def test_entities_of_types_that_were_never_learnt_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    scoring = TagScoring(None, ["O", "B-PER", "I-PER"], "iob2", False)
    items = [TaggedSentence(["Kim", "sang"], ["B-NAME", "O"], False), TaggedSentence(["Lee"], ["B-PER"], False)]
    answers: list[dict[str, Any]] = [{"tags": ["O", "O"]}, {"tags": ["B-PER"]}]
    examples = Examples(items[:1], "test.conll", ["test.conll:1"])
    scoring.scores(examples, answers[:1], intervals=False)
    assert "1 of 1 entities have types the model has never seen (NAME; it knows PER)" in caplog.text
    assert "None of its types were learnt" in caplog.text
    caplog.clear()
    scoring.scores(Examples(items, "test.conll", ["a", "b"]), answers, intervals=False)
    assert "1 of 2 entities" in caplog.text and "count as missed" in caplog.text


def test_answers_to_plain_text_say_where_words_stand_in_it() -> None:
    from etude.tasks.tag.text_words import add_offsets, split_text

    text = "She left Harbour Road, Conrad's mill."
    words = [word.word for word in split_text(text)]
    answer: dict[str, Any] = {"tokens": words, "entities": [{"type": "LOC", "start": 2, "end": 4, "text": "x"}]}
    add_offsets(answer, text)
    assert [text[start:stop] for start, stop in answer["offsets"]] == words
    entity = answer["entities"][0]
    assert entity["text"] == "Harbour Road" == text[entity["char_start"] : entity["char_end"]]
