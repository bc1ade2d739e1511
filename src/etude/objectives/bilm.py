"""The bidirectional language model of ELMo: forward predicts the next token, backward the one before.

Peters et al. 2018, section 3.1, trained as the released biLM is [code]: truncated back-propagation with a
state carried over. A step has one row for each of a fixed number of lanes; a lane reads on where it stopped
the step before, and starts from the state it had reached there. The two directions are two streams, one of
them the text reversed, each with a lane of its own: so both directions carry a true state, and the backward
model of a step stands elsewhere in the text than the forward one. They meet in the token table and in the
output layer, which they share.

The text is every sentence (or document) end to end with a marker before the first and after each:

    row i, forward      reads stream[i*u : (i+1)*u], predicts each token's successor
    row i, backward     the same of the reversed stream

Row numbers of a lane are consecutive, so the rows need not know how many lanes there are. A lane's state is
used only if its row is the one that follows: at the end of the text, or when lanes are dealt anew, it starts
from zeros. The loss is the mean of both directions, as in the paper; `forward` is a true likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.recurrent import Carry, Direction, Recurrent
from etude.models.recurrent import Settings as Shape
from etude.nn.losses import linear_cross_entropy
from etude.nn.packed import Packed
from etude.nn.states import States
from etude.objectives.base import Batch, Objective, Row, Term, join
from etude.settings import Strict
from etude.text.corpus import Bounds, Corpus
from etude.text.tokenizer import Specials

DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")


class Settings(Strict):
    unroll: int = Field(default=20, ge=1, description="tokens of a lane in one step: how far gradients go back")
    marker: Literal["sentence", "document"] = Field(default="sentence", description="what the end token stands between")
    tied: bool = Field(default=False, description="the output layer is the token table")


class Stream:
    """All text of a corpus with a marker before the first part and after each."""

    def __init__(self, corpus: Corpus, parts: Bounds, marker: int) -> None:
        self.corpus, self.parts, self.marker = corpus, parts, marker
        self.total = corpus.total + len(parts) + 1

    def read(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) int32. The marker before part i stands at bound i plus the i markers before it."""
        first = self.parts.find(start, extra=1)
        last = min(
            self.parts.find(stop - 1, extra=1) + 2, len(self.parts) + 1
        )  # one behind: the marker at the very end
        markers = self.parts.slice(first, last) + np.arange(first, last)
        inside = markers[(markers >= start) & (markers < stop)]
        before = first if markers[0] >= start else first + 1  # markers in front of `start`
        found = np.empty(stop - start, dtype=np.int32)
        text = np.ones(stop - start, dtype=bool)
        text[inside - start] = False
        found[text] = self.corpus.tokens(start - before, stop - before - len(inside))
        found[~text] = self.marker
        return found


@dataclass
class LaneRow(Row):
    """`tokens` are the forward inputs; each stream has one token more than is read: the last target."""

    streams: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros(0, np.int32))  # (unroll + 1,) each


class LaneRows:
    """Row i is the i-th stretch of the text and the i-th of the reversed text; a rest shorter than that is left."""

    shuffle = False

    def __init__(self, stream: Stream, unroll: int) -> None:
        self.stream, self.unroll = stream, unroll
        self.row_tokens: int | None = unroll
        self.count = (stream.total - 1) // unroll
        if not self.count:
            raise UserError(
                f"The corpus has {stream.corpus.total} tokens, fewer than one row of objective.unroll={unroll}. "
                "Lower it, or prepare more text."
            )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> LaneRow:
        start = index % self.count * self.unroll
        stop = start + self.unroll + 1
        ahead = self.stream.read(start, stop)
        back = self.stream.read(self.stream.total - stop, self.stream.total - start)[::-1]
        bounds = np.array([0, self.unroll], dtype=np.int32)
        return LaneRow(index, ahead[:-1], bounds, streams=(ahead, np.ascontiguousarray(back)))


