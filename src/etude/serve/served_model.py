"""A loaded run with its endpoints: each is tried once when the run is opened, and what raises UserError is left out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.hub.word_vectors import WordVectors
from etude.inference.baseline_model import BaselineModel
from etude.inference.model import LoadedModel, load
from etude.inference.predictor import Predictor
from etude.inference.task_model import TaskModel
from etude.inference.translation import require_translator
from etude.models.base import require
from etude.models.static import Static
from etude.nn.reordered_linear import reorder_weights
from etude.runs import task_plan as plan
from etude.runs.run import Run
from etude.serve.endpoints import (
    Endpoint,
    analogy_endpoint,
    attention_endpoint,
    encode_endpoint,
    fill_endpoint,
    neighbours_endpoint,
    paths_endpoint,
    predict_endpoint,
    similarity_endpoint,
    translate_endpoint,
)
from etude.serve.examples import INPUTS, TEXT, choose_words, make_task_example
from etude.serve.requests import RunInfo
from etude.serve.run_names import name_runs
from etude.text.tokenizer.open_vocabulary import OpenVocabularyTokenizer
from etude.text.tokenizer.token_strings import list_token_strings
from etude.view.paths import require_graph_task

STATELESS_TASKS = frozenset({"classify", "pair", "similarity", "tag", "span", "choice", "rank"})

MOST_WORDS = 100_000  # unknown words that have an id: some ten megabytes


@dataclass(frozen=True)
class ServedModel:
    """A loaded run with its endpoints."""

    name: str
    system: str
    endpoints: dict[str, Endpoint[Any]]
    model: LoadedModel | None  # None: a baseline, which has no hidden states
    task: str = ""  # of a fine-tuned run
    inputs: dict[str, str] = field(default_factory=dict)  # the parts of a plain line of the task, and their columns
    roles: dict[str, str] = field(default_factory=dict)  # all parts of an example, and their columns
    pairs: tuple[str, str] | None = None  # of a translation model
    generates: bool = False
    folder: Path | None = None  # where it lies, if on this machine
    spellers: tuple[OpenVocabularyTokenizer, ...] = ()  # what numbers unknown words
    # held while it answers: a lock, unless several threads may ask it at once
    turn: AbstractContextManager[object] = field(default_factory=threading.Lock)

    @classmethod
    def open(cls, folder: str | Path, device: str | None = None, name: str | None = None) -> ServedModel:
        """Load a run and try each endpoint once; a baseline has one, which needs no trial.

        `name`: under which requests ask for it; the folder's unless given.
        """
        name = name_runs([folder])[0] if name is None else name
        if is_baseline(folder):
            baseline = BaselineModel.open(folder)
            endpoints: dict[str, Endpoint[Any]] = {"predict": predict_endpoint(baseline)}
            system, inputs = baseline.baseline.name, baseline.inputs
            roles, place = list_roles(baseline), Path(folder).resolve()
            return cls(name, system, endpoints, None, baseline.kind, inputs, roles, folder=place)
        model = load(folder, device)
        tuned = TaskModel.open(folder, model.device) if (Path(folder) / plan.FILE).is_file() else None
        _reorder(model, tuned)
        candidates = _try_endpoints(model, tuned)
        if not candidates:
            raise UserError(f"{folder} has no endpoint that could be served.")
        run = Run.open(folder) if (Path(folder) / "recipe.yaml").is_file() else None
        return cls(
            name,
            run.recipe.system if run else "",
            {kind: endpoint for kind, endpoint in candidates.items() if endpoint is not None},
            model,
            tuned.kind if tuned else "",
            tuned.inputs if tuned else {},
            list_roles(tuned) if tuned else {},
            run.pairs if run else None,
            "generate" in candidates,
            Path(folder).resolve() if Path(folder).exists() else None,
            _list_spellers(model, tuned),
            nullcontext() if _is_stateless(model, tuned) else threading.Lock(),
        )

    @property
    def abilities(self) -> list[str]:
        """The names of its endpoints."""
        return [*(["generate"] if self.generates else []), *self.endpoints]

    def example(self, kind: str) -> JsonValue:
        """Return an input of an endpoint that the run can answer."""
        if kind == "predict":
            return make_task_example(self.task, list(self.inputs), self.roles)
        if kind not in ("neighbours", "analogy"):
            return INPUTS.get(kind, TEXT)
        assert self.model is not None
        words = choose_words(list_token_strings(self.model.tokenizer))
        return words[min(1, len(words) - 1)] if kind == "neighbours" else [*words]

    def describe(self) -> RunInfo:
        """Return what GET /about says of it."""
        return RunInfo(
            name=self.name,
            system=self.system,
            task=self.task,
            endpoints=self.abilities,
            inputs=list(self.inputs),
            columns=list(self.inputs.values()),
            roles=self.roles,
            pairs=list(self.pairs or ()),
            examples={kind: self.example(kind) for kind in self.abilities},
        )

    def forget_words(self) -> None:
        """Take the ids of unknown words back where they are many; for a moment at which no answer is under way."""
        for speller in self.spellers:
            if speller.new_word_count > MOST_WORDS:
                speller.forget_words()

    def count_tokens(self, texts: Sequence[str]) -> int:
        """How many tokens the texts have; words of a model without a tokenizer."""
        if self.model is None:
            return sum(len(text.split()) for text in texts)
        return sum(map(len, self.model.tokenizer.encode_ids(texts)))


def list_roles(predictor: Predictor) -> dict[str, str]:
    """The parts of an example of a task by role, with the names of their columns."""
    return {role: predictor.columns.get(role, usual[0]) for role, usual in predictor.module.COLUMNS.items()}


def _reorder(model: LoadedModel, tuned: TaskModel | None) -> None:
    """Put the weights of linear layers on an Arm CPU in the order of its products: small batches wait for that."""
    for module in (model.model, model.objective, *((tuned.model, tuned.task) if tuned is not None else ())):
        reorder_weights(module)


def _list_spellers(model: LoadedModel, tuned: TaskModel | None) -> tuple[OpenVocabularyTokenizer, ...]:
    """The tokenizers that number unknown words, of all parts that read letters."""
    tokenizers = [model.tokenizer]
    if tuned is not None:
        tokenizers.append(tuned.model.attach_tokenizer(tuned.tokenizer))  # the one that it has, if it reads letters
    return tuple(dict.fromkeys(each for each in tokenizers if isinstance(each, OpenVocabularyTokenizer)))


def _is_stateless(model: LoadedModel, tuned: TaskModel | None) -> bool:
    """Whether an answer changes nothing in the run: a tokenizer that numbers unknown words, or a graph's links, do."""
    is_closed = not isinstance(model.tokenizer, OpenVocabularyTokenizer)
    return is_closed and (tuned is None or tuned.kind in STATELESS_TASKS)


