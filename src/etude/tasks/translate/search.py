"""Beam search over many sources at once, as operations on tensors.

Every source has `beams` rows: its hypotheses, likeliest first; at the start only the first is alive. A step extends all
by every token, takes the 2 * beams likeliest extensions of each source (a hypothesis may end in one of them), moves
those that ended, if among the `beams` likeliest, to the finished ones, and continues the `beams` likeliest others. A
source leaves the batch as soon as its search has ended, so nothing is computed for it any longer.

Two conventions say how hypotheses compare and when a search ends:

    wu         log P / ((5 + n) / 6) ** penalty (Wu et al. 2016, equation 14), with coverage. It ends when nothing in
               progress can become better than the finished ones that are asked for. What the greatest length cuts
               is returned only where nothing is finished.
    generate   that of `generate` in transformers: log P / n ** penalty. It ends when `beams` are finished and nothing
               in progress is better at its present length. What the greatest length cuts counts as finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.seq2seq import Decoding

Convention = Literal["wu", "generate"]


@dataclass(frozen=True)
class Search:
    """Settings of a beam search."""

    beams: int = 4
    penalty: float = 0.6  # of length
    coverage: float = 0.0
    best: int = 1  # translations of each source
    convention: Convention = "wu"

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UserError(f"beams={self.beams}: keep one or more.")
        if not 1 <= self.best <= self.beams:
            raise UserError(f"best={self.best}: {self.beams} beams give from 1 to {self.beams} translations.")
        for name in ("penalty", "coverage"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} is below 0: 0 leaves it out.")
        if self.convention == "generate" and self.coverage:
            raise UserError("coverage belongs to the convention wu: leave one of the two out.")

    def divisor(self, tokens: Tensor | int) -> Tensor | float:
        """What a log-probability of so many tokens, the end among them, is divided by."""
        return tokens**self.penalty if self.convention == "generate" else ((5 + tokens) / 6) ** self.penalty

    def score(self, log_probs: Tensor, tokens: int, attended: Tensor | None) -> Tensor:
        """Scores (...) of hypotheses; `attended` (..., source tokens) sums the attention of all target tokens.

        Padding of a source has to be 1 there, which counts for nothing.
        """
        scores = log_probs / self.divisor(tokens)
        if self.coverage and attended is not None:
            scores = scores + self.coverage * attended.clamp(1e-9, 1.0).log().sum(-1)
        return scores


@dataclass(frozen=True)
class Hypothesis:
    """A target that a search returns."""

    ids: tuple[int, ...]  # without its end
    score: float
    log_prob: float
    is_finished: bool  # False: cut at the greatest length


@dataclass
class _Targets:
    """Hypotheses of G sources, K of each."""

    scores: Tensor  # (G, K) what they are compared by; -inf: there is none
    log_probs: Tensor  # (G, K)
    ids: Tensor  # (G, K, room) int64
    lengths: Tensor  # (G, K) int64
    ended: Tensor  # (G, K) bool: by an end token

    @classmethod
    def empty(cls, sources: int, beams: int, room: int, device: torch.device) -> _Targets:
        nothing = torch.full((sources, beams), -torch.inf, device=device)
        counts = torch.zeros((sources, beams), dtype=torch.int64, device=device)
        ids = torch.zeros((sources, beams, room), dtype=torch.int64, device=device)
        return cls(nothing, nothing.clone(), ids, counts, counts.bool())

    def select(self, sources: Tensor) -> _Targets:
        """Those of some sources."""
        return _Targets(
            self.scores[sources], self.log_probs[sources], self.ids[sources], self.lengths[sources], self.ended[sources]
        )

    def merge(self, added: _Targets) -> _Targets:
        """The best of both, as many as here, best first."""
        scores, places = torch.cat([self.scores, added.scores], 1).topk(self.scores.shape[1])
        log_probs, lengths, ended = (
            torch.cat([left, right], 1).gather(1, places)
            for left, right in (
                (self.log_probs, added.log_probs),
                (self.lengths, added.lengths),
                (self.ended, added.ended),
            )
        )
        ids = torch.cat([self.ids, added.ids], 1)
        return _Targets(scores, log_probs, _gather(ids, places), lengths, ended)

    def results(self, best: int) -> list[list[Hypothesis]]:
        """Those that are there, of each source."""
        lists = (self.scores, self.log_probs, self.ids, self.lengths, self.ended)
        return [
            [
                Hypothesis(tuple(ids[:length]), score, log_prob, is_ended)
                for score, log_prob, ids, length, is_ended in list(zip(*of_source, strict=True))[:best]
                if score > -torch.inf
            ]
            for of_source in zip(*(part.tolist() for part in lists), strict=True)
        ]


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """(G, K, L), (G, C) -> (G, C, L)."""
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))


def search_targets(
    decoding: Decoding,
    log_probs: Callable[[Tensor], Tensor],
    search: Search,
    *,
    start: int,
    end: int,
    lengths: Tensor,
    limits: Tensor,
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each source and its best targets, when its search has ended.

    `log_probs` turns states (S, D) into log-probabilities (S, V) of the next token. `lengths` (G,) are those of the
    sources, `limits` (G,) the greatest numbers of target tokens, their ends among them.
    """
    device, beams, sources = limits.device, search.beams, len(limits)
    numbers = torch.arange(sources)
    room = int(limits.max())
    totals = torch.full((sources, beams), -torch.inf, device=device)
    totals[:, 0] = 0.0
    ids = torch.zeros((sources, beams, room), dtype=torch.int64, device=device)
    finished = _Targets.empty(sources, beams, room, device)
    tokens = torch.full((sources * beams,), start, device=device)
    attended: Tensor | None = None
    length = 0
    while len(numbers):
        length += 1
        scores = log_probs(decoding.step(tokens))
        sources, vocab = len(numbers), scores.shape[1]
        flat = (scores.view(sources, beams, vocab) + totals[:, :, None]).view(sources, beams * vocab)
        values, places = flat.topk(min(2 * beams, flat.shape[1]))  # (G, C)
        parents, words = places // vocab, places % vocab
        extended = _gather(ids, parents)  # (G, C, room)
        extended[:, :, length - 1] = words
        if search.coverage and decoding.attention is not None:
            attention = decoding.attention.float().view(sources, beams, -1)
            if attended is None:  # padding of a source counts as looked at
                behind = torch.arange(attention.shape[2], device=device) >= lengths[:, None]
                attended = behind[:, None].expand_as(attention).float()
            attended = _gather(attended + attention, parents)  # (G, C, longest)
        is_ended = words == end
        is_last = (limits == length)[:, None]
        stops = is_ended | is_last if search.convention == "generate" else is_ended
        # an end that is not among the likeliest is no candidate
        counts = stops & (torch.arange(values.shape[1], device=device) < beams)
        targets = _Targets(
            search.score(values, length, attended).masked_fill(~counts, -torch.inf),
            values, extended, torch.where(is_ended, length - 1, length), is_ended,
        )  # fmt: skip
        finished = finished.merge(targets)
        # likeliest first, ended ones last
        rank = torch.arange(values.shape[1], device=device) + is_ended * values.shape[1]
        chosen = rank.topk(min(beams, values.shape[1]), largest=False).indices
        chosen = _fill_row(chosen, beams)
        totals = values.gather(1, chosen).masked_fill(is_ended.gather(1, chosen), -torch.inf)
        ids, parents, words = _gather(extended, chosen), parents.gather(1, chosen), words.gather(1, chosen)
        attended = None if attended is None else _gather(attended, chosen)
        is_done = _is_done(search, finished, totals, length, limits) | is_last[:, 0]
        done = is_done.tolist()
        rows = (torch.arange(sources, device=device)[:, None] * beams + parents).view(-1)
        if not any(done):
            tokens = words.reshape(-1)
            decoding.select(rows)
            continue
        leaving, staying = (is_done.nonzero()[:, 0], (~is_done).nonzero()[:, 0])
        cut = _Targets(search.score(totals, length, attended), totals, ids, torch.full_like(words, length), words < 0)
        best = zip(finished.select(leaving).results(search.best), cut.select(leaving).results(search.best), strict=True)
        for number, (ended_targets, cut_targets) in zip(numbers[leaving.cpu()].tolist(), best, strict=True):
            yield number, ended_targets or sorted(cut_targets, key=lambda target: target.score, reverse=True)
        numbers = numbers[staying.cpu()]
        totals, ids, words, limits, lengths = (part[staying] for part in (totals, ids, words, limits, lengths))
        finished = finished.select(staying)
        attended = None if attended is None else attended[staying]
        if len(numbers):
            tokens = words.reshape(-1)
            decoding.select(rows.view(sources, beams)[staying].view(-1), staying)


def _fill_row(chosen: Tensor, beams: int) -> Tensor:
    """(G, C) -> (G, beams): where a vocabulary has fewer extensions than beams, the last is there again."""
    missing = beams - chosen.shape[1]
    return chosen if missing <= 0 else torch.cat([chosen, chosen[:, -1:].expand(-1, missing)], 1)


def _is_done(search: Search, finished: _Targets, totals: Tensor, length: int, limits: Tensor) -> Tensor:
    """(G,) whether the search of a source has ended."""
    alive = totals[:, 0]  # the likeliest
    if search.beams == 1:
        return (finished.scores[:, 0] > -torch.inf) | (alive == -torch.inf)
    if search.convention == "generate":
        worst = finished.scores[:, -1]  # -inf: fewer than `beams` are finished
        return alive / search.divisor(length) <= worst
    # a log-probability and a coverage only fall, and the longest target has the largest divisor
    bound = alive / search.divisor(limits)
    return (finished.scores[:, search.best - 1] >= bound) | (alive == -torch.inf)
