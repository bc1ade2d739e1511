"""A linear chain: its gradient, the rules of its tags, words and characters; the same answers saved and exported."""

from __future__ import annotations

import typing
import unicodedata
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from etude.baselines import chain, tag_features, tagger
from etude.baselines.linear_baseline import WordVectors
from etude.baselines.registry import fit, load
from etude.errors import UserError
from etude.inference.baseline_model import BaselineModel
from etude.tasks import tag
from etude.tasks.data.examples import Examples
from etude.tasks.tag.encodings import Scheme, Span, encode, first_breach
from etude.tasks.tag.sentences import TaggedSentence
from tests.baselines.test_export import run_standalone

NAMES = ["Anna", "Bert", "Clara", "Dora", "Emil", "Frida", "Gustav", "Hanna"]
TOWNS = ["Riverton", "Hillton", "Laketon", "Woodton"]


def sentences() -> Examples[TaggedSentence]:
    items = []
    for number, name in enumerate(NAMES):
        town = TOWNS[number % 4]
        words = f"yesterday {name} Smith went to {town} .".split()
        items.append(TaggedSentence(words, ["O", "B-PER", "I-PER", "O", "O", "B-LOC", "O"], False))
        items.append(TaggedSentence(f"{town} is far".split(), ["B-LOC", "O", "O"], False))
    return Examples(items, "sentences", [f"sentences:{number}" for number in range(len(items))])


def characters() -> Examples[TaggedSentence]:
    items = []
    for name in ["서울", "부산", "대구", "광주", "인천", "울산"]:
        text = f"나는 {name}에 갔다"
        tags = ["O"] * len(text)
        tags[3:5] = ["B-LC", "I-LC"]
        items.append(TaggedSentence(list(text), tags, True))
    return Examples(items * 2, "text", [f"text:{number}" for number in range(2 * len(items))])


def random_problem() -> tuple[chain.Chain, chain.Sequences]:
    draw = np.random.default_rng(0)
    lengths = np.array([3, 1, 4])
    features = sparse.csr_matrix(draw.random((8, 5)))
    model = chain.Chain(draw.normal(size=(5, 3)), *(draw.normal(size=shape) for shape in ((3,), (3, 3), (3,))))
    return model, chain.Sequences(features, draw.integers(3, size=8), lengths)


def test_likelihood_is_that_of_all_sequences() -> None:
    model, sequences = random_problem()
    value = chain._likelihood(model, sequences, chain._steps(sequences.lengths))[0]
    scores = sequences.features @ model.weight
    expected, start = 0.0, 0
    for length in sequences.lengths:
        part = scores[start : start + length]

        def score(tags: tuple[int, ...], part: np.ndarray = part) -> float:
            moves = sum(model.transitions[pair] for pair in pairwise(tags))
            return float(model.start[tags[0]] + model.end[tags[-1]] + moves + sum(part[range(len(tags)), tags]))

        every = [score(tags) for tags in product(range(3), repeat=int(length))]
        expected += np.log(np.exp(every).sum()) - score(tuple(sequences.tags[start : start + length].tolist()))
        start += length
    assert value == pytest.approx(expected)


def test_gradient_is_the_difference_quotient() -> None:
    model, sequences = random_problem()
    steps = chain._steps(sequences.lengths)
    _, gradient, slope = chain._likelihood(model, sequences, steps)
    gradient.weight = sequences.features.T @ slope
    flat, analytic = model.pack(), gradient.pack()
    for place in range(len(flat)):
        ends = []
        for shift in (1e-5, -1e-5):
            moved = flat.copy()
            moved[place] += shift
            ends.append(chain._likelihood(chain.Chain.unpack(moved, 5, 3), sequences, steps)[0])
        assert analytic[place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-5)


def test_decoding_is_the_best_of_all_sequences() -> None:
    draw = np.random.default_rng(1)
    scores, start, moves, end = (draw.normal(size=shape) for shape in ((4, 3), (3,), (3, 3), (3,)))

    def score(tags: tuple[int, ...]) -> float:
        steps = sum(moves[pair] for pair in pairwise(tags))
        return float(start[tags[0]] + end[tags[-1]] + steps + sum(scores[range(4), tags]))

    every = list(product(range(3), repeat=4))
    assert tuple(tag_features.best_tags(scores, start, moves, end)) == max(every, key=score)
    weights = np.exp([score(tags) for tags in every])
    best = max(every, key=score)
    probs = tag_features.tag_probabilities(scores, start, moves, end, best)
    for place in range(4):
        expected = sum(weight for tags, weight in zip(every, weights, strict=True) if tags[place] == best[place])
        assert probs[place] == pytest.approx(expected / weights.sum())


