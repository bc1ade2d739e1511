"""Text in fixed lanes: what stateful truncated back-propagation reads and carries (the biLM).

A step has one row for each of a fixed number of lanes; a lane reads on where it stopped the step before, and starts
from the state it had reached there. The text is every sentence (or document) end to end. With a table of words one
marker stands before the first and after each; models that read letters have ELMo's two, <S> before and </S> after
each [code].

    row i, forward      reads stream[i*u : (i+1)*u], predicts each token's successor
    row i, backward     the same of the reversed stream

Row numbers of a lane are consecutive, so the rows need not know how many lanes there are. A lane's state is
used only if its row is the one that follows: at the end of the text, or when lanes are dealt anew, it starts
from zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.recurrent import Settings as Shape
from etude.nn.packed import send_array
from etude.nn.softmax import FrequencyOrder
from etude.objectives.base import Row
from etude.objectives.rows.sizes import part_name
from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.char_ids import SENTENCE_END, SENTENCE_START

Word = bytes | int  # letters, or the number of a mark (text/tokenizer/char_ids.py)


class Stream:
    """All text of a corpus with markers: `end` before the first part and after each; or `start` before, `end` after."""

    def __init__(self, corpus: Corpus, parts: Bounds, end: int, start: int | None = None) -> None:
        self.corpus, self.parts, self.start, self.end = corpus, parts, start, end
        self.extra = 1 if start is None else 2  # markers of a part
        self.total = corpus.total + self.extra * len(parts) + (start is None)

    def token_counts(self, vocab: int) -> np.ndarray:
        """(vocab,) int64: how often each id occurs, markers too; a model may have rows for more than the corpus."""
        counts = self.corpus.token_counts()
        counts = np.pad(counts, (0, vocab - len(counts)))
        counts[self.end] += len(self.parts) + (self.start is None)
        if self.start is not None:
            counts[self.start] += len(self.parts)
        return counts

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) int32."""
        return self.read_with_words(start, stop, letters=False)[0]

    def words(self, start: int, stop: int) -> list[Word]:
        """The letters of the same, and marks."""
        return self.read_with_words(start, stop)[1]

    def read_with_words(self, start: int, stop: int, letters: bool = True) -> tuple[np.ndarray, list[Word]]:
        """Ids and letters of a stretch: to find where it lies takes longer than to read it, so it is done once."""
        text, kinds, span = self._span(start, stop)
        tokens = np.empty(stop - start, dtype=np.int32)
        tokens[text] = self.corpus.tokens(*span)
        tokens[~text] = kinds
        if not letters:
            return tokens, []
        surfaces = iter(self.corpus.surfaces(*span))
        marks = iter([SENTENCE_START if kind == self.start else SENTENCE_END for kind in kinds.tolist()])
        return tokens, [next(surfaces) if is_text else next(marks) for is_text in text.tolist()]

    def _span(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
        """Which places are text (stop - start,), what the markers at the others are, and the text's span.

        Markers come to the text: part i begins at its bound plus all markers before it.
        """
        first, places, kinds = self._markers(start, stop)
        before = first + int((places < start).sum())  # markers in front of `start`
        chosen = (places >= start) & (places < stop)
        text = np.ones(stop - start, dtype=bool)
        text[places[chosen] - start] = False
        count = int(chosen.sum())
        return text, kinds[chosen], (start - before, stop - before - count)

    def _markers(self, start: int, stop: int) -> tuple[int, np.ndarray, np.ndarray]:
        """The markers from that of the part `start` lies in on: how many are before them, their places and ids."""
        extra, parts = self.extra, self.parts
        first, last = parts.find(start, extra=extra), parts.find(stop - 1, extra=extra) + 1
        if self.start is None:
            last = min(last + 1, len(parts) + 1)  # one behind: the marker at the very end
            numbers = np.arange(first, last)
            return first, parts.slice(first, last) + numbers, np.full(len(numbers), self.end)
        last = min(last, len(parts))
        bounds, numbers = parts.slice(first, last + 1), extra * np.arange(first, last)
        places = np.stack([bounds[:-1] + numbers, bounds[1:] + numbers + 1], axis=1).reshape(-1)
        return extra * first, places, np.tile([self.start, self.end], last - first)


@dataclass
class LaneRow(Row):
    """`tokens` are the forward inputs; each stream has one token more than is read: the last target."""

    streams: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros(0, np.int32))  # (unroll + 1,) each
    words: tuple[list[Word], list[Word]] | None = None  # (unroll,) each: the letters of what is read
    order: FrequencyOrder | None = field(default=None, repr=False)  # of the corpus's words, by reference


