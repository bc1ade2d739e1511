"""What is told about memory before a run: parts that are exact, and what grows with what."""

from __future__ import annotations

import torch
from torch import nn

from etude.models import transformer
from etude.train import memory
from etude.train.settings import Settings

MODEL = transformer.build(transformer.Settings(layers=2, width=64, heads=2, vocab=1000, context=32))
DROPPING = transformer.build(
    transformer.Settings(layers=2, width=64, heads=2, vocab=1000, context=32, dropout=0.1, attention_dropout=0.1)
)
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
    assert estimate(micro_tokens=10**6).output < 4 * 10**6 * 1000 / 20
    assert estimate(predicted=0.15).output < estimate().output
    # the gradient takes the place of the logits, on a GPU in the precision of the product
    assert estimate(device="cuda", precision="bf16").output == 2 * 512 * 1000
    table = 4 * 1000 * 64
    assert estimate().output == 4 * 512 * 1000 + table, "a product is added to the table's gradient"
    assert estimate().table_gradient == estimate(device="cuda").table_gradient == table


def test_what_is_not_read_is_not_kept() -> None:
    feedforward = 4 * 64 + 4 * (64 + 2 * 256)  # a norm's input, and three states
    for model, masks in ((MODEL, 0), (DROPPING, 2 * 4 * 64)):
        whole, some = estimate(model=model), estimate(model=model, read=0.25)
        assert whole.activations and some.activations
        assert whole.activations - some.activations == 384 * (feedforward + masks)
    assert estimate(read=0.25, device="cuda").activations < estimate(device="cuda").activations  # type: ignore[operator]


def test_weights_of_attention_grow_with_the_length_of_sequences() -> None:
    """No fused kernel of a CPU drops out attention weights."""
    half, whole = (estimate(model=DROPPING, length=length).activations for length in (16, None))
    assert (
        half and whole and whole - half == 512 * 2 * 2 * 16 * (4 + 1)
    )  # tokens, layers, heads, keys; a byte of a mask
    on_gpu = [estimate(model=DROPPING, length=length, device="cuda").activations for length in (16, None)]
    assert on_gpu[0] == on_gpu[1]


def test_tokens_are_drawn_before_the_second_model_reads_them() -> None:
    alone, drawing = estimate(), estimate(other_models=[MODEL], predicted=0.15, drawn=0.15)
    generator = estimate(other_models=[MODEL], predicted=0.15).activations - alone.activations  # type: ignore[operator]
    assert drawing.output == (4 + memory.DRAWING) * 77 * 1000 > estimate(predicted=0.15).output
    assert drawing.output_activations == generator
    assert drawing.total - drawing.parameters - drawing.gradients - drawing.optimizer == max(
        drawing.activations or 0, generator + drawing.output
    )
