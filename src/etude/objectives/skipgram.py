"""Skip-gram: a word's vector predicts the words around it.

Mikolov et al. 2013a, section 3.2, and 2013b, section 2. Each pair (centre, context) is told apart from `negatives`
noise words, drawn by count^0.75:

    -log s(u_context . v_centre) - sum over k of log s(-u_k . v_centre)

A noise word equal to the context is skipped, not drawn again. Or, hierarchically, the way to the context through a
Huffman tree is predicted, a node a decision. With a model of sub-words (`model.buckets`) v is the mean of the rows of
the word and its n-grams: fastText (Bojanowski et al. 2017, section 3.2).

word2vec's code lets the context predict the centre, which is the same set of pairs turned around; here it is the
centre, as in the papers and in fastText [code].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.models.base import Model
from etude.models.static import Static
from etude.objectives.base import Term
from etude.objectives.batch_view import Words
from etude.objectives.word_vectors.batched_update import Inputs, blocks, losses, make_pairs, make_targets, update_table
from etude.objectives.word_vectors.windows import WindowBatch, Windows, WindowSettings, check_model
from etude.text.tokenizer.special_tokens import Specials


class Settings(WindowSettings):
    pass


class SkipGram(Windows):
    @property
    def task_words(self) -> tuple[str, str, Words]:
        return "from a word, those around it", "낱말로 그 주위 낱말들을 예측", ("predicts", "→")

    def predictions(self, around: np.ndarray) -> int:
        return int(around.sum())

    def loop(self, loops: Any, shared: tuple[Any, ...], start: int, stop: int, tables: tuple[Any, ...]) -> float:
        return loops.skip_gram(*shared, start, stop, *tables)

    def batched(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        assert self.text is not None
        settings, table = self.settings, model.output.weight
        total = torch.zeros((), dtype=torch.float64, device=table.device)
        for start, stop, count in blocks(batch, settings.block):
            pairs, centres = make_pairs(batch, start, stop, count), batch.words[start:stop]
            words, keys = batch.words[pairs.contexts], batch.keys[pairs.centres]
            targets = make_targets(words, keys, pairs.slots, settings.negatives, self.text)
            inputs, hard = Inputs.from_words(model, centres), settings.output == "hierarchical"
            owner = pairs.centres - start
            change, loss = update_table(inputs.means(model), owner, targets, table, rate, settings.calm, hard)
            inputs.add(model, change, settings.calm)
            total += loss
        return total

    def hogwild(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        from etude.objectives.word_vectors.kernels import (
            windows_triton,
        )  # needs Triton, which comes with torch for CUDA

        assert self.text is not None
        tables = self.text.on(batch.words.device)
        spelled = None
        if model.settings.buckets:
            spelled = tables["spelled_bounds"], tables["spelled_rows"], tables["spelled_growth"]
        return windows_triton.skip_gram(
            batch.words, batch.low, batch.high, batch.keys, model.input.weight, model.output.weight, tables["accept"],
            tables["alias"], spelled, self.settings.negatives, rate, self.settings.programs,
        )  # fmt: skip

    def loss(self, model: Static, batch: WindowBatch) -> dict[str, Term]:
        """The same loss for autograd and for the held-out text."""
        assert self.text is not None
        total = torch.zeros((), dtype=torch.float64, device=batch.words.device)
        for start, stop, count in blocks(batch, self.settings.block):
            pairs, centres = make_pairs(batch, start, stop, count), batch.words[start:stop]
            words, keys = batch.words[pairs.contexts], batch.keys[pairs.centres]
            targets = make_targets(words, keys, pairs.slots, self.settings.negatives, self.text)
            hidden = Inputs.from_words(model, centres).means(model)[pairs.centres - start]
            scores = (hidden[:, None] * model.output(targets.rows)).sum(-1)  # (P, T)
            total = total + losses(scores, targets)
        return {"loss": Term(total, batch.counts["loss"])}

    def flops(self, model: Static, batch: WindowBatch) -> int:
        """A score a row, and in the backward pass two products more; adding up the rows of sub-words is no product."""
        assert self.text is not None
        return 3 * 2 * model.width * round(batch.counts["loss"] * self.text.targets)


def build(settings: Settings, model: Model, special: Specials) -> SkipGram:
    return SkipGram(settings, check_model("skipgram", model), special)
