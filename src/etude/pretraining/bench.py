"""Training speed of a recipe on this machine: the best micro-batch, and the parts of a step (`etude bench`).

For micro-batches of one row, two, four ... up to a whole step it runs the real loop for a few seconds. At the fastest
it times the parts of a step: building batches, forward, backward, update. On a GPU it synchronises after every part,
so the parts together may take longer than a step that overlaps them; they are reported as shares.

Speed hardly depends on the text. So without a corpus, random words from a vocabulary of the recipe's size replace it:
a machine can be measured before any text is prepared.
"""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from etude.errors import UserError
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import resolve_recipe
from etude.pretraining.trial import Speed, measure_speed
from etude.recipes.document import Overrides
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.source import Source, open_source
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import failures, memory, optim, peak, schedule
from etude.train.device import resolve_device, synchronize
from etude.train.learner import total_loss
from etude.train.loop import Loop

STEPS = 4  # whose parts are timed
# Measured when no recipe is named: a few minutes at most, on a slow core too.
DEFAULT_RECIPES = {"cpu": ("bert-mini", {"train.batch_tokens": 4096}), "cuda": ("bert-base", {})}
DOCUMENTS, SENTENCES, WORDS = 400, 25, 20  # of the stand-in for a corpus: 200,000 tokens in articles of some length


@dataclass(frozen=True)
class BenchTrial:
    """The speed and memory of one micro-batch size."""

    micro_tokens: int
    speed: Speed | None  # None: memory ran out
    memory: int | None  # the most bytes held, where that is known

    def rate(self) -> float:
        """Return the tokens a second; 0 where memory ran out."""
        return self.speed.tokens_per_second if self.speed else 0.0


@dataclass
class Bench:
    """The result of `bench`: one trial a micro-batch size, and the parts of a step at the best."""

    recipe: Recipe
    peak: float  # FLOP/s of the best matrix product, measured here and now
    trials: list[BenchTrial]
    parts: dict[str, float] = field(default_factory=dict)  # seconds of a step at the best micro-batch

    @property
    def best(self) -> BenchTrial:
        return max(self.trials, key=BenchTrial.rate)

    def share(self, trial: BenchTrial) -> float:
        """Return the model FLOPs utilisation: FLOPs of the objective a second over the measured peak."""
        return trial.rate() * trial.speed.flops_per_token / self.peak if trial.speed else 0.0


def bench(
    recipe: str | Path | Recipe | None = None,
    corpus: str | Path | Source | None = None,
    overrides: Overrides = (),
    seconds: float = 2.0,
    *,
    on_stage: Callable[[str], None] = lambda _: None,
    on_result: Callable[[Bench], None] = lambda _: None,
) -> Bench:
    """Measure training speed; write nothing. With `train.micro_tokens` among the overrides, measure that one alone.

    `on_stage` receives the name of each stage; `on_result` the result so far: before the first trial, after each.
    """
    on_stage("reading the recipe and the corpus")
    if recipe is None:
        recipe = default_recipe()
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    if corpus is None and loaded.reads_graph:
        raise UserError(f"{loaded.name} learns from a graph. Name one: etude bench {loaded.name} GRAPH.")
    corpus = random_corpus(loaded) if corpus is None else open_source(corpus, loaded)
    resolved = resolve_recipe(loaded, corpus, ())
    device = resolve_device(resolved.train.device)
    micro_batches = micro_batch_sizes(resolved, corpus)
    on_stage("measuring the best matrix product")
    result = Bench(resolved, peak.measure_peak(device, peak.resolve_precision(resolved.train.precision, device)), [])
    on_result(result)
    for number, micro in enumerate(micro_batches, start=1):
        on_stage(f"micro-batch {number} of {len(micro_batches)}: {micro:,} tokens")
        trial = _measure(resolved.with_settings({"train.micro_tokens": micro}), corpus, device, micro, seconds)
        result.trials.append(trial)
        on_result(result)
        if trial.speed is None:
            break  # a larger one will not fit either
    if not result.best.speed:
        raise UserError(
            f"Memory ran out with a micro-batch of one row ({result.best.micro_tokens:,} tokens): set a smaller "
            "objective.row_tokens or model.context."
        )
    best = resolved.with_settings({"train.micro_tokens": result.best.micro_tokens})
    on_stage("timing the parts of a step")
    result.parts = time_step_parts(best, corpus, device)
    return result


