"""Optimisers torch does not have: BERT's Adam, LAMB, Muon with AdamW, and AdamW as one kernel.

All state exists from the start (zeros), not from the first step: memory is known at launch, and a checkpoint of any
step, also of step 0, holds the same names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from etude.nn.triton import availability
from etude.train.closures import Closure, evaluate_closure
from etude.train.muon import Exchange, Groups, Muon
from etude.train.tensor_lists import copy_to_device, is_share, share_of

# Adam's two bias corrections, 1 - beta^t, are exactly 1 at this step; and a float32 counter stays there, as 2^24 + 1 is
# not a float32.
_CORRECTED_STEP = float(2**24)


def init_adam_state(optimizer: torch.optim.AdamW, step: float = 0.0) -> None:
    """Give every parameter the state that torch would create at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # torch's rule: the fused kernel counts on the device, the others on the host
            device = parameter.device if group["fused"] else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.tensor(step, dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def load_adam_kernel(device: torch.device) -> ModuleType | None:
    """Return our kernel of an AdamW step for this device, or None where torch's is used."""
    return _load_kernel("adam_kernel", device)


def load_norm_kernel(device: torch.device) -> ModuleType | None:
    """Return our kernel of the gradients' norm for this device, or None."""
    return _load_kernel("grad_norm_kernel", device)


def _load_kernel(name: str, device: torch.device) -> ModuleType | None:
    if device.type != "cuda" or not availability.supports_flash(device.index):
        return None
    module: ModuleType | None = availability.kernel_module(name, "train")
    return module


def compute_total_norm(grads: list[Tensor]) -> Tensor:
    """Return the global norm of all gradients, as torch's `get_total_norm`; on a GPU by our two kernels if possible.

    Of gradients in shards, it is the norm of this rank's shares: torch would dispatch each tensor by itself.
    """
    grads = [share_of(grad) for grad in grads]
    device = grads[0].device if grads else torch.device("cpu")
    kernel = load_norm_kernel(device)
    if kernel is not None and all(_is_plain(grad, device) for grad in grads):
        norm: Tensor = kernel.total_norm(grads)
        return norm
    return nn.utils.get_total_norm(grads)


def _is_plain(tensor: Tensor, device: torch.device) -> bool:
    """Whether an address and a size describe a tensor: not sparse, not transposed; of a shard, ask for its share."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.device == device
        and tensor.is_contiguous()
    )


def _fits_kernel(groups: Groups) -> bool:
    """Whether the groups differ in lr and weight decay alone, and use no option that our kernel lacks."""
    unsupported = ("amsgrad", "maximize", "capturable", "differentiable", "foreach")
    has_device_lr = isinstance(groups[0]["lr"], Tensor)
    return all(
        group["fused"]
        and not any(group[name] for name in unsupported)
        and isinstance(group["lr"], Tensor) == has_device_lr
        and (group["betas"], group["eps"]) == (groups[0]["betas"], groups[0]["eps"])
        for group in groups
    )


class AdamW(torch.optim.AdamW):
    """torch's AdamW with state from the start; on a GPU a step is one kernel of ours (train/adam_kernel.py).

    The state has torch's names, and any step may be either's: torch takes the steps that our kernel does not support.
    """

    initial_step = 0.0
    # set from outside, as for torch's fused AdamW: by clipping, and by the loop's check for non-finite gradients
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _checked: tuple[list[list[int]], list[int]] | None = None  # addresses of tensors known to be plain, and their sizes

    def __init__(
        self, groups: Groups, lr: float, betas: tuple[float, float], eps: float, fused: bool | None = None
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=fused)
        init_adam_state(self, self.initial_step)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """Take one step, by our kernel where it supports it."""
        loss = evaluate_closure(closure)
        if not self._step_by_kernel() and not self._step_by_shares():
            with self._float32_lrs():
                super().step()
        return loss

    def _step_by_kernel(self) -> bool:
        """Take the step by our kernel if it can; addresses are read at every step, so none is ever stale."""
        updated = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        kernel = load_adam_kernel(updated[0][0].device) if updated else None
        if kernel is None or not _fits_kernel(self.param_groups):
            return False
        device, states = updated[0][0].device, [self.state[parameter] for parameter, _ in updated]
        grads = [share_of(parameter.grad) for parameter, _ in updated]
        scalars = [scalar for scalar in (self.grad_scale, self.found_inf) if scalar is not None]
        # a parameter added later has no state yet: torch creates it
        if not all(states) or not all(_is_plain(tensor, device) for tensor in [*grads, *scalars]):
            return False
        tensors = [[share_of(parameter) for parameter, _ in updated]]
        tensors += [[share_of(state[key]) for state in states] for key in ("exp_avg", "exp_avg_sq", "step")]
        if not {type(parameter) for parameter in tensors[0]} <= {Tensor, nn.Parameter}:
            return False
        addresses = [[tensor.data_ptr() for tensor in row] for row in tensors]
        if self._checked is None or self._checked[0] != addresses:
            if not all(_is_plain(tensor, device) for row in tensors for tensor in row):
                return False
            self._checked = addresses, [parameter.numel() for parameter in tensors[0]]
        kernel.step(
            [addresses[0], [grad.data_ptr() for grad in grads], *addresses[1:]],
            self._checked[1],
            self._lrs([group for _, group in updated], device),
            [group["weight_decay"] for _, group in updated],
            betas=self.param_groups[0]["betas"],
            eps=self.param_groups[0]["eps"],
            device=device,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )
        return True

    @contextlib.contextmanager
    def _float32_lrs(self) -> Iterator[None]:
        """Give groups whose lr lies on a GPU one in float32, in this context: torch's fused kernel reads no other."""
        lrs = [group["lr"] for group in self.param_groups]
        for group, lr in zip(self.param_groups, lrs, strict=True):
            group["lr"] = lr.float() if isinstance(lr, Tensor) and lr.device.type != "cpu" else lr
        try:
            yield
        finally:
            for group, lr in zip(self.param_groups, lrs, strict=True):
                group["lr"] = lr

    def _step_by_shares(self) -> bool:
        """Take torch's fused step on this rank's shares, if parameters are in shards: no element needs another."""
        if not is_share(self.param_groups[0]["params"][0]):
            return False
        for group in self.param_groups:
            updated = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] for parameter in updated]
            if not updated:
                continue
            adamw(
                [share_of(parameter) for parameter in updated],
                [share_of(parameter.grad) for parameter in updated],
                [share_of(state["exp_avg"]) for state in states],
                [share_of(state["exp_avg_sq"]) for state in states],
                [],
                [state["step"] for state in states],
                fused=group["fused"],
                grad_scale=self.grad_scale,
                found_inf=self.found_inf,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
        return True

    def _lrs(self, groups: Groups, device: torch.device) -> list[float] | Tensor:
        """Return the lr of each tensor: floats, or (T,) float64 on the device for a step that is recorded."""
        if not isinstance(self.param_groups[0]["lr"], Tensor):
            return [group["lr"] for group in groups]
        numbers = {id(group): number for number, group in enumerate(self.param_groups)}
        index = copy_to_device(np.array([numbers[id(group)] for group in groups], dtype=np.int64), device)
        return torch.stack([group["lr"] for group in self.param_groups]).index_select(0, index)


class Adam(AdamW):
    """Adam as in BERT's and ELECTRA's code: no bias correction, decoupled weight decay.

        m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   p = p - lr (m / (sqrt v + eps) + decay p)

    The first step is therefore (1 - b1) / sqrt(1 - b2) = 3.2 times as long as a corrected one, which the warm-up
    hides. It is AdamW, with its kernels, started at a step where the correction is 1.
    """

    initial_step = _CORRECTED_STEP


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2) as in ALBERT's code, without bias correction.

        u = m / (sqrt v + eps) + decay p;   p = p - lr |p| / |u| u

    The paper's correction scales u as a whole, which the trust ratio divides out again, but for eps and decay. A group
    with adapt=False (norms and biases in ALBERT) has the trust ratio 1; so has a tensor with a norm of 0. `stacked` of
    a group says how many matrices each of its weights is: each has a ratio of its own, as the code's variables have.
    """

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(
            groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True, "stacked": 1}
        )
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """Take one step."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update all tensors of a group together: a few launches on a GPU, and no synchronisation."""
        beta1, beta2 = group["betas"]
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]  # all of them
        exp_avgs = [self.state[parameter]["exp_avg"] for parameter in parameters]
        exp_avg_sqs = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        torch._foreach_mul_(exp_avgs, beta1)
        torch._foreach_add_(exp_avgs, grads, alpha=1.0 - beta1)
        torch._foreach_mul_(exp_avg_sqs, beta2)
        torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1.0 - beta2)
        updates = torch._foreach_sqrt(exp_avg_sqs)
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, exp_avgs)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            count = group["stacked"]
            matrices, changes = _split_stacked(parameters, count), _split_stacked(updates, count)
            weight_norms = torch.stack(torch._foreach_norm(matrices))  # (matrices of the group,)
            update_norms = torch.stack(torch._foreach_norm(changes))
            ratios = torch.where((weight_norms > 0) & (update_norms > 0), weight_norms / update_norms, 1.0)
            torch._foreach_mul_(changes, list(ratios.unbind()))
            if count > 1:  # joined anew: parts of a tensor in shards are copies
                updates = tuple(torch.cat(changes[i : i + count]) for i in range(0, len(changes), count))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


