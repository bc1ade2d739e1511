"""Relative paths of a study file: where they are looked for, and how they are saved with the study.

A person writes them as seen from where the command runs, those of tasks as seen from `data` where the file or the
command (`--data`, which counts first) names that folder. The copy in the study's folder names the place they are seen
from as its `root`, and `data` as seen from there, so that it can be run from anywhere, its own folder included.
Settings of transfers (`task.graph: data/graph`) stay as they were written, for they are part of the keys of cells, and
are located when a cell is planned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etude.text.checked_files import MANIFEST
from etude.text.prepare.sources import HUB
from etude.text.remote.urls import is_url
from etude.text.run_checksums import CHECKSUMS

Change = Callable[[str], str]
TASK_FILES = ("train", "dev", "test")
CONTENDER_FOLDERS = ("run", "start", "entities")
RECIPE_ENDINGS = (".yaml", ".yml")


def locate_files(values: Mapping[str, Any], root: str | Path) -> dict[str, Any]:
    """Return the values of a study file with its paths as seen from where the command runs."""
    return _map_paths(values, lambda path: os.path.relpath(Path(root) / path), Path(root))


def save_paths(values: Mapping[str, Any], root: str | None, folder: Path) -> dict[str, Any]:
    """Return the values of a study with its paths as seen from its root, and the root as seen from its folder.

    Without a relative path there is no root to name, and none where the root is the folder itself.
    """
    start = Path(root or ".")
    paths: list[str] = []

    def see_from_root(path: str) -> str:
        paths.append(os.path.relpath(path, start))
        return paths[-1]

    saved = _map_paths(values, see_from_root, Path())
    if not paths and not _names_files(_list_settings(values), start):
        return saved
    saved.pop("root", None)
    seen = os.path.relpath(start.resolve(), folder.resolve())
    return saved if seen == "." else {**saved, "root": seen}


def locate_settings(settings: Mapping[str, Any], root: str | None) -> dict[str, Any]:
    """Return settings with the paths among them as seen from where the command runs."""
    return dict(settings) if root is None else map_settings(settings, Path(root), lambda path: str(Path(root) / path))


def map_settings(settings: Mapping[str, Any], root: Path, change: Change) -> dict[str, Any]:
    """Return settings of a transfer, in groups or not, with the relative paths among them changed."""
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            changed[name] = map_settings(value, root, change)
        else:
            changed[name] = change(value) if isinstance(value, str) and _is_path(root, value) else value
    return changed


def _map_paths(values: Mapping[str, Any], change: Change, root: Path) -> dict[str, Any]:
    """Return a study with every relative path changed; what has another shape is left to the check of its schema."""
    changed = dict(values)
    if isinstance(text := values.get("text"), dict):
        changed["text"] = _map_text(text, change)
    if isinstance(recipe := values.get("set"), dict):
        changed["set"] = _map_tokenizer(recipe, change, root)
    if isinstance(contenders := values.get("contenders"), dict):
        changed["contenders"] = {name: _map_contender(one, change, root) for name, one in contenders.items()}
    if isinstance(data := values.get("data"), str):
        changed["data"] = _map_path(data, change)
    elif isinstance(tasks := values.get("tasks"), dict):
        changed["tasks"] = {name: _map_keys(task, TASK_FILES, change) for name, task in tasks.items()}
    return changed


def _map_contender(contender: Any, change: Change, root: Path) -> Any:
    if isinstance(contender, str):  # a recipe
        return _map_recipe(contender, change)
    if not isinstance(contender, dict):
        return contender
    changed = _map_keys(contender, CONTENDER_FOLDERS, change)
    if isinstance(recipe := contender.get("recipe"), str):
        changed["recipe"] = _map_recipe(recipe, change)
    if isinstance(text := contender.get("text"), dict):
        changed["text"] = _map_text(text, change)
    if isinstance(settings := contender.get("set"), dict):
        changed["set"] = _map_tokenizer(settings, change, root)
    return changed


def _map_recipe(recipe: str, change: Change) -> str:
    is_file = recipe.endswith(RECIPE_ENDINGS) or "/" in recipe  # as find_recipe decides
    return _map_path(recipe, change) if is_file else recipe


def _map_tokenizer(settings: dict[str, Any], change: Change, root: Path) -> dict[str, Any]:
    """Change the tokenizer among settings of a recipe where it is a file or a folder, not one to train."""
    tokenizer = settings.get("tokenizer")
    is_file = isinstance(tokenizer, str) and _is_path(root, tokenizer)
    return _map_keys(settings, ("tokenizer",), change) if is_file else settings


def _map_text(text: dict[str, Any], change: Change) -> dict[str, Any]:
    changed = _map_keys(text, ("corpus",), change)
    if isinstance(files := text.get("files"), list):
        changed["files"] = [_map_path(file, change) if isinstance(file, str) else file for file in files]
    return changed


def _map_keys(values: Any, keys: tuple[str, ...], change: Change) -> Any:
    if not isinstance(values, dict):
        return values
    return {
        key: _map_path(value, change) if key in keys and isinstance(value, str) else value
        for key, value in values.items()
    }


def _map_path(path: str, change: Change) -> str:
    return path if is_url(path) or path.startswith(HUB) or Path(path).is_absolute() else change(path)


def _list_settings(values: Mapping[str, Any]) -> list[Any]:
    """List the groups of settings of transfers, which may name files."""
    of_parts = [
        (values.get("contenders"), "transfer"),
        (values.get("tasks"), "set"),
        ({"": values.get("control")}, "set"),
    ]
    inner = [part.get(key) for parts, key in of_parts for part in (parts or {}).values() if isinstance(part, dict)]
    return [values.get("transfer"), values.get("tune"), *inner]


def _names_files(value: Any, root: Path) -> bool:
    if isinstance(value, dict | list):
        return any(_names_files(inner, root) for inner in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, str) and _is_path(root, value)


def _is_path(root: Path, value: str) -> bool:
    """Whether a setting is a relative path: of something that is there, or, as a cache, may come to be there."""
    place = root / value
    try:
        if "/" in value:
            return not Path(value).is_absolute() and place.parent.is_dir()
        return bool(value) and any(file.is_file() for file in (place, place / MANIFEST, place / CHECKSUMS))
    except (OSError, ValueError):  # a text that is too long for a name, or has a null character
        return False
