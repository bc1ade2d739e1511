"""The model of a step's time: what it counts, and that it agrees with steps measured on one H200."""

from __future__ import annotations

import pytest

from etude.train.cluster_time import TokenWork, compute_seconds, weight_seconds

PEAK, BANDWIDTH = 989.5e12, 4.8e12  # of an H200


def work_of(width: int, layers: int, length: int, vocab: int, predicted: float, causal: bool) -> TokenWork:
    """A Transformer of feed-forward branches of 4 D: FLOPs, and bytes of activations in bf16."""
    products = 24 * width**2 * layers + 2 * width * vocab * predicted
    attention = 4 * length * width * layers * (0.5 if causal else 1.0)
    return TokenWork(products, attention, 36 * width * layers + 2 * vocab * predicted)


@pytest.mark.parametrize(
    ("work", "parameters", "micro_batches", "recompute", "measured"),
    [  # 32,768 tokens in bf16 (benchmarks/sharded_gpu.py); the first two without shards
        (work_of(768, 12, 512, 30_522, 0.15, causal=False), None, 1, "none", 41.5e-3),
        (work_of(768, 12, 1024, 50_257, 1.0, causal=True), None, 1, "none", 56.3e-3),
        (work_of(2048, 24, 2048, 50_257, 1.0, causal=True), (1_208_000_000, 107_000_000), 4, "attention", 0.696),
        (work_of(2560, 32, 2048, 50_257, 1.0, causal=True), (2_517_000_000, 134_000_000), 2, "all", 1.368),
    ],
)
def test_measured_steps_are_within_a_fifth(work, parameters, micro_batches, recompute, measured) -> None:
    seconds = compute_seconds(work, 32_768, PEAK, BANDWIDTH, recompute)
    if parameters is not None:
        seconds += weight_seconds(*parameters, 1, micro_batches, BANDWIDTH, gathers_model=False)
    assert seconds == pytest.approx(measured, rel=0.2)


def test_recomputation_repeats_a_forward_pass() -> None:
    products, kept = TokenWork(1e9, 0.0, 0.0), TokenWork(0.0, 0.0, 1e6)
    for work, more in ((products, 4 / 3), (kept, 6 / 4)):
        none, everything = (compute_seconds(work, 100, PEAK, BANDWIDTH, policy) for policy in ("none", "all"))
        assert everything == pytest.approx(more * none)


def test_a_share_of_weights_is_updated_in_a_share_of_the_time() -> None:
    for whole in (False, True):
        one, eight = (weight_seconds(1000, 100, shards, 1, BANDWIDTH, gathers_model=whole) for shards in (1, 8))
        assert one / 8 < eight < one
    # gathered twice in bf16 and once in float32; reduced from bf16 and from float32; the latter is cast by autocast
    layer = 2 * (4 + 6) + 6 + 20 + 32
    assert weight_seconds(1000, 0, 1, 1, 1.0, gathers_model=False) == pytest.approx(1000 * layer / 0.8)
    assert weight_seconds(1000, 0, 1, 1, 1.0, gathers_model=True) == pytest.approx(1000 * (8 + 16 + 6 + 32) / 0.8)
