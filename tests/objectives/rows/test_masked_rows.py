"""Slots of masked rows: a batch without most of the unused ones says the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from etude.chance import Chance
from etude.objectives import masked
from etude.objectives.base import IGNORE
from etude.objectives.rows.masked_rows import GRAIN, SlotBatch
from tests.objectives import replaced_system
from tests.objectives.small_corpus import SPECIAL


def masked_system(**wanted: Any) -> tuple[Any, Any, Any]:
    net = replaced_system.model(pooler=True)
    made = masked.build(masked.Settings(**wanted), net, SPECIAL)
    rows = made.rows(replaced_system.CORPUS, seed=1)
    return net, made, made.batch([rows[number] for number in range(4)], Chance(1, 0))


def replaced_batch(**wanted: Any) -> tuple[Any, Any, Any]:
    net, made = replaced_system.both(**wanted)
    return net, made, replaced_system.batch_of(made, [0, 1, 2, 3])


SYSTEMS = {
    "masked": lambda: masked_system(),
    "with a sentence task": lambda: masked_system(sentence="next"),
    **{
        f"replaced, {name}": lambda wanted=wanted: replaced_batch(**wanted)
        for name, wanted in replaced_system.VARIANTS.items()
    },
}


def used_of(batch: SlotBatch) -> dict[str, torch.Tensor]:
    assert batch.targets is not None
    return {name: getattr(batch, name)[batch.targets != IGNORE] for name in batch.slotted}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_compact_batch_has_the_loss_and_the_gradients_of_the_whole(name: str) -> None:
    net, made, batch = SYSTEMS[name]()
    few = batch.compact()
    assert len(few.targets) < len(batch.targets)
    found = []
    for one in (batch, few):
        net.zero_grad()
        made.zero_grad()
        total = replaced_system.total(made.loss(net, one))
        total.backward()
        slopes = [p.grad.clone() for p in (*net.parameters(), *made.parameters()) if p.grad is not None]
        found.append([total.detach(), *slopes])
    assert len(found[0]) == len(found[1]) > 10
    for whole, compact in zip(*found, strict=True):
        torch.testing.assert_close(compact, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_slot_in_use_is_kept_in_its_order_and_few_others(name: str) -> None:
    _, _, batch = SYSTEMS[name]()
    few = batch.compact()
    for field, kept in used_of(few).items():
        assert torch.equal(kept, used_of(batch)[field])
        assert len(getattr(few, field)) == len(few.targets)
    assert len(few.targets) % GRAIN == 0
    assert len(few.targets) - len(used_of(few)["targets"]) < GRAIN
    assert few.counts == batch.counts and few.tokens is batch.tokens


def test_a_batch_that_is_full_or_small_stays_as_it_is() -> None:
    _, _, batch = masked_system()
    full = replace(batch, targets=torch.full_like(batch.targets, 7))
    assert full.compact() is full
    small = replace(batch, index=batch.index[: GRAIN - 1], targets=batch.targets[: GRAIN - 1])
    assert small.compact() is small


def test_a_batch_in_which_nothing_is_predicted_keeps_some_slots() -> None:
    net, made, batch = masked_system()
    none = replace(batch, targets=torch.full_like(batch.targets, IGNORE)).compact()
    assert len(none.targets) == GRAIN
    assert made.loss(net, none)["mlm"].sum.item() == 0.0
