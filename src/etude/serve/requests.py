"""Typed requests and answers of the endpoints; OpenAPI is made from them.

The input has one name everywhere, `input`: a string, or a list of them. An answer has `results`, one an input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from etude.serve.limits import MAX_INPUTS, MAX_NEW_TOKENS, MAX_TEMPERATURE, MAX_TEXTS
from etude.settings import Strict

Text = Annotated[str, Field(min_length=1)]
Triple = Annotated[list[Text], Field(min_length=3, max_length=3)]
Record = dict[str, JsonValue]
INPUT = "a text, or a list of texts"


class Request(Strict, ABC):
    """What every request has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())

    run: str | None = Field(default=None, description="the run that answers; needed where several of them could")

    def characters(self) -> int:
        """The length of the inputs."""
        return sum(map(len, self.texts()))

    @abstractmethod
    def texts(self) -> list[str]:
        """All texts of the request."""


class TextRequest(Request):
    """A request with one text or a list of them."""

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_INPUTS)] = Field(description=INPUT)

    def texts(self) -> list[str]:
        return _as_list(self.input)


class FillRequest(TextRequest):
    top: int = Field(default=5, ge=1, le=100, description="guesses for each [MASK]")


class GenerateRequest(Request):
    input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)] = Field(description=INPUT)
    tokens: int = Field(default=40, ge=1, le=MAX_NEW_TOKENS, description="new tokens at most")
    temperature: float = Field(
        default=1.0, ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False, description="0: always the likeliest token"
    )
    top_k: int | None = Field(default=None, ge=1, description="sample from the k likeliest tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="sample from the likeliest p of probability")
    seed: int = Field(default=0, ge=-(2**63), lt=2**63, description="same seed, same text")
    stop: Annotated[list[Text], Field(max_length=16)] = Field(default=[], description="strings that end a text")
    stream: bool = Field(default=False, description="answer piece by piece, as server-sent events")

    def texts(self) -> list[str]:
        return _as_list(self.input)


class TranslateRequest(Request):
    input: str | Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)] = Field(description=INPUT)
    beams: int = Field(default=4, ge=1, le=16, description="hypotheses of the beam search; 1 is greedy")
    best: int = Field(default=1, ge=1, le=16, description="translations of each text, best first; beams at most")
    penalty: float = Field(default=0.6, ge=0, le=10, allow_inf_nan=False, description="length penalty")
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=MAX_TEMPERATURE,
        allow_inf_nan=False,
        description="this, top_k or top_p: draw tokens instead of a search",
    )
    top_k: int | None = Field(default=None, ge=1, description="draw from the k likeliest tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="draw from the likeliest p of probability")
    seed: int = Field(default=0, ge=-(2**63), lt=2**63, description="of a draw: same seed, same text")

    def texts(self) -> list[str]:
        return _as_list(self.input)


class PredictRequest(Request):
    input: str | Record | Annotated[list[str | Record], Field(min_length=1, max_length=MAX_INPUTS)] = Field(
        description="a line of the task, an object with its columns, or a list of them"
    )

    def items(self) -> list[str | Record]:
        return self.input if isinstance(self.input, list) else [self.input]

    def texts(self) -> list[str]:
        texts: list[str] = []
        waiting: list[JsonValue] = list(self.items())
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                texts.append(value)
            elif isinstance(value, dict):
                waiting += value.values()
            elif isinstance(value, list):
                waiting += value
        return texts


class AttentionRequest(Request):
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] = Field(description=INPUT)
    second: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] | None = Field(
        default=None,
        description="the second text of a pair; of a translation, the target; of a list of inputs, a list",
    )

    @model_validator(mode="after")
    def _one_second_text_an_input(self) -> Self:
        if isinstance(self.second, list) != (isinstance(self.input, list) and self.second is not None):
            raise ValueError("The field 'second' is a text where input is one, and a list where input is a list.")
        if self.second is not None and len(_as_list(self.second)) != len(_as_list(self.input)):
            raise ValueError(
                f"The field 'second' has {len(self.second)} texts, and input has {len(self.input)}: one for each."
            )
        return self

    def pairs(self) -> list[tuple[str, str | None]]:
        """Each input with its second text, where there is one."""
        inputs = _as_list(self.input)
        seconds: list[str] | list[None] = [None] * len(inputs) if self.second is None else _as_list(self.second)
        return list(zip(inputs, seconds, strict=True))

    def texts(self) -> list[str]:
        return [text for pair in self.pairs() for text in pair if text is not None]


