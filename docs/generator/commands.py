"""The reference of commands, from the functions that the command line is made of."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from typing import Any, Literal

from typer.models import ArgumentInfo

from etude.cli import main, show
from etude.cli.adapter import Command, members

KINDS = {"int": "whole number", "float": "number", "Path": "path", "str": "text", "list": "text"}


def commands() -> Iterator[tuple[str, Command]]:
    """(full name, command) of all commands, in the order of `etude --help`."""
    for command in sorted(main.COMMANDS, key=lambda command: main.ORDER.index(command.called)):
        yield f"etude {command.called}", command
    for command in show.COMMANDS:
        yield f"etude show {command.called}", command


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def parameters(command: Command) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, type, what typer was told, default) of every word and option."""
    for name, parameter in inspect.signature(command.function()).parameters.items():
        kind, info = typing.get_args(parameter.annotation)
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        yield name, kind, info, default


def values_of(kind: Any, flags: str) -> str:
    """What may stand behind an option."""
    plain = next(iter(members(kind)))
    if typing.get_origin(plain) is Literal:
        return " · ".join(f"`{value}`" for value in typing.get_args(plain))
    if plain is bool:
        return ""
    return KINDS.get(getattr(typing.get_origin(plain) or plain, "__name__", ""), "text")


def row(name: str, kind: Any, info: Any, default: Any) -> str:
    if isinstance(info, ArgumentInfo):
        return f"| `{info.metavar}` | | | {cell(info.help or '')} |"
    flags = [*info.param_decls, *([] if not isinstance(info.default, str) else [info.default])]
    names = ", ".join(f"`{flag}`" for flag in sorted(flags, key=lambda flag: not flag.startswith("--")))
    required = default is None and type(None) not in typing.get_args(kind)
    value = "required" if required else "" if default is None or default is False else f"`{str(default).lower()}`"
    if isinstance(default, str):
        value = f"`{default}`"
    meaning = info.help or ""
    if typing.get_origin(next(iter(members(kind)))) is list and not meaning.endswith(("several times.", "again.")):
        meaning += " Several times." if meaning.endswith(".") else "; several times."
    return f"| {names} | {values_of(kind, names)} | {value} | {cell(meaning)} |"


def usage(name: str, command: Command) -> str:
    words = [str(info.metavar) for _, _, info, _ in parameters(command) if isinstance(info, ArgumentInfo)]
    return " ".join([name, *words])


def page() -> str:
    """All commands: what each does, its words and its options."""
    parts = []
    for name, command in commands():
        help_text = inspect.cleandoc(command.function().__doc__ or "")
        parts += [f"## {name}\n", f"```text\n{usage(name, command)}\n```\n", help_text + "\n"]
        if lines := [row(*parameter) for parameter in parameters(command)]:
            parts.append("\n".join(["| | values | default | |", "|---|---|---|---|", *lines]) + "\n")
    return "\n".join(parts)
