"""Several texts as one run of UTF-8 bytes, so that what is done to every word is array work over all of them.

A batch knows the class of each character (characters.py) and the pieces: a run of white space with what follows it, up
to the next white space or the end of the text. Positions are bytes of the batch, from which its texts follow each other
without a gap; `to_characters` and `to_bytes` translate where others count characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from etude.text.tokenizer import characters

CONTINUATION = 255  # class of the bytes of a character behind its first
PADDING = 8  # zero bytes behind the batch: eight bytes may be loaded from any position
ASCII, BYTES_ABOVE = bytes(range(128)), bytes([CONTINUATION]) * 128


def load_words(encoded: bytes) -> np.ndarray:
    """Return the eight bytes at each position as a number, (B,) uint64; zeros follow the last byte."""
    return np.ndarray((len(encoded),), "<u8", encoded + bytes(PADDING), strides=(1,))


def find_non_ascii(encoded: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the first byte, int64, and the code point, uint32, of each character that is not ASCII."""
    rest = encoded.translate(None, ASCII)
    leads = np.flatnonzero(np.frombuffer(encoded, np.uint8) >= 0xC0)
    return leads, np.frombuffer(rest.decode().encode("utf-32-le"), np.uint32)


class TextBatch:
    """Texts that are processed together. None is empty."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = "".join(texts).encode()
        lengths = list(map(len, texts)) if len(encoded) == sum(map(len, texts)) else [len(t.encode()) for t in texts]
        bounds = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        self._build(texts, encoded, bounds)

    def _build(self, texts: Sequence[str], encoded: bytes, bounds: np.ndarray) -> None:
        self.texts = texts
        self.encoded = encoded
        self.bounds = bounds  # (T + 1,) int64: first byte of each text, and the end
        self.data = np.frombuffer(encoded, np.uint8)  # (B,) uint8
        self.words = load_words(encoded)  # (B,) uint64: the eight bytes at each position
        classes = np.frombuffer(encoded.translate(characters.ascii_classes() + BYTES_ABOVE), np.uint8)
        if encoded.isascii():
            self.leads, self.codes = np.zeros(0, np.int64), np.zeros(0, np.uint32)
            self.lead_classes = np.zeros(0, np.uint8)
        else:
            self.leads, self.codes = find_non_ascii(encoded)  # (L,) first bytes, and code points
            self.lead_classes = characters.class_table().take(self.codes, mode="clip")  # (L,) uint8
            classes = classes.copy()
            classes[self.leads] = self.lead_classes
            spaces = self.leads[self.lead_classes == characters.SPACE]
            for place in (spaces + 1, spaces[self.data[spaces] >= 0xE0] + 2):  # of two bytes, or of three
                classes[place] = characters.SPACE
        self.classes = classes  # (B,) uint8; those of white space on each of its bytes
        self.is_space = classes == characters.SPACE  # (B,) bool
        is_start = self.is_space.copy()
        is_start[1:] &= ~self.is_space[:-1]
        is_start[bounds[:-1]] = True
        self.is_piece_start = is_start  # (B,) bool
        self.starts = np.flatnonzero(is_start)  # (P,) int64: first byte of each piece
        self.lengths = np.diff(self.starts, append=len(encoded))  # (P,) int64

    def __len__(self) -> int:
        return len(self.texts)

    def slice(self, first: int, last: int) -> TextBatch:
        """Return the batch of texts first..last."""
        part = TextBatch.__new__(TextBatch)
        low, high = int(self.bounds[first]), int(self.bounds[last])
        part._build(self.texts[first:last], self.encoded[low:high], self.bounds[first : last + 1] - low)
        return part

    @cached_property
    def first_pieces(self) -> np.ndarray:
        """Number of the first piece of each text, (T,) int64."""
        return np.searchsorted(self.starts, self.bounds[:-1])

    @cached_property
    def last_pieces(self) -> np.ndarray:
        """Number of the last piece of each text, (T,) int64."""
        return np.append(self.first_pieces[1:], len(self.starts)) - 1

    @cached_property
    def has_only_space(self) -> np.ndarray:
        """Whether the last piece of each text is white space alone, (T,) bool; no other can be."""
        return self.is_space[self.bounds[1:] - 1]

    @cached_property
    def breaks(self) -> np.ndarray:
        """Positions of the line breaks, ascending int64."""
        return np.flatnonzero(self.data == ord("\n"))

    @cached_property
    def _bytes_behind(self) -> np.ndarray:
        """Bytes behind the first of all characters before the one at each of `leads`, (L + 1,) int64."""
        sizes = 1 + (self.codes >= 0x800).astype(np.int64) + (self.codes >= 0x10000)
        return np.concatenate([[0], np.cumsum(sizes)])

    def count_classes(self) -> np.ndarray:
        """Count the characters of each class, (CLASSES,) int64."""
        counts = np.bincount(self.lead_classes, minlength=characters.CLASSES)
        for kind in sorted(set(characters.ascii_classes())):
            counts[kind] = np.count_nonzero(self.classes == kind)
        if len(self.leads):  # white space has its class on each of its bytes
            counts[characters.SPACE] -= np.count_nonzero(self.is_space & ((self.data & 0xC0) == 0x80))
        return counts

    def find_texts(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of the text that each byte belongs to."""
        return np.searchsorted(self.bounds, positions, "right") - 1

    def count_in_texts(self, positions: np.ndarray) -> np.ndarray:
        """Return how many of these positions, which ascend, are in each text, (T,) int64."""
        return np.diff(np.searchsorted(positions, self.bounds))

    def to_characters(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of characters of the batch before each position."""
        if not len(self.leads):
            return positions
        return positions - self._bytes_behind[np.searchsorted(self.leads, positions)]

    def to_bytes(self, places: np.ndarray) -> np.ndarray:
        """Return the position of each character of the batch: the inverse of `to_characters`."""
        if not len(self.leads):
            return places
        lead_characters = self.leads - self._bytes_behind[:-1]
        return places + self._bytes_behind[np.searchsorted(lead_characters, places)]
