"""What a run can do when it is asked over HTTP: JSON in, JSON out.

    fill        a masked model            {"text": "The [MASK] sat.", "top": 5}
    generate    a causal model            {"text": "Once upon", "tokens": 40, "temperature": 1.0, "seed": 0}
    predict     a fine-tuned run          {"inputs": ["a text", {"text_a": "...", "text_b": "..."}]}
    attention   a Transformer             {"text": "The cat sat.", "second": null}
    encode      any                       {"texts": ["one vector", "for each"], "pool": "mean"}

Which of them a run has is found out by trying each once. Answers are those of the Python interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from etude.errors import UserError
from etude.inference.fill import Guess
from etude.inference.model import LoadedModel, load
from etude.inference.task_model import TaskModel
from etude.recipes.document import Document
from etude.recipes.schema import validate_settings
from etude.runs import task_plan as plan
from etude.runs.run import Run
from etude.settings import Strict
from etude.view.attention import look

MOST = 1024  # tokens that are written, inputs that are answered, in one request


class Fill(Strict):
    text: str = Field(min_length=1)
    top: int = Field(default=5, ge=1, le=100)


class Generate(Strict):
    text: str
    tokens: int = Field(default=40, ge=1, le=MOST)
    temperature: float = Field(default=1.0, ge=0)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    seed: int = 0


class Predict(Strict):
    inputs: list[str | dict[str, Any]] = Field(min_length=1, max_length=MOST)


class Look(Strict):
    text: str = Field(min_length=1)
    second: str | None = None


class Encode(Strict):
    texts: list[str] = Field(min_length=1, max_length=MOST)
    pool: Literal["mean", "max", "first", "last"] = "mean"


@dataclass(frozen=True)
class Ability:
    request: type[Strict]
    answer: Callable[[Any], dict[str, Any]]

    def checked(self, values: Any) -> Strict:
        """A request, or UserError with what is wrong with it."""
        if not isinstance(values, dict):
            raise UserError("A request is a JSON object.")
        found: Strict = validate_settings(self.request, values, Document(), "request")
        return found


@dataclass(frozen=True)
class Served:
    """A run that is loaded, and what it can do."""

    name: str
    system: str
    abilities: dict[str, Ability]
    model: LoadedModel
    inputs: dict[str, str] = field(default_factory=dict)  # of a fine-tuned run: the parts of an input, their columns

    @classmethod
    def open(cls, place: str | Path, device: str | None = None) -> Served:
        model = load(place, device)
        tuned, inputs = None, {}
        if (Path(place) / plan.FILE).is_file():
            tuned = TaskModel.open(place, model.device)
            inputs = tuned.inputs
        every: dict[str, tuple[type[Strict], Callable[[Any], dict[str, Any]], Callable[[], object]]] = {
            "fill": (Fill, lambda asked: _fill(model, asked), lambda: model.fill("[MASK]", 1)),
            "generate": (Generate, lambda asked: _generate(model, asked), lambda: _must_write(model)),
            "predict": (Predict, lambda asked: _predict(tuned, asked), lambda: _require_task_head(tuned)),
            "attention": (Look, lambda asked: _look(model, asked), lambda: _must_attend(model)),
            "encode": (Encode, lambda asked: _encode(model, asked), lambda: model.encode(["a"])),
        }
        found = {}
        for name, (request, answer, tried) in every.items():
            try:
                tried()
            except UserError:
                continue
            found[name] = Ability(request, answer)
        if not found:
            raise UserError(f"{place} can do nothing that is served.")
        return cls(Path(place).name, _system(place), found, model, inputs)

    def about(self) -> dict[str, Any]:
        fields = {name: one.request.model_json_schema()["properties"] for name, one in self.abilities.items()}
        parts, columns = list(self.inputs), list(self.inputs.values())
        return {"name": self.name, "system": self.system, "abilities": fields, "inputs": parts, "columns": columns}


def _system(place: str | Path) -> str:
    return Run.open(place).recipe.system if (Path(place) / "recipe.yaml").is_file() else ""


def _must_write(model: LoadedModel) -> None:
    if not model.model.causal:
        raise UserError("This model predicts what is left out, not what follows.")
    model.require_trained_head()


def _require_task_head(tuned: TaskModel | None) -> None:
    if tuned is None:
        raise UserError("This run was not fine-tuned.")
    tuned.require_trained_head()


def _must_attend(model: LoadedModel) -> None:
    if not model.model.has_attention_weights:
        raise UserError("This model has no attention heads.")


def _fill(model: LoadedModel, asked: Fill) -> dict[str, Any]:
    found: Sequence[Any] = model.fill(asked.text, asked.top)
    blanks = [found] if isinstance(found[0], Guess) else found
    return {"blanks": [[vars(guess) for guess in guesses] for guesses in blanks]}


def _generate(model: LoadedModel, asked: Generate) -> dict[str, Any]:
    way = asked.model_dump(exclude={"text"})
    written: Any = model.generate(asked.text, **way)
    return {"text": written.text, "ended": written.ended}


def _predict(tuned: TaskModel | None, asked: Predict) -> dict[str, Any]:
    assert tuned is not None
    return {"answers": tuned.predict(asked.inputs)}


def _look(model: LoadedModel, asked: Look) -> dict[str, Any]:
    found = look(model, asked.text, asked.second)
    habits = {name: values.tolist() for name, values in found.habits().items()}
    return {
        "tokens": found.tokens,
        "weights": found.weights.astype(float).round(4).tolist(),
        "cut": found.cut,
        "habits": habits,
    }


def _encode(model: LoadedModel, asked: Encode) -> dict[str, Any]:
    return {"vectors": model.encode(asked.texts, pool=asked.pool).tolist()}
