"""Translation of texts by an encoder-decoder: greedy decoding and beam search, many sources at a time.

Finished hypotheses are compared by (Wu et al. 2016, equation 14)

    log P(target | source) / ((5 + n) / 6) ** penalty + coverage * sum_i log(min(sum_j a_ij, 1)),

with n tokens, the end among them, and a_ij the attention of target token j to source token i: what no token looked at
counts against a translation. Vaswani et al. 2017, section 6.1: 4 beams, penalty 0.6, no coverage, at most 50 tokens
more than the source. With one beam it is greedy: the likeliest token each time, until that is the end. The search
itself is in translation_search.py.

States of the decoder are cached, so a token costs one step; no source sees another, and nothing depends on what else
is translated in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.translation_search import Hypothesis, Search, search_targets
from etude.models.base import require
from etude.models.seq2seq import Seq2Seq
from etude.nn.packed import pack
from etude.nn.precision import upcast
from etude.objectives.translate import Translate

__all__ = ["Search", "Translation", "is_translator", "require_translator", "translate", "translate_tokens"]

EXTRA = 50  # tokens of a target beyond those of its source, at most
HYPOTHESES = {"cpu": 512, "cuda": 4096}  # decoded at once; bounds memory, never changes a result


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
def translate(loaded: InferenceModel, texts: Sequence[str], search: Search | None = None) -> list[list[Translation]]:
    """Return the `search.best` translations of each text, best first; of an empty text the empty translation."""
    _, objective = require_translator(loaded)
    translations: list[list[Translation]] = [[Translation(text, "", (), 0.0, 0.0, True)] for text in texts]
    sources = _encode_sources(loaded, objective, texts)
    for number, targets in zip(sources, translate_tokens(loaded, list(sources.values()), search), strict=True):
        translations[number] = [
            Translation(
                texts[number], loaded.tokenizer.decode(target.ids, special=False).strip(), target.ids, target.score,
                target.log_prob, target.is_finished,
            )
            for target in targets
        ]  # fmt: skip
    return translations


@torch.no_grad()
def translate_tokens(
    loaded: InferenceModel, sources: Sequence[np.ndarray], search: Search | None = None
) -> list[list[Hypothesis]]:
    """Return the `search.best` targets of each source, given as ids with their end, best first."""
    search = search or Search()
    model, objective = require_translator(loaded)
    start = objective.start_token
    assert start is not None  # every translation has one
    per_batch = max(1, HYPOTHESES[torch.device(loaded.device).type] // search.beams)
    # of like lengths together: all hypotheses of a batch are read up to the longest source
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    log_probs = _make_scorer(loaded, model, objective)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for first in range(0, len(order), per_batch):
        numbers = order[first : first + per_batch]
        packed = pack([sources[number] for number in numbers]).to(loaded.device)
        decoding = model.start_decoding(packed, search.beams, weights=search.coverage > 0)
        lengths = torch.from_numpy(packed.layout.lengths.astype(np.int64))
        limits = (lengths + EXTRA).clamp(max=loaded.model.max_length)
        targets = search_targets(
            decoding, log_probs, search, start=start, end=objective.end, lengths=lengths.to(loaded.device),
            limits=limits.to(loaded.device),
        )  # fmt: skip
        for place, best in targets:
            results[numbers[place]] = best
    return results


def _make_scorer(loaded: InferenceModel, model: Seq2Seq, objective: Translate) -> Callable[[Tensor], Tensor]:
    """The log-probabilities of the next token; ids without a token, and padding, are never written."""
    banned = loaded.ids_without_token
    if objective.pad is not None:
        banned = torch.zeros(model.vocab, dtype=torch.bool, device=loaded.device) if banned is None else banned.clone()
        banned[objective.pad] = True

    def score(states: Tensor) -> Tensor:
        log_probs = upcast(objective.decoder_logits(model, states)).log_softmax(-1)  # (S, V)
        return log_probs if banned is None else log_probs.masked_fill_(banned, -torch.inf)

    return score


def is_translator(loaded: InferenceModel) -> bool:
    """Whether a model translates."""
    return isinstance(loaded.objective, Translate)


def require_translator(loaded: InferenceModel) -> tuple[Seq2Seq, Translate]:
    """The encoder-decoder and its objective; UserError where the model does not translate."""
    message = "This model does not translate: take a run of a recipe such as transformer-small."
    if not isinstance(loaded.objective, Translate):
        raise UserError(message)
    return require(loaded.model, Seq2Seq, message), loaded.objective  # type: ignore[type-abstract]


def _encode_sources(loaded: InferenceModel, objective: Translate, texts: Sequence[str]) -> dict[int, np.ndarray]:
    """The texts that are not empty by their numbers, framed as in training; UserError where one is too long."""
    limit = loaded.model.max_length
    sources = {}
    for number, encoding in enumerate(loaded.tokenizer.encode_batch([" ".join(text.split()) for text in texts])):
        if not len(encoding.ids):
            continue
        if len(encoding.ids) + 1 > limit:
            raise UserError(
                f"Text {number + 1} has {len(encoding.ids)} tokens, and this model reads at most {limit - 1}: split it."
            )
        sources[number] = objective.frame(encoding.ids.astype(np.int64), None)
    return sources
