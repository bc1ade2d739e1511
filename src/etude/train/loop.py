"""The one training loop: pre-training, fine-tuning and distillation all run through it.

Each step is a pure function of (weights, optimiser state, seed, step): rows come from the loader, chance
from hashes, dropout from a generator seeded by (seed, step, micro-batch). A checkpoint therefore needs
weights, optimiser state and a few numbers, and N steps equal any split of N by kill and resume, bit for bit.

Losses are sums; their counts are known on the host before the backward pass and are added up over all
micro-batches and ranks first, so neither accumulation nor the number of processes changes the gradient.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from etude.chance import fold
from etude.errors import UserError
from etude.models.base import Model
from etude.nn.attention.dispatch import load_kernels
from etude.nn.fusion import disable_fusion
from etude.objectives.base import Batch, Objective, Rows, Stat, Term
from etude.train import checkpoint, compilation, evaluation, failures, malloc, memory, optim, schedule
from etude.train.cpu_state import onednn_enabled
from etude.train.loader import Loader, Step
from etude.train.metrics_log import MetricsLog
from etude.train.parallel import Ranks
from etude.train.progress import Progress
from etude.train.run_state import SelectionMetric, TrainResult, TrainState
from etude.train.settings import Settings
from etude.train.workers import default_workers


class Learner(nn.Module):
    """Model and objective as one module, so that one wrapper (DDP) sees every parameter."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, batch: Any) -> dict[str, Term]:
        return self.objective.loss(self.model, batch)


