"""The tokens of spans of characters: a token belongs to a span if any character of it that is no white space does.

So a token that a span ends inside of (a Korean name with its particle) belongs to it, and so does every token of a
character that takes several. Where tokens come from a cache of pieces (batch_encoder.py) there are no offsets: most
spans begin and end where pieces do, and for the others alone the library is asked for the offsets in their piece, which
are remembered.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.word_cache import WHITE_SPACE, Tokens

MAX_PIECES = 1 << 16  # whose offsets are remembered
Spans = tuple[np.ndarray, np.ndarray, np.ndarray]  # number of the text, start and end, (spans,) int64 each


def select_spans(spans: Spans | None, first: int, last: int) -> Spans:
    """Return the spans of texts first..last, their texts counted from there."""
    if spans is None:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    low, high = np.searchsorted(spans[0], [first, last])
    return spans[0][low:high] - first, spans[1][low:high], spans[2][low:high]


class PieceOffsets:
    """The characters of the tokens of pieces, remembered by piece."""

    def __init__(self, tokenize: Callable[[list[str]], Tokens]) -> None:
        self.tokenize = tokenize
        self.known: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def look_up(self, pieces: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the starts and ends of the tokens of each piece, both ascending."""
        if len(self.known) + len(pieces) > MAX_PIECES:
            self.known = {}
        if missing := [piece for piece in dict.fromkeys(pieces) if piece not in self.known]:
            tokens = self.tokenize(missing)
            assert tokens.offsets is not None
            ends = np.cumsum(tokens.lengths)
            for piece, first, last in zip(missing, (ends - tokens.lengths).tolist(), ends.tolist(), strict=True):
                self.known[piece] = _make_ascending(tokens.offsets[first:last])
        return [self.known[piece] for piece in pieces]


def find_tokens_of_pieces(
    batch: TextBatch, starts: np.ndarray, ends: np.ndarray, tokens: Tokens, before: np.ndarray, offsets: PieceOffsets
) -> np.ndarray:
    """Return first token and end of each span of a batch, (spans, 2) int64.

    starts, ends: positions in the batch; tokens: those of its pieces; before: tokens before each piece, (P + 1,) int64.
    """
    piece_ends = batch.starts + batch.lengths
    first_piece = np.searchsorted(batch.starts, starts, "right") - 1
    last_piece = np.searchsorted(batch.starts, ends - 1, "right") - 1
    firsts, lasts = before[first_piece], before[last_piece + 1]
    # what is between the start of the piece and that of the span may be white space alone
    solid = np.concatenate([[0], np.cumsum(~batch.is_space)])
    cut_first = np.flatnonzero(solid[starts] > solid[batch.starts[first_piece]])
    cut_last = np.flatnonzero(solid[ends] < solid[piece_ends[last_piece]])
    for cut, numbers, is_first in ((cut_first, first_piece, True), (cut_last, last_piece, False)):
        pieces = numbers[cut]
        bounds = zip(batch.starts[pieces].tolist(), piece_ends[pieces].tolist(), strict=True)
        strings = [batch.encoded[start:end].decode() for start, end in bounds]
        positions = (starts if is_first else ends)[cut]
        places = batch.to_characters(positions) - batch.to_characters(batch.starts[pieces])
        for span, place, known in zip(cut.tolist(), places.tolist(), offsets.look_up(strings), strict=True):
            base = before[numbers[span]]
            if is_first:
                firsts[span] = base + np.searchsorted(known[1], place, "right")  # tokens that end before it
            else:
                lasts[span] = base + np.searchsorted(known[0], place, "left")  # tokens that start before its end
    return _skip_space(firsts, lasts, tokens)


def find_tokens(tokens: Tokens, spans: Spans) -> np.ndarray:
    """Return first token and end of each span of several texts whose tokens have offsets, (spans, 2) int64."""
    assert tokens.offsets is not None
    before = np.concatenate([[0], np.cumsum(tokens.lengths)])
    firsts, lasts = np.zeros(len(spans[0]), np.int64), np.zeros(len(spans[0]), np.int64)
    for text in np.unique(spans[0]).tolist():
        inside = np.flatnonzero(spans[0] == text)
        starts, ends = _make_ascending(tokens.offsets[before[text] : before[text + 1]])
        firsts[inside] = before[text] + np.searchsorted(ends, spans[1][inside], "right")
        lasts[inside] = before[text] + np.searchsorted(starts, spans[2][inside], "left")
    return _skip_space(firsts, lasts, tokens)


def _make_ascending(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of tokens; those of one character may step back."""
    return np.maximum.accumulate(offsets[:, 0]), np.maximum.accumulate(offsets[:, 1])


def _skip_space(firsts: np.ndarray, lasts: np.ndarray, tokens: Tokens) -> np.ndarray:
    """Return the spans without tokens of white space at their start."""
    while len(space := np.flatnonzero(firsts < lasts)):
        space = space[(tokens.flagged[firsts[space]] & WHITE_SPACE) != 0]
        if not len(space):
            break
        firsts[space] += 1
    return np.stack([firsts, np.maximum(firsts, lasts)], axis=1)
