"""Rows of segments one at a time, a sentence after another, in plain Python: what `segments.py` does for many at once.

The same draws in the same order; slow, and easy to read. Tests hold the two against each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from etude import chance
from etude.objectives.base import IGNORE
from etude.objectives.rows.segments import TRIES, Rules, SegmentRow, cut_end, fit


@dataclass
class Sequence:
    """Where the text of one sequence lies in the corpus: (offset, tokens) a segment."""

    first: list[tuple[int, int]]
    second: list[tuple[int, int]]
    label: int = IGNORE

    @property
    def segments(self) -> int:
        return 2 if self.second else 1

    @property
    def size(self) -> int:
        return sum(size for _, size in self.first) + sum(size for _, size in self.second)


class Draws:
    """The endless draws of one row, in order: SplitMix64 in blocks, as Python integers."""

    block = 64

    def __init__(self, key: int) -> None:
        self.key, self.taken = key, 0
        self.ready: Iterator[int] = iter(())

    def bits(self) -> int:
        for value in self.ready:
            return value
        self.ready = iter(chance.random_bits(self.key, np.arange(self.taken, self.taken + self.block)).tolist())
        self.taken += self.block
        return next(self.ready)

    def coin(self, share: float) -> bool:
        return (self.bits() >> 11) < share * 2.0**53

    def below(self, limit: int) -> int:
        return (self.bits() * limit) >> 64

    def heads(self, coins: int) -> int:
        """How many of so many fair coins show heads."""
        found = 0
        for left in range(coins, 0, -64):
            found += (self.bits() & ((1 << min(left, 64)) - 1)).bit_count()
        return found


class Walk:
    """A place in the corpus that moves on by whole sentences, and around its end."""

    window = 256  # sentences read at a time

    def __init__(self, corpus: Any, offset: int) -> None:
        self.corpus, self.read = corpus, 0
        self._enter(corpus.sentences.find(offset))

    def _enter(self, sentence: int) -> None:
        """Stands at the start of a sentence."""
        self.here = 0  # in the window
        self.starts: list[int] = []  # global offsets of sentence starts, from this sentence on
        self.next = sentence  # the first sentence behind the window
        self._extend()
        self._enter_document(self.corpus.documents.find(self.starts[0]))

    def _enter_document(self, number: int) -> None:
        self.document, self.end = number, int(self.corpus.documents[number + 1])

    def _extend(self) -> None:
        parts = len(self.corpus.sentences)
        stop = min(self.next + self.window, parts + 1)
        self.starts += self.corpus.sentences.slice(self.next, stop).tolist()
        self.next = stop

    def chunk(self, target: int) -> list[int]:
        """Bounds (n+1) of the next n sentences: as many as hold `target` tokens, or what the document has left."""
        goal = min(self.starts[self.here] + target, self.end)
        while self.starts[-1] < goal:
            self._extend()
        return self.starts[self.here : bisect_left(self.starts, goal, self.here + 1) + 1]

    def move(self, sentences: int) -> None:
        """Behind the next so many sentences of this document."""
        before = self.starts[self.here]
        self.here += sentences
        offset = self.starts[self.here]
        self.read += offset - before
        if offset == self.corpus.total:
            self._enter(0)
        elif offset == self.end:
            self._enter_document(self.document + 1)

    def plain(self, size: int) -> list[tuple[int, int]]:
        """So many tokens from here on, across sentences and documents, and the place behind them."""
        offset, pieces = self.starts[self.here], []
        self.read += size
        while size:
            taken = min(size, self.corpus.total - offset)
            pieces.append((offset, taken))
            offset, size = (offset + taken) % self.corpus.total, size - taken
        sentence = self.corpus.sentences.find(offset)
        if self.corpus.sentences[sentence] < offset:
            sentence = (sentence + 1) % len(self.corpus.sentences)
        self._enter(sentence)
        return pieces


class OneByOne:
    """The rows of a corpus under some rules. An epoch has as many rows as read the corpus once on average."""

    shuffle = True

    def __init__(self, corpus: Any, seed: int, rules: Rules, words: bool = False) -> None:
        self.corpus, self.seed, self.rules, self.words = corpus, seed, rules, words
        self.row_tokens: int | None = rules.row_tokens
        self.most = rules.row_tokens  # while the sample is drawn: no limit
        self.count, self.most = self._sample()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> SegmentRow:
        epoch, place = divmod(index, self.count)
        # the first epoch begins at the first word, the others anywhere
        cut = chance.fold(self.seed, epoch, "cut") % self.corpus.total if epoch else 0
        offset = cut + place * self.corpus.total // (self.count * self.rules.places)
        draws, passes = chance.fold(self.seed, index, "segments"), chance.fold(self.seed, epoch, "short")
        return self._assemble(index, self._sequences(self._walks(offset), Draws(draws), passes))

    def _sample(self) -> tuple[int, int]:
        """Rows of an epoch and the most sequences of a row, from some rows at places drawn by hash, whatever the seed.

        How far a row moves through the text is no round number (sentences put back, truncation, markers). How many
        sequences it holds has a long tail: a row of a short pass over a long document. Attention kernels pay for
        every sequence allowed, empty or not, so a quarter more than the sample holds is allowed, not what could be.
        """
        samples = min(64, max(4, 2**18 // self.rules.row_tokens))
        read, most = 0, 0
        for key in (chance.fold(number, "sample") for number in range(samples)):
            walks = self._walks(key % self.corpus.total)
            most = max(most, len(self._sequences(walks, Draws(key), key)))
            read += sum(walk.read for walk in walks)
        count = max(1, round(self.corpus.total * samples / max(1, read)))
        return count, min(most + most // 4 + 1, self.rules.row_tokens)

    def _walks(self, offset: int) -> list[Walk]:
        places, total = self.rules.places, self.corpus.total
        return [Walk(self.corpus, (offset + place * total // places) % total) for place in range(places)]

    def _sequences(self, walks: list[Walk], draws: Draws, passes: int) -> list[Sequence]:
        """The sequences of one row; `passes` is the key of what is drawn once for a pass over a document."""
        rules, found = self.rules, []
        least = rules.overhead(2) + 2 if rules.two else rules.overhead(1) + 1
        room, left = rules.row_tokens, self.most
        while room:
            length = min(rules.length, room)
            walk = walks[len(found) % rules.places]
            # whatever the next sequence leaves must fit the sequences still allowed
            if length >= least and room <= (left - 1) * rules.length:
                sequence = self._sequence(walk, draws, passes, length)
            else:
                sequence = Sequence(walk.plain(max(0, length - rules.overhead(1))), [])
            found.append(sequence)
            room -= min(length, sequence.size + rules.overhead(sequence.segments))
            left -= 1
        return found

    def _sequence(self, walk: Walk, draws: Draws, passes: int, length: int) -> Sequence:
        """One sequence of at most `length` tokens from where the walk stands; the walk moves on."""
        rules = self.rules
        room = length - rules.overhead(2 if rules.two else 1)
        target = min(room, self._target(passes, walk.document))
        bounds = walk.chunk(target)
        sentences = len(bounds) - 1
        lone, foreign, cut = sentences == 1, False, sentences  # `cut` sentences go to A
        if rules.sentence != "none":
            cut = 1 if lone else 1 + draws.below(sentences - 1)
            always = lone and (rules.sentence == "next" or rules.lone == "random")
            foreign = always or (rules.sentence == "next" and draws.coin(0.5))
        elif not lone and draws.coin(rules.pair_rate):
            cut = _near_half(bounds, target, draws)
        label = IGNORE if rules.sentence == "none" or (lone and not foreign) else int(foreign)
        first = (bounds[0], bounds[cut] - bounds[0])
        second = (bounds[cut], bounds[-1] - bounds[cut])
        if foreign:
            second = self._elsewhere(walk.document, target - first[1], draws)
        walk.move(cut if foreign else sentences)  # what was not used is put back
        if rules.sentence == "order" and not lone and draws.coin(0.5):
            first, second, label = second, first, 1
        kept = [int(size) for size in (fit if rules.truncation == "random" else cut_end)(first[1], second[1], room)]
        pieces = [self._trim(piece, size, draws) for piece, size in zip((first, second), kept, strict=True)]
        return Sequence(pieces[:1], pieces[1:] if second[1] else [], label)

    def _target(self, passes: int, document: int) -> int:
        """Tokens wanted of the sequences of one pass over a document."""
        full = self.rules.length - self.rules.overhead(2 if self.rules.two else 1)
        drawn = chance.fold(passes, document)
        if full > 2 and (drawn >> 11) < self.rules.short_rate * 2.0**53:
            return 2 + (chance.mix(drawn) * (full - 1) >> 64)
        return full

    def _elsewhere(self, document: int, target: int, draws: Draws) -> tuple[int, int]:
        """Whole sentences of another document, from any of its sentences on, until they hold `target` tokens."""
        documents, sentences = self.corpus.documents, self.corpus.sentences
        for _ in range(TRIES):
            other = draws.below(len(documents))
            if other != document:
                break
        first = sentences.find(int(documents[other]))
        last = sentences.find(int(documents[other + 1]) - 1)
        begin = first + draws.below(last - first + 1)
        # a sentence has at least one token: no more than `target` of them are needed
        starts = sentences.slice(begin, min(last, begin + max(target, 1)) + 2)
        stop = min(int(np.searchsorted(starts, starts[0] + max(target, 1))), len(starts) - 1)
        return int(starts[0]), int(starts[stop] - starts[0])

    def _trim(self, piece: tuple[int, int], kept: int, draws: Draws) -> tuple[int, int]:
        dropped = piece[1] - kept
        front = draws.heads(dropped) if self.rules.truncation == "random" else 0
        return piece[0] + front, kept

    def _assemble(self, index: int, sequences: list[Sequence]) -> SegmentRow:
        rules, size = self.rules, self.rules.row_tokens
        tokens = np.empty(size, np.int32)
        segments = np.zeros(size, np.uint8) if rules.two else None
        bounds, starts, separators, pieces, place = [0], [], [], [], 0
        for sequence in sequences:
            if rules.markers:
                starts.append(place)
                place += 1
            for segment in (sequence.first, sequence.second):
                begin = place
                for offset, length in segment:
                    pieces.append((offset, length, place))
                    place += length
                if rules.markers and place < size and (segment or segment is sequence.first):
                    separators.append(place)
                    place += 1
                if segments is not None and segment is sequence.second:
                    segments[begin:place] = 1
            bounds.append(place)
        if rules.markers:
            tokens[starts], tokens[separators] = rules.markers
        words = self._fill(tokens, pieces)
        labels = np.array([sequence.label for sequence in sequences], np.int64)
        return SegmentRow(index, tokens, np.array(bounds, np.int32), segments, 0, words, labels, self.most)

    def _fill(self, tokens: np.ndarray, pieces: list[tuple[int, int, int]]) -> np.ndarray | None:
        """Copies every piece of the corpus to its place; returns where words start, if that is wanted."""
        words = np.ones(len(tokens), bool) if self.words else None
        for low, stop, run in _runs(sorted(pieces), gap=len(tokens)):
            text = self.corpus.tokens(low, stop)
            for offset, size, place in run:
                tokens[place : place + size] = text[offset - low : offset - low + size]
            if words is not None:
                starts = self.corpus.word_starts(low, stop)
                for offset, size, place in run:
                    words[place + 1 : place + size] = starts[offset - low + 1 : offset - low + size]
        return words


def _runs(pieces: list[tuple[int, int, int]], gap: int) -> Iterator[tuple[int, int, list[tuple[int, int, int]]]]:
    """Sorted pieces that lie close together, to be read at once: (first offset, end, pieces)."""
    begin, stop = 0, 0
    for number, (offset, size, _) in enumerate(pieces):
        if number > begin and offset > stop + gap:
            yield pieces[begin][0], stop, pieces[begin:number]
            begin = number
        stop = max(stop, offset + size) if number > begin else offset + size
    if pieces:
        yield pieces[begin][0], stop, pieces[begin:]


def _near_half(bounds: list[int], target: int, draws: Draws) -> int:
    """ELECTRA's split: sentences that end before half the target, the next by a coin."""
    within = bisect_left(bounds, bounds[0] + target // 2) - 1
    return min(max(1, within + draws.coin(0.5)), len(bounds) - 2)
