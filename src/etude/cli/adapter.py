"""A command from a verb: its signature says the words and options, its docstring the help.

    positional parameters   words of the command line, in their order
    keyword-only ones       options: `skip_bad` is --skip-bad
    settings                words `group.name=value`, anywhere
    on_... (functions)      none: a presenter passes them

A presenter runs the verb and prints what it returns. Its own keyword-only parameters are options too: those that change
what is printed and not what is done (`--json`).
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import typer

from etude import startup
from etude.cli.activity import show_activity, until_first, yield_to
from etude.cli.exits import exit_interrupted
from etude.cli.words import parse_columns, parse_numbers, parse_share, parse_values, split_settings
from etude.errors import UserError
from etude.runs.model_folder import HUB, require_folder
from etude.text.remote.urls import is_url

Result = TypeVar("Result")

SHORT = {"columns": "-c", "out": "-o", "quiet": "-q", "tokenizer": "-t", "top": "-n", "workers": "-w"}
LONG = {
    "columns": "--column",
    "compare_poolings": "--ways",
    "report_only": "--report",
}  # where an option is not called as its parameter
MODELS = ("run", "runs")  # parameters that name models
_PLACE = "place_"  # before the names of positional parameters: an option may be called the same
_WORDS = "settings_words"


@dataclass(frozen=True)
class Command:
    verb: Callable[..., Any]
    present: Callable[..., None]
    name: str = ""  # where it is not the verb's
    usage: str = ""  # what the places are: the message where there are too few of them or too many
    hint: str = ""  # behind that message
    missing: str = ""  # the message where a required option is missing; typer's own if empty
    grouped: bool = True  # settings have a group: model.layers
    prints_lines: bool = False  # progress is printed as whole lines, with silence between them
    rest: str = ""  # the option that takes places beyond those of the verb
    resume: Callable[[Mapping[str, Any]], str] | None = None  # from the values: how work that was begun goes on, if any

    @property
    def called(self) -> str:
        return self.name or self.verb.__name__

    def function(self) -> Callable[..., None]:
        """What typer makes a command of."""
        summary, helps = parse_docstring(self.verb)
        own_helps = parse_docstring(self.present)[1]
        parameters = [*self._verb_parameters(helps), *self._own_parameters(own_helps)]

        def run(**values: Any) -> None:
            own = {name: values[name] for name in self._own_names if name in values}
            startup.raise_interrupts()
            try:
                self.present(Call(self, values), **own)
            except KeyboardInterrupt:  # where no step was under way, whose end could have been waited for
                advice = self.resume and self.resume(values)
                if advice:
                    exit_interrupted(f"\nStopped. {advice}")
                typer.echo("\nStopped.", err=True)
                raise typer.Exit(startup.INTERRUPTED) from None

        run.__name__, run.__doc__ = self.called, summary
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    @property
    def _own_names(self) -> list[str]:
        return [name for name, parameter in inspect.signature(self.present).parameters.items() if _is_option(parameter)]

    def _verb_parameters(self, helps: Mapping[str, str]) -> Iterator[inspect.Parameter]:
        words = takes_settings(self.verb)
        for name, parameter, annotation in annotated_parameters(self.verb):
            if name == "settings" or is_hook(annotation):
                continue
            if _is_option(parameter):
                yield _option(name, parameter, annotation, helps, required=not self.missing)
            else:
                yield _argument(name, parameter, annotation, helps, optional=words)
        if words:
            argument = typer.Argument(metavar="[key=value ...]", help=helps["settings"], show_default=False)
            yield _parameter(_WORDS, Annotated[list[str] | None, argument], None)

    def _own_parameters(self, helps: Mapping[str, str]) -> Iterator[inspect.Parameter]:
        for name, parameter, annotation in annotated_parameters(self.present):
            if _is_option(parameter):
                yield _option(name, parameter, annotation, helps)


class Call(Generic[Result]):
    """A verb with the words and options of a command line, not called yet."""

    def __init__(self, command: Command, values: Mapping[str, Any]) -> None:
        self.command = command
        self._values = values
        self._places = [name for name, parameter, _ in annotated_parameters(command.verb) if not _is_option(parameter)]

    @property
    def words(self) -> list[str]:
        """Places and settings in the order in which they were written."""
        places = [self._values[f"{_PLACE}{name}"] for name in self._places]
        return [word for word in [*places, *(self._values.get(_WORDS) or [])] if word is not None]

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """The verb's options by name, as values."""
        return {
            name: _convert(self._values[name], name, annotation)
            for name, parameter, annotation in annotated_parameters(self.command.verb)
            if _is_option(parameter) and name in self._values
        }

    @property
    def given(self) -> list[str]:
        """The names of the verb's options that were given: whose values are not their defaults."""
        parameters = inspect.signature(self.command.verb).parameters
        return [name for name, value in self.options.items() if value and value != parameters[name].default]

    def refuse_options(self, allowed: Collection[str], reason: str) -> None:
        """Raise UserError at an option that was given and is none of those `allowed`: it would be ignored."""
        for name in self.given:
            if name not in allowed:
                raise UserError(f"{long_flag(name)} {reason}")

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """Everything the verb is called with, by name; raises UserError also where a run is missing."""
        arguments = self.fit_words()
        check_models(arguments)
        return arguments

    def fit_words(self) -> dict[str, Any]:
        """Return words and options by the names of the verb; raise UserError where they do not fit."""
        command = self.command
        names = self._places
        if not takes_settings(command.verb):
            given = {name: self._values[f"{_PLACE}{name}"] for name in names}
            return {name: value for name, value in given.items() if value is not None} | self._checked_options()
        places, settings = split_settings(self.words, command.grouped)
        further = places[len(names) :] if command.rest else []
        places = places[: len(places) - len(further)]
        parameters = inspect.signature(command.verb).parameters
        required = [name for name in names if parameters[name].default is inspect.Parameter.empty]
        if not len(required) <= len(places) <= len(names):
            got = f"{command.usage}; got: {' '.join(places) or 'nothing'}."
            raise UserError(f"{got} {command.hint}".rstrip())
        options = dict(self._checked_options())
        if further:
            options[command.rest] = [*further, *(options[command.rest] or [])]
        return dict(zip(names, places, strict=False)) | options | {"settings": settings}

    def _checked_options(self) -> dict[str, Any]:
        parameters = inspect.signature(self.command.verb).parameters
        for name, value in self.options.items():
            if value is None and parameters[name].default is inspect.Parameter.empty:
                raise UserError(self.command.missing)
        return self.options

    def __call__(self, **hooks: Callable[..., None]) -> Result:
        """Calls the verb; `hooks` are its functions that receive progress. Until it ends, a line says what goes on."""
        arguments, quiet = self.arguments, bool(self._values.get("quiet"))
        with show_activity(self.stage, quiet) as activity:
            watched = {name: yield_to(activity, hook, self.command.prints_lines) for name, hook in hooks.items()}
            result: Result = self.command.verb(**arguments, **watched)
        if isinstance(result, collections.abc.Iterator):  # answers come one by one: nothing is done yet
            return cast(Result, until_first(result, self.stage, quiet))
        return result

    @property
    def stage(self) -> str:
        """What the command does, before anything of it is known: its name and what it was given."""
        written: list[Any] = list(self.words)  # a place that takes several words is a list of them
        words = [part for word in written for part in (word if isinstance(word, (list, tuple)) else [word])]
        given = [word for word in map(str, words) if "=" not in word][:2]
        return " ".join([self.command.called, *(word if len(word) <= 40 else f"{word[:39]}…" for word in given)])


