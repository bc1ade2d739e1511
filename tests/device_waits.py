"""What a GPU would be waited for is refused, so that tests without one see it too; the meta device stands in for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etude.nn import losses
from etude.nn.attention import cross, dispatch, multi_set
from etude.nn.packed import send_array

ATEN = torch.ops.aten
SIZES_OF_VALUES = (
    ATEN.nonzero, ATEN.masked_select, ATEN.masked_scatter_backward, ATEN._unique2, ATEN.unique_dim, ATEN.bincount,
)  # fmt: skip
NUMBERS_OF_HOST = (ATEN._local_scalar_dense, ATEN.equal, ATEN.is_nonzero)


class RefuseWaits(TorchDispatchMode):
    """Raises where the host would read a value of the device, or would send it one in a way that waits."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        packet: Callable[..., Any] = func.overloadpacket
        if packet in SIZES_OF_VALUES or packet in NUMBERS_OF_HOST:
            raise AssertionError(f"{func} gives the host a value of the device")
        if packet in (ATEN.index, ATEN.index_put, ATEN.index_put_):
            if any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]):
                raise AssertionError(f"{func} with a mask: the host has to know how many are chosen")
            if packet is not ATEN.index and args[2].dim() == 0:
                raise AssertionError(f"{func} with a number: it is copied from the host")
        if packet is ATEN._to_copy and args[0].device.type == "cpu":
            target = (kwargs or {}).get("device")
            if target is not None and torch.device(target).type != "cpu" and not _is_sent():
                raise AssertionError(f"{func} from memory that may be swapped out: send_array does not wait")
        return func(*args, **(kwargs or {}))


def _is_sent() -> bool:
    """Whether a call is one of `send_array`."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is send_array.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def let_meta_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the meta device take the ways of a GPU. It has no values, so what reads one or mixes devices fails there."""
    autocast = torch.autocast

    def of_cpu(device_type: str, *rest: Any, **options: Any) -> Any:  # there is none on the meta device
        return autocast("cpu" if device_type == "meta" else device_type, *rest, **options)

    def by_device(states: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        if not states.is_meta:
            return of_any(states, *rest, **options)
        table, bias, targets, vocab, needs_grad, grad_bias, on_logits = rest
        losses_and_grad = losses._gpu_chunk_losses_and_grad(states, table, bias, targets, vocab, needs_grad, on_logits)
        if losses_and_grad[1] is not None and grad_bias is not None:
            losses._add_slots(grad_bias, losses_and_grad[1])
        return losses_and_grad

    of_any = losses._chunk_losses_and_grad
    monkeypatch.setattr(torch, "autocast", of_cpu)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    monkeypatch.setattr(losses, "_chunk_losses_and_grad", by_device)
    monkeypatch.setattr(losses.availability, "kernel_module", lambda *_: None)
    for module in (dispatch, cross, multi_set):  # flash kernels, which read bounds on the device
        monkeypatch.setattr(module, "choose_path", lambda *_, **__: "varlen")
    for module in (dispatch, cross):
        monkeypatch.setattr(module, "attend_varlen", lambda query, *parts, **_: _join(query, *parts[:2]))
    monkeypatch.setattr(
        multi_set,
        "_varlen",
        lambda query, sets, *_: _join(query, *(part for each in sets for part in (each.key, each.value))),
    )


def _join(query: Tensor, *parts: Tensor) -> Tensor:
    """A tensor of a query's shape that depends on all."""
    return query + 0 * torch.stack([part.sum() for part in parts]).sum()
