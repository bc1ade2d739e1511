"""Perplexity by a sliding window: how well a causal model predicts a text, every token of it exactly once.

A text longer than the context is seen through windows that begin at multiples of the stride. A token is scored in
the first window that reaches it, so behind the first window every token sees at least `context - stride + 1` tokens
of its past; a small stride sees more and costs more. The first token follows end-of-text, or a start token
(`objective.start`), as documents do in pre-training; where the tokenizer has none (GPT-1), it cannot be scored and is
counted as such.

In a corpus the documents are read as the model read them in pre-training: end-of-text behind each, which is scored
too, and one stream of them all, or each document alone (`objective.documents`).

Nats a token depend on the tokenizer; nats a word and bits a byte compare models with different ones (GPT-2, section
3.1, rescales to a data set's own unit in the same way).

A masked model has no such likelihood. `pseudo_perplexity` masks one token at a time and asks for it from both of its
sides (Salazar et al. 2020): for masked models among themselves, and not comparable with a causal model's number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.generation import window_start
from etude.nn.losses import choose_chunk_size
from etude.nn.packed import Packed
from etude.nn.precision import upcast
from etude.objectives.causal import Stream
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer import characters
from etude.text.tokenizer.tokenizer import Tokenizer

COPIES = 64  # of a text, each with another token masked, made at once


@dataclass(frozen=True)
class Perplexity:
    nats: float  # of all scored tokens together
    tokens: int  # scored, end-of-text behind documents among them
    words: int  # runs of letters and digits, and single symbols (text/tokenizer/characters.py); in a corpus, its word starts
    bytes: int  # of the text in UTF-8
    unknown: int  # scored tokens that stand for letters the tokenizer does not know: their letters cost nothing
    unscored: int  # tokens with nothing before them
    context: int
    stride: int
    pseudo: bool = False  # of a masked model: not comparable with the others

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(1, self.tokens)

    @property
    def nats_per_word(self) -> float:
        return self.nats / max(1, self.words)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / max(1, self.bytes)

    @property
    def perplexity(self) -> float:
        return math.exp(self.nats_per_token)

    @property
    def word_perplexity(self) -> float:
        return math.exp(self.nats_per_word)


class Tokens(Protocol):
    """Ids behind one another that can be read anywhere; the first is context alone."""

    @property
    def total(self) -> int: ...

    def read(self, start: int, size: int) -> np.ndarray: ...


@dataclass
class Held:
    """Ids in memory."""

    ids: np.ndarray

    @property
    def total(self) -> int:
        return len(self.ids)

    def read(self, start: int, size: int) -> np.ndarray:
        return self.ids[start : start + size]


@dataclass
class Joined:
    """All documents of a corpus as one stream: the end-of-text that is also its last token, then all of it."""

    stream: Stream

    @property
    def total(self) -> int:
        return self.stream.total + 1

    def read(self, start: int, size: int) -> np.ndarray:
        size = min(size, self.total - start)
        return self.stream.read(start - 1, size)  # the stream goes around: what stands before it is its last token


def perplexity(
    loaded: InferenceModel, source: str | Corpus, stride: int | None = None, context: int | None = None
) -> Perplexity:
    """Of a text, or of a part of a corpus. The stride is half the context unless given."""
    if not loaded.model.causal:
        raise UserError(
            "This model does not predict a text from left to right, so it has no perplexity. "
            "Of a masked model there is a pseudo-perplexity."
        )
    loaded.must_speak()
    context = loaded.model.max_length if context is None else context
    if not 1 <= context <= loaded.model.max_length:
        raise UserError(f"context={context}: the model sees from 1 to {loaded.model.max_length} tokens.")
    stride = max(1, context // 2) if stride is None else stride
    if not 1 <= stride <= context:
        raise UserError(f"stride={stride}: take 1 to {context}; a larger one would leave tokens out.")
    end = loaded.tokenizer.special.end
    if end is None and isinstance(source, Corpus):
        raise UserError(
            "This model's tokenizer has no end-of-text token to stand between documents: give a text, not a corpus."
        )
    total, count, unknown, unscored = 0.0, 0, 0, 0
    for nats, targets in scored(loaded, _pieces(loaded, source, end), context, stride):
        total += float(nats.double().sum())
        count += len(targets)
        unknown += int((targets == loaded.tokenizer.special.unknown).sum())
    if isinstance(source, str) and end is None and loaded.objective.start_token is None:
        unscored = 1
    if not count:
        raise UserError("The text has no tokens to score.")
    words, size = _measured(source)
    return Perplexity(total, count, words, size, unknown, unscored, context, stride)


def _pieces(loaded: InferenceModel, source: str | Corpus, end: int | None) -> Iterator[Tokens]:
    """What is read from its own beginning: a text, a stream of documents, or each document alone."""
    own = loaded.objective.start_token
    first = end if own is None else own  # what a text stands behind
    if isinstance(source, str):
        ids = loaded.tokenizer.encode(source).ids
        yield Held(ids if first is None else np.concatenate([[first], ids]))
        return
    _same_tokenizer(loaded, source)
    stream = Stream(source, start=own is not None)
    if not loaded.objective.splits_documents:
        yield Joined(stream)
        return
    for start, stop in _documents(source):
        yield Held(np.concatenate([[first], source.tokens(start, stop), stream.markers]))


def _documents(corpus: Corpus) -> Iterator[tuple[int, int]]:
    start = 0
    for number in range(len(corpus.documents)):
        stop = corpus.documents[number + 1]
        yield start, stop
        start = stop


def _same_tokenizer(loaded: InferenceModel, corpus: Corpus) -> None:
    if corpus.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise UserError(
            "The corpus was made with another tokenizer than the model's: prepare the text with the model's."
        )


def _measured(source: str | Corpus) -> tuple[int, int]:
    """Words and bytes."""
    if isinstance(source, Corpus):
        block = 1 << 20
        starts = range(0, source.total, block)
        words = sum(int(source.word_starts(at, min(at + block, source.total)).sum()) for at in starts)
        return words, source.bytes
    text = Tokenizer.normalise(source)
    return int(characters.find_word_starts(characters.classify(text)).sum()), len(text.encode())


# --- windows ----------------------------------------------------------------------------------------


@dataclass
class Window:
    inputs: np.ndarray  # (n,) int64
    targets: np.ndarray  # (n,) the token behind each
    first: int  # the first place whose target no window before has scored


def windows(tokens: Tokens, context: int, stride: int) -> Iterator[Window]:
    """Every token but the first is the target of exactly one window."""
    done = 1
    while done < tokens.total:
        start = window_start(done, context, stride)
        ids = tokens.read(start, min(context + 1, tokens.total - start)).astype(np.int64)
        yield Window(ids[:-1], ids[1:], done - 1 - start)
        done = start + len(ids)


def scored(
    loaded: InferenceModel, pieces: Iterable[Tokens], context: int, stride: int
) -> Iterator[tuple[Tensor, np.ndarray]]:
    """Nats and ids of the scored tokens, in order, as many windows at a time as memory allows."""
    kept: list[Window] = []  # what `packed` has taken and not yet given back

    def inputs() -> Iterator[Any]:
        for piece in pieces:
            for window in windows(piece, context, stride):
                kept.append(window)
                yield window.inputs

    for packed in loaded.packed(inputs()):
        count = len(packed.layout.lengths)
        group, kept[:] = kept[:count], kept[count:]
        starts = packed.layout.host[:-1].astype(np.int64)
        index = [np.arange(at + one.first, at + len(one.inputs)) for at, one in zip(starts, group, strict=True)]
        targets = np.concatenate([one.targets[one.first :] for one in group])
        yield nats_at(loaded, packed, np.concatenate(index), targets), targets


def nats_at(loaded: InferenceModel, packed: Packed, index: np.ndarray, targets: np.ndarray) -> Tensor:
    """(M,) the nats of some tokens at some places."""
    return judged_at(loaded, packed, index, targets)[0]


@torch.no_grad()
def judged_at(loaded: InferenceModel, packed: Packed, index: np.ndarray, targets: np.ndarray) -> tuple[Tensor, Tensor]:
    """(M,) the nats of some tokens at some places, and whether each is the likeliest; a chunk of scores at a time."""
    states = loaded.objective.hidden_for_logits(loaded.model, packed)
    chunk = choose_chunk_size(loaded.model.vocab)
    nats, likeliest = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for start in range(0, len(index), chunk):
        place, target = (torch.from_numpy(part[start : start + chunk]).to(loaded.device) for part in (index, targets))
        scores = loaded.objective.logits(loaded.model, replace(states, last=states.last.index_select(0, place)))
        nats.append(F.cross_entropy(upcast(scores), target, reduction="none").cpu())
        likeliest.append((scores.argmax(-1) == target).cpu())
    return torch.cat(nats), torch.cat(likeliest)


# --- masked models ----------------------------------------------------------------------------------


def pseudo_perplexity(loaded: InferenceModel, source: str | Corpus) -> Perplexity:
    """Of a masked model: each token from both of its sides, masked alone. Not comparable with `perplexity`.

    A text, or each document of a corpus, is cut into stretches that fill the context; a token sees its stretch.
    """
    mask = loaded.tokenizer.special.mask
    if loaded.objective.predicts_next or mask is None:
        raise UserError("This model has no mask to ask through: a causal model has a true likelihood, use perplexity.")
    loaded.must_speak()
    room = loaded.model.max_length - len(loaded.objective.frame(np.zeros(0, np.int64), None))
    total, count, unknown = 0.0, 0, 0
    for ids in _stretches(loaded, source, room):
        framed = loaded.frame(ids)
        before = (len(framed) - len(ids)) // 2  # a marker on each side, or none
        for start in range(0, len(ids), COPIES):
            places = np.arange(start, min(start + COPIES, len(ids)))
            copies = np.tile(framed, (len(places), 1))
            copies[np.arange(len(places)), before + places] = mask
            for packed in loaded.packed(copies):
                some, places = np.split(places, [len(packed.layout.lengths)])
                index = packed.layout.host[:-1].astype(np.int64) + before + some
                total += float(nats_at(loaded, packed, index, ids[some]).double().sum())
        count += len(ids)
        unknown += int((ids == loaded.tokenizer.special.unknown).sum())
    if not count:
        raise UserError("The text has no tokens to score.")
    words, size = _measured(source)
    return Perplexity(total, count, words, size, unknown, 0, loaded.model.max_length, room, pseudo=True)


def _stretches(loaded: InferenceModel, source: str | Corpus, room: int) -> Iterator[np.ndarray]:
    if isinstance(source, str):
        texts: Iterator[np.ndarray] = iter([loaded.tokenizer.encode(source).ids])
    else:
        _same_tokenizer(loaded, source)
        texts = (source.tokens(start, stop) for start, stop in _documents(source))
    for ids in texts:
        for start in range(0, len(ids), room):
            yield ids[start : start + room].astype(np.int64)
