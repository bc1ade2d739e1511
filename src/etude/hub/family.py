"""A family: one class of models in `transformers`, as its config.json and its tensors describe it.

The settings of our Transformer fall into four kinds for a family, and every setting is of one of them:

    fields      stand in config.json under another name
    fixed       are what makes the family: BERT is post-norm, GPT-2 is causal
    training    change nothing in a trained model (dropout, first values)
    the rest    have no place there, and must be at their defaults

So a model is of a family when nothing is left over, and what is left over is said by name. The same lists read a
config.json: fields become settings, `only` says which values of its other keys can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from etude.errors import UserError
from etude.hub.mapping import Table
from etude.models.transformer import Settings

# Published names of activations; the first of those for one of ours is the one that is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
}


def activation_name(ours: str) -> str:
    return next(theirs for theirs, one in ACTIVATIONS.items() if one == ours)


TRAINING = {
    "dropout",
    "attention_dropout",
    "embedding_dropout",
    "embedding_dropout_on",
    "init",
    "init_deviation",
    "init_truncated",
    "position_deviation",
}

# How a setting is spoken of where it is what keeps a model out.
WORDS = {
    "window": "banded layers",
    "share": "partial sharing",
    "positions": "positions",
    "gated": "gated feed-forward",
    "bias": "projections without bias",
    "norm_kind": "the kind of norm",
}


@dataclass(frozen=True)
class Field:
    theirs: str
    ours: str
    default: Any  # what transformers takes where config.json says nothing
    names: Mapping[str, str] | None = None  # published value -> ours, where they differ
    also: tuple[str, ...] = ()  # further settings of ours that the key decides when it is read

    def with_default(self, default: Any) -> Field:
        return replace(self, default=default)

    def read(self, config: Mapping[str, Any], where: str) -> dict[str, Any]:
        value = config.get(self.theirs, self.default)
        if self.names is not None:
            if value not in self.names:
                raise UserError(
                    f"{where}: {self.theirs}={value!r} has no counterpart here. Known: {', '.join(self.names)}."
                )
            value = self.names[value]
        return dict.fromkeys((self.ours, *self.also), value)

    def write(self, settings: Settings) -> Any:
        value = getattr(settings, self.ours)
        if self.names is None:
            return value
        return next((name for name, ours in self.names.items() if ours == value), None)


@dataclass(frozen=True)
class Family:
    name: str
    system: str  # as recipes call it
    model_type: str  # as config.json calls it
    objective: str  # the kind of objective it is trained with here
    table: Table
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any]
    architectures: tuple[tuple[tuple[str, ...], str], ...]  # the class to write for the parts that are there
    only: Mapping[str, Any] = field(default_factory=dict)  # keys of config.json and the one value that can be read
    written: Mapping[str, Any] = field(default_factory=dict)  # keys that are written as they stand
    sentence: str = "none"  # the sentence task of its published weights, where they have one
    head_activation: str | None = None  # of the masked head: None, the model's own
    head_key: str | None = None  # or where config.json says it
    tied: bool = True  # whether transformers ties the output layer where config.json says nothing
    # what no list can say: (config, where) -> settings; settings -> keys of config.json; settings -> misfits
    read_more: Callable[[Mapping[str, Any], str], dict[str, Any]] = lambda config, where: {}
    write_more: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    more: tuple[str, ...] = ()  # the settings that these two take care of
    check_more: Callable[[Settings], list[str]] = lambda settings: []

    # --- our settings -> config.json ---

    def misfits(self, settings: Settings) -> list[str]:
        """What keeps a model of these settings out of this family, by name."""
        plain = _plain(settings)
        faults = [
            f"model.{name}={_shown(getattr(plain, name))} ({_word(name)}; {self.system} has {_shown(value)})"
            for name, value in self.fixed.items()
            if getattr(plain, name) != value
        ]
        for one in self.fields:
            if one.names is not None and getattr(plain, one.ours) not in one.names.values():
                faults.append(f"model.{one.ours}={getattr(plain, one.ours)}")
        known = {*self.fixed, *TRAINING, *self.more, *(one.ours for one in self.fields)}
        faults += [
            f"model.{name}={_shown(getattr(plain, name))} ({_word(name)})"
            for name, setting in Settings.model_fields.items()
            if name not in known and getattr(plain, name) != setting.default
        ]
        return faults + self.check_more(plain)

    def config(self, settings: Settings, parts: set[str]) -> dict[str, Any]:
        """The keys of config.json that follow from the model."""
        architecture = next(name for needed, name in self.architectures if parts.issuperset(needed))
        values: dict[str, Any] = {"architectures": [architecture], "model_type": self.model_type}
        values |= {one.theirs: one.write(_plain(settings)) for one in self.fields}
        values |= dict(self.written) | self.write_more(settings)
        return values | {"tie_word_embeddings": True, "dtype": "float32"}

    # --- config.json -> our settings ---

    def settings(self, config: Mapping[str, Any], where: str) -> Settings:
        for key, value in self.only.items():
            if config.get(key, value) != value:
                raise UserError(
                    f"{where}: {key}={config[key]!r} has no counterpart here; of {self.system} models, those with "
                    f"{key}={value!r} can be read."
                )
        values: dict[str, Any] = dict(self.fixed)
        for one in self.fields:
            values |= one.read(config, where)
        values |= self.read_more(config, where)
        try:
            return Settings(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UserError(
                f"{where}: config.json describes no model: {f'{name}: ' if name else ''}{first['msg']}."
            ) from None


def _plain(settings: Settings) -> Settings:
    """The same model said in the shortest way: what follows from something else is filled in or left out."""
    default = {name: setting.default for name, setting in Settings.model_fields.items()}
    changes: dict[str, Any] = {
        "feedforward": settings.feedforward or 4 * settings.width,
        "embedding_width": None if settings.embedding_width == settings.width else settings.embedding_width,
    }
    if settings.positions != "rotary":
        changes |= {name: default[name] for name in ("rotary_base", "rotary_window_base")}
    if settings.window is None:
        changes |= {name: default[name] for name in ("dense_every", "rotary_window_base")}
    if settings.layers == 1:
        changes["share"] = "none"  # a single layer has nobody to share with
    return settings.model_copy(update=changes)


def _word(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
