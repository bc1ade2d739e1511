"""How the processes of a run share its memory: copies (DDP), shards (FSDP2), or shards within machines (hybrid).

`train.parallel=auto` takes the first that fits, since each further one sends more: copies send gradients alone, shards
also send the weights of every layer, twice a step, and a hybrid does that within a machine.

Shards are gathered layer by layer, or the whole model once a step (`train.gather`). FSDP2 asks some milliseconds of the
host for every unit that it gathers and reduces, which a GPU waits for where layers are small; a model that is one unit
is also compiled as a whole. It takes memory for all weights and gradients, and nothing is sent while products run: so
`auto` does it where that memory is small, and only within a machine, where sending is fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from etude.errors import UserError
from etude.train.memory import Estimate, machine_memory
from etude.train.parallel import Ranks
from etude.train.settings import Settings

Mode = Literal["single", "ddp", "fsdp", "hybrid"]
Gather = Literal["auto", "layer", "model"]
USABLE_SHARE = 0.9  # of a device's memory; the rest is fragments, workspaces of kernels and NCCL's buffers
GATHERED_SHARE = 0.1  # of a device's memory: what a model that is gathered as a whole may take


@dataclass(frozen=True)
class Strategy:
    """How a run shares its memory, and why; `reason` is empty where there was nothing to choose."""

    mode: Mode
    reason: str = ""
    gathers_model: bool = False  # with shards: the whole model once a step, rather than layer by layer

    @property
    def is_sharded(self) -> bool:
        return self.mode in ("fsdp", "hybrid")


def choose_strategy(settings: Settings, ranks: Ranks, needs: Estimate, available: int | None) -> Strategy:
    """Choose for these processes; `needs` is the memory of one that holds everything, `available` what one has."""
    requested = settings.parallel
    if ranks.size == 1:
        # one process of torchrun may still shard, which changes no result: for measurements
        is_connected = dist.is_initialized() and dist.get_world_size() == 1
        return Strategy(requested if is_connected and requested in ("fsdp", "hybrid") else "single")
    if requested != "auto":
        return Strategy(requested)
    if available is None:
        return Strategy("ddp", "each process holds the whole model: the memory of this machine is not known")
    limit = USABLE_SHARE * available
    copy = needs.total + needs.gradients  # DDP sends gradients from buckets of its own
    numbers = f"{copy / 1e9:.2f} GB of {available / 1e9:.2f} GB a process"
    if copy <= limit:
        return Strategy("ddp", f"each process holds the whole model: {numbers}")
    if 1 < ranks.local_size < ranks.size and ranks.size % ranks.local_size == 0:
        within = shard_estimate(needs, ranks.local_size)
        if within <= limit:
            reason = f"the whole model needs {numbers}, its share within a machine {within / 1e9:.2f} GB"
            return Strategy("hybrid", reason)
    share = shard_estimate(needs, ranks.size)
    return Strategy("fsdp", f"the whole model needs {numbers}, its share over all processes {share / 1e9:.2f} GB")


def shard_estimate(needs: Estimate, shards: int) -> int:
    """Return the bytes a process needs with weights, gradients and optimiser state in so many shards."""
    return (needs.parameters + needs.gradients + needs.optimizer) // shards + (needs.activations or 0) + needs.output


def gathers_model(gather: Gather, needs: Estimate, memory: float | None, is_within_machine: bool) -> bool:
    """Whether a run in shards gathers the whole model once a step; `memory` is that of a device, if known."""
    if gather != "auto":
        return gather == "model"
    if memory is None or not is_within_machine or gathered_bytes(needs) > GATHERED_SHARE * memory:
        return False
    return needs.total + gathered_bytes(needs) <= USABLE_SHARE * memory  # with room for what is in shards, undivided


def gathered_bytes(needs: Estimate) -> int:
    """Return what a whole model takes: weights, gradients, a copy of these to be reduced, and casts of the weights."""
    return 3 * needs.parameters + needs.casts


def available_memory(device: torch.device, ranks: Ranks) -> int | None:
    """Return the bytes that one process may use: of its GPU, or its share of the machine; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    machine = machine_memory()
    return None if machine is None else machine // ranks.local_size


def refuse_sharding(settings: Settings, what: str) -> None:
    """Raise UserError where shards are asked for in training that has none."""
    if settings.parallel in ("fsdp", "hybrid"):
        raise UserError(
            f"train.parallel={settings.parallel} is for pre-training; {what} holds the whole model in each process. "
            "Set train.parallel=ddp or leave it out."
        )
