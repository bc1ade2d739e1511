"""Finds the kinds of models, objectives, tasks and recipes, in this package and in other people's.

    masked                       ours: the module (or package) `etude.objectives.masked`
    my_package.my_objective      a name with a dot: that module, imported as it stands
    my_objective                 an entry point of an installed package

A package of your own registers its kinds under names without a dot by entry points in its `pyproject.toml`:

    [project.entry-points."etude.objectives"]     # also etude.models, etude.tasks, etude.graph.linking
    my_objective = "my_package.my_objective"
    [project.entry-points."etude.recipes"]
    my_recipes = "my_package.recipes"             # the folder of this package holds *.yaml

A kind is a module that defines what `CONTRACTS` lists for its group. Our own names come before those of entry points,
so that installing a package never changes what a shipped recipe means. A kind is imported when it is looked up, and
nothing here imports torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
import warnings
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from etude.errors import UserError, suggest_name

# group -> the names that a module of it defines
CONTRACTS: dict[str, tuple[str, ...]] = {
    "models": ("Settings", "build"),
    "objectives": ("Settings", "build"),
    "graph.linking": ("build",),  # graph/linking/base.py: LinkerKind
    "tasks": (
        "SUMMARY", "SCORES", "FILES", "COLUMNS", "INPUTS", "TEXTS", "PROMPT", "Settings",
        "records", "parse", "read", "learn", "build", "scoring", "strata", "majority",
    ),  # tasks/base.py: TaskKind
}  # fmt: skip
NOUNS = {"models": "model", "objectives": "objective", "tasks": "task", "graph.linking": "linker"}


def list_kinds(group: str) -> dict[str, ModuleType]:
    """Import every kind of a group: ours by name, then those of entry points.

    A plug-in that cannot be imported is left out with a warning: it must not take the other kinds with it.
    """
    kinds = {}
    for name in _own_names(group):
        module = importlib.import_module(f"etude.{group}.{name}")
        if not _missing(group, module):
            kinds[name] = module
    for name, entry in sorted(_plugins(group).items()):
        if name not in kinds:
            try:
                kinds[name] = _check(group, _import(entry.module, f"the entry point '{name}' of {_owner(entry)}"))
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)
    return kinds


def find_kind(group: str, name: str, also_known: Iterable[str] = ()) -> ModuleType:
    """The module of one kind; UserError where there is none, with the nearest of the kinds and of `also_known`."""
    module_name = find_module(group, name, also_known)
    if not module_name.startswith("etude."):
        return _check(group, _import(module_name, f"the {NOUNS[group]} '{name}'"))
    module = importlib.import_module(module_name)
    if _missing(group, module):  # a module of ours beside the kinds, such as `base`
        raise _unknown(group, name, also_known)
    return module


def find_module(group: str, name: str, also_known: Iterable[str] = ()) -> str:
    """The full name of the module that a kind is, which is not imported."""
    if name in _own_names(group):
        return f"etude.{group}.{name}"
    if "." in name:
        return name
    plugins = _plugins(group)
    if name not in plugins:
        raise _unknown(group, name, also_known)
    return plugins[name].module


def _unknown(group: str, name: str, also_known: Iterable[str]) -> UserError:
    known = " 'etude tasks' lists them." if group == "tasks" else ""
    return UserError(
        f"'{name}' is not a kind of {NOUNS[group]}.{suggest_name(name, [*list_kinds(group), *also_known])}{known}"
    )


def recipe_folders() -> list[Path]:
    """The folders of recipes that other packages bring, in the order of their entry points' names."""
    folders = []
    for name, entry in sorted(_plugins("recipes").items()):
        try:
            spec = importlib.util.find_spec(entry.module)
        except ImportError:
            spec = None
        if spec is None or (spec.origin is None and not spec.submodule_search_locations):
            warnings.warn(f"The recipes '{name}' of {_owner(entry)} are not there: no {entry.module}.", stacklevel=2)
        elif spec.submodule_search_locations:
            folders += [Path(place) for place in spec.submodule_search_locations]
        else:
            folders.append(Path(str(spec.origin)).parent)
    return folders


@cache
def _own_names(group: str) -> tuple[str, ...]:
    """Modules and packages in the group's folder, read from the folder alone: nothing is imported."""
    folder = Path(__file__).parent.joinpath(*group.split("."))
    return tuple(module.name for module in pkgutil.iter_modules([str(folder)]))


def _plugins(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name; UserError where two packages claim one name."""
    plugins: dict[str, EntryPoint] = {}
    for entry in _read_entry_points(f"etude.{group}", _search_path()):
        rival = plugins.setdefault(entry.name, entry)
        if rival.value != entry.value:
            raise UserError(
                f"Two packages call {entry.value} and {rival.value} '{entry.name}' in etude.{group}: "
                f"{_owner(entry)} and {_owner(rival)}. Uninstall one, or use the full name of the module."
            )
    return plugins


@lru_cache(maxsize=32)
def _read_entry_points(group: str, search_path: tuple[tuple[str, int | None], ...]) -> tuple[EntryPoint, ...]:
    """What installed packages say of a group: every recipe asks, and to read it takes longer than the recipe."""
    return tuple(entry_points(group=group))


def _search_path() -> tuple[tuple[str, int | None], ...]:
    """The folders that packages are installed in, and when each was last changed: an installed package changes one."""
    return tuple((folder, _changed_at(folder)) for folder in sys.path)


def _changed_at(folder: str) -> int | None:
    """When a folder was last changed; "" is the one where the process is."""
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return None


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _import(module_name: str, user: str) -> ModuleType:
    """Import a module of another package; an error other than a failed import keeps its traceback."""
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"{module_name} cannot be imported for {user} ({error}). "
            "Install the package it belongs to, or put its folder on PYTHONPATH."
        ) from error


def _missing(group: str, module: ModuleType) -> list[str]:
    return [name for name in CONTRACTS[group] if not hasattr(module, name)]


def _check(group: str, module: ModuleType) -> ModuleType:
    if missing := _missing(group, module):
        raise UserError(
            f"The module {module.__name__} is not a kind of {NOUNS[group]}, because it does not define "
            f"{', '.join(missing)}. A {NOUNS[group]} defines {', '.join(CONTRACTS[group])}."
        )
    return module
