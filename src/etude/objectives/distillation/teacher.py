"""Who a student learns from: in pre-training (objectives/distill.py), and in a task (tasks/distilled_task.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Self

import torch
from typing_extensions import TypeVar

from etude.models.transformer import Transformer
from etude.objectives.base import Objective

ObjectiveT_co = TypeVar("ObjectiveT_co", bound=Objective, covariant=True, default=Any)


@dataclass(frozen=True)
class Teacher(Generic[ObjectiveT_co]):
    """A model that has learnt already, and its objective: no part of a student, and never changed by one."""

    model: Transformer
    objective: ObjectiveT_co

    def eval(self) -> Self:
        for part in (self.model, self.objective):
            part.eval().requires_grad_(False)
        return self

    def at(self, device: torch.device) -> Transformer:
        """Its model, on this device."""
        if next(self.model.parameters()).device != device:  # the first time
            self.model.to(device)
            self.objective.to(device)
        return self.model