def check_models(arguments: Mapping[str, Any]) -> None:
    """Raise UserError where a run of a command does not exist: before torch is loaded, which takes seconds."""
    for name in MODELS:
        values = arguments.get(name) or []
        for value in [values] if isinstance(values, (str, Path)) else values:
            is_remote = str(value).startswith(HUB) or is_url(str(value))
            second = arguments.get("task")
            if isinstance(second, str) and not Path(value).exists() and Path(second).is_dir():
                raise UserError(f"There is no folder {value}, and {second} is one: the run comes first, then the task.")
            if not is_remote and not Path(value).is_file():  # a file of word vectors
                require_folder(value)


# --- what a signature says --------------------------------------------------------------------------


def parse_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The text before `Args:`, a paragraph a line, and the help of each parameter under it."""
    text, _, section = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:\n")
    # one line each: the terminal is not as wide as the source, and would break its lines once more
    summary = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    entries = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, re.MULTILINE)
    return summary.strip(), {name: " ".join(text.split()) for name, text in entries}


def takes_settings(verb: Callable[..., Any]) -> bool:
    return "settings" in inspect.signature(verb).parameters


def annotated_parameters(function: Callable[..., Any]) -> Iterator[tuple[str, inspect.Parameter, Any]]:
    """(name, parameter, annotation); a class that only a type checker imports stands as an empty one of its name."""
    names = _Names(inspect.unwrap(function).__globals__)
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        yield name, parameter, eval(annotation, {}, names) if isinstance(annotation, str) else annotation


class _Names(dict[str, Any]):
    """Names of a module, and an empty class for each that it does not have."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known

    def __missing__(self, name: str) -> Any:
        if name in self.known:
            return self.known[name]
        return getattr(builtins, name) if hasattr(builtins, name) else type(name, (), {})


