"""Recipes: one YAML file is one published system at one size.

    name: bert-base
    system: BERT
    paper: where it was published
    follows: paper            # or the released code, where the two differ
    note: what differs, and which side was taken
    tokenizer: wordpiece:30522
    model: {kind: transformer, layers: 12, ...}
    objective: {kind: masked, ...}
    train: {steps: 1_000_000, ...}
    finetune: {markers: new}  # where the paper says how a task is learnt; most have none

`kind` is the name of a module: `etude.models.<kind>` and `etude.objectives.<kind>`, or one of another package
(kinds.py). Each defines its own `Settings`, so a new model or objective is known here the moment its file exists.
`extends: other` takes over another recipe and changes some of it; a resolved recipe is complete and extends nothing.
"""

from __future__ import annotations

import json
import os
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path as File
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from etude.errors import UserError, suggest_name
from etude.kinds import find_kind, list_kinds
from etude.plain_yaml import Path, Writer
from etude.recipes.document import Document, Overrides, find_recipe, parse, parse_overrides, read_recipe
from etude.recipes.finetuning import FinetuningDefaults
from etude.settings import ReadsEntities, ReadsGraph, Strict
from etude.text.tokenizer import training
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS, Specials
from etude.train import schedule
from etude.train.settings import Settings as Train

if TYPE_CHECKING:
    from etude.models.base import Model, ModelSettings
    from etude.objectives.base import PretrainingObjective

SettingsT = TypeVar("SettingsT", bound="ModelSettings")

# settings that are derived from those of the model where they are left out
DERIVED: dict[str, Callable[[Any], Any]] = {
    "feedforward": lambda model: 4 * model.width,
    "embedding_width": lambda model: model.width,
    "position_deviation": lambda model: model.init_deviation,
    "activation": lambda model: dict(model).get("activation"),  # where it has none, the objective refuses it
}
TEXTS = ("name", "system", "paper", "follows", "note", "tokenizer")
DISTILL_GROUP = ("objective", "distill")  # what `distill.*` is short for
PARTS = {"model": "models", "objective": "objectives"}  # group in a recipe -> package that holds its kinds


