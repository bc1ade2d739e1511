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

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.seq2seq import Decoding
from etude.nn.top_tokens import LogProbs

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
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name}={getattr(self, name)} is below 0 or not finite: 0 leaves it out.")
        if self.convention == "generate" and self.coverage:
            raise UserError("coverage belongs to the convention wu: leave one of the two out.")

    def divisor(self, tokens: int) -> float:
        """What a log-probability of so many tokens, the end among them, is divided by."""
        return float(tokens**self.penalty if self.convention == "generate" else ((5 + tokens) / 6) ** self.penalty)

    def score(self, log_probs: Tensor, divisor: Tensor, attended: Tensor | None) -> Tensor:
        """Scores (...) of hypotheses; `attended` (..., source tokens) sums the attention of all target tokens.

        Padding of a source has to be 1 there, which counts for nothing.
        """
        scores = log_probs / divisor
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

    def copy_(self, targets: _Targets) -> None:
        """Take the values of others, in place; they may be fewer, with less room."""
        sources, _, room = targets.ids.shape
        self.ids[:sources, :, :room] = targets.ids
        for mine, theirs in (
            (self.scores, targets.scores),
            (self.log_probs, targets.log_probs),
            (self.lengths, targets.lengths),
            (self.ended, targets.ended),
        ):
            mine[:sources] = theirs

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
        """The first `best` of each source, without those that are not there."""
        ids = self.ids[:, :best].cpu().numpy()
        lists = zip(
            *(part[:, :best].tolist() for part in (self.scores, self.log_probs, self.lengths, self.ended)), strict=True
        )
        return [
            [
                Hypothesis(tuple(ids[source, number, :length].tolist()), score, log_prob, is_ended)
                for number, (score, log_prob, length, is_ended) in enumerate(zip(*of_source, strict=True))
                if score > -torch.inf
            ]
            for source, of_source in enumerate(lists)
        ]


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """(G, K, L), (G, C) -> (G, C, L)."""
    return values.gather(1, places[:, :, None].expand(-1, -1, values.shape[2]))