def members(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, None left out."""
    is_union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    parts = typing.get_args(annotation) if is_union else (annotation,)
    return tuple(part for part in parts if part is not types.NoneType)


def is_hook(annotation: Any) -> bool:
    """Whether it is a function that receives progress."""
    return any(typing.get_origin(part) is collections.abc.Callable for part in members(annotation))


def _is_option(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.KEYWORD_ONLY


def _sequence_item(parts: tuple[Any, ...]) -> Any:
    """The type of the items where one of the parts is a sequence, else None."""
    return next(
        (typing.get_args(part)[0] for part in parts if typing.get_origin(part) is collections.abc.Sequence), None
    )


def _is_share(parts: tuple[Any, ...]) -> bool:
    """Whether an option is a number or the path of a file."""
    return float in parts and str in parts


# --- parameters of typer ----------------------------------------------------------------------------


def long_flag(name: str) -> str:
    return LONG.get(name, f"--{name.replace('_', '-')}")


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _argument(
    name: str, parameter: inspect.Parameter, annotation: Any, helps: Mapping[str, str], optional: bool
) -> inspect.Parameter:
    """A word of the command line; a sequence is all that are left."""
    many = _sequence_item(members(annotation)) is not None
    has_default = parameter.default is not inspect.Parameter.empty
    metavar = f"{name.upper()}..." if many else name.upper()
    argument = typer.Argument(metavar=metavar, help=helps[name], show_default=False)
    kind: Any = list[str] if many else str
    if has_default or optional:
        return _parameter(f"{_PLACE}{name}", Annotated[kind | None, argument], None)
    return _parameter(f"{_PLACE}{name}", Annotated[kind, argument], inspect.Parameter.empty)


def _option(
    name: str, parameter: inspect.Parameter, annotation: Any, helps: Mapping[str, str], required: bool = True
) -> inspect.Parameter:
    """An option of the command line, of a type that typer reads; `_convert` gives the verb's."""
    parts, default = members(annotation), parameter.default
    flag = long_flag(name)
    if default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    flags = (flag, SHORT[name]) if name in SHORT else (flag,)
    kind: Any = str
    item = _sequence_item(parts)
    choices = [part for part in parts if typing.get_origin(part) is Literal]
    if choices:
        kind = choices[0]
    elif any(typing.get_origin(part) is collections.abc.Mapping for part in parts) or (
        item is str and str not in parts
    ):
        kind, default = list[str], default or None
    elif item in (int, float):
        default = ",".join(map(str, default)) if default else default
    elif not _is_share(parts):
        kind = next((plain for plain in (bool, int, float, Path) if plain in parts), str)
    is_required = default is inspect.Parameter.empty
    if is_required and not required:
        default = None
    annotated: Any = kind if is_required and required else kind | None
    takes_url = kind is Path and str in parts
    option = typer.Option(
        *flags, help=helps[name], show_default=not is_required and default is not None and default is not False,
        parser=_parse_place if takes_url else None, metavar="PATH" if takes_url else None,
    )  # fmt: skip
    return _parameter(name, Annotated[annotated, option], default)


def _parse_place(text: str) -> str | Path:
    """A path, or a URL as it is: a path would lose a slash of it."""
    return text if is_url(text) else Path(text)


def _convert(value: Any, name: str, annotation: Any) -> Any:
    """What typer read as the type of the verb."""
    parts = members(annotation)
    item = _sequence_item(parts)
    mapping = next((part for part in parts if typing.get_origin(part) is collections.abc.Mapping), None)
    if mapping is not None:
        parse = parse_columns if typing.get_args(mapping)[1] is str else parse_values
        return parse(value or [])
    if item in (int, float):
        return None if value is None else parse_numbers(value, item, long_flag(name))
    if item is str and str not in parts:
        return list(value or [])
    return parse_share(value) if _is_share(parts) else value