@dataclass(frozen=True)
class Recipe:
    name: str
    tokenizer: str
    model_kind: str
    model: ModelSettings  # of its kind
    objective_kind: str
    objective: Any
    train: Train
    system: str = ""
    paper: str = ""
    follows: str = ""
    note: str = ""
    finetune: FinetuningDefaults = field(default_factory=FinetuningDefaults)
    source: Document = field(default_factory=Document, compare=False, repr=False)  # for the places in messages

    @classmethod
    def load(cls, name: str | File, overrides: Overrides = ()) -> Self:
        """A shipped recipe by name, or one from a file; `overrides` as on the command line or as a mapping."""
        return cls.from_document(read_recipe(find_recipe(name)).overlay(parse_overrides(overrides)))

    @classmethod
    def parse(cls, text: str, where: str = "the recipe") -> Self:
        """A recipe from YAML text that extends nothing, such as a resolved one."""
        return cls.from_document(parse(text, where))

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """Checks a document against the settings of its kinds."""
        document = _with_distill_group(document)
        known = [*TEXTS, *PARTS, "train", "finetune"]
        for key in document.values:
            if key not in known:
                raise _fault(document, (key,), f"'{key}' is not a part of a recipe.{suggest_name(key, known)}")
        texts: dict[str, Any] = {key: _text(document, key) for key in TEXTS if document.values.get(key) is not None}
        if not texts.get("name"):
            raise _fault(document, (), "'name' is missing. Say for example 'name: my-bert'.")
        reads_graph = _reads_graph(document)
        if reads_graph and texts.setdefault("tokenizer", ""):
            raise _fault(
                document, ("tokenizer",), "this objective learns from a graph, which has no tokenizer: leave it out."
            )
        if not reads_graph and not texts.get("tokenizer"):
            raise _fault(document, (), "'tokenizer' is missing. Say for example 'tokenizer: wordpiece:8000'.")
        if not reads_graph and not _is_path(texts["tokenizer"]):
            try:
                training.parse_spec(texts["tokenizer"])
            except UserError as error:
                raise _fault(document, ("tokenizer",), str(error)) from None
        parts: dict[str, Any] = {}
        for group in PARTS:
            values = dict(_group(document, group))
            kind = values.pop("kind", None)
            parts[f"{group}_kind"] = kind
            parts[group] = validate_settings(_kind(document, group, kind).Settings, values, document, group)
        parts["train"] = validate_settings(Train, _group(document, "train", {}), document, "train")
        finetune = _group(document, "finetune", {})
        parts["finetune"] = validate_settings(FinetuningDefaults, finetune, document, "finetune")
        return cls(**texts, **parts, source=document)

    @property
    def reads_graph(self) -> bool:
        """Whether it learns from a knowledge graph, not from a corpus."""
        return isinstance(self.objective, ReadsGraph)

    @property
    def reads_entities(self) -> bool:
        """Whether its model reads the entities of a text, and so needs vectors of them and linked text."""
        return isinstance(self.model, ReadsEntities)

    def resolve(self, vocab: int | None = None, relations: int | None = None, target_vocab: int | None = None) -> Self:
        """Fills everything that follows from something else; `vocab` is that of the corpus, where there is one.

        Of a graph, `vocab` is the number of entities, and `relations` is filled too. Without a corpus the vocabulary is
        the size that the tokenizer is asked for. `target_vocab` is that of targets, where it is not that of sources.
        What contradicts itself only
        when joined (a sequence longer than the context, a batch smaller than a row) is refused here.
        """
        size = self.tokenizer_size if vocab is None else vocab
        model = self.model
        if self.reads_graph:
            return self._resolve_graph(vocab, relations)
        if model.vocab is None and size is not None:
            model = self._changed("model", model, vocab=size)
        if target_vocab is not None:
            model = self._with_target_vocab(model, target_vocab)
        elif vocab is not None:
            self._check_target_vocab(model, vocab)
        self._check_vocab(model.vocab, vocab)
        model = self._changed("model", model, **_derived(model, model))
        objective = self._changed("objective", self.objective, **_derived(self.objective, model))
        resolved = replace(self, model=model, objective=objective)
        return resolved._with_rows() if model.vocab is not None else resolved

    def _with_target_vocab(self, model: Any, vocab: int) -> Any:
        """The model's settings with a vocabulary of targets."""
        if "target_vocab" not in type(model).model_fields:
            raise UserError(
                f"The corpus has a tokenizer for each side of its pairs, and a model of the kind {self.model_kind} has "
                "one vocabulary. Take an encoder-decoder, or prepare the pairs without --target-tokenizer."
            )
        if model.tables == "shared":
            raise self.fault(
                ("model", "tables"),
                "model.tables=shared: the corpus has a tokenizer for each side, and one table of vectors cannot serve "
                "two vocabularies. Set model.tables=separate.",
            )
        self._check_target_vocab(model, vocab)
        return self._changed("model", model, target_vocab=model.target_vocab or vocab)

    def _check_target_vocab(self, model: Any, vocab: int) -> None:
        """Raise UserError where a model has a vocabulary of targets that their tokenizer does not fit into."""
        own = model.model_dump().get("target_vocab")
        if own is not None and own < vocab:
            raise self.fault(
                ("model", "target_vocab"),
                f"model.target_vocab={own} is smaller than the tokenizer of targets, which has {vocab} tokens. "
                "Leave it out: it is filled in.",
            )

    def _resolve_graph(self, entities: int | None, relations: int | None) -> Self:
        """Fills the sizes of a graph; those that a recipe gives must be the graph's own."""
        counts = {"vocab": (entities, "entities"), "relations": (relations, "relations")}
        given = self.model.model_dump()
        for name, (count, noun) in counts.items():
            if count is not None and given.get(name) not in (None, count):
                raise self.fault(
                    ("model", name),
                    f"model.{name}={given[name]}, and the graph has {count} {noun}. Leave it out: it is filled in.",
                )
        if entities is None and self.model.vocab is None:
            return self
        filled = {name: count for name, (count, _) in counts.items() if count is not None and name in given}
        return replace(self, model=self._changed("model", self.model, **filled))._with_rows()

    def _check_vocab(self, own: int | None, corpus: int | None) -> None:
        if own is not None and own <= len(TRAINED_SPECIALS):
            raise self.fault(
                ("model", "vocab"),
                f"model.vocab={own} leaves no token beside the {len(TRAINED_SPECIALS)} special ones "
                f"({' '.join(TRAINED_SPECIALS)}). Leave it out: it follows from the tokenizer.",
            )
        if own is not None and corpus is not None and own < corpus:
            raise self.fault(
                ("model", "vocab"),
                f"model.vocab={own} is smaller than the tokenizer of the corpus, which has {corpus} tokens. "
                f"Leave it out, or set it to {corpus} or more.",
            )

    def _with_rows(self) -> Self:
        """Length and size of rows as the objective takes them, learnt from one built without memory."""
        from etude.recipes.model_memory import explain_oversize, shapes_only

        special = Specials() if self.reads_graph else Specials(*range(len(TRAINED_SPECIALS)))
        try:
            with shapes_only(), explain_oversize(self.name):
                objective = self.build_objective(self.build_model(), special)
            if objective.row_tokens is not None:
                schedule.micro_rows(self.train, objective.row_tokens)
        except UserError as error:
            raise UserError(self._placed(str(error))) from None
        row_sizes = {"length": objective.length, "row_tokens": objective.row_tokens}
        values = self.objective.model_dump()
        missing = {name: value for name, value in row_sizes.items() if name in values and values[name] is None}
        return replace(self, objective=self._changed("objective", self.objective, **missing))

    @property
    def tokenizer_size(self) -> int | None:
        """The vocabulary that a specification such as `wordpiece:30522` asks for; None where it is not said."""
        if not self.tokenizer or _is_path(self.tokenizer):
            return None
        return training.parse_spec(self.tokenizer).size

    def has_objective(self, kind: str) -> bool:
        """Whether the objective is of this kind, or of one whose settings extend it (distill extends masked)."""
        return isinstance(self.objective, find_kind("objectives", kind).Settings)

    def with_settings(self, overrides: Overrides) -> Self:
        """The same recipe with some settings changed."""
        document = Document(self._plain_values(), {(): f"recipe {self.name}"} | self.source.places)
        return self.from_document(document.overlay(parse_overrides(overrides)))

    def dump(self) -> str:
        """YAML that loads back equal."""
        return _write_yaml(json.dumps(self._plain_values()))

    def _plain_values(self) -> dict[str, Any]:
        """All settings as texts, numbers, lists and dicts."""
        values: dict[str, Any] = {key: getattr(self, key) for key in TEXTS if getattr(self, key)}
        for group in PARTS:
            values[group] = {"kind": getattr(self, f"{group}_kind"), **getattr(self, group).model_dump(mode="json")}
        values["train"] = self.train.model_dump(mode="json")
        if self.finetune != FinetuningDefaults():
            values["finetune"] = self.finetune.model_dump(mode="json")
        return values

    def model_settings(self, family: type[SettingsT]) -> SettingsT:
        """The model's settings, typed as those of one family; for code that has checked `model_kind`."""
        if not isinstance(self.model, family):
            raise TypeError(f"recipe {self.name} has a model of the kind {self.model_kind}, not {family.__module__}")
        return self.model

    def build_model(self) -> Model:
        from etude.recipes.model_memory import build_within_memory

        return build_within_memory(lambda: find_kind("models", self.model_kind).build(self.model), self.name)

    def build_objective(self, model: Model, special: Specials) -> PretrainingObjective:
        ids = special.ids()
        if ids and ids[-1] >= model.vocab:
            raise self.fault(
                ("model", "vocab"), f"model.vocab={model.vocab} does not reach the special token {ids[-1]}."
            )
        return find_kind("objectives", self.objective_kind).build(self.objective, model, special)

    def _placed(self, message: str) -> str:
        """A message that names settings in full (`train.lr=...`), with the places of those that have one."""
        names = re.findall(r"\b(?:model|objective|train|distill)(?:\.\w+)+", message)
        paths = [(*DISTILL_GROUP[:-1], *parts) if parts[0] == "distill" else parts for parts in map(_split_name, names)]
        places = dict.fromkeys(self.source.places[path] for path in paths if path in self.source.places)
        return f"{'; '.join(places)}: {message}" if places else message

    def fault(self, path: Path, message: str) -> UserError:
        """A message about one setting, with its place: for checks that need more than the recipe knows."""
        return _fault(self.source, path, message)

    def _changed(self, group: str, settings: Strict, **values: object) -> Any:
        return validate_settings(type(settings), {**settings.model_dump(mode="json"), **values}, self.source, group)


