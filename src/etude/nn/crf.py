"""A linear-chain conditional random field over packed sequences.

Lafferty et al. 2001; as the last layer of a tagger: Huang et al. 2015, Lample et al. 2016. With emissions e, a score
of each first tag (start), of each pair of neighbours (transitions) and of each last tag (end):

    score(x, y) = start[y_1] + sum_t e_t[y_t] + sum_t transitions[y_{t-1}, y_t] + end[y_n]

Everything is computed in log space and at least in float32. The forward variables are normalised at every step, and a
likelihood is the sum of the terms of its steps: two sums of thousands of terms are never subtracted from each other,
so sequences may have any length. A step handles all sequences that still have a token, longest first
(`nn.lstm.Schedule`), so nothing is computed for padding. On a GPU a kernel goes through all tokens of a sequence, up to
MOST_TAGS tags (nn/triton/crf.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from etude.nn.packed import Layout, send_array
from etude.nn.precision import upcast
from etude.nn.schedule import Schedule
from etude.nn.triton import availability

# Not -inf: a logsumexp over only -inf has no gradient, and where no allowed path exists (a sentence of one
# word, and tags that only begin or end chunks) the least forbidden one is still an answer.
FORBIDDEN = -1e4
MOST_TAGS = 64  # transitions of more do not fit into the registers of a kernel


@dataclass(frozen=True)
class AllowedTransitions:
    """The tags that may start a sequence, follow each other and end a sequence."""

    starts: np.ndarray  # (K,) bool
    transitions: np.ndarray  # (K, K) bool, [from, to]
    ends: np.ndarray  # (K,) bool


class CRF(nn.Module):
    """A CRF of K tags. `allowed` constrains decoding, and with `constrain_training` the likelihood too."""

    start_penalty: Tensor
    transition_penalty: Tensor
    end_penalty: Tensor

    def __init__(self, tags: int, allowed: AllowedTransitions | None = None, constrain_training: bool = False) -> None:
        super().__init__()
        self.tags, self.constrain_training = tags, constrain_training
        self.start = nn.Parameter(torch.zeros(tags))
        self.transitions = nn.Parameter(torch.zeros(tags, tags))  # [from, to]
        self.end = nn.Parameter(torch.zeros(tags))
        if allowed is None:
            allowed = AllowedTransitions(np.ones(tags, bool), np.ones((tags, tags), bool), np.ones(tags, bool))
        for name, permitted in (
            ("start_penalty", allowed.starts),
            ("transition_penalty", allowed.transitions),
            ("end_penalty", allowed.ends),
        ):
            penalty = np.where(permitted, 0.0, FORBIDDEN).astype(np.float32)
            self.register_buffer(name, torch.from_numpy(penalty), persistent=False)  # follows from the tags

    @torch.no_grad()
    def scale(self, temperature: float) -> None:
        """Divide the learned scores by a temperature, as the emissions are."""
        for scores in (self.start, self.transitions, self.end):
            scores.div_(temperature)

    # --- likelihood ---------------------------------------------------------------------------------

    def log_likelihood(self, emissions: Tensor, tags: Tensor, layout: Layout) -> Tensor:
        """(N, K), (N,) -> (S,) log p(tags | emissions) of each sequence, 0 where it is empty."""
        emissions = upcast(emissions)
        start, transitions, end = self._scores(self.constrain_training)
        forward, norms = self._forward(emissions, layout, start, transitions)
        ends = _sequence_ends(layout)
        previous = tags.roll(1)  # for first tokens another sequence's tag, replaced by the start score below
        incoming = torch.where(ends.first, start[tags], transitions[previous, tags])
        terms = emissions.gather(1, tags[:, None])[:, 0] + incoming - norms
        last = ends.last
        final = end[tags[last]] - (forward[last] + end).logsumexp(-1)
        return _sum_sequences(terms, layout).index_add(0, ends.sequences, final)

    def log_partition(self, emissions: Tensor, layout: Layout) -> Tensor:
        """(N, K) -> (S,) log of the sum over all paths of exp(score), 0 where a sequence is empty."""
        emissions = upcast(emissions)
        start, transitions, end = self._scores(self.constrain_training)
        forward, norms = self._forward(emissions, layout, start, transitions)
        ends = _sequence_ends(layout)
        return _sum_sequences(norms, layout).index_add(0, ends.sequences, (forward[ends.last] + end).logsumexp(-1))

    def marginals(self, emissions: Tensor, layout: Layout, constrained: bool = True) -> Tensor:
        """(N, K) -> (N, K) the probability of each tag at each token, over all (allowed) paths."""
        emissions = upcast(emissions)
        start, transitions, end = self._scores(constrained)
        forward, _ = self._forward(emissions, layout, start, transitions)
        backward, _ = self._forward(emissions, layout, end, transitions.t(), reverse=True)
        return (forward + backward - emissions).softmax(-1)  # both include the token's own emission

    def _scores(self, constrained: bool) -> tuple[Tensor, Tensor, Tensor]:
        start, transitions, end = upcast(self.start), upcast(self.transitions), upcast(self.end)
        if constrained:
            return start + self.start_penalty, transitions + self.transition_penalty, end + self.end_penalty
        return start, transitions, end

    def _forward(
        self, emissions: Tensor, layout: Layout, start: Tensor, transitions: Tensor, reverse: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute normalised forward variables (N, K) and the logs of their normalizers (N,).

        Each row of forward variables sums to 1 as probabilities. With `reverse` the recursion runs from the other end.
        """
        if not layout.total:
            return emissions, emissions.sum(-1)
        if (kernels := _find_kernels(emissions)) is not None:
            variables, norms = kernels.Scan.apply(emissions, start, transitions, layout.bounds, reverse)
            return variables, norms
        return self._forward_stepwise(emissions, layout, start, transitions, reverse)

    def _forward_stepwise(
        self, emissions: Tensor, layout: Layout, start: Tensor, transitions: Tensor, reverse: bool
    ) -> tuple[Tensor, Tensor]:
        schedule = Schedule.from_layout(layout, reverse)
        sorted_emissions = emissions[schedule.sorted_tokens]
        variables: list[Tensor] = []
        norms: list[Tensor] = []
        start_index = 0
        for batch_size in schedule.batch_sizes:
            incoming = start if not variables else _log_sum_transitions(variables[-1][:batch_size], transitions)
            scores = sorted_emissions[start_index : start_index + batch_size] + incoming  # (running, K)
            norm = scores.logsumexp(-1, keepdim=True)
            variables.append(scores - norm)
            norms.append(norm[:, 0])
            start_index += batch_size
        return torch.cat(variables)[schedule.unsorted_tokens], torch.cat(norms)[schedule.unsorted_tokens]

    # --- decoding -----------------------------------------------------------------------------------

    @torch.no_grad()
    def decode(self, emissions: Tensor, layout: Layout) -> Tensor:
        """(N, K) -> (N,) the tags of the best allowed path of each sequence (Viterbi 1967)."""
        if not layout.total:
            return torch.zeros(0, dtype=torch.long, device=emissions.device)
        start, transitions, end = self._scores(constrained=True)
        emissions = upcast(emissions)
        if (kernels := _find_kernels(emissions)) is not None:
            path: Tensor = kernels.decode(emissions, start, transitions, end, layout.bounds)
            return path
        schedule = Schedule.from_layout(layout, reverse=False)
        sorted_emissions = emissions[schedule.sorted_tokens]
        pointers: list[Tensor] = []
        finals: list[Tensor] = []  # of the sequences that have ended, shortest first
        best, start_index = sorted_emissions[: schedule.batch_sizes[0]] + start, schedule.batch_sizes[0]
        for batch_size in schedule.batch_sizes[1:]:
            if batch_size < len(best):
                finals.append(best[batch_size:])
                best = best[:batch_size]
            scores, backpointers = (best[:, :, None] + transitions).max(1)  # over the previous tag
            best = sorted_emissions[start_index : start_index + batch_size] + scores
            best = best - best.amax(-1, keepdim=True)  # only differences matter, and small numbers keep them
            pointers.append(backpointers)
            start_index += batch_size
        finals.append(best)
        current = (torch.cat(finals[::-1]) + end).argmax(-1)  # (S,) the last tag of each, longest sequence first
        paths = [current[: schedule.batch_sizes[-1]]]
        for batch_size, previous_batch_size, backpointers in zip(
            schedule.batch_sizes[:0:-1], schedule.batch_sizes[-2::-1], reversed(pointers), strict=True
        ):
            previous = backpointers.gather(1, paths[-1][:, None])[:, 0]
            paths.append(torch.cat([previous, current[batch_size:previous_batch_size]]))
        return torch.cat(paths[::-1])[schedule.unsorted_tokens]


