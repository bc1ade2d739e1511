"""The endpoints that a run has over HTTP: JSON in, JSON out.

    fill        a masked model            {"text": "The [MASK] sat.", "top": 5}
    generate    a causal model            {"text": "Once upon", "tokens": 40, "temperature": 1.0, "seed": 0}
    translate   a translation model       {"texts": ["The cat sat."], "beams": 4, "penalty": 0.6}
    predict     a fine-tuned run          {"inputs": ["a text", {"text_a": "...", "text_b": "..."}]}
    attention   a Transformer             {"text": "The cat sat.", "second": null}
    paths       a run of graph_choice     {"question": "Where is a cat?", "choices": ["sofa", "sea"]}
    encode      any                       {"texts": ["one vector", "for each"], "pool": "mean"}

Each endpoint is tried once when the run is opened, and those that raise UserError are left out. Answers are those of
the Python interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.inference.baseline_model import BaselineModel
from etude.inference.fill import Guess
from etude.inference.model import LoadedModel, load
from etude.inference.predictor import Predictor
from etude.inference.task_model import TaskModel
from etude.inference.translation import require_translator
from etude.recipes.document import Document
from etude.recipes.schema import validate_settings
from etude.runs import task_plan as plan
from etude.runs.run import Run
from etude.settings import Strict
from etude.view.alignment import compute_maps
from etude.view.paths import PathExplanation, explain_paths, require_graph_task

MAX_ITEMS = 1024  # generated tokens, or inputs, of one request


class FillRequest(Strict):
    text: str = Field(min_length=1)
    top: int = Field(default=5, ge=1, le=100)


class GenerateRequest(Strict):
    text: str
    tokens: int = Field(default=40, ge=1, le=MAX_ITEMS)
    temperature: float = Field(default=1.0, ge=0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int = 0


class TranslateRequest(Strict):
    texts: list[str] = Field(min_length=1, max_length=MAX_ITEMS)
    beams: int = Field(default=4, ge=1, le=64)
    penalty: float = Field(default=0.6, ge=0)


class PredictRequest(Strict):
    inputs: list[str | dict[str, Any]] = Field(min_length=1, max_length=MAX_ITEMS)


class AttentionRequest(Strict):
    text: str = Field(min_length=1)
    second: str | None = None


class PathsRequest(Strict):
    question: str = Field(min_length=1)
    choices: list[str] = Field(min_length=2, max_length=26)


class EncodeRequest(Strict):
    texts: list[str] = Field(min_length=1, max_length=MAX_ITEMS)
    pool: Literal["mean", "max", "first", "last"] = "mean"


@dataclass(frozen=True)
class Endpoint:
    """The fields of a request, and the function that answers it."""

    request: type[Strict]
    answer: Callable[[Any], dict[str, Any]]

    def validate(self, values: object) -> Strict:
        """Return the request; raise UserError where a field is missing, unknown or wrong."""
        if not isinstance(values, dict):
            raise UserError("A request is a JSON object.")
        request: Strict = validate_settings(self.request, values, Document(), "request")
        return request


@dataclass(frozen=True)
class ServedModel:
    """A loaded run with its endpoints."""

    name: str
    system: str
    abilities: dict[str, Endpoint]
    model: LoadedModel | None  # None: a baseline, which has no hidden states
    inputs: dict[str, str] = field(default_factory=dict)  # of a fine-tuned run: the parts of an input, their columns
    tuned: TaskModel | None = None  # of a fine-tuned run

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None) -> ServedModel:
        """Load a run and try each endpoint once; a baseline has one, which needs no trial."""
        if is_baseline(folder):
            baseline = BaselineModel.open(folder)
            endpoint = Endpoint(PredictRequest, lambda values: _predict(baseline, values))
            return cls(Path(folder).name, baseline.baseline.name, {"predict": endpoint}, None, baseline.inputs)
        model = load(folder, device)
        tuned, inputs = None, {}
        if (Path(folder) / plan.FILE).is_file():
            tuned = TaskModel.open(folder, model.device)
            inputs = tuned.inputs
        candidates: dict[str, tuple[type[Strict], Callable[[Any], dict[str, Any]], Callable[[], object]]] = {
            "fill": (FillRequest, lambda values: _fill(model, values), lambda: model.fill("[MASK]", 1)),
            "generate": (GenerateRequest, lambda values: _generate(model, values), lambda: _require_causal(model)),
            "translate": (
                TranslateRequest,
                lambda values: _translate(model, values),
                lambda: require_translator(model),
            ),
            "predict": (PredictRequest, lambda values: _predict(tuned, values), lambda: _require_task_head(tuned)),
            "attention": (
                AttentionRequest,
                lambda values: _attention(model, values),
                lambda: _require_attention(model),
            ),
            "paths": (PathsRequest, lambda values: _paths(tuned, values), lambda: require_graph_task(tuned)),
            "encode": (EncodeRequest, lambda values: _encode(model, values), lambda: model.encode(["a"])),
        }
        endpoints = {}
        for name, (request, answer, probe) in candidates.items():
            try:
                probe()
            except UserError:
                continue
            endpoints[name] = Endpoint(request, answer)
        if not endpoints:
            raise UserError(f"{folder} has no endpoint that could be served.")
        return cls(Path(folder).name, _system(folder), endpoints, model, inputs, tuned)

    def describe(self) -> dict[str, Any]:
        """Return what GET /about answers: the name, the endpoints and the fields of their requests."""
        fields = {name: endpoint.request.model_json_schema()["properties"] for name, endpoint in self.abilities.items()}
        parts, columns = list(self.inputs), list(self.inputs.values())
        return {"name": self.name, "system": self.system, "abilities": fields, "inputs": parts, "columns": columns}


def _system(folder: str | Path) -> str:
    return Run.open(folder).recipe.system if (Path(folder) / "recipe.yaml").is_file() else ""


def _require_causal(model: LoadedModel) -> None:
    if not model.model.causal:
        raise UserError("This model predicts what is left out, not what follows.")
    model.require_trained_head()


def _require_task_head(tuned: TaskModel | None) -> None:
    if tuned is None:
        raise UserError("This run was not fine-tuned.")
    tuned.require_trained_head()


def _require_attention(model: LoadedModel) -> None:
    if not model.model.has_attention_weights:
        raise UserError("This model has no attention heads.")


def _fill(model: LoadedModel, request: FillRequest) -> dict[str, Any]:
    result: Sequence[Any] = model.fill(request.text, request.top)
    blanks = [result] if isinstance(result[0], Guess) else result
    return {"blanks": [[vars(guess) for guess in guesses] for guesses in blanks]}


def _generate(model: LoadedModel, request: GenerateRequest) -> dict[str, Any]:
    sampling = request.model_dump(exclude={"text"})
    continuation: Any = model.generate(request.text, **sampling)
    return {"text": continuation.text, "ended": continuation.ended}


def _translate(model: LoadedModel, request: TranslateRequest) -> dict[str, Any]:
    translations = model.translate(request.texts, beams=request.beams, penalty=request.penalty)
    best = [alternatives[0] for alternatives in translations]
    return {"texts": [each.text for each in best], "scores": [each.score for each in best]}


def _predict(tuned: Predictor | None, request: PredictRequest) -> dict[str, Any]:
    assert tuned is not None
    return {"answers": tuned.predict(request.inputs)}


def _attention(model: LoadedModel, request: AttentionRequest) -> dict[str, Any]:
    attention = compute_maps(model, request.text, request.second)
    habits = {name: values.tolist() for name, values in attention.habits().items()}
    return {
        "tokens": attention.tokens,
        "keys": attention.columns,
        "weights": attention.weights.astype(float).round(4).tolist(),
        "cut": attention.cut,
        "habits": habits,
    }


def explain_request(tuned: TaskModel | None, request: PathsRequest) -> PathExplanation:
    """Return the paths of a requested question, whatever the run calls the columns of its files."""
    assert tuned is not None
    columns = {"question": "question", "choices": "choices"}
    return explain_paths(tuned.with_columns(columns), request.model_dump())


def _paths(tuned: TaskModel | None, request: PathsRequest) -> dict[str, Any]:
    return explain_request(tuned, request).json()


def _encode(model: LoadedModel, request: EncodeRequest) -> dict[str, Any]:
    return {"vectors": model.encode(request.texts, pool=request.pool).tolist()}