def default_recipe() -> Recipe:
    """Return the recipe that is measured when none is named."""
    name, settings = DEFAULT_RECIPES["cuda" if torch.cuda.is_available() else "cpu"]
    return Recipe.load(name, settings)


def word_level_tokenizer(vocab: int) -> Tokenizer:
    """Return a word-level tokenizer of the special tokens and the words w0, w1, w2 ..."""
    words = [*TRAINED_SPECIALS, *(f"w{number}" for number in range(vocab - len(TRAINED_SPECIALS)))]
    flags = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": word, **flags} for id, word in enumerate(TRAINED_SPECIALS)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(words)}, "unk_token": "[UNK]"},
    }
    return Tokenizer(json.dumps(content))


def random_corpus(recipe: Recipe) -> Corpus:
    """Return a corpus of random words with the recipe's vocabulary size, in sentences and documents of many lengths."""
    vocab = recipe.model.vocab or recipe.tokenizer_size
    if vocab is None:
        raise UserError(
            f"{recipe.name} says no size of a vocabulary ({recipe.tokenizer}). Name a prepared corpus, too."
        )
    rng = np.random.default_rng(0)
    documents = [
        [
            rng.integers(len(TRAINED_SPECIALS), vocab, 1 + rng.poisson(WORDS)).tolist()
            for _ in range(1 + rng.geometric(1 / SENTENCES))
        ]
        for _ in range(DOCUMENTS)
    ]
    return Corpus.from_documents(documents, word_level_tokenizer(vocab))


def micro_batch_sizes(recipe: Recipe, corpus: Source) -> list[int]:
    """Return the micro-batches to try, in tokens: one row, two, four ... and all rows of a step."""
    _, objective = build_learner(recipe, corpus.tokenizer)
    row_tokens = objective.rows(corpus, recipe.train.seed).row_tokens
    if row_tokens is None:
        raise UserError("etude bench measures pre-training, whose rows have one length.")
    if recipe.train.micro_tokens is not None:
        return [recipe.train.micro_tokens]
    whole = max(schedule.batch_sizes(recipe.train, row_tokens))
    rows = [2**power for power in range(whole.bit_length()) if 2**power < whole]
    return [count * row_tokens for count in [*rows[-5:], whole]]  # the smallest of many are never the best


def _measure(recipe: Recipe, corpus: Source, device: torch.device, micro: int, seconds: float) -> BenchTrial:
    memory.reset_peak(device)
    try:
        speed = measure_speed(recipe, corpus, device, seconds, explain_memory=False)
    except (RuntimeError, MemoryError) as error:
        if not failures.is_memory_error(error):
            raise
        return BenchTrial(micro, None, None)
    finally:
        gc.collect()  # models of a trial hang in cycles, and the next one needs their memory
    return BenchTrial(micro, speed, memory.peak_bytes(device))


def time_step_parts(recipe: Recipe, corpus: Source, device: torch.device) -> dict[str, float]:
    """Return the seconds of each part of a step, by name."""
    model, objective = build_learner(recipe, corpus.tokenizer)
    rows = build_rows(recipe, corpus, objective)
    parts = dict.fromkeys(("batches", "forward", "backward", "update"), 0.0)

    @contextlib.contextmanager
    def clock(part: str, counts: bool) -> Iterator[None]:
        start = time.perf_counter()
        yield
        synchronize(device)
        parts[part] += (time.perf_counter() - start) / STEPS if counts else 0.0

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
        loop = cleanup.enter_context(
            contextlib.closing(Loop(Path(folder), model, objective, rows, recipe.train, total=10**9, device=device))
        )
        if loop.optimizer is None:
            return {}  # a model that updates itself has no such parts
        for number in range(2 + STEPS):
            counts = number >= 2
            with clock("batches", counts):
                step = loop.loader.step(number)
            totals = {name: float(count) for name, count in step.counts.items()}
            for batch in step.batches:
                with clock("forward", counts), loop.autocast():
                    loss = total_loss(loop.learner(batch.to(device)), totals)
                with clock("backward", counts):
                    loss.backward()
            with clock("update", counts):
                optim.clip_gradients([p for _, p in loop.named], recipe.train.clip, loop.optimizer)
                loop.optimizer.step()
                loop.optimizer.zero_grad(set_to_none=True)
    return parts
