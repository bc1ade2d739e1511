"""Skip-gram with negative sampling: a word's vector predicts the words around it.

Mikolov et al. 2013b, sections 2.2 and 2.3, in the order of word2vec [code]: unknown words are dropped, then
frequent words by chance (*before* windows are laid, so windows reach further), then each centre draws an
effective window of 1..window, and each pair (centre, context) is told apart from `negatives` noise words:

    -log s(u_context . v_centre) - sum over k of log s(-u_k . v_centre),    noise ~ count^0.75

A noise word equal to the context is skipped, not drawn again. The code keeps a word of frequency f with
sqrt(t/f) + t/f, the paper with sqrt(t/f): `keep`. The code lets the context predict the centre, which is the
same set of pairs turned around; here it is the centre, as in the paper.

Every draw is a hash of (seed, step, row, position), so the pairs of a row do not depend on its company.

word2vec is plain SGD, one pair after another. `update` does it by blocks of a row's pairs: within a block all
gradients are taken at the same vectors and added up. Blocks end with their row, so micro-batches do not change
what is learnt. `loss` is the same loss for autograd.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude import chance as draw
from etude.chance import Chance
from etude.errors import UserError
from etude.models.static import Static
from etude.objectives.base import Batch, Objective, Row, Term, join
from etude.settings import Strict
from etude.text.corpus import Corpus
from etude.text.tokenizer import Specials


class Settings(Strict):
    window: int = Field(default=5, ge=1, description="words to each side at most")
    negatives: int = Field(default=5, ge=1, description="noise words a pair; 5-20 for small text, 2-5 for large")
    subsample: float | None = Field(
        default=1e-3, gt=0, description="t: words more frequent than about this are thinned"
    )
    keep: Literal["code", "paper"] = "code"
    noise_power: float = Field(default=0.75, ge=0)
    # windows end with their row: at 512 tokens and window 5, one pair in 220 is lost (word2vec at its 1000: in 430)
    row_tokens: int = Field(default=512, ge=2)
    # Larger blocks learn slower, smaller ones take longer: one pass over 240,000 words of Wikipedia ended at a loss of
    # 2.95 with 16 pairs, 2.96 with 256 in a fifth of the time, 3.01 with 8192.
    block: int = Field(default=256, ge=1, description="pairs whose gradients are taken at the same vectors")


@dataclass
class Frequencies:
    """What chance needs to know of a corpus: who is kept, and Walker's alias table of the noise (1977)."""

    kept: np.ndarray  # (V,) float32, probability to stay in the text
    accept: np.ndarray  # (V,) float32, probability that a slot gives its own word
    alias: np.ndarray  # (V,) int64, the word it gives otherwise

    @classmethod
    def of(cls, counts: np.ndarray, settings: Settings, unknown: int | None) -> Frequencies:
        counts = counts.astype(np.float64)
        if unknown is not None:
            counts[unknown] = 0  # dropped from the text, as words outside word2vec's vocabulary are
        if not counts.any():
            raise UserError("The corpus has no known words to learn vectors of. Prepare it with a larger vocabulary.")
        kept = np.where(counts > 0, 1.0, 0.0)
        if settings.subsample is not None:
            ratio = settings.subsample * counts.sum() / np.maximum(counts, 1)
            kept = kept * np.minimum(1.0, np.sqrt(ratio) + (ratio if settings.keep == "code" else 0.0))
        noise = np.where(counts > 0, counts**settings.noise_power, 0.0)
        accept, alias = alias_table(noise / noise.sum())
        return cls(kept.astype(np.float32), accept.astype(np.float32), alias)

    def noise(self, keys: np.ndarray, index: np.ndarray) -> np.ndarray:
        """One word for each index: a slot, and whether it gives its own word. Two draws, from two hashes."""
        slot = draw.below(keys, 2 * index, len(self.accept))
        own = draw.uniform(keys, 2 * index + 1) < self.accept[slot]
        return np.where(own, slot, self.alias[slot])