class Loop:
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
        self.learner = Learner(model, objective).to(self.device)
        self.named = [(name, p) for name, p in self.learner.named_parameters() if p.requires_grad]
        self.optimizer = None if objective.updates_itself else optim.build(settings, self.named, depth_of)
        self.compiled = settings.compile if settings.compile is not None else self.device.type == "cuda"
        if self.compiled:
            load_kernels(self.device)
            for trunk in (model, *objective.trunks()):
                # rows are static, so one shape is compiled, once
                trunk.compile(dynamic=False, options=compilation.compile_options(self.device, self._replays()))
        self.parallel: nn.Module = self.learner
        if self.ranks.size > 1:
            if objective.updates_itself:
                raise UserError(f"{type(objective).__name__} updates its model in place: run it in one process.")
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
            workers=self._workers() if settings.workers is None else settings.workers,
            processes=self.device.type == "cuda",
            pin=self.device.type == "cuda",
        )
        self.state = TrainState()
        self.running: dict[str, Tensor] = {}
        self.bad_step: tuple[Tensor, Tensor] | None = None  # on the device: has one been seen, and which was first
        self.valid: dict[str, float] = {}
        board = folder / "tensorboard" if settings.tensorboard else None
        self.log = MetricsLog(folder / "metrics.jsonl", board) if self.ranks.is_first else None
        self.interrupted = False
        self.saved: int | None = None
        self.started = time.perf_counter()

    def _replays(self) -> bool:
        """Whether kernels are recorded once and replayed (CUDA graphs): launching them takes a host longer than a GPU
        needs for small ones. Gradients then lie in memory of the recording until the step is over, so it needs steps of
        one size and of one micro-batch."""
        settings, rows = self.settings, self.rows.row_tokens
        if self.device.type != "cuda" or rows is None or self.ranks.size > 1 or self.objective.state() is not None:
            return False
        sizes = schedule.batch_sizes(settings, rows)
        whole = settings.micro_tokens is None or sizes[0] * rows <= settings.micro_tokens
        return len(sizes) == 1 and whole

    # --- the loop -----------------------------------------------------------------------------------

    def _workers(self) -> int:
        """That build batches ahead: a thread on a CPU, processes for a GPU."""
        return default_workers(self.ranks.local_size) if self.device.type == "cuda" else 1

    def run(self) -> TrainResult:
        """Trains to the last step, or until a signal; always leaves a checkpoint behind."""
        self.restore()
        self.progress.set_phase("compiling…" if self.compiled else "first step…", step=self.state.step)
        self.started = time.perf_counter() - self.state.seconds
        built = self.loader.steps(self.state.step, self.total)
        with (
            onednn_enabled(),
            disable_fusion(not self.compiled),
            self._signals(),
            contextlib.closing(
                compilation.report_first_step(built, self.progress) if self.compiled else built
            ) as steps,
        ):
            while True:
                stop = self.ranks.any(self.interrupted)
                if not stop and self._due(self.settings.eval_every) and self.state.evaluated != self.state.step:
                    self.evaluate()
                    stop = self.ranks.any(self.interrupted)
                done = self.state.step >= self.total or self._stale()
                if stop or done or self._due(self.settings.save_every) or self.state.best_step == self.state.step:
                    self.save()
                if stop or done:
                    return TrainResult(self.state, not stop, self.valid)
                self._guarded(next(steps))

    def _due(self, every: int | None) -> bool:
        step = self.state.step
        return step == self.total or (step > 0 and bool(every) and step % (every or 1) == 0)

    def _stale(self) -> bool:
        """Early stopping: nothing has got better for so many evaluations."""
        return self.settings.patience is not None and self.state.stale >= self.settings.patience

    def _guarded(self, step: Step) -> None:
        try:
            self.advance(step)
        except (RuntimeError, MemoryError) as error:
            if not failures.is_memory_error(error):
                raise
            layers = self.model.layers or None
            advice = memory.suggest_settings(self.settings, self.rows.row_tokens, self.device.type, layers=layers)
            raise UserError(advice) from error

    def advance(self, step: Step) -> None:
        """One update from all micro-batches of a step."""
        rate = schedule.compute_lr(self.settings, step.number, self.total)
        facts = {name: float(count) for name, count in step.counts.items()}
        cost = sum(self.objective.flops(self.model, batch) for batch in step.batches)
        totals = self.ranks.sum(facts | {"tokens ": float(step.tokens), "flops ": float(cost)})
        tokens, flops = int(totals.pop("tokens ")), int(totals.pop("flops "))

        self.learner.train()
        sums = self._descend(step, totals, rate) if self.optimizer else self._own_update(step, totals, rate)
        state = self.state
        state.step, state.window = step.number + 1, state.window + 1
        state.tokens, state.flops = state.tokens + tokens, state.flops + flops
        state.seconds = time.perf_counter() - self.started
        for name, value in sums.items():  # stays on the device: nothing waits for it here
            self.running[name] = self.running[name] + value if name in self.running else value.double()
        for name, count in totals.items():
            state.counts[name] = state.counts.get(name, 0.0) + count
        if state.step % self.settings.log_every == 0 or state.step == self.total:
            self._write_line(rate)
        self.progress.update(state.step, state.tokens, state.flops, state.seconds)

    def _descend(self, step: Step, totals: dict[str, float], rate: float) -> dict[str, Tensor]:
        sums = self._backward(step, totals)
        assert self.optimizer is not None
        norm = optim.clip_gradients([p for _, p in self.named], self.settings.clip, self.optimizer)
        self._guard(norm, step.number)
        optim.set_lr(self.optimizer, rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sums | {"norm ": norm.detach()}

    def _backward(self, step: Step, totals: dict[str, float]) -> dict[str, Tensor]:
        """Gradients of the whole step; returns this rank's sums of each term and of the loss."""
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(step.batches):
            last = number == len(step.batches) - 1
            torch.manual_seed(fold(self.settings.seed, step.number, int(batch.slots[0]), "dropout") >> 1)
            if self.compiled and self.device.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()
            with self._no_sync(last), self.precision():
                terms = self.parallel(self._here(batch))
                loss = total_loss(terms, totals)
            # DDP averages over ranks; the sum is wanted
            (loss * self.ranks.size).backward()
            for name, value in [*((n, t.sum) for n, t in terms.items()), ("loss ", loss)]:
                sums[name] = sums.get(name, torch.zeros((), device=self.device)) + value.detach()
        return sums

    def _here(self, batch: Batch) -> Batch:
        """On the device; a CPU that compiles nothing needs no static shapes, and what fills them costs it time."""
        return batch.compact() if self.device.type == "cpu" and not self.compiled else batch.to(self.device)

    def _guard(self, norm: Tensor, step: int) -> None:
        """Keeps a gradient that is not finite away from the weights, without waiting for a GPU.

        A fused optimiser skips its update while `found_inf` is 1. From the first bad step on it stays 1, so the
        weights are those before that step when `_stop_if_bad` looks, a few steps later.
        """
        if self.device.type == "cuda" and getattr(self.optimizer, "_step_supports_amp_scaling", False):
            bad = (~torch.isfinite(norm)).float()
            before = self.bad_step[0] if self.bad_step else torch.zeros_like(bad)
            first = self.bad_step[1] if self.bad_step else torch.full_like(bad, -1.0, dtype=torch.int64)
            first = torch.where((bad > 0) & (before == 0), step, first)
            self.bad_step = (torch.maximum(bad, before), first)
            self.optimizer.found_inf = self.bad_step[0]  # type: ignore[union-attr]
        elif not bool(torch.isfinite(norm)):
            self._name_trouble(step)

    def _stop_if_bad(self) -> None:
        if self.bad_step and float(self.bad_step[0]):
            self._name_trouble(int(self.bad_step[1]))

    def _name_trouble(self, number: int) -> None:
        """Runs the step once more, every part watched: batches and chance are functions of its number."""
        assert self.optimizer is not None
        self.optimizer.zero_grad(set_to_none=True)
        step = self.loader.step(number)
        totals = self.ranks.sum({name: float(count) for name, count in step.counts.items()})
        where = failures.find_first_nonfinite(self.learner, lambda: self._backward(step, totals))
        raise failures.nonfinite_error(where, number + 1, schedule.compute_lr(self.settings, number, self.total))

    def _own_update(self, step: Step, totals: dict[str, float], rate: float) -> dict[str, Tensor]:
        """For models with their own update (word vectors): no gradients, no optimiser."""
        sums: dict[str, Tensor] = {}
        for batch in step.batches:
            for name, term in self.objective.update(self.model, batch.to(self.device), rate).items():
                sums[name] = sums[name] + term.sum if name in sums else term.sum.double()
        loss = sum((value / max(1.0, totals[name]) for name, value in sums.items()), torch.zeros(()))
        return sums | {"loss ": loss}

    # --- evaluation ---------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics on the held-out rows: same rows, same masks every time. Leaves no trace in training."""
        if self.valid_rows is None:
            return {}
        carried = self.objective.state()
        self.progress.set_phase("evaluating…")
        stats: dict[str, Stat] = {}
        self.learner.eval()
        with torch.no_grad(), self.precision():
            lanes = min(self.loader.batch_rows(0), len(self.valid_rows))
            for batch in evaluation.batches(self.objective, self.valid_rows, self.settings, self.ranks, lanes):
                for name, stat in self.objective.metrics(self.model, batch.to(self.device)).items():
                    stats[name] = stats[name] + stat if name in stats else stat
                if self.interrupted and self.ranks.size == 1:
                    break
            values = evaluation.means(stats, self.ranks)
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
            return {}  # not evaluated: it is done again after the resume
        self.valid = values
        self._note_best()
        return self.valid

    def _note_best(self) -> None:
        state = self.state
        state.evaluated = state.step
        worth = self.valid["loss"] if self.selection_metric is None else -self.valid[self.selection_metric.name]
        if worth < state.best:
            state.best, state.best_step, state.stale = worth, state.step, 0
        else:
            state.stale += 1
        state.seconds = time.perf_counter() - self.started
        if self.log:
            self.log.write(self._place() | {"split": "valid"} | self.valid)
        self.progress.show_metrics("valid", self.valid)

    # --- the log ------------------------------------------------------------------------------------

    def _place(self) -> dict[str, Any]:
        state = self.state
        return {"step": state.step, "tokens": state.tokens, "flops": state.flops, "seconds": round(state.seconds, 3)}

    def _sums(self) -> dict[str, float]:
        """The running sums of all ranks on the host (the one place where a GPU is waited for)."""
        return self.ranks.sum({name: float(value) for name, value in self.running.items()})

    def _write_line(self, rate: float) -> None:
        self._stop_if_bad()
        state, sums = self.state, self._sums()
        loss = sums.pop("loss ") / state.window
        norm = sums.pop("norm ", None)
        line = self._place() | {"split": "train", "loss": loss, "rate": rate}
        if len(sums) > 1:
            line |= {name: value / max(1.0, state.counts[name]) for name, value in sums.items()}
        if norm is not None:
            line["norm"] = norm / state.window / self.ranks.size  # every rank has the same one
        if self.log:
            self.log.write(line)
        self.progress.show_metrics("train", {"loss": loss})
        self.running, state.counts, state.window = {}, {}, 0

    # --- saving and coming back ---------------------------------------------------------------------

    def save(self) -> None:
        """A complete checkpoint, or none."""
        if self.saved == self.state.step and self.state.step > 0:
            return
        self._stop_if_bad()
        self.state.sums = self._sums()
        carried = self._carried()
        if self.ranks.is_first:
            assert self.log is not None
            groups = {"weights": dict(self.learner.state_dict())}
            if self.optimizer:
                groups["optimizer"] = optim.state_tensors(self.optimizer, self.named)
            if carried:
                groups["carried"] = carried
            state = vars(self.state) | {"metrics_bytes": self.log.position(), "valid": self.valid}
            folder = self.folder / "checkpoints"
            checkpoint.save(folder, self.state.step, groups, state)
            checkpoint.prune(folder, self.settings.keep, self.state.best_step)
        self.saved = self.state.step
        self.ranks.barrier()

    def _carried(self) -> dict[str, Tensor] | None:
        state = self.objective.state()
        if state is None or self.ranks.size == 1:
            return state
        share = self.loader.batch_rows(0) // self.ranks.size
        mine = slice(self.ranks.rank * share, (self.ranks.rank + 1) * share)
        return {name: self.ranks.gather(tensor[mine]) for name, tensor in state.items()}

    def restore(self) -> None:
        """Takes up the last complete checkpoint, if there is one; cuts the log back to where it was."""
        found = checkpoint.list_steps(self.folder / "checkpoints")
        if not found:
            if self.log:
                self.log.truncate(0)
            return
        groups, state = checkpoint.load(self.folder / "checkpoints", found[-1])
        checkpoint.load_strictly(self.learner, groups["weights"], f"checkpoint {found[-1]}")
        if self.optimizer:
            optim.load_state_tensors(self.optimizer, self.named, groups["optimizer"])
        if "carried" in groups:
            self.objective.restore({name: tensor.to(self.device) for name, tensor in groups["carried"].items()})
        position, self.valid = state.pop("metrics_bytes"), state.pop("valid")
        self.state = TrainState(**state)
        # the sums of all ranks were saved: the first rank carries them on, the others start from nothing
        own = {name: value if self.ranks.is_first else 0.0 for name, value in self.state.sums.items()}
        self.running = {n: torch.tensor(v, dtype=torch.float64, device=self.device) for n, v in own.items()}
        self.saved = self.state.step
        if self.log:
            self.log.truncate(position)

    # --- surroundings -------------------------------------------------------------------------------

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def _no_sync(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if isinstance(self.parallel, DistributedDataParallel) and not last:
            return self.parallel.no_sync()
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C ask for a checkpoint at the end of the step; a second Ctrl-C is the usual one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _frame: Any) -> None:
            self.interrupted = True
            signal.signal(number, before[number])

        before: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, ask)
        try:
            yield
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)


def total_loss(terms: dict[str, Term], totals: dict[str, float]) -> Tensor:
    """Σ weight · sum / count, with the count of the whole step."""
    parts = [term.weight * term.sum / max(1.0, totals[name]) for name, term in terms.items()]
    return torch.stack([part.float() for part in parts]).sum()
