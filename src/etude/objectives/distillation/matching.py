"""Matching a student's hidden layers to its teacher's (TinyBERT: Jiao et al. 2020, section 3.1, equations 7 to 9).

    attention   its scores before the softmax, head by head                        a mean over heads and pairs of tokens
    hidden      its states behind each layer, the student's through a projection   a mean over tokens and their numbers
    embedding   the same of the first states

Each is a sum over layers of means. Layer m of the student's M has the teacher's layer m N / M of N. The projection is
trained along with the student and dropped at the end. The released code has one for all states, the paper writes one
for the embedding and another for the layers: `projections`.

Padding, which the code's means count in as zeros, is not there: the same text has the same loss in any batch.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.transformer import Transformer
from etude.nn.attention.score_distance import score_distance
from etude.nn.initialization import draw_key, init_weights
from etude.nn.packed import Layout, Packed
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import Term
from etude.settings import Strict


class MatchingSettings(Strict):
    """Which of the teacher's hidden layers are matched, and the weight of each term; TinyBERT: 1 each."""

    attention_weight: float = Field(
        default=0.0, ge=0, description="weight of the loss on attention scores; needs as many heads as the teacher"
    )
    hidden_weight: float = Field(default=0.0, ge=0, description="weight of the loss on the hidden states of layers")
    embedding_weight: float = Field(default=0.0, ge=0, description="weight of the loss on the states of the embedding")
    projections: Literal["one", "two"] = Field(default="one", description="two: one for the first states (the paper)")
    layers: list[int] | None = Field(
        default=None, description="layer of the teacher that each layer of the student imitates; evenly spread if None"
    )

    @property
    def matches_layers(self) -> bool:
        """Whether any term compares hidden layers."""
        return bool(self.attention_weight or self.hidden_weight or self.embedding_weight)


class Matching(nn.Module):
    """The projections from the student's width to the teacher's, and the loss terms."""

    def __init__(self, settings: MatchingSettings, model: Transformer, teacher: Transformer) -> None:
        super().__init__()
        own, target = model.settings, teacher.settings
        problems = find_mismatches(settings, model, teacher)
        if problems:
            raise UserError(" ".join(problems))
        self.settings, self.heads, self.widths = settings, own.heads, (model.width, teacher.width)
        self.layers = matched_layers(own.layers, target.layers, settings.layers)
        matches_states = settings.hidden_weight or (settings.embedding_weight and settings.projections == "one")
        self.fit = nn.Linear(model.width, teacher.width) if matches_states else None
        two = settings.embedding_weight and settings.projections == "two"
        self.fit_embedding = nn.Linear(model.width, teacher.width) if two else None
        init_weights(self, key=draw_key(), deviation=own.init_deviation, truncated=own.init_truncated)

    def forward_states(self, model: Transformer, batch: Packed) -> States:
        """The states that are compared, of either side."""
        states: States = model(batch, layers=True, queries=bool(self.settings.attention_weight))
        return states

    def counts(self, lengths: np.ndarray) -> dict[str, int]:
        """What each term is divided by."""
        lengths = lengths.astype(np.int64)
        numbers = int(lengths.sum()) * self.widths[1]
        every = {"attention": self.heads * int((lengths**2).sum()), "hidden": numbers, "embedding": numbers}
        return {name: every[name] for name in self._weights()}

    def terms(self, student: States, teacher: States, layout: Layout, counts: dict[str, int]) -> dict[str, Term]:
        sums: dict[str, Tensor] = {}
        weights = self._weights()
        if "attention" in weights:
            assert student.queries is not None and teacher.queries is not None
            pairs = zip(student.queries, (teacher.queries[layer] for layer in self.layers), strict=True)
            sums["attention"] = torch.stack([score_distance(own, target, layout) for own, target in pairs]).sum()
        assert student.layers is not None and teacher.layers is not None
        if "hidden" in weights:
            pairs = zip(student.layers[1:], (teacher.layers[layer + 1] for layer in self.layers), strict=True)
            sums["hidden"] = torch.stack([_squared_error(self.fit, own, target) for own, target in pairs]).sum()
        if "embedding" in weights:
            sums["embedding"] = _squared_error(self.fit_embedding or self.fit, student.layers[0], teacher.layers[0])
        return {name: Term(total, counts[name], weights[name]) for name, total in sums.items()}

    def flops(self, lengths: np.ndarray) -> int:
        """Of the terms, backward pass and all."""
        lengths = lengths.astype(np.int64)
        tokens, pairs, count = int(lengths.sum()), int((lengths**2).sum()), len(self.layers)
        width, target_width = self.widths
        total = 2 * count * pairs * (3 * width + target_width) if self.settings.attention_weight else 0
        fitted = (count if self.settings.hidden_weight else 0) + (1 if self.settings.embedding_weight else 0)
        return total + 6 * fitted * tokens * width * target_width

    def _weights(self) -> dict[str, float]:
        """Of the terms that count."""
        every = {name: getattr(self.settings, f"{name}_weight") for name in ("attention", "hidden", "embedding")}
        return {name: weight for name, weight in every.items() if weight}


def _squared_error(fit: nn.Linear | None, student: Tensor, teacher: Tensor) -> Tensor:
    """The sum of squared differences, in float32."""
    assert fit is not None
    return (upcast(fit(student)) - upcast(teacher)).square().sum()


def find_mismatches(settings: MatchingSettings, model: Transformer, teacher: Transformer) -> list[str]:
    """Everything for which a student's layers cannot be matched to its teacher's, a sentence each."""
    own, target = model.settings, teacher.settings
    problems = []
    if settings.attention_weight and own.heads != target.heads:
        problems.append(
            f"Attention is learnt head by head, and the student has {own.heads}, its teacher {target.heads}: "
            f"set model.heads={target.heads}, or distill.attention_weight=0."
        )
    if settings.attention_weight and (own.window is not None or target.window is not None):
        problems.append("Banded layers have no scores beyond their window: set distill.attention_weight=0.")
    try:
        matched_layers(own.layers, target.layers, settings.layers)
    except UserError as error:
        problems.append(str(error))
    return problems


def matched_layers(student: int, teacher: int, layers: list[int] | None) -> list[int]:
    """The teacher's layer, from 0, that each of the student's learns from: the last of its share."""
    if layers is not None:
        return check_layers(student, teacher, layers)
    if teacher % student:
        even = max(count for count in range(1, min(student, teacher) + 1) if teacher % count == 0)
        raise UserError(
            f"The student's {student} layers do not divide the teacher's {teacher}: "
            f"name one for each with distill.layers, from 0 to {teacher - 1}, or set model.layers={even}."
        )
    share = teacher // student
    return [share * (layer + 1) - 1 for layer in range(student)]


def check_layers(student: int, teacher: int, layers: list[int]) -> list[int]:
    """The layers as named; UserError where they are not one of the teacher's for each of the student's."""
    if len(layers) != student or any(not 0 <= layer < teacher for layer in layers):
        raise UserError(
            f"distill.layers={layers}: name one of the teacher's layers, 0 to {teacher - 1}, for each of {student}."
        )
    return layers
