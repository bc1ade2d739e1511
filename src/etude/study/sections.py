"""The sections of a study file: text, budget, contenders, tasks, seeds, control, claims and the rule.

How they fit together, and how a file is read, stands in study/settings.py.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from etude.errors import UserError
from etude.settings import Strict
from etude.study.prompts import TaskPrompt
from etude.text.encodings import check_encoding

Localized = str | dict[str, str]  # one text, or one for each language of the report
Positive = Annotated[float, Field(gt=0)]
Changes = dict[str, Any]  # {"train.lr": 3e-4}
Values = Annotated[list[Any], Field(min_length=1)]  # of a setting that is varied or tuned

MEAN = "mean"  # of all tasks
SOURCES = ("world", "files", "corpus")  # of a text
SETTINGS = ("set", "transfer", "tune", "vary")  # groups whose keys are settings by their full names
CONTROL = "no pre-training"
FROZEN = "random frozen"
MAJORITY = "majority"


class Text(Strict):
    """Exactly one of world, files and corpus."""

    world: Positive | None = Field(default=None, description="megabytes of text about the built-in town")
    language: Literal["en", "ko", "both"] = Field(
        default="en", description="language of the town; both: documents in turn"
    )
    seed: int = 0
    files: list[str] | None = None
    corpus: str | None = Field(default=None, description="a prepared corpus: its tokenizer is everybody's")
    valid: float = Field(default=0.02, gt=0, lt=1, description="share of documents held out")
    where: str | None = Field(default=None, description="keeps records by their fields: score>=3")
    pairs: str | None = Field(default=None, description="source and target, en,ko: pairs to learn translation from")
    share: float = Field(default=1.0, gt=0, le=1, description="of the documents of files or a corpus that are read")
    noise: float = Field(default=0.0, ge=0, le=1, description="of the documents that are read, their words shuffled")
    pseudo_words: int = Field(default=0, ge=0, description="pairs of words merged into one, as if ambiguous")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(value is not None for value in (self.world, self.files, self.corpus)) != 1:
            raise ValueError("a text is either world (megabytes), files (a list), or corpus (a prepared folder)")
        if self.world is not None and (self.share < 1 or self.pseudo_words):
            raise ValueError("share and pseudo_words are for files and corpora: the world has megabytes and homonyms")
        if self.pairs is not None and (self.share < 1 or self.noise or self.pseudo_words):
            raise ValueError("pairs stay as they are: leave out share, noise and pseudo_words")
        if self.pairs is not None and self.world is not None and set(self.pairs.split(",")) != {"en", "ko"}:
            raise ValueError("the pairs of the world are en,ko or ko,en")
        return self


class Budget(Strict):
    """Exactly one kind, equal for everybody; a list of amounts gives a curve."""

    flops: list[Positive] | Positive | None = None
    tokens: list[Positive] | Positive | None = None
    minutes: list[Positive] | Positive | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if sum(value is not None for value in (self.flops, self.tokens, self.minutes)) != 1:
            raise ValueError("a budget is exactly one of flops, tokens and minutes")
        if not self.amounts:
            raise ValueError(f"the list of {self.kind} is empty: a budget is one amount, or several for a curve")
        return self

    @property
    def kind(self) -> Literal["flops", "tokens", "minutes"]:
        return "flops" if self.flops is not None else "tokens" if self.tokens is not None else "minutes"

    @property
    def amounts(self) -> list[float]:
        amounts = getattr(self, self.kind)
        return sorted({float(amount) for amount in (amounts if isinstance(amounts, list) else [amounts])})


class Contender(Strict):
    """A recipe to pre-train within the budget, or a run that comes with its weights (study/starts.py)."""

    recipe: str | None = None
    run: str | None = Field(default=None, description="a finished run, or a folder of transformers: no pre-training")
    start: str | None = Field(default=None, description="a run whose weights its pre-training begins with")
    entities: str | None = Field(default=None, description="a run of a graph embedding, for a recipe like ernie")
    set: Changes = Field(default_factory=dict)
    transfer: Changes = Field(default_factory=dict, description="settings of its transfers, over those of the study")
    label: Localized | None = None
    text: Text | None = Field(default=None, description="its own; one without a source changes the study's")
    teacher: str | None = Field(default=None, description="a contender that it learns from, seed by seed: distillation")
    flops_of: list[str] = Field(
        default_factory=list, description="contenders: it may spend what they spend together, in place of the budget"
    )
    tune: dict[str, Values] = Field(
        default_factory=dict, description="settings of its pre-training that are tried after the learning rate"
    )
    epochs: Positive | None = Field(
        default=None, description="passes over the text, in place of the budget: of word vectors, which need few FLOPs"
    )

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if (self.recipe is None) == (self.run is None):
            raise ValueError("a contender has exactly one of recipe (to pre-train) and run (that comes with weights)")
        if self.run is not None and (self.set or self.text or self.tune or self.start or self.entities or self.epochs):
            raise ValueError("a run is trained already: set, text, tune, start, entities and epochs are for recipes")
        if self.run is not None and (self.teacher or self.flops_of):
            raise ValueError("a run is trained already: teacher and flops_of are for recipes")
        if self.teacher is not None and (self.start or self.entities or self.text):
            raise ValueError("a student reads its teacher's text, and has new weights or its: leave out start and text")
        if self.epochs is not None and self.flops_of:
            raise ValueError("epochs and flops_of both say how long it trains: leave one out")
        return self


class Task(Strict):
    """Labelled examples: from the world, from files, or made from held-out sentences."""

    kind: str
    world: str | None = Field(default=None, description="a task of the built-in town")
    made: Literal["next", "order", "sense"] | None = Field(default=None, description="from held-out documents")
    train: str | None = None
    dev: str | None = Field(default=None, description="chosen on; a fifth of train if there is none")
    test: str | None = Field(default=None, description="reported; half of dev if there is none")
    columns: dict[str, str] = Field(default_factory=dict)
    encoding: str | None = Field(default=None, description="of the files, where they are not UTF-8: cp949, utf-16")
    prompt: TaskPrompt | None = Field(default=None, description="asked as a prompt: nothing is learnt")
    direct: bool = Field(default=False, description="translation: a run of pairs answers as it is, nothing is learnt")
    labels: list[int] | int | None = Field(default=None, description="labelled examples to learn from; all if None")
    dev_size: int | None = Field(default=None, ge=2, description="examples chosen on; 200 of the world, all of a file")
    test_size: int | None = Field(
        default=None, ge=2, description="examples reported on; 500 of the world, all of a file"
    )
    set: Changes = Field(default_factory=dict, description="settings of its transfers")
    label: Localized | None = None

    @model_validator(mode="after")
    def _check_examples(self) -> Self:
        if sum(value is not None for value in (self.world, self.made, self.train)) != 1:
            raise ValueError("a task has its examples from one of world, made and train")
        if self.encoding is not None and self.train is None:
            raise ValueError("encoding is that of files, and this task names none")
        try:
            check_encoding(self.encoding)
        except UserError as problem:
            raise ValueError(str(problem)) from None
        if self.direct and self.prompt is not None:
            raise ValueError("direct and prompt are two ways to answer without learning: leave one out")
        if self.direct and self.labels is not None:
            raise ValueError("direct learns from no labels: leave one of the two out")
        if self.train is None and self.labels is None and not self.direct:
            raise ValueError("how many examples of the world are learnt from is said by labels")
        if not self.amounts or any(amount is not None and amount < 1 for amount in self.amounts):
            raise ValueError("labels are numbers of examples, each 1 or more; without them all of train is learnt from")
        return self

    @property
    def amounts(self) -> list[int | None]:
        if self.labels is None:
            return [None]
        return sorted(set(self.labels)) if isinstance(self.labels, list) else [self.labels]  # type: ignore[return-value]


class Seeds(Strict):
    pretrain: int = Field(default=1, ge=1)
    transfer: int = Field(default=1, ge=1, description="for every pre-trained run")


class PretrainingTrials(Strict):
    """Short pre-trainings of every contender, from which its settings are chosen before the cells run.

    The learning rate comes first, then the settings that a contender names under `tune`, one after the other.
    Everybody has the same number of trials.
    """

    lr: list[Positive] = Field(default=[0.5, 1.0, 2.0], description="multiples of each recipe's own rate; 1 is in it")
    share: float = Field(default=0.1, gt=0, le=1, description="of the largest budget, for each trial")
    by: Literal["dev", "loss"] = Field(
        default="dev",
        description="what chooses: dev scores; loss: of settings of train, the lowest loss on held-out text",
    )
    tasks: list[str] = Field(default_factory=list, description="whose dev scores decide, by their mean; all if empty")
    seeds: int = Field(default=1, ge=1, description="pre-training seeds of a trial, none of them a seed of the study")


class Control(Strict):
    """Baseline without pre-training: the same models trained on the labels alone."""

    of: list[str] | Literal["first", "all"] = Field(default="first", description="whose model is taken")
    epochs: int | None = Field(
        default=None,
        ge=1,
        description="over the labels, and never fewer steps or epochs than the contender's transfers; as many if None",
    )
    set: Changes = Field(default_factory=dict)
    tune: dict[str, Values] = Field(
        default_factory=dict,
        description="settings chosen on dev for it alone: new weights want other rates",
    )
    baselines: list[Literal["tfidf", "ngrams"]] = Field(
        default_factory=list, description="linear models of plain text, as rows of their own"
    )


class Claim(Strict):
    claim: Localized
    better: str
    than: str
    on: str = Field(default=MEAN, description="a task, task@labels, or mean: of all tasks")
    margin: float = Field(default=0.0, description="by more than this; below 0: not worse by more than that")
    trainability: bool = Field(
        default=False, description="whether a side learns at all is the question: one that has not is tested, too"
    )
    paper: str = ""


class Rule(Strict):
    """When a claim holds: the difference is beyond the margin in the stated direction with p below 1 - interval, over
    pre-training seeds and examples together, after the correction for the number of claims. It fails where all that is
    so in the other direction; otherwise it is not settled at this budget."""

    interval: float = Field(default=0.95, gt=0.5, lt=1)
    over: Literal["seeds and examples", "examples"] = Field(
        default="seeds and examples", description="examples: about these runs, not about other seeds of the methods"
    )
    seeds: Literal["all", "ignored"] = Field(default="ignored", description="all: every seed must agree, too")
    correction: Literal["holm", "none"] = "holm"
    looks: list[int] = Field(
        default_factory=list,
        description="numbers of pre-training seeds at which claims are judged, planned beforehand; one look if empty",
    )
    deviation: float = Field(default=0.02, gt=0, description="of seeds, guessed for the plan where no cell is done")

    def error_at(self, seeds: int) -> float:
        """Return the error that is spent at the look with so many seeds: by the share of seeds that are new to it."""
        error = 1 - self.interval
        if not self.looks:
            return error
        before = max((look for look in self.looks if look < seeds), default=0)
        return error * (seeds - before) / self.looks[-1]


class Needs(Strict):
    """Of one cell, for a cluster."""

    cpus: float = Field(default=1, gt=0)
    gpus: float | None = Field(default=None, ge=0, description="a whole one where there is any, unless given")


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


def localize(text: Localized, language: str) -> str:
    if isinstance(text, str):
        return text
    return text.get(language) or text.get("en") or next(iter(text.values()), "")
