"""Text in pieces between two boundary symbols: what a two-tower model reads (Baevski et al. 2019, section 4.2) [code].

Every document is cut into pieces of at most `length - 2` tokens, each wrapped by the same symbol at both ends. All
pieces end to end are one stream, read in rows of a fixed size; a piece that crosses the end of a row becomes two
sequences. So every token of the text is in exactly one sequence of an epoch, and any row is found at once: where
document k begins in the stream follows from its place in the corpus and the pieces before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.chance import fold
from etude.objectives.base import Row
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.char_ids import SENTENCE_END

BLOCK = 1024  # documents between two places that are remembered; what lies between is counted when it is needed


@dataclass
class WrappedRow(Row):
    inside: np.ndarray | None = None  # (n,) bool: a token of the text, not a boundary symbol
    words: list[bytes | int] | None = (
        None  # (n,) the letters of each, or the mark of a boundary (text/tokenizer/char_ids.py)
    )
    counted: int = 0  # tokens from here on belong to the first row too, around the end of the text
    most: int = 0  # no row of this corpus holds more sequences


class Stream:
    """All wrapped pieces of a corpus end to end."""

    def __init__(self, corpus: Corpus, length: int, boundary: int) -> None:
        self.corpus, self.length, self.boundary = corpus, length, boundary
        self.room = length - 2  # tokens of the text in a full piece
        self.documents = len(corpus.documents)
        firsts = range(0, self.documents, BLOCK)
        pieces = [self._pieces(first, min(first + BLOCK, self.documents)).sum() for first in firsts]
        self.before = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)  # pieces before each block
        self.blocks = np.array([int(corpus.documents[first]) for first in firsts]) + 2 * self.before[:-1]
        self.total = corpus.total + 2 * int(self.before[-1])

    def _pieces(self, first: int, last: int) -> np.ndarray:
        """Of each of the documents from `first` up to and without `last`."""
        return -(-np.diff(self.corpus.documents.slice(first, last + 1)) // self.room)

    def part(self, first: int, last: int) -> Part:
        """Some documents, by number."""
        block = first // BLOCK
        pieces = self._pieces(block * BLOCK, last)
        before = self.before[block] + np.cumsum(pieces) - pieces
        skipped = first - block * BLOCK
        bounds = self.corpus.documents.slice(first, last + 1)
        return Part(first, bounds, bounds[:-1] + 2 * before[skipped:], before[skipped:], pieces[skipped:])

    def part_of(self, start: int, stop: int) -> Part:
        """The documents that places `start` to `stop` of the stream lie in."""
        low, high = (int(np.searchsorted(self.blocks, place, side="right")) - 1 for place in (start, stop - 1))
        part = self.part(low * BLOCK, min((high + 1) * BLOCK, self.documents))
        first, last = (int(np.searchsorted(part.starts, place, side="right")) - 1 for place in (start, stop - 1))
        return part.cut(first, last + 1)

    def read(self, start: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens int32, where each lies in the corpus (-1: a boundary symbol), and where pieces begin; (size,) each."""
        parts = []
        start %= self.total
        while size:
            stop = min(start + size, self.total)
            parts.append(self._read(start, stop))
            start, size = stop % self.total, size - (stop - start)
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))  # type: ignore[return-value]

    def _read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        part = self.part_of(start, stop)
        place = np.arange(start, stop)
        owner = np.searchsorted(part.starts, place, side="right") - 1
        piece, within = np.divmod(place - part.starts[owner], self.length)
        ahead = piece * self.room  # tokens of the document before this piece
        size = np.minimum(np.diff(part.bounds)[owner] - ahead, self.room) + 2
        marker = (within == 0) | (within == size - 1)
        offset = np.where(marker, -1, part.bounds[owner] + ahead + within - 1)
        tokens = np.full(stop - start, self.boundary, np.int32)
        text = offset[~marker]
        if len(text):
            tokens[~marker] = self.corpus.tokens(int(text[0]), int(text[-1]) + 1)  # every token in between is text
        return tokens, offset, within == 0

    def most_sequences(self, tokens: int) -> int:
        """No more sequences lie in so many consecutive places, around the end of the stream too.

        In a document pieces begin every `length` places, where it ends sooner: no stretch holds more beginnings than
        one from the start of a document, and one more. Another is the rest of a piece that began before.
        """
        if tokens >= self.total:
            return -(-tokens // self.total) * int(self.before[-1]) + 1
        reach, most = tokens // 3 + 2, 1  # a piece has at least three places
        head = self.part(0, min(reach, self.documents))
        for first in range(0, self.documents, BLOCK):
            last = min(first + BLOCK, self.documents)
            part = self.part(first, min(last + reach, self.documents))
            place = part.starts[: last - first] + tokens
            beyond = np.maximum(place - self.total, 0)
            pieces = part.pieces_before(np.minimum(place, self.total), self.length) + head.pieces_before(
                beyond, self.length
            )
            most = max(most, int((pieces - part.before[: last - first]).max()))
        return most + 2


@dataclass(frozen=True)
class Part:
    """Some documents of a stream, in order."""

    first: int  # the number of the first of them
    bounds: np.ndarray  # (n+1,) in the corpus
    starts: np.ndarray  # (n,) in the stream
    before: np.ndarray  # (n,) pieces before each
    pieces: np.ndarray  # (n,) pieces of each

    def cut(self, start: int, stop: int) -> Part:
        chosen = slice(start, stop)
        return Part(
            self.first + start,
            self.bounds[start : stop + 1],
            self.starts[chosen],
            self.before[chosen],
            self.pieces[chosen],
        )

    def pieces_before(self, place: np.ndarray, length: int) -> np.ndarray:
        """How many pieces of the stream begin before each place; 0 before the first."""
        owner = np.searchsorted(self.starts, place, side="left") - 1
        inside = np.minimum(-(-(place - self.starts[owner]) // length), self.pieces[owner])
        return np.where(owner < 0, 0, self.before[owner] + inside)


class WrappedRows:
    """Row i is the i-th stretch of the stream; other epochs begin elsewhere in it."""

    shuffle = True

    def __init__(self, stream: Stream, seed: int, row_tokens: int, letters: bool = False) -> None:
        self.stream, self.seed, self.size, self.letters = stream, seed, row_tokens, letters
        if letters:
            stream.corpus.surfaces(0, 0)  # refuses, with a reason, where there are none
        self.row_tokens: int | None = row_tokens
        self.count = -(-stream.total // row_tokens)
        self.most = stream.most_sequences(row_tokens)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> WrappedRow:
        epoch, place = divmod(index, self.count)
        cut = fold(self.seed, epoch, "cut") % self.stream.total if epoch else 0
        start = place * self.size
        tokens, places, starts = self.stream.read(cut + start, self.size)
        starts[0] = True
        bounds = np.append(np.flatnonzero(starts), self.size).astype(np.int32)
        counted = min(self.size, self.stream.total - start)
        words = self._words(places) if self.letters else None
        return WrappedRow(index, tokens, bounds, None, 0, places >= 0, words, counted, self.most)

    def _words(self, places: np.ndarray) -> list[bytes | int]:
        """The letters of tokens at these places of the corpus; where there is none, the mark of an end."""
        text = places[places >= 0]
        turn = np.flatnonzero(np.diff(text) < 0) + 1  # where the row goes around the end of the text
        words = iter(
            [
                word
                for part in np.split(text, turn)
                if len(part)
                for word in self.stream.corpus.surfaces(int(part[0]), int(part[-1]) + 1)
            ]
        )
        return [next(words) if place >= 0 else SENTENCE_END for place in places.tolist()]
