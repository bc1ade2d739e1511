"""Perplexity by a sliding window: every token of a text is scored exactly once.

A text longer than the context is read in windows that begin at multiples of the stride. A token is scored in
the first window that reaches it, so after the first window every token sees at least `context - stride + 1` tokens
of its past; a small stride sees more and costs more. The first token follows end-of-text, or a start token
(`objective.start`), as documents do in pre-training; where the tokenizer has none (GPT-1), it cannot be scored and is
counted as `unscored`.

In a corpus the documents are read as the model read them in pre-training: end-of-text behind each, which is scored
too, and one stream of them all, or each document alone (`objective.documents`).

Nats a token depend on the tokenizer; nats a word and bits a byte compare models with different ones (GPT-2, section
3.1, rescales to a data set's own unit in the same way).

A masked model has no such likelihood. `pseudo_perplexity` masks one token at a time and predicts it from both
sides (Salazar et al. 2020): it compares masked models, and is not comparable with the perplexity of a causal model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from etude.errors import UserError
from etude.inference.base import InferenceModel
from etude.inference.reader import window_start
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
    """The negative log-likelihood of a text with the counts it is divided by."""

    nats: float  # of all scored tokens together
    tokens: int  # scored, end-of-text behind documents among them
    words: int  # runs of letters and digits, and symbols (text/tokenizer/characters.py); in a corpus, its word starts
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
        return _exp(self.nats_per_token)

    @property
    def word_perplexity(self) -> float:
        return _exp(self.nats_per_word)


def _exp(nats: float) -> float:
    """e to a power; infinity where that is no float: a long word without a space has thousands of nats."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


class Tokens(Protocol):
    """A sequence of ids with random access; the first is context only and is not scored."""

    @property
    def total(self) -> int: ...

    def read(self, start: int, size: int) -> np.ndarray: ...


@dataclass
class IdArray:
    """Ids in memory, as `Tokens`."""

    ids: np.ndarray

    @property
    def total(self) -> int:
        return len(self.ids)

    def read(self, start: int, size: int) -> np.ndarray:
        return self.ids[start : start + size]


@dataclass
class DocumentStream:
    """All documents of a corpus as one stream, with its last token (end-of-text) repeated before the first."""

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
    """Measure the perplexity of a text or of a part of a corpus; the stride is half the context by default."""
    if not loaded.model.causal:
        raise UserError(
            "This model does not predict a text from left to right, so it has no perplexity. "
            "Of a masked model there is a pseudo-perplexity."
        )
    loaded.require_trained_head()
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
    for nats, targets in score_windows(loaded, _read_pieces(loaded, source, end), context, stride):
        total += float(nats.double().sum())
        count += len(targets)
        unknown += int((targets == loaded.tokenizer.special.unknown).sum())
    if isinstance(source, str) and end is None and loaded.objective.start_token is None:
        unscored = 1
    if not count:
        raise UserError("The text has no tokens to score.")
    words, size = _count_words_and_bytes(source)
    return Perplexity(total, count, words, size, unknown, unscored, context, stride)


def _read_pieces(loaded: InferenceModel, source: str | Corpus, end: int | None) -> Iterator[Tokens]:
    """Yield what is scored separately: a text, a stream of documents, or each document alone."""
    start_token = loaded.objective.start_token
    first = end if start_token is None else start_token  # the context of a text's first token
    if isinstance(source, str):
        ids = loaded.tokenizer.encode(source).ids
        yield IdArray(ids if first is None else np.concatenate([[first], ids]))
        return
    _check_same_tokenizer(loaded, source)
    stream = Stream(source, start=start_token is not None)
    if not loaded.objective.splits_documents:
        yield DocumentStream(stream)
        return
    for start, stop in _documents(source):
        yield IdArray(np.concatenate([[first], source.tokens(start, stop), stream.markers]))