@lru_cache(maxsize=512)
def _write_yaml(values: str) -> str:
    """Write values that are given as JSON; PyYAML needs as long as for a step, and plans write their recipes often."""
    return yaml.dump(json.loads(values), Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)


def kinds(group: str) -> list[str]:
    """Names of the kinds that a group of a recipe (model, objective) can have."""
    return list(list_kinds(PARTS[group]))


def _kind(document: Document, group: str, kind: object) -> ModuleType:
    if kind is None:
        raise _fault(document, (group,), f"'{group}' names no kind. There are: {', '.join(kinds(group))}.")
    if not isinstance(kind, str) or not kind.replace(".", "").isidentifier():
        raise _fault(
            document, (group, "kind"), f"{kind!r} is not a kind of {group}.{suggest_name(str(kind), kinds(group))}"
        )
    try:
        return find_kind(PARTS[group], kind)
    except UserError as error:
        raise _fault(document, (group, "kind"), str(error)) from error.__cause__


def _reads_graph(document: Document) -> bool:
    """Whether the objective of a document learns from a graph."""
    settings = _kind(document, "objective", _group(document, "objective").get("kind")).Settings
    return issubclass(settings, ReadsGraph)


def _with_distill_group(document: Document) -> Document:
    """`distill.temperature` is short for `objective.distill.temperature`, and makes a masked objective a distilled one.

    So it stands on command lines and in older recipes.
    """
    if document.values.get("distill") is None:
        return document
    settings = _group(document, "distill")
    places: dict[Path, str] = {
        ("objective", *path): at for path, at in document.places.items() if path[:1] == ("distill",)
    }
    joined = document.overlay(Document({"objective": {"distill": settings}}, places))
    joined.drop(("distill",))
    if _group(joined, "objective").get("kind") == "masked":
        joined.put(("objective", "kind"), "distill", joined.place(("objective", "kind")))
    return joined


