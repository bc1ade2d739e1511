"""Sentence bounds: nothing is lost, and the rules hold in English and Korean."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from etude.text.prepare.sentences import find_sentence_ends, split_sentences

alphabet = st.sampled_from(
    [*"aA1 .!?…。！？\n\t\"'”’)]다요까죠습니가고인갈 며", "Mr.", "e.g. ", "니다 ", "라고 ", "\r\n", "\u2028", " \n "]
)


@given(st.lists(alphabet, max_size=40).map("".join))
@example("")
@example("   ")
@example("\n\n")
@example("다 ")
@settings(max_examples=300, deadline=None)
def test_the_pieces_joined_are_the_text(text: str) -> None:
    assert "".join(split_sentences(text)) == text
    places = find_sentence_ends(text)
    assert places == sorted(set(places))
    assert (places[-1] == len(text)) if text else not places
    starts = [0, *places[:-1]]
    if text.strip():
        assert all(text[start:end].strip() for start, end in zip(starts, places, strict=True))


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith went to Washington on Jan. 5. ", "He met J. R. Tolkien at 3.5 p.m. ", "The end!"],
        ["“What?” he said. ", "“No.” ", "“Yes.” ", "She left... and came back."],
        ["It cost $5.00. ", "See Fig. 3 and pp. 10 ff. for more. ", "Apple Inc. ", "The company grew."],
        ["The U.S. President spoke. ", "He lives in the U.S. ", "The law is old."],
        ["Is it?! ", "Yes (it is). ", "[Really.] ", "Smith et al. wrote it, cf. Jones, i.e. nobody else."],
        ["Title\n", "First paragraph here. ", "Second one.\n", "Another line"],
        ["1. An item. ", "2. Another item."],
        ["He came at 10 a.m. ", "The train was late, e.g. by an hour etc. and so on."],
    ],
)
def test_english(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["모스크바 지하철은 1935. 5. 15. 개통되었다. ", "길이는 447.5 km이다. ", "그래요? ", "네!"],
        ["안녕하세요 ", "반갑습니다 ", "저는 학생입니다"],
        ['"나는 간다." 라고 그가 말했다. ', "“좋다.”라고 했다! ", "그렇습니까?"],
        ["갔습니다만 늦었어요. ", "가. 첫째 항목이다. ", "나. 둘째 항목이다."],
        ["그는 떠났다\n", "다음 줄이다. ", "비가 온다…"],
        ["재미있네요 ", "하지만 슬프죠 ", "그래도 봤어요."],
        ["하다 보니 늦었다. ", "보다 나은 것이 있다."],
        ["비가 오니까 우산을 가져가라. ", "그러니까 늦었다. ", "무엇을 합니까 ", "그가 물었다."],
        ["학교에 다니다 그만두었다. ", "이건 아니다 싶었다. ", "갑니다 ", "또 봅니다."],
        ["인기 가요 순위와 대중가요 시장이다. ", "누구인가요 ", "같이 갈까요 ", "아니면 쉴까요?"],
    ],
)
def test_korean(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


def test_a_polite_ending_goes_on_before_a_quoting_word() -> None:
    assert len(split_sentences("간다고 했어요 라고 말했다.")) == 1


def test_japanese_and_chinese_need_no_space() -> None:
    assert split_sentences("これは文です。次の文！「はい。」") == ["これは文です。", "次の文！", "「はい。」"]


def test_wrapped_lines_do_not_end_sentences() -> None:
    text = (
        "It was the best of times, it was the worst\nof times, it was the age of Mr.\nMicawber, it was the age of\n"
        "foolishness. It was the epoch of belief,\nit was the season of Light.\n\nCHAPTER II\n\nA new one."
    )
    assert split_sentences(text) == [
        text[: text.index("It was the epoch")],
        text[text.index("It was the epoch") : text.index("CHAPTER")],
        "CHAPTER II\n\n",
        "A new one.",
    ]


def test_time_grows_with_a_line_and_not_with_its_square() -> None:
    """A bibliography without line ends: no initial ends a sentence, so the sentence is as long as the text."""
    start = time.process_time()
    assert len(find_sentence_ends("J. 김, " * 80_000)) == 1
    assert time.process_time() - start < 4  # it took 8 s, and a text of a megabyte 27
