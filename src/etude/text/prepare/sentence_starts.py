"""Sentence bounds of many texts at once: what is plain is decided by array work, the rest by the rules one by one.

The rules are those of sentences.py, and so are the bounds (held by a property test). A sentence ends where a piece does
(text_batch.py: white space with what follows it). Where lines end, every piece before a line break ends one. Else only
its last characters and the first one behind it count, and for most pieces they are ASCII or Hangul and leave no doubt:
no mark at all; a mark before a lower-case letter; a mark behind a word that no list of abbreviations has. Pieces in
doubt are put to the rules in order, since some rules ask where the last sentence ended. Texts of wrapped lines, with
full stops of Chinese and Japanese, or with separators that only Python takes for white space, go to the rules whole.
"""

from __future__ import annotations

import numpy as np

from etude.text.prepare import sentences
from etude.text.prepare.sentences import CLOSING, STOPS, WIDE
from etude.text.tokenizer.text_batch import TextBatch

NEWLINE, POINT = 10, ord(".")
MAX_WORD = 7  # letters of a word that may be an abbreviation: more than any of the lists has
MAX_SPACES = 16  # bytes of white space that are skipped at a time for all texts
SEPARATORS = [bytes([code]) for code in range(0x1C, 0x20)]  # white space to Python, and to no tokenizer
WIDE_CODES = np.array(sorted(map(ord, WIDE)), np.uint32)
MARK_CODES = np.array(sorted(ord(mark) for mark in STOPS + CLOSING if ord(mark) >= 128), np.uint32)
FIRST_HANGUL, LAST_HANGUL = ord("가"), ord("힣")
# the syllables that sentences.POLITE asks for before the last one; 죠 ends a sentence after any
POLITE_BEFORE = {"다": "니", "까": "니", "요": "세셔어아여워와해져에예네군지나가까든데"}

OTHER, STOP, CLOSER, HIGH, LOWER, UPPER, DIGIT, CARRY_ON = range(8)  # kinds of bytes


def _list_kinds() -> np.ndarray:
    kinds = np.full(256, OTHER, np.uint8)
    kinds[128:] = HIGH
    for kind, letters in (
        (LOWER, "abcdefghijklmnopqrstuvwxyz"), (UPPER, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), (DIGIT, "0123456789"),
        (STOP, ".!?"), (CLOSER, "\"')]}"), (CARRY_ON, ",;:"),
    ):  # fmt: skip
        kinds[[ord(letter) for letter in letters]] = kind
    return kinds


KINDS = _list_kinds()
# behind a mark these carry the sentence on: lower case, and punctuation that never starts a sentence
CONTINUES = (KINDS == LOWER) | (KINDS == CARRY_ON) | np.isin(np.arange(256), [ord(mark) for mark in ")]}"])
# at the start of two lines these show that lines may be wrapped: lower case, and the bytes that à-ÿ and а-я begin with
MAY_BE_WRAPPED = (KINDS == LOWER) | np.isin(np.arange(256), [0xC3, 0xD0, 0xD1])
IS_SPACE_OF_WORDS = np.isin(np.arange(256), [ord(" "), NEWLINE])  # at which the rules look for a word's start


# the kinds of bytes that a sentence may end with; all others are OTHER
ENDING_KINDS = np.where(np.isin(KINDS, (STOP, CLOSER, HIGH)), KINDS, OTHER).tobytes()


def _pack(word: str) -> int:
    """Return a word of ASCII letters as a number, its last letter in the highest of seven bytes."""
    return int.from_bytes(word.lower().encode().rjust(MAX_WORD, b"\0"), "little")


def _list_doubtful_words() -> np.ndarray:
    words = {word for word in sentences.TITLES | sentences.BEFORE_NUMBER | sentences.MAYBE_FINAL if word.isalpha()}
    assert max(map(len, words)) <= MAX_WORD
    letters = {chr(code) for code in range(ord("a"), ord("z") + 1)}
    roman = {""}
    for _ in range(4):  # numbers of lists: iv
        roman |= {word + letter for word in roman for letter in "ivx"}
    return np.array(sorted(map(_pack, words | letters | roman - {""})), np.uint64)