class LaneRows:
    """Row i is the i-th stretch of the text and the i-th of the reversed text; a rest shorter than that is left."""

    shuffle = False

    def __init__(self, stream: Stream, unroll: int, letters: bool = False, order: FrequencyOrder | None = None) -> None:
        self.stream, self.unroll, self.letters, self.order = stream, unroll, letters, order
        self.row_tokens: int | None = unroll
        self.count = (stream.total - 1) // unroll
        if not self.count:
            held_out = stream.corpus.split == "valid"
            raise UserError(
                f"{part_name(stream.corpus)}: {stream.corpus.total} tokens are fewer than one row of "
                f"objective.unroll={unroll}. Lower it, or prepare "
                f"{'a larger share of it (--valid 0.1)' if held_out else 'more text'}."
            )
        if letters:
            stream.corpus.surfaces(0, 0)  # refuses, with a reason, where there are none

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> LaneRow:
        stream, unroll = self.stream, self.unroll
        start = index % self.count * unroll
        stop = start + unroll + 1
        ahead, letters = stream.read_with_words(start, stop, self.letters)
        back, mirrored = stream.read_with_words(stream.total - stop, stream.total - start, self.letters)
        words = (letters[:-1], mirrored[:0:-1]) if self.letters else None
        back = back[::-1]
        bounds = np.array([0, unroll], dtype=np.int32)
        streams = ahead, np.ascontiguousarray(back)
        return LaneRow(index, ahead[:-1], bounds, streams=streams, words=words, order=self.order)


class Lanes:
    """The carried states of fixed lanes, detached.

    `before` keeps what the last row of each lane started from, so that asking for the loss of the same batch
    again (to find a non-finite tensor) gives the same loss.
    """

    def __init__(self, lanes: int, shape: Shape, device: torch.device | None = None) -> None:
        directions = len(shape.directions)
        hidden = torch.zeros(lanes, directions, shape.layers, shape.width, device=device)
        cell = torch.zeros(lanes, directions, shape.layers, shape.cells, device=device)
        self.before, self.after = (hidden, cell), (hidden.clone(), cell.clone())
        self.following = np.zeros(lanes, dtype=np.int64)  # the row that continues a lane; 0: none does

    def __len__(self) -> int:
        return len(self.following)

    def to(self, device: torch.device) -> None:
        if self.after[0].device != device:
            self.before = (self.before[0].to(device), self.before[1].to(device))
            self.after = (self.after[0].to(device), self.after[1].to(device))

    def enter(self, slots: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The states (R, directions, layers, ...) that the rows start from."""
        following = self.following[slots]
        continued = (following == rows) & (rows > 0)
        again = following == rows + 1
        onward, fresh, chosen = (self._send(part) for part in (slots[continued], slots[~(continued | again)], slots))
        for before, after in zip(self.before, self.after, strict=True):
            before[onward] = after[onward]
            before.index_fill_(0, fresh, 0.0)  # `before[fresh] = 0` would copy the number to a GPU, and wait
        return self.before[0][chosen], self.before[1][chosen]

    def leave(self, slots: np.ndarray, rows: np.ndarray, states: tuple[Tensor, Tensor]) -> None:
        for after, state in zip(self.after, states, strict=True):
            after[self._send(slots)] = state.detach().to(after.dtype)
        self.following[slots] = rows + 1

    def _send(self, slots: np.ndarray) -> Tensor:
        """Numbers of lanes as an index on the device: one of the host would make it wait."""
        return send_array(slots, self.after[0].device)

    def extended(self, lanes: int, shape: Shape) -> Lanes:
        """So many lanes, the first of them as they are."""
        extended = Lanes(lanes, shape, self.after[0].device)
        for new, old in zip([*extended.before, *extended.after], [*self.before, *self.after], strict=True):
            new[: len(self)] = old
        extended.following[: len(self)] = self.following
        return extended

    def state(self) -> dict[str, Tensor]:
        hidden, cell = self.after
        following = torch.from_numpy(self.following.copy())
        return {"hidden": hidden.clone(), "cell": cell.clone(), "following": following}

    @classmethod
    def from_state(cls, state: dict[str, Tensor], shape: Shape) -> Lanes:
        lanes = cls(len(state["following"]), shape, state["hidden"].device)
        for name, own in zip(("hidden", "cell"), lanes.after, strict=True):
            if own.shape != state[name].shape:
                raise ValueError(
                    f"the carried {name} is {tuple(state[name].shape)}, and the model has {tuple(own.shape)}"
                )
            own.copy_(state[name])
        lanes.following[:] = state["following"].cpu().numpy()
        return lanes
