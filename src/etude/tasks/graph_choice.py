"""Multiple choice with a knowledge graph beside the text: KagNet, counts of relation paths, or the text alone.

    score of an answer = w_s . s + w_g . g          s: the statement vector of any pre-trained model
                                                    g: what the graph says (`task.knowledge`)
                         w_s . s + MLP([g ; s])     with task.score_hidden
    kagnet        the network over schema graphs (nn/schema_network.py)
    path_counts   an MLP over hashed relation paths and s, which sees no concept (nn/path_counts.py)
    none          the text alone, under the same loss: what the others must beat

The loss is KagNet's: a margin of 0.2 between the right answer and each wrong one, on raw scores. The released code puts
a sigmoid before the margin, which saturates (`task.sigmoid=true` follows it); `task.loss=softmax` is that of `choice`.
Models are fine-tuned, or read as frozen features (`transfer.frozen=true`, as the paper does), cached in memory. Files,
answers and the official score are those of `choice`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.graph.schema_cache import SchemaGraphs
from etude.graph.schema_graphs import SchemaGraph
from etude.models.base import Model
from etude.nn.packed_graphs import PackedGraphs, pack_graphs
from etude.nn.path_counts import PackedCounts, PathCounts, count_paths
from etude.nn.precision import upcast
from etude.nn.schema_network import SchemaNetwork, SchemaStates
from etude.nn.states import States
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Facts, Task
from etude.tasks.choice import (
    COLUMNS,
    FILES,
    INPUTS,
    PROMPT,
    SCORES,
    TEXTS,
    ChoiceScoring,
    Question,
    answer_questions,
    arrange_scores,
    gold_answers,
    majority,
    parse,
    read,
    records,
    strata,
)  # fmt: skip
from etude.tasks.data.examples import Examples
from etude.tasks.knowledge_source import KnowledgeSettings, KnowledgeSource
from etude.tasks.pair import pair_reading
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PooledHead
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "GraphChoice", "Settings", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "which of several answers, with paths of a knowledge graph (KagNet)"

log = logging.getLogger("etude")


class Settings(pooled.Settings, KnowledgeSettings):
    texts: ClassVar[int] = 2
    reading: Literal["joint", "apart"] | None = Field(
        default=None,
        description="question and answer in one sequence, or each alone; what suits the model unless given",
    )
    knowledge: Literal["kagnet", "path_counts", "none"] | None = Field(
        default=None, description="what reads the graph; if None, kagnet where there is one, else none"
    )
    loss: Literal["margin", "softmax"] = Field(
        default="margin", description="loss on the scores of a question's answers"
    )
    margin: float = Field(default=0.2, gt=0, description="margin of the right answer over each wrong one")
    sigmoid: bool = Field(
        default=False, description="a sigmoid before the margin, as in the released code; it saturates"
    )
    tune_concepts: bool = Field(default=True, description="whether the vectors of concepts learn")
    concept_width: int = Field(
        default=100, ge=1, description="width of the concepts' vectors, where task.concepts gives none"
    )
    relation_width: int = Field(
        default=100, ge=1, description="width of the relations' vectors, where task.concepts gives none"
    )
    graph_widths: tuple[int, ...] = Field(default=(50, 25), description="widths of the graph convolutions; () for none")
    graph_hidden: int = Field(default=128, ge=1, description="hidden width for pairs, paths and path counts")
    score_hidden: int = Field(
        default=0,
        ge=0,
        description="hidden width of the MLP that scores graph and text (the paper's); 0: a product, as in the code",
    )
    buckets: int = Field(
        default=4096, ge=1, description="of knowledge path_counts: rows that relation paths are hashed to"
    )

    @model_validator(mode="after")
    def _knowledge_has_graph(self) -> Settings:
        if self.knowledge not in (None, "none") and self.graph is None:
            raise ValueError(f"task.knowledge={self.knowledge} reads a graph: name its folder with task.graph")
        return self

    @property
    def reads_graph(self) -> bool:
        return self.graph is not None and self.knowledge != "none"


@dataclass
class GraphRow(ExampleRow):
    graphs: Sequence[SchemaGraph] = ()  # one an answer


@dataclass
class GraphRows(ExampleRows):
    graphs: SchemaGraphs | None = None  # of all answers of all questions, end to end
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # (questions+1,)
    numbers: np.ndarray | None = None  # (questions,) where these are a part: whose graphs are theirs

    def part(self, numbers: Sequence[int]) -> GraphRows:
        """Some of them, in the order given."""
        chosen = np.array(numbers, np.int64)
        rows = super().part(numbers)
        assert isinstance(rows, GraphRows)
        return replace(rows, numbers=chosen if self.numbers is None else self.numbers[chosen])

    def __getitem__(self, index: int) -> GraphRow:
        row = super().__getitem__(index)
        number = index % len(self)
        number = number if self.numbers is None else int(self.numbers[number])
        graphs: list[SchemaGraph] = []
        if self.graphs is not None:
            graphs = [self.graphs[unit] for unit in range(self.starts[number], self.starts[number + 1])]
        return GraphRow(**vars(row), graphs=graphs)


@dataclass
class GraphBatch(ExampleBatch):
    schema_graphs: PackedGraphs | None = None  # of all answers, for KagNet
    path_counts: PackedCounts | None = None  # of all answers, for counts of relation paths


def learn(examples: Examples[Question], settings: Settings) -> dict[str, Any]:
    if not settings.reads_graph:
        return {}
    facts = KnowledgeSource(settings).facts()
    for name, width in (("concept_width", facts["width"]), ("relation_width", facts["relation_width"])):
        value = getattr(settings, name)
        if width is not None and value not in (width, Settings.model_fields[name].default):
            raise UserError(f"task.{name}={value}: the vectors of task.concepts are {width} wide. Drop task.{name}.")
    return {"graph": facts}


def scoring(settings: Settings, facts: Facts) -> ChoiceScoring:
    return ChoiceScoring()


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> GraphChoice:
    return GraphChoice(settings, model, tokenizer, facts)


class GraphChoice(Task[Question, GraphRow, GraphBatch]):
    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> None:
        super().__init__()
        self.settings, self.scoring = settings, ChoiceScoring()
        self.pooled = PooledHead(settings, model, tokenizer, 1, pair_reading(settings.reading, model, tokenizer))
        self.framing = self.pooled.framing
        self.pooled.shared_dropout = model.causal
        self.source: KnowledgeSource | None = None
        self.kagnet: SchemaNetwork | None = None
        self.path_counter: PathCounts | None = None
        self.graph_head: ScoreHead | None = None
        if settings.reads_graph:
            self.source = KnowledgeSource(settings, facts["graph"])
            if settings.knowledge == "path_counts":
                self.path_counter = PathCounts(settings.buckets, self.pooled.width, settings.graph_hidden)
            else:
                self.kagnet = self._build_kagnet(facts["graph"], self.source)
            network = self.kagnet or self.path_counter
            assert network is not None
            self.graph_head = ScoreHead(network.width, self.pooled.width, settings.score_hidden)
        elif settings.knowledge is None:
            log.warning("task.graph is not given: the task reads the text alone (task.knowledge=none).")

    def _build_kagnet(self, facts: Mapping[str, Any], source: KnowledgeSource) -> SchemaNetwork:
        settings = self.settings
        network = SchemaNetwork(
            facts["concepts"],
            facts["relations"],
            self.pooled.width,
            concept_width=facts["width"] or settings.concept_width,
            relation_width=source.relation_width or settings.relation_width,
            graph_widths=settings.graph_widths,
            hidden=settings.graph_hidden,
        )
        if source.table is not None:  # a checkpoint is loaded over it
            with torch.no_grad():
                network.concepts.weight.copy_(torch.from_numpy(source.table))
        if source.relation_table is not None:
            with torch.no_grad():
                network.relations.weight[:-1] = torch.from_numpy(source.relation_table)
                network.relations.weight[-1] = 0.0  # of no relation
        network.concepts.weight.requires_grad_(settings.tune_concepts)
        return network

    def facts(self) -> dict[str, Any]:
        return {} if self.source is None else {"graph": self.source.facts()}

    # --- examples to rows ---------------------------------------------------------------------------

    def rows(self, corpus: Examples[Question], seed: int = 0) -> GraphRows:
        rows = self.unlabelled_rows(corpus)
        rows.labels = gold_answers(corpus)
        return rows

    def unlabelled_rows(self, examples: Examples[Question]) -> GraphRows:
        texts = [[(item.text, choice) for choice in item.choices] for item in examples]
        framed = self.pooled.rows(texts, examples.places, examples.source).framed
        graphs = None
        if self.source is not None:
            graphs = self.source.find_schema_graphs([pair for question in texts for pair in question])
        return GraphRows(framed, graphs=graphs, starts=np.cumsum([0, *map(len, texts)]))

    def batch(self, rows: Sequence[GraphRow], chance: Chance) -> GraphBatch:
        plain = self.pooled.batch(rows)
        batch = GraphBatch(**vars(plain))
        if self.settings.loss == "margin":  # each wrong answer is one comparison
            batch.counts["loss"] = int(self.pooled.feature_counts(plain).sum()) - len(rows)
        batch.counts["questions"] = len(rows)
        if self.source is None:
            return batch
        graphs = [graph for row in rows for graph in row.graphs]
        if self.path_counter is not None:
            return replace(batch, path_counts=count_paths(graphs, self.source.relations, self.settings.buckets))
        return replace(batch, schema_graphs=pack_graphs(graphs, self.source.relations))

    # --- scores -------------------------------------------------------------------------------------

    def _scores(self, model: Model, batch: GraphBatch) -> tuple[Tensor, SchemaStates | None]:
        """(R, most answers), -inf where a question has fewer; and the attention of KagNet."""
        return self._score_states(model, model(batch), batch)

    def _score_states(self, model: Model, states: States, batch: GraphBatch) -> tuple[Tensor, SchemaStates | None]:
        """The same from states that are there already."""
        flat = self.pooled.scores(model, states, batch)[:, 0]  # (U,) w_s . s
        sizes = self.pooled.feature_counts(batch)
        schema: SchemaStates | None = None
        if self.graph_head is not None:
            statements = self.pooled.features(model, states, batch)
            if self.path_counter is not None:
                vectors = self.path_counter(batch.path_counts, statements)
            else:
                assert self.kagnet is not None
                schema = self.kagnet(batch.schema_graphs, statements)
                assert schema is not None
                vectors = schema.vectors
            flat = flat + upcast(self.graph_head(vectors, statements))
        if self.settings.sigmoid:
            flat = flat.sigmoid()
        return arrange_scores(flat, sizes), schema

    def _loss_sum(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self.settings.loss == "softmax":
            return F.cross_entropy(scores, labels, reduction="sum")
        return margin_ranking_sum(scores, labels, self.settings.margin)

    def loss(self, model: Model, batch: GraphBatch) -> dict[str, Term]:
        assert batch.labels is not None
        states = model(batch)
        total = self._loss_sum(self._score_states(model, states, batch)[0], batch.labels)
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: GraphBatch) -> dict[str, Stat]:
        assert batch.labels is not None
        scores = self._scores(model, batch)[0]
        return {
            "loss": Stat(self._loss_sum(scores, batch.labels), batch.counts["loss"], weight=1.0),
            "accuracy": Stat((scores.argmax(-1) == batch.labels).sum(), batch.counts["questions"]),
        }

    def flops(self, model: Model, batch: GraphBatch) -> int:
        return self.pooled.flops(model, batch) + 3 * self.graph_flops(batch)

    def graph_flops(self, batch: GraphBatch) -> int:
        """Of what reads the graph, forward."""
        if self.graph_head is None:
            return 0
        head = self.graph_head.flops(int(self.pooled.feature_counts(batch).sum()))
        if self.path_counter is not None and batch.path_counts is not None:
            return head + self.path_counter.flops(batch.path_counts)
        assert self.kagnet is not None and batch.schema_graphs is not None
        return head + self.kagnet.flops(batch.schema_graphs)

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[Question]) -> list[Answer]:
        batches = self.batches(model, self.unlabelled_rows(examples))
        return answer_questions(examples, ((group, self._scores(model, batch)[0]) for group, batch in batches))

    def explain(self, model: Model, examples: Examples[Question]) -> list[list[AnswerPaths]]:
        """For each question and each answer: its score, its schema graph, and what the network attends to in it."""
        if self.source is None:
            raise UserError("This run reads the text alone (task.knowledge=none): it has no paths to show.")
        rows = self.unlabelled_rows(examples)
        explanations: list[list[AnswerPaths]] = [[] for _ in range(len(rows))]
        for number in range(len(rows)):  # each alone: the attention of a batch is then that of one question
            [(_, batch)] = self.batches(model, rows.part([number]))
            with torch.no_grad():
                scores, schema = self._scores(model, batch)
            probs = scores[0].softmax(-1)
            graphs = rows[number].graphs
            pairs = _split(
                None if schema is None else schema.pair_weights, [max(1, len(graph.pairs)) for graph in graphs]
            )
            paths = _split(None if schema is None else schema.path_weights, [len(graph.path_pairs) for graph in graphs])
            explanations[number] = [
                AnswerPaths(text, float(scores[0, place]), float(probs[place]), graph, pair[: len(graph.pairs)], path)
                for place, (text, graph, pair, path) in enumerate(
                    zip(examples[number].choices, graphs, pairs, paths, strict=True)
                )
            ]
        return explanations


class ScoreHead(nn.Module):
    """What the graph's vector g adds to the score of an answer: a product, or an MLP over [g ; s].

    A product cannot ask whether a path fits its question: the weights of the paths of a pair sum to 1, so a pair with a
    single path adds w . p whatever is asked. The paper scores by an MLP, the released code by a product.
    """

    def __init__(self, width: int, statement: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(width + statement, hidden) if hidden else None
        self.weight = nn.Parameter(nn.Linear(hidden or width, 1, bias=False).weight.detach())

    def forward(self, vectors: Tensor, statements: Tensor) -> Tensor:
        """(U,) from vectors (U, width) and statement vectors (U, statement)."""
        if self.first is not None:
            vectors = F.relu(self.first(torch.cat([vectors, statements.to(vectors.dtype)], -1)))
        return F.linear(vectors, self.weight)[:, 0]

    def flops(self, units: int) -> int:
        """Of a forward pass."""
        numbers = self.weight.shape[1] + (self.first.weight.numel() if self.first is not None else 0)
        return 2 * units * numbers


@dataclass(frozen=True)
class AnswerPaths:
    """One answer to a question, and what joins the two."""

    text: str
    score: float
    probability: float
    graph: SchemaGraph
    pair_weights: np.ndarray  # (P,) attention between pairs; NaN where path counts have none
    path_weights: np.ndarray  # (K,) attention within the pair of each path; NaN likewise


def margin_ranking_sum(scores: Tensor, labels: Tensor, margin: float) -> Tensor:
    """The sum of max(0, margin - right + wrong) over all wrong answers; -inf is no answer."""
    right = scores.gather(1, labels[:, None])  # (R, 1)
    wrong = torch.isfinite(scores) & (torch.arange(scores.shape[1], device=scores.device) != labels[:, None])
    losses = F.relu(margin - right + scores.masked_fill(~wrong, 0.0))
    return (losses * wrong).sum()


def _split(weights: Tensor | None, counts: Sequence[int]) -> list[np.ndarray]:
    """The weights of each answer; NaN where there are none."""
    values = np.full(sum(counts), np.nan, np.float32) if weights is None else weights.cpu().numpy()
    return np.split(values, np.cumsum(counts)[:-1])