@dataclass
class LaneBatch(Batch):
    """The packed part is the forward stream; `size` therefore counts each token of the text once."""

    backward: Packed | None = None
    targets: Tensor | None = None  # (2, N) int64, forward and backward


class Lanes:
    """The carried states of fixed lanes, detached.

    `before` keeps what the last row of each lane started from, so that asking for the loss of the same batch
    again (to find a non-finite tensor) gives the same loss.
    """

    def __init__(self, lanes: int, shape: Shape, device: torch.device | None = None) -> None:
        hidden = torch.zeros(lanes, len(DIRECTIONS), shape.layers, shape.width, device=device)
        cell = torch.zeros(lanes, len(DIRECTIONS), shape.layers, shape.cells, device=device)
        self.before, self.after = (hidden, cell), (hidden.clone(), cell.clone())
        self.following = np.zeros(lanes, dtype=np.int64)  # the row that continues a lane; 0: none does

    def __len__(self) -> int:
        return len(self.following)

    def to(self, device: torch.device) -> None:
        if self.after[0].device != device:
            self.before = (self.before[0].to(device), self.before[1].to(device))
            self.after = (self.after[0].to(device), self.after[1].to(device))

    def enter(self, slots: np.ndarray, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """The states (R, 2, layers, ...) that the rows start from."""
        following = self.following[slots]
        continued = (following == rows) & (rows > 0)
        again = following == rows + 1
        onward, fresh, chosen = (
            torch.from_numpy(part) for part in (slots[continued], slots[~(continued | again)], slots)
        )
        for before, after in zip(self.before, self.after, strict=True):
            before[onward] = after[onward]
            before[fresh] = 0
        return self.before[0][chosen], self.before[1][chosen]

    def leave(self, slots: np.ndarray, rows: np.ndarray, states: tuple[Tensor, Tensor]) -> None:
        for after, state in zip(self.after, states, strict=True):
            after[torch.from_numpy(slots)] = state.detach().to(after.dtype)
        self.following[slots] = rows + 1


class BiLM(Objective):
    nats_per_token = "forward"

    def __init__(self, settings: Settings, model: Recurrent, special: Specials) -> None:
        super().__init__()
        marker = special.end if special.end is not None else special.separator
        if marker is None:
            raise UserError(
                "The biLM marks the ends of sentences, and this tokenizer has neither an end token nor a separator. "
                "Train a tokenizer here, or add such a token to it."
            )
        self.settings, self.shape, self.marker = settings, model.settings, marker
        self.output = None if settings.tied else nn.Linear(model.settings.width, model.vocab, bias=False)
        self.bias = nn.Parameter(torch.zeros(model.vocab))
        if self.output is not None:
            nn.init.normal_(self.output.weight, std=model.settings.width**-0.5)  # as the released biLM [code]
        self.lanes = Lanes(0, self.shape)

    def rows(self, corpus: Corpus, seed: int) -> LaneRows:
        return LaneRows(Stream(corpus, self._parts(corpus), self.marker), self.settings.unroll)

    def _parts(self, corpus: Corpus) -> Bounds:
        return corpus.sentences if self.settings.marker == "sentence" else corpus.documents

    def _table(self, model: Recurrent) -> Tensor:
        """(V, D) the output layer, which both directions share."""
        return model.embedding.tokens.weight if self.output is None else self.output.weight

    def batch(self, rows: Sequence[Row], chance: Chance) -> LaneBatch:
        both = np.stack([[*row.streams] for row in rows if isinstance(row, LaneRow)], axis=1)  # (2, R, unroll + 1)
        fields = join(rows, sequences=1, longest=self.settings.unroll)
        inputs, targets = both[..., :-1].reshape(2, -1), both[..., 1:].reshape(2, -1)  # (2, N)
        backward = Packed(torch.from_numpy(inputs[1].astype(np.int64)), fields["positions"], None, fields["layout"])
        counts: dict[str, int] = dict.fromkeys(DIRECTIONS, targets.shape[1])
        return LaneBatch(**fields, counts=counts, backward=backward, targets=torch.from_numpy(targets.astype(np.int64)))

    def loss(self, model: nn.Module, batch: LaneBatch) -> dict[str, Term]:
        assert isinstance(model, Recurrent) and batch.backward is not None and batch.targets is not None
        if len(self.lanes) <= batch.slots.max():  # nobody told how many: as many as are used
            self._grow(int(batch.slots.max()) + 1)
        self.lanes.to(batch.tokens.device)
        hidden, cell = self.lanes.enter(batch.slots, batch.rows)
        terms: dict[str, Term] = {}
        ends: list[Carry] = []
        table = self._table(model)
        for number, (direction, packed) in enumerate(zip(DIRECTIONS, (batch, batch.backward), strict=True)):
            states, end = model.read(packed, direction, Carry(hidden[:, number], cell[:, number]))
            ends.append(end)
            last = F.dropout(states[-1], self.shape.dropout, self.training)
            total = linear_cross_entropy(last, table, self.bias, batch.targets[number])
            terms[direction] = Term(total, batch.counts[direction], weight=0.5)
        left = (torch.stack([end.hidden for end in ends], 1), torch.stack([end.cell for end in ends], 1))
        self.lanes.leave(batch.slots, batch.rows, left)
        return terms

    def logits(self, model: nn.Module, states: States) -> Tensor:
        """Of the forward model: what follows each token."""
        assert isinstance(model, Recurrent)
        return F.linear(states.last[:, : self.shape.width], self._table(model), self.bias)

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """A marker on each side, where the text of pre-training has one too."""
        return np.concatenate([[self.marker], ids, [self.marker]])

    def tokens_per_byte(self, corpus: Corpus) -> float:
        """Markers are predicted too."""
        return (corpus.total + len(self._parts(corpus))) / max(1, corpus.bytes)

    def flops(self, model: nn.Module, batch: LaneBatch) -> int:
        """Forward and twice that backward: the LSTMs of both directions, and two output layers over all words."""
        assert isinstance(model, Recurrent)
        output = 2 * 2 * batch.size * self.shape.width * model.vocab
        return 3 * (model.flops(batch.layout.lengths) + output)

    # --- what is carried ----------------------------------------------------------------------------

    def set_lanes(self, lanes: int) -> None:
        """So many lanes, all at the start of a text."""
        self.lanes = Lanes(lanes, self.shape)

    def _grow(self, lanes: int) -> None:
        old, self.lanes = self.lanes, Lanes(lanes, self.shape, self.lanes.after[0].device)
        for new, kept in zip([*self.lanes.before, *self.lanes.after], [*old.before, *old.after], strict=True):
            new[: len(old)] = kept
        self.lanes.following[: len(old)] = old.following

    def state(self) -> dict[str, Tensor]:
        hidden, cell = self.lanes.after
        following = torch.from_numpy(self.lanes.following.copy())
        return {"hidden": hidden.clone(), "cell": cell.clone(), "following": following}

    def restore(self, state: dict[str, Tensor]) -> None:
        lanes = Lanes(len(state["following"]), self.shape, state["hidden"].device)
        for name, own in zip(("hidden", "cell"), lanes.after, strict=True):
            if own.shape != state[name].shape:
                raise ValueError(
                    f"the carried {name} is {tuple(state[name].shape)}, and the model has {tuple(own.shape)}"
                )
            own.copy_(state[name])
        lanes.following[:] = state["following"].cpu().numpy()
        self.lanes = lanes


def build(settings: Settings, model: nn.Module, special: Specials) -> BiLM:
    if not isinstance(model, Recurrent):
        raise UserError(f"objective bilm carries the states of a recurrent model, not of {type(model).__name__}. "
                        "Set model.kind: recurrent.")  # fmt: skip
    return BiLM(settings, model, special)
