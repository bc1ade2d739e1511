"""Neighbours, analogies, similarity and coverage on vectors whose answers are known."""

from __future__ import annotations

import gzip
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from etude.errors import UserError
from etude.hub.word_vectors import WordVectors
from etude.text.tokenizer.char_ngrams import NgramTable
from etude.view.coverage import measure_coverage
from etude.view.neighbours import analogy, neighbours
from etude.view.word_scores import Analogies, Similarity, analogies, describe, score_file, similarity
from tests.shared_data import DATA

# royal, male, plural
ROYAL = {
    "man": (0, 1, 0), "woman": (0, -1, 0), "king": (3, 1, 0), "queen": (3, -1, 0), "men": (0, 1, 2),
    "women": (0, -1, 2), "kings": (3, 1, 2), "queens": (3, -1, 2),
}  # fmt: skip


def vectors() -> WordVectors:
    return WordVectors(list(ROYAL), np.array(list(ROYAL.values()), np.float32))


def test_neighbours_are_by_cosine() -> None:
    result = neighbours(vectors(), "King", top=3)
    assert [word for word, _ in result] == ["kings", "queen", "queens"] or result[0][0] in ("kings", "queen")
    unit = vectors().unit
    assert result[0][1] == pytest.approx(float((unit @ unit[2])[[0, 1, 3, 4, 5, 6, 7]].max()))
    assert "king" not in [word for word, _ in result] and result == sorted(result, key=lambda item: -item[1])


def test_an_unknown_word_is_told_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"'quen' is not among the 8 words.*queen"):
        neighbours(vectors(), "quen")
    spelled = WordVectors(vectors().words, vectors().matrix, grams=NgramTable(np.tile([3.0, -1, 0], (5, 1)), 3, 6))
    assert neighbours(spelled, "quen", top=1, unknown="subwords")[0][0] == "queen"
    with pytest.raises(UserError, match="--unknown subwords") as told:
        neighbours(spelled, "quen")
    assert "--unknown" not in told.value.message
    with pytest.raises(UserError, match="is 0"):
        neighbours(vectors(), "quen", unknown="zero")


def test_pieces_of_words_are_neighbours_of_pieces_only() -> None:
    matrix = np.array([[1, 0], [0.9, 0.1], [0.8, 0.3], [0.7, 0.5]], np.float32)
    split = WordVectors(["baker", "##aker", "cook", "##ook"], matrix)
    assert [word for word, _ in neighbours(split, "baker")] == ["cook"]
    assert [word for word, _ in neighbours(split, "##aker")] == ["baker", "cook", "##ook"]
    assert not analogy(split, "baker", "cook", "cook")


def test_pieces_of_words_and_long_lists_are_not_suggested() -> None:
    words = ["maker", "##aker", *(f"w{number}" for number in range(1000))]
    many = WordVectors(words, np.ones((len(words), 2), np.float32))
    for word, hint in (("aker", " Did you mean 'maker'?"), ("xyz", ""), ("aker" * 100, "")):
        with pytest.raises(UserError) as told:
            neighbours(many, word)
        shown = word if len(word) <= 40 else f"{word[:40]}…"
        assert str(told.value) == f"'{shown}' is not among the 1,002 words.{hint}"


@pytest.mark.parametrize("rule", ["add", "multiply"])
def test_an_analogy_leaves_out_its_three_words(rule: str) -> None:
    assert analogy(vectors(), "man", "king", "woman", top=1, rule=rule)[0][0] == "queen"
    assert not {"man", "king", "woman"} & {word for word, _ in analogy(vectors(), "man", "king", "woman", 8, rule)}


def test_questions_by_group_and_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt.gz"
    lines = ": family\nMan King Woman Queen\nman woman king men\n"
    lines += ": gram1-plural\nking kings queen queens\nman men dog dogs\n"
    path.write_bytes(gzip.compress(lines.encode()))
    result = score_file(vectors(), path)
    assert isinstance(result, Analogies) and result.name == "questions"
    assert result.correct == {"family": 1, "gram1-plural": 1} and result.questions == {"family": 2, "gram1-plural": 1}
    assert result.left_out == 1 and result.most == 8
    assert (result.semantic, result.syntactic, result.accuracy) == (0.5, 1.0, 2 / 3)
    assert "66.67% of 3 questions" in describe(result) and result.json()["accuracy"] == 2 / 3
    few = analogies(vectors(), path, most=4)
    assert few.left_out == 3 and few.questions == {"family": 1, "gram1-plural": 0} and few.accuracy == 1.0


