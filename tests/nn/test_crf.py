"""The CRF against brute force over all paths, numerical gradients, and sequences that are alone, long or empty."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.nn.crf import CRF, FORBIDDEN, AllowedTransitions
from etude.nn.packed import Layout


def make_layout(lengths: list[int]) -> Layout:
    return Layout.from_bounds(np.concatenate([[0], np.cumsum(lengths)]), max(lengths, default=0))


def crf_of(tags: int, seed: int = 0, allowed: AllowedTransitions | None = None, constrain: bool = False) -> CRF:
    torch.manual_seed(seed)
    crf = CRF(tags, allowed, constrain).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return crf


def random_allowed(tags: int, seed: int) -> AllowedTransitions:
    chance = np.random.default_rng(seed)
    starts, ends = chance.random(tags) < 0.6, chance.random(tags) < 0.6
    transitions = chance.random((tags, tags)) < 0.6
    starts[0] = ends[0] = transitions[0, 0] = True  # so that there is an allowed path of every length
    return AllowedTransitions(starts, transitions, ends)


def path_scores(crf: CRF, emissions: Tensor, paths: Tensor, allowed: AllowedTransitions | None = None) -> Tensor:
    """(P, n) -> (P,) the definition, term by term."""
    places = torch.arange(paths.shape[1])
    scores = crf.start[paths[:, 0]] + crf.end[paths[:, -1]] + emissions[places, paths].sum(1)
    scores = scores + crf.transitions[paths[:, :-1], paths[:, 1:]].sum(1)
    if allowed is not None:
        forbidden = (~allowed.starts, ~allowed.transitions, ~allowed.ends)
        starts, transitions, ends = (torch.from_numpy(part).long() for part in forbidden)
        wrong = starts[paths[:, 0]] + ends[paths[:, -1]] + transitions[paths[:, :-1], paths[:, 1:]].sum(1)
        scores = scores + wrong * FORBIDDEN
    return scores.detach()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("tags", [1, 2, 4])
@pytest.mark.parametrize("limits", ["none", "decoding", "training"])
def test_it_equals_brute_force_over_all_paths(length: int, tags: int, limits: str) -> None:
    allowed = None if limits == "none" else random_allowed(tags, length)
    crf = crf_of(tags, length, allowed, constrain=limits == "training")
    emissions = torch.randn(length, tags, dtype=torch.float64) * 2
    layout = make_layout([length])
    paths = torch.tensor(list(product(range(tags), repeat=length)))
    scores = path_scores(crf, emissions, paths, allowed if limits == "training" else None)
    partition = scores.logsumexp(0)
    torch.testing.assert_close(crf.log_partition(emissions, layout)[0], partition)
    every = make_layout([length] * len(paths))
    result = crf.log_likelihood(emissions.repeat(len(paths), 1), paths.flatten(), every)
    torch.testing.assert_close(result, scores - partition, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.exp().sum(), torch.tensor(1.0, dtype=torch.float64))

    limited = path_scores(crf, emissions, paths, allowed)
    assert crf.decode(emissions, layout).tolist() == paths[int(limited.argmax())].tolist()
    chances = limited.softmax(0)
    marginals = torch.stack([torch.bincount(tag, chances, tags) for tag in paths.t()])
    torch.testing.assert_close(crf.marginals(emissions, layout), marginals, atol=1e-9, rtol=1e-7)


LENGTHS = [3, 0, 1, 7, 3, 0, 5]


def test_a_batch_is_its_sequences_alone_and_empty_ones_are_nothing() -> None:
    crf = crf_of(5, allowed=random_allowed(5, 1), constrain=True)
    layout = make_layout(LENGTHS)
    emissions = torch.randn(layout.total, 5, dtype=torch.float64)
    tags = torch.randint(5, (layout.total,))
    together = crf.log_likelihood(emissions, tags, layout), crf.log_partition(emissions, layout)
    decoded, marginals = crf.decode(emissions, layout), crf.marginals(emissions, layout)
    for number, length in enumerate(LENGTHS):
        if not length:
            assert together[0][number] == 0 and together[1][number] == 0
            continue
        part = slice(int(layout.host[number]), int(layout.host[number + 1]))
        separate = make_layout([length])
        torch.testing.assert_close(crf.log_likelihood(emissions[part], tags[part], separate)[0], together[0][number])
        torch.testing.assert_close(crf.log_partition(emissions[part], separate)[0], together[1][number])
        torch.testing.assert_close(crf.marginals(emissions[part], separate), marginals[part])
        assert crf.decode(emissions[part], separate).tolist() == decoded[part].tolist()


def test_no_sequence_at_all() -> None:
    crf, nothing = CRF(3), torch.zeros(0, 3)
    for layout in (make_layout([]), make_layout([0, 0])):
        assert crf.decode(nothing, layout).shape == (0,)
        assert crf.log_likelihood(nothing, torch.zeros(0, dtype=torch.long), layout).tolist() == [0.0] * (
            len(layout.host) - 1
        )
        assert crf.marginals(nothing, layout).shape == (0, 3)


@pytest.mark.parametrize("constrain", [False, True])
def test_gradients_are_those_of_finite_differences(constrain: bool) -> None:
    crf = crf_of(3, allowed=random_allowed(3, 4), constrain=constrain)
    layout = make_layout([2, 0, 4, 1])
    tags = crf.decode(torch.randn(7, 3, dtype=torch.float64), layout)
    emissions = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)

    def likelihoods(emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor) -> Tensor:
        values = {"crf.start": start, "crf.transitions": transitions, "crf.end": end}
        return torch.func.functional_call(_Likelihood(crf), values, (emissions, tags, layout))

    arguments = [parameter.detach().clone().requires_grad_() for parameter in (crf.start, crf.transitions, crf.end)]
    assert torch.autograd.gradcheck(likelihoods, (emissions, *arguments))


class _Likelihood(torch.nn.Module):
    def __init__(self, crf: CRF) -> None:
        super().__init__()
        self.crf = crf

    def forward(self, emissions: Tensor, tags: Tensor, layout: Layout) -> Tensor:
        return self.crf.log_likelihood(emissions, tags, layout)


def test_the_gradient_of_the_partition_is_the_marginals() -> None:
    crf = crf_of(4)
    layout = make_layout(LENGTHS)
    emissions = torch.randn(layout.total, 4, dtype=torch.float64, requires_grad=True)
    (grad_out,) = torch.autograd.grad(crf.log_partition(emissions, layout).sum(), emissions)
    torch.testing.assert_close(grad_out, crf.marginals(emissions, layout))


def test_a_long_sequence_keeps_its_precision_in_float32() -> None:
    """A path score near 150,000 leaves float32 steps of 0.016; the terms of a sum do not."""
    crf = crf_of(4, allowed=random_allowed(4, 2))
    layout = make_layout([1500, 10])
    emissions = torch.randn(1510, 4, dtype=torch.float64) + 100
    tags = crf.decode(emissions, layout)
    exact = crf.log_likelihood(emissions, tags, layout)
    narrow = CRF(4, random_allowed(4, 2))
    narrow.load_state_dict({name: value.float() for name, value in crf.state_dict().items()})
    small = emissions.float().requires_grad_()
    result = narrow.log_likelihood(small, tags, layout)
    torch.testing.assert_close(result.double(), exact, rtol=2e-5, atol=1e-3)
    result.sum().backward()
    assert torch.isfinite(small.grad).all()
    assert (narrow.decode(small, layout) == tags).all()


def test_products_in_half_precision_leave_the_sums_in_float32() -> None:
    crf = CRF(3)
    layout = make_layout([200])
    emissions = torch.randn(200, 3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = crf.log_partition(emissions, layout)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, crf.log_partition(emissions.float(), layout))


def test_no_forbidden_pair_is_decoded_whatever_the_emissions_say() -> None:
    allowed = random_allowed(6, 3)
    crf = CRF(6, allowed)
    layout = make_layout([40, 25, 1])
    path = crf.decode(torch.randn(66, 6) * 100, layout).numpy()
    for start, stop in zip(layout.host, layout.host[1:], strict=False):
        part = path[start:stop]
        assert allowed.starts[part[0]] and allowed.ends[part[-1]]
        assert allowed.transitions[part[:-1], part[1:]].all()


def test_it_learns_transitions_from_tags_alone() -> None:
    """Emissions say nothing; the tags alternate; only transitions can know."""
    crf = CRF(2)
    layout = make_layout([6, 9])
    tags = torch.tensor([0, 1] * 3 + [0, 1] * 4 + [0])
    optimizer = torch.optim.Adam(crf.parameters(), lr=0.3)
    for _ in range(40):
        loss = -crf.log_likelihood(torch.zeros(15, 2), tags, layout).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5
    assert crf.decode(torch.zeros(15, 2), layout).tolist() == tags.tolist()
