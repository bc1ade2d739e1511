"""One step of training: the gradients of all its micro-batches, clipping, and an update of the weights.

Each step is a pure function of (weights, optimiser state, seed, step): rows come from the loader, masks and samples
from hashes, dropout from a generator seeded by (seed, step, micro-batch). On a GPU whole steps are recorded as CUDA
graphs where that is possible (train/recorded_step.py). When steps are taken, logged and saved is train/loop.py.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from etude.chance import fold
from etude.errors import UserError
from etude.models.base import Model
from etude.nn.attention.dispatch import load_kernels
from etude.nn.cuda_graphs import CudaGraphs
from etude.nn.deferred_weights import DeferredWeights
from etude.objectives.base import Batch, Objective, Rows
from etude.train import compilation, failures, malloc, memory, optim, peak, recomputation, schedule
from etude.train.learner import Learner, total_loss
from etude.train.loader import Loader, Step
from etude.train.parallel import Ranks
from etude.train.progress import Progress
from etude.train.recorded_step import StepRecorder
from etude.train.settings import Settings
from etude.train.strategy import (
    Strategy,
    available_memory,
    choose_strategy,
    gathered_bytes,
    gathers_model,
    refuse_sharding,
)
from etude.train.workers import default_workers


class Stepper:
    """Takes the steps of a run; holds the learner, the optimiser, the loader and what is recorded."""

    shards_weights = True  # whether several processes may hold shards of the model (train/sharding.py)
    records_steps = True  # whether whole steps become CUDA graphs on a GPU, where that is possible

    def __init__(
        self,
        model: Model,
        objective: Objective,
        rows: Rows,
        settings: Settings,
        *,
        total: int,
        device: torch.device,
        ranks: Ranks,
        progress: Progress,
        depth_of: Callable[[str], int | None] | None,
        deferred: DeferredWeights | None = None,
    ) -> None:
        """`total` is the number of steps, `depth_of` gives the depth of a parameter for `train.layer_decay`.

        `deferred` fills a model and an objective that were built on the meta device, once they are divided.
        """
        self.model, self.objective, self.rows = model, objective, rows
        if settings.precision == "auto" and device.type == "cuda":  # on a CPU "auto" is measured, before a run
            settings = settings.model_copy(update={"precision": peak.resolve_precision("auto", device)})
        self.settings, self.total = settings, total
        self.device, self.ranks, self.progress = device, ranks, progress
        if self.device.type == "cpu":
            malloc.keep_freed_memory()
        if self.ranks.size > 1 and objective.updates_itself:
            raise UserError("This objective updates its model in place: train it in one process, without torchrun.")
        if uneven := schedule.find_uneven_batch(settings, rows.row_tokens, ranks.size):
            raise UserError(uneven)
        self.learner = Learner(model, objective)
        self.layers = recomputation.list_layers([model, *objective.trunks()])
        recomputation.set_recompute([model, *objective.trunks()], settings.recompute)
        self.strategy = self._choose_strategy()
        if self.strategy.is_sharded:
            self._shard(deferred)
        else:
            if deferred is not None:
                deferred.fill(self.learner.to_empty(device="cpu"))
            self.learner.to(self.device)
        self.named = [(name, p) for name, p in self.learner.named_parameters() if p.requires_grad]
        self.optimizer = None if objective.updates_itself else self._build_optimizer(depth_of)
        default = self.device.type == "cuda" and not model.is_stepwise
        self.compiled = default if settings.compile is None else settings.compile
        self.recorder = self._build_recorder()
        if self.compiled:
            load_kernels(self.device)
            self._compile_trunks(cuda_graphs=self.recorder is None and self._can_use_cuda_graphs())
        self.parallel: nn.Module = self.learner
        if self.strategy.mode == "ddp":
            self.parallel = DistributedDataParallel(self.learner, find_unused_parameters=True)
        self.loader = Loader(
            objective,
            rows,
            seed=settings.seed,
            sizes=schedule.batch_sizes(settings, rows.row_tokens),
            batch_rows=lambda step: schedule.batch_rows(settings, rows.row_tokens, step),
            rows_before=lambda step: schedule.rows_before(settings, rows.row_tokens, step),
            micro_tokens=settings.micro_tokens,
            rank=self.ranks.rank,
            ranks=self.ranks.size,
            workers=self._default_workers() if settings.workers is None else settings.workers,
            processes=self.device.type == "cuda",
            pin=self.device.type == "cuda",
            pad=self._pads_batches(),
        )
        self.bad_step: tuple[Tensor, Tensor] | None = None  # on the device: was there a non-finite step, and the first

    # --- how steps are taken ------------------------------------------------------------------------

    def _choose_strategy(self) -> Strategy:
        """Choose how processes share memory, and report the reason."""
        settings = self.settings
        if not self.shards_weights:
            refuse_sharding(settings, "this training")
            return Strategy("ddp" if self.ranks.size > 1 else "single")
        needs = memory.estimate(
            settings,
            self.learner.named_parameters(),
            micro_tokens=settings.micro_tokens or settings.batch_tokens // self.ranks.size,
            precision=peak.resolve_precision(settings.precision, self.device),
            model=self.model,
            other_models=self.objective.trunks(),
            device=self.device.type,
        )
        available = available_memory(self.device, self.ranks)
        strategy = choose_strategy(settings, self.ranks, needs, available)
        if strategy.reason:
            self.progress.print(f"train.parallel={strategy.mode}: {strategy.reason}")
        if not strategy.is_sharded:
            return strategy
        shards = self.ranks.size if strategy.mode == "fsdp" else settings.shard_ranks or self.ranks.local_size
        is_whole = gathers_model(settings.gather, needs, available, shards <= self.ranks.local_size)
        is_whole = not self.ranks.any(not is_whole)  # all must do the same, also where their memory differs
        if settings.gather == "auto":
            size = f"{gathered_bytes(needs) / 1e9:.2f} GB"
            choice = f"model: once a step, with {size}" if is_whole else f"layer: the whole model would take {size}"
            self.progress.print(f"train.gather={choice}")
        return replace(strategy, gathers_model=is_whole)

    def _shard(self, deferred: DeferredWeights | None) -> None:
        from etude.train import sharding  # torch's machinery takes a second to load

        is_hybrid = self.strategy.mode == "hybrid"
        self.mesh = sharding.build_mesh(self.ranks, self.device, is_hybrid, self.settings.shard_ranks)
        layers = [] if self.strategy.gathers_model else self.layers
        sharding.shard(self.learner, layers, self.mesh, self.settings, methods=["metrics"])
        if deferred is not None:
            deferred.fill(self.learner.to_empty(device=self.device), sharding.find_share)

    def _build_optimizer(self, depth_of: Callable[[str], int | None] | None) -> torch.optim.Optimizer:
        if not self.strategy.is_sharded:
            return optim.build(self.settings, self.named, depth_of)
        from etude.train.sharding import MatrixExchange

        return optim.build(self.settings, self.named, depth_of, MatrixExchange(self.mesh))

    def _can_use_cuda_graphs(self) -> bool:
        """Whether kernels can be recorded once and replayed (CUDA graphs).

        Launching a small kernel takes the host longer than the GPU needs to run it. Gradients stay in memory of the
        recording until the step is over, so all steps must have one size and one micro-batch.
        """
        if (
            self.device.type != "cuda"
            or self.rows.row_tokens is None
            or self.strategy.mode != "single"
            or self.settings.recompute != "none"
            or self.objective.state() is not None
        ):
            return False
        sizes = schedule.batch_sizes(self.settings, self.rows.row_tokens)
        return len(sizes) == 1 and not self._has_micro_batches()

    def _has_micro_batches(self) -> bool:
        """Whether the steps of pre-training are divided into several micro-batches."""
        settings, row_tokens = self.settings, self.rows.row_tokens
        if row_tokens is None or settings.micro_tokens is None:
            return False
        return schedule.batch_sizes(settings, row_tokens)[0] * row_tokens > settings.micro_tokens

    def _pads_batches(self) -> bool:
        """Whether batches get static shapes: labelled examples to be recorded, pairs to be compiled."""
        if self.rows.row_tokens is None:
            return self.recorder is not None
        return self.objective.pads_batches and (self.compiled or self.recorder is not None)

    def _build_recorder(self) -> StepRecorder | None:
        """Return what records whole steps on a GPU (train/recorded_step.py), or None where no step can be recorded."""
        if self.device.type != "cuda" or self.optimizer is None or not self.records_steps:
            return None
        # train.compile=false is how it is turned off in pre-training; labelled examples are never compiled
        if not self.compiled and self.rows.row_tokens is not None and not self.model.is_stepwise:
            return None
        obstacle = None
        if self.strategy.mode != "single":
            obstacle = "several processes exchange gradients"
        elif self.settings.recompute != "none":
            obstacle = "activations are computed again (train.recompute)"
        elif self.objective.state() is not None:
            obstacle = "the objective carries states from step to step"
        elif self.rows.row_tokens is None and not self.objective.pads_batches:
            obstacle = "batches of this task have as many tokens as their examples"
        elif self._has_micro_batches():
            obstacle = "a step has several micro-batches (train.micro_tokens)"
        elif not optim.supports_recording(self.optimizer):
            obstacle = f"train.optimizer={self.settings.optimizer} reads its learning rate on the host"
        if obstacle:
            self.progress.print(f"steps are not recorded as CUDA graphs: {obstacle}")
            return None
        loop = weakref.proxy(self)  # a cycle would keep the memory of recordings until garbage is collected
        return StepRecorder(
            lambda batch, totals, number: loop._take_step(batch, totals, number),
            self.optimizer,
            self.device,
            CudaGraphs(self.device),
            report=self.progress.print,
        )

    def _compile_trunks(self, cuda_graphs: bool) -> None:
        """Compile the models; shapes are static, so each is compiled once."""
        compilation.raise_version_limit()
        if self.strategy.is_sharded and not self.strategy.gathers_model:  # weights are gathered between the graphs
            compilation.compile_forwards((m for layer in self.layers for m in layer), self.device)
            return
        for trunk in (self.model, *self.objective.trunks()):
            trunk.compile(dynamic=False, options=compilation.compile_options(self.device, cuda_graphs))

    def _default_workers(self) -> int:
        """Return the number of workers: one thread on a CPU, some processes for a GPU."""
        return default_workers(self.ranks.local_size) if self.device.type == "cuda" else 1

    # --- a step -------------------------------------------------------------------------------------

    def _optimize(self, step: Step, totals: dict[str, float], lr: float) -> dict[str, Tensor]:
        """Compute gradients, clip them and take an optimiser step; return sums of loss terms and the gradient norm."""
        assert self.optimizer is not None
        if self.recorder is not None and not self.recorder.has_obstacle() and len(step.batches) == 1:
            self._seed_dropout(step.number, step.batches[0])
            recorded = self.recorder.run(step.batches[0], totals, lr, step.number)
            if recorded is not None:
                return recorded
            if self.recorder.has_obstacle() and self.compiled and self._can_use_cuda_graphs():
                self._compile_trunks(cuda_graphs=True)
        optim.set_lr(self.optimizer, lr)
        sums = self._backward(step, totals)
        return sums | {"norm ": self._update_weights(step.number)}

    def _take_step(self, batch: Batch, totals: Mapping[str, Tensor], number: Tensor) -> dict[str, Tensor]:
        """Take a step of one micro-batch, with all that it reads on the device: this is what can be recorded."""
        sums = self._backward_batch(batch, totals)
        return sums | {"norm ": self._update_weights(number)}

    def _backward(self, step: Step, totals: dict[str, float]) -> dict[str, Tensor]:
        """Accumulate gradients of the whole step; return this rank's sums of each loss term and of the loss."""
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(step.batches):
            is_last = number == len(step.batches) - 1
            self._seed_dropout(step.number, batch)
            if self.compiled and self.device.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            for name, value in self._backward_batch(self._to_device(batch), totals, is_last).items():
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value
        return sums

    def _backward_batch(
        self, batch: Batch, totals: Mapping[str, float | Tensor], is_last: bool = True
    ) -> dict[str, Tensor]:
        """Accumulate gradients of one micro-batch; return its sum of each loss term and of the loss."""
        with self._no_sync(is_last), self.autocast():
            terms = self.parallel(batch)
            loss = total_loss(terms, totals)
        # DDP averages over ranks, and the loss is a sum
        (loss * self.ranks.size).backward()
        return {name: term.sum.detach() for name, term in terms.items()} | {"loss ": loss.detach()}

    def _update_weights(self, number: int | Tensor) -> Tensor:
        """Clip the gradients and take an optimiser step; return the norm before clipping."""
        assert self.optimizer is not None
        if self.strategy.is_sharded and all(p.grad is None for _, p in self.named):
            raise RuntimeError("no gradient of this step has been reduced")  # FSDP2 has not seen the backward pass
        norm = optim.clip_gradients([p for _, p in self.named], self.settings.clip, self.optimizer)
        self._skip_if_nonfinite(norm, number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.detach()

    def _seed_dropout(self, number: int, batch: Batch) -> None:
        """Seed what dropout draws from; torch.manual_seed formats a stack trace for every other kind of device."""
        seed = fold(self.settings.seed, number, int(batch.slots[0]), "dropout") >> 1
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            index = torch.cuda.current_device() if self.device.index is None else self.device.index
            torch.cuda.default_generators[index].manual_seed(seed)

    def _to_device(self, batch: Batch) -> Batch:
        """Move a batch to the device; a CPU without compilation drops the padding that keeps shapes static."""
        return batch.compact() if self.device.type == "cpu" and not self.compiled else batch.to(self.device)

    def _skip_if_nonfinite(self, norm: Tensor, step: int | Tensor) -> None:
        """Keep non-finite gradients away from the weights, without synchronising with a GPU.

        An optimiser that supports it skips its update while `found_inf` is 1. From the first non-finite step on it
        stays 1, so the weights are those before that step when `_raise_if_nonfinite` looks, a few steps later.
        """
        if self.device.type == "cuda" and getattr(self.optimizer, "_step_supports_amp_scaling", False):
            is_bad = (~torch.isfinite(norm)).float()
            if self.bad_step is None:
                self.bad_step = torch.zeros_like(is_bad), torch.full_like(is_bad, -1, dtype=torch.int64)
            was_bad, first = self.bad_step  # updated in place: a recorded step knows them by their addresses
            first.copy_(torch.where((is_bad > 0) & (was_bad == 0), step, first))
            was_bad.copy_(torch.maximum(is_bad, was_bad))
            self.optimizer.found_inf = was_bad  # type: ignore[union-attr]
        elif not bool(torch.isfinite(norm)):
            self._raise_nonfinite(int(step))

    def _raise_if_nonfinite(self) -> None:
        """Raise an error if a gradient was not finite since the last call; synchronises with the GPU."""
        if self.bad_step and float(self.bad_step[0]):
            self._raise_nonfinite(int(self.bad_step[1]))

    def _raise_nonfinite(self, number: int) -> None:
        """Run the step again, as its number determines it, and raise an error that names the non-finite tensor."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        step = self.loader.step(number)
        totals = self.ranks.sum({name: float(count) for name, count in step.counts.items()})
        tensor = failures.find_first_nonfinite(self.learner, lambda: self._backward(step, totals))
        lr = schedule.compute_lr(self.settings, number, self.total, self.rows.row_tokens)
        raise failures.nonfinite_error(tensor, number + 1, lr)

    def _update_in_place(self, step: Step, totals: dict[str, float], lr: float) -> dict[str, Tensor]:
        """Let the objective update the model itself (word vectors): no gradients, no optimiser."""
        sums: dict[str, Tensor] = {}
        for batch in step.batches:
            for name, term in self.objective.update(self.model, batch.to(self.device), lr).items():
                sums[name] = sums[name] + term.sum if name in sums else term.sum.double()
        loss = sum((value / max(1.0, totals[name]) for name, value in sums.items()), torch.zeros(()))
        return sums | {"loss ": loss}

    # --- contexts -----------------------------------------------------------------------------------

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return the context of `train.precision`."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _no_sync(self, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Leave the all-reduce of gradients to the last micro-batch."""
        if isinstance(self.parallel, DistributedDataParallel) and not is_last:
            return self.parallel.no_sync()
        if self.strategy.mode == "hybrid" or self.strategy.gathers_model:
            from etude.train import sharding

            sharding.reduce_with_last(self.learner, is_last, self.strategy.gathers_model)
        return contextlib.nullcontext()