def test_similarity_is_spearmans(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("Word 1,Word 2,Human (mean)\nman,woman,1\nman,men,5\nking,kings,8.5\nking,dog,3\nking,man,4\n")
    result = score_file(vectors(), path)
    assert isinstance(result, Similarity) and (result.pairs, result.left_out) == (4, 1)
    # cosines: -1, 1/sqrt(5), 10/sqrt(140), 1/sqrt(10): 0.447 stands above 0.316, as 5 above 4
    assert result.correlation == pytest.approx(1.0)
    assert "Spearman 1.0000 over 4 pairs, 1 left out" in describe(result)
    assert similarity(vectors(), path, "zero").pairs == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [(": a\nman king woman\n", r":2: expected four words"), ("man king\n", r":1: expected two words and a score"),
     ("man king x\nman men y\n", r":2: 'y' is not a score"), ("man woman 1\n", "only 1 have both words known"),
     (": a\ncat cats dog dogs\n", "no question has all its words")],
)  # fmt: skip
def test_broken_sets_are_told(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        score_file(vectors(), path)
    with pytest.raises(UserError, match="There is no file"):
        score_file(vectors(), tmp_path / "none")


def test_coverage_says_how_words_are_found() -> None:
    known = WordVectors(["the", "dog", "0000", "Rex"], np.eye(4, dtype=np.float32))
    result = measure_coverage(known, ["The dog Rex, born 1999,", "the cat. The cat cat!"])
    assert result.words == 14 and result.known == {"as written": 3, "lower case": 2, "digits as 0": 1}
    assert result.unknown.most_common(1) == [("cat", 3)] and result.from_ngrams is None
    assert result.share == pytest.approx(8 / 14)
    spelled = WordVectors(known.words, known.matrix, grams=NgramTable(np.ones((9, 4), np.float32), 4, 5))
    assert measure_coverage(spelled, ["the cat ,"]).from_ngrams == 1


EVALUATIONS = DATA / "wordvec_eval"


@pytest.mark.skipif(not EVALUATIONS.is_dir(), reason="the evaluation sets are not there")
def test_the_published_sets_have_their_published_sizes() -> None:
    words: dict[str, None] = {}
    for name in ("EN-WS-353-ALL.txt.gz", "EN-MEN-TR-3k.txt.gz", "questions-words.txt.gz"):
        for line in gzip.decompress((EVALUATIONS / name).read_bytes()).decode().splitlines():
            if not line.startswith(":"):
                words |= dict.fromkeys(field.lower() for field in line.split())
    chance = np.random.default_rng(0)
    random = WordVectors(list(words), chance.normal(size=(len(words), 20)).astype(np.float32))
    assert similarity(random, EVALUATIONS / "EN-WS-353-ALL.txt.gz").pairs == 353
    men = similarity(random, EVALUATIONS / "EN-MEN-TR-3k.txt.gz")
    assert men.pairs == 3000 and abs(men.correlation) < 0.1
    result = analogies(random, EVALUATIONS / "questions-words.txt.gz", None)
    assert len(result.questions) == 14 and sum(result.questions.values()) == 19544 and result.accuracy < 0.01


def test_writings_of_a_word_are_one_answer_and_one_question_word(tmp_path: Path) -> None:
    """As word2vec's and gensim's evaluations, which compare words in capitals."""
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman queen\n")
    cased = {**ROYAL, "King": (3, -0.9, 0), "Queen": (3, -1.1, 0)}
    for names in (cased, {word: cased[word] for word in cased if word != "King"}):
        result = analogies(WordVectors(list(names), np.array(list(names.values()), np.float32)), path)
        assert result.correct == {"family": 1}


def test_a_group_that_comes_twice_keeps_all_its_questions(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(": family\nman king woman queen\n: plural\nman men woman women\n: family\nking man queen woman\n")
    result = analogies(vectors(), path)
    assert result.questions == {"family": 2, "plural": 1}
    assert "syntactic" not in describe(result), "there is no group of grammar"
    assert result.json()["syntactic"] is None, "JSON has no NaN"


def test_korean_files_of_spreadsheets_and_macs_are_read(tmp_path: Path) -> None:
    korean = WordVectors(["왕", "남자", "여자", "여왕"], np.array(list(ROYAL.values()), np.float32)[[2, 0, 1, 3]])
    path = tmp_path / "questions.txt"
    text = unicodedata.normalize("NFD", ": 가족\n남자 왕 여자 여왕\n")
    path.write_text(text, encoding="utf-8-sig")
    result = score_file(korean, path)
    assert isinstance(result, Analogies) and result.correct == {"가족": 1}
    assert neighbours(korean, unicodedata.normalize("NFD", "여왕")) == neighbours(korean, "여왕")
    assert analogy(korean, *unicodedata.normalize("NFD", "남자 왕 여자").split())[0][0] == "여왕"


def test_files_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_bytes("왕,여왕,9.1\n".encode("cp949"))
    with pytest.raises(UserError, match=r"pairs.csv is not UTF-8. It reads as CP949 \(Korean"):
        score_file(vectors(), path)
    path = tmp_path / "pairs.csv.gz"
    for content in (b"man,men,5\n", gzip.compress(b"man,men,5\n" * 99)[:-12]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"pairs.csv.gz cannot be unpacked"):
            score_file(vectors(), path)
