"""The causal language model: every token from those before it (GPT-1, section 3.1; GPT-2; GPT-3, appendix B).

The text is one stream: each document, then end-of-text, and around from the last end-of-text to the first
document. A row is `row_tokens` inputs of the stream and, one further, as many targets; every token of the
stream is a target exactly once an epoch, and the places where rows begin differ from epoch to epoch.

    documents: join     sequences of `length` tokens span documents, without a mask between them (GPT-2, GPT-3)
    documents: split    a sequence ends where a document does; the next begins with its end-of-text as the start

Joined, a row is one sequence long unless told otherwise: sequences that follow on each other are alike, and a step that
has four of each place learns less from as many tokens (0.06 nats after 200 steps of 4,096 tokens in sequences of 128).
Split, a row's ends cut documents where they need not be cut, so it holds 512 tokens or more.

With `start`, a start token follows each end-of-text, and it is what a document and a prompt stand behind (Llama).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance, fold
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.transformer import Transformer
from etude.nn.losses import linear_cross_entropy, linear_losses_and_argmax
from etude.nn.states import States
from etude.objectives.base import IGNORE, Batch, PretrainingObjective, Row, Stat, Term, join
from etude.objectives.batch_view import BatchView, view_aligned
from etude.objectives.parts.heads import CausalHead
from etude.objectives.rows.sizes import corpus_name, sequence_length, whole_rows
from etude.settings import Strict
from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

SPLIT_ROW = 512  # tokens at least, where documents are split


class Settings(Strict):
    length: int | None = Field(default=None, ge=1, description="tokens of a sequence; the model's context unless given")
    row_tokens: int | None = Field(
        default=None, ge=1, description="a multiple of length; if None one, or where documents are split 512 tokens"
    )
    documents: Literal["join", "split"] = "join"
    start: bool = Field(default=False, description="a text stands behind the tokenizer's start token, as in Llama")
    bias: bool = Field(default=False, description="a bias a token on the logits; no GPT has one")


@dataclass(kw_only=True)
class CausalRow(Row):
    targets: np.ndarray  # (n,) int64, the token after each; IGNORE where the epoch is over
    most: int  # no row of this corpus holds more sequences


@dataclass(kw_only=True)
class CausalBatch(Batch):
    targets: Tensor  # (N,) int64


class Stream:
    """The documents of a corpus with end-of-text after each; read at any place in O(log documents).

    With `start`, a start token follows every end-of-text: that of the next document.
    """

    def __init__(self, corpus: Corpus, start: bool = False) -> None:
        special = corpus.tokenizer.special
        if special.end is None:
            raise UserError(
                f"{corpus_name(corpus)}: the {corpus.tokenizer.kind} tokenizer of this corpus has no end-of-text "
                "token, which a causal model needs between documents. Prepare the text with a tokenizer that has one; "
                "those that `etude prepare` trains do."
            )
        self.corpus = corpus
        self.markers = [int(special.end)]  # behind each document
        if start:
            self.markers.append(start_token(special))
        self.total = corpus.total + len(self.markers) * len(corpus.documents)

    @property
    def first(self) -> int:
        """The token that a document stands behind."""
        return self.markers[-1]

    def markers_before(self, place: int) -> int:
        """Markers before a place: all of the documents that end before it, and some where it stands among them."""
        documents, size = self.corpus.documents, len(self.markers)
        ended = int(documents.find(place, extra=size))
        if size == 1 or ended == len(documents):
            return size * ended
        return size * ended + max(0, place - int(documents[ended + 1]) - size * ended)

    def read(self, start: int, size: int) -> np.ndarray:
        """(size,) int32, from any place on and around the end."""
        parts = []
        start %= self.total
        while size:
            stop = min(start + size, self.total)
            parts.append(self._read(start, stop))
            start, size = stop % self.total, size - (stop - start)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _read(self, start: int, stop: int) -> np.ndarray:
        first, last = self.markers_before(start), self.markers_before(stop)
        text = self.corpus.tokens(start - first, stop - last)
        if first == last:
            return text
        # marker m belongs to document m // size and stands at that one's end, moved on by the m markers before it
        number, size = np.arange(first, last), len(self.markers)
        document = first // size
        ends = self.corpus.documents.slice(document + 1, (last - 1) // size + 2)[number // size - document]
        return np.insert(text, ends + first - start, np.array(self.markers, text.dtype)[number % size])


class StreamRows:
    shuffle = True

    def __init__(self, stream: Stream, seed: int, row_tokens: int, length: int, split: bool) -> None:
        self.stream, self.seed, self.length, self.split = stream, seed, length, split
        self.row_tokens: int | None = row_tokens
        self.size = row_tokens
        self.count = -(-stream.total // row_tokens)
        self.most = row_tokens // length
        if split:  # every document cuts once more, and the row's start too
            self.most += 1 + most_within(stream.corpus.documents, row_tokens, len(stream.markers))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> CausalRow:
        epoch, place = divmod(index, self.count)
        # the first target of the first epoch is the first token of the text, read from the last end-of-text
        cut = fold(self.seed, epoch, "cut") % self.stream.total if epoch else 0
        start = place * self.size
        text = self.stream.read(cut + start - 1, self.size + 1)
        targets = text[1:].astype(np.int64)
        targets[self.stream.total - start :] = IGNORE  # around the end: these were targets of the first row
        tokens = text[:-1]
        return CausalRow(index, tokens, self._bounds(tokens), targets=targets, most=self.most)

    def _bounds(self, tokens: np.ndarray) -> np.ndarray:
        if not self.split:
            return np.arange(0, self.size + 1, self.length, dtype=np.int32)
        starts = np.union1d([0], np.flatnonzero(tokens == self.stream.first))
        sizes = np.diff(starts, append=self.size)
        pieces = -(-sizes // self.length)  # sequences a document is cut into
        nth = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        return np.append(np.repeat(starts, pieces) + nth * self.length, self.size).astype(np.int32)


def most_within(documents: Bounds, tokens: int, extra: int = 1) -> int:
    """The most ends of documents in any `tokens` places of the stream, around its end too; `extra` markers each."""
    count, block, most = len(documents), 1 << 20, 1
    total = int(documents[count]) + extra * count
    for start in range(0, count, block):
        # places of the ends; a row shorter than the stream sees each at most once around
        stop = min(count, start + block + tokens)
        places = documents.slice(start + 1, stop + 1) + extra * np.arange(start, stop)
        if stop == count:
            reach = min(count, tokens)
            places = np.concatenate([places, documents.slice(1, reach + 1) + extra * np.arange(reach) + total])
        first = np.arange(min(block, count - start))
        most = max(most, int((np.searchsorted(places, places[first] + tokens) - first).max()))
    return most * -(-tokens // total)


def start_token(special: Specials) -> int:
    if special.start is None:
        raise UserError(
            "objective.start=true: this tokenizer has no start token for a text to stand behind. "
            "Set objective.start=false."
        )
    return int(special.start)


class Causal(PretrainingObjective[Transformer, CausalRow, CausalBatch]):
    token_loss = "loss"
    nats_per_token = "loss"
    length: int
    row_tokens: int

    def __init__(self, settings: Settings, model: Transformer, special: Specials) -> None:
        super().__init__()
        if not model.causal:
            raise UserError(
                f"objective.kind=causal with model.direction={model.settings.direction}: every token would see the one "
                "it predicts. Set model.direction=causal, or objective.kind=masked."
            )
        self.length = sequence_length(settings.length, model.context)
        self.splits_documents, self.end = settings.documents == "split", special.end
        self.row_tokens = whole_rows(
            settings.row_tokens, self.length, SPLIT_ROW if self.splits_documents else self.length
        )
        self.start_token = start_token(special) if settings.start else None
        self.head = CausalHead(model, settings.bias)

    def view_batch(self, model: Transformer, batch: CausalBatch) -> BatchView:
        asks = ("at each token, the one after it", "토큰마다 그다음 토큰")
        return BatchView(asks, view_aligned(batch, [batch.targets], padding=batch.padding))

    def rows(self, corpus: Corpus, seed: int) -> StreamRows:
        return StreamRows(self.stream(corpus), seed, self.row_tokens, self.length, self.splits_documents)

    def stream(self, corpus: Corpus) -> Stream:
        return Stream(corpus, start=self.start_token is not None)

    def tokens_per_byte(self, corpus: Corpus) -> float:
        """End-of-text is predicted too."""
        return self.stream(corpus).total / max(1, corpus.bytes)

    def batch(self, rows: Sequence[CausalRow], chance: Chance) -> CausalBatch:
        targets = np.concatenate([row.targets for row in rows])
        counts = {"loss": int((targets != IGNORE).sum())}
        packed = join(rows, rows[0].most, self.length)
        return CausalBatch(**packed, counts=counts, targets=torch.from_numpy(targets))

    def loss(self, model: Transformer, batch: CausalBatch) -> dict[str, Term]:
        last, table = self.head(model, model(batch))
        total = linear_cross_entropy(last, table, self.head.bias, batch.targets)
        return {"loss": Term(total, batch.counts["loss"])}

    def metrics(self, model: Transformer, batch: CausalBatch) -> dict[str, Stat]:
        last, table = self.head(model, model(batch))
        losses, likeliest = linear_losses_and_argmax(last, table, self.head.bias, batch.targets)
        count = batch.counts["loss"]
        return {
            "loss": Stat(losses.sum(), count, 1.0),
            "accuracy": Stat((likeliest == batch.targets).sum(), count),
        }

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """Behind end-of-text where pre-training had it: always if documents were split; else an empty text alone.

        Joined documents began anywhere in a sequence, and GPT-2's own code gives a prompt nothing to stand behind.
        A start token, where there is one, stands before every text, as Llama's own code has it.
        """
        if self.start_token is not None:
            return np.concatenate([[self.start_token], ids]).astype(ids.dtype)[:context]
        if not len(ids) and self.end is None:
            raise UserError(
                "An empty text gives this model nothing to start from: its tokenizer has no end-of-text token. "
                "Write at least a word."
            )
        if self.end is not None and (self.splits_documents or not len(ids)):
            ids = np.concatenate([[self.end], ids]).astype(ids.dtype)
        return ids[:context]

    def logits(self, model: Transformer, states: States) -> Tensor:
        last, table = self.head(model, states)
        return F.linear(last, table, self.head.bias)  # (N, V)

    def flops(self, model: Transformer, batch: CausalBatch) -> int:
        return 3 * (model.flops(batch.layout.lengths) + self.head.flops(batch.counts["loss"]))


def build(settings: Settings, model: Model, special: Specials) -> Causal:
    message = f"objective causal trains a Transformer, not {model.kind}. Set model.kind: transformer."
    return Causal(settings, require(model, Transformer, message), special)