def _split_stacked(tensors: Iterable[Tensor], count: int) -> list[Tensor]:
    """Return the matrices, `count` one below the other, that each of these tensors is."""
    return [matrix for tensor in tensors for matrix in (tensor.chunk(count) if count > 1 else [tensor])]


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for hidden matrices, AdamW for everything else, as one optimiser.

    They share this object's groups and state, so an lr set on a group, a state dictionary and a loaded state are those
    of the whole. Muon's steps are as long as AdamW's (train/muon.py), so that one lr and one weight decay serve both.
    """

    _step_supports_amp_scaling = True  # torch's name for: `found_inf` on the device skips a step

    def __init__(
        self,
        matrices: Groups,
        others: Groups,
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
        fused: bool | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._parts: list[Muon | AdamW] = []
        self.found_inf: Tensor | None = None
        if matrices:
            self._parts.append(Muon(matrices, lr=lr, momentum=momentum, nesterov=nesterov, exchange=exchange))
        if others:
            self._parts.append(AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        for part in self._parts:
            self.state.update(part.state)
        self._link()

    def _link(self) -> None:
        """Make the parts work on the groups and the state of this object."""
        start = 0
        for part in self._parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[start : start + count]
            part.state = self.state
            start += count

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state as torch does, and share it with the parts again."""
        super().load_state_dict(state_dict)  # replaces both
        self._link()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        """Take one step."""
        loss = evaluate_closure(closure)
        for part in self._parts:
            part.found_inf = self.found_inf
            part.step()
        return loss
