"""CBOW: the mean of the vectors around a word predicts the word (Mikolov et al. 2013a, section 3.1).

    h = mean of v over the words of the window,      -log s(u_word . h) - sum over k of log s(-u_k . h)

The gradient of a mean is shared out among its parts. word2vec's code adds it to each of them whole, which comes to a
higher rate for the input table, and is followed; `divide` shares it out. With a model of sub-words the mean is over
all rows of all words around (fastText [code]).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from etude.models.base import Model
from etude.models.static import Static
from etude.objectives.base import Term
from etude.objectives.batch_view import Words
from etude.objectives.word_vectors.batched_update import (
    Inputs,
    Pairs,
    Targets,
    blocks,
    losses,
    make_pairs,
    make_targets,
    update_table,
)
from etude.objectives.word_vectors.windows import WindowBatch, Windows, WindowSettings, check_model
from etude.text.tokenizer.special_tokens import Specials


class Settings(WindowSettings):
    divide: bool = Field(
        default=False,
        description="each context vector gets its share of the gradient; in the released code each gets all of it",
    )


class CBOW(Windows):
    settings: Settings

    @property
    def task_words(self) -> tuple[str, str, Words]:
        return "a word from those around it", "주위 낱말들로 그 낱말을 예측", ("from", "←")

    def predictions(self, around: np.ndarray) -> int:
        return int(np.count_nonzero(around))

    def loop(self, loops: Any, shared: tuple[Any, ...], start: int, stop: int, tables: tuple[Any, ...]) -> float:
        return loops.cbow(*shared, start, stop, *tables, self.settings.divide)

    def batched(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        settings, table = self.settings, model.output.weight
        total = torch.zeros((), dtype=torch.float64, device=table.device)
        for start, stop, count in blocks(batch, settings.block):
            pairs = make_pairs(batch, start, stop, count)
            inputs, sizes, hidden = self._hidden(model, batch, pairs, start, stop)
            targets = self._targets(batch, start, stop, sizes)
            change, loss = update_table(
                hidden, None, targets, table, rate, settings.calm, settings.output == "hierarchical"
            )
            if settings.divide:
                change = change / sizes.clamp(min=1)[:, None]
            inputs.add(model, change, settings.calm)
            total += loss
        return total

    def _hogwild_obstacle(self, model: Static, device: torch.device) -> str | None:
        problem = super()._hogwild_obstacle(model, device)
        if problem is None and model.settings.buckets:
            return "has no CBOW of n-grams: set model.buckets=0, or objective.engine=batched"
        return problem

    def hogwild(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        from etude.objectives.word_vectors.kernels import (
            windows_triton,
        )  # needs Triton, which comes with torch for CUDA

        assert self.text is not None
        tables = self.text.on(batch.words.device)
        return windows_triton.cbow(
            batch.words, batch.low, batch.high, batch.keys, model.input.weight, model.output.weight, tables["accept"],
            tables["alias"], self.settings.window, self.settings.divide, self.settings.negatives, rate,
            self.settings.programs,
        )  # fmt: skip

    def loss(self, model: Static, batch: WindowBatch) -> dict[str, Term]:
        """The same loss for autograd and for the held-out text."""
        total = torch.zeros((), dtype=torch.float64, device=model.input.weight.device)
        for start, stop, count in blocks(batch, self.settings.block):
            _, sizes, hidden = self._hidden(model, batch, make_pairs(batch, start, stop, count), start, stop)
            targets = self._targets(batch, start, stop, sizes)
            scores = (hidden[:, None] * model.output(targets.rows)).sum(-1)  # (B, T)
            total = total + losses(scores, targets)
        return {"loss": Term(total, batch.counts["loss"])}

    def _hidden(
        self, model: Static, batch: WindowBatch, pairs: Pairs, start: int, stop: int
    ) -> tuple[Inputs, Tensor, Tensor]:
        """The rows of the words around each centre, how many they are, and their mean."""
        inputs = Inputs.from_words(model, batch.words[pairs.contexts], pairs.centres - start)
        sizes = model.input.weight.new_zeros(stop - start)
        sizes.index_add_(0, inputs.owner, torch.ones_like(inputs.owner, dtype=sizes.dtype))
        total = model.input.weight.new_zeros(stop - start, model.width)
        return inputs, sizes, total.index_add(0, inputs.owner, model.input(inputs.rows)) / sizes.clamp(min=1)[:, None]

    def _targets(self, batch: WindowBatch, start: int, stop: int, sizes: Tensor) -> Targets:
        assert self.text is not None
        words, keys = batch.words[start:stop], batch.keys[start:stop]
        targets = make_targets(words, keys, torch.zeros_like(words), self.settings.negatives, self.text)
        targets.counted *= (sizes > 0)[:, None]  # a word alone is predicted by nobody
        return targets

    def flops(self, model: Static, batch: WindowBatch) -> int:
        """A score a row, and in the backward pass two products more."""
        assert self.text is not None
        return 3 * 2 * model.width * round(batch.counts["loss"] * self.text.targets)


def build(settings: Settings, model: Model, special: Specials) -> CBOW:
    return CBOW(settings, check_model("cbow", model), special)
