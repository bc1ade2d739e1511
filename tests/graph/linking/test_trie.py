"""The trie linker equals a plain search over all spans, and keeps its rules of case, words, particles and priors."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.graph.graph import Graph
from etude.graph.linking import trie
from etude.graph.linking.case_rules import FACTORS, SENTENCE_ENDS, STARTING_NAME, Shape
from etude.graph.linking.mention_counts import hash_counts, read_counts
from etude.graph.linking.particles import list_particles
from etude.graph.linking.trie import Settings, TrieLinker, select_longest
from etude.text.function_words import FUNCTION_WORDS


def make_graph(surfaces: list[list[str]], triples: list[tuple[int, int]] = ()) -> Graph:  # type: ignore[assignment]
    """A graph of entities with a label and aliases each, and edges between some."""
    edges = [(head, 0, tail) for head, tail in triples] or [(0, 0, 0)]
    return Graph.from_triples(
        edges, [f"Q{number}" for number in range(len(surfaces))], ["related"],
        labels=[names[0] for names in surfaces], aliases=[names[1:] for names in surfaces],
    )  # fmt: skip


def link(linker: TrieLinker, text: str) -> list[tuple[str, int]]:
    return [(text[mention.start : mention.end], mention.entity) for mention in linker.link(text)]


# --- a plain search -----------------------------------------------------------------------------------


def plain_words(text: str) -> list[tuple[int, int]]:
    """Runs of letters, marks and digits; any other character that is no space is a word of its own."""
    words: list[tuple[int, int]] = []
    for place, letter in enumerate(text):
        is_inner = unicodedata.category(letter)[0] in "LMN"
        if letter.isspace():
            continue
        if is_inner and words and words[-1][1] == place and unicodedata.category(text[place - 1])[0] in "LMN":
            words[-1] = (words[-1][0], place + 1)
        else:
            words.append((place, place + 1))
    return words


def plain_key(text: str) -> tuple[str, ...]:
    """The folded words of a phrase, each with a space before it where there is one."""
    words = plain_words(text)
    return tuple(
        (" " if number and start != words[number - 1][1] else "") + text[start:end].lower().replace("’", "'")
        for number, (start, end) in enumerate(words)
    )


def plain_shape(text: str) -> Shape:
    cased = [letter for letter in text if letter.isupper() or letter.islower()]
    if not cased:
        return Shape.UNCASED
    if not any(letter.isupper() for letter in cased):
        return Shape.LOWER
    uppers = [place for place, letter in enumerate(text) if letter.isupper()]
    if all(letter.isupper() for letter in cased) and len(uppers) > 1:
        return Shape.UPPER
    if uppers == [0]:
        return Shape.INITIAL if len(plain_words(text)) == 1 else Shape.SENTENCE
    starts = {start for start, _ in plain_words(text)}
    return Shape.TITLE if set(uppers) <= starts else Shape.MIXED


def plain_factor(label: str, mention: str, at_start: bool) -> float:
    shapes = plain_shape(label), plain_shape(mention)
    letters = sum(unicodedata.category(letter)[0] == "L" for letter in mention)
    is_single = len(plain_words(mention)) == 1
    positions = [[letter.isupper() for letter in "".join(text.split())] for text in (label, mention)]
    is_equal = positions[0] == positions[1]
    starts = at_start and shapes[1] in (Shape.INITIAL, Shape.SENTENCE)
    if starts and shapes == (Shape.INITIAL, Shape.INITIAL):
        return STARTING_NAME
    if is_equal:
        return 1.0
    if starts and shapes[0] == Shape.LOWER:
        return 1.0
    if is_single and letters <= 4 and shapes[1] == Shape.UPPER and shapes[0] != Shape.UPPER:
        return 0.0
    if is_single and letters < 4 and shapes[0] == Shape.UPPER:
        return 0.0
    return FACTORS.get(shapes, 0.0)


def fits_particle(stem: str, particle: str) -> bool:
    if particle not in list_particles():
        return False
    if not "가" <= stem[-1] <= "힣":
        return True
    final = (ord(stem[-1]) - 0xAC00) % 28
    kind = 2 if final == 0 else 4 if final == 8 else 1
    return bool(list_particles()[particle] & kind)


def plain_link(surfaces: list[list[str]], weights: list[float], text: str, threshold: float) -> list[tuple[int, ...]]:
    """Every span from every word, then the longest from the left."""
    table: dict[tuple[str, ...], dict[int, list[tuple[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for entity, names in enumerate(surfaces):
        for number, name in enumerate(names):
            key = plain_key(name)
            letters = sum(unicodedata.category(letter)[0] == "L" for letter in name)
            is_common = len(key) == 1 and key[0] in FUNCTION_WORDS and plain_shape(name) != Shape.UPPER
            if letters >= 2 and not is_common:
                table[key][entity].append((name, weights[entity] * (0.5 if number else 1)))
    words = plain_words(text)
    mentions, reached = [], 0
    for first in range(len(words)):
        start = words[first][0]
        before = text[words[first - 1][1] - 1] if first else "."
        gap = text[words[first - 1][1] : start] if first else ""
        at_start = before in SENTENCE_ENDS or gap.startswith("\n")
        ends = {
            stem_end for last in range(first, len(words)) for stem_end in range(words[last][0] + 1, words[last][1] + 1)
            if stem_end == words[last][1]
            or fits_particle(text[words[last][0] : stem_end], text[stem_end : words[last][1]])
        }  # fmt: skip
        for end in sorted(ends, reverse=True):
            mention = text[start:end]
            fitting = {
                entity: (max(plain_factor(name, mention, at_start) for name, _ in names), max(w for _, w in names))
                for entity, names in table.get(plain_key(mention), {}).items()
            }
            total = sum(weight for factor, weight in fitting.values() if factor > 0)
            if not total or start < reached:
                continue
            best = max(fitting, key=lambda entity: (fitting[entity][0] * fitting[entity][1], -entity))
            if fitting[best][0] * fitting[best][1] / total >= threshold:
                mentions.append((start, end, best))
                reached = end
                break
    return mentions


letters = st.sampled_from(
    ["ab", "Ab", "AB", "aB", "the", "It", "IT", "cd", "abcde", "ABCDE", "서울", "나라", "가", "3"]
)
phrases = st.lists(letters, min_size=1, max_size=3).flatmap(
    lambda words: st.lists(st.sampled_from([" ", "-", "’", ""]), min_size=len(words), max_size=len(words)).map(
        lambda marks: "".join(word + mark for word, mark in zip(words, [*marks[:-1], ""], strict=True))
    )
)
entity_surfaces = st.lists(st.lists(phrases, min_size=1, max_size=2, unique=True), min_size=1, max_size=6)
pieces = st.sampled_from([" ", " ", ". ", "\n", ", ", "은 ", "는 ", "에서 ", "으로 ", "이 ", "'s ", "-"])
texts = st.lists(st.tuples(phrases, pieces), max_size=8).map(lambda parts: "".join(a + b for a, b in parts))


@given(entity_surfaces, st.lists(texts, min_size=1, max_size=3), st.sampled_from([0.0, 0.3, 0.55]))
@settings(max_examples=40, deadline=None)
def test_a_plain_search_finds_the_same(surfaces: list[list[str]], some: list[str], threshold: float) -> None:
    graph = make_graph(surfaces, [(0, number) for number in range(len(surfaces))])
    linker = TrieLinker.from_graph(graph, Settings(threshold=threshold))
    weights = (graph.outgoing.degrees() + graph.incoming.degrees() + 1).tolist()
    expected = [plain_link(surfaces, weights, text, threshold) for text in some]
    assert [[mention[:3] for mention in linker.link(text)] for text in some] == expected
    batch = linker.link_batch(some)
    rows = zip(batch.texts.tolist(), batch.starts.tolist(), batch.ends.tolist(), batch.entities.tolist(), strict=True)
    assert list(rows) == [(number, *row) for number, rows in enumerate(expected) for row in rows]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=20))
@settings(max_examples=100, deadline=None)
def test_the_longest_from_the_left_is_taken(spans: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    ends = starts + np.array([length for _, length in spans], np.int64)
    expected, reached = [], 0
    for start, end in sorted(
        set(zip(starts.tolist(), ends.tolist(), strict=True)), key=lambda span: (span[0], -span[1])
    ):
        if start >= reached:
            expected.append((start, end))
            reached = end
    chosen = select_longest(starts, ends)
    assert list(zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True)) == expected


# --- rules by example ---------------------------------------------------------------------------------


TOWN = make_graph(
    [
        ["Seoul", "서울", "서울특별시"], ["South Korea", "ROK", "대한민국"], ["New York", "NYC", "New York City"],
        ["US"], ["apple"], ["Jet engine"], ["eBay"], ["It"], ["삼성전자"], ["가"], ["1984"], ["McDonald's"], ["Łódź"],
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("He left New York City for Seoul.", ["New York City", "Seoul"]),
        ("NEW YORK and new york, Newyork", ["NEW YORK"]),
        ("seoul is not SEOUL", ["SEOUL"]),
        ("the US told us; Us", ["US"]),
        ("it was It and IT", []),
        ("An apple a day. Apple pie", ["apple", "Apple"]),
        ("jet engines have a jet engine", ["jet engine"]),
        ("Seoulites like pineapples", []),
        ("McDonald’s and McDonald's", ["McDonald’s", "McDonald's"]),
        ("in 1984", []),
        ("South\nKorea", ["South\nKorea"]),
        ("(Seoul)Łódź,łódź", ["Seoul", "Łódź"]),
    ],
)
def test_words_and_case(text: str, mentions: list[str]) -> None:
    assert [mention for mention, _ in link(TrieLinker.from_graph(TOWN), text)] == mentions


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("서울은 서울이 서울을 서울에서는 서울의", ["서울"] * 5),
        ("서울는 서울가 서울를 서울와", []),  # forms after a vowel, and 서울 ends in a consonant
        ("서울로 서울과 서울까지", ["서울"] * 3),
        ("서울으로", []),  # ㄹ takes 로, other consonants 으로
        ("대한민국으로 대한민국로", ["대한민국"]),
        ("삼성전자는 삼성전자가 삼성전자은 삼성전자로", ["삼성전자"] * 3),
        ("서울특별시에서 서울역", ["서울특별시"]),
        ("대한민국의 수도 서울", ["대한민국", "서울"]),
        ("ROK는 ROK은 NYC에서", ["ROK", "ROK", "NYC"]),  # how Latin letters are read is not in the text
        ("가는 가", []),  # a single letter
    ],
)
def test_korean_particles(text: str, mentions: list[str]) -> None:
    assert [mention for mention, _ in link(TrieLinker.from_graph(TOWN), text)] == mentions


def test_labels_are_composed_as_texts_are() -> None:
    """A label typed as jamo, or as a letter and its accent, is found in NFC text."""
    graph = make_graph([[unicodedata.normalize("NFD", "서울")], [unicodedata.normalize("NFD", "Łódź")]])
    assert link(TrieLinker.from_graph(graph), "서울에서 Łódź") == [("서울", 0), ("Łódź", 1)]


def test_case_may_be_ignored_and_labels_may_be_titles() -> None:
    assert link(TrieLinker.from_graph(TOWN, Settings(case=False)), "seoul told us") == [("seoul", 0), ("us", 3)]
    titles = make_graph([["Anarchism"], ["Paris (mythology)"]])
    assert link(TrieLinker.from_graph(titles), "On anarchism and Paris") == [("Paris", 1)]
    linked = link(TrieLinker.from_graph(titles, Settings(titles=True)), "On anarchism and Paris")
    assert linked == [("anarchism", 0), ("Paris", 1)]
    assert link(TrieLinker.from_graph(TOWN, Settings(common=False)), "An apple in Seoul") == [("Seoul", 0)]
    places = make_graph([["Oakland, California"], ["Earth, Wind & Fire"]])
    assert link(TrieLinker.from_graph(places), "in Oakland, Earth, Wind & Fire") == [("Earth, Wind & Fire", 1)]
    assert link(TrieLinker.from_graph(places, Settings(commas=True)), "in Oakland") == [("Oakland", 0)]


def test_priors_choose_among_entities_of_one_name() -> None:
    surfaces = [["Paris"], ["Paris"], ["Troy"], ["Paris"]]
    graph = make_graph(surfaces, [(1, 2)] * 7)
    assert link(TrieLinker.from_graph(graph), "in Paris") == [("Paris", 1)]  # degree 7
    [mention] = TrieLinker.from_graph(graph).link("in Paris")
    assert mention.score == pytest.approx(8 / 10)
    assert link(TrieLinker.from_graph(graph, Settings(priors="uniform")), "in Paris") == [("Paris", 0)]
    assert link(TrieLinker.from_graph(graph, Settings(priors="uniform", threshold=0.4)), "in Paris") == []
    counts = [("Paris", 3, 5.0), ("Paris", 1, 1.0), ("the French capital", 3, 2.0)]
    linker = TrieLinker.from_graph(graph, counts=counts)
    assert link(linker, "in Paris, the French capital") == [("Paris", 3), ("the French capital", 3)]
    assert linker.fingerprint != TrieLinker.from_graph(graph).fingerprint


def test_entities_that_the_case_rules_out_take_no_share_of_the_prior() -> None:
    graph = make_graph([["apple"], ["Apple"], ["fruit"]], [(1, 2)] * 9)
    [mention] = TrieLinker.from_graph(graph).link("an apple")
    assert (mention.entity, mention.score) == (0, 1.0)
    [mention] = TrieLinker.from_graph(graph).link("of Apple")
    assert (mention.entity, mention.score) == (1, pytest.approx(10 / 11))


def test_held_out_triples_give_no_prior() -> None:
    graph = Graph.from_triples(
        [(0, 0, 2)],
        ["A", "B", "C"],
        ["r"],
        labels=["Paris", "Paris", "Troy"],
        valid=[(1, 0, 2)] * 5,
        test=[(1, 0, 2)] * 5,
    )
    [mention] = TrieLinker.from_graph(graph).link("in Paris")
    assert (mention.entity, mention.score) == (0, pytest.approx(2 / 3))


def test_of_very_many_entities_those_of_large_weight_are_candidates() -> None:
    graph = make_graph([["Smith"]] * 200, [(150, 150)] * 4000)
    [mention] = TrieLinker.from_graph(graph).link("by Smith")
    assert mention.entity == 150
    assert len(TrieLinker.from_graph(graph).candidates.entities) == trie.MAX_CANDIDATES


def test_texts_do_not_run_into_each_other() -> None:
    linker = TrieLinker.from_graph(TOWN)
    batch = linker.link_batch(["New", "York", "", "New York", "South", " Korea"])
    assert batch.texts.tolist() == [3]
    assert (batch.starts.tolist(), batch.ends.tolist()) == ([0], [8])
    assert linker.link_batch([]).texts.tolist() == []
    assert linker.link("") == []


@pytest.mark.parametrize("space", [" ", "\n\n", "\t ", "\u3000"])
def test_white_space_before_the_first_word_moves_mentions_alone(space: str) -> None:
    linker = TrieLinker.from_graph(TOWN)
    plain = linker.link("서울에서 New York City")
    shifted = [(mention.start + len(space), mention.end + len(space), mention.entity) for mention in plain]
    assert [mention[:3] for mention in linker.link(f"{space}서울에서 New York City")] == shifted
    assert len(plain) == 2 and linker.link(space) == []


def test_a_first_name_that_begins_with_an_underscore_is_no_fault() -> None:
    """Blank nodes of N-Triples (_:b0) come first among names, and an underscore is a space."""
    graph = Graph.from_triples([[0, 0, 1]], ["_:b0", "Seoul"], ["r"])
    assert link(TrieLinker.from_graph(graph), "in Seoul") == [("Seoul", 1)]


def test_batches_do_not_change_mentions(monkeypatch: pytest.MonkeyPatch) -> None:
    linker = TrieLinker.from_graph(TOWN)
    some = ["Seoul " * 5, "no one", "New York", "US and eBay"] * 5
    expected = linker.link_batch(some)
    monkeypatch.setattr(trie, "BATCH_CHARACTERS", 20)
    assert all(np.array_equal(a, b) for a, b in zip(linker.link_batch(some), expected, strict=True))


def test_a_saved_linker_is_the_same(tmp_path: Path) -> None:
    linker = TrieLinker.from_graph(TOWN, Settings(threshold=0.4))
    linker.save(tmp_path / "linker")
    again = TrieLinker.load(tmp_path / "linker")
    assert again.fingerprint == linker.fingerprint
    assert again.settings == linker.settings
    text = "New York, 서울에서, NEW YORK, new york, Apple"
    assert again.link(text) == linker.link(text)


def test_a_damaged_linker_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "linker"
    with pytest.raises(UserError, match="not a linker"):
        TrieLinker.load(folder)
    TrieLinker.from_graph(TOWN).save(folder)
    content = json.loads((folder / "linker.json").read_text())
    content["settings"]["threshold"] = 0.9
    (folder / "linker.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="fingerprint is another"):
        TrieLinker.load(folder)
    TrieLinker.from_graph(TOWN).save(folder)
    path = folder / "entities.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(UserError, match="altered"):
        TrieLinker.load(folder)


def test_unknown_settings_are_one_message() -> None:
    with pytest.raises(UserError, match=r"has no setting 'treshold'\. Did you mean 'threshold'\?"):
        trie.build(TOWN, {"treshold": 0.5})
    with pytest.raises(UserError, match="'threshold' of the linker 'trie': Input should be less than or equal to 1"):
        trie.build(TOWN, {"threshold": 5})
    assert trie.build(TOWN, {"threshold": 0.5}).settings.threshold == 0.5


def test_plurals_of_concepts() -> None:
    graph = make_graph([["argument"], ["story"], ["coffee cup"], ["Apple"], ["series"], ["knife"]])
    text = "Two arguments in stories about Apples and apples, knives, coffee cups, seriess and series."
    with_plurals = TrieLinker.from_graph(graph, Settings(plurals=True))
    assert link(with_plurals, text) == [
        ("arguments", 0),
        ("stories", 1),
        ("knives", 5),
        ("coffee cups", 2),
        ("series", 4),
    ]
    plain = TrieLinker.from_graph(graph)
    assert link(plain, text) == [("series", 4)]
    assert with_plurals.fingerprint != plain.fingerprint


def test_the_plural_of_one_word_is_the_singular_of_another() -> None:
    """The label counts more than the plural of another label."""
    graph = make_graph([["glasse"], ["glasses"]], [(0, 1)])
    assert link(TrieLinker.from_graph(graph, Settings(plurals=True)), "with glasses") == [("glasses", 1)]


def test_linkers_before_there_were_plurals_keep_their_fingerprint() -> None:
    values = Settings().model_dump(exclude={"counts", "plurals"})
    content = json.dumps([trie.FORMAT, trie.VERSION, "g", values, ""], sort_keys=True)
    assert trie.fingerprint_linker("g", Settings(), "") == hashlib.sha256(content.encode()).hexdigest()


def test_large_counts_that_differ_by_one_have_different_hashes() -> None:
    assert hash_counts([("Paris", 3, 1_234_567.0)]) != hash_counts([("Paris", 3, 1_234_568.0)])


def test_counts_are_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "counts.tsv"
    path.write_bytes("\ufeffseoul\u2028city\tseoul\t3\r\n\n서울\tseoul\t2\n".encode())
    graph = Graph.from_triples([(0, 0, 1)], ["seoul", "korea"], ["in"])
    assert read_counts(path, graph) == [("seoul\u2028city", 0, 3.0), ("서울", 0, 2.0)]


def test_a_linker_with_another_description_is_one_message(tmp_path: Path) -> None:
    TrieLinker.from_graph(Graph.from_triples([(0, 0, 1)], ["seoul", "korea"], ["in"])).save(tmp_path)
    content = json.loads((tmp_path / "linker.json").read_text())
    files = {f"../{name}": entry for name, entry in content["files"].items()}
    changes: list[dict[str, object]] = [
        {"settings": 3}, {"settings": {"threshold": "high"}}, {"settings": {"other": 1}}, {"files": []},
        {"files": {}}, {"files": files}, {"graph": None}, {"counts": 7}, {"fingerprint": "x"},
    ]  # fmt: skip
    for change in changes:
        (tmp_path / "linker.json").write_text(json.dumps(content | change))
        with pytest.raises(UserError):
            TrieLinker.load(tmp_path)
    for name in content:
        (tmp_path / "linker.json").write_text(json.dumps({key: content[key] for key in content if key != name}))
        with pytest.raises(UserError):
            TrieLinker.load(tmp_path)
