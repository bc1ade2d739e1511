"""Batched Muon against torch's, matrix by matrix; a step with non-finite gradients; an lr on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from etude.train import muon
from etude.train.cpu_state import onednn_enabled
from etude.train.muon import Muon, orthogonalize
from etude.train.optimizers import MuonAdamW

SHAPES = [(16, 8), (8, 8), (16, 8), (8, 24), (16, 8), (8, 24)]
STEPS = 4


def matrices(device: str = "cpu") -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in SHAPES]


def set_grads(parameters: list[nn.Parameter], step: int) -> None:
    """Gradients of a step; in step 2 one matrix has none."""
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(parameters):
        grad = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        parameter.grad = None if (step, number) == (2, 3) else grad


def groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:4], "weight_decay": 0.1}, {"params": parameters[4:], "weight_decay": 0.0}]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("batch_elements", [2**26, 200], ids=["one batch", "several"])
def test_steps_are_torchs(nesterov: bool, batch_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "BATCH_ELEMENTS", batch_elements)
    monkeypatch.setattr(muon, "has_bf16_products", lambda: True)  # torch's are always of bfloat16
    ours, theirs = matrices(), matrices()
    optimizer = Muon(groups(ours), lr=0.02, momentum=0.95, nesterov=nesterov)
    reference = torch.optim.Muon(
        groups(theirs), lr=0.02, momentum=0.95, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
    )
    for step in range(STEPS):
        for parameters, stepper in ((ours, optimizer), (theirs, reference)):
            set_grads(parameters, step)
            stepper.step()
    for own, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-6, atol=1e-7)
        momentum = optimizer.state[own]["momentum_buffer"]
        torch.testing.assert_close(momentum, reference.state[expected]["momentum_buffer"], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("nesterov", [True, False])
def test_matrices_of_one_weight_take_steps_of_their_own(nesterov: bool) -> None:
    """Queries, keys and values as one layer learn as three layers would."""
    generator = torch.Generator().manual_seed(3)
    apart = [nn.Parameter(torch.randn(8, 12, generator=generator)) for _ in range(6)]
    together = [nn.Parameter(torch.cat([p.detach() for p in apart[start : start + 3]])) for start in (0, 3)]
    settings = {"lr": 0.02, "momentum": 0.95, "nesterov": nesterov, "product_dtype": torch.float32}
    separate = Muon([{"params": apart}], **settings)
    stacked = Muon([{"params": together, "stacked": 3}], **settings)
    for _ in range(STEPS):
        for parameter in apart:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for number, parameter in enumerate(together):
            parameter.grad = torch.cat([p.grad for p in apart[3 * number : 3 * number + 3] if p.grad is not None])
        separate.step()
        stacked.step()
    for number, parameter in enumerate(together):
        assert torch.equal(parameter, torch.cat([p.detach() for p in apart[3 * number : 3 * number + 3]]))
    with pytest.raises(ValueError, match="24 rows are not 5 matrices"):
        Muon([{"params": together, "stacked": 5}], **settings)


def test_products_leave_torchs_cpu_library_as_it_is() -> None:
    """A run whose first update turned it off would differ from its own resume in the last bits."""
    batch = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(1))
    with onednn_enabled():
        orthogonalize(batch)
        assert torch.backends.mkldnn.enabled


def test_products_are_of_float32_where_a_cpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(muon, "has_bf16_products", lambda: False)
    assert torch.equal(orthogonalize(batch), orthogonalize(batch, torch.float32))


def test_a_batch_is_orthogonalized_matrix_by_matrix_in_float32() -> None:
    batch = torch.randn(5, 24, 8, generator=torch.Generator().manual_seed(1))
    together = muon._iterate(batch)  # the products of a GPU
    apart = orthogonalize(batch, torch.float32)
    assert torch.linalg.vector_norm(together - apart) < 1e-6 * torch.linalg.vector_norm(apart)
    values = torch.linalg.svdvals(apart)
    assert values.min() > 0.5 and values.max() < 1.5


def test_a_step_with_non_finite_gradients_changes_nothing() -> None:
    parameters = matrices()
    optimizer = MuonAdamW(
        [{"params": parameters[:5], "weight_decay": 0.1}],
        [{"params": parameters[5:], "weight_decay": 0.1}],
        lr=0.02,
        momentum=0.95,
        nesterov=True,
        betas=(0.9, 0.99),
        eps=1e-8,
        fused=True,
    )
    optimizer.found_inf = torch.zeros(())
    set_grads(parameters, 0)
    optimizer.step()
    before = [p.detach().clone() for p in parameters]
    states = [{name: value.clone() for name, value in optimizer.state[p].items()} for p in parameters]
    optimizer.found_inf = torch.ones(())
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(parameters, before, strict=True))
    for parameter, state in zip(parameters, states, strict=True):
        assert all(torch.equal(optimizer.state[parameter][name], value) for name, value in state.items())
    optimizer.found_inf = torch.zeros(())
    set_grads(parameters, 1)
    optimizer.step()
    assert all(p.isfinite().all() and not torch.equal(p, old) for p, old in zip(parameters, before, strict=True))


def test_an_lr_on_the_device_takes_the_same_steps() -> None:
    ours, theirs = matrices(), matrices()
    plain = Muon(groups(ours), lr=0.0, momentum=0.95, nesterov=True)
    on_device = Muon(groups(theirs), lr=0.0, momentum=0.95, nesterov=True)
    for group in on_device.param_groups:
        group["lr"] = torch.zeros((), dtype=torch.float64)
    for step in range(STEPS):
        for group, twin in zip(plain.param_groups, on_device.param_groups, strict=True):
            group["lr"] = 0.01 * (step + 1)
            twin["lr"].fill_(0.01 * (step + 1))
        for parameters, optimizer in ((ours, plain), (theirs, on_device)):
            set_grads(parameters, step)
            optimizer.step()
    assert all(torch.equal(own, twin) for own, twin in zip(ours, theirs, strict=True))


@pytest.mark.gpu
def test_a_gpu_takes_the_same_steps_and_nothing_waits_for_it() -> None:
    here, there = matrices(), matrices("cuda")
    for parameters in (here, there):
        optimizer = Muon(groups(parameters), lr=0.02, momentum=0.95, nesterov=True, product_dtype=torch.float32)
        optimizer.found_inf = torch.zeros((), device=parameters[0].device)
        for step in range(STEPS):
            set_grads(parameters, step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    for own, twin in zip(here, there, strict=True):
        torch.testing.assert_close(twin.cpu(), own, rtol=1e-4, atol=1e-4)
