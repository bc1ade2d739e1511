"""The official rules of question answering, by hand-worked cases."""

from __future__ import annotations

import pytest

from etude.tasks.span.answers import (
    MARGIN,
    best_threshold,
    choose_references,
    clear_of,
    exact,
    f1,
    normalise,
    normalise_klue,
    normalise_korquad,
    overlap,
)
from etude.tasks.span.questions import Question
from etude.tasks.span.scoring import SpanScoring


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Cat, sat!", "cat sat"),
        ("  A  an THE  ", ""),
        ("theatre and a banana", "theatre and banana"),  # articles are whole words
        ("state-of-the-art", "stateoftheart"),  # punctuation is deleted first, not replaced by a space
        ("U.S.A.", "usa"),
        ("«the» “quoted”", "« » “quoted”"),  # only ASCII punctuation goes
        ("the\u00a0end", "end"),  # a no-break space is white space
        ("", ""),
    ],
)
def test_squad_normalisation(text: str, wanted: str) -> None:
    assert normalise(text) == wanted


def test_exact_and_f1_by_hand() -> None:
    assert exact("the Cat.", ["dog", "a cat"]) == 1.0 and exact("cat food", ["cat"]) == 0.0
    # 2 common of 3 predicted and 2 wanted: P 2/3, R 1 -> 0.8; the better reference counts
    assert f1("big cat food", ["elephant", "cat food"]) == pytest.approx(0.8)
    # bags: "new" twice in the prediction, once in the reference
    assert f1("new new york", ["new york city"]) == pytest.approx(2 / 3)
    assert f1("dog", ["cat"]) == 0.0


@pytest.mark.parametrize(
    ("prediction", "reference", "version1", "version2"),
    [("", "", 0.0, 1.0), ("", "cat", 0.0, 0.0), ("cat", "", 0.0, 0.0), ("the", "", 0.0, 1.0), ("!", "an", 0.0, 1.0)],
)
def test_empty_answers(prediction: str, reference: str, version1: float, version2: float) -> None:
    """Version 1.1 knows no common word as 0; version 2 knows questions without an answer."""
    assert f1(prediction, [reference], "squad1") == version1
    assert f1(prediction, [reference], "squad2") == version2


def test_korquad_counts_characters() -> None:
    assert normalise_korquad("《책》 'The' (부제)") == "책 the 부제"
    assert exact("<서울>", ["서울"], "korquad") == 1.0 and exact("서울 시", ["서울시"], "korquad") == 0.0
    # 서울시에서 and 서울시: 3 of 5 and 3 of 3 -> 0.75; a particle costs exact match, not all of F1
    assert f1("서울시에서", ["서울시"], "korquad") == pytest.approx(0.75)
    assert exact("서울시에서", ["서울시"], "korquad") == 0.0
    assert f1("서울 시", ["서울시"], "korquad") == 1.0  # spaces do not count in F1


def test_klue_takes_the_longest_common_run() -> None:
    assert normalise_klue("《책》, The") == "《책》 the"  # neither brackets nor articles go
    # "이순신" is the longest run: 3 of 6 ("이순신 장군") and 3 of 3
    assert f1("이순신 장군", ["이순신"], "klue") == pytest.approx(2 / 3)
    assert f1("abxcd", ["abcd"], "klue") == pytest.approx(2 * (2 / 5) * (2 / 4) / (2 / 5 + 2 / 4))
    assert f1("가", ["나"], "klue") == 0.0


def test_coqa_leaves_one_out() -> None:
    assert f1("cat", ["cat"], "coqa") == 1.0
    # golds: cat, dog. Without the first the best is 0, without the second 1
    assert f1("cat", ["cat", "dog"], "coqa") == 0.5
    assert f1("cat", ["cat", "cat", "dog"], "coqa") == pytest.approx(1.0)
    assert f1("unknown", ["unknown", "unknown"], "coqa") == 1.0
    assert exact("the cat", ["Cat!", "dog"], "coqa") == 0.5 and f1("", [""], "coqa") == 1.0


def test_only_version_2_leaves_out_references_of_which_nothing_is_left() -> None:
    """Grades are answers of CoQA: 'A' is an article to its clean-up, and stays one of several references there."""
    texts = ["A", "an A", "A grade"]
    item = Question("1", "Which grade?", "She got an A grade.", tuple((text, 0) for text in texts))
    assert choose_references(texts, "squad2") == ["A grade"]
    assert choose_references(["the"], "squad2") == choose_references([], "squad1") == [""]
    for rules in ("squad1", "korquad", "klue", "coqa"):
        assert choose_references(texts, rules) == texts
        assert SpanScoring("f1", rules, null=False).value("exact", "A", item) == 1.0
    assert SpanScoring("f1", "coqa", null=False).value("f1", "A", item) == 1.0, "one of the others always fits"
    assert SpanScoring("f1", "squad2", null=True).value("exact", "A", item) == 0.0


def test_threshold_walk_by_hand() -> None:
    """All null gives 2 of 4 (two have no answer). Upwards: +1, -1, +0.5 -> best after the first."""
    scores = [1.0, 0.0, 0.5, 0.0]
    no_answer, answerable, empty = [-3.0, -1.0, 0.0, 2.0], [True, False, True, False], [False] * 4
    assert best_threshold(no_answer, scores, answerable, empty) == (0.75, -3.0)
    # an empty best span costs a question without an answer nothing
    assert best_threshold(no_answer, scores, answerable, [False, True, False, False]) == (0.875, 0.0)
    assert best_threshold([5.0], [0.0], [False], [False]) == (1.0, 0.0), "nothing is better than all null: 0 stays"
    assert best_threshold([5.0], [0.0], [True], [False]) == (0.0, 0.0), "what is as good is not better"


def test_overlap_of_nothing() -> None:
    assert overlap([], []) == 0.0 and overlap(["a"], []) == 0.0


def test_a_threshold_is_clear_of_what_it_parts() -> None:
    nulls = [-3.0, 1.0, -0.5, 1.0 + 1e-7, 4.0]
    assert clear_of(-3.0, nulls) == -1.75
    assert clear_of(1.0, nulls) == 2.5, "what is equal but for rounding stays on one side"
    assert clear_of(4.0, nulls) == 4.0 + MARGIN
    assert clear_of(0.0, nulls) == 0.0, "no value of theirs: left alone"
    for threshold in nulls:
        moved = clear_of(threshold, nulls)
        assert min(abs(moved - value) for value in nulls) >= MARGIN
