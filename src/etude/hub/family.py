"""A model family: one class of models in `transformers`, described by its config.json and its tensors.

For a family every setting of our Transformer is of one of four kinds:

    fields      are in config.json under another name
    fixed       define the family: BERT is post-norm, GPT-2 is causal
    training    change nothing in a trained model (dropout, initialisation)
    the rest    cannot be expressed, and must be at their defaults

A model belongs to a family when no setting is left over; the mismatches name those that are. The same lists read a
config.json: fields become settings, `required` gives the values that its other keys must have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from etude.errors import UserError
from etude.hub.mapping import Table
from etude.models.transformer import Settings

Config = Mapping[str, Any]  # the content of config.json
LARGEST_COUNT = 1 << 20  # of layers, heads or columns: far above any model's

# Published names of activations -> ours; the first published name is the one that is written.
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


def published_activation(activation: str) -> str:
    """Return the published name of an activation."""
    return next(name for name, own in ACTIVATIONS.items() if own == activation)


def read_activation(config: Config, key: str, default: str, source: str) -> str:
    """Return our name of the activation under a key."""
    value = config.get(key, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise UserError(f"{source}: {key}={value!r} is not supported. Known: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[value]


def read_count(config: Config, key: str, default: int, source: str) -> int:
    """Return the whole number under a key, before anything is computed from it."""
    value = config.get(key, default)
    if type(value) is not int or not 0 < value <= LARGEST_COUNT:
        raise UserError(f"{source}: {key}={str(value)[:40]} is no whole number from 1 to {LARGEST_COUNT:,}.")
    return value


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

# Descriptions of settings in the messages about mismatches.
DESCRIPTIONS = {
    "window": "banded layers",
    "share": "partial sharing",
    "positions": "positions",
    "gated": "gated feed-forward",
    "bias": "projections without bias",
    "norm_kind": "the kind of norm",
}


@dataclass(frozen=True)
class Field:
    """A key of config.json and the setting that it is here."""

    key: str
    setting: str
    default: Any  # of transformers, where config.json has no such key
    values: Mapping[str, str] | None = None  # published value -> ours, where they differ
    also_sets: tuple[str, ...] = ()  # further settings that take the key's value

    def with_default(self, default: Any) -> Field:
        """Return the field with another default."""
        return replace(self, default=default)

    def read(self, config: Config, source: str) -> dict[str, Any]:
        """Return our settings from a config.json."""
        value = config.get(self.key, self.default)
        if self.values is not None:
            if not isinstance(value, str) or value not in self.values:
                raise UserError(f"{source}: {self.key}={value!r} is not supported. Known: {', '.join(self.values)}.")
            value = self.values[value]
        return dict.fromkeys((self.setting, *self.also_sets), value)

    def write(self, settings: Settings) -> Any:
        """Return the published value of our setting."""
        value = getattr(settings, self.setting)
        if self.values is None:
            return value
        return next((published for published, own in self.values.items() if own == value), None)


@dataclass(frozen=True)
class Family:
    """One published class of models, mapped in both directions."""

    name: str
    system: str  # as recipes call it
    model_type: str  # as config.json calls it
    objective: str  # the kind of objective it is trained with here
    table: Table
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any]
    architectures: tuple[tuple[tuple[str, ...], str], ...]  # parts that must be there -> the class to write
    required: Mapping[str, Any] = field(default_factory=dict)  # keys of config.json and the one value they may have
    constant_keys: Mapping[str, Any] = field(default_factory=dict)  # keys that are always written with this value
    finetune: Mapping[str, Any] = field(default_factory=dict)  # of its recipes (recipes/finetuning.py)
    sentence: str = "none"  # the sentence task of its published weights, where they have one
    head_activation: str | None = None  # of the masked head: None, the model's own
    head_activation_key: str | None = None  # the key of config.json that holds it
    tied: bool = True  # whether transformers ties the output layer where config.json has no such key
    # what no list can express: (config, source) -> settings; settings -> keys of config.json; settings -> mismatches
    read_extra: Callable[[Config, str], dict[str, Any]] = lambda config, source: {}
    write_extra: Callable[[Settings], dict[str, Any]] = lambda settings: {}
    extra_settings: tuple[str, ...] = ()  # the settings that these two cover
    check_extra: Callable[[Settings], list[str]] = lambda settings: []

    # --- our settings -> config.json ---

    def find_mismatches(self, settings: Settings) -> list[str]:
        """Return the settings that this family cannot express, each with a description."""
        canonical = _canonical(settings)
        mismatches = [
            f"model.{name}={_format(getattr(canonical, name))} ({_describe(name)}; {self.system} has {_format(value)})"
            for name, value in self.fixed.items()
            if getattr(canonical, name) != value
        ]
        for entry in self.fields:
            value = getattr(canonical, entry.setting)
            if entry.values is not None and value not in entry.values.values():
                mismatches.append(f"model.{entry.setting}={value}")
        known = {*self.fixed, *TRAINING, *self.extra_settings, *(field.setting for field in self.fields)}
        mismatches += [
            f"model.{name}={_format(getattr(canonical, name))} ({_describe(name)})"
            for name, setting in Settings.model_fields.items()
            if name not in known and getattr(canonical, name) != setting.default
        ]
        return mismatches + self.check_extra(canonical)

    def make_config(self, settings: Settings, parts: set[str]) -> dict[str, Any]:
        """Return the keys of config.json that follow from the model."""
        architecture = next(name for needed, name in self.architectures if parts.issuperset(needed))
        values: dict[str, Any] = {"architectures": [architecture], "model_type": self.model_type}
        values |= {field.key: field.write(_canonical(settings)) for field in self.fields}
        values |= dict(self.constant_keys) | self.write_extra(settings)
        return values | {"tie_word_embeddings": True, "dtype": "float32"}

    # --- config.json -> our settings ---

    def parse_config(self, config: Config, source: str) -> Settings:
        """Return our settings from a config.json."""
        for key, value in self.required.items():
            if config.get(key, value) != value:
                raise UserError(
                    f"{source}: {key}={config[key]!r} is not supported; {self.system} models need {key}={value!r}."
                )
        values: dict[str, Any] = dict(self.fixed)
        for entry in self.fields:
            values |= entry.read(config, source)
        try:
            values |= self.read_extra(config, source)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:  # a value of another type
            raise UserError(f"{source}: config.json describes no model: {error}.") from None
        try:
            return Settings(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UserError(
                f"{source}: config.json describes no model: {f'{name}: ' if name else ''}{first['msg']}."
            ) from None


def _canonical(settings: Settings) -> Settings:
    """Return the same model with derived values filled in and settings without effect at their defaults."""
    defaults = {name: setting.default for name, setting in Settings.model_fields.items()}
    changes: dict[str, Any] = {
        "feedforward": settings.feedforward or 4 * settings.width,
        "embedding_width": None if settings.embedding_width == settings.width else settings.embedding_width,
    }
    if settings.positions != "rotary":
        changes |= {name: defaults[name] for name in ("rotary_base", "rotary_window_base")}
    if settings.window is None:
        changes |= {name: defaults[name] for name in ("dense_every", "rotary_window_base")}
    if settings.layers == 1:
        changes["share"] = "none"  # a single layer shares with none
    return settings.model_copy(update=changes)


def _describe(name: str) -> str:
    return DESCRIPTIONS.get(name, name.replace("_", " "))


def _format(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
