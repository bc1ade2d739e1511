"""The training loop of pre-training, fine-tuning and distillation.

Each step is a pure function of (weights, optimiser state, seed, step): rows come from the loader, masks and samples
from hashes, dropout from a generator seeded by (seed, step, micro-batch). A checkpoint therefore holds weights,
optimiser state and a few numbers, and N steps equal any split of N by kill and resume, bit for bit.

Losses are sums; their counts are known on the host before the backward pass and are added up over all micro-batches and
ranks first, so neither accumulation nor the number of processes changes the gradient.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any  # the values of JSON

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from etude.chance import fold
from etude.errors import UserError
from etude.models.base import Model
from etude.nn.attention.dispatch import load_kernels
from etude.nn.fusion import disable_fusion
from etude.objectives.base import Batch, Objective, Rows, Stat, Term
from etude.train import (
    checkpoint,
    compilation,
    evaluation,
    failures,
    malloc,
    memory,
    optim,
    peak,
    recomputation,
    schedule,
)
from etude.train.cpu_state import onednn_enabled
from etude.train.loader import Loader, Step
from etude.train.metrics_log import MetricsLog, Value
from etude.train.pace import Pace
from etude.train.padding import pad_batch
from etude.train.parallel import Ranks
from etude.train.progress import Progress
from etude.train.recorded_step import CudaGraphs, StepRecorder
from etude.train.run_state import SelectionMetric, TrainResult, TrainState
from etude.train.saver import Saver
from etude.train.settings import Settings
from etude.train.strategy import Strategy, available_memory, choose_strategy, refuse_sharding
from etude.train.workers import default_workers


class Learner(nn.Module):
    """Model and objective as one module, so that one wrapper (DDP) sees every parameter."""

    def __init__(self, model: Model, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Batch) -> dict[str, Term]:
        return self.objective.loss(self.model, batch)

    def metrics(self, batch: Batch) -> dict[str, Stat]:
        return self.objective.metrics(self.model, batch)


class Loop:
    """Trains a model on an objective's rows, evaluates, logs and saves; `total` is the number of steps."""

    shards_weights = True  # whether several processes may hold shards of the model (train/sharding.py)
    records_steps = True  # whether whole steps become CUDA graphs on a GPU, where that is possible

    def __init__(
        self,
        folder: Path,
        model: Model,
        objective: Objective,
        rows: Rows,
        settings: Settings,
        *,
        total: int,
        valid_rows: Rows | None = None,
        tokens_per_byte: float | None = None,
        device: torch.device | None = None,
        ranks: Ranks | None = None,
        progress: Progress | None = None,
        depth_of: Callable[[str], int | None] | None = None,
        selection_metric: SelectionMetric | None = None,
    ) -> None:
        self.selection_metric = selection_metric
        self.folder, self.settings, self.total = folder, settings, total
        self.device, self.ranks = device or torch.device("cpu"), ranks or Ranks()
        if self.device.type == "cpu":
            malloc.keep_freed_memory()
        self.progress = progress or Progress(total, quiet=True)
        self.objective, self.model = objective, model
        self.rows, self.valid_rows, self.tokens_per_byte = rows, valid_rows, tokens_per_byte
        if self.ranks.size > 1 and objective.updates_itself:
            raise UserError(f"{type(objective).__name__} updates its model in place: run it in one process.")
        self.learner = Learner(model, objective)
        self.layers = recomputation.list_layers([model, *objective.trunks()])
        recomputation.set_recompute([model, *objective.trunks()], settings.recompute)
        self.strategy = self._choose_strategy()
        if self.strategy.is_sharded:
            self._shard()
        else:
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
        self.state = TrainState()
        self.running: dict[str, Tensor] = {}  # sums of the loss terms since the last line of the log, on the device
        self.bad_step: tuple[Tensor, Tensor] | None = None  # on the device: was there a non-finite step, and the first
        self.valid: dict[str, float] = {}  # the last evaluation
        tensorboard = folder / "tensorboard" if settings.tensorboard else None
        self.log = MetricsLog(folder / "metrics.jsonl", tensorboard) if self.ranks.is_first else None
        self.interrupted = False
        self.deadline: float | None = None  # of time.monotonic: training stops then as on SIGTERM
        self.pace: Pace | None = None  # shortens a run that would not end in time, and its schedule with it
        self.saver = Saver(folder / "checkpoints", settings.save_every, settings.keep)
        self.started = time.perf_counter()

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
        available = available_memory(self.device, self.ranks) if self.ranks.size > 1 else None
        strategy = choose_strategy(settings, self.ranks, needs, available)
        if strategy.reason:
            self.progress.print(f"train.parallel={strategy.mode}: {strategy.reason}")
        return strategy

    def _shard(self) -> None:
        from etude.train import sharding  # torch's machinery takes a second to load

        is_hybrid = self.strategy.mode == "hybrid"
        self.mesh = sharding.build_mesh(self.ranks, self.device, is_hybrid, self.settings.shard_ranks)
        sharding.shard(self.learner, self.layers, self.mesh, self.settings, methods=["metrics"])

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
        if self.strategy.is_sharded:  # layer by layer: weights are gathered between the graphs
            compilation.compile_forwards((m for layer in self.layers for m in layer), self.device)
            return
        for trunk in (self.model, *self.objective.trunks()):
            trunk.compile(dynamic=False, options=compilation.compile_options(self.device, cuda_graphs))

    # --- the loop -----------------------------------------------------------------------------------

    def _default_workers(self) -> int:
        """Return the number of workers: one thread on a CPU, some processes for a GPU."""
        return default_workers(self.ranks.local_size) if self.device.type == "cuda" else 1

    def run(self) -> TrainResult:
        """Train to the last step, or until a signal or the deadline, which leave a checkpoint behind."""
        self.restore()
        self.progress.set_phase("compiling…" if self.compiled else "first step…", step=self.state.step)
        self.started = time.perf_counter() - self.state.seconds
        loaded = self.loader.steps(self.state.step, self.total)
        with (
            onednn_enabled(),
            disable_fusion(not self.compiled),
            self._handle_signals(),
            contextlib.closing(
                compilation.report_first_step(loaded, self.progress) if self.compiled else loaded
            ) as steps,
        ):
            while True:
                stop = self.ranks.any(self._must_stop())
                if not stop and self._is_due(self.settings.eval_every) and self.state.evaluated != self.state.step:
                    self.evaluate()
                    stop = self.ranks.any(self._must_stop())
                done = self.state.step >= self.total or self._is_stale()
                if stop or self._must_save(done):
                    self.save()
                if stop or done:
                    return TrainResult(self.state, not stop, self.valid)
                self._advance_or_explain(next(steps))

    def _is_due(self, every: int | None) -> bool:
        step = self.state.step
        return step == self.total or (step > 0 and bool(every) and step % (every or 1) == 0)

    def _must_save(self, finished: bool) -> bool:
        """Whether a checkpoint is due; all ranks agree, whose clocks do not."""
        due = self.saver.is_due(self.state, finished)
        return due if self.saver.timer is None else self.ranks.any(due)

    def _must_stop(self) -> bool:
        """Whether a signal arrived, or the deadline has passed while steps are left."""
        late = self.deadline is not None and time.monotonic() > self.deadline and self.state.step < self.total
        self.interrupted = self.interrupted or late
        return self.interrupted

    def _is_stale(self) -> bool:
        """Whether to stop early: no improvement for `train.patience` evaluations."""
        return self.settings.patience is not None and self.state.stale >= self.settings.patience

    def _advance_or_explain(self, step: Step) -> None:
        """Take a step; where memory runs out, say which settings need less."""
        try:
            self.advance(step)
        except (RuntimeError, MemoryError) as error:
            if not failures.is_memory_error(error):
                raise
            layers = self.model.layers or None
            message = memory.suggest_settings(self.settings, self.rows.row_tokens, self.device.type, layers=layers)
            raise UserError(message) from error

    def advance(self, step: Step) -> None:
        """Make one update from all micro-batches of a step."""
        lr = schedule.compute_lr(self.settings, step.number, self.total)
        counts = {name: float(count) for name, count in step.counts.items()}
        flops = sum(self.objective.flops(self.model, batch) for batch in step.batches)
        # names with a space cannot be those of loss terms
        totals = self.ranks.sum(counts | {"tokens ": float(step.tokens), "flops ": float(flops)})
        tokens, flops = int(totals.pop("tokens ")), int(totals.pop("flops "))

        self.learner.train()
        sums = self._optimize(step, totals, lr) if self.optimizer else self._update_in_place(step, totals, lr)
        state = self.state
        state.step, state.window = step.number + 1, state.window + 1
        state.tokens, state.flops = state.tokens + tokens, state.flops + flops
        state.seconds = time.perf_counter() - self.started
        for name, value in sums.items():  # stays on the device: no synchronisation here
            running = self.running.get(name)
            # a copy: the next replay of a recorded step writes over its results
            self.running[name] = value.to(torch.float64, copy=True) if running is None else running + value
        for name, count in totals.items():
            state.counts[name] = state.counts.get(name, 0.0) + count
        if state.step % self.settings.log_every == 0 or state.step == self.total:
            self._log_train(lr)
            if self.pace is not None:  # here, because the log has waited for the device
                self.total = self.pace.limit_steps(state.step, time.monotonic())
        self.progress.update(state.step, state.tokens, state.flops, state.seconds)

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
        raise failures.nonfinite_error(tensor, number + 1, schedule.compute_lr(self.settings, number, self.total))

    def _update_in_place(self, step: Step, totals: dict[str, float], lr: float) -> dict[str, Tensor]:
        """Let the objective update the model itself (word vectors): no gradients, no optimiser."""
        sums: dict[str, Tensor] = {}
        for batch in step.batches:
            for name, term in self.objective.update(self.model, batch.to(self.device), lr).items():
                sums[name] = sums[name] + term.sum if name in sums else term.sum.double()
        loss = sum((value / max(1.0, totals[name]) for name, value in sums.items()), torch.zeros(()))
        return sums | {"loss ": loss}

    # --- evaluation ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics on the held-out rows, with the same masks every time; training is not affected."""
        if self.valid_rows is None:
            return {}
        carried = self.objective.state()  # of training, put back below
        self.progress.set_phase("evaluating…")
        stats: dict[str, Stat] = {}
        self.learner.eval()
        with torch.no_grad(), self.autocast():
            lanes = min(self.loader.batch_rows(0), len(self.valid_rows))
            batches = evaluation.build_batches(self.objective, self.valid_rows, self.settings, self.ranks, lanes)
            counted = (
                evaluation.in_lockstep(batches, self.objective, self.valid_rows, self.settings, self.ranks)
                if self.strategy.is_sharded
                else ((batch, True) for batch in batches)
            )
            for batch, counts in counted:
                if self.compiled and self.objective.pads_batches:  # each other shape would be compiled
                    batch = pad_batch(batch)
                for name, stat in self.learner.metrics(batch.to(self.device)).items():
                    stat = stat if counts else Stat(0.0, 0, stat.weight)
                    stats[name] = stats[name] + stat if name in stats else stat
                if self._must_stop() and self.ranks.size == 1:
                    break
            values = evaluation.average(stats, self.ranks)
            nats = self.objective.nats_per_token
            if nats and self.tokens_per_byte:
                values["bits_per_byte"] = values[nats] * self.tokens_per_byte / math.log(2)
            if (
                self.selection_metric
                and self.selection_metric.name not in values
                and not (self.interrupted and self.ranks.size == 1)
            ):
                values |= self.selection_metric.scores()
        self.learner.train()
        self.progress.set_phase(None)
        if carried is not None:
            self.objective.set_lanes(self.loader.batch_rows(0))
            self.objective.restore(carried)
        if self.interrupted and self.ranks.size == 1:
            return {}  # incomplete: evaluation is repeated after the resume
        self.valid = values
        self._update_best()
        return self.valid

    def _update_best(self) -> None:
        """Record whether this evaluation is the best so far, and log it."""
        state = self.state
        state.evaluated = state.step
        value = self.valid["loss"] if self.selection_metric is None else -self.valid[self.selection_metric.name]
        if value < state.best:
            state.best, state.best_step, state.stale = value, state.step, 0
            self.saver.hold_best(state.step, self.learner.state_dict())
        else:
            state.stale += 1
        state.seconds = time.perf_counter() - self.started
        if self.log:
            self.log.write(self._position() | {"split": "valid"} | self.valid)
        self.progress.show_metrics("valid", self.valid)

    # --- the log ------------------------------------------------------------------------------------

    def _position(self) -> dict[str, Value]:
        """Return the columns that every line of the log has."""
        state = self.state
        return {"step": state.step, "tokens": state.tokens, "flops": state.flops, "seconds": round(state.seconds, 3)}

    def _sums(self) -> dict[str, float]:
        """Return the running sums of all ranks on the host (the one place that synchronises with a GPU)."""
        return self.ranks.sum({name: float(value) for name, value in self.running.items()})

    def _log_train(self, lr: float) -> None:
        """Log the mean loss since the last line, and start new sums."""
        self._raise_if_nonfinite()
        state, sums = self.state, self._sums()
        loss = sums.pop("loss ") / state.window
        norm = sums.pop("norm ", None)
        line = self._position() | {"split": "train", "loss": loss, "rate": lr}
        if len(sums) > 1:
            line |= {name: value / max(1.0, state.counts[name]) for name, value in sums.items()}
        if norm is not None:
            line["norm"] = norm / state.window / self.ranks.size  # the same on every rank
        if self.log:
            self.log.write(line)
        self.progress.show_metrics("train", {"loss": loss})
        self.running, state.counts, state.window = {}, {}, 0

    # --- checkpoints --------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.saver.saved_step == self.state.step and self.state.step > 0:
            return
        self._raise_if_nonfinite()
        self.state.sums = self._sums()
        carried, groups = self._gather_carried(), self._tensors()
        whole = {"carried": carried} if carried else {}
        state = vars(self.state) | {"metrics_bytes": self.log.position() if self.log else 0, "valid": self.valid}
        if self.strategy.is_sharded:
            from etude.train import sharded_checkpoint

            sharded_checkpoint.save(self.saver.folder, self.state.step, groups, whole, state, self.ranks)
            if self.ranks.is_first:
                checkpoint.prune(self.saver.folder, self.settings.keep, self.state.best_step)
        elif self.ranks.is_first:
            self.saver.write(groups | whole, state)
        self.saver.saved_step = self.state.step
        self.ranks.barrier()

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return weights and optimiser state, by reference; in shards where the learner is."""
        groups = {"weights": dict(self.learner.state_dict())}
        if self.optimizer:
            groups["optimizer"] = optim.state_tensors(self.optimizer, self.named)
        return groups

    def _gather_carried(self) -> dict[str, Tensor] | None:
        """Return the states that the objective carries from step to step, those of all ranks' lanes."""
        state = self.objective.state()
        if state is None or self.ranks.size == 1:
            return state
        share = self.loader.batch_rows(0) // self.ranks.size
        mine = slice(self.ranks.rank * share, (self.ranks.rank + 1) * share)
        return {name: self.ranks.gather(tensor[mine]) for name, tensor in state.items()}

    def restore(self) -> None:
        """Load the last complete checkpoint, if there is one, and truncate the log to its length."""
        if self.ranks.is_first:
            checkpoint.remove_leftovers(self.saver.folder)
        last = self._load_last()
        if last is None:
            if self.log:
                self.log.truncate(0)
            return
        groups, state = last
        if "carried" in groups:
            self.objective.restore({name: tensor.to(self.device) for name, tensor in groups["carried"].items()})
        position, self.valid = state.pop("metrics_bytes"), state.pop("valid")
        self.state = TrainState(**state)
        # the sums of all ranks were saved: the first rank continues them, the others start at 0
        sums = {name: value if self.ranks.is_first else 0.0 for name, value in self.state.sums.items()}
        self.running = {n: torch.tensor(v, dtype=torch.float64, device=self.device) for n, v in sums.items()}
        if self.log:
            self.log.truncate(position)

    def _load_last(self) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]] | None:
        """Load weights and optimiser state of the last checkpoint; return its other tensors and its state."""
        steps = checkpoint.list_steps(self.saver.folder)
        if self.strategy.is_sharded and steps:
            from etude.train import sharded_checkpoint

            if sharded_checkpoint.is_sharded(self.saver.folder, steps[-1]):
                self.saver.saved_step = steps[-1]
                return sharded_checkpoint.load(self.saver.folder, steps[-1], self._tensors(), self.ranks)
        last = self.saver.read()
        if last is not None:
            self._load_tensors(last[0], f"checkpoint {last[1]['step']}")
        return last

    def _load_tensors(self, groups: dict[str, dict[str, Tensor]], source: str) -> None:
        """Load whole weights and optimiser state, into shards where the learner has them."""
        place: Callable[[Tensor, Tensor], Tensor] | None = None
        if self.strategy.is_sharded:
            from etude.train.sharding import distribute_like as place
        checkpoint.load_strictly(self.learner, groups["weights"], source, place)
        if self.optimizer:
            optim.load_state_tensors(self.optimizer, self.named, groups["optimizer"], place)

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
        if self.strategy.mode == "hybrid":
            from etude.train import sharding

            sharding.reduce_copies(self.learner, is_last)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Stop with a checkpoint after the current step on SIGTERM and Ctrl-C; a second Ctrl-C interrupts as usual."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, _frame: FrameType | None) -> None:
            self.interrupted = True
            signal.signal(number, previous[number])

        previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {
            number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def total_loss(terms: dict[str, Term], totals: Mapping[str, float | Tensor]) -> Tensor:
    """Return Σ weight · sum / count, with the counts of the whole step."""
    parts = [term.weight * term.sum / _at_least_one(totals[name]) for name, term in terms.items()]
    return torch.stack([part.float() for part in parts]).sum()


def _at_least_one(total: float | Tensor) -> float | Tensor:
    """A term without a single label is 0, and stays 0."""
    return total.clamp(min=1.0) if isinstance(total, Tensor) else max(1.0, total)
