"""What a kind of model cannot be asked, as attributes that say so.

`etude.load` opens whatever a folder holds: a language model, a baseline or the vectors of a graph. Each has the methods
of the others as properties that never return: using one raises a UserError that says what the model can do, and a type
checker that knows only "one of the three" takes the type from the kind that has the method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn

from etude.errors import UserError

BASELINE_USE = "it can predict, evaluate, export and serve"


class LackingMethodError(UserError, AttributeError):
    """A method that only another kind of model has; an AttributeError, so that `hasattr` is False."""


class LacksText(ABC):
    """No language model: no hidden states, and no text is written or filled."""

    @abstractmethod
    def refuse(self, method: str) -> NoReturn:
        """Raise LackingMethodError with what this kind of model can do."""

    @property
    def fill(self) -> NoReturn:
        self.refuse("fill")

    @property
    def fill_blanks(self) -> NoReturn:
        self.refuse("fill_blanks")

    @property
    def encode(self) -> NoReturn:
        self.refuse("encode")

    @property
    def states(self) -> NoReturn:
        self.refuse("states")

    @property
    def logits(self) -> NoReturn:
        self.refuse("logits")

    @property
    def generate(self) -> NoReturn:
        self.refuse("generate")

    @property
    def search(self) -> NoReturn:
        self.refuse("search")

    @property
    def translate(self) -> NoReturn:
        self.refuse("translate")

    @property
    def perplexity(self) -> NoReturn:
        self.refuse("perplexity")


class LacksGraph:
    """No vectors of entities by name."""

    @property
    def vectors(self) -> NoReturn:
        self.refuse_graph("vectors")

    @property
    def complete(self) -> NoReturn:
        self.refuse_graph("complete")

    def refuse_graph(self, method: str) -> NoReturn:
        """Raise LackingMethodError."""
        raise LackingMethodError(
            f"This model did not learn from a graph, so it has no {method}: entities have vectors in a run on a graph "
            "(etude pretrain transe GRAPH); vectors of texts are given by encode."
        )