def test_entities_of_unseen_names_saved_and_exported(tmp_path: Path) -> None:
    model = fit("tfidf", "tag", None, sentences())
    words = ["yesterday", "Oskar", "Smith", "went", "to", "Seaton", "."]
    unseen = Examples([TaggedSentence(words, None, False)], "new", ["new:1"])
    answer = model.predict(unseen)[0]
    assert [(entity["type"], entity["text"]) for entity in answer["entities"]] == [
        ("PER", "Oskar Smith"), ("LOC", "Seaton"),
    ]  # fmt: skip
    assert set(answer) == {"tokens", "tags", "scores", "entities"}
    assert float(model.task.scoring.outcome(sentences(), model.predict(sentences())).score()) == 1.0
    model.save(tmp_path / "best")
    assert load(tmp_path / "best").predict(unseen) == [answer]
    opened = BaselineModel.open(tmp_path / "best")
    lines = ["yesterday Oskar Smith went to Seaton .", "Riverton"]
    assert run_standalone(opened.export(tmp_path / "out"), lines) == opened.predict(lines)
    nothing = {"tokens": [], "tags": [], "scores": [], "entities": []}
    assert run_standalone(tmp_path / "out", ["", "Riverton"]) == [nothing, *opened.predict(["Riverton"])]


def colours_and_animals() -> tuple[Examples[TaggedSentence], WordVectors]:
    """Words that only their vectors tell apart: half of them are in the labels."""
    draw = np.random.default_rng(0)
    words = {kind: [f"{letter}{draw.integers(10**6)}" for _ in range(40)] for kind, letter in (("C", "w"), ("A", "w"))}
    matrix = np.concatenate([draw.normal(size=(40, 8)) + 5 * np.eye(8)[number] for number in range(2)])
    vectors = WordVectors([word for kind in "CA" for word in words[kind]], matrix.astype(np.float32))
    items = [
        TaggedSentence(["see", words[kind][number], "now"], ["O", f"B-{kind}", "O"], False)
        for number in range(40)
        for kind in "CA"
    ]
    return Examples(items, "words", [f"words:{number}" for number in range(len(items))]), vectors


def test_clusters_of_the_text_tell_unseen_words_apart(tmp_path: Path) -> None:
    examples, vectors = colours_and_animals()
    train, unseen = examples.part(range(40)), examples.part(range(40, 80))
    plain, clustered = fit("tfidf", "tag", None, train), fit("tfidf+vectors", "tag", None, train, vectors=vectors)
    scores = [float(model.task.scoring.outcome(unseen, model.predict(unseen)).score()) for model in (plain, clustered)]
    assert scores[0] < 0.8 and scores[1] > 0.95
    clustered.save(tmp_path / "best")
    assert load(tmp_path / "best").predict(unseen) == clustered.predict(unseen)
    opened = BaselineModel.open(tmp_path / "best")
    lines = [" ".join(item.words) for item in unseen][:6]
    assert run_standalone(opened.export(tmp_path / "out"), lines) == opened.predict(lines)


def test_clusters_of_korean_words_reach_their_characters() -> None:
    clusters = {"서울에": [3, 5]}
    rows = tag_features.sentence_features(list("나는 서울에"), True, clusters)
    assert all("cluster 0 3" in row and "cluster 1 5" in row for row in rows[3:]) and "no cluster" in rows[0]


@pytest.mark.parametrize(
    ("examples", "line", "text"),
    [(sentences, 'Yesterday Ada went to Laketon, "far".', "Laketon"), (characters, "나는  수원에 갔다, 정말.", "수원")],
)
def test_plain_lines_are_read_alike_with_and_without_etude(
    examples: Callable[[], Examples[TaggedSentence]], line: str, text: str, tmp_path: Path
) -> None:
    """The export took "Laketon," for a word; characters came from words, with a space before each comma."""
    fit("tfidf", "tag", None, examples()).save(tmp_path / "best")
    opened = BaselineModel.open(tmp_path / "best")
    (answer,) = opened.predict([line])
    if examples is characters:
        assert answer["tokens"] == list(line)
    else:
        assert "," in answer["tokens"] and "Laketon" in answer["tokens"]
        assert [line[start:stop] for start, stop in answer["offsets"]] == answer["tokens"]
    assert text in [entity["text"] for entity in answer["entities"]]
    jamo = unicodedata.normalize("NFD", line)
    (apart,) = opened.predict([jamo])
    assert "".join(apart["tokens"]) == jamo or examples is sentences
    assert [unicodedata.normalize("NFC", each["text"]) for each in apart["entities"]] == [
        each["text"] for each in answer["entities"]
    ]
    assert run_standalone(opened.export(tmp_path / "out"), [line, jamo]) == [answer, apart]


