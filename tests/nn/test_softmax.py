"""Output layers: candidates as they should fall, the sampled loss by its definition, the adaptive one as a whole."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from etude.chance import fold
from etude.nn.softmax import AdaptiveSoftmax, Candidates, FrequencyOrder, SampledSoftmax, default_cutoffs

COUNTS = np.array([3, 50, 7, 0, 900, 20, 21, 1, 5, 4])


def test_words_fall_in_frequency_and_probs_are_log_uniform() -> None:
    order = FrequencyOrder(COUNTS)
    assert order.words_by_rank.tolist() == [4, 1, 6, 5, 2, 8, 9, 0, 7, 3]
    assert np.array_equal(order.ranks[order.words_by_rank], np.arange(10))
    np.testing.assert_allclose(order.probs.sum(), 1.0)
    np.testing.assert_allclose(order.probs[0], np.log(2) / np.log(11))


def test_draws_differ_among_themselves_and_fall_as_expected() -> None:
    """Over many draws a word is found as often as `expected` says, which the correction rests on."""
    order = FrequencyOrder(COUNTS)
    rounds = 2000
    result, expected = np.zeros(10), np.zeros(10)
    for number in range(rounds):
        words, draws = order.draw(fold(3, number), 4)
        assert len(set(words.tolist())) == 4 and draws >= 4
        result[words] += 1
        expected += order.expected_counts(np.arange(10), draws)
    # with the number of draws known the expectation is not exact (it was chosen to give 4), but near
    np.testing.assert_allclose(result / rounds, expected / rounds, atol=0.05)
    left, right = order.draw(7, 4), order.draw(7, 4)
    assert np.array_equal(left[0], right[0]) and left[1] == right[1]


def sampled_softmax(states: torch.Tensor, targets: torch.Tensor) -> tuple[SampledSoftmax, Candidates]:
    layer = SampledSoftmax(states.shape[1], 10)
    torch.nn.init.normal_(layer.bias)
    return layer, Candidates.draw(FrequencyOrder(COUNTS), 11, 5, targets.numpy())


def test_the_sampled_loss_is_its_definition() -> None:
    torch.manual_seed(0)
    states, targets = torch.randn(7, 6), torch.tensor([4, 1, 0, 4, 9, 3, 6])
    layer, candidates = sampled_softmax(states, targets)
    wanted = 0.0
    for state, target, expected in zip(states, targets, candidates.log_expected_targets, strict=True):
        scores = [layer.weight[target] @ state + layer.bias[target] - expected]
        for word, own in zip(candidates.words, candidates.log_expected, strict=True):
            if word != target:
                scores.append(layer.weight[word] @ state + layer.bias[word] - own)
        wanted += F.cross_entropy(torch.stack(scores)[None], torch.tensor([0]))
    torch.testing.assert_close(layer.loss(states, targets, None, candidates), wanted)
    assert any(target in candidates.words for target in targets)


def test_in_evaluation_it_is_the_full_softmax() -> None:
    states, targets = torch.randn(7, 6), torch.tensor([4, 1, 0, 4, 9, 3, 6])
    layer, candidates = sampled_softmax(states, targets)
    layer.eval()
    full = F.cross_entropy(layer.logits(states), targets, reduction="sum")
    torch.testing.assert_close(layer.loss(states, targets, None, candidates), full)


def test_candidates_stand_for_all_words() -> None:
    """Their corrected scores, exponentiated and summed, average to the sum over all other words."""
    torch.manual_seed(0)
    state, target = torch.randn(1, 6), torch.tensor([5])
    layer, order, rounds = SampledSoftmax(6, 400), FrequencyOrder(np.arange(400)), 300
    scores = layer.logits(state)[0].detach()
    expected = scores.exp().sum() - scores[5].exp()
    mean, plain = 0.0, 0.0
    for number in range(rounds):
        candidates = Candidates.draw(order, fold(number), 60, target.numpy())
        own = (scores[5] - candidates.log_expected_targets[0]).exp()
        loss = layer.loss(state, target, None, candidates).detach()
        mean += float(own * loss.exp() - own) / rounds  # loss = log(others + own) - log(own)
        plain += float(scores[candidates.words[candidates.words != 5]].exp().sum()) / rounds
    assert abs(mean - expected) < 0.05 * expected and plain < 0.5 * expected


def test_the_adaptive_softmax_is_a_distribution_and_counts_its_products() -> None:
    torch.manual_seed(0)
    layer = AdaptiveSoftmax(8, 40, [10, 20], 2.0)
    states, targets = torch.randn(6, 8), torch.tensor([3, 9, 10, 19, 20, 39])
    scores = layer.logits(states)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(6))
    torch.testing.assert_close(layer.loss(states, targets), -scores.gather(1, targets[:, None]).sum())
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        layer.loss(states, targets)
    assert counter.get_total_flops() == layer.flops(targets.numpy())


def test_default_cutoffs() -> None:
    assert default_cutoffs(30_000) == [2_000, 10_000]
    assert default_cutoffs(7) == [1, 2]
