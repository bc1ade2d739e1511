"""Text as it comes is the text that comes at once."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.text.tokenizer.stream_decoder import StoppingDecoder, StreamDecoder
from etude.text.tokenizer.tokenizer import Tokenizer

TEXT = "the cat sat on the mat. 고양이가 집에 있다! naïve café 123, don't"
SPECS = ["bytebpe:300", "bpe:300", "bpe:1500", "char:1400", "unigram:1500", "wordpiece:200", "word:50"]


@cache
def tokenizer(spec: str) -> Tokenizer:
    return Tokenizer.train(spec, [TEXT] * 20)


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_pieces_are_the_text(spec: str, data: st.DataObject) -> None:
    """Of any ids, broken characters among them; behind nothing, and behind a text."""
    words = tokenizer(spec)
    ids = data.draw(st.lists(st.integers(0, words.vocab - 1), max_size=20))
    stream = StreamDecoder(words)
    assert "".join([*map(stream.push, ids), stream.finish()]) == words.decode(ids)
    together, cut = StreamDecoder(words), data.draw(st.integers(0, len(ids)))
    assert together.push_all(ids[:cut]) + together.push_all(ids[cut:]) + together.finish() == words.decode(ids)

    before = words.encode(data.draw(st.sampled_from(["", "the", "고양이가 ", "mat."]))).ids.tolist()
    letters = data.draw(st.text("the cat고양이é漢😀.,!", max_size=12))
    after = words.encode(letters).ids.tolist()
    stream = StreamDecoder(words, before)
    pieces = [*map(stream.push, after), stream.finish()]
    if not (before and after and words.token(before[-1]).startswith("<0x")):
        assert words.decode(before) + "".join(pieces) == words.decode(before + after)


@pytest.mark.parametrize("spec", ["bytebpe:262", "bpe:1500"])
def test_no_piece_ends_inside_a_character(spec: str) -> None:
    words = tokenizer(spec)
    text = "漢字 and 😀 고"
    stream = StreamDecoder(words)
    pieces = [stream.push(id) for id in words.encode(text).ids]
    assert "�" not in "".join(pieces) and "".join(pieces) + stream.finish() == text
    assert len([piece for piece in pieces if piece]) > 3


def test_a_branch_goes_its_own_way() -> None:
    words = tokenizer("bytebpe:262")
    first, second, third = words.encode("고").ids.tolist()
    decoder = StoppingDecoder(StreamDecoder(words), ["고양"])
    assert decoder.push(first) == decoder.push(second) == ""
    branch = decoder.branch()
    assert decoder.push(third) == "" and decoder.finish() == "고"
    assert branch.finish() == "�"


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("ab", max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_a_stop_string_is_found_however_the_tokens_cut_it(text: str, stops: list[str], data: st.DataObject) -> None:
    class Pieces:  # tokens are pieces of the text, of any length
        def __init__(self) -> None:
            cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
            self.parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

        def push(self, id: int) -> str:
            return self.parts[id]

        def finish(self) -> str:
            return ""

    pieces = Pieces()
    stopped = StoppingDecoder(pieces, stops)  # type: ignore[arg-type]
    text_so_far = ""
    for number in range(len(pieces.parts)):
        text_so_far += stopped.push(number)
        if stopped.stopped:
            break
        seen = sum(map(len, pieces.parts[: number + 1]))
        # no more is held back than could begin a stop string
        assert seen - len(text_so_far) < max([1, *map(len, stops)])
    text_so_far += stopped.finish()
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(stop) for stop in stops)]
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        assert text_so_far == text[: ends[0] - longest] and stopped.stopped
    else:
        assert text_so_far == text and not stopped.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="stop string is empty"):
        StoppingDecoder(StreamDecoder(tokenizer("word:50")), [""])
