"""A recipe as written: YAML text, `extends`, overrides, and the place each value came from.

Nothing here knows what the keys mean, save two rules of joining one layer onto another: a group whose
`kind` changes starts empty, and a budget replaces a budget.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

from etude.errors import UserError, suggest_name
from etude.kinds import recipe_folders
from etude.plain_yaml import Path, read_yaml
from etude.train.settings import BUDGETS

FOLDER = File(__file__).parent
Overrides = Mapping[str, Any] | Iterable[str]


@dataclass
class Document:
    """A tree of plain values, and for each path in it the place to name in a message."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path) -> str:
        """The place of a path, or of the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, "")

    def put(self, path: Path, value: object, place: str) -> None:
        branch = self.values
        for key in path[:-1]:
            if not isinstance(branch.setdefault(key, {}), dict):
                branch[key] = {}
            branch = branch[key]
        self.drop(path)  # with the places of what it held
        branch[path[-1]] = value
        self.places[path] = place
        for depth in range(1, len(path)):
            self.places.setdefault(path[:depth], place)

    def rooted(self, root: str, path: Path = ()) -> Document:
        """The places under a path as if it were a group of this name: where a check looks for them."""
        places = {(root, *known[len(path) :]): at for known, at in self.places.items() if known[: len(path)] == path}
        return Document(self.values, places)

    def drop(self, path: Path) -> None:
        branch: Any = self.values
        for key in path[:-1]:
            branch = branch.get(key) if isinstance(branch, dict) else None
        if isinstance(branch, dict):
            branch.pop(path[-1], None)
        self.places = {known: place for known, place in self.places.items() if known[: len(path)] != path}

    def overlay(self, top: Document) -> Document:
        """This document with `top` laid over it; what is missing is missing from `top`, where it is a file."""
        joined = Document(_copy(self.values), dict(self.places))
        if () in top.places:
            joined.places[()] = top.places[()]
        for name, group in top.values.items():
            old = joined.values.get(name)
            if not (isinstance(group, dict) and isinstance(old, dict)):
                continue
            if "kind" in group and group["kind"] != old.get("kind"):
                joined.drop((name,))  # the settings of one kind mean nothing to another
            if name == "train" and any(group.get(budget) is not None for budget in BUDGETS):
                for budget in BUDGETS:
                    joined.drop((name, budget))
        for path, value in _leaves(top.values):
            joined.put(path, value, top.place(path))
        return joined


def _copy(value: Any) -> Any:
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def _leaves(values: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def parse(text: str, where: str) -> Document:
    """YAML text into a document; `where` names it in messages."""
    values, places = read_yaml(text, where)
    if not isinstance(values, dict):
        raise UserError(f"{where}: a recipe is a list of keys and values such as 'name: bert-base', not one value.")
    return Document(values, places)


def parse_list(text: str, where: str) -> list[Any]:
    """YAML text that is one list."""
    values, _ = read_yaml(text, where)
    if not isinstance(values, list):
        raise UserError(f"{where}: a list is expected.")
    return values


def parse_file(file: File, where: str, absent: str) -> Document:
    """A file's document; `absent` is said where there is no such file."""
    try:
        return parse(file.read_text(encoding="utf-8"), where)
    except FileNotFoundError:
        raise UserError(absent) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read as UTF-8 text: {error}.") from None


def parse_value(text: str, where: str) -> Any:
    """One value as it would stand in a recipe: a number, true, null, a word, [a, list]."""
    values = parse(f"value: {text}", where).values
    if len(values) > 1 or (re.search(r"(?:^|\s)#", text) and "#" not in str(values["value"])):
        raise UserError(
            f"{where}: what follows '#' is a comment, and what follows a new line another setting. Put the whole value "
            "in quotes, as in note='\"run #3\"'."
        )
    return values["value"]


def parse_overrides(overrides: Overrides) -> Document:
    """`["model.layers=6", ...]` or `{"model.layers": 6}` as a document of its own."""
    document = Document()
    pairs: Iterable[tuple[str, Any]]
    if isinstance(overrides, Mapping):
        pairs = [(key, _plain(value)) for key, value in overrides.items()]
    else:
        pairs = [_split(override) for override in overrides]
    for key, value in pairs:
        path = tuple(key.split("."))
        if not all(path):
            raise UserError(f"the override '{key}' names no setting. Write group.name=value, such as model.layers=6.")
        document.put(path, value, f"the override {key}={'null' if value is None else value}")
    return document


def _plain(value: Any) -> Any:
    """A value of Python as a file has it: NumPy's numbers, of which grids are made, and paths become plain ones."""
    if hasattr(value, "tolist"):  # without importing NumPy for its sake
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _split(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not an override. Write group.name=value, such as model.layers=6.")
    return key.strip(), parse_value(text, f"the override '{override}'")


def shipped_recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def recipe_names() -> list[str]:
    """Names of all recipes: those that come with Etude, and those of other installed packages."""
    plugins = {file.stem for folder in recipe_folders() for file in folder.glob("*.yaml")}
    return sorted({*shipped_recipes(), *plugins})


def find_recipe(name: str | File, beside: File | None = None) -> File:
    """The file of a recipe: a path (also relative to the recipe that extends it) or an installed name."""
    text = str(name)
    if "\0" in text or len(text) > 4000 or any(len(part.encode("utf-8", "replace")) > 250 for part in text.split("/")):
        raise UserError(f"There is no recipe named '{text[:40]}…': a name is shorter.")
    if text.endswith((".yaml", ".yml")) or "/" in text:
        file = File(text) if beside is None or File(text).is_absolute() else beside / text
        _refuse_folder(file)
        if not file.is_file():
            raise UserError(f"There is no recipe file {file}. `etude recipes` lists the names there are.")
        return file
    shipped = FOLDER / f"{text}.yaml"  # first: a shipped name always means the shipped recipe
    if shipped.is_file():
        return shipped
    for folder in recipe_folders():  # these take 8 ms to find
        file = folder / f"{text}.yaml"
        if file.is_file():
            return file
    _refuse_folder(File(text))
    raise UserError(
        f"There is no recipe named '{text}'.{suggest_name(text, recipe_names())} A file needs its .yaml ending."
    )


def _refuse_folder(file: File) -> None:
    """Raise UserError where a folder, such as a corpus, stands in the place of a recipe."""
    if file.is_dir():
        raise UserError(
            f"{file} is a folder, not a recipe. The recipe comes first, then the corpus, as in `etude pretrain "
            "bert-small CORPUS`; `etude recipes` lists the names there are."
        )


def read_recipe(file: File, ancestors: tuple[File, ...] = ()) -> Document:
    """One recipe file with everything it extends."""
    where = file.name if file.parent == FOLDER else str(file)
    document = parse_file(file, where, f"There is no recipe file {where}.")
    parent = document.values.pop("extends", None)
    if parent is None:
        return document
    if not isinstance(parent, str):
        raise UserError(f"{document.place(('extends',))}: 'extends' takes the name or the path of one recipe.")
    parent_file = find_recipe(parent, beside=file.parent)
    if parent_file.resolve() in (*ancestors, file.resolve()):
        raise UserError(f"{document.place(('extends',))}: '{parent}' extends this recipe in turn; break the circle.")
    base = read_recipe(parent_file, (*ancestors, file.resolve()))
    base.drop(("name",))  # a name is never inherited: two recipes would share it
    return base.overlay(document)
