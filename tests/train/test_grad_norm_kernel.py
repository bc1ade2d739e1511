"""Our norm of many tensors against numpy's: on a GPU by name, elsewhere in Triton's interpreter if it is there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from etude.train import optim, optimizers


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def lengths_agree(device: str) -> None:
    """Sizes around a chunk's, none at all, very different numbers, a tensor that begins anywhere; then not a number."""
    from etude.train.grad_norm_kernel import BLOCK, total_norm

    draw = torch.Generator().manual_seed(0)
    sizes = [(1,), (5,), (BLOCK,), (BLOCK + 1,), (3, BLOCK), (0,), (BLOCK - 1,)]
    given = [torch.randn(size, generator=draw).to(device) * 10.0 ** (n - 3) for n, size in enumerate(sizes)]
    given.append(torch.randn(100, generator=draw).to(device)[3:])
    for some in (given[:-1], given, given[5:6]):
        exact = np.sqrt(sum(float((one.double() ** 2).sum()) for one in some))
        found = total_norm(some)
        assert found.shape == () and found.dtype == torch.float32
        assert float(found) == pytest.approx(exact, rel=1e-6)
        assert torch.equal(found, total_norm(some))  # to the bit
    given[4][1, 7] = torch.inf
    assert float(total_norm(given)) == np.inf
    given[4][1, 7] = torch.nan
    assert np.isnan(float(total_norm(given)))


@pytest.mark.interpreted
def test_lengths() -> None:
    lengths_agree("cpu")


@pytest.mark.gpu
def test_lengths_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths_agree("cuda")
    learnt = [torch.nn.Parameter(torch.zeros(50, 3, device="cuda")) for _ in range(3)]
    for parameter in learnt:
        parameter.grad = torch.randn_like(parameter)
    ours = optim.clip_gradients(learnt, 1e9)
    monkeypatch.setattr(optimizers, "load_norm_kernel", lambda *_: None)
    torch.testing.assert_close(ours, optim.clip_gradients(learnt, 1e9), rtol=1e-6, atol=0)


def test_what_the_kernel_cannot_read_goes_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        @staticmethod
        def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
            return torch.tensor(-1.0)

    monkeypatch.setattr(optimizers, "load_norm_kernel", lambda *_: Kernel)
    plain = torch.ones(2, 3)
    assert optimizers.compute_total_norm([plain]) == -1
    for other in (plain.double(), plain.t()):
        assert float(optimizers.compute_total_norm([plain, other])) == pytest.approx(12**0.5)
    monkeypatch.undo()
    assert optimizers.load_norm_kernel(torch.device("cpu")) is None and optimizers.compute_total_norm([]) == 0
