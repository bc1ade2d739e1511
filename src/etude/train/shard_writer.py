"""Writes checkpoints in shards while training goes on: a copy in the host's memory, then a thread.

Each rank copies its shards, which takes as long as memory needs; a thread writes, hashes and renames them
(train/sharded_checkpoint.py), with collectives of a process group of its own, so that those of training do not wait.
One checkpoint is written at a time: the next waits for it. An error of the thread is raised at the next step, on
all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any  # the values of JSON

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from etude.train import checkpoint, sharded_checkpoint
from etude.train.parallel import COLLECTIVE_LIMIT, Ranks
from etude.train.sharded_checkpoint import Groups


class ShardWriter:
    """The checkpoints of one run; all ranks call the same methods in the same order."""

    def __init__(self, folder: Path, keep: int, ranks: Ranks, every: int | None = None) -> None:
        """`keep` so many checkpoints beside the best; `every` so many steps one is due."""
        self.folder, self.keep, self.ranks, self.every = folder, keep, ranks, every
        self.group = dist.new_group(backend="gloo", timeout=COLLECTIVE_LIMIT)
        self.thread: threading.Thread | None = None
        self.error: Exception | None = None

    def save(self, step: int, groups: Groups, whole: Groups, state: Mapping[str, Any]) -> None:
        """Copy everything, and begin to write it once the checkpoint before is written."""
        self.wait()
        copies = {name: copy_to_host(tensors) for name, tensors in groups.items()}
        whole_copies = {name: copy_to_host(tensors) for name, tensors in whole.items()}
        state_copy = deepcopy(dict(state))  # the next step adds to its counts
        # a daemon: a process that ends because another is lost must not wait for what it wrote with it
        self.thread = threading.Thread(
            target=self._write, args=(step, copies, whole_copies, state_copy), daemon=True, name="etude-checkpoint"
        )
        self.thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written; raise what went wrong."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.raise_error()

    def raise_error(self) -> None:
        """Raise what went wrong in the thread, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _write(self, step: int, groups: Groups, whole: Groups, state: Mapping[str, Any]) -> None:
        try:
            sharded_checkpoint.save(self.folder, step, groups, whole, state, self.ranks, self.group)
            if self.ranks.is_first:
                checkpoint.prune(self.folder, self.keep, state["best_step"], self.every)
        except Exception as error:
            self.error = error


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the host's memory; of a tensor in shards, this rank's, which still knows its place."""
    copies: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if isinstance(tensor, DTensor):
                # not `from_local`: it would move the copy to the device of the mesh again
                share = tensor.to_local().detach().to("cpu", copy=True)
                copies[name] = DTensor(share, tensor._spec, requires_grad=False)
            else:
                copies[name] = tensor.detach().to("cpu", copy=True)
    return copies
