"""Reference losses of a corpus: what counting words and pairs of words predicts, without any learning.

A language model that is no better than a bigram has not begun to use its context, so a comparison of such models says
nothing about the methods. The bigram is interpolated by absolute discounting (Ney, Essen and Kneser 1994), the unigram
has one added to each count; both are counted on train and measured on valid, in nats a token.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.train import checkpoint

MAX_TRAIN, MAX_VALID = 20_000_000, 2_000_000  # tokens that are counted and measured: some seconds
DISCOUNT = 0.75
SPARSE_MASKING = 0.25  # share of masked tokens up to which a masked model sees most neighbours, as a bigram does
# What a discriminator must gain over one answer for every token: a tenth of a point of accuracy. One that had found
# 0.5 % of the replaced tokens was 0.0003 above it (docs/studies/mlm-vs-electra.html); those that had learnt gained
# 0.011 and more.
LEAST_GAIN = 0.001
VERSION = 1


@dataclass(frozen=True)
class ReferenceLoss:
    unigram: float  # nats a token of the valid split
    bigram: float
    tokens_per_byte: float  # of the valid split


@dataclass(frozen=True)
class Progress:
    """Loss of a language model beside the reference that it must pass."""

    loss: float
    reference: float
    kind: Literal["bigram", "unigram", "all original", "all replaced"]
    unit: Literal["nats a token", "bits a byte", "accuracy"]

    @property
    def has_learnt(self) -> bool:
        if self.unit == "accuracy":  # the loss is minus the gain
            return self.reference - self.loss >= LEAST_GAIN
        return self.loss < self.reference

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "has_learnt": self.has_learnt}


def compute_reference(train: np.ndarray, valid: np.ndarray, vocab: int) -> tuple[float, float]:
    """Compute the mean loss (nats) of a unigram and of a bigram, counted on `train`, over the tokens of `valid`."""
    train, valid = train.astype(np.int64), valid.astype(np.int64)
    counts = np.bincount(train, minlength=vocab) + 1.0
    unigram = counts / counts.sum()
    pairs, pair_counts = np.unique(train[:-1] * vocab + train[1:], return_counts=True)
    contexts = pairs // vocab
    totals = np.bincount(contexts, weights=pair_counts, minlength=vocab)  # (V,) how often each is followed
    types = np.bincount(contexts, minlength=vocab)  # (V,) by how many different tokens
    before, after = valid[:-1], valid[1:]
    wanted = before * vocab + after
    places = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    matched = np.where(pairs[places] == wanted, pair_counts[places], 0)
    total = np.maximum(totals[before], 1.0)
    backoff = np.where(totals[before] > 0, DISCOUNT * types[before] / total, 1.0)
    bigram = np.maximum(matched - DISCOUNT, 0) / total + backoff * unigram[after]
    return float(-np.log(unigram[valid]).mean()), float(-np.log(bigram).mean())


def load_reference(folder: str | Path, cache: Path) -> ReferenceLoss | None:
    """Load the reference of a corpus, computed once and cached by its fingerprint; None without a valid split."""
    corpus = Corpus.open(folder)
    path = cache / f"{corpus.fingerprint}.json"
    if path.is_file():
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("version", None) == VERSION:
            return ReferenceLoss(**values)
    try:
        held_out = Corpus.open(folder, "valid")
    except UserError:
        return None
    if corpus.total < 2 or held_out.total < 2:
        return None
    train = corpus.tokens(0, min(corpus.total, MAX_TRAIN))
    valid = held_out.tokens(0, min(held_out.total, MAX_VALID))
    unigram, bigram = compute_reference(train, valid, corpus.tokenizer.vocab)
    reference = ReferenceLoss(unigram, bigram, held_out.total / held_out.bytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_text(path, json.dumps({"version": VERSION, **asdict(reference)}))
    return reference


def measure_progress(recipe: Recipe, valid: dict[str, float], reference: ReferenceLoss | None) -> Progress | None:
    """Compare a pre-training's metrics on held-out text with its reference; None where there is nothing to compare.

    Where most tokens are masked, few have a neighbour to see: such a model must pass the unigram alone. A discriminator
    must beat whichever of its two answers is right more often, given to every token it is scored on, by LEAST_GAIN; its
    loss is minus what it gains over that. A loss over tokens that the model sees has no reference.
    """
    objective = recipe.objective.model_dump()
    if "discriminator" in valid:
        constant = max(valid["replaced"], 1 - valid["replaced"])
        kind: Literal["all original", "all replaced"] = "all replaced" if valid["replaced"] > 0.5 else "all original"
        return Progress(constant - valid["accuracy"], 0.0, kind, "accuracy")
    if reference is None:
        return None
    if "bits_per_byte" in valid:
        bits = reference.bigram * reference.tokens_per_byte / math.log(2)
        return Progress(valid["bits_per_byte"], bits, "bigram", "bits a byte")
    if "cloze" in valid:
        return Progress(valid["text"], reference.bigram, "bigram", "nats a token")
    if "mlm" in valid and objective.get("variant") != "all_tokens_mlm":
        mask_rate = objective.get("mask_rate") or 0.0
        if mask_rate > SPARSE_MASKING:
            return Progress(valid["mlm"], reference.unigram, "unigram", "nats a token")
        return Progress(valid["mlm"], reference.bigram, "bigram", "nats a token")
    return None
