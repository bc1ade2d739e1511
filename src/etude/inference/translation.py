"""Translation of texts by an encoder-decoder: greedy decoding and beam search, many sources at a time.

Finished hypotheses are compared by (Wu et al. 2016, equation 14)

    log P(target | source) / ((5 + n) / 6) ** penalty + coverage * sum_i log(min(sum_j a_ij, 1)),

with n tokens, the end among them, and a_ij the attention of target token j to source token i: what no token looked at
counts against a translation. Vaswani et al. 2017, section 6.1: 4 beams, penalty 0.6, no coverage, at most 50 tokens
more than the source. With one beam it is greedy: the likeliest token each time, until that is the end. The search
itself is in tasks/translate/search.py.

States of the decoder are cached, so a token costs one step; no source sees another, and nothing depends on what else
is translated in the same call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.translation_sampling import TargetSampling, sample_sources
from etude.models.base import require
from etude.models.seq2seq import Seq2Seq
from etude.objectives.translate import Translate
from etude.tasks.translate.decoding import make_recorder, search_sources
from etude.tasks.translate.search import Hypothesis, Search

__all__ = [
    "Search", "TargetSampling", "Translation", "is_translator", "require_translator", "translate", "translate_tokens",
]  # fmt: skip


@dataclass(frozen=True)
class Translation:
    """A target for a source."""

    source: str
    text: str
    ids: tuple[int, ...]  # of the target, without its end
    score: float  # what hypotheses are compared by
    log_prob: float  # of the target and its end
    finished: bool  # False: cut at the greatest length

    def __str__(self) -> str:
        return self.text


@torch.no_grad()
def translate(
    loaded: InferenceModel, texts: Sequence[str], search: Search | TargetSampling | None = None, before: int = 0
) -> list[list[Translation]]:
    """Return the `search.best` translations of each text, best first; of an empty text the empty translation.

    With a `TargetSampling` they are drawn at random, and stand in the order of drawing; their score is log P.
    `before`: texts of a longer list that stand before these, for messages.
    """
    _, objective = require_translator(loaded)
    translations: list[list[Translation]] = [[Translation(text, "", (), 0.0, 0.0, True)] for text in texts]
    sources = _encode_sources(loaded, objective, texts, before)
    for number, targets in zip(sources, translate_tokens(loaded, list(sources.values()), search), strict=True):
        translations[number] = [
            Translation(
                texts[number], loaded.tokenizer.target.decode(target.ids, special=False).strip(), target.ids,
                target.score, target.log_prob, target.is_finished,
            )
            for target in targets
        ]  # fmt: skip
    return translations


def translate_tokens(
    loaded: InferenceModel, sources: Sequence[np.ndarray], search: Search | TargetSampling | None = None
) -> list[list[Hypothesis]]:
    """Return the `search.best` targets of each source, given as ids with their end, best first."""
    model, objective = require_translator(loaded)
    device = torch.device(loaded.device)
    if isinstance(search, TargetSampling):
        return sample_sources(model, objective, sources, search, device, loaded.ids_without_token)
    banned = loaded.ids_without_token
    if loaded.search_recorder is None or not loaded.search_recorder.fits(model):
        loaded.search_recorder = make_recorder(model, objective, device, banned)
    return search_sources(model, objective, sources, search or Search(), device, banned, loaded.search_recorder)


def is_translator(loaded: InferenceModel) -> bool:
    """Whether a model translates."""
    return isinstance(loaded.objective, Translate)


def require_translator(loaded: InferenceModel) -> tuple[Seq2Seq, Translate]:
    """The encoder-decoder and its objective; UserError where the model does not translate."""
    message = (
        "This model does not translate: take a run of a recipe such as transformer-small, or one that was "
        "fine-tuned for the task translate."
    )
    if not isinstance(loaded.objective, Translate):
        raise UserError(message)
    return require(loaded.model, Seq2Seq, message), loaded.objective  # type: ignore[type-abstract]


def _encode_sources(
    loaded: InferenceModel, objective: Translate, texts: Sequence[str], before: int
) -> dict[int, np.ndarray]:
    """The texts that are not empty by their numbers, framed as in training; UserError where one is too long."""
    limit = loaded.model.max_length
    sources = {}
    for number, ids in enumerate(loaded.tokenizer.encode_ids([" ".join(text.split()) for text in texts])):
        if not len(ids):
            continue
        if len(ids) + 1 > limit:
            raise UserError(
                f"Text {before + number + 1} has {len(ids)} tokens, and this model reads at most {limit - 1}: split it."
            )
        sources[number] = objective.frame(ids.astype(np.int64), None)
    return sources
