"""The training loop of pre-training, fine-tuning and distillation.

When steps are taken, logged, evaluated and saved, and when they end; a step itself is train/stepper.py. Steps are pure
functions of (weights, optimiser state, seed, step), so a checkpoint holds weights, optimiser state and a few numbers,
and N steps equal any split of N by kill and resume, bit for bit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any  # the values of JSON

import torch
from torch import Tensor

from etude.errors import UserError
from etude.models.base import Model
from etude.nn.deferred_weights import DeferredWeights
from etude.nn.fusion import disable_fusion
from etude.objectives.base import Objective, Rows, Stat
from etude.train import checkpoint, compilation, evaluation, failures, memory, optim, schedule
from etude.train.cpu_state import onednn_enabled
from etude.train.loader import Step
from etude.train.metrics_log import MetricsLog, Value
from etude.train.pace import Pace
from etude.train.padding import pad_batch
from etude.train.parallel import Ranks
from etude.train.plateau import Plateau
from etude.train.progress import Progress
from etude.train.run_state import SelectionMetric, TrainResult, TrainState
from etude.train.saver import Saver
from etude.train.settings import Settings
from etude.train.signals import handle_signals
from etude.train.stepper import Stepper

if TYPE_CHECKING:
    from etude.train.shard_writer import ShardWriter


class Loop(Stepper):
    """Trains a model on an objective's rows, evaluates, logs and saves; `total` is the number of steps."""

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
        deferred: DeferredWeights | None = None,
    ) -> None:
        super().__init__(
            model,
            objective,
            rows,
            settings,
            total=total,
            device=device or torch.device("cpu"),
            ranks=ranks or Ranks(),
            progress=progress or Progress(total, quiet=True),
            depth_of=depth_of,
            deferred=deferred,
        )
        if settings.batch_ramp is not None and rows.row_tokens is not None:  # later steps take longer
            self.progress.total_tokens = schedule.rows_before(settings, rows.row_tokens, total) * rows.row_tokens
        self.folder, self.selection_metric = folder, selection_metric
        self.valid_rows, self.tokens_per_byte = valid_rows, tokens_per_byte
        self.state = TrainState()
        self.running: dict[str, Tensor] = {}  # sums of the loss terms since the last line of the log, on the device
        self.valid: dict[str, float] = {}  # the last evaluation
        tensorboard = folder / "tensorboard" if settings.tensorboard else None
        self.log = MetricsLog(folder / "metrics.jsonl", tensorboard) if self.ranks.is_first else None
        self.interrupted = False
        self.deadline: float | None = None  # of time.monotonic: training stops then as on SIGTERM
        self.plateau: Plateau | None = None  # warns of a loss that does not fall below the entropy of tokens
        self.pace: Pace | None = None  # shortens a run that would not end in time, and its schedule with it
        self.saver = Saver(folder / "checkpoints", settings.save_every, settings.keep)
        self.writer: ShardWriter | None = None  # of a run in shards, from its first checkpoint on
        self.started = time.perf_counter()

    # --- the loop -----------------------------------------------------------------------------------

    def run(self) -> TrainResult:
        """Train to the last step, or until a signal or the deadline, which leave a checkpoint behind."""
        self.restore()
        self.progress.set_phase("compiling…" if self.compiled else "first step…", step=self.state.step)
        self.started = time.perf_counter() - self.state.seconds
        loaded = self.loader.steps(self.state.step, self.total)
        with (
            onednn_enabled(),
            disable_fusion(not self.compiled),
            handle_signals(self._interrupt),
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
                if self.writer is not None:
                    self.writer.raise_error()
                if stop or self._must_save(done):
                    self.save()
                if stop or done:
                    if self.writer is not None:
                        self.writer.wait()
                    return TrainResult(self.state, not stop, self.valid)
                self.ranks.report(f"loads step {self.state.step + 1}")
                step = next(steps)
                self.ranks.report(f"takes step {self.state.step + 1}")
                self.advance_or_explain(step)

    def close(self) -> None:
        """Close the log; nothing can be logged afterwards."""
        if self.log:
            self.log.close()

    def _interrupt(self) -> None:
        self.interrupted = True

    def _is_due(self, every: int | None) -> bool:
        step = self.state.step
        return step == self.total or (step > 0 and bool(every) and step % (every or 1) == 0)

    def _must_save(self, finished: bool) -> bool:
        """Whether a checkpoint is due; by the clock of the first rank, the only one that writes and starts it again."""
        due = self.saver.is_due(self.state, finished)
        return due if self.saver.timer is None else self.ranks.any(due and self.ranks.is_first)

    def _must_stop(self) -> bool:
        """Whether a signal arrived, or the deadline has passed while steps are left."""
        late = self.deadline is not None and time.monotonic() > self.deadline and self.state.step < self.total
        self.interrupted = self.interrupted or late
        return self.interrupted

    def _is_stale(self) -> bool:
        """Whether to stop early: no improvement for `train.patience` evaluations."""
        return self.settings.patience is not None and self.state.stale >= self.settings.patience

    def advance_or_explain(self, step: Step) -> None:
        """Take a step; where memory runs out, say which settings need less."""
        try:
            self.advance(step)
        except (RuntimeError, MemoryError) as error:
            if not failures.is_memory_error(error):
                raise
            message = memory.suggest_settings(
                self.settings,
                self.rows.row_tokens,
                self.device.type,
                layers=self.model.layers or None,
                length=getattr(self.objective, "length", None),
                has_row_setting=getattr(self.objective, "row_tokens", None) is not None,
            )
            raise UserError(message) from error

    def advance(self, step: Step) -> None:
        """Make one update from all micro-batches of a step."""
        lr = schedule.compute_lr(self.settings, step.number, self.total, self.rows.row_tokens)
        counts = {name: float(count) for name, count in step.counts.items()}
        flops = sum(self.objective.flops(self.model, batch) for batch in step.batches)
        # names with a space cannot be those of loss terms
        totals = self.ranks.sum(counts | {"tokens ": float(step.tokens), "flops ": float(flops)})
        tokens, flops = int(totals.pop("tokens ")), int(totals.pop("flops "))

        if not all(module.training for module in self.learner.modules()):  # to ask is faster than to set, at every step
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
                self.total = self.progress.total = self.pace.limit_steps(state.step, time.monotonic())
        self.progress.update(state.step, state.tokens, state.flops, state.seconds)

    # --- evaluation ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Return loss and metrics on the held-out rows, with the same masks every time; training is not affected."""
        if self.valid_rows is None:
            return {}
        carried = self.objective.state()  # of training, put back below
        self.progress.set_phase("evaluating…")
        self.ranks.report(f"evaluates step {self.state.step}")
        stats: dict[str, Stat] = {}
        self.learner.eval()
        with torch.no_grad(), self.autocast():
            lanes = min(self.loader.batch_rows(0), len(self.valid_rows))
            batches = evaluation.build_batches(self.objective, self.valid_rows, self.settings, self.ranks, lanes)
            counted = (
                evaluation.in_lockstep(batches, self.objective, self.valid_rows, self.settings, self.ranks)
                # with fewer rows than ranks, some would have no values to add up with those of the others
                if self.strategy.is_sharded or len(self.valid_rows) < self.ranks.size
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
        terms = {name: value / max(1.0, state.counts[name]) for name, value in sums.items()}
        if len(terms) > 1:
            line |= terms
        if norm is not None:
            line["norm"] = norm / state.window / self.ranks.size  # the same on every rank
        if self.log:
            self.log.write(line)
        self.progress.show_metrics("train", {"loss": loss})
        if self.plateau is not None and self.objective.token_loss in terms:
            problem = self.plateau.find_problem(terms[self.objective.token_loss], state.step, self.total, self.settings)
            if problem is not None:
                self.progress.print(problem)
        self.running, state.counts, state.window = {}, {}, 0

    # --- checkpoints --------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.saver.saved_step == self.state.step and self.state.step > 0:
            return
        self._raise_if_nonfinite()
        self.ranks.report(f"saves step {self.state.step}")
        self.state.sums = self._sums()
        carried, groups = self._gather_carried(), self._tensors()
        whole = {"carried": carried} if carried else {}
        state = vars(self.state) | {"metrics_bytes": self.log.position() if self.log else 0, "valid": self.valid}
        self.saver.saved_step = self.state.step
        if self.strategy.is_sharded:
            self._open_writer().save(self.state.step, groups, whole, state)
            return
        if self.ranks.is_first:
            self.saver.write(groups | whole, state)
        self.ranks.barrier()

    def _open_writer(self) -> ShardWriter:
        """Return what writes the checkpoints of a run in shards, in the background."""
        if self.writer is None:
            from etude.train.shard_writer import ShardWriter

            self.writer = ShardWriter(self.saver.folder, self.settings.keep, self.ranks, self.saver.every)
        return self.writer

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
