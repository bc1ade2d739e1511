"""The tokens of a span are those that share a character with it, under every kind of tokenizer, cached or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.text.prepare.sentence_starts import find_sentence_starts
from etude.text.tokenizer import token_spans
from etude.text.tokenizer.batch_encoder import BatchEncoder
from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.tokenizer import Tokenizer

SAMPLE = [
    "Paris is in France. New York's (big) cafés, 서울에서는 서울이 크다. NASA가 3.5 café-au-lait 東京に naïve 😀!"
] * 3
SPECS = ("wordpiece:120,lower", "wordpiece:200", "bpe:150", "bytebpe:300", "unigram:120", "word:30", "char")
TOKENIZERS = {spec: Tokenizer.train(spec, SAMPLE) for spec in SPECS}
ENCODERS = {spec: BatchEncoder(tokenizer, 1 << 20) for spec, tokenizer in TOKENIZERS.items()}

words = st.sampled_from(
    ["Paris", "서울에서는", "(café)", "é", "😀!", "東京に", "NASA가", "x", "3.5", "--", "New", "\u200b", "York's"]
)
gaps = st.sampled_from([" ", " ", "  ", "\n", "", "\t", "\v", ". "])
texts = st.lists(st.tuples(words, gaps), min_size=1, max_size=8).map(
    lambda parts: "".join(a + b for a, b in parts).strip() or "x"
)


def plain_spans(tokenizer: Tokenizer, text: str, start: int, end: int) -> list[int]:
    """The tokens that share a character with a span, one by one."""
    offsets = tokenizer.encode(text).offsets.tolist()
    solid = {place for place in range(start, end) if not text[place].isspace()}
    return [number for number, (first, last) in enumerate(offsets) if solid & set(range(first, last))]


@pytest.mark.parametrize("spec", SPECS)
@given(st.lists(texts, min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_tokens_of_spans(spec: str, some: list[str], random: object) -> None:
    rows: list[tuple[int, int, int]] = []
    for number, text in enumerate(some):
        for _ in range(4):
            solid = [place for place, letter in enumerate(text) if not letter.isspace()]
            first, last = sorted(random.choices(solid, k=2))  # type: ignore[attr-defined]
            rows.append((number, first, last + 1))
    columns = np.array(rows, np.int64).T
    batch = TextBatch(some)
    encoded = ENCODERS[spec].encode(batch, find_sentence_starts(batch), (columns[0], columns[1], columns[2]))
    before = np.cumsum([0, *(len(TOKENIZERS[spec].encode(text)) for text in some)])
    for (number, start, end), (first, last) in zip(rows, encoded.spans.tolist(), strict=True):
        expected = [int(before[number]) + token for token in plain_spans(TOKENIZERS[spec], some[number], start, end)]
        # between them may be tokens of white space; a character that the tokenizer drops has no token
        assert (first, last) == (expected[0], expected[-1] + 1) if expected else first >= last


def test_a_name_with_its_particle_may_be_one_token() -> None:
    tokenizer = Tokenizer.train("word:30", SAMPLE)
    text = "그는 서울에서는 NASA가"
    encoded = BatchEncoder(tokenizer, 1 << 20).encode(
        TextBatch([text]), np.zeros(1, np.int64), _columns([(0, 3, 5), (0, 9, 13)])
    )
    assert encoded.spans.tolist() == [[1, 2], [2, 3]]


def test_bytes_of_one_character_go_together() -> None:
    tokenizer = Tokenizer.train("bytebpe:262", ["abc"])
    text = "a 서 b"
    encoded = BatchEncoder(tokenizer, 1 << 20).encode(TextBatch([text]), np.zeros(1, np.int64), _columns([(0, 2, 3)]))
    [[first, last]] = encoded.spans.tolist()
    assert tokenizer.decode(encoded.ids[first:last]).strip() == "서"


def test_remembered_offsets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_spans, "MAX_PIECES", 3)
    encoder = BatchEncoder(TOKENIZERS["bpe:150"], 1 << 20)
    for number in range(10):
        text = f"(Paris{number})"
        encoder.encode(TextBatch([text]), np.zeros(1, np.int64), _columns([(0, 1, 6)]))
        assert len(encoder.piece_offsets.known) <= 3


def _columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    columns = np.array(rows, np.int64).T
    return columns[0], columns[1], columns[2]
