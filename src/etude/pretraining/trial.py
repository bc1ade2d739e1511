"""A short trial of a recipe: how fast this machine trains it, measured by a few real steps."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from etude.objectives.base import mean_tokens_of
from etude.pretraining.loop import build_rows
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.source import Source
from etude.stages import report_stage
from etude.train import recorded_step, schedule
from etude.train.device import synchronize
from etude.train.loop import Loop
from etude.train.parallel import Ranks

# Steps after the first before a compiled loop runs at speed: a step is recorded after some ordinary ones; where that is
# impossible the models are compiled anew for graphs of their own, which are recorded at the second and third step
WARM_UP = recorded_step.WARM_UP + 5
SECONDS = 2.0
TRIAL_TOKENS = 1024  # of a step of such a trial


@dataclass(frozen=True)
class Speed:
    """The speed of training, measured by a few steps."""

    tokens_per_second: float
    seconds_per_step: float
    flops_per_token: float
    row_tokens: int
    mean_tokens: float  # of a row; less than row_tokens where rows are not full
    epoch_rows: int  # of one pass over the corpus
    loss: float  # at the start: near log(vocabulary) where all is well
    startup: float  # seconds until steps ran at speed: compilation, recording, first touches
    loader_wait: float  # the share of the time that was spent on waiting for batches
    update_seconds: float = 0.0  # of a step, whatever its tokens: the optimiser's; measured on a CPU alone

    def with_step(self, tokens: float) -> Speed:
        """Return the speed of steps of so many tokens: the optimiser takes as long for them."""
        measured = self.tokens_per_second * self.seconds_per_step
        seconds = self.update_seconds + (self.seconds_per_step - self.update_seconds) * tokens / measured
        return replace(self, tokens_per_second=tokens / seconds, seconds_per_step=seconds)


def shorten_steps(recipe: Recipe, device: torch.device, row_tokens: int | None) -> Recipe:
    """Return a recipe with smaller steps, for a trial on a CPU: a step of a published batch takes it minutes."""
    tokens = max(TRIAL_TOKENS, row_tokens or 0)
    if device.type != "cpu" or recipe.train.batch_tokens <= tokens:
        return recipe
    changes = {"train.batch_tokens": tokens, "train.micro_tokens": None, "train.batch_ramp": None}
    return recipe.with_settings(changes)


def step_tokens(recipe: Recipe, speed: Speed) -> float:
    """Return the tokens of a whole step of a recipe, whose rows were measured."""
    rows = schedule.full_rows(recipe.train, speed.row_tokens or None)
    return rows * (speed.mean_tokens if speed.row_tokens else 1)


@contextlib.contextmanager
def _clock_updates(loop: Loop) -> Iterator[list[float]]:
    """Collect the seconds of each step of the optimiser; of a CPU, since a GPU's are over before its work is."""
    seconds: list[float] = []
    if loop.optimizer is None or loop.device.type != "cpu":
        yield seconds
        return
    starts: list[float] = []
    before = loop.optimizer.register_step_pre_hook(lambda *_: starts.append(time.perf_counter()))
    after = loop.optimizer.register_step_post_hook(lambda *_: seconds.append(time.perf_counter() - starts[-1]))
    try:
        yield seconds
    finally:
        before.remove()
        after.remove()


def measure_speed(
    recipe: Recipe,
    corpus: Source,
    device: torch.device,
    seconds: float = SECONDS,
    ranks: Ranks | None = None,
    explain_memory: bool = True,
    limit: float | None = None,
) -> Speed:
    """Take real steps on a throw-away learner: what the run will cost, measured; of several ranks, by all together.

    `limit`: The seconds after which no further step is taken, be there a single one: of a recipe that is not compiled.
    Where memory runs out, UserError says which settings need less; without `explain_memory` it is torch's own error.
    """
    ranks = ranks or Ranks()
    report_stage(f"measuring {recipe.name}: a few steps")
    model, objective = build_learner(recipe, corpus.tokenizer)
    rows = build_rows(recipe, corpus, objective)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), model, objective, rows, recipe.train, total=10**9, device=device, ranks=ranks)
        advance = loop.advance_or_explain if explain_memory else loop.advance
        with (
            contextlib.closing(loop),
            contextlib.closing(loop.loader.steps(0, 10**9)) as steps,
            _clock_updates(loop) as updates,
        ):
            start = time.perf_counter()
            advance(next(steps))
            first_loss = loop.running.get("loss ")
            for _ in range(WARM_UP if loop.compiled else 0):
                advance(next(steps))
            synchronize(device)
            trial_start, startup = start, time.perf_counter() - start
            tokens, flops, count, waited = 0, 0, loop.state.step, 0.0

            def is_late() -> bool:
                late = limit is not None and not loop.compiled and time.perf_counter() - trial_start >= limit
                return limit is not None and ranks.any(late)

            if not is_late():
                start, tokens, flops, count = time.perf_counter(), loop.state.tokens, loop.state.flops, 0
                updates.clear()
            # all take as many steps, as they wait for each other in each
            while count == 0 or (
                not is_late() and (count < 2 or not ranks.any(time.perf_counter() - start >= seconds or count >= 50))
            ):
                wait_start = time.perf_counter()
                step = next(steps)
                waited += time.perf_counter() - wait_start
                advance(step)
                count += 1
            synchronize(device)
            elapsed = time.perf_counter() - start
    tokens, flops = loop.state.tokens - tokens, loop.state.flops - flops
    return Speed(
        tokens_per_second=tokens / elapsed,
        seconds_per_step=elapsed / count,
        flops_per_token=flops / tokens,
        row_tokens=rows.row_tokens or 0,
        mean_tokens=mean_tokens_of(rows) or 0.0,
        epoch_rows=len(rows),
        loss=float(first_loss) if first_loss is not None else float("nan"),
        startup=startup,
        loader_wait=waited / elapsed,
        update_seconds=sum(updates) / count,
    )
