"""Tasks whose logits are one linear layer over what they read of the hidden states.

Of such a task the last layer can be solved for instead of trained, where the model below it is frozen: the *linear
probe* (transfer/probe.py). A *unit* is what has logits of its own: a text or a pair, a word of a sentence, a candidate
of a question, a token that a span may open or close at. The task says what its last layer reads of each unit, what the
units should become, and what logits answer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from etude.models.base import Model
from etude.nn.states import States
from etude.objectives.base import Rows, RowT_co
from etude.tasks.base import Answer, BatchT, E, RowT, Task
from etude.tasks.data.examples import Examples

TargetLoss = Literal["softmax", "squares", "candidates"]


@dataclass(frozen=True)
class Targets:
    """What the units of each example should become.

    softmax      values are the numbers of labels: cross-entropy over the logits of a unit
    squares      values are numbers: squared error of its one output
    candidates   values are 1 where a unit is right, else 0: the units of an example share one softmax; of several
                 outputs (where a span opens, where it closes) each has a column of values and a softmax of its own
    """

    loss: TargetLoss
    values: list[np.ndarray]  # (units,) of each example, or (units, outputs)


class PartialRows(Rows[RowT_co], Protocol[RowT_co]):
    """Rows of which some can be taken as rows of their own."""

    def part(self, numbers: Sequence[int]) -> Self:
        """Some of them, in the order given."""
        ...


class LinearTask(Task[E, RowT, BatchT], Generic[E, RowT, BatchT]):
    gives_probabilities: ClassVar[bool] = True  # its answers are a softmax of the logits
    has_token_units: ClassVar[bool] = False  # every token is a unit: features of many examples are large

    @property
    @abstractmethod
    def output_layer(self) -> nn.Linear:
        """The last layer, whose outputs are the logits."""

    @property
    @abstractmethod
    def nonlinear_part(self) -> str | None:
        """The setting that puts learned layers between the hidden states and the last one; None: there are none."""

    @abstractmethod
    def unlabelled_rows(self, examples: Examples[E]) -> PartialRows[RowT]:
        """Rows of all examples, without their labels."""

    @abstractmethod
    def features(self, model: Model, states: States, batch: BatchT) -> Tensor:
        """(U, D) what the last layer reads of each unit of a batch, without dropout."""

    @abstractmethod
    def unit_counts(self, batch: BatchT) -> np.ndarray:
        """(R,) the units of each row of a batch."""

    @abstractmethod
    def targets(self, examples: Examples[E], rows: PartialRows[RowT]) -> Targets:
        """The targets of labelled examples; `rows` are those of `unlabelled_rows`."""

    @abstractmethod
    def answers(self, examples: Examples[E], rows: PartialRows[RowT], logits: Sequence[np.ndarray]) -> list[Answer]:
        """What `predict` answers where these are the logits, (units, outputs) of each example."""

    @torch.no_grad()
    def scale_logits(self, temperature: float) -> None:
        """Divide the logits by a temperature, in the weights: softmax(logits / T) from now on (Guo et al. 2017)."""
        self.output_layer.weight.div_(temperature)
        self.output_layer.bias.div_(temperature)