def _split_name(name: str) -> Path:
    return tuple(name.split("."))


def _group(document: Document, group: str, default: Any = None) -> dict[str, Any]:
    values = document.values.get(group, default)
    if values is None:
        raise _fault(document, (), f"the group '{group}' is missing.")
    if not isinstance(values, dict):
        raise _fault(document, (group,), f"'{group}' is a group of settings, not one value. Write {group}.name=value.")
    return values


def _text(document: Document, key: str) -> str:
    value = document.values[key]
    if not isinstance(value, str):
        raise _fault(document, (key,), f"'{key}' is text, not {value!r}.")
    return " ".join(value.split())  # however the file folds its lines


def _derived(settings: Strict, model: Any) -> dict[str, Any]:
    """Values for what is left out and follows from the model's settings."""
    missing = [name for name in DERIVED if getattr(settings, name, 0) is None]
    return {name: DERIVED[name](model) for name in missing}


def _is_path(tokenizer: str) -> bool:
    """Whether a tokenizer is given as a file or folder; otherwise it is one to train, such as `bpe:16000`."""
    return "/" in tokenizer or os.path.exists(tokenizer)  # noqa: PTH110 (pathlib raises where a name is too long)


def validate_settings(settings: type[BaseModel], values: Mapping[str, Any], document: Document, group: str) -> Any:
    """`values` as settings, or one message that names every fault and its place."""
    content = json.dumps(_whole(values))
    try:
        # as JSON: lists may fill tuples, yet true is no number and "6" is a word
        return settings.model_validate_json(content, strict=True)
    except ValidationError as error:
        joined = _join_alternatives([dict(fault) for fault in error.errors()], json.loads(content))
        faults = [_explain(settings, fault, document, group) for fault in joined]
    except UserError as error:
        faults = [_placed(settings, document, group, str(error))]
    raise UserError("\n".join(dict.fromkeys(faults)))