def alias_table(probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(V,) probabilities -> for each of V equal slots, the share of its own word and the word that has the rest."""
    share = probability * len(probability)
    alias = np.arange(len(probability))
    poor = np.flatnonzero(share < 1).tolist()
    rich = np.flatnonzero(share >= 1).tolist()
    left = share.tolist()  # plain floats: one at a time is slow in arrays
    while poor and rich:
        low, high = poor.pop(), rich[-1]
        alias[low] = high
        left[high] -= 1.0 - left[low]
        if left[high] < 1:
            poor.append(rich.pop())
    accept = np.array(left)
    accept[poor + rich] = 1.0  # rounding: these are full
    return np.clip(accept, 0.0, 1.0), alias


@dataclass
class SpanRow(Row):
    frequencies: Frequencies | None = None  # of its corpus, by reference


class Spans:
    """Row i is the i-th stretch of the corpus; its sequences are documents, the last row what is left."""

    shuffle = True

    def __init__(self, corpus: Corpus, row_tokens: int, frequencies: Frequencies) -> None:
        self.corpus, self.span, self.frequencies = corpus, row_tokens, frequencies
        self.row_tokens: int | None = row_tokens
        self.count = -(-corpus.total // row_tokens)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> SpanRow:
        start = index % self.count * self.span
        stop = min(start + self.span, self.corpus.total)
        documents = self.corpus.documents
        inner = documents.slice(documents.find(start) + 1, documents.find(stop - 1) + 1)
        bounds = np.concatenate([[0], inner - start, [stop - start]]).astype(np.int32)
        return SpanRow(index, self.corpus.tokens(start, stop), bounds, frequencies=self.frequencies)


@dataclass
class PairBatch(Batch):
    centres: Tensor | None = None  # (P,) int64
    contexts: Tensor | None = None  # (P,)
    noise: Tensor | None = None  # (P, K)
    starts: np.ndarray | None = None  # (R+1,) where the pairs of each row begin, on the host


class SkipGram(Objective):
    updates_itself = True

    def __init__(self, settings: Settings, special: Specials) -> None:
        super().__init__()
        self.settings, self.unknown = settings, special.unknown

    def rows(self, corpus: Corpus, seed: int) -> Spans:
        # a held-out part is judged with the chance of the training text
        known = corpus if corpus.part == "train" else Corpus.open(corpus.folder)
        frequencies = Frequencies.of(known.token_counts(), self.settings, self.unknown)
        return Spans(corpus, self.settings.row_tokens, frequencies)

    def batch(self, rows: Sequence[Row], chance: Chance) -> PairBatch:
        settings = self.settings
        first = rows[0]
        assert isinstance(first, SpanRow) and first.frequencies is not None
        frequencies = first.frequencies
        fields = join(rows, sequences=1, longest=settings.row_tokens)
        tokens, bounds = fields["tokens"].numpy(), fields["layout"].host
        sizes = [len(row.tokens) for row in rows]
        place = np.concatenate([np.arange(size) for size in sizes])  # (N,) in its own row

        def keys(purpose: str) -> np.ndarray:
            return np.repeat(chance.keys(purpose, fields["rows"]), sizes)

        kept = np.flatnonzero(draw.uniform(keys("keep"), place) < frequencies.kept[tokens])
        sequence = np.searchsorted(bounds, kept, side="right")
        reach = 1 + draw.below(keys("window")[kept], place[kept], settings.window)
        centre, context = pairs(sequence, reach, settings.window)
        at, other = kept[centre], kept[context]

        # a pair is known by its two places: its noise does not depend on how many pairs come before it
        number = place[at] * settings.row_tokens + place[other]
        index = number[:, None] * settings.negatives + np.arange(settings.negatives)
        noise = frequencies.noise(keys("noise")[at][:, None], index)  # (P, K)
        return PairBatch(
            **fields,
            counts={"loss": len(at)},
            centres=torch.from_numpy(tokens[at]),
            contexts=torch.from_numpy(tokens[other]),
            noise=torch.from_numpy(noise),
            starts=np.searchsorted(at, np.concatenate([[0], np.cumsum(sizes)])),  # pairs are in the order of centres
        )

    def loss(self, model: nn.Module, batch: PairBatch) -> dict[str, Term]:
        assert isinstance(model, Static)
        centres, words = self._words(batch)
        scores = (model.input(centres)[:, None] * model.output(words)).sum(-1)  # (P, 1+K)
        total = (F.softplus(-scores * self._signs(scores)) * self._counted(words)).sum(dtype=torch.float64)
        return {"loss": Term(total, len(centres))}

    @torch.no_grad()
    def update(self, model: nn.Module, batch: PairBatch, rate: float) -> dict[str, Term]:
        """Walks through the pairs by blocks, each seeing what the blocks before it changed."""
        assert isinstance(model, Static)
        inputs, outputs = model.input.weight, model.output.weight  # (V, D)
        centres, words = self._words(batch)
        total = torch.zeros((), dtype=torch.float64, device=inputs.device)
        for block in self._blocks(batch):
            here, there = centres[block], words[block]  # (B,), (B, 1+K)
            centre, others = inputs[here], outputs[there]  # (B, D), (B, 1+K, D)
            scores = (centre[:, None] * others).sum(-1)  # (B, 1+K); on a CPU faster than so many tiny matrix products
            signs, counted = self._signs(scores), self._counted(there)
            total += (F.softplus(-scores * signs) * counted).sum(dtype=torch.float64)
            slope = -signs * torch.sigmoid(-scores * signs) * counted * -rate  # d loss / d score, times -rate
            inputs.index_add_(0, here, (slope[..., None] * others).sum(1))
            outputs.index_add_(0, there.flatten(), (slope[..., None] * centre[:, None]).flatten(0, 1))
        return {"loss": Term(total, len(centres))}

    def flops(self, model: nn.Module, batch: PairBatch) -> int:
        """A score a word of each pair, and in the backward pass two products more."""
        assert isinstance(model, Static)
        return 3 * 2 * model.width * (1 + self.settings.negatives) * batch.counts["loss"]

    def _blocks(self, batch: PairBatch) -> Iterator[slice]:
        assert batch.starts is not None
        for first, last in itertools.pairwise(batch.starts.tolist()):
            for start in range(first, last, self.settings.block):
                yield slice(start, min(start + self.settings.block, last))

    @staticmethod
    def _words(batch: PairBatch) -> tuple[Tensor, Tensor]:
        """(P,) centres, (P, 1+K) the context and its noise."""
        assert batch.centres is not None and batch.contexts is not None and batch.noise is not None
        return batch.centres, torch.cat([batch.contexts[:, None], batch.noise], dim=1)

    @staticmethod
    def _signs(scores: Tensor) -> Tensor:
        """+1 for the context, -1 for noise."""
        signs = torch.full_like(scores, -1.0)
        signs[:, 0] = 1.0
        return signs

    @staticmethod
    def _counted(words: Tensor) -> Tensor:
        """False where a noise word is the context itself."""
        counted = words != words[:, :1]
        counted[:, 0] = True
        return counted


def pairs(sequence: np.ndarray, reach: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """All (centre, context) at most `reach[centre]` apart in the same sequence, by centre, then by context."""
    size = len(sequence)
    offsets = np.concatenate([np.arange(-window, 0), np.arange(1, window + 1)])
    context = np.arange(size)[:, None] + offsets  # (n, 2 window)
    inside = (context >= 0) & (context < size) & (np.abs(offsets) <= reach[:, None])
    inside &= sequence[np.clip(context, 0, max(0, size - 1))] == sequence[:, None] if size else False
    centre, column = np.nonzero(inside)
    return centre, context[centre, column]


def build(settings: Settings, model: nn.Module, special: Specials) -> SkipGram:
    if not isinstance(model, Static):
        raise UserError(f"objective skipgram trains word vectors, not {type(model).__name__}. Set model.kind: static.")
    return SkipGram(settings, special)
