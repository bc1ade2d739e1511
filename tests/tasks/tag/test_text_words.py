"""Plain text is cut into words as taggers' files have them, and every word is found again in the text."""

from __future__ import annotations

import pytest

from etude.tasks.tag.sentences import parse
from etude.tasks.tag.text_words import split_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I saw Germany.", "I saw Germany ."),
        ("Conrad's mill isn't there, is it?", "Conrad 's mill is n't there , is it ?"),
        ("We’ll go; she can't. They cannot!", "We ’ll go ; she ca n't . They can not !"),
        ("Mr. Kim of the U.S. paid $3.50 (5%).", "Mr. Kim of the U.S. paid $ 3.50 ( 5 % ) ."),
        ('"Well..." said J. Smith-Jones.', '" Well ... " said J. Smith-Jones .'),
        ("See https://a.org/b?c=1, or @kim #tag a@b.org.", "See https://a.org/b?c=1 , or @kim #tag a@b.org ."),
        ("김철수는 서울에서 「봄」을 읽었다.", "김철수는 서울에서 「 봄」을 읽었다 ."),
        ("그는 “네!”라고 했다…", "그는 “ 네!”라고 했다 …"),
        ("", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    pieces = split_text(text)
    assert " ".join(piece.word for piece in pieces) == words
    assert all(text[piece.start : piece.stop] == piece.word for piece in pieces)
    assert "".join(piece.word for piece in pieces) == "".join(text.split()), "no letter is lost"


def test_text_with_tags_is_cut_at_its_spaces() -> None:
    record = {"text": "Berlin, Germany.", "tags": ["B-LOC", "B-LOC"]}
    assert parse(record, {}, "x:1").words == ["Berlin,", "Germany."]
    assert parse(record, {}, "x:1", labelled=False).words == ["Berlin", ",", "Germany", "."]
