"""Entity typing: files, signs, scores by brute force, and entities that reach the model."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.entity_links import EntityLinks, EntitySpan, NamedMention, align_spans
from etude.graph.linking.base import Mention
from etude.models import ernie, transformer
from etude.tasks import entity_typing, rank, relation
from etude.tasks.data.candidates import Query
from etude.tasks.data.examples import Examples
from etude.tasks.data.marked_text import Sign, insert_signs, move_mentions
from etude.tasks.entity_typing import EntityTyping, Settings, TypedMention, TypingScoring
from etude.text.tokenizer.tokenizer import Tokenizer

TEXT = "Bob Dylan wrote Blowin' in the Wind in 1962."
RECORD: dict[str, Any] = {
    "sent": TEXT, "start": 0, "end": 9, "labels": ["person", "artist"],
    "ents": [["Q392", 0, 9, 0.5], ["Q1", 16, 35, 0.2]],
}  # fmt: skip


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def examples_of(*items: TypedMention) -> Examples[TypedMention]:
    return Examples(list(items), "a test", [f"a test:{number}" for number in range(1, len(items) + 1)])


# --- files --------------------------------------------------------------------------------------------


def test_reads_the_files_of_ernie_and_of_open_entity(tmp_path: Path) -> None:
    context = {
        "left_context_token": ["He", "met"],
        "mention_span": "Bob Dylan",
        "right_context_token": ["."],
        "y_str": ["a"],
    }
    first, second = entity_typing.read(write(tmp_path / "a.jsonl", RECORD, context))
    assert first.text[first.start : first.end] == "Bob Dylan" and first.labels == {"person", "artist"}
    assert first.entities == ((0, 9, "Q392"), (16, 35, "Q1"))
    assert second.text == "He met Bob Dylan ." and second.text[second.start : second.end] == "Bob Dylan"
    assert second.labels == {"a"} and second.entities is None
    table = tmp_path / "a.csv"
    table.write_text("text,start,end,labels\nSeoul is big,0,5,city place\n", encoding="utf-8")
    assert entity_typing.read(table)[0].labels == {"city", "place"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end": 99}, "no part of the text"),
        ({"start": "x"}, "number of a character"),
        ({"start": "²"}, "number of a character"),
        ({"labels": 3}, "list of types"),
        ({"ents": [["Q1", 0, 99]]}, "outside the text"),
        ({"ents": [["Q1"]]}, "name, start and end"),
        ({"ents": "Q1"}, "list of entities"),
    ],
)
def test_a_bad_record_has_one_message(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"a.jsonl:1: .*{message}"):
        entity_typing.read(write(tmp_path / "a.jsonl", {**RECORD, **change}))


def test_mentions_move_with_the_signs() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        text = "".join(random.choice(list("ab  가\t"), 20)) + "z"
        start, middle, end = sorted(random.choice(len(text) + 1, 3, replace=False).tolist())
        signs = [Sign(start, "@"), Sign(middle, "@ * x *"), Sign(end, "#")]
        marked = insert_signs(text, signs)
        assert marked == " ".join(marked.split())
        first, last = sorted(random.choice(len(text) + 1, 2, replace=False).tolist())
        mention = NamedMention(first, last, "Q")
        last = first + len(text[first:last].rstrip())  # a mention moves without the white space around it
        first = last - len(text[first:last].lstrip())
        inside = [sign for sign in signs if first < sign.place < last]
        expected = insert_signs(text[first:last], [Sign(sign.place - first, sign.text) for sign in inside])
        for moved in move_mentions(text, signs, [mention]):
            assert "".join(marked[moved.start : moved.end].split()) == "".join(expected.split())


# --- scores -------------------------------------------------------------------------------------------


def brute_force(gold: list[set[str]], own: list[set[str]]) -> dict[str, float]:
    strict = sum(one == other for one, other in zip(gold, own, strict=True)) / len(gold)
    precision = recall = correct = predicted = wanted = 0.0
    for truth, answer in zip(gold, own, strict=True):
        shared = len([name for name in truth if name in answer])
        precision += shared / len(answer) if answer else 0
        recall += shared / len(truth) if truth else 0
        correct, predicted, wanted = correct + shared, predicted + len(answer), wanted + len(truth)
    mean_precision, mean_recall = precision / len(gold), recall / len(gold)
    micro = 2 * correct / (predicted + wanted) if predicted + wanted else 0.0
    both = mean_precision + mean_recall
    return {"accuracy": strict, "macro_f1": 2 * mean_precision * mean_recall / both if both else 0.0, "micro_f1": micro}


def test_scores_equal_brute_force() -> None:
    names, random = list("abcde"), np.random.default_rng(0)
    for _ in range(50):
        sets = [[{name for name in names if random.random() < 0.4} for _ in range(12)] for _ in range(2)]
        examples = examples_of(*(TypedMention("x", 0, 1, frozenset(one)) for one in sets[0]))
        answers = [{"labels": sorted(one)} for one in sets[1]]
        for name, expected in brute_force(*sets).items():
            scoring = TypingScoring(Settings(score=name), names)
            assert scoring.scores(examples, answers, intervals=False)[name].value == pytest.approx(expected)
            outcome = scoring.outcome(examples, answers)
            assert outcome.score() == pytest.approx(expected)
            drawn = random.integers(0, 12, 12)
            resampled = brute_force([sets[0][n] for n in drawn], [sets[1][n] for n in drawn])[name]
            assert outcome.score(np.bincount(drawn, minlength=12)) == pytest.approx(resampled)


def test_majority_is_the_most_frequent_set() -> None:
    train = examples_of(*(TypedMention("x", 0, 1, frozenset(one)) for one in ("ab", "a", "ba", "c")))
    assert entity_typing.majority(train, train) == [{"labels": ["a", "b"]}] * 4


# --- the task -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("wordpiece:300,lower", [TEXT + " @ # $ Seoul is big"] * 4)


SIZES: dict[str, Any] = {
    "layers": 2, "width": 16, "heads": 2, "context": 64, "norm": "post", "segments": 2, "pooler": True,
    "embedding_norm": True, "init_deviation": 0.3,
}  # fmt: skip


class WordLinker:
    """Finds one word, as any linker may."""

    fingerprint = "words"

    def link(self, text: str) -> list[Mention]:
        place = text.find("Dylan")
        return [] if place < 0 else [Mention(place, place + 5, 1)]


def make_ernie(tokenizer: Tokenizer, links: bool = True, **changes: Any) -> ernie.Ernie:
    torch.manual_seed(0)
    extra = {"layer_kinds": ("mix", "norm"), "entity_width": 8, "entity_heads": 2, "entities": 3, "graph": "g" * 64}
    model = ernie.build(ernie.Settings(vocab=tokenizer.vocab, **{**SIZES, **extra, **changes})).eval()
    model.set_entity_vectors(np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32))
    if links:
        model.attach_links(EntityLinks("g" * 64, ["Q392", "Q2", "Q1"], WordLinker()))
    return model


def build_task(model: Any, tokenizer: Tokenizer, **settings: Any) -> EntityTyping:
    return entity_typing.build(Settings(**settings), model, tokenizer, {"labels": ["artist", "city", "person"]}).eval()


def test_a_logit_above_0_is_an_answer_and_the_last_layer_has_no_bias(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = transformer.build(transformer.Settings(vocab=tokenizer.vocab, **SIZES)).eval()
    task = build_task(model, tokenizer)
    assert task.pooled.head.bias is None
    torch.nn.init.normal_(task.pooled.head.weight)
    examples = examples_of(TypedMention(TEXT, 0, 9, frozenset(["person"])), TypedMention(TEXT, 16, 35, frozenset()))
    for answer in task.predict(model, examples):
        assert answer["labels"] == [name for name, prob in answer["scores"].items() if prob > 0.5]
    batch = task.batch([task.rows(examples)[n] for n in range(2)], Chance(0, 0))
    assert batch.entities is None  # this encoder reads none
    logits = task.pooled(model, batch)[0]
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.types)
    term = task.loss(model, batch)["loss"]
    torch.testing.assert_close(term.sum / term.count, expected)


def test_it_learns_a_batch(tokenizer: Tokenizer) -> None:
    model = make_ernie(tokenizer)
    task = build_task(model, tokenizer, dropout=0.0)
    examples = examples_of(
        TypedMention(TEXT, 0, 9, frozenset(["person", "artist"]), ()),
        TypedMention("Seoul is big", 0, 5, frozenset(["city"])),
    )
    batch = task.batch([task.rows(examples)[n] for n in range(2)], Chance(0, 0))
    optimizer = torch.optim.Adam([*model.parameters(), *task.parameters()], lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        task.loss(model, batch)["loss"].sum.backward()
        optimizer.step()
    assert task.evaluate(model, examples, intervals=False)["accuracy"].value == 1.0


def stream_of(task: Any, examples: Examples[Any]) -> list[tuple[str, int]]:
    """The tokens that carry an entity, with the entity's row."""
    row = task.unlabelled_rows(examples)[0]
    return [
        (task.pooled.tokenizer.token(id), int(entity))
        for id, entity in zip(row.tokens, row.entities, strict=True)
        if entity
    ]