def _join_alternatives(faults: list[dict[str, Any]], values: Any) -> list[dict[str, Any]]:
    """Return one fault for each value: where a setting takes a number or a list, pydantic has one for either."""
    by_place: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for fault in faults:
        by_place.setdefault(_locate(fault, values), []).append(fault)
    joined = []
    for place, alternatives in by_place.items():
        if any(len(other) > len(place) and other[: len(place)] == place for other in by_place):
            continue  # another alternative has the right type, and a fault inside
        specific = [fault for fault in alternatives if not fault["type"].endswith(("_type", "literal_error"))]
        shown = specific[:1] or alternatives
        first, *rest = dict.fromkeys(fault["msg"].replace("a valid array", "a list") for fault in shown)
        message = " or ".join([first, *(other.removeprefix("Input should be ") for other in rest)])
        joined.append({**shown[0], "loc": place, "msg": message})
    return joined


def _locate(fault: dict[str, Any], values: Any) -> tuple[Any, ...]:
    """Return the place of a fault in the values, without the marks that pydantic gives the alternatives of a union."""
    place: list[Any] = []
    for part in fault["loc"]:
        keys = values if isinstance(values, dict) else range(len(values) if isinstance(values, list) else 0)
        is_inside = part in keys
        if is_inside:
            values = values[part]
        if is_inside or (fault["type"] == "missing" and part is fault["loc"][-1]):
            place.append(part)
    return tuple(place)


def _whole(value: object) -> object:
    """1e9 and 64.0 as integers, so that they fit integer settings; number settings take integers anyway."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_whole(item) for item in value]
    return value


def _explain(settings: type[BaseModel], fault: dict[str, Any], document: Document, group: str) -> str:
    known, path = _fields(settings, fault["loc"])
    full = (group, *path)
    name = ".".join(full)
    if fault["type"] == "extra_forbidden":
        message = f"there is no setting '{name}'.{suggest_name(path[-1], known)}"
    elif fault["type"] == "missing":
        message = f"'{name}' is missing, and nothing else says it."
    elif fault["type"] == "value_error":
        message = str(fault["ctx"]["error"])
        if not path:  # a rule over several settings
            return _placed(settings, document, group, message)
        message = message if path[-1] in message else f"{name}: {message}"
    else:
        value = json.dumps(fault["input"])
        message = f"'{name}' cannot be {value}: {fault['msg'].lower()}."
        if fault["type"] == "string_type" and isinstance(fault["input"], (bool, int, float)):
            message += f""" Quote it: {path[-1]}: "{value}" in a file, {name}='"{value}"' on a command line."""
    return str(_fault(document, full, message))


def _placed(settings: type[BaseModel], document: Document, group: str, message: str) -> str:
    """A message about several settings, with the places of those it names."""
    words = re.findall(r"\w+", message)
    paths: list[Path] = [
        (group, name) for name in settings.model_fields if name in words and (group, name) in document.places
    ]
    places = dict.fromkeys(document.place(path) for path in paths or [(group,)])
    return f"{'; '.join(places)}: {message}" if any(places) else message


def _fields(settings: type[BaseModel], loc: tuple[Any, ...]) -> tuple[list[str], Path]:
    """The names known where a fault lies, and its path."""
    known = list(settings.model_fields)
    for part in loc:
        if part in settings.model_fields:
            known = list(settings.model_fields)
            inner = [kind for kind in _types(settings.model_fields[part].annotation) if issubclass(kind, BaseModel)]
            if inner:
                settings, known = inner[0], list(inner[0].model_fields)
    return known, tuple(str(part) for part in loc)


def _types(annotation: Any) -> list[type]:
    types = [annotation] if isinstance(annotation, type) else []
    for inner in typing.get_args(annotation):
        types += _types(inner)
    return types


def _fault(document: Document, path: Path, message: str) -> UserError:
    place = document.place(path)
    return UserError(f"{place}: {message}" if place else message)
