"""Ranking: one score for a query and each of its candidates; the best should come first.

A query and a candidate are read as a pair (tasks/pair.py: joined by a model that sees both, apart by one that cannot),
one linear output each. Two losses over the candidates of a query:

    list    the negative logarithm of the share of a softmax that falls on the relevant ones (ListNet's, Cao et al.
            2007, with binary relevance); with one relevant candidate it is that of multiple choice
    point   relevant or not, each candidate alone (Nogueira & Cho 2019)

Scores: the mean reciprocal rank of the first relevant candidate (MRR), mean average precision (MAP), the share of
queries with a relevant candidate among the first k (hit@k). Queries without a relevant candidate, or with nothing else,
say nothing and are left out and counted, as is usual for WikiQA. Equal scores count as wrong as they can: a model that
gives all candidates the same score has put the relevant ones last.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance, fold
from etude.errors import UserError
from etude.models.base import Model
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring
from etude.tasks.bootstrap import Score, bootstrap_mean
from etude.tasks.data.candidates import COLUMNS, Query, parse, read
from etude.tasks.data.examples import Examples
from etude.tasks.data.records import FILES, records
from etude.tasks.linear_task import PartialRows, Targets
from etude.tasks.metrics import average_precision, hit, reciprocal_rank
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.tasks.pair import pair_reading
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PooledHead
from etude.tasks.pooled_task import PooledTask
from etude.tasks.published_head import SCORE_CONFIG, EncoderFamily, PublishedHead
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Rank", "Settings", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "candidates in order, the best for a query first (WikiQA, passages, answers)"
SCORES = "MRR, MAP, hit@1, hit@3, hit@10"
INPUTS: tuple[str, ...] = ()  # a line holds JSON
TEXTS: tuple[str, ...] = ()
PROMPT = None
Measure = Callable[[np.ndarray, np.ndarray], float]  # of the scores of one query's candidates and their relevance
MEASURES: dict[str, Measure] = {"mrr": reciprocal_rank, "map": average_precision}
MEASURES |= {f"hit@{k}": partial(hit, k=k) for k in (1, 3, 10)}
log = logging.getLogger("etude")


class Settings(pooled.Settings):
    texts: ClassVar[int] = 2
    reading: Literal["joint", "apart"] | None = Field(
        default=None,
        description="query and candidate in one sequence, or each alone; what suits the model unless given",
    )
    loss: Literal["list", "point"] = "list"
    candidates: int | None = Field(
        default=None,
        ge=2,
        description="candidates of a query in training: all relevant ones, and others drawn anew every epoch",
    )
    score: Literal["mrr", "map", "hit@1"] = "mrr"


def learn(examples: Examples[Query], settings: Settings) -> dict[str, Any]:
    return {}


def strata(example: Query) -> frozenset[str]:
    return frozenset()


def majority(train: Examples[Query], test: Examples[Query]) -> list[Answer]:
    """Candidates by how often the one at their place is relevant in training, of equals the first.

    Equal scores would put the relevant ones last, below what any order gives on average.
    """
    counts: Counter[int] = Counter()
    relevant: Counter[int] = Counter()
    for item in train:
        counts.update(range(len(item.candidates)))
        relevant.update(place for place, is_relevant in enumerate(item.relevant or ()) if is_relevant)
    longest = max((len(item.candidates) for item in test), default=0)
    shares = [relevant[place] / max(1, counts[place]) for place in range(longest)]
    order = sorted(range(longest), key=lambda place: (-shares[place], place))
    scores = [0.0] * longest
    for rank, place in enumerate(order):
        scores[place] = -float(rank)
    return [{"scores": scores[: len(item.candidates)]} for item in test]


class RankScoring(Scoring[Query]):
    def __init__(self, settings: Settings) -> None:
        self.score: str = settings.score

    def outcome(self, examples: Examples[Query], answers: Answers) -> Outcome:
        measure = MEASURES[self.score]
        pairs = [(answers[n]["scores"], examples[n].relevant) for n in informative(examples)]
        return mean_outcome([measure(np.array(scores), np.array(relevant, dtype=bool)) for scores, relevant in pairs])

    def check_gold(self, examples: Examples[Query]) -> None:
        informative(examples)

    def scores(self, examples: Examples[Query], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        """Of the queries that have both a relevant candidate and another."""
        pairs = [
            (np.array(answers[number]["scores"]), np.array(examples[number].relevant, dtype=bool))
            for number in informative(examples)
        ]
        return {
            name: bootstrap_mean(np.array([measure(*pair) for pair in pairs]), intervals)
            for name, measure in MEASURES.items()
        }

    def judge(self, examples: Examples[Query], answers: Answers) -> list[ErrorExample]:
        errors = []
        for item, answer in zip(examples, answers, strict=True):
            relevant = item.relevant or ()
            gold = [text for text, is_relevant in zip(item.candidates, relevant, strict=True) if is_relevant]
            scores = np.array(answer["scores"])
            correct = relevant[answer["order"][0]] if gold else True  # without a relevant one there is no error to make
            loss = float(scores.max() - scores[np.array(relevant, dtype=bool)].max()) if gold else 0.0
            errors.append(ErrorExample(item.text, " / ".join(gold) or "(none)", answer["best"], correct, loss))
        return errors


def scoring(settings: Settings, facts: Facts) -> RankScoring:
    return RankScoring(settings)


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Rank:
    return Rank(settings, model, tokenizer)


@dataclass
class QueryRow(ExampleRow):
    relevant: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # (C,)


@dataclass
class QueryRows:
    """Row i is query i with its candidates; in later epochs with others of them where there are too many."""

    rows: ExampleRows  # every candidate of every query
    relevant: list[np.ndarray]
    sequences: int  # of a candidate
    most: int | None = None
    seed: int = 0
    shuffle: bool = True
    row_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> QueryRow:
        number = index % len(self)
        relevant = self.relevant[number]
        framed = self.rows.framed[number]
        if self.most is not None and len(relevant) > self.most:
            drawn = self._draw(relevant, index)
            parts = range(self.sequences)
            framed = [framed[self.sequences * candidate + part] for candidate in drawn for part in parts]
            relevant = relevant[drawn]
        row = ExampleRows([framed])[0]
        return QueryRow(index, row.tokens, row.bounds, row.segments, entities=row.entities, relevant=relevant)

    def _draw(self, relevant: np.ndarray, index: int) -> np.ndarray:
        """All the relevant candidates and some of the others, in the order of the file; one of each at least."""
        assert self.most is not None
        draw = np.random.default_rng(fold(self.seed, index, "candidates"))
        positive, negative = draw.permutation(np.flatnonzero(relevant)), draw.permutation(np.flatnonzero(~relevant))
        positive = positive[: self.most - 1]
        return np.sort(np.concatenate([positive, negative[: self.most - len(positive)]]))


@dataclass
class QueryBatch(ExampleBatch):
    relevant: Tensor | None = None  # (C,) bool, of all candidates end to end
    owners: Tensor | None = None  # (C,) int64, the query of each


class Rank(PooledTask[Query, QueryBatch]):
    gives_probabilities = False

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.settings, self.scoring = settings, RankScoring(settings)
        self.pooled = PooledHead(settings, model, tokenizer, 1, pair_reading(settings.reading, model, tokenizer))
        self.framing = self.pooled.framing
        self.sequences = 2 if self.pooled.reading == "apart" else 1

    def facts(self) -> dict[str, Any]:
        return {}

    # --- training -----------------------------------------------------------------------------------

    def rows(self, corpus: Examples[Query], seed: int = 0) -> QueryRows:
        useful = corpus.part(informative(corpus))
        if len(useful) < len(corpus):
            log.warning(
                "%s: %d of %d queries have no relevant candidate, or nothing else, and are left out.",
                corpus.source, len(corpus) - len(useful), len(corpus),
            )  # fmt: skip
        relevant = [np.array(item.relevant, dtype=bool) for item in useful]
        return QueryRows(self.unlabelled_rows(useful), relevant, self.sequences, self.settings.candidates, seed)

    def unlabelled_rows(self, examples: Examples[Query]) -> ExampleRows:
        texts = [[(item.text, candidate) for candidate in item.candidates] for item in examples]
        return self.pooled.rows(texts, examples.places, examples.source)

    def batch(self, rows: Sequence[ExampleRow], chance: Chance) -> QueryBatch:
        plain = self.pooled.batch(rows)
        sizes = plain.sizes // self.sequences
        batch = QueryBatch(**vars(plain), owners=torch.from_numpy(np.repeat(np.arange(len(rows)), sizes)))
        relevant = [row.relevant for row in rows if isinstance(row, QueryRow)]
        if relevant:
            batch.relevant = torch.from_numpy(np.concatenate(relevant))
        if self.settings.loss == "point":
            batch.counts["loss"] = int(sizes.sum())
        return batch

    def _loss(self, flat: Tensor, batch: QueryBatch) -> Tensor:
        """The sum over queries, or over candidates."""
        assert batch.relevant is not None and batch.owners is not None
        if self.settings.loss == "point":
            return F.binary_cross_entropy_with_logits(flat, batch.relevant.float(), reduction="sum")
        queries = len(batch.rows)
        relevant = flat.masked_fill(~batch.relevant, float("-inf"))  # to select them, the host would wait for a GPU
        return (_log_sums(flat, batch.owners, queries) - _log_sums(relevant, batch.owners, queries)).sum()

    def loss(self, model: Model, batch: QueryBatch) -> dict[str, Term]:
        flat, states = self.pooled(model, batch)  # (C, 1)
        total = self._loss(flat[:, 0], batch)
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: QueryBatch) -> dict[str, Stat]:
        flat = self.pooled(model, batch)[0][:, 0]
        return {"loss": Stat(self._loss(flat, batch), batch.counts["loss"], weight=1.0)}

    def flops(self, model: Model, batch: QueryBatch) -> int:
        return self.pooled.flops(model, batch)

    # --- use ----------------------------------------------------------------------------------------

    def scores(self, model: Model, examples: Examples[Query]) -> list[np.ndarray]:
        """(candidates,) of each query, in their order."""
        rows = self.unlabelled_rows(examples)
        scores: list[np.ndarray] = [np.zeros(0)] * len(rows)
        for group, batch in self.batches(model, rows):
            flat = self.pooled(model, batch)[0][:, 0].float().cpu()
            for number, part in zip(group, flat.split((batch.sizes // self.sequences).tolist()), strict=True):
                scores[number] = part.numpy()
        return scores

    def predict(self, model: Model, examples: Examples[Query]) -> list[Answer]:
        """The candidates from best to worst, by their number in the query, and the score of each in its place."""
        return [_answer(item, scores) for item, scores in zip(examples, self.scores(model, examples), strict=True)]

    # --- the head alone -----------------------------------------------------------------------------

    def targets(self, examples: Examples[Query], rows: PartialRows[ExampleRow]) -> Targets:
        informative(examples)
        return Targets("candidates", [np.array(item.relevant, dtype=np.float64) for item in examples])

    def answers(
        self, examples: Examples[Query], rows: PartialRows[ExampleRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        return [_answer(item, scores[:, 0]) for item, scores in zip(examples, logits, strict=True)]

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        return self.pooled.published_head(model, family, "ForSequenceClassification", self.state_dict(), SCORE_CONFIG)


def _answer(item: Query, scores: np.ndarray) -> Answer:
    """(candidates,) the scores of one query."""
    order = np.argsort(-scores, kind="stable").tolist()
    return {"order": order, "best": item.candidates[order[0]], "scores": [float(value) for value in scores]}


def informative(examples: Examples[Query]) -> list[int]:
    """Numbers of the queries that have both a relevant candidate and another."""
    for item, where in zip(examples, examples.places, strict=True):
        if item.relevant is None:
            raise UserError(f"{where}: this query was read without labels. Name the column that holds them.")
    numbers = [n for n, item in enumerate(examples) if any(item.relevant or ()) and not all(item.relevant or ())]
    if not numbers:
        raise UserError(f"{examples.source}: no query has both a relevant candidate and another: nothing to learn.")
    return numbers


def _log_sums(values: Tensor, owners: Tensor, queries: int) -> Tensor:
    """(queries,) the logarithm of the sum of exponentials of each query's values; none may be without any."""
    top = torch.full((queries,), float("-inf"), device=values.device, dtype=values.dtype)
    top = top.scatter_reduce(0, owners, values.detach(), "amax")
    sums = torch.zeros_like(top).index_add(0, owners, (values - top[owners]).exp())
    return sums.log() + top