def _try_endpoints(model: LoadedModel, tuned: TaskModel | None) -> dict[str, Endpoint[Any] | None]:
    """The endpoints that the run has; `generate` stands without one (generation.py)."""

    def fill() -> Endpoint[Any]:
        model.fill("[MASK]", 1)
        return fill_endpoint(model)

    def generate() -> None:
        if not model.model.causal:
            raise UserError("This model predicts what is left out, not what follows.")
        model.require_trained_head()

    def translate() -> Endpoint[Any]:
        require_translator(model)
        return translate_endpoint(model)

    def predict() -> Endpoint[Any]:
        if tuned is None:
            raise UserError("This run was not fine-tuned.")
        tuned.require_trained_head()
        return predict_endpoint(tuned)

    def attention() -> Endpoint[Any]:
        if not model.model.has_attention_weights:
            raise UserError("This model has no attention heads.")
        return attention_endpoint(model)

    def paths() -> Endpoint[Any]:
        require_graph_task(tuned)
        assert tuned is not None
        return paths_endpoint(tuned)

    def encode() -> Endpoint[Any]:
        model.encode(["a"])
        return encode_endpoint(model)

    def similarity() -> Endpoint[Any]:
        model.encode(["a"])
        return similarity_endpoint(model)

    @cache
    def vectors() -> WordVectors:
        static = require(model.model, Static, "This model has no word vectors.")
        tokenizer = model.tokenizer
        return WordVectors.from_model(static, list_token_strings(tokenizer), tokenizer.special.unknown)

    candidates: dict[str, Callable[[], Endpoint[Any] | None]] = {
        "fill": fill,
        "generate": generate,
        "translate": translate,
        "predict": predict,
        "attention": attention,
        "paths": paths,
        "encode": encode,
        "similarity": similarity,
        "neighbours": lambda: neighbours_endpoint(vectors()),
        "analogy": lambda: analogy_endpoint(vectors()),
    }
    endpoints: dict[str, Endpoint[Any] | None] = {}
    for name, make in candidates.items():
        try:
            endpoints[name] = make()
        except UserError:
            continue
    return endpoints
