"""`etude bench`: how fast this machine trains a recipe, with which micro-batch, and where the time goes.

For micro-batches of one row, two, four ... up to a whole step it runs the real loop for a few seconds. At the fastest
it takes a step apart: building batches, forward, backward, update. On a GPU every part is waited for there, so the
parts together may take longer than a step that overlaps them; they are told as shares.
"""

from __future__ import annotations

import contextlib
import gc
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from etude.errors import UserError
from etude.pretraining import Speed, checked_rows, device_of, resolve, settle, trial
from etude.recipes.document import Overrides
from etude.recipes.schema import Recipe
from etude.run import fresh
from etude.text.corpus import Corpus
from etude.train import memory, optim, peak, schedule, trouble
from etude.train.loop import Loop, total_loss

STEPS = 4  # that are taken apart


@dataclass(frozen=True)
class Measured:
    micro_tokens: int
    speed: Speed | None  # None: memory ran out
    memory: int | None  # bytes

    def rate(self) -> float:
        return self.speed.tokens_per_second if self.speed else 0.0


@dataclass
class Bench:
    recipe: Recipe
    peak: float  # FLOP/s of the best matrix product, measured here and now
    measured: list[Measured]
    parts: dict[str, float] = field(default_factory=dict)  # seconds of a step at the best micro-batch

    @property
    def best(self) -> Measured:
        return max(self.measured, key=Measured.rate)

    def share(self, one: Measured) -> float:
        """Of the machine's peak: FLOPs as the objective counts them, over time, over the best product's rate."""
        return one.rate() * one.speed.flops_per_token / self.peak if one.speed else 0.0


def bench(
    recipe: str | Path | Recipe, corpus: str | Path | Corpus, overrides: Overrides = (), seconds: float = 2.0
) -> Bench:
    """Measures; writes nothing. With `train.micro_tokens` among the overrides, that one alone."""
    corpus = corpus if isinstance(corpus, Corpus) else Corpus.open(corpus)
    resolved = resolve(recipe, corpus, overrides)
    device = device_of(resolved)
    found = Bench(resolved, peak.measured_peak(device, peak.resolved_precision(resolved.train.precision, device)), [])
    for micro in sizes(resolved, corpus):
        one = _measure(resolved.with_settings({"train.micro_tokens": micro}), corpus, device, micro, seconds)
        found.measured.append(one)
        if one.speed is None:
            break  # a larger one will not fit either
    if not found.best.speed:
        raise UserError(
            f"Memory ran out with a micro-batch of one row ({found.best.micro_tokens:,} tokens): set a smaller "
            "objective.row_tokens or model.context."
        )
    best = resolved.with_settings({"train.micro_tokens": found.best.micro_tokens})
    found.parts = take_apart(best, corpus, device)
    return found


def sizes(recipe: Recipe, corpus: Corpus) -> list[int]:
    """Micro-batches to try, in tokens: one row, two, four ... and all rows of a step."""
    _, objective = fresh(recipe, corpus.tokenizer)
    row_tokens = objective.rows(corpus, recipe.train.seed).row_tokens
    if row_tokens is None:
        raise UserError("etude bench measures pre-training, whose rows have one length.")
    if recipe.train.micro_tokens is not None:
        return [recipe.train.micro_tokens]
    whole = max(schedule.sizes(recipe.train, row_tokens))
    rows = [2**power for power in range(whole.bit_length()) if 2**power < whole]
    return [count * row_tokens for count in [*rows[-5:], whole]]  # the smallest of many are never the best


def _measure(recipe: Recipe, corpus: Corpus, device: torch.device, micro: int, seconds: float) -> Measured:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        speed = trial(recipe, corpus, device, seconds)
    except (RuntimeError, MemoryError) as error:
        if not trouble.is_memory_error(error):
            raise
        return Measured(micro, None, None)
    finally:
        gc.collect()  # models of a trial hang in cycles, and the next one needs their memory
    held = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else memory.in_use(device)
    return Measured(micro, speed, held)


def take_apart(recipe: Recipe, corpus: Corpus, device: torch.device) -> dict[str, float]:
    """Seconds of the parts of a step, by name."""
    model, objective = fresh(recipe, corpus.tokenizer)
    rows = checked_rows(recipe, corpus, objective.rows(corpus, recipe.train.seed))
    parts = dict.fromkeys(("batches", "forward", "backward", "update"), 0.0)

    @contextlib.contextmanager
    def clock(part: str, counts: bool) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        settle(device)
        parts[part] += (time.perf_counter() - begun) / STEPS if counts else 0.0

    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), model, objective, rows, recipe.train, total=10**9, device=device)
        if loop.optimizer is None:
            return {}  # a model that updates itself has no such parts
        for number in range(2 + STEPS):
            counts = number >= 2
            with clock("batches", counts):
                step = loop.loader.step(number)
            totals = {name: float(count) for name, count in step.counts.items()}
            for batch in step.batches:
                with clock("forward", counts), loop.precision():
                    loss = total_loss(loop.learner(batch.to(device)), totals)
                with clock("backward", counts):
                    loss.backward()
            with clock("update", counts):
                optim.clip_gradients([p for _, p in loop.named], recipe.train.clip)
                loop.optimizer.step()
                loop.optimizer.zero_grad(set_to_none=True)
    return parts
