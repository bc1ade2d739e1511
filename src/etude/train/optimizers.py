"""The optimisers torch does not have: BERT's Adam, LAMB, and Muon with AdamW beside it; and AdamW in one kernel.

All state exists from the start (zeros), not from the first step: memory is known at launch, and a checkpoint
of any step, also of step 0, holds the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from etude.nn.triton import availability as card

Groups = list[dict[str, Any]]

# Adam's two corrections, 1 - beta^t, are exactly 1 for an optimiser this old; and a float32 counter stands still
# here (2^24 + 1 is not a float32), so they stay so.
_SETTLED = float(2**24)


def init_adam_state(optimizer: torch.optim.AdamW, step: float = 0.0) -> None:
    """Gives every parameter the state that torch would give it at its first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            # torch's rule: the fused kernel counts on the device, the others on the host
            device = parameter.device if group["fused"] else torch.device("cpu")
            optimizer.state[parameter] = {
                "step": torch.tensor(step, dtype=torch.float32, device=device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def _loss(closure: Callable[[], Any] | None) -> Any:
    """What a step is to return: torch lets a step ask for the loss first."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def load_adam_kernel(device: torch.device) -> Any:
    """Our step of AdamW for parameters on this device, or None where torch's has to do."""
    return _own("adam_kernel", device)


def load_norm_kernel(device: torch.device) -> Any:
    """Our norm of gradients on this device, or None."""
    return _own("grad_norm_kernel", device)


def _own(name: str, device: torch.device) -> Any:
    return card.kernel_module(name, "train") if device.type == "cuda" and card.supports_flash(device.index) else None


def compute_total_norm(gradients: list[Tensor]) -> Tensor:
    """Of all of them together, as torch has it; on a GPU by two kernels of ours where those can."""
    device = gradients[0].device if gradients else torch.device("cpu")
    kernel = load_norm_kernel(device)
    if kernel is not None and all(_plain(gradient, device) for gradient in gradients):
        norm: Tensor = kernel.length(gradients)
        return norm
    return nn.utils.get_total_norm(gradients)


def _plain(tensor: Any, device: torch.device) -> bool:
    """Whether an address and a size say all about it: not a shard (FSDP2), not sparse, not turned."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.device == device
        and tensor.is_contiguous()
    )


def _common(groups: Groups) -> bool:
    """Whether the groups differ in rate and decay alone, and want nothing that our kernel does not do."""
    wanted = ("amsgrad", "maximize", "capturable", "differentiable", "foreach")
    return all(
        group["fused"]
        and not any(group[name] for name in wanted)
        and not isinstance(group["lr"], Tensor)
        and (group["betas"], group["eps"]) == (groups[0]["betas"], groups[0]["eps"])
        for group in groups
    )


class AdamW(torch.optim.AdamW):
    """torch's, whose state exists from the start; on a GPU a step is one kernel of ours (train/adam_kernel.py).

    The state is torch's to the last name, and any step may be either's: what ours does not take goes to torch.
    """

    age = 0.0  # in steps, at the start
    _seen: tuple[list[list[int]], list[int]] | None = None  # addresses of what was found plain, and sizes

    def __init__(
        self, groups: Groups, lr: float, betas: tuple[float, float], eps: float, fused: bool | None = None
    ) -> None:
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=fused)
        init_adam_state(self, self.age)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _loss(closure)
        if not self._step_at_once():
            super().step()
        return loss

    def _step_at_once(self) -> bool:
        """Takes the step by our kernel if that can; addresses are looked up each time, so that none is ever stale."""
        learnt = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        kernel = load_adam_kernel(learnt[0][0].device) if learnt else None
        if kernel is None or not _common(self.param_groups):
            return False
        device, states = learnt[0][0].device, [self.state[parameter] for parameter, _ in learnt]
        gradients = [parameter.grad for parameter, _ in learnt]
        scale, found = (getattr(self, name, None) for name in ("grad_scale", "found_inf"))  # set by clipping, the guard
        given = [*gradients, *(number for number in (scale, found) if number is not None)]
        # a parameter that came later has no state yet: torch starts it
        if not all(states) or not all(_plain(tensor, device) for tensor in given):
            return False
        kept = [[parameter for parameter, _ in learnt]]
        kept += [[state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step")]
        if not {type(parameter) for parameter in kept[0]} <= {Tensor, nn.Parameter}:
            return False
        addresses = [[tensor.data_ptr() for tensor in row] for row in kept]
        if self._seen is None or self._seen[0] != addresses:
            if not all(_plain(tensor, device) for row in kept for tensor in row):
                return False
            self._seen = addresses, [parameter.numel() for parameter in kept[0]]
        kernel.step(
            [addresses[0], [gradient.data_ptr() for gradient in gradients], *addresses[1:]],
            self._seen[1],
            [group["lr"] for _, group in learnt],
            [group["weight_decay"] for _, group in learnt],
            betas=self.param_groups[0]["betas"],
            epsilon=self.param_groups[0]["eps"],
            device=device,
            scale=scale,
            found=found,
        )
        return True


class Adam(AdamW):
    """Adam as BERT's and ELECTRA's code has it: no bias correction, decoupled decay.

        m = b1 m + (1 - b1) g;   v = b2 v + (1 - b2) g^2;   p = p - lr (m / (sqrt v + eps) + decay p)

    The first step is therefore (1 - b1) / sqrt(1 - b2) = 3.2 times as long as a corrected one, which the warm-up
    hides. It is AdamW, with its kernels, aged until the correction is gone.
    """

    age = _SETTLED


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al. 2020, algorithm 2) as ALBERT's code has it, without bias correction.

        u = m / (sqrt v + eps) + decay p;   p = p - lr |p| / |u| u

    The correction of the paper's text scales u as a whole, which the ratio divides out again, but for eps and decay.
    A group with adapt=False (norms and biases in ALBERT) has the ratio 1; so has a tensor with a norm of 0.
    """

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _loss(closure)
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """All tensors of a group at once: on a GPU a few launches in place of some for each tensor, and no wait."""
        first, second = group["betas"]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]  # all of them
        means = [self.state[parameter]["exp_avg"] for parameter in parameters]
        squares = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        torch._foreach_mul_(means, first)
        torch._foreach_add_(means, gradients, alpha=1.0 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1.0 - second)
        updates = torch._foreach_sqrt(squares)
        torch._foreach_add_(updates, group["eps"])
        torch._foreach_reciprocal_(updates)
        torch._foreach_mul_(updates, means)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            weights = torch.stack(torch._foreach_norm(parameters))  # (tensors of the group,)
            lengths = torch.stack(torch._foreach_norm(updates))
            ratios = torch.where((weights > 0) & (lengths > 0), weights / lengths, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for hidden matrices, AdamW for everything else, as one optimiser.

    Both parts are torch's. They are handed this object's own groups and state, so a rate set on a group, a
    state dictionary and a loaded state are those of the whole. Muon's step is scaled to the size of AdamW's
    (Liu et al. 2025, "Muon is scalable", section 2.2), so that one rate and one decay serve both.
    """

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
    ) -> None:
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(
                matrices, lr=lr, momentum=momentum, nesterov=nesterov, adjust_lr_fn="match_rms_adamw"
            )
            for group in muon.param_groups:
                for parameter in group["params"]:
                    muon.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
            self._parts.append(muon)
        if others:
            adamw = torch.optim.AdamW(others, lr=lr, betas=betas, eps=eps, fused=fused)
            init_adam_state(adamw)
            self._parts.append(adamw)
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        for part in self._parts:
            self.state.update(part.state)
        self._link()

    def _link(self) -> None:
        """Makes the parts work on the groups and the state held here."""
        taken = 0
        for part in self._parts:
            count = len(part.param_groups)
            part.param_groups = self.param_groups[taken : taken + count]
            part.state = self.state
            taken += count

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # replaces both
        self._link()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = _loss(closure)
        for part in self._parts:
            part.step()
        return loss
