"""`etude bench`: how fast this machine trains a recipe, with which micro-batch, and where the time goes.

For micro-batches of one row, two, four ... up to a whole step it runs the real loop for a few seconds. At the fastest
it takes a step apart: building batches, forward, backward, update. On a GPU every part is waited for there, so the
parts together may take longer than a step that overlaps them; they are told as shares.

Speed hardly depends on what the text says. So without a corpus, words drawn at random from a vocabulary of the recipe's
own size stand in for one: what a machine can do is known before any text is prepared.
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
from etude.pretraining.setup import build_rows, resolve_recipe
from etude.pretraining.trial import Speed, measure_speed
from etude.recipes.document import Overrides
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import failures, memory, optim, peak, schedule
from etude.train.device import resolve_device, synchronize
from etude.train.loop import Loop, total_loss

STEPS = 4  # that are taken apart
# What is measured when nothing is asked for: a few minutes at most, on a slow core too.
PLAIN = {"cpu": ("bert-mini", {"train.batch_tokens": 4096}), "cuda": ("bert-base", {})}
DOCUMENTS, SENTENCES, WORDS = 400, 25, 20  # of the stand-in for a corpus: 200,000 tokens in articles of some length


@dataclass(frozen=True)
class Measured:
    micro_tokens: int
    speed: Speed | None  # None: memory ran out
    memory: int | None  # the most bytes held, where that is known

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
    recipe: str | Path | Recipe | None = None,
    corpus: str | Path | Corpus | None = None,
    overrides: Overrides = (),
    seconds: float = 2.0,
    *,
    doing: Callable[[str], None] = lambda _: None,
    seen: Callable[[Bench], None] = lambda _: None,
) -> Bench:
    """Measures; writes nothing. With `train.micro_tokens` among the overrides, that one alone.

    `doing` is told what takes so long; `seen` gets what there is so far: before the first micro-batch, after each.
    """
    doing("reading the recipe and the corpus")
    if recipe is None:
        recipe = plain_recipe()
    loaded = recipe.with_settings(overrides) if isinstance(recipe, Recipe) else Recipe.load(recipe, overrides)
    if not isinstance(corpus, Corpus):
        corpus = random_words(loaded) if corpus is None else Corpus.open(corpus)
    resolved = resolve_recipe(loaded, corpus, ())
    device = resolve_device(resolved.train.device)
    tried = sizes(resolved, corpus)
    doing("measuring the best matrix product")
    found = Bench(resolved, peak.measure_peak(device, peak.resolve_precision(resolved.train.precision, device)), [])
    seen(found)
    for number, micro in enumerate(tried, start=1):
        doing(f"micro-batch {number} of {len(tried)}: {micro:,} tokens")
        one = _measure(resolved.with_settings({"train.micro_tokens": micro}), corpus, device, micro, seconds)
        found.measured.append(one)
        seen(found)
        if one.speed is None:
            break  # a larger one will not fit either
    if not found.best.speed:
        raise UserError(
            f"Memory ran out with a micro-batch of one row ({found.best.micro_tokens:,} tokens): set a smaller "
            "objective.row_tokens or model.context."
        )
    best = resolved.with_settings({"train.micro_tokens": found.best.micro_tokens})
    doing("taking a step apart")
    found.parts = take_apart(best, corpus, device)
    return found


def plain_recipe() -> Recipe:
    """What a machine is measured by when nobody says by what."""
    name, settings = PLAIN["cuda" if torch.cuda.is_available() else "cpu"]
    return Recipe.load(name, settings)


def numbered_words(vocab: int) -> Tokenizer:
    """The special tokens, then w0, w1, w2 ..."""
    words = [*TRAINED_SPECIALS, *(f"w{number}" for number in range(vocab - len(TRAINED_SPECIALS)))]
    usual = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": word, **usual} for id, word in enumerate(TRAINED_SPECIALS)],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(words)}, "unk_token": "[UNK]"},
    }
    return Tokenizer(json.dumps(content))


def random_words(recipe: Recipe) -> Corpus:
    """A stand-in for a corpus: a vocabulary as large as the recipe's, in sentences and documents of many lengths."""
    vocab = recipe.model.vocab or recipe.tokenizer_size
    if vocab is None:
        raise UserError(
            f"{recipe.name} says no size of a vocabulary ({recipe.tokenizer}). Name a prepared corpus, too."
        )
    chance = np.random.default_rng(0)
    documents = [
        [
            chance.integers(len(TRAINED_SPECIALS), vocab, 1 + chance.poisson(WORDS)).tolist()
            for _ in range(1 + chance.geometric(1 / SENTENCES))
        ]
        for _ in range(DOCUMENTS)
    ]
    return Corpus.from_documents(documents, numbered_words(vocab))


def sizes(recipe: Recipe, corpus: Corpus) -> list[int]:
    """Micro-batches to try, in tokens: one row, two, four ... and all rows of a step."""
    _, objective = build_learner(recipe, corpus.tokenizer)
    row_tokens = objective.rows(corpus, recipe.train.seed).row_tokens
    if row_tokens is None:
        raise UserError("etude bench measures pre-training, whose rows have one length.")
    if recipe.train.micro_tokens is not None:
        return [recipe.train.micro_tokens]
    whole = max(schedule.batch_sizes(recipe.train, row_tokens))
    rows = [2**power for power in range(whole.bit_length()) if 2**power < whole]
    return [count * row_tokens for count in [*rows[-5:], whole]]  # the smallest of many are never the best


def _measure(recipe: Recipe, corpus: Corpus, device: torch.device, micro: int, seconds: float) -> Measured:
    memory.reset_peak(device)
    try:
        speed = measure_speed(recipe, corpus, device, seconds)
    except (RuntimeError, MemoryError) as error:
        if not failures.is_memory_error(error):
            raise
        return Measured(micro, None, None)
    finally:
        gc.collect()  # models of a trial hang in cycles, and the next one needs their memory
    return Measured(micro, speed, memory.peak_bytes(device))


def take_apart(recipe: Recipe, corpus: Corpus, device: torch.device) -> dict[str, float]:
    """Seconds of the parts of a step, by name."""
    model, objective = build_learner(recipe, corpus.tokenizer)
    rows = build_rows(recipe, corpus, objective)
    parts = dict.fromkeys(("batches", "forward", "backward", "update"), 0.0)

    @contextlib.contextmanager
    def clock(part: str, counts: bool) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        synchronize(device)
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
                with clock("forward", counts), loop.autocast():
                    loss = total_loss(loop.learner(batch.to(device)), totals)
                with clock("backward", counts):
                    loss.backward()
            with clock("update", counts):
                optim.clip_gradients([p for _, p in loop.named], recipe.train.clip, loop.optimizer)
                loop.optimizer.step()
                loop.optimizer.zero_grad(set_to_none=True)
    return parts