DOUBTFUL_WORDS = _list_doubtful_words()
EACH_BYTE = np.uint64(int.from_bytes(b"\x01" * MAX_WORD, "little"))  # times a byte: it in each place of a packed word
ALL_BYTES, LOWER_CASE, SEVEN_BITS, HIGH_BITS = (EACH_BYTE * np.uint64(byte) for byte in (0xFF, 0x20, 0x7F, 0x80))
FROM_A, BEHIND_Z = (EACH_BYTE * np.uint64(byte) for byte in (128 - ord("a"), 127 - ord("z")))  # they carry into bit 7


def find_sentence_starts(batch: TextBatch) -> np.ndarray:
    """Return the position of each sentence's start in the batch, ascending (sentences,) int64.

    That is the first byte of a text, or the end of the sentence before (its white space follows).
    """
    by_rules = _find_irregular(batch)
    is_end = _find_line_ends(batch)
    # nothing ends behind the last piece with letters: the text itself ends there
    last = batch.last_pieces - batch.has_only_space
    is_last = np.zeros(len(is_end), bool)
    is_last[batch.last_pieces] = True
    is_last[last[last >= 0]] = True
    is_end &= ~is_last
    doubtful = _decide(batch, is_end, is_last)
    if len(by_rules):
        doubtful = doubtful[~np.isin(batch.find_texts(batch.starts[doubtful]), by_rules)]
    _apply_rules(batch, doubtful, is_end)
    is_start = np.zeros(len(is_end) + 1, bool)
    is_start[1:] = is_end
    is_start[batch.first_pieces] = True
    starts = batch.starts[np.flatnonzero(is_start[:-1])]
    return _replace_texts(batch, by_rules, starts) if len(by_rules) else starts


def _find_irregular(batch: TextBatch) -> np.ndarray:
    """Return the numbers of the texts that go to the rules whole."""
    irregular = []
    if len(batch.leads) and len(wide := batch.leads[np.isin(batch.codes, WIDE_CODES)]):
        irregular.append(batch.find_texts(wide))
    if any(separator in batch.encoded for separator in SEPARATORS):
        irregular.append(batch.find_texts(np.flatnonzero((batch.data >= 0x1C) & (batch.data <= 0x1F))))
    breaks = batch.breaks[batch.breaks < len(batch.data) - 1]
    inside = breaks[MAY_BE_WRAPPED[batch.data[breaks + 1]]]
    if len(inside) > 1:
        irregular.append(np.flatnonzero(np.bincount(batch.find_texts(inside)) > 1))
    return np.unique(np.concatenate(irregular)) if irregular else np.zeros(0, np.int64)


def _find_line_ends(batch: TextBatch) -> np.ndarray:
    """Mark the pieces before a line break, (P,) bool."""
    is_end = np.zeros(len(batch.starts), bool)
    pieces = np.searchsorted(batch.starts, batch.breaks, "right") - 1
    is_end[pieces[pieces > 0] - 1] = True  # the break is in the white space of the next one
    return is_end


def _decide(batch: TextBatch, is_end: np.ndarray, is_last: np.ndarray) -> np.ndarray:
    """Mark the pieces that end a sentence beyond doubt in `is_end`; return those in doubt, ascending.

    Pieces that are marked already, and the last ones of texts, are left alone.
    """
    data = batch.data
    last_bytes = data[batch.starts[1:] - 1]
    kinds = np.frombuffer(last_bytes.tobytes().translate(ENDING_KINDS), np.uint8)
    pieces = np.flatnonzero(kinds)
    pieces = pieces[~(is_end[pieces] | is_last[pieces])]
    kinds, ends = kinds[pieces], batch.starts[pieces + 1]
    doubtful = []
    closed = np.flatnonzero(kinds == CLOSER)
    if len(closed):  # a closing quote ends a sentence if there is a mark before it
        before = KINDS[data[np.maximum(ends[closed] - 2, 0)]]
        doubtful.append(pieces[closed[(before == STOP) | (before == CLOSER) | (before == HIGH)]])
    high = np.flatnonzero(kinds == HIGH)
    if len(high):
        doubtful.append(pieces[high[_may_end(batch, ends[high])]])
    stops = np.flatnonzero(kinds == STOP)
    doubtful.append(_decide_stops(batch, pieces[stops], ends[stops] - 1, is_end))
    return np.sort(np.concatenate(doubtful))


