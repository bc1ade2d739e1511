"""GloVe: the product of two words' vectors is the logarithm of how often they meet.

Pennington et al. 2014, section 3, as the released program does it [code]:

    J = sum over X_ij > 0 of f(X_ij) (w_i . w~_j + b_i + b~_j - log X_ij)^2,    f(x) = min(1, (x / x_max)^alpha)

Counting comes first (`etude.text.corpus.cooccurrence`), once for a corpus and its settings; the counts are stored in
the folder of the corpus. A row is a stretch of its entries, and what budgets and speeds call tokens are entries. Two
tables of equal rights are learnt; their sum is a word's vector (model.result: sum). AdaGrad is the objective's own:
`adagrad: code` squares the step, `paper` the gradient (see objectives/word_vectors/kernels/glove_compiled.py).
train.lr is its eta.

Engines are those of `windows.py`: one entry after another on a CPU, blocks on a GPU.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.cores import count_cores
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.static import Static
from etude.objectives.base import Batch, PretrainingObjective, Row, Term, join
from etude.objectives.batch_view import BatchView, TokenView, view_list
from etude.objectives.word_vectors.kernels import inner_loops
from etude.settings import Strict
from etude.text.corpus.cooccurrence import Cooccurrences, CountSettings, count_cooccurrences
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

log = logging.getLogger("etude")

CHUNKS = 8  # pieces of a step for each thread


class Settings(Strict):
    window: int = Field(default=15, ge=1, description="words to each side; the paper has 10")
    symmetric: bool = Field(default=True, description="False: words to the left only")
    by_distance: bool = Field(default=True, description="a pair d places apart counts 1/d; False: 1")
    x_max: float = Field(default=100.0, gt=0, description="counts from here on have full weight; 10 for small text")
    alpha: float = Field(default=0.75, ge=0)
    clip: float = Field(default=100.0, gt=0, description="bound of each component of a gradient")
    adagrad: Literal["code", "paper"] = "code"
    memory_mb: int = Field(
        default=2000, ge=1, description="megabytes of memory for counting; further counts go to disk"
    )
    row_tokens: int = Field(default=1000, ge=1, description="entries of a row")
    engine: Literal["auto", "sequential", "batched"] = "auto"
    threads: int = Field(
        default=1,
        ge=0,
        description="threads of the sequential engine: 1 is bit-exact, more are faster, not repeatable; 0: all cores",
    )
    block: int = Field(
        default=16_384,
        ge=1,
        description="of engine batched: entries whose gradients are computed from the same vectors",
    )


@dataclass(kw_only=True)
class EntryRow(Row):
    columns: np.ndarray  # (n,) int64
    counts: np.ndarray  # (n,) float64


class Entries:
    """Row i is the i-th stretch of the entries, which lie in a random order already."""

    shuffle = True

    def __init__(self, entries: Cooccurrences, row_tokens: int, scale: float = 1.0) -> None:
        """`scale`: what counts are multiplied by."""
        self.entries, self.scale = entries, scale
        self.row_tokens: int | None = row_tokens
        self.span = row_tokens
        self.count = -(-len(entries) // row_tokens)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> EntryRow:
        part = slice(index % self.count * self.span, (index % self.count + 1) * self.span)
        rows = np.asarray(self.entries.rows[part])
        columns, counts = self.entries.columns[part].astype(np.int64), self.scale * self.entries.counts[part]
        return EntryRow(
            index, rows.astype(np.int32), np.array([0, len(rows)], np.int32), columns=columns, counts=counts
        )


@dataclass(kw_only=True)
class EntryBatch(Batch):
    columns: Tensor  # (E,) int64; `tokens` are the rows
    logs: Tensor  # (E,) float32, log x
    weights: Tensor  # (E,) float32, f(x)


class Cooccurrence(PretrainingObjective[Static, EntryRow, EntryBatch]):
    updates_itself = True

    def __init__(self, settings: Settings, model: Static, special: Specials) -> None:
        super().__init__()
        self.settings, self.special = settings, special
        self._shape = [model]  # in a list: the model is no part of the objective
        edge = 0.5 / model.width
        self.word_bias = nn.Parameter(torch.empty(model.vocab).uniform_(-edge, edge))
        self.context_bias = nn.Parameter(torch.empty(model.vocab).uniform_(-edge, edge))
        shape = (model.vocab, model.width)
        # sums of squares of what each parameter was moved by; they start at 1 [code]
        self.squares = [torch.ones(shape), torch.ones(shape), torch.ones(model.vocab), torch.ones(model.vocab)]
        self.counted: dict[str, Cooccurrences] = {}
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.pool: ThreadPoolExecutor | None = None

    # --- rows and batches ---------------------------------------------------------------------------

    def rows(self, corpus: Corpus, seed: int) -> Entries:
        settings = self.settings
        train = corpus.open_split("train")
        self._shape[0].set_counts(train.token_counts())
        counting = CountSettings(settings.window, settings.symmetric, settings.by_distance)
        key = f"{corpus.fingerprint} {corpus.split} {counting.key}"
        if key not in self.counted:
            place = self._place(corpus) / f"cooccurrence-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
            if corpus.total > 5_000_000 and not place.exists():
                log.warning("counting the co-occurrences of %s words, once for this corpus", f"{corpus.total:,}")
            self.counted[key] = count_cooccurrences(corpus, counting, place, settings.memory_mb << 20)
        entries = self.counted[key]
        if not len(entries) and corpus.split == "train":
            raise UserError(
                "No two known words of the corpus stand in one window. Prepare it with a larger vocabulary."
            )
        # a held-out part is smaller than the text whose counts were learnt: its words meet less often
        return Entries(entries, settings.row_tokens, train.total / corpus.total)

    def _place(self, corpus: Corpus) -> Path:
        """The folder of the corpus; a temporary one where that cannot be written, or is none."""
        if corpus._folder is not None and os.access(corpus.folder, os.W_OK):
            return corpus.folder
        if corpus._folder is not None:
            log.warning("%s cannot be written: co-occurrences are counted for this run alone.", corpus.folder)
        self.folder = self.folder or tempfile.TemporaryDirectory(prefix="etude-cooccurrence-")
        return Path(self.folder.name)

    def batch(self, rows: Sequence[EntryRow], chance: Chance) -> EntryBatch:
        counts = np.concatenate([row.counts for row in rows])
        columns = np.concatenate([row.columns for row in rows])
        fields = join(rows, sequences=1, longest=self.settings.row_tokens)
        twice = np.count_nonzero(columns != fields["tokens"].numpy()) if self.settings.symmetric else 0
        weights = np.minimum(1.0, (counts / self.settings.x_max) ** self.settings.alpha)
        return EntryBatch(
            **fields,
            counts={"loss": len(counts) + int(twice)},
            columns=torch.from_numpy(columns),
            logs=torch.from_numpy(np.log(counts).astype(np.float32)),
            weights=torch.from_numpy(weights.astype(np.float32)),
        )

    def view_batch(self, model: Static, batch: EntryBatch) -> BatchView:
        asks = ("how often two words meet, as the product of their vectors", "두 낱말이 만난 횟수를 벡터의 곱으로")
        entries = zip(
            batch.tokens.tolist(),
            batch.columns.tolist(),
            batch.logs.exp().tolist(),
            batch.weights.tolist(),
            strict=True,
        )
        items = [
            TokenView(word, targets=(context,), note=f"X = {count:.2f}, weight {weight:.2f}")
            for word, context, count, weight in entries
        ]
        return BatchView(asks, view_list(items, ("meets", "+"), batch.layout.host))

    # --- learning -----------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, model: Static, batch: EntryBatch, rate: float) -> dict[str, Term]:
        device = model.input.weight.device
        if self.settings.engine == "sequential" and device.type != "cpu":
            raise UserError(
                "objective.engine=sequential is a loop over one update after another, which only a CPU can do. "
                "Set train.device=cpu, or objective.engine=batched."
            )
        if self.settings.engine == "batched" or device.type != "cpu":
            self.squares = [squares.to(device) for squares in self.squares]
            total = self._batched(model, batch, rate)
        else:
            total = torch.tensor(self._sequential(model, batch, rate), dtype=torch.float64)
            if not math.isfinite(float(total)):
                raise UserError(
                    f"The word vectors have grown beyond all numbers at a rate of {rate:g}. Lower train.lr."
                )
        return {"loss": Term(total, batch.counts["loss"])}

    def _sequential(self, model: Static, batch: EntryBatch, rate: float) -> float:
        settings, loops = self.settings, inner_loops("glove")
        entries = [tensor.numpy() for tensor in (batch.tokens, batch.columns, batch.logs, batch.weights)]
        squares = [tensor.numpy() for tensor in self.squares]
        tables = (
            (model.input.weight.numpy(), model.output.weight.numpy()),
            (self.word_bias.numpy(), self.context_bias.numpy()),
            (squares[0], squares[1]), (squares[2], squares[3]),
            settings.symmetric, rate, settings.clip, settings.adagrad == "code",
        )  # fmt: skip

        def work(span: tuple[int, int]) -> float:
            return loops.glove(*entries, *span, *tables)

        threads = (settings.threads or count_cores()) if loops.PARALLEL else 1
        if threads == 1:
            return work((0, batch.size))
        edges = np.unique(np.linspace(0, batch.size, threads * CHUNKS + 1).astype(int)).tolist()
        if self.pool is None:
            self.pool = ThreadPoolExecutor(threads, thread_name_prefix="etude-words")
        return sum(self.pool.map(work, pairwise(edges)))

    def _batched(self, model: Static, batch: EntryBatch, rate: float) -> Tensor:
        """Blocks: squares of all gradients of a block are added first, then the steps are taken together."""
        i, j, logs, weights = self._both_directions(batch)
        total = torch.zeros((), dtype=torch.float64, device=i.device)
        code = self.settings.adagrad == "code"
        parameters = [model.input.weight, model.output.weight, self.word_bias, self.context_bias]
        for start in range(0, len(i), self.settings.block):
            part = slice(start, start + self.settings.block)
            rows, columns = i[part], j[part]
            word, context = model.input.weight[rows], model.output.weight[columns]  # (B, D)
            error = (word * context).sum(1) + self.word_bias[rows] + self.context_bias[columns] - logs[part]
            grad = weights[part] * error
            clip = self.settings.clip
            grads = [(grad[:, None] * context).clamp(-clip, clip), (grad[:, None] * word).clamp(-clip, clip)]
            before, behind = (rate, 1.0) if code else (1.0, rate)  # where the rate comes in: see glove_compiled.py
            steps = [(rows, grads[0] * before), (columns, grads[1] * before), (rows, grad), (columns, grad)]
            for (places, step), squares, parameter in zip(steps, self.squares, parameters, strict=True):
                squares.index_add_(0, places, step.square())
                parameter.index_add_(0, places, -behind * step / squares[places].sqrt())
            total += (grad * error).sum(dtype=torch.float64)
        return total

    def _both_directions(self, batch: EntryBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every entry, and every symmetric one of two words turned around."""
        i, j, logs, weights = batch.tokens, batch.columns, batch.logs, batch.weights
        if not self.settings.symmetric:
            return i, j, logs, weights
        mirrored = i != j
        return (
            torch.cat([i, j[mirrored]]), torch.cat([j, i[mirrored]]), torch.cat([logs, logs[mirrored]]),
            torch.cat([weights, weights[mirrored]]),
        )  # fmt: skip

    def loss(self, model: Static, batch: EntryBatch) -> dict[str, Term]:
        i, j, logs, weights = self._both_directions(batch)
        product = (model.input(i) * model.output(j)).sum(1)
        error = product + self.word_bias[i] + self.context_bias[j] - logs
        return {"loss": Term((weights * error.square()).sum(dtype=torch.float64), batch.counts["loss"])}

    def flops(self, model: Static, batch: EntryBatch) -> int:
        """A product an entry and direction, and in the backward pass two more."""
        return 3 * 2 * model.width * batch.counts["loss"]

    # --- what a resume needs ------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return {f"squares.{number}": squares for number, squares in enumerate(self.squares)}

    def restore(self, state: dict[str, Tensor]) -> None:
        own_state = self.state()
        if {name: tensor.shape for name, tensor in state.items()} != {
            name: own.shape for name, own in own_state.items()
        }:
            raise ValueError(f"a checkpoint holds {sorted(state)}, not the squares of this model")
        self.squares = [state[f"squares.{number}"].clone() for number in range(len(self.squares))]


def build(settings: Settings, model: Model, special: Specials) -> Cooccurrence:
    message = f"objective cooccurrence trains word vectors, not {model.kind}. Set model.kind: static."
    vectors = require(model, Static, message)
    if vectors.settings.buckets:
        raise UserError("objective cooccurrence knows whole words only: set model.buckets to 0.")
    return Cooccurrence(settings, vectors, special)
