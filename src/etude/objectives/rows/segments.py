"""Sequences of one or two segments: [CLS] A [SEP] B [SEP] (BERT, section 3.1; ALBERT, section 3.1; ELECTRA).

A row walks through the corpus from some places of its own, far from each other, in turn. At each stop it takes whole
sentences of one document until they hold `target` tokens, makes one sequence of them, and goes on there behind what it
used, until the row is full. Row i is a pure function of (corpus, seed, i); the rows of a step are built together, the
k-th sequence of all of them at once, because one numpy call costs as much for a hundred rows as for one.

Sequences that follow on each other are alike, and BERT shuffles all of them: a step with eight of each place learns
less from as many tokens. So a row has as many places as it holds full sequences.

What equals BERT's own construction of its data:
- the target is the longest a sequence can hold, but with `short_rate` uniform from 2 up, drawn once for each
  pass over a document; a document's last sentences form a sequence however few they are;
- A is the first a ~ U[1, n-1] of the n sentences; with one half (and always where n = 1) B comes from another
  document (ten tries to hit one), from a uniformly drawn sentence on, and the unused sentences are put back;
- one token at a time is dropped from the longer segment (B when equal), from its front or its back by a coin,
  until both fit. The coins fall on a count, so that many drops are one binomial draw.
In ALBERT's order task A and B change places with one half; a lone sentence gets a B from another document and
the label of a wrong order, as its code has it, or stays alone without a label (`lone`).
In ELECTRA's data a share `pair_rate` of the sequences has two segments that follow on each other, the first
about half as long, and no label.

What differs, because rows are built alone and have a fixed size:
- a row begins in the middle of a document as often as its place asks for, and the same text is cut at other
  places in every epoch;
- its last sequence is a short one whose target is the room left; where that is too little for two segments,
  one unlabelled sequence of plain text fills it;
- a row holds at most `most` sequences (a quarter more than any of a sample of rows, so that shapes are static);
  a row that would need more of them goes on in full-length plain text.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, Self

import numpy as np

from etude import chance
from etude.errors import UserError
from etude.objectives.base import IGNORE, Row
from etude.objectives.rows.sizes import part_name
from etude.objectives.rows.walks import Draws, Walks, high_product
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.entities import NO_ENTITY

Sentence = Literal["none", "next", "order"]
TRIES = 10  # BERT's number of attempts to draw another document


@dataclass(frozen=True)
class Rules:
    """How sequences are sequences."""

    length: int  # the most tokens of a sequence, markers included
    row_tokens: int
    sentence: Sentence = "none"
    short_rate: float = 0.1
    pair_rate: float = 0.0
    truncation: Literal["random", "end"] = "random"  # end: what is too much is cut off B, then off A
    lone: Literal["random", "unlabelled"] = "random"
    markers: tuple[int, int] | None = None  # [CLS] and [SEP]
    places: int = 1  # of the corpus that a row reads in turn

    @property
    def two(self) -> bool:
        return self.sentence != "none" or self.pair_rate > 0

    def overhead(self, segments: int) -> int:
        """Markers of a sequence of so many segments."""
        return 0 if self.markers is None else 1 + segments


@dataclass
class SegmentRow(Row):
    word_starts: np.ndarray | None = None  # (n,) bool; markers and first tokens of segments begin a word
    labels: np.ndarray | None = None  # (s,) int64, one a sequence: 0 next / in order, 1 not, or IGNORE
    most: int = 0  # no row of this corpus holds more sequences
    entities: np.ndarray | None = None  # (n,) int32, as a corpus has them (text/corpus/entities.py)


@dataclass
class Sequences:
    """Where the text of sequences lies in the corpus: one or two segments each, behind whose end it begins anew."""

    rows: np.ndarray  # (Q,) the row of each, counted among those that are built together
    used: np.ndarray  # (Q,) tokens it takes of its row, markers included
    first: np.ndarray  # (Q,) offset of A
    first_size: np.ndarray
    second: np.ndarray  # (Q,) offset of B
    second_size: np.ndarray
    two: np.ndarray  # (Q,) bool: has it a B?
    labels: np.ndarray  # (Q,)

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """All of them, row by row; within a row in the order in which they were sequences."""
        order = np.argsort(np.concatenate([part.rows for part in parts]), kind="stable")
        return cls(*(np.concatenate([getattr(part, column.name) for part in parts])[order] for column in fields(cls)))


class SegmentRows:
    """The rows of a corpus under some rules. An epoch has as many rows as read the corpus once on average."""

    shuffle = True

    def __init__(self, corpus: Corpus, seed: int, rules: Rules, words: bool = False, entities: bool = False) -> None:
        self.corpus, self.seed, self.rules, self.words, self.entities = corpus, seed, rules, words, entities
        if entities:
            corpus.entities(0, 0)  # refuses, with a reason, where there are none
        self.row_tokens: int | None = rules.row_tokens
        _check(corpus, rules)
        self.most = rules.row_tokens  # while the sample is drawn: no limit
        self.count, self.most = self._sample()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> SegmentRow:
        return self.many(np.array([index]))[0]

    def many(self, numbers: np.ndarray) -> list[SegmentRow]:
        """The rows of these numbers, built together: each is what it is alone."""
        total, (epochs, places) = self.corpus.total, np.divmod(numbers, self.count)
        # the first epoch begins at the first word, the others anywhere
        cuts = np.where(epochs > 0, chance.fold_arrays(self.seed, epochs, "cut") % np.uint64(total), 0).astype(np.int64)
        share = self.count * self.rules.places  # each place has its own part of the corpus
        steps = [int(place) * total // share for place in places]  # their product may need more than 64 bits
        walks = self._walks(cuts + np.array(steps))
        draws = Draws(chance.fold_arrays(self.seed, numbers, "segments"))
        return self._assemble(numbers, self._sequences(walks, draws, chance.fold_arrays(self.seed, epochs, "short")))

    def _walks(self, offsets: np.ndarray) -> Walks:
        """Those of all rows, one after another: of each `places` walks, evenly apart, from its offset on."""
        rules, total = self.rules, self.corpus.total
        distances = np.array([place * total // rules.places for place in range(rules.places)])
        # a sequence has at least a token of every sentence that it passes
        reach = min(rules.row_tokens, -(-self.most // rules.places) * rules.length)
        return Walks(self.corpus, ((offsets[:, None] + distances) % total).ravel(), reach)

    def _sample(self) -> tuple[int, int]:
        """Rows of an epoch and the most sequences of a row, from some rows at places drawn by hash, whatever the seed.

        How far a row moves through the text is no round number (sentences put back, truncation, markers). How many
        sequences it holds has a long tail: a row of a short pass over a long document. Attention kernels pay for
        every sequence allowed, empty or not, so a quarter more than the sample holds is allowed, not what could be.
        """
        samples = min(64, max(4, 2**18 // self.rules.row_tokens))
        keys = chance.fold_arrays(np.arange(samples), "sample")
        walks = self._walks((keys % np.uint64(self.corpus.total)).astype(np.int64))
        most = int(np.bincount(self._sequences(walks, Draws(keys), keys).rows).max())
        count = max(1, round(self.corpus.total * samples / max(1, int(walks.read.sum()))))
        return count, min(most + most // 4 + 1, self.rules.row_tokens)

    def _sequences(self, walks: Walks, draws: Draws, passes: np.ndarray) -> Sequences:
        """The sequences of all rows; `passes` are the keys of what is drawn once for a pass over a document."""
        rules, turns = self.rules, []
        least = rules.overhead(2) + 2 if rules.two else rules.overhead(1) + 1
        targets = self._targets(np.repeat(passes, rules.places)[:, None], walks.names).ravel()
        room = np.full(len(passes), rules.row_tokens)
        allowed = self.most
        while len(rows := np.flatnonzero(room)):
            length = np.minimum(rules.length, room[rows])
            walking = rows * rules.places + (self.most - allowed) % rules.places
            # whatever the next sequence leaves must fit the sequences still allowed
            whole = (length >= least) & (room[rows] <= (allowed - 1) * rules.length)
            if whole.all():
                turn = [self._next(walks, walking, draws, targets, rows, length)]
            else:
                parts = (rows[whole], length[whole])
                turn = [self._next(walks, walking[whole], draws, targets, *parts)] if whole.any() else []
                turn.append(self._plain(walks, walking[~whole], rows[~whole], length[~whole]))
            for part in turn:
                room[part.rows] -= part.used
            turns += turn
            allowed -= 1
        return Sequences.joined(turns)

    def _plain(self, walks: Walks, walking: np.ndarray, rows: np.ndarray, length: np.ndarray) -> Sequences:
        """One sequence a row, of whatever comes next."""
        size, none = np.maximum(0, length - self.rules.overhead(1)), np.zeros(len(rows), np.int64)
        first = walks.plain(walking, size)
        return Sequences(rows, length, first, size, first, none, none > 0, none + IGNORE)

    def _next(
        self, walks: Walks, walking: np.ndarray, draws: Draws, targets: np.ndarray, rows: np.ndarray, length: np.ndarray
    ) -> Sequences:
        """One sequence a row, of at most `length` tokens, from where its walk stands; these walks move on."""
        rules = self.rules
        room = length - rules.overhead(2 if rules.two else 1)
        current, document = walks.sentence[walking], walks.document(walking)
        target = np.minimum(room, targets[document])
        first = walks.starts[current]
        stop = walks.find(walking, np.minimum(first + target, walks.ends[document]))
        sentences = stop - current
        lone = sentences == 1
        several = np.flatnonzero(~lone)
        foreign, cut = np.zeros(len(rows), bool), sentences.copy()  # `cut` sentences go to A
        if rules.sentence != "none":
            cut[several] = 1 + draws.below(rows[several], sentences[several] - 1)
            if rules.sentence == "next" or rules.lone == "random":
                foreign |= lone
            if rules.sentence == "next":
                foreign[several] = draws.coin(rows[several], 0.5)
        else:
            pairs = several[draws.coin(rows[several], rules.pair_rate)]
            if len(pairs):  # ELECTRA's split: sentences that end before half the target, the next by a coin
                within = walks.find(walking[pairs], first[pairs] + target[pairs] // 2) - current[pairs] - 1
                within += draws.coin(rows[pairs], 0.5)
                cut[pairs] = np.minimum(np.maximum(1, within), sentences[pairs] - 1)
        labels = np.where(lone & ~foreign, IGNORE, foreign) if rules.sentence != "none" else np.full(len(rows), IGNORE)
        second = walks.starts[current + cut]
        first_size, second_size = second - first, walks.starts[stop] - second
        if foreign.any():
            document, missing = walks.names.ravel()[document[foreign]], target[foreign] - first_size[foreign]
            second[foreign], second_size[foreign] = self._elsewhere(rows[foreign], document, missing, draws)
        walks.move(walking, np.where(foreign, current + cut, stop))  # what was not used is put back
        if rules.sentence == "order":
            swapped = several[draws.coin(rows[several], 0.5)]
            first[swapped], second[swapped] = second[swapped], first[swapped]
            first_size[swapped], second_size[swapped] = second_size[swapped], first_size[swapped]
            labels[swapped] = 1
        two = second_size > 0
        if rules.truncation == "random":
            first_kept, second_kept = fit(first_size, second_size, room)
            first = first + draws.heads(rows, first_size - first_kept)
            second = second + draws.heads(rows, second_size - second_kept)
        else:
            first_kept, second_kept = cut_end(first_size, second_size, room)
        used = first_kept + second_kept + (0 if rules.markers is None else 2 + two)
        return Sequences(rows, used, first, first_kept, second, second_kept, two, labels)

    def _targets(self, passes: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Tokens wanted of the sequences of one pass over a document."""
        full = self.rules.length - self.rules.overhead(2 if self.rules.two else 1)
        if full <= 2 or not self.rules.short_rate:
            return np.full(documents.shape, full)
        draws = chance.fold_arrays(np.broadcast_to(passes, documents.shape), documents)
        short = np.flatnonzero((draws >> np.uint64(11)).ravel() < self.rules.short_rate * 2.0**53)
        targets = np.full(documents.size, full)
        targets[short] = 2 + high_product(chance.mix_array(draws.ravel()[short]), np.uint64(full - 1))
        return targets.reshape(documents.shape)

    def _elsewhere(
        self, rows: np.ndarray, document: np.ndarray, target: np.ndarray, draws: Draws
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whole sentences of another document, from any of its sentences on, until they hold `target` tokens."""
        documents, sentences = self.corpus.documents, self.corpus.sentences
        document_drawn, again = np.empty(len(rows), np.int64), np.arange(len(rows))
        for _ in range(TRIES):
            document_drawn[again] = draws.below(rows[again], len(documents))
            again = again[document_drawn[again] == document[again]]
            if not len(again):
                break
        ends = documents.at(np.concatenate([document_drawn, document_drawn + 1]))
        ends[len(rows) :] -= 1  # its last token
        first, last = sentences.find_all(ends).reshape(2, -1)
        sentence = first + draws.below(rows, last + 1 - first)
        start = sentences.at(sentence)
        # the first sentence that begins where there is enough, and none behind the document
        stop = np.minimum(sentences.find_all(start + np.maximum(target, 1) - 1) + 1, last + 1)
        return start, sentences.at(stop) - start

    def _assemble(self, numbers: np.ndarray, sequences: Sequences) -> list[SegmentRow]:
        rules, size = self.rules, self.rules.row_tokens
        marker = int(rules.markers is not None)
        ends = np.cumsum(sequences.used)  # rows are full, so that they lie end to end
        starts = ends - sequences.used
        middle = starts + 2 * marker + sequences.first_size  # behind A and its separator
        tokens = np.empty(len(numbers) * size, np.int32)
        if rules.markers is not None:
            start, separator = rules.markers
            tokens[starts] = start
            tokens[middle[middle <= ends] - 1] = separator  # a row may end behind [CLS]
            tokens[ends[sequences.two] - 1] = separator
        segments = None
        if rules.two:
            sizes = np.stack(
                [np.where(sequences.two, middle, ends) - starts, np.where(sequences.two, ends - middle, 0)], 1
            )
            segments = np.repeat(np.tile(np.array([0, 1], np.uint8), len(sizes)), sizes.ravel())
        pieces = [
            (sequences.first, sequences.second),
            (sequences.first_size, sequences.second_size),
            (starts + marker, middle),
        ]
        words, entities = self._fill(tokens, *(np.stack(pair, 1).ravel() for pair in pieces))
        firsts = np.searchsorted(sequences.rows, np.arange(len(numbers) + 1)).tolist()
        bounds = np.append(starts, ends[-1])
        segment_rows = []
        for row, (number, low, high) in enumerate(zip(numbers.tolist(), firsts[:-1], firsts[1:], strict=True)):
            begin, stop = row * size, (row + 1) * size
            segment_rows.append(
                SegmentRow(
                    number,
                    tokens[begin:stop],
                    (bounds[low : high + 1] - begin).astype(np.int32),
                    None if segments is None else segments[begin:stop],
                    0,
                    None if words is None else words[begin:stop],
                    sequences.labels[low:high],
                    self.most,
                    None if entities is None else entities[begin:stop],
                )
            )
        return segment_rows

    def _fill(
        self, tokens: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, places: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Copies every piece of the corpus to its place; returns where words start, and entities, if wanted."""
        before = np.cumsum(sizes) - sizes
        run = np.arange(int(sizes.sum()))
        source, target = (np.repeat(starts - before, sizes) + run for starts in (offsets, places))
        if len(source) and int((offsets + sizes).max()) > self.corpus.total:
            source %= self.corpus.total
        tokens[target] = self.corpus.tokens_at(source)
        words = entities = None
        if self.words:
            words = np.ones(len(tokens), bool)
            words[target] = self.corpus.word_starts_at(source) | (source == 0)
            words[places[sizes > 0]] = True
        if self.entities:
            entities = np.full(len(tokens), NO_ENTITY, np.int32)
            entities[target] = self.corpus.entities_at(source)
        return words, entities


def fit(first: np.ndarray, second: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths left when the longer of two (the second when equal) loses one token until both fit."""
    excess = np.maximum(0, first + second - room)
    uneven = np.minimum(excess, np.abs(first - second))
    rest = excess - uneven
    longer = np.greater(first, second)
    return first - uneven * longer - rest // 2, second - uneven * ~longer - (rest + 1) // 2


def cut_end(first: np.ndarray, second: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lengths left when the end of both together is cut off; B keeps a token."""
    first = np.minimum(first, room - (np.asarray(second) > 0))
    return first, np.minimum(second, room - first)


def _check(corpus: Corpus, rules: Rules) -> None:
    """Refuses a sentence task that the text cannot teach."""
    if rules.sentence == "none":
        return
    documents, sentences = len(corpus.documents), len(corpus.sentences)
    held_out = corpus.split == "valid"
    where = part_name(corpus)
    if documents == sentences:
        raise UserError(
            f"{where}: every document is one sentence, so objective.sentence={rules.sentence} has nothing to learn. "
            "Prepare text whose documents hold several sentences, or set objective.sentence=none."
        )
    if documents < 2 and (rules.sentence == "next" or rules.lone == "random"):
        raise UserError(
            f"{where}: objective.sentence={rules.sentence} takes sentences from another document, and there is only "
            f"one. Prepare {'a larger share of it (--valid 0.1)' if held_out else 'text'} of several documents (blank "
            "lines or files divide them), or set objective.sentence=none."
        )
