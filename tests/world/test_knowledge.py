"""The graph of the world: true, the same from files and in memory; types and answers that no text gives away."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.graph.prepare.prepare import prepare_graph
from etude.world import World
from etude.world.knowledge.district import EACH, district
from etude.world.knowledge.knowledge import INFERABLE, Knowledge
from etude.world.knowledge.paths import QUESTIONS
from etude.world.tasks.sampling import belongs

LANGUAGES = ("en", "ko")


@cache
def knowledge(language: str) -> Knowledge:
    return Knowledge(World(0, language))


def test_facts_are_split_once_and_stay_true() -> None:
    triples = knowledge("en").triples
    everything = [fact for facts in triples.values() for fact in facts]
    assert sorted(everything) == sorted([*World(0).facts(), *district(0).facts()])
    assert knowledge("ko").triples == triples
    assert {fact.relation for split in ("valid", "test") for fact in triples[split]} == set(INFERABLE)
    trained = {end for fact in triples["train"] for end in (fact.head, fact.tail)}
    assert {end for fact in everything for end in (fact.head, fact.tail)} == trained
    assert min(len(triples["valid"]), len(triples["test"])) > 100


def test_held_out_facts_follow_from_others() -> None:
    links = {(fact.head, fact.relation): fact.tail for fact in [*World(0).facts(), *district(0).facts()]}
    sides = {"mother": ("daughter", "son"), "father": ("daughter", "son"), "daughter": ("mother", "father"),
             "son": ("mother", "father"), "brother": ("sister",), "sister": ("brother",)}  # fmt: skip
    for (head, relation), tail in links.items():
        if relation in sides:
            assert head in {links.get((tail, side)) for side in sides[relation]}
        if relation == "citizen_of":
            assert links[links[head, "lives_in"], "in_region"] == tail


@pytest.mark.parametrize("language", LANGUAGES)
def test_files_and_memory_are_one_graph(tmp_path: Path, language: str) -> None:
    known = knowledge(language)
    known.write_graph(tmp_path)
    graph = prepare_graph(
        tmp_path / "train.tsv", tmp_path / "g", valid=tmp_path / "valid.tsv", test=tmp_path / "test.tsv",
        entities=tmp_path / "labels.jsonl",
    )  # fmt: skip
    assert graph.fingerprint == known.graph().fingerprint
    report = graph.report
    assert report is not None and report["entities"] == report["labelled"] == report["entity_rows"]
    assert report["duplicates"]["count"] == report["leaks"]["count"] == report["unseen_entities"]["count"] == 0
    maud = graph.entities.find("person:Maud")
    assert maud is not None
    labels = {"en": "Maud Kimball", "ko": "모드 킴벌"}
    assert graph.label(maud) == labels[language]
    assert set(labels.values()) | {"Maud", "모드"} == {graph.label(maud), *graph.aliases(maud)}


def test_names_say_nothing_of_types() -> None:
    town = district(0)
    names = [word.english for word in town.entities]
    koreans = [word.korean for word in town.entities]
    assert len(set(names)) == len(set(koreans)) == len(names) == 16 * EACH + 12
    labels = np.array([town.types_of(word)[0] for word in town.entities[: 16 * EACH]])
    letters = CountVectorizer(analyzer="char", ngram_range=(1, 3)).fit_transform(names[: 16 * EACH])
    order = np.random.default_rng(0).permutation(len(labels))
    model = LogisticRegression(max_iter=200).fit(letters[order[:800]], labels[order[:800]])
    assert model.score(letters[order[800:]], labels[order[800:]]) < 0.35  # chance is 0.25


@pytest.mark.parametrize("language", LANGUAGES)
def test_typing_needs_the_graph(language: str) -> None:
    known = knowledge(language)
    examples = {split: known.typing(split, 160) for split in ("train", "valid", "test", "seen")}
    words, facts = known.words, {fact.head: fact.tail for fact in district(0).facts() if fact.relation == "instance_of"}
    subjects = {}
    for split, listed in examples.items():
        subjects[split] = set()
        for example in listed:
            mention = next(e for e in example["entities"] if e["start"] == example["start"])
            name = example["text"][example["start"] : example["end"]]
            assert name == words[mention["entity"]].forms[language][""]
            assert f"type:{example['labels'][1]}" == facts[mention["entity"]] and len(example["labels"]) == 2
            names = [words[f"type:{label}"].forms[language][""] for label in example["labels"]]
            assert not any(len(name) > 1 and name in example["text"] for name in names)  # 말 and 산 are parts of words
            subjects[split].add(mention["entity"])
    assert not subjects["train"] & subjects["test"] and not subjects["valid"] & subjects["test"]
    assert all(belongs(key, "train") for key in subjects["seen"] | subjects["train"])
    texts = {example["text"] for example in examples["train"]}
    assert not texts & {example["text"] for example in examples["seen"]}

    def coarse(split: str) -> list[str]:
        return [example["labels"][0] for example in examples[split]]

    counts = CountVectorizer(analyzer="char_wb", ngram_range=(1, 4)).fit([e["text"] for e in examples["train"]])
    features = {split: counts.transform([e["text"] for e in listed]) for split, listed in examples.items()}
    model = MultinomialNB().fit(features["train"], coarse("train"))
    assert model.score(features["test"], coarse("test")) < 0.4  # chance is 0.25


def test_link_noise_grows() -> None:
    wrong = {10: 0, 30: 0}
    total = 0
    for example in knowledge("en").typing("train", 400):
        for noise in (10, 30):
            pairs = zip(example["entities"], example[f"entities_{noise}"], strict=True)
            wrong[noise] += sum(gold != link for gold, link in pairs)
        total += len(example["entities"])
        for gold, link, worse in zip(*(example[f"entities{name}"] for name in ("", "_10", "_30")), strict=True):
            assert link == gold or worse == link
    assert abs(wrong[10] / total - 0.1) < 0.04 and abs(wrong[30] / total - 0.3) < 0.06


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_path_decides_the_answer(language: str) -> None:
    known = knowledge(language)
    facts = set(known.triples["train"])
    labels = {word.forms[language][""]: word for word in district(0).entities}
    near_misses, named = 0, {}
    for split in ("train", "test"):
        named[split] = set()
        for example in known.paths(split, 150):
            (start, first, middle), (again, second, end) = example["facts"]
            assert again == middle and {(start, first, middle), (middle, second, end)} <= facts
            assert labels[example["choices"][example["answer"]]].key == end
            assert len(set(example["choices"])) == 5 and example["concept"] not in example["choices"]
            named[split].add(start)
            for choice in example["choices"]:  # the same two relations lead to one choice only
                word = labels[example["concept"]].links[first].links[second]
                assert (labels[choice] is word) == (choice == example["choices"][example["answer"]])
            near = known.words[start].links.values()
            ends = {end.key for middle_word in near for end in (middle_word, *middle_word.links.values())}
            near_misses += sum(labels[choice].key in ends for choice in example["choices"]) - 1
    assert not named["train"] & named["test"]
    assert near_misses > 150  # about one wrong choice a question ends another path


def test_every_question_is_asked() -> None:
    pairs = {(example["facts"][0][1], example["facts"][1][1]) for example in knowledge("en").paths("train", 300)}
    assert pairs == {(question.first, question.second) for question in QUESTIONS}


@pytest.mark.parametrize("language", LANGUAGES)
def test_anchors_stand_at_their_words(language: str) -> None:
    known = knowledge(language)
    for number in range(12):
        document = known.anchored(number)
        assert document.links, number
        for link in document.links:
            surface = document.text[link.start : link.end].lower()
            names = [known.label(link.entity), *known.aliases(link.entity)]
            assert any(surface == name.lower().removeprefix("the ") for name in names), (surface, names)
        plain = document.wiki
        for link in document.links:
            plain = plain.replace(f"[[{link.entity}|", "", 1).replace("]]", "", 1)
        assert plain == document.text
    clean, noisy = known.anchored(3), known.anchored(3, 0.9)
    assert clean.text == noisy.text and clean.links != noisy.links


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.world import world as module

    monkeypatch.setattr(module, "COUNTS", {"train": 3, "valid": 2, "test": 2})
    words = ["world", "-o", str(tmp_path), "--megabytes", "0.01", "--anchored", "0.01", "--link-noise", "0.1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert {path.name for path in (tmp_path / "knowledge").iterdir()} == {
        "facts.tsv", "entities.tsv", "train.tsv", "valid.tsv", "test.tsv", "labels.jsonl",
    }  # fmt: skip
    assert len((tmp_path / "tasks" / "typing.seen.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert (tmp_path / "anchored.txt").read_text(encoding="utf-8").startswith("[[")
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(UserError, match="no split 'tset'"):
        knowledge("en").typing("tset", 1)