class Beams:
    """The hypotheses of G sources in progress, K of each.

    `extend` changes these tensors in place and never waits for a GPU, so that it can be recorded with the step of the
    decoder. A source whose search has ended stays as it is until `keep` or `load` leaves it out.
    """

    def __init__(self, search: Search, start: int, end: int, lengths: Tensor, limits: Tensor) -> None:
        device, sources, room = limits.device, len(limits), int(limits.max())
        self.search, self.start, self.end = search, start, end
        self.lengths, self.limits = lengths, limits  # (G,) of sources; of targets at most
        self.numbers = torch.arange(sources)  # of the sources in the first rows, on the host; others are none
        self.length = torch.zeros(1, dtype=torch.int64, device=device)  # tokens of every hypothesis
        self.totals = torch.full((sources, search.beams), -torch.inf, device=device)  # (G, K) log-probabilities
        self.totals[:, 0] = 0.0
        self.ids = torch.zeros((sources, search.beams, room), dtype=torch.int64, device=device)  # (G, K, room)
        self.tokens = torch.full((sources * search.beams,), start, device=device)  # (S,) the last of each
        self.attended: Tensor | None = None  # (G, K, longest) sums of attention, where coverage counts
        self.finished = _Targets.empty(sources, search.beams, room, device)
        self.is_done = torch.zeros(sources, dtype=torch.bool, device=device)  # (G,)
        # of every length, in the digits of the host
        divisors = [search.divisor(max(1, length)) for length in range(room + 1)]
        self.divisors = torch.tensor(divisors, device=device)

    def extend(self, log_probs: Tensor | LogProbs, attention: Tensor | None) -> Tensor:
        """Extend all by the next token, given its log-probabilities (S, V); return the row each comes from, (S,)."""
        search, sources, beams = self.search, len(self.totals), self.search.beams
        self.length += 1
        values, parents, words = self._choose(log_probs)  # (G, C)
        extended = _gather(self.ids, parents)  # (G, C, room)
        extended.index_copy_(2, self.length - 1, words[:, :, None])
        attended = self._sum_attention(attention, parents)
        is_ended = words == self.end
        is_last = (self.limits == self.length)[:, None]
        stops = is_ended | is_last if search.convention == "generate" else is_ended
        # an end that is not among the likeliest is no candidate, and of what is done nothing changes
        candidates = torch.arange(values.shape[1], device=values.device)  # (C,)
        counts = stops & (candidates < beams) & ~self.is_done[:, None]
        scores = search.score(values, self.divisors[self.length], attended)
        lengths = torch.where(is_ended, self.length - 1, self.length)
        targets = _Targets(scores.masked_fill(~counts, -torch.inf), values, extended, lengths, is_ended)
        self.finished.copy_(self.finished.merge(targets))
        # likeliest first, ended ones last
        rank = candidates + is_ended * values.shape[1]
        chosen = _fill_row(rank.topk(min(beams, values.shape[1]), largest=False).indices, beams)
        totals = values.gather(1, chosen).masked_fill(is_ended.gather(1, chosen), -torch.inf)
        stays = self.is_done[:, None]
        self.totals.copy_(torch.where(stays, self.totals, totals))
        self.ids.copy_(torch.where(stays[:, :, None], self.ids, _gather(extended, chosen)))
        self.tokens.copy_(words.gather(1, chosen).view(-1))
        if attended is not None:
            self.attended = _gather(attended, chosen)
        self.is_done |= self._has_ended() | is_last[:, 0]
        first = torch.arange(sources, device=values.device)[:, None] * beams
        return (first + parents.gather(1, chosen)).view(-1)

    def _choose(self, log_probs: Tensor | LogProbs) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest extensions of each source: their log-probabilities, hypotheses and tokens, (G, C) each."""
        sources, beams = self.totals.shape
        vocab = log_probs.shape[1]
        # those of a source are among those of its hypotheses
        values, words = log_probs.topk(min(2 * beams, vocab))  # (S, c)
        each = values.shape[1]
        totals = (values.view(sources, beams, each) + self.totals[:, :, None]).view(sources, beams * each)
        values, places = totals.topk(min(2 * beams, totals.shape[1]))  # (G, C)
        return values, places // each, words.view(sources, beams * each).gather(1, places)

    def _sum_attention(self, attention: Tensor | None, parents: Tensor) -> Tensor | None:
        """(G, C, longest) attention of all tokens of the extensions, where coverage counts."""
        if not self.search.coverage:
            return None
        if attention is None:
            raise UserError("coverage counts attention to the source, and this model has none: leave coverage out.")
        attention = attention.float().view(*self.totals.shape, -1)
        if self.attended is None:  # padding of a source counts as looked at
            behind = torch.arange(attention.shape[2], device=attention.device) >= self.lengths[:, None]
            self.attended = behind[:, None].expand_as(attention).float()
        return _gather(self.attended + attention, parents)

    def _has_ended(self) -> Tensor:
        """(G,) whether the search of a source has ended."""
        search, scores = self.search, self.finished.scores
        alive = self.totals[:, 0]  # the likeliest
        if search.beams == 1:
            return (scores[:, 0] > -torch.inf) | (alive == -torch.inf)
        if search.convention == "generate":
            worst = scores[:, -1]  # -inf: fewer than `beams` are finished
            return alive / self.divisors[self.length] <= worst
        # a log-probability only falls, coverage is at most 0, and the longest target has the largest divisor
        bound = alive / self.divisors[self.limits]
        return (scores[:, search.best - 1] >= bound) | (alive == -torch.inf)

    def take_done(self) -> tuple[dict[int, list[Hypothesis]], Tensor]:
        """The best targets of each source whose search has ended, and which sources stay, (G,)."""
        search, is_done = self.search, self.is_done[: len(self.numbers)]
        leaving, staying = is_done.nonzero()[:, 0], (~is_done).nonzero()[:, 0]
        if not len(leaving):
            return {}, staying
        hypotheses = self.finished.select(leaving).results(search.best)
        empty = [place for place, ended in enumerate(hypotheses) if not ended]
        if empty:
            for place, cut in zip(empty, self._find_cut(leaving[empty]), strict=True):
                hypotheses[place] = cut
        results = dict(zip(self.numbers[leaving.cpu()].tolist(), hypotheses, strict=True))
        return results, staying

    def _find_cut(self, sources: Tensor) -> list[list[Hypothesis]]:
        """What the greatest length cut, of sources (G,) of which nothing is finished."""
        lengths = torch.minimum(self.length, self.limits)[sources, None].expand(-1, self.search.beams)
        attended = None if self.attended is None else self.attended[sources]
        scores = self.search.score(self.totals[sources], self.divisors[lengths], attended)
        cut = _Targets(scores, self.totals[sources], self.ids[sources], lengths, torch.zeros_like(scores).bool())
        return [
            sorted(targets, key=lambda target: target.score, reverse=True) for targets in cut.results(self.search.best)
        ]

    def keep(self, sources: Tensor) -> None:
        """Keep only these sources, (G,)."""
        self.numbers = self.numbers[sources.cpu()]
        self.tokens = self.tokens.view(-1, self.search.beams)[sources].view(-1)
        self.totals, self.ids, self.limits = self.totals[sources], self.ids[sources], self.limits[sources]
        self.lengths, self.is_done = self.lengths[sources], self.is_done[sources]
        self.attended = None if self.attended is None else self.attended[sources]
        self.finished = self.finished.select(sources)

    def new_static(self, sources: int, room: int) -> Beams:
        """Room for so many sources and targets of so many tokens, in tensors that stay where they are; see `load`."""
        limits = torch.full((sources,), room, device=self.limits.device)
        return Beams(self.search, self.start, self.end, torch.zeros_like(limits), limits)

    def load(self, beams: Beams, sources: Tensor) -> None:
        """Take these sources, (G,), of others, in place; what there is room for beyond them counts as done."""
        count, room = len(sources), beams.ids.shape[2]
        self.numbers = beams.numbers[sources.cpu()]
        self.length.copy_(beams.length)
        self.tokens[: count * self.search.beams] = beams.tokens.view(-1, self.search.beams)[sources].view(-1)
        self.totals.fill_(-torch.inf)
        self.totals[:count] = beams.totals[sources]
        self.ids[:count, :, :room] = beams.ids[sources]
        self.lengths[:count], self.limits[:count] = beams.lengths[sources], beams.limits[sources]
        self.is_done.fill_(True)
        self.is_done[:count] = beams.is_done[sources]
        self.finished.copy_(beams.finished.select(sources))


def search_targets(
    decoding: Decoding, log_probs: Callable[[Tensor], Tensor | LogProbs], beams: Beams
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the number of each source and its best targets, when its search has ended.

    `log_probs` turns states (S, D) into log-probabilities (S, V) of the next token.
    """
    while len(beams.numbers):
        rows = beams.extend(log_probs(decoding.step(beams.tokens)), decoding.attention)
        if not any(beams.is_done.tolist()):
            decoding.select(rows)
            continue
        results, staying = beams.take_done()
        yield from results.items()
        beams.keep(staying)
        if len(staying):
            decoding.select(rows.view(-1, beams.search.beams)[staying].view(-1), staying)


def _fill_row(chosen: Tensor, beams: int) -> Tensor:
    """(G, C) -> (G, beams): where a vocabulary has fewer extensions than beams, the last is there again."""
    missing = beams - chosen.shape[1]
    return chosen if missing <= 0 else torch.cat([chosen, chosen[:, -1:].expand(-1, missing)], 1)