def test_entities_come_from_the_column_else_from_the_linker(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    named = (NamedMention(0, 9, "Q392"), NamedMention(16, 35, "Q1"), NamedMention(39, 43, "unknown"))
    given = examples_of(TypedMention(TEXT, 16, 35, None, named))
    task = build_task(make_ernie(tokenizer), tokenizer)
    carried = stream_of(task, given)
    assert [row for _, row in carried] == [1, 3] and "bob".startswith(carried[0][0])
    linked = stream_of(task, examples_of(TypedMention(TEXT, 16, 35)))
    assert [row for _, row in linked] == [2]
    assert stream_of(task, examples_of(TypedMention(TEXT, 16, 35, None, ()))) == []
    every = build_task(make_ernie(tokenizer, alignment="all"), tokenizer)
    pieces = stream_of(every, given)
    assert len(pieces) > 2 and {row for _, row in pieces} == {1, 3}
    with caplog.at_level("WARNING", "etude"):
        assert stream_of(build_task(make_ernie(tokenizer, links=False), tokenizer), given) == []
    assert "transfer.link" in caplog.text  # it is told that plain text is read


def test_entities_change_the_answer_and_company_does_not(tokenizer: Tokenizer) -> None:
    model = make_ernie(tokenizer)
    task = build_task(model, tokenizer)
    torch.nn.init.normal_(task.pooled.head.weight)
    items = [TypedMention(TEXT, 0, 9, None, (NamedMention(0, 9, name),)) for name in ("Q392", "Q1")]
    items.append(TypedMention("Seoul is big", 0, 5))
    together = task.predict(model, examples_of(*items))
    alone = [task.predict(model, examples_of(item))[0] for item in items]
    for one, other in zip(together, alone, strict=True):
        assert list(one["scores"].values()) == pytest.approx(list(other["scores"].values()), abs=1e-5)
    assert abs(together[0]["scores"]["city"] - together[1]["scores"]["city"]) > 1e-3


def test_padded_batches_have_the_same_loss(tokenizer: Tokenizer) -> None:
    model = make_ernie(tokenizer)
    task = build_task(model, tokenizer)
    examples = examples_of(
        TypedMention(TEXT, 0, 9, frozenset(["person"])), TypedMention("Seoul is big", 0, 5, frozenset())
    )
    batch = task.batch([task.rows(examples)[n] for n in range(2)], Chance(0, 0))
    padded = batch.pad([5, 6], 64)
    torch.testing.assert_close(task.loss(model, padded)["loss"].sum, task.loss(model, batch)["loss"].sum)


def test_errors_are_shown_as_the_model_read_them() -> None:
    examples = examples_of(TypedMention(TEXT, 0, 9, frozenset(["person"])))
    scoring = entity_typing.scoring(entity_typing.Settings(sign="¦"), {"labels": ["person"]})
    [error] = scoring.judge(examples, [{"labels": [], "scores": {"person": 0.1}}])
    assert error.text.startswith("¦ Bob Dylan ¦ wrote") and "@" not in error.text


def test_relations_have_the_signs_of_ernie_and_entities(tokenizer: Tokenizer) -> None:
    record = {
        "sentence": TEXT, "subject": {"start": 0, "end": 9}, "object": {"start": 16, "end": 35}, "label": "author",
        "ents": [["Q392", 0, 9, 1.0], ["Q1", 16, 35, 1.0]],
    }  # fmt: skip
    item = relation.parse(record, {}, "here")
    assert item.marked(False, "ernie") == "# Bob Dylan # wrote $ Blowin' in the Wind $ in 1962."
    assert item.marked(False, "punct") == "@ Bob Dylan @ wrote # Blowin' in the Wind # in 1962."
    settings = relation.Settings(signs="ernie")
    task = relation.build(settings, make_ernie(tokenizer), tokenizer, {"labels": ["author", "no_relation"]})
    assert [row for _, row in stream_of(task, Examples([item], "a test", ["1"]))] == [1, 3]


def test_a_linker_finds_entities_of_relations_behind_decomposed_hangul(tokenizer: Tokenizer) -> None:
    task = relation.build(relation.Settings(), make_ernie(tokenizer), tokenizer, {"labels": ["author", "no_relation"]})
    streams = []
    for before in ("한글", unicodedata.normalize("NFD", "한글")):
        text = f"{before} {TEXT}"
        place = len(before) + 1
        record = {
            "sentence": text, "label": "author", "subject": {"start": place, "end": place + 9},
            "object": {"start": place + 16, "end": place + 35},
        }  # fmt: skip
        named = {**record, "ents": [["Q2", place + 4, place + 9, 1.0]]}
        for each in (record, named):
            item = relation.parse(each, {}, "here")
            streams.append(stream_of(task, Examples([item], "a test", ["1"])))
    assert len(streams[0]) == 1 and streams == [streams[0]] * 4


def test_ranking_reads_entities_in_training_as_in_use(tokenizer: Tokenizer) -> None:
    task = rank.build(rank.Settings(), make_ernie(tokenizer), tokenizer, {})
    queries = Examples([Query("who wrote", (TEXT, "Seoul is big"), (True, False))], "a test", ["1"])
    used, trained = task.unlabelled_rows(queries)[0], task.rows(queries)[0]
    assert used.entities is not None and used.entities.any()
    np.testing.assert_array_equal(trained.entities, used.entities)


def test_links_of_another_graph_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="another graph"):
        make_ernie(tokenizer, links=False).attach_links(EntityLinks("h" * 64, ["a"]))
    plain = transformer.build(transformer.Settings(vocab=tokenizer.vocab, **SIZES))
    with pytest.raises(UserError, match="reads no entities"):
        plain.attach_links(EntityLinks("h" * 64, ["a"]))


def test_links_are_stored_and_aligned(tmp_path: Path) -> None:
    EntityLinks("g", ["Q1", "서울"]).save(tmp_path)
    links = EntityLinks.load(tmp_path)
    assert links is not None and links.names == ["Q1", "서울"] and links.graph == "g" and links.linker is None
    assert links.find("Q1") == [] and links.spans_of([NamedMention(0, 2, "서울")]) == [(0, 2, 2)]
    assert EntityLinks.load(tmp_path / "nowhere") is None
    offsets = np.array([[0, 3], [3, 5], [6, 9]])
    assert align_spans(offsets, [EntitySpan(0, 5, 7)], "first").tolist() == [7, 0, 0]
    assert align_spans(offsets, [EntitySpan(1, 5, 7), EntitySpan(6, 9, 4)], "all").tolist() == [7, 7, 4]