@given(
    st.sampled_from(typing.get_args(Scheme)), st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3))), st.data()
)
def test_parts_of_a_letter_stay_in_its_chunk(scheme: Scheme, chunks: list[tuple[str, int]], data: Any) -> None:
    ends = np.cumsum([0, *(length for _, length in chunks)])
    spans = [Span(kind, int(start), int(stop)) for (kind, _), (start, stop) in zip(chunks, pairwise(ends), strict=True)]
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=int(ends[-1]), max_size=int(ends[-1])))
    bounds = np.cumsum([0, *sizes])
    owners = np.repeat(np.arange(len(sizes)), sizes).tolist()
    spread = tag_features.spread_tags(encode(spans, len(sizes), scheme), owners)
    expected = [Span(kind, int(bounds[start]), int(bounds[stop])) for kind, start, stop in spans]
    assert spread == encode(expected, len(owners), scheme)
    assert tagger._join_tags(spread, owners) == encode(spans, len(sizes), scheme)


@pytest.mark.parametrize("encoding", [None, "iobes"])
def test_a_file_of_jamo_is_learnt_as_syllables(encoding: Scheme | None) -> None:
    """Its answers were those of a tagger of jamo that read syllables: hardly an entity was found."""
    composed, settings = characters(), tag.Settings(encoding=encoding)
    items = []
    for item in composed:
        letters, owners = tag_features.compose(list(unicodedata.normalize("NFD", "".join(item.words))))
        assert letters == item.words
        spread = tag_features.spread_tags(item.tags or (), owners)
        items.append(TaggedSentence(list(unicodedata.normalize("NFD", "".join(letters))), spread, True))
    apart = Examples(items, composed.source, composed.places)
    expected, model = fit("tfidf", "tag", settings, composed), fit("tfidf", "tag", settings, apart)
    assert model.features == expected.features
    assert [answer["tags"] for answer in model.predict(apart)] == [item.tags for item in items]


def test_characters_are_tagged_with_their_spaces() -> None:
    model = fit("tfidf", "tag", None, characters())
    answer = model.predict(Examples([TaggedSentence(list("나는 수원에 갔다"), None, True)], "new", ["new:1"]))[0]
    assert [entity["text"] for entity in answer["entities"]] == ["수원"]
    assert model.task.scoring.score == "entity_macro_f1"


@pytest.mark.parametrize("encoding", [None, "iobes"])
def test_answers_keep_the_rules_of_the_scheme(encoding: str | None) -> None:
    model = fit("tfidf", "tag", tag.Settings(encoding=encoding), sentences())  # type: ignore[arg-type]
    words = np.random.default_rng(0).choice([*NAMES, *TOWNS, "to", "Smith", "x"], size=(40, 6)).tolist()
    items = Examples([TaggedSentence(row, None, False) for row in words], "random", ["r"] * 40)
    assert all(first_breach(answer["tags"], "iob2") is None for answer in model.predict(items))


def test_parts_of_speech_have_no_entities_and_unknown_tags_are_named() -> None:
    items = [
        TaggedSentence(["dogs", "run"], ["NOUN", "VERB"], False),
        TaggedSentence(["a", "dog"], ["DET", "NOUN"], False),
    ]
    examples = Examples(items * 6, "pos", [f"pos:{number}" for number in range(12)])
    answer = fit("tfidf", "tag", None, examples).predict(examples)[0]
    assert answer["tags"] == ["NOUN", "VERB"] and "entities" not in answer
    facts = {"labels": ["NOUN", "VERB"], "scheme": None, "encoding": None, "usual": "NOUN", "characters": False}
    with pytest.raises(UserError, match=r"pos:1, word 1: the tag 'DET'"):
        fit("tfidf", "tag", None, examples, facts=facts)
