"""Text as centres and the words around them, the ground that skip-gram and CBOW share.

In the order of word2vec [code]: unknown words are dropped, then frequent words by chance (*before* windows are laid,
so windows reach further), then each centre draws an effective window of 1..window. The code keeps a word of frequency
f with sqrt(t/f) + t/f, the paper with sqrt(t/f): `keep`. Windows end with their row and their document.

Every draw is a hash of (seed, step, row, position), so the windows and the noise of a row do not depend on its
company. A batch holds windows, not pairs: the loops that learn from them make the pairs as they go
(`etude.objectives.word_vectors.kernels`, `batched.py`).

Three ways to learn, `engine`:

    sequential   one update after another, as the original programs. Compiled; on a CPU. With one thread, the default,
                 the same run gives the same bits, however often it is stopped and resumed. With more (`threads`) the
                 threads write into the same tables unasked (Hogwild, Niu et al. 2011): faster, and no two runs agree.
    hogwild      on a GPU what many threads are on a CPU: hundreds of programs that write into the same tables. No two
                 runs agree
    batched      gradients of many centres taken at the same vectors and added up, in torch. On a GPU with
                 train.deterministic=true it repeats to the bit; it serves where the kernel of hogwild does not
"""

from __future__ import annotations

import importlib.util
import logging
import math
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from etude import chance as draw
from etude.chance import Chance
from etude.cores import count_cores
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.static import Static
from etude.objectives.base import Batch, PretrainingObjective, Row, Term, join
from etude.objectives.batch_view import BatchView, TokenView, Words, view_list
from etude.objectives.word_vectors.kernels import inner_loops
from etude.objectives.word_vectors.kernels.tables import (
    NO_NOISE,
    NO_PATHS,
    Noise,
    Paths,
    Subwords,
    huffman_paths,
    noise_table,
    whole_words,
)
from etude.settings import Strict
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.token_strings import list_token_strings

log = logging.getLogger("etude")

HALF, LOWER = np.uint64(32), np.uint64(0xFFFFFFFF)
CHUNKS = 8  # pieces of a step for each thread: the last ones to finish wait for little


class WindowSettings(Strict):
    """What skip-gram and CBOW have in common."""

    window: int = Field(default=5, ge=1, description="words to each side at most")
    output: Literal["negative", "hierarchical"] = Field(
        default="negative", description="negative sampling, or a softmax over a Huffman tree"
    )
    negatives: int = Field(default=5, ge=1, description="noise words a prediction; 5-20 for small text, 2-5 for large")
    noise_power: float = Field(default=0.75, ge=0, description="noise is drawn by count to this power; fastText: 0.5")
    subsample: float | None = Field(
        default=1e-3, gt=0, description="threshold t of word2vec: words of a higher frequency are randomly left out"
    )
    keep: Literal["code", "paper"] = "code"
    # windows end with their row: at 1000 tokens and window 5, one pair in 430 is lost, as in word2vec
    row_tokens: int = Field(default=1000, ge=2)
    engine: Literal["auto", "sequential", "batched", "hogwild"] = Field(
        default="auto", description="auto: sequential on a CPU, hogwild on a GPU, batched where that cannot be"
    )
    threads: int = Field(
        default=1,
        ge=0,
        description="threads of the sequential engine: 1 is bit-exact, more are faster, not repeatable; 0: all cores",
    )
    programs: int = Field(
        default=256, ge=1, description="of engine hogwild: parts of a step that are learnt from at the same time"
    )
    block: int = Field(
        default=4096,
        ge=1,
        description="of engine batched: centre words whose gradients are computed from the same vectors",
    )
    calm: float = Field(
        default=32.0,
        gt=0,
        description="of engine batched: a row updated more often in a block takes a mean update, times this",
    )


