"""The adaptive softmax as an objective's settings ask for it: its clusters, checked against the model's vocabulary."""

from __future__ import annotations

from typing import Protocol

from etude.errors import UserError
from etude.nn.softmax import AdaptiveSoftmax, SoftmaxKind, default_cutoffs


class AdaptiveSettings(Protocol):
    @property
    def softmax(self) -> SoftmaxKind: ...
    @property
    def cutoffs(self) -> list[int] | None: ...
    @property
    def division(self) -> float: ...


def refuse_unused_cutoffs(settings: AdaptiveSettings) -> None:
    if settings.cutoffs is not None and settings.softmax != "adaptive":
        raise UserError(
            f"objective.cutoffs={settings.cutoffs} are clusters of objective.softmax=adaptive, and "
            f"objective.softmax={settings.softmax} has none: set it, or objective.cutoffs=null."
        )


def make_adaptive_softmax(
    settings: AdaptiveSettings, width: int, vocab: int, *, fewer_words_fewer_clusters: bool = False
) -> AdaptiveSoftmax:
    """Make the output layer; published clusters may lie beyond a smaller vocabulary and are left out where asked."""
    cutoffs = settings.cutoffs or default_cutoffs(vocab)
    if fewer_words_fewer_clusters:
        cutoffs = [first for first in cutoffs if first < vocab]
    if not cutoffs or cutoffs != sorted(set(cutoffs)) or not 0 < cutoffs[0] <= cutoffs[-1] < vocab:
        which = "the first" if fewer_words_fewer_clusters else "all"
        raise UserError(
            f"objective.cutoffs={settings.cutoffs}: they are ids that rise, above 0 and {which} below the vocabulary "
            f"of {vocab}."
        )
    if width < settings.division ** len(cutoffs):
        raise UserError(
            f"objective.division={settings.division:g} leaves nothing of model.width={width} in cluster "
            f"{len(cutoffs)}: lower it, or take fewer objective.cutoffs."
        )
    return AdaptiveSoftmax(width, vocab, cutoffs, settings.division)
