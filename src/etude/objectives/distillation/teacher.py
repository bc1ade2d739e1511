"""Who a student learns from: in pre-training (objectives/distill.py), and in a task (tasks/distilled_task.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Teacher:
    """A model that has learnt already, and its objective: no part of a student, and never changed by one."""

    model: Any
    objective: Any

    def eval(self) -> Teacher:
        for part in (self.model, self.objective):
            part.eval().requires_grad_(False)
        return self

    def at(self, device: torch.device) -> Any:
        """Its model, on this device."""
        if next(self.model.parameters()).device != device:  # the first time
            self.model.to(device)
            self.objective.to(device)
        return self.model