class PathQuestion(Strict):
    question: Text
    choices: list[str] = Field(min_length=2, max_length=26)


class PathsRequest(Request):
    input: PathQuestion | Annotated[list[PathQuestion], Field(min_length=1, max_length=16)] = Field(
        description="a question with its choices, or a list of them"
    )

    def questions(self) -> list[PathQuestion]:
        return self.input if isinstance(self.input, list) else [self.input]

    def texts(self) -> list[str]:
        return [text for item in self.questions() for text in (item.question, *item.choices)]


class EncodeRequest(TextRequest):
    pool: Literal["mean", "max", "start", "last"] = Field(default="mean", description="states to one vector")


class SimilarityRequest(TextRequest):
    reference: Text | None = Field(
        default=None, description="the text that all inputs are compared with; the first of a list unless given"
    )
    pool: Literal["mean", "max", "start", "last"] = Field(default="mean", description="states to one vector")

    @model_validator(mode="after")
    def _something_to_compare_with(self) -> Self:
        if self.reference is None and len(_as_list(self.input)) < 2:
            raise ValueError("One text alone is compared with nothing: send two or more as input, or a reference.")
        return self

    def texts(self) -> list[str]:
        """The text that others are compared with, where it is no input, and the inputs."""
        return [*([] if self.reference is None else [self.reference]), *_as_list(self.input)]


class NeighboursRequest(TextRequest):
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)] = Field(
        description="a word, or a list of words"
    )
    top: int = Field(default=10, ge=1, le=100)


class AnalogyRequest(Request):
    input: Triple | Annotated[list[Triple], Field(min_length=1, max_length=MAX_TEXTS)] = Field(
        description="three words a, b and c (a is to b as c to ?), or a list of such threes"
    )
    top: int = Field(default=5, ge=1, le=100)

    def triples(self) -> list[list[str]]:
        """The questions."""
        return [self.input] if isinstance(self.input[0], str) else self.input

    def texts(self) -> list[str]:
        return [word for triple in self.triples() for word in triple]


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


# --- answers ----------------------------------------------------------------------------------------


class Guess(BaseModel):
    token: str
    probability: float
    text: str = Field(description="the whole text with the blank filled")


class FillResult(BaseModel):
    blanks: list[list[Guess]] = Field(description="for each [MASK] the likeliest tokens")


class GenerateResult(BaseModel):
    text: str
    ended: Literal["tokens", "end", "stop", "context"]


class ScoredText(BaseModel):
    text: str
    score: float


class TranslateResult(ScoredText):
    nbest: list[ScoredText] = Field(description="as many as `best`, the first of which is `text`")


class PredictResult(BaseModel):
    """What `etude predict` answers; its fields are those of the task."""

    model_config = ConfigDict(extra="allow")


class AttentionResult(BaseModel):
    tokens: list[str]
    keys: list[str]
    weights: list[list[list[list[float]]]] = Field(description="by layer, head, token and key")
    cut: bool = Field(description="the text was longer than the model sees")
    habits: dict[str, list[list[float]]] = Field(description="means of each head, by layer and head")


class PathsResult(BaseModel):
    """The answers to a question with the paths that join them, the likeliest first."""

    model_config = ConfigDict(extra="allow")
    question: str


class EncodeResult(BaseModel):
    vector: list[float]


class SimilarityResult(BaseModel):
    cosine: float = Field(description="of this text and the reference, or the first")


class Neighbour(BaseModel):
    word: str
    cosine: float


class NeighboursResult(BaseModel):
    neighbours: list[Neighbour]


class RunInfo(BaseModel):
    """A run that answers."""

    name: str
    system: str
    task: str = Field(description="of a fine-tuned run; empty otherwise")
    endpoints: list[str]
    inputs: list[str] = Field(description="the parts of a plain line of its task")
    columns: list[str] = Field(description="and what they are called in an object")
    roles: dict[str, str] = Field(description="all parts of an example of its task, with their columns")
    pairs: list[str] = Field(description="of a translation model: its two languages")
    examples: dict[str, JsonValue] = Field(description="an input for each endpoint")


class About(BaseModel):
    """What GET /about answers."""

    runs: list[RunInfo]
    board: bool = Field(description="whether a folder of runs and studies is shown")
    token: bool = Field(description="whether requests need a bearer token")