def _may_end(batch: TextBatch, ends: np.ndarray) -> np.ndarray:
    """Whether the character before each end, which is not ASCII, is a mark, a closing quote or a polite ending."""
    numbers = np.searchsorted(batch.leads, ends) - 1
    codes = batch.codes[numbers]
    may_end = np.isin(codes, MARK_CODES) | (codes == ord("죠"))
    previous = batch.codes[numbers - 1]  # of the very first character that is not ASCII: any, and then not adjacent
    adjacent = batch.leads[numbers - 1] == batch.leads[numbers] - 3  # a syllable of Hangul has three bytes
    for last, before in POLITE_BEFORE.items():
        chosen = (codes == ord(last)) & adjacent
        if chosen.any():
            may_end |= chosen & np.isin(previous, [ord(letter) for letter in before])
    return may_end


def _decide_stops(batch: TextBatch, pieces: np.ndarray, points: np.ndarray, is_end: np.ndarray) -> np.ndarray:
    """Decide on pieces that end in . ! or ?, which are at `points`; return the pieces in doubt."""
    data = batch.data
    following, reached = _skip_space(batch, batch.starts[pieces + 1])
    next_bytes = data[following]
    keep = ~(CONTINUES[next_bytes] & reached)
    pieces, points, following = pieces[keep], points[keep], following[keep]
    next_bytes, reached = next_bytes[keep], reached[keep]
    # Latin letters of other kinds may be lower case
    is_plain = reached & ((KINDS[next_bytes] != HIGH) | _is_hangul(batch, following))
    cores, has_core = _skip_space(batch, batch.starts[pieces])
    is_plain &= has_core & (cores < points)
    before = data[points - (points > 0)]
    last_kinds = KINDS[before]
    final = data[points] != POINT
    final |= (last_kinds == STOP) | (last_kinds == CLOSER)
    # a word begins behind a space, or where the text does
    is_word_start = IS_SPACE_OF_WORDS[data[np.maximum(cores - 1, 0)]] | (cores == batch.starts[pieces])
    final |= _follows_word(batch, cores, points, is_word_start)
    final |= _follows_year(batch, cores, points) & is_word_start & (KINDS[next_bytes] != DIGIT)
    final |= (points - cores >= 6) & _is_hangul(batch, points - 3) & _is_hangul(batch, points - 6)
    decided = is_plain & final
    is_end[pieces[decided]] = True
    return pieces[~decided]


