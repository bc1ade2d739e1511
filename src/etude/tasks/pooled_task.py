"""Tasks over one vector a text: the linear layer is that of a pooled head (tasks/pooled_head.py)."""

from __future__ import annotations

from typing import Generic

import numpy as np
from torch import Tensor, nn
from typing_extensions import TypeVar

from etude.models.base import Model
from etude.nn.states import States
from etude.tasks.base import E
from etude.tasks.linear_task import LinearTask
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, PooledHead

PooledBatchT = TypeVar("PooledBatchT", bound=ExampleBatch, default=ExampleBatch)


class PooledTask(LinearTask[E, ExampleRow, PooledBatchT], Generic[E, PooledBatchT]):
    """A linear task whose units are the texts, pairs or candidates that `pooled` reads."""

    pooled: PooledHead

    @property
    def output_layer(self) -> nn.Linear:
        return self.pooled.head

    @property
    def nonlinear_part(self) -> str | None:
        return self.pooled.nonlinear_part

    def features(self, model: Model, states: States, batch: PooledBatchT) -> Tensor:
        return self.pooled.features(model, states, batch)

    def unit_counts(self, batch: PooledBatchT) -> np.ndarray:
        return self.pooled.feature_counts(batch)
