"""The Objective contract: how text becomes rows, rows a batch, a batch a loss.

An objective is one file. It owns everything between a corpus and a loss: the rows, the corruption, the heads, the loss
terms, the metrics and the cost. Two tiers, so that everybody sees which part is theirs:

    Objective         what training needs; the loop (`etude.train`) knows nothing else. Pretext tasks, downstream tasks
                      and distillation all are objectives.
        batch(rows, chance)          corruption and targets, on the host, from hashes; counts known before backward
        loss(model, batch)           named terms, each a *sum*; the loop divides by the count over the whole step
        flops(model, batch)          forward and backward, by the stated convention
        metrics(model, batch)        sums and counts, streamed over a held-out part
        view_batch(model, batch)     the batch as a person reads it (`etude show batch`)
        persistent_state()           what a finished run keeps
        state(), restore(...)        only what must be carried from step to step (states of fixed lanes)
        update(model, batch, rate)   only for models that update themselves (word vectors)

    UsableObjective   what using the trained model needs besides: how a text is framed, where logits come from, what
                      they predict.

A pre-training objective (`PretrainingObjective`) is both, and says how a corpus becomes rows:

    rows(corpus, seed)               a pure, seekable list of rows: rows[i] is the same whoever asks

It is a module with `Settings` and `build(settings, model, special)`, known by the module's name (etude/kinds.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypeVar

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.graph_split import GraphSplit
from etude.models.base import Model
from etude.nn.losses import IGNORE
from etude.nn.packed import Layout, Packed, positions_from_bounds
from etude.nn.states import States
from etude.objectives.batch_view import BatchView, view_plain
from etude.text.corpus.corpus import Corpus

__all__ = [
    "IGNORE", "Batch", "Objective", "PretrainingObjective", "Row", "Rows", "Stat", "Term", "UsableObjective", "join",
    "mean_tokens_of", "rows_of",
]  # fmt: skip

# A plain `Objective` is one of any model, row and batch
ModelT = TypeVar("ModelT", bound=Model, default=Any)
RowT = TypeVar("RowT", bound="Row", default=Any)
RowT_co = TypeVar("RowT_co", bound="Row", covariant=True, default=Any)
BatchT = TypeVar("BatchT", bound="Batch", default=Any)
SourceT = TypeVar("SourceT", bound=Corpus | GraphSplit, default=Any)  # what a pre-training reads


@dataclass
class Row:
    """One row: whole sequences end to end, built alone."""

    index: int  # its number; part of every hash drawn for it
    tokens: np.ndarray  # (n,) int32
    bounds: np.ndarray  # (s+1,) int32, from 0 to n
    segments: np.ndarray | None = None  # (n,) uint8
    slot: int = 0  # its place in the step, set by the loader: the lane of a stateful objective


class Rows(Protocol[RowT_co]):
    """A pure function from a number to a row.

    `len` is the rows of one epoch. Numbers at and beyond it are later epochs, and may give the same text
    in another cut or pairing; `shuffle` False asks for fixed lanes (row j of every step continues row j of
    the step before) in place of a permutation. Where rows are built together faster than one by one, there is also
    `many(numbers)`: a list of new rows, each as it is alone (see `rows_of`). Where they are not full, there is also
    `mean_tokens`: what one holds on average (see `mean_tokens_of`).
    """

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has an order of its own."""

    @property
    def row_tokens(self) -> int | None:
        """Tokens of every row; None where rows are labelled examples of their own length."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> RowT_co: ...


def rows_of(rows: Rows[RowT], numbers: np.ndarray) -> list[RowT]:
    """The rows of these numbers."""
    together = getattr(rows, "many", None)
    return together(numbers) if together else [rows[number] for number in numbers.tolist()]


def mean_tokens_of(rows: Rows[RowT]) -> float | None:
    """The tokens that a row holds on average; None where rows are labelled examples of their own length."""
    return getattr(rows, "mean_tokens", rows.row_tokens)


@dataclass
class Batch(Packed):
    """A micro-batch. Objectives add their own fields (targets, slots, entities, a second stream)."""

    rows: np.ndarray  # (R,) the numbers of its rows, on the host
    slots: np.ndarray  # (R,) the place of each row in the step
    counts: dict[str, int] = field(default_factory=dict)  # what each loss term is divided by, summed over the step
    padding: int = 0  # sequences at the end that have no content and fill a static shape

    @property
    def size(self) -> int:
        """Real tokens, for budgets and speed."""
        return int(self.layout.host[-1 - self.padding])

    @property
    def lengths(self) -> np.ndarray:
        """The lengths of its sequences without padding, on the host."""
        return np.diff(self.layout.host[: len(self.layout.host) - self.padding])

    @property
    def sequences(self) -> int:
        """The number of its sequences without padding; part of its shapes."""
        return len(self.layout.bounds) - 1 - self.padding

    def pad(self, sizes: Sequence[int], longest: int) -> Self:
        """With sequences of padding of these sizes behind its own; a batch with tensors of N adds theirs."""
        positions = torch.cat([torch.arange(size) for size in sizes])
        bounds = np.concatenate([self.layout.host, self.layout.total + np.cumsum(sizes)])
        return replace(
            self,
            tokens=F.pad(self.tokens, (0, len(positions))),
            positions=torch.cat([self.positions, positions]),
            segments=None if self.segments is None else F.pad(self.segments, (0, len(positions))),
            layout=replace(Layout.from_bounds(bounds, longest), equal=False),
            padding=len(sizes),
        )

    def compact(self) -> Self:
        """Without what is there for static shapes alone: for steps that nobody compiles."""
        return self


@dataclass
class Term:
    """One named part of a loss: a sum over `count` things, weighted in the total."""

    sum: Tensor
    count: int
    weight: float = 1.0


@dataclass
class Stat:
    """A streaming mean: sums and counts add up."""

    sum: Tensor | float
    count: int
    weight: float | None = None  # set on the terms of the loss: the held-out loss is their weighted mean

    @property
    def mean(self) -> float:
        return float(self.sum) / max(1, self.count)

    def __add__(self, other: Stat) -> Stat:
        return Stat(self.sum + other.sum, self.count + other.count, self.weight)


class Places(NamedTuple):
    """At how many tokens of a batch something is computed."""

    read: int  # the model's last layer
    predicted: int  # scores of the vocabulary, for a loss
    drawn: int = 0  # tokens, from such scores


# --- the two tiers ----------------------------------------------------------------------------------


class Objective(nn.Module, ABC, Generic[ModelT, RowT, BatchT]):
    """What training needs. Heads are sub-modules; a tied table is used from the model, never copied."""

    pads_batches = False  # True where no loss reads sequences of padding, so that batches may have static shapes
    couples_rows = False  # True where a row's loss depends on the others of its micro-batch: candidates of a batch
    updates_itself = False  # True where `update` takes the place of gradients and optimiser
    views_by_weights = False  # True where `view_batch` computes with the model; else it may have no weights
    training_state: tuple[str, ...] = ()  # beginnings of names in checkpoints that a model in use does not have
    nats_per_token: str | None = None  # the metric that is a true likelihood of every token: gives bits per byte
    token_loss: str | None = (
        None  # the term in nats a token, of all tokens of a text alike: their entropy is one to beat
    )

    @abstractmethod
    def batch(self, rows: Sequence[RowT], chance: Chance) -> BatchT:
        """Corruption, targets and counts of some rows."""

    @abstractmethod
    def loss(self, model: ModelT, batch: BatchT) -> dict[str, Term]:
        """Its terms by name, each a sum and what it is divided by."""

    @abstractmethod
    def flops(self, model: ModelT, batch: BatchT) -> int:
        """Of one step on this batch, backward pass and all."""

    def count_places(self, batch: BatchT) -> Places:
        """By default every token; states that are not read take no memory."""
        return Places(batch.size, batch.size)

    def metrics(self, model: ModelT, batch: BatchT) -> dict[str, Stat]:
        """By default the loss terms themselves."""
        return {
            name: Stat(term.sum.detach(), term.count, term.weight) for name, term in self.loss(model, batch).items()
        }

    def view_batch(self, model: ModelT, batch: BatchT) -> BatchView:
        """A batch as a person reads it (`etude show batch`): by default the tokens of each sequence."""
        return view_plain(batch, batch.padding)

    def persistent_state(self) -> dict[str, Tensor]:
        """What a finished run keeps: without parameters that served training alone or were never trained."""
        return dict(self.state_dict())

    def trunks(self) -> list[Model]:
        """Models of its own beside the one that is trained (ELECTRA's generator): compiled like it."""
        return []

    def set_lanes(self, lanes: int) -> None:
        """Called once, before the first batch, with the rows of a step (only matters where rows do not shuffle)."""

    def state(self) -> dict[str, Tensor] | None:
        """Named tensors, the first axis being the lanes; None where nothing is carried."""
        return None

    def restore(self, state: dict[str, Tensor]) -> None:
        raise ValueError(f"{type(self).__name__} carries no state, yet a checkpoint holds {sorted(state)}")

    def update(self, model: ModelT, batch: BatchT, rate: float) -> dict[str, Term]:
        """One step without gradients, where `updates_itself`; the terms are only logged."""
        raise TypeError(f"{type(self).__name__} learns by gradients: it has no update of its own")


class UsableObjective(Objective[ModelT, RowT, BatchT]):
    """What using a trained model needs of the objective it was trained by."""

    start_token: int | None = None  # what every text stands behind, where pre-training had such a token (Llama)
    splits_documents = False  # True where no sequence of pre-training held parts of two documents

    @property
    def predicts_next(self) -> bool:
        """Whether logits are of the token after each, so that text has a likelihood; else they fill blanks."""
        return False

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """The ids of one text as a sequence of pre-training, cut to the context."""
        return ids[:context]

    def hidden_for_logits(self, model: ModelT, packed: Packed) -> States:
        """The hidden states that `logits` reads: the model's, unless another model predicts (ELECTRA's generator)."""
        states: States = model(packed)
        return states

    def logits(self, model: ModelT, states: States) -> Tensor:
        """(N, V) scores of the vocabulary at every token."""
        raise UserError("This model has no language-model head, so it gives no logits.")


class PretrainingObjective(UsableObjective[ModelT, RowT, BatchT], Generic[ModelT, RowT, BatchT, SourceT]):
    """A pretext task over plain text, or over a graph (its settings derive from ReadsGraph). Fill in what you need."""

    # tokens of a sequence and of a row, where the objective settles them: a resolved recipe takes them from here
    length: int | None = None
    row_tokens: int | None = None

    @abstractmethod
    def rows(self, corpus: SourceT, seed: int) -> Rows[RowT]:
        """How text, or a split of a graph, becomes rows."""

    def find_problems(self, corpus: SourceT) -> list[str]:
        """Warnings on a corpus for `etude check`: what of it this objective cannot use."""
        return []

    def tokens_per_byte(self, corpus: SourceT) -> float | None:
        """Predicted tokens for each byte of text: turns nats a token into bits a byte; None: it reads no text."""
        return corpus.total / max(1, corpus.bytes) if isinstance(corpus, Corpus) else None

    @property
    def predicts_next(self) -> bool:
        return self.nats_per_token is not None


# --- rows side by side ------------------------------------------------------------------------------


def join(rows: Sequence[Row], sequences: int, longest: int) -> dict[str, Any]:
    """The fields of Packed for several rows, `bounds` padded with empty sequences to a fixed count.

    `sequences` is the most sequences a row can hold: with it, shapes depend on the number of rows alone.
    """
    tokens = np.concatenate([row.tokens for row in rows]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum([len(row.tokens) for row in rows])])
    bounds = np.concatenate([[0], *(row.bounds[1:] + start for row, start in zip(rows, starts, strict=False))])
    bounds = np.concatenate([bounds, np.full(max(0, len(rows) * sequences + 1 - len(bounds)), len(tokens))])
    segments = None
    if rows[0].segments is not None:
        segments = torch.from_numpy(np.concatenate([row.segments for row in rows]).astype(np.int64))
    return {
        "tokens": torch.from_numpy(tokens),
        "positions": torch.from_numpy(positions_from_bounds(bounds)),
        "segments": segments,
        "layout": Layout.from_bounds(bounds, longest),
        "rows": np.array([row.index for row in rows]),
        "slots": np.array([row.slot for row in rows]),
    }
