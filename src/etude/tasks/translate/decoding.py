"""Search over many sources, given as ids: those of like lengths together, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from etude.models.seq2seq import Seq2Seq
from etude.nn.cuda_graphs import CudaGraphs
from etude.nn.packed import pack
from etude.nn.top_tokens import LogProbs
from etude.objectives.translate import Translate
from etude.tasks.translate.recorded_search import SearchRecorder
from etude.tasks.translate.search import Beams, Hypothesis, Search, search_targets

EXTRA = 50  # tokens of a target beyond those of its source, at most
HYPOTHESES = {"cpu": 512, "cuda": 4096}  # decoded at once; bounds memory, never changes a result


@torch.no_grad()
def search_sources(
    model: Seq2Seq,
    objective: Translate,
    sources: Sequence[np.ndarray],
    search: Search,
    device: torch.device,
    without_token: Tensor | None = None,
    recorder: SearchRecorder | None = None,
) -> list[list[Hypothesis]]:
    """Return the `search.best` targets of each source, given as ids in their frame, best first.

    `without_token` (V,) marks ids that no token has, and that are never written. `recorder`: that of an earlier call
    with this model on a GPU (`make_recorder`), whose recordings are used again.
    """
    start = objective.start_token
    assert start is not None  # every translation has one
    per_batch = max(1, HYPOTHESES[device.type] // search.beams)
    # of like lengths together: all hypotheses of a batch are read up to the longest source
    order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
    if recorder is None:
        recorder = make_recorder(model, objective, device, without_token)
    log_probs = make_scorer(model, objective, device, without_token)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for first in range(0, len(order), per_batch):
        numbers = order[first : first + per_batch]
        packed = pack([sources[number] for number in numbers]).to(device)
        decoding = model.start_decoding(packed, search.beams, weights=search.coverage > 0)
        lengths = packed.layout.lengths.astype(np.int64)
        limits = limit_targets(model, objective, lengths)
        beams = Beams(
            search, start, objective.end, torch.from_numpy(lengths).to(device), torch.from_numpy(limits).to(device)
        )
        if recorder is not None:
            targets = recorder.search(decoding, beams)
        else:
            targets = dict(search_targets(decoding, log_probs, beams))
        for place, best in targets.items():
            results[numbers[place]] = best
    return results


def limit_targets(model: Seq2Seq, objective: Translate, lengths: np.ndarray) -> np.ndarray:
    """The greatest lengths (S,) of targets, their ends among them, for sources of these lengths."""
    longest = model.max_length if objective.target_limit is None else min(model.max_length, objective.target_limit)
    limits: np.ndarray = np.minimum(lengths + EXTRA, longest)
    return limits


def make_recorder(
    model: Seq2Seq, objective: Translate, device: torch.device, without_token: Tensor | None = None
) -> SearchRecorder | None:
    """What records the steps of searches with a model; None on a device that records nothing."""
    if device.type != "cuda":
        return None
    log_probs = make_scorer(model, objective, device, without_token)
    return SearchRecorder(model, log_probs, CudaGraphs(device, frees_memory=False))


def make_scorer(
    model: Seq2Seq, objective: Translate, device: torch.device, without_token: Tensor | None
) -> Callable[[Tensor], LogProbs]:
    """The log-probabilities (S, V) of the next token; ids without a token, and padding, are never written."""
    banned = without_token
    if objective.pad is not None:
        banned = torch.zeros(model.target_vocab, dtype=torch.bool, device=device) if banned is None else banned.clone()
        banned[objective.pad] = True

    def score(states: Tensor) -> LogProbs:
        return LogProbs(objective.decoder_logits(model, states), banned)

    return score
