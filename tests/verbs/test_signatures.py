"""Every verb is one typed, documented function, and its command is made of it: the same options and defaults."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from typing import Any

import pytest
import typer

import etude
from etude import verbs
from etude.cli import show
from etude.cli.adapter import annotated_parameters, is_hook, long_flag, parse_docstring
from etude.cli.main import COMMANDS, app

PYTHON_ONLY = {
    "load",
    "resume",
    "finetune_suite",
    "plan_study",
    "prepare_graph",
}  # on a command line: other verbs, or their options
GROUPS = {"show"}
NAMES = [name for name in etude.__all__ if name.islower() and name not in GROUPS]
FUNCTIONS = {name: inspect.unwrap(getattr(etude, name)) for name in NAMES} | {
    f"show {command.called}": command.verb for command in show.COMMANDS
}
MADE = {command.called: command for command in COMMANDS} | {
    f"show {command.called}": command for command in show.COMMANDS
}


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    group = typer.main.get_command(app)
    listed = {name: command for name, command in group.commands.items() if name not in GROUPS}  # type: ignore[attr-defined]
    inner = group.commands["show"].commands  # type: ignore[attr-defined]
    return listed | {f"show {name}": command for name, command in inner.items()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_verb_is_typed_and_documented(name: str) -> None:
    verb = FUNCTIONS[name]
    summary, helps = parse_docstring(verb)
    assert verb.__module__.startswith("etude.verbs."), "a verb is a function of the package verbs"
    assert summary and len(summary.splitlines()[0]) < 120
    signature = inspect.signature(verb)
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty, parameter
        assert "Any" not in str(parameter.annotation), parameter
        assert parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL), parameter
        assert helps.get(parameter.name), f"{parameter.name} is not documented"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            places = {
                "run",
                "recipe",
                "corpus",
                "file",
                "files",
                "text",
                "task",
                "suite",
                "source",
                "sources",
                "name",
                "treebank",
            }
            places |= {"runs", "folder", "graph", "words", "prompts", "question", "a", "b", "c"}
            assert parameter.name in places, f"{parameter.name} is an option"
    assert set(helps) <= set(signature.parameters), "the docstring names a parameter that is not there"
    if "settings" in signature.parameters:
        assert signature.parameters["settings"].annotation == "Mapping[str, object] | None"


def test_completion_offers_verbs_and_types_alone() -> None:
    assert [name for name in dir(etude) if not name.startswith("_")] == sorted(etude.__all__)


def test_every_verb_is_a_command_and_every_command_a_verb(commands: dict[str, Any]) -> None:
    verbs_of_python = {name.removesuffix("_") for name in FUNCTIONS} - PYTHON_ONLY
    assert set(commands) == set(MADE) == verbs_of_python
    for name, command in MADE.items():
        assert inspect.unwrap(FUNCTIONS.get(name) or FUNCTIONS[f"{name}_"]) is inspect.unwrap(command.verb)


@pytest.mark.parametrize("name", MADE)
def test_a_command_has_the_options_of_its_verb(name: str, commands: dict[str, Any]) -> None:
    made = MADE[name]
    options: dict[str, Any] = {}
    for parameter in commands[name].params:
        if parameter.param_type_name == "option":
            options |= dict.fromkeys(parameter.opts, parameter)
    own = set(inspect.signature(made.present).parameters)
    wanted = {"--help"}
    for option, parameter, annotation in annotated_parameters(made.verb):
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or option == "settings" or is_hook(annotation):
            assert long_flag(option) not in options or option in own
            continue
        flag = long_flag(option)
        wanted.add(flag)
        assert flag in options, f"{name} lacks {flag}"
        default, given = parameter.default, options[flag].default
        if default is inspect.Parameter.empty:
            assert options[flag].required or made.missing
        elif isinstance(default, tuple):
            assert (given or None) == (",".join(map(str, default)) or None)
        else:
            assert str(given) == str(default)
    wanted |= {long_flag(option) for option in own}
    assert {flag for flag in options if flag.startswith("--")} <= wanted


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_types_of_results_can_be_imported(name: str) -> None:
    words = re.findall(r"[A-Za-z_]+", str(inspect.signature(FUNCTIONS[name]).return_annotation))
    plain = {"Any", "Iterator", "None", "dict", "float", "int", "list", "str", "tuple"}
    assert set(words) - plain <= set(etude.__all__)


def test_the_package_has_what_it_names() -> None:
    for name in etude.__all__:
        assert getattr(etude, name) is not None
    assert etude.__version__
    with pytest.raises(AttributeError, match="no attribute 'fine_tune'"):
        _ = etude.fine_tune


def test_packages_with_the_name_of_a_verb_have_its_signature() -> None:
    from etude.study import runner
    from etude.verbs.comparison import study

    assert inspect.signature(etude.study) == inspect.signature(study)
    assert importlib.import_module("etude.study").runner is runner
    assert callable(etude.recipes) and callable(etude.tasks) and callable(etude.serve) and callable(etude.world)


def test_verbs_import_nothing_of_the_command_line() -> None:
    for module in pkgutil.iter_modules(verbs.__path__, "etude.verbs."):
        text = inspect.getsource(importlib.import_module(module.name))
        assert "typer" not in text and "etude.cli" not in text
