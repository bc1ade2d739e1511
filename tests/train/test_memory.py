"""What is told about memory before a run: parts that are exact, and what grows with what."""

from __future__ import annotations

import torch
from torch import nn

from etude.models import transformer
from etude.train import memory
from etude.train.settings import Settings

MODEL = transformer.build(transformer.Settings(layers=2, width=64, heads=2, vocab=1000, context=32))
NAMED = [("model.weight", nn.Parameter(torch.zeros(100, 10)))]


def estimate(**changes: object) -> memory.Estimate:
    given = {"micro_tokens": 512, "precision": "float32", "model": MODEL} | changes
    return memory.estimate(Settings(steps=1, batch_tokens=512, lr=1e-3), NAMED, **given)  # type: ignore[arg-type]


def test_weights_gradients_and_state_are_exact() -> None:
    found = estimate()
    assert found.parameters == found.gradients == 4000
    assert found.optimizer == 2 * 4000 + 4
    assert found.casts == 0
    assert estimate(precision="bf16").casts == 2000


def test_activations_grow_with_tokens_and_with_what_is_trained_beside() -> None:
    one = estimate()
    assert one.activations is not None
    assert estimate(micro_tokens=1024).activations == 2 * one.activations
    assert estimate(other_models=[MODEL]).activations == 2 * one.activations
    assert estimate(model=None).activations is None


def test_logits_are_held_for_some_slots_at_a_time() -> None:
    assert estimate(micro_tokens=10**6).output < 4 * 2 * 10**6 * 1000 / 20
    assert estimate(predicted=0.15).output < estimate().output
    # on a GPU the gradient takes the place of the logits, in the precision of the product
    assert estimate(device="cuda", precision="bf16").output * 4 == estimate().output