def _find_kernels(emissions: Tensor) -> Any:  # ModuleType | None
    """Return nn/triton/crf.py where it serves these emissions (N, K)."""
    is_possible = emissions.is_cuda and emissions.dtype == torch.float32 and emissions.shape[1] <= MOST_TAGS
    return availability.kernel_module("crf") if is_possible and not torch.compiler.is_compiling() else None


@dataclass
class _SequenceEnds:
    """Where sequences start and end, computed once for each layout."""

    first: Tensor  # (N,) bool
    last: Tensor  # (sequences that are not empty,) the place of each one's last token
    sequences: Tensor  # their numbers


def _sequence_ends(layout: Layout) -> _SequenceEnds:
    if "crf" not in layout.cache:
        nonempty = np.flatnonzero(layout.lengths > 0)
        first = np.zeros(layout.total, bool)
        first[layout.host[nonempty]] = True
        last = layout.host[nonempty + 1].astype(np.int64) - 1
        device = layout.bounds.device
        layout.cache["crf"] = _SequenceEnds(*(send_array(array, device) for array in (first, last, nonempty)))
    cached: _SequenceEnds = layout.cache["crf"]
    return cached


def _log_sum_transitions(variables: Tensor, transitions: Tensor) -> Tensor:
    """(S, K) -> (S, K): log of the sum over the previous tag."""
    return (variables[:, :, None] + transitions).logsumexp(1)


def _sum_sequences(terms: Tensor, layout: Layout) -> Tensor:
    """(N,) -> (S,): sum each sequence separately."""
    return torch.segment_reduce(terms, "sum", lengths=layout.bounds.long().diff(), unsafe=True)