@dataclass(frozen=True)
class CorpusTables:
    """What the loops need to know of a training text: who is kept, what is told apart, how words are written."""

    keep_probs: np.ndarray  # (V,) uint64, probability to stay in the text, times 2^32
    noise: Noise
    paths: Paths
    subwords: Subwords
    targets: float  # rows of the output table that a prediction scores, in the mean
    longest: int  # the most it can score
    tensors: dict[torch.device, dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_counts(
        cls, counts: np.ndarray, settings: WindowSettings, unknown: int | None, model: Static
    ) -> CorpusTables:
        counts = counts.astype(np.float64)
        if unknown is not None:
            counts[unknown] = 0  # dropped from the text, as words outside word2vec's vocabulary are
        if not counts.any():
            raise UserError("The corpus has no known words to learn vectors of. Prepare it with a larger vocabulary.")
        keep = np.where(counts > 0, 1.0, 0.0)
        if settings.subsample is not None:
            ratio = settings.subsample * counts.sum() / np.maximum(counts, 1)
            keep = keep * np.minimum(1.0, np.sqrt(ratio) + (ratio if settings.keep == "code" else 0.0))
        noise, paths, targets, longest = NO_NOISE, NO_PATHS, 1.0 + settings.negatives, 1 + settings.negatives
        if settings.output == "hierarchical":
            paths = huffman_paths(counts)
            depths = np.diff(paths.bounds)
            targets, longest = float((depths * counts * keep).sum() / (counts * keep).sum()), int(depths.max())
        else:
            noise = noise_table(np.where(counts > 0, counts**settings.noise_power, 0.0))
        return cls(np.floor(keep * 2.0**32).astype(np.uint64), noise, paths, subwords_of(model), targets, longest)

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The tables as tensors of a device, for the batched engine."""
        if device not in self.tensors:
            arrays = {"accept": self.noise.accept.astype(np.int64), "alias": self.noise.alias.astype(np.int64)}
            arrays |= {"bounds": self.paths.bounds, "nodes": self.paths.nodes.astype(np.int64)}
            arrays |= {"labels": self.paths.labels}
            if len(self.subwords.rows) > len(self.keep_probs):  # words of one row each need no list of them
                arrays |= {"spelled_bounds": self.subwords.bounds, "spelled_rows": self.subwords.rows}
                arrays |= {"spelled_growth": self.subwords.growth}
            self.tensors[device] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return self.tensors[device]


def subwords_of(model: Static) -> Subwords:
    """The rows of a spelled model as the loops read them."""
    if model.subword_rows is None:
        return whole_words(model.vocab)
    bounds, rows = model.subword_rows
    sizes = np.diff(bounds)
    word = np.repeat(np.arange(len(sizes)), sizes)
    # adding 1 to a row for each time it is listed: a row that is listed m times grows by m, and counts m times
    pairs, times = np.unique(word * (int(rows.max()) + 1) + rows, return_counts=True)
    squares = np.bincount(pairs // (int(rows.max()) + 1), weights=times.astype(np.float64) ** 2, minlength=len(sizes))
    return Subwords(bounds, rows.astype(np.int32), (squares / np.maximum(1, sizes)).astype(np.float32))


class Spans:
    """Row i is the i-th stretch of the corpus; its sequences are documents, the last row what is left."""

    shuffle = True

    def __init__(self, corpus: Corpus, row_tokens: int) -> None:
        self.corpus, self.span = corpus, row_tokens
        self.row_tokens: int | None = row_tokens
        self.count = -(-corpus.total // row_tokens)
        self.documents = corpus.documents.slice(0, len(corpus.documents) + 1)  # at hand: rows are asked for at random

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Row:
        start = index % self.count * self.span
        stop = min(start + self.span, self.corpus.total)
        first, last = np.searchsorted(self.documents, (start, stop - 1), side="right")
        bounds = np.empty(last - first + 2, np.int32)
        bounds[0], bounds[1:-1], bounds[-1] = 0, self.documents[first:last] - start, stop - start
        return Row(index, self.corpus.tokens(start, stop), bounds)


@dataclass(kw_only=True)
class WindowBatch(Batch):
    words: Tensor  # (n,) int64, those that are kept
    low: Tensor  # (n,) int32, the window of each: words low..high but itself
    high: Tensor
    keys: Tensor  # (n,) int64, what the noise of each is drawn by
    starts: np.ndarray  # (R+1,) where the words of each row begin, on the host
    pairs: np.ndarray  # (blocks+1,) pairs before each block of centres, on the host


class Windows(PretrainingObjective[Static, Row, WindowBatch]):
    """Rows and batches; what is learnt from them is the business of skip-gram and CBOW."""

    updates_itself = True

    def __init__(self, settings: WindowSettings, model: Static, special: Specials) -> None:
        super().__init__()
        self.settings, self.special = settings, special
        self._shape = [model]  # in a list: the model is no part of the objective
        self.pool: ThreadPoolExecutor | None = None
        self.text: CorpusTables | None = None  # of the corpus whose rows were asked for; held-out rows are of the same

    def rows(self, corpus: Corpus, seed: int) -> Spans:
        # a held-out part is judged with the chance of the training text
        train = corpus.open_split("train")
        model = self._shape[0]
        if model.settings.buckets:
            model.set_spellings(list_token_strings(train.tokenizer))
        counts = model.set_counts(train.token_counts())
        self.text = CorpusTables.from_counts(counts, self.settings, self.special.unknown, model)
        return Spans(corpus, self.settings.row_tokens)

    def batch(self, rows: Sequence[Row], chance: Chance) -> WindowBatch:
        assert self.text is not None, "rows come first"
        fields = join(rows, sequences=1, longest=self.settings.row_tokens)
        tokens, bounds = fields["tokens"].numpy(), fields["layout"].host
        sizes = [len(row.tokens) for row in rows]
        edges = np.concatenate([[0], np.cumsum(sizes)])
        place = np.arange(edges[-1]) - np.repeat(edges[:-1], sizes)  # (N,) in its own row
        # one hash a word: its upper half says whether it is kept, its lower half how far its window reaches
        bits = draw.random_bits(np.repeat(chance.keys("windows", fields["rows"]), sizes), place)
        indices = np.flatnonzero((bits >> HALF) < self.text.keep_probs[tokens])
        bits = bits[indices]
        reach = 1 + (((bits & LOWER) * np.uint64(self.settings.window)) >> HALF).astype(np.int64)
        inner = np.searchsorted(indices, bounds)  # where documents begin among the words that are kept
        lengths = np.diff(inner)
        number = np.arange(len(indices))
        low = np.maximum(number - reach, np.repeat(inner[:-1], lengths))
        high = np.minimum(number + reach + 1, np.repeat(inner[1:], lengths))
        pairs = np.concatenate([[0], np.cumsum(high - low - 1)])
        edges_of_blocks = np.append(np.arange(0, len(indices), self.settings.block), len(indices))
        return WindowBatch(
            **fields,
            counts={"loss": self.predictions(high - low - 1)},
            words=torch.from_numpy(tokens[indices]),
            low=torch.from_numpy(low.astype(np.int32)),
            high=torch.from_numpy(high.astype(np.int32)),
            keys=torch.from_numpy(draw.random_bits(bits, np.zeros(len(bits), np.int64)).view(np.int64)),
            starts=np.searchsorted(indices, edges),
            pairs=pairs[edges_of_blocks],
        )

    def view_batch(self, model: Static, batch: WindowBatch) -> BatchView:
        """Each word that was kept, with the words around it in the window that it drew."""
        words, low, high = batch.words.tolist(), batch.low.tolist(), batch.high.tolist()
        items = [
            TokenView(word, targets=tuple(words[low[at] : at] + words[at + 1 : high[at]]))
            for at, word in enumerate(words)
        ]
        contrast = "noise words" if self.settings.output == "negative" else "the nodes of a tree"
        english, korean, joint = self.task_words
        counts = f"{len(words):,} of {len(batch.tokens):,} words are kept"
        asks = (
            f"{english}, told from {contrast}; {counts}",
            f"{korean}; {len(batch.tokens):,}개 낱말 가운데 {len(words):,}개를 남김",
        )
        return BatchView(asks, view_list(items, joint, batch.starts))

    @property
    @abstractmethod
    def task_words(self) -> tuple[str, str, Words]:
        """What is asked, in English and Korean, and what stands between a word and those around it."""

    @abstractmethod
    def predictions(self, around: np.ndarray) -> int:
        """How many losses are added up, given how many words stand around each centre."""

    # --- learning -----------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, model: Static, batch: WindowBatch, rate: float) -> dict[str, Term]:
        engine = self.engine(model, model.input.weight.device)
        if engine == "hogwild":
            total = self.hogwild(model, batch, rate)
        elif engine == "batched":
            total = self.batched(model, batch, rate)
        else:
            total = torch.tensor(self._sequential(model, batch, rate), dtype=torch.float64)
            if not math.isfinite(float(total)):
                raise UserError(
                    f"The word vectors have grown beyond all numbers at a rate of {rate:g}. Lower train.lr."
                )
        return {"loss": Term(total, batch.counts["loss"])}

    @abstractmethod
    def batched(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        """The loss of a step whose pairs are all taken at once."""

    @abstractmethod
    def hogwild(self, model: Static, batch: WindowBatch, rate: float) -> Tensor:
        """The loss of a step by the kernel in which pairs do not wait for each other."""

    def engine(self, model: Static, device: torch.device) -> str:
        """How this device learns; what it cannot do is refused where it was asked for."""
        engine, problem = self.settings.engine, self._hogwild_obstacle(model, device)
        if engine == "sequential" and device.type != "cpu":
            raise UserError(
                "objective.engine=sequential is a loop over one update after another, which only a CPU can do. "
                "Set train.device=cpu, or objective.engine=batched."
            )
        if engine == "hogwild" and problem is not None:
            raise UserError(f"objective.engine=hogwild {problem}.")
        if engine != "auto":
            return engine
        if device.type == "cpu":
            return "sequential"
        return "hogwild" if problem is None and not torch.are_deterministic_algorithms_enabled() else "batched"

    def _hogwild_obstacle(self, model: Static, device: torch.device) -> str | None:
        if device.type != "cuda":
            return (
                "is a kernel for a GPU: set train.device=cuda; on a CPU objective.threads=0 is the same with every core"
            )
        if self.settings.output == "hierarchical":
            return "learns from noise words only: set objective.output=negative, or objective.engine=batched"
        if importlib.util.find_spec("triton") is None:
            return "needs Triton, which comes with torch for CUDA: install that, or set objective.engine=batched"
        return None

    @abstractmethod
    def loop(self, loops: Any, shared: tuple[Any, ...], start: int, stop: int, tables: tuple[Any, ...]) -> float:
        """One call of the inner loop over the centres start..stop."""

    def _sequential(self, model: Static, batch: WindowBatch, rate: float) -> float:
        assert self.text is not None
        loops, text = inner_loops("windows"), self.text
        keys = batch.keys.numpy().view(np.uint64)
        shared = (batch.words.numpy(), batch.low.numpy(), batch.high.numpy(), keys)
        tables = (
            model.input.weight.numpy(), model.output.weight.numpy(), text.subwords, text.noise, text.paths,
            self.settings.negatives, rate,
        )  # fmt: skip
        threads = self._threads(loops)
        if threads == 1:
            return self.loop(loops, shared, 0, len(keys), tables)

        def work(span: tuple[int, int]) -> float:
            return self.loop(loops, shared, *span, tables)

        if self.pool is None:
            self.pool = ThreadPoolExecutor(threads, thread_name_prefix="etude-words")
        return sum(self.pool.map(work, _spans(batch.starts, threads * CHUNKS)))

    def _threads(self, loops: Any) -> int:
        threads = self.settings.threads or count_cores()
        return threads if loops.PARALLEL else 1


def _spans(starts: np.ndarray, pieces: int) -> list[tuple[int, int]]:
    """Whole rows in so many pieces of about the same number of centres."""
    targets = np.linspace(0, starts[-1], pieces + 1)
    edges = np.unique(starts[np.searchsorted(starts, targets)])
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def check_model(kind: str, model: Model) -> Static:
    message = f"objective {kind} trains word vectors, not {model.kind}. Set model.kind: static."
    vectors = require(model, Static, message)
    if vectors.settings.result != "input":
        raise UserError(f"objective {kind} learns the first table: model.result={vectors.settings.result} is GloVe's.")
    return vectors
