"""The work of a speed benchmark: models with their sizes, a corpus without end, and a clock for steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from etude.pretraining.bench import word_level_tokenizer
from etude.text.corpus.corpus import Corpus

WARM = 5  # steps before the clock starts


@dataclass(frozen=True)
class Work:
    name: str
    recipe: str
    peer: str  # the transformers class to build
    vocab: int
    length: int
    batch: int  # sequences of a step
    small: bool = False  # for a CPU: 4 layers of 256

    @property
    def tokens(self) -> int:
        return self.batch * self.length


PUBLISHED = (
    Work("bert-128", "bert-base", "bert", 30_522, 128, 256),
    Work("bert-512", "bert-base", "bert", 30_522, 512, 64),
    Work("gpt2-1024", "gpt2", "gpt2", 50_257, 1024, 32),
    Work("electra-128", "electra-small", "electra", 30_522, 128, 512),
    Work("albert-512", "albert-base", "albert", 30_000, 512, 64),
)
OURS = (Work("encoder-20min", "encoder-20min", "none", 30_522, 128, 1024),)  # no peers: for step_turns.py
SMALL = (Work("bert-small-128", "bert-mini", "bert", 8_000, 128, 32, small=True),)


def random_corpus(vocab: int, tokens: int, documents: int = 1) -> Corpus:
    """Random words; in one long document: full-length sequences (but its last), nothing to learn, all to compute."""
    ids = np.random.default_rng(0).integers(6, vocab, (documents, max(2, tokens // documents // 100), 100))
    return Corpus.from_documents(ids.tolist(), word_level_tokenizer(vocab))


def peak_memory(device: torch.device) -> float:
    """What torch has taken from the device: recorded kernels keep memory that no tensor owns."""
    return torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else float("nan")


def timed(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds a step and the most memory held; compilation and first touches are left out."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    for _ in range(WARM):
        step()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / steps, peak_memory(device)