def _documents(corpus: Corpus) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each document in tokens."""
    start = 0
    for number in range(len(corpus.documents)):
        stop = corpus.documents[number + 1]
        yield start, stop
        start = stop


def _check_same_tokenizer(loaded: InferenceModel, corpus: Corpus) -> None:
    if corpus.tokenizer.fingerprint != loaded.tokenizer.fingerprint:
        raise UserError(
            "The corpus was made with another tokenizer than the model's: prepare the text with the model's."
        )


def _count_words_and_bytes(source: str | Corpus) -> tuple[int, int]:
    """Return the numbers of words and of UTF-8 bytes."""
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
    """A stretch of tokens that fits the context, and the targets that it scores."""

    inputs: np.ndarray  # (n,) int64
    targets: np.ndarray  # (n,) the token behind each
    first: int  # the first position whose target no earlier window has scored


def windows(tokens: Tokens, context: int, stride: int) -> Iterator[Window]:
    """Yield windows in which every token but the first is a scored target exactly once."""
    done = 1
    while done < tokens.total:
        start = window_start(done, context, stride)
        ids = tokens.read(start, min(context + 1, tokens.total - start)).astype(np.int64)
        yield Window(ids[:-1], ids[1:], done - 1 - start)
        done = start + len(ids)


def score_windows(
    loaded: InferenceModel, pieces: Iterable[Tokens], context: int, stride: int
) -> Iterator[tuple[Tensor, np.ndarray]]:
    """Yield nats and ids of the scored tokens, in order, as many windows at a time as memory allows."""
    pending: list[Window] = []  # read by `pack_batches` and not yet scored

    def inputs() -> Iterator[np.ndarray]:
        for piece in pieces:
            for window in windows(piece, context, stride):
                pending.append(window)
                yield window.inputs

    for packed in loaded.pack_batches(inputs()):
        count = len(packed.layout.lengths)
        group, pending[:] = pending[:count], pending[count:]
        starts = packed.layout.host[:-1].astype(np.int64)
        index = [
            np.arange(at + window.first, at + len(window.inputs)) for at, window in zip(starts, group, strict=True)
        ]
        targets = np.concatenate([window.targets[window.first :] for window in group])
        yield target_nats(loaded, packed, np.concatenate(index), targets), targets


def target_nats(loaded: InferenceModel, packed: Packed, index: np.ndarray, targets: np.ndarray) -> Tensor:
    """Return the nats (M,) of target tokens at positions `index` of a packed batch."""
    return score_targets(loaded, packed, index, targets)[0]


@torch.no_grad()
def score_targets(
    loaded: InferenceModel, packed: Packed, index: np.ndarray, targets: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Return the nats (M,) of target tokens and whether each is the likeliest; a chunk of logits at a time."""
    states = loaded.objective.hidden_for_logits(loaded.model, packed)
    chunk = choose_chunk_size(loaded.model.vocab)
    nats, likeliest = [torch.zeros(0)], [torch.zeros(0, dtype=torch.bool)]
    for start in range(0, len(index), chunk):
        place, target = (torch.from_numpy(part[start : start + chunk]).to(loaded.device) for part in (index, targets))
        logits = loaded.objective.logits(loaded.model, replace(states, last=states.last.index_select(0, place)))
        nats.append(F.cross_entropy(upcast(logits), target, reduction="none").cpu())
        likeliest.append((logits.argmax(-1) == target).cpu())
    return torch.cat(nats), torch.cat(likeliest)


# --- masked models ----------------------------------------------------------------------------------


def pseudo_perplexity(loaded: InferenceModel, source: str | Corpus) -> Perplexity:
    """Measure the pseudo-perplexity of a masked model: each token masked alone. Not comparable with `perplexity`.

    A text, or each document of a corpus, is cut into stretches that fill the context; a token sees its stretch.
    """
    mask = loaded.tokenizer.special.mask
    if loaded.objective.predicts_next or mask is None:
        raise UserError("This model has no mask token. A causal model has a true likelihood: use perplexity.")
    loaded.require_trained_head()
    room = loaded.model.max_length - len(loaded.objective.frame(np.zeros(0, np.int64), None))
    total, count, unknown = 0.0, 0, 0
    for ids in _split_to_context(loaded, source, room):
        framed = loaded.frame(ids)
        before = (len(framed) - len(ids)) // 2  # a marker on each side, or none
        for start in range(0, len(ids), COPIES):
            places = np.arange(start, min(start + COPIES, len(ids)))
            copies = np.tile(framed, (len(places), 1))
            copies[np.arange(len(places)), before + places] = mask
            for packed in loaded.pack_batches(copies):
                group, places = np.split(places, [len(packed.layout.lengths)])
                index = packed.layout.host[:-1].astype(np.int64) + before + group
                total += float(target_nats(loaded, packed, index, ids[group]).double().sum())
        count += len(ids)
        unknown += int((ids == loaded.tokenizer.special.unknown).sum())
    if not count:
        raise UserError("The text has no tokens to score.")
    words, size = _count_words_and_bytes(source)
    return Perplexity(total, count, words, size, unknown, 0, loaded.model.max_length, room, pseudo=True)


def _split_to_context(loaded: InferenceModel, source: str | Corpus, room: int) -> Iterator[np.ndarray]:
    """Yield the ids of a text, or of each document of a corpus, `room` tokens at a time."""
    if isinstance(source, str):
        texts: Iterator[np.ndarray] = iter([loaded.tokenizer.encode(source).ids])
    else:
        _check_same_tokenizer(loaded, source)
        texts = (source.tokens(start, stop) for start, stop in _documents(source))
    for ids in texts:
        for start in range(0, len(ids), room):
            yield ids[start : start + room].astype(np.int64)
