"""Words and pieces: which piece represents which word, and windows over sentences that are too long.

A tagger gives one tag to each *unit*. For sentences of words a unit is a word, read at its first piece (BERT, section
5.3) or its last, which in a causal model is the only one that has seen the whole word. For text that is tagged
character by character (KLUE) a unit is a piece, whose tag is that of its first character.

A sentence of more pieces than a model can see is read in windows that overlap, and every unit in the window where it
has most context on its poorer side; the tagger's own layers still see the sentence as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.models.framing import Framing
from etude.text.tokenizer.tokenizer import Tokenizer

PieceChoice = Literal["first", "last"]


@dataclass(frozen=True)
class Pieces:
    """One sentence in pieces."""

    ids: np.ndarray  # (n,) int32
    units: np.ndarray  # (units,) int64, rising: the piece of each unit
    heads: np.ndarray  # (units,) the first word or character of each unit
    owners: np.ndarray  # (words or characters,) the unit of each, -1 where it has none (white space)


def split_words(
    sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, which: PieceChoice, places: Sequence[str]
) -> list[Pieces]:
    """Sentences of words; they are encoded with one space between words, as they would stand in a text."""
    normal = [[tokenizer.normalise(word) for word in words] for words in sentences]
    encodings = tokenizer.encode_batch([" ".join(words) for words in normal])
    pieces = []
    for words, encoding, where in zip(normal, encodings, places, strict=True):
        lengths = np.array([len(word) for word in words], dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        ids, offsets = encoding.ids, encoding.offsets
        # a piece that begins with the space before a word is the word's
        word = np.searchsorted(starts + lengths, offsets[:, 0], side="right").clip(max=len(words) - 1)
        blank = offsets[:, 1] <= starts[word]  # the space alone: it represents a word only if nothing else does
        missing = np.setdiff1d(np.arange(len(words)), word)
        if len(missing):  # the tokenizer drops such words (a lone accent), or has them within another's piece
            before = np.searchsorted(word, missing)
            ids = np.insert(ids, before, _unknown(tokenizer, words[missing[0]], where))
            word, blank = np.insert(word, before, missing), np.insert(blank, before, False)
        units = np.empty(len(words), dtype=np.int64)
        for part in (np.flatnonzero(blank), np.flatnonzero(~blank)):  # where both are there, the second counts
            part = part[::-1] if which == "first" else part
            units[word[part]] = part  # of several, the one written last stays
        pieces.append(Pieces(ids, units, np.arange(len(words)), np.arange(len(words))))
    return pieces


def split_characters(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer, places: Sequence[str]) -> list[Pieces]:
    """Sentences of characters, which together are the text."""
    texts = ["".join(characters) for characters in sentences]
    pieces = []
    for characters, text, encoding, where in zip(sentences, texts, tokenizer.encode_batch(texts), places, strict=True):
        ids = encoding.ids if len(encoding) else np.array([_unknown(tokenizer, text, where)], dtype=np.int32)
        bounds = _normal_bounds(text, tokenizer)
        piece_at = np.full(bounds[-1] + 1, -1, dtype=np.int64)
        for piece in range(len(encoding) - 1, -1, -1):  # of several pieces for one character the first counts
            start, stop = encoding.offsets[piece]
            piece_at[start:stop] = piece
        # a character that was joined to the one before (jamo) has no place of its own
        owner = piece_at[np.minimum(bounds[:-1], np.maximum(bounds[1:] - 1, 0))]
        owner[[character.isspace() for character in characters]] = -1
        units, heads = np.unique(owner[owner >= 0], return_index=True)
        owners = np.where(owner < 0, -1, np.searchsorted(units, owner))
        pieces.append(Pieces(ids, units, np.flatnonzero(owner >= 0)[heads], owners))
    return pieces


def _normal_bounds(text: str, tokenizer: Tokenizer) -> np.ndarray:
    """(characters + 1,) where each character starts in the NFC text, which offsets point into."""
    if tokenizer.normalise(text) == text:
        return np.arange(len(text) + 1)
    bounds, before = [0], 0
    for part in re.findall(r"\s+|\S+", text):  # nothing composes with white space, so each word by itself
        bounds += [before + len(tokenizer.normalise(part[:end])) for end in range(1, len(part) + 1)]
        before = bounds[-1]
    return np.array(bounds)


def _unknown(tokenizer: Tokenizer, word: str, where: str) -> int:
    if tokenizer.special.unknown is None:
        raise UserError(
            f"{where}: the tokenizer leaves nothing of '{word}', and has no token for unknown words. Remove the word."
        )
    return tokenizer.special.unknown


# --- windows ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FramedSentence:
    """One sentence as a model reads it: one sequence, or several windows end to end."""

    tokens: np.ndarray  # (n,) int32
    bounds: np.ndarray  # (windows + 1,) int32
    units: np.ndarray  # (units kept,) the token of each unit
    cut: bool  # whether units at the end were lost


def frame_sentence(
    pieces: Pieces, frame: Framing, long: Literal["window", "cut"], stride: int | None
) -> FramedSentence:
    """`stride`: pieces from one window to the next, half a window if None."""
    ids, markers = pieces.ids, len(frame.before) + len(frame.after)
    room = len(ids) if frame.length is None else frame.length - markers
    if len(ids) <= room:
        starts = np.zeros(1, dtype=np.int64)
    elif long == "cut":
        ids, starts = ids[:room], np.zeros(1, dtype=np.int64)
    else:
        step = min(stride or max(1, room // 2), room)
        starts = np.append(np.arange(0, len(ids) - room, step), len(ids) - room)
    size = min(room, len(ids))
    tokens = np.concatenate(
        [part for start in starts for part in (frame.before, ids[start : start + size], frame.after)]
    )
    units = pieces.units[pieces.units < len(ids)]
    window, most = np.zeros(len(units), np.int64), np.full(len(units), -1)
    for number, start in enumerate(starts.tolist()):
        own = slice(*np.searchsorted(units, (start, start + size)))  # units rise
        inside = units[own] - start
        context = np.minimum(inside, size - 1 - inside)
        is_more = context > most[own]  # of equals the first window stays
        most[own][is_more], window[own][is_more] = context[is_more], number
    return FramedSentence(
        tokens.astype(np.int32),
        (np.arange(len(starts) + 1) * (size + markers)).astype(np.int32),
        window * (size + markers) + len(frame.before) + units - starts[window],
        len(units) < len(pieces.units),
    )


def expand(tags: Sequence[str], pieces: Pieces, outside: str) -> list[str]:
    """Tags of the units that were read, as tags of words or characters (IOB1 or IOB2, or no chunks at all).

    The first character of a unit has its tag and the others go on (KLUE's code); so does a space within an entity.
    Units behind a cut are `outside`.
    """
    unit_tags = [*tags, *[outside] * (len(pieces.units) - len(tags))]
    expanded = [outside if owner < 0 else unit_tags[owner] for owner in pieces.owners]
    for place, (before, owner) in enumerate(pairwise(pieces.owners), 1):
        if owner >= 0 and owner == before and expanded[place] != outside:
            expanded[place] = f"I{expanded[place][1:]}"
    inside: list[int] = []  # places of a gap so far
    for place in range(1, len(expanded)):
        if pieces.owners[place] < 0:
            inside.append(place)
            continue
        if inside and inside[0] > 0 and expanded[place].startswith("I"):
            before = expanded[inside[0] - 1]
            if before != outside and before[1:] == expanded[place][1:]:
                expanded[inside[0] : place] = [expanded[place]] * len(inside)
        inside = []
    return expanded