def _skip_space(batch: TextBatch, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first byte from each position on that is no white space, and whether it was reached."""
    positions = positions.copy()
    space = batch.is_space[positions]
    for _ in range(MAX_SPACES):
        if not space.any():
            break
        positions += space
        space = batch.is_space.take(positions, mode="clip")
    return positions, ~space


def _is_hangul(batch: TextBatch, positions: np.ndarray) -> np.ndarray:
    """Whether a syllable of Hangul starts at each position; a position before the batch has none."""
    if not len(batch.leads):
        return np.zeros(len(positions), bool)
    numbers = np.minimum(np.searchsorted(batch.leads, positions), len(batch.leads) - 1)
    codes = batch.codes[numbers]
    return (batch.leads[numbers] == positions) & (codes >= FIRST_HANGUL) & (codes <= LAST_HANGUL)


def _follows_word(batch: TextBatch, cores: np.ndarray, points: np.ndarray, is_word_start: np.ndarray) -> np.ndarray:
    """Whether a word of ASCII letters that is no abbreviation is before each point.

    It begins with the core; or it ends in seven letters, whatever is before them.
    """
    reach = np.maximum(points - MAX_WORD, 0)
    loaded = batch.words[reach]
    sizes = np.clip(points - cores, 0, MAX_WORD)  # letters of the core among the seven bytes before the point
    # the bytes of the core, moved up so that the last one is in the same place for all; near the batch's start fewer
    # than seven bytes are before the point
    bits = (8 * (MAX_WORD - (points - reach))).astype(np.uint64)
    loaded = (loaded << bits) & ALL_BYTES
    empty = (8 * (MAX_WORD - sizes)).astype(np.uint64)
    loaded = (loaded >> empty) << empty
    core_bytes = ALL_BYTES >> empty << empty
    lower = loaded | (core_bytes & LOWER_CASE)
    # of each byte the highest bit: whether it is a letter, by carries of additions that stay inside of a byte
    low_bits = lower & SEVEN_BITS
    from_a, behind_z = low_bits + FROM_A, low_bits + BEHIND_Z
    is_letter = from_a & ~behind_z & ~loaded & HIGH_BITS
    is_word = (is_letter == core_bytes & HIGH_BITS) & (sizes > 0)
    known = DOUBTFUL_WORDS[np.minimum(np.searchsorted(DOUBTFUL_WORDS, lower), len(DOUBTFUL_WORDS) - 1)] == lower
    return is_word & ((sizes == MAX_WORD) | (is_word_start & ~known))


def _follows_year(batch: TextBatch, cores: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Whether the core before each point is four digits: neither the day of a date nor the number of an item."""
    is_year = points - cores == 4
    chosen = np.flatnonzero(is_year)
    digits = batch.data[cores[chosen, None] + np.arange(4)]
    is_year[chosen] = (KINDS[digits] == DIGIT).all(axis=1)
    return is_year


def _apply_rules(batch: TextBatch, pieces: np.ndarray, is_end: np.ndarray) -> None:
    """Put the pieces in doubt to the rules, in order; mark those that end a sentence in `is_end`."""
    if not len(pieces):
        return
    ends = batch.starts[pieces + 1]
    texts = batch.find_texts(batch.starts[pieces])
    # where the sentence began, as far as that is decided: behind the last end, or with the line
    line_bounds = np.sort(np.concatenate([batch.bounds, batch.breaks + 1]))
    lines = np.searchsorted(line_bounds, ends, "right") - 1
    decided = np.append(batch.starts[np.flatnonzero(is_end) + 1], 0)  # the last one is for those before all others
    lasts = np.maximum(line_bounds[lines], decided[np.searchsorted(decided[:-1], ends) - 1])
    stops = line_bounds[lines + 1]
    stops -= batch.data[stops - 1] == NEWLINE  # the break, or the end of the text
    firsts = batch.to_characters(batch.bounds[texts])
    columns = [(batch.to_characters(positions) - firsts).tolist() for positions in (ends, lasts, stops)]
    accepted: list[int] = []
    last_text, last_place = -1, 0
    for piece, number, place, last, stop in zip(pieces.tolist(), texts.tolist(), *columns, strict=True):
        if number == last_text:
            last = max(last, last_place)
        if sentences.ends_sentence(batch.texts[number], place, last, stop):
            accepted.append(piece)
            last_text, last_place = number, place
    is_end[accepted] = True


def _replace_texts(batch: TextBatch, numbers: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the starts with those of some texts found by the rules alone."""
    others = starts[~np.isin(batch.find_texts(starts), numbers)]
    found = [others]
    for number in numbers.tolist():
        first = batch.bounds[number]
        ends = np.array([0, *sentences.find_sentence_ends(batch.texts[number])[:-1]], np.int64)
        found.append(batch.to_bytes(ends + batch.to_characters(first)))
    return np.sort(np.concatenate(found))
