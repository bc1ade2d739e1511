"""The processes of a run: one, or several started by `torchrun`, with the same loop.

Every rank builds its own share of each step's rows; DistributedDataParallel averages gradients, one small all-reduce
adds up counts and metrics. Without torchrun's variables nothing is initialised and every function here is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # torch.distributed's, under names that have types

from etude.train.watch import Watch

COLLECTIVE_LIMIT = timedelta(minutes=30)  # others may wait while the first rank writes; lost ranks: train/watch.py


@dataclass(frozen=True)
class Ranks:
    """This process's rank and the collectives of its group."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this machine: selects the GPU
    watch: Watch | None = None  # over the other processes, where there are any

    @property
    def local_size(self) -> int:
        """Ranks on this machine, from torchrun's variable; all of them where it is not set."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size))

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def report(self, activity: str) -> None:
        """Tell the other ranks what this one does now, as in "loads step 7": they print it where it takes too long."""
        if self.watch is not None:
            self.watch.set_activity(activity)

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """Add up values over all ranks, in float64; every rank must pass the same names."""
        if self.size == 1:
            return values
        names = sorted(values)
        tensor = torch.tensor([values[name] for name in names], dtype=torch.float64)
        if dist.get_backend() == "nccl":
            tensor = tensor.cuda(self.local_rank)
        dist.all_reduce(tensor)
        return dict(zip(names, tensor.tolist(), strict=True))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.sum({"flag": float(flag)})["flag"])

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            dist.barrier()

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenate equal shares along the first axis, in rank order (states of lanes, for a checkpoint)."""
        if self.size == 1:
            return tensor
        shares = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(shares, tensor.contiguous())
        return torch.cat(shares)


@contextmanager
def connect(cuda: bool, alone: bool = False) -> Iterator[Ranks]:
    """Initialise the process group that torchrun describes, and destroy it at the end.

    With `alone`, also where torchrun started this process alone: shards then have one rank.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if (size == 1 and not (alone and dist.is_torchelastic_launched())) or dist.is_initialized():
        yield (
            Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", "0")))
            if dist.is_initialized()
            else Ranks()
        )
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local_rank)
    backend = "nccl" if cuda else "gloo"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun's store outlives a start, and torch would read the addresses of processes that are dead by now
        # (pytorch issue 135712): each start has keys of its own
        agent = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        store = PrefixStore(f"etude/start-{os.environ['TORCHELASTIC_RESTART_COUNT']}", agent)
        rank = int(os.environ["RANK"])
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=COLLECTIVE_LIMIT)
    else:
        dist.init_process_group(backend, timeout=COLLECTIVE_LIMIT)
    ranks = Ranks(dist.get_rank(), size, local_rank)
    if size > 1:
        token = int.from_bytes(os.urandom(6)) if ranks.is_first else 0
        token = int(ranks.sum({"token": float(token)})["token"])
        ranks = replace(ranks, watch=Watch(ranks.rank, local_rank, size, ranks.local_size, token))
        ranks.barrier()  # all have told the store that they live
    try:
        with _watched(ranks.watch):
            yield ranks
    except BaseException:
        if size == 1:  # others may be gone, and would be waited for
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextmanager
def _watched(watch: Watch | None) -> Iterator[None]:
    """End with the other ranks, whichever of them fails."""
    if watch is None:
        yield
        return
    watch.start()
    try:
        yield
    except BaseException as error:
        replacement = watch.explain(error)
        if replacement is error:
            raise
        raise replacement from (None if isinstance(replacement, SystemExit) else error)
    finally:
        watch.stop()
