"""Gradual unfreezing: layers are unfrozen from the top, one after the other (Howard & Ruder 2018, section 3.3)."""

from __future__ import annotations

from etude.models.base import Model
from etude.models.freezing import check_layers, thaw
from etude.train.loader import Step
from etude.train.loop import Loop


class ThawingLoop(Loop):
    """A training loop whose layers are unfrozen from the top; which are frozen is a function of the step alone."""

    model: Model
    shards_weights = False  # a task scores itself outside of the loop, and layers are frozen in turn
    thaw_every = 0  # steps from one layer to the next; 0: all learn from the start

    def advance(self, step: Step) -> None:
        if self.thaw_every:
            thaw(self.model, self.depths, step.number // self.thaw_every)
        super().advance(step)

    def thaw(self, every: int) -> None:
        """Start with all layers frozen and unfreeze one every `every` steps; called before `run`."""
        check_layers(self.model, "gradual", 0)
        names = [name.removeprefix("model.") for name, _ in self.named if name.startswith("model.")]
        self.depths = {name: self.model.parameter_depth(name) for name in names}
        self.thaw_every = every
