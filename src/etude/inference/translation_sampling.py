"""Translations drawn at random: temperature, top-k and top-p, as in generation (generation.py).

The noise is a hash of (seed, the source's ids, number of the sample, number of the token): a translation does not
depend on the other lines of a call. Temperature 0 takes the likeliest token, which is greedy search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from etude.chance import fold
from etude.errors import UserError
from etude.inference.generation import Sampling
from etude.models.seq2seq import Decoding, Seq2Seq
from etude.nn.packed import pack
from etude.nn.top_tokens import LogProbs
from etude.objectives.translate import Translate
from etude.tasks.translate.decoding import HYPOTHESES, limit_targets, make_scorer
from etude.tasks.translate.search import Hypothesis


@dataclass(frozen=True)
class TargetSampling:
    """Settings of drawing, and how many translations of each source."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    samples: int = 1

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError(f"best={self.samples}: ask for one or more translations.")
        assert self.filter is not None  # UserError where one of the others is wrong

    @property
    def filter(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@torch.no_grad()
def sample_sources(
    model: Seq2Seq,
    objective: Translate,
    sources: Sequence[np.ndarray],
    sampling: TargetSampling,
    device: torch.device,
    without_token: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Draw `sampling.samples` targets of each source, given as ids in their frame, in the order of drawing."""
    score = make_scorer(model, objective, device, without_token)
    work = [(number, sample) for number in range(len(sources)) for sample in range(sampling.samples)]
    order = sorted(work, key=lambda item: (len(sources[item[0]]), item))
    results: dict[tuple[int, int], Hypothesis] = {}
    assert objective.start_token is not None  # every translation has one
    for first in range(0, len(order), HYPOTHESES[device.type]):
        items = order[first : first + HYPOTHESES[device.type]]
        packed = pack([sources[number] for number, _ in items]).to(device)
        keys = [fold(sampling.seed, "translate", sources[n].astype(np.int64).tobytes().hex(), s) for n, s in items]
        limits = limit_targets(model, objective, packed.layout.lengths.astype(np.int64))
        markers = objective.start_token, objective.end
        drawn = draw_targets(model.start_decoding(packed), score, sampling.filter, keys, limits, *markers, device)
        results |= dict(zip(items, drawn, strict=True))
    return [[results[number, sample] for sample in range(sampling.samples)] for number in range(len(sources))]


def draw_targets(
    decoding: Decoding,
    score: Callable[[Tensor], LogProbs],
    sampling: Sampling,
    keys: Sequence[int],
    limits: np.ndarray,
    start: int,
    end: int,
    device: torch.device,
) -> list[Hypothesis]:
    """Draw one target for each source of a decoding; `limits` (S,) are the greatest lengths, ends among them."""
    written: list[list[int]] = [[] for _ in keys]
    totals = [0.0] * len(keys)
    is_ended = [False] * len(keys)
    alive = list(range(len(keys)))
    tokens = [start] * len(keys)
    length = 0
    while alive:
        length += 1
        scores = score(decoding.step(torch.tensor(tokens, device=device))).dense()
        chosen = sampling.choose(scores, [fold(keys[number], length) for number in alive])
        gained = scores.gather(1, torch.tensor(chosen, device=scores.device)[:, None])[:, 0].tolist()
        staying = []
        for row, (number, token, value) in enumerate(zip(alive, chosen, gained, strict=True)):
            totals[number] += value
            if token == end:
                is_ended[number] = True
                continue
            written[number].append(token)
            if length < limits[number]:
                staying.append(row)
        tokens = [chosen[row] for row in staying]
        if staying and len(staying) < len(alive):
            rows = torch.tensor(staying, device=scores.device)
            decoding.select(rows, rows)
        alive = [alive[row] for row in staying]
    return [
        Hypothesis(tuple(ids), total, total, ended) for ids, total, ended in zip(written, totals, is_ended, strict=True)
    ]
