"""What a caller in Python gives as a path: text, a `pathlib.Path`, or a `Run`, which stands for its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from etude.errors import UserError

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.text.corpus.corpus import Corpus

Opened = TypeVar("Opened", bound="Corpus | Graph")


def require_path(name: str, value: object, what: str = "a file") -> str | Path:
    """Return what was given as the path of `what`; UserError where it is data, a model or nothing.

    In a notebook texts and tables lie in memory, and verbs read files: the message says how one becomes the other.
    """
    if isinstance(value, (str, Path)):
        return value
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    message = f"{name} is {value!r:.80}" if value is None else f"{name} is of the type {type(value).__name__}"
    hint = ""
    if hasattr(value, "to_csv") and what.startswith("a file"):  # tables of pandas, data sets of the package datasets
        hint = f" Write it to one: {name}.to_csv('{name}.csv', index=False), and give '{name}.csv'."
    elif getattr(value, "folder", None) is not None:
        hint = " Its attribute `folder` is one."
    raise UserError(f"{message}: give the path of {what}.{hint}")


def require_paths(name: str, values: object, what: str = "a file") -> list[str | Path]:
    """Return one path, or several, as a list; a table is none, though iterating one gives the names of its columns."""
    if isinstance(values, (str, os.PathLike)) or hasattr(values, "to_csv") or not isinstance(values, Iterable):
        return [require_path(name, values, what)]
    return [require_path(name, value, what) for value in values]


def require_recipe(recipe: str | Path | Run | Recipe) -> str | Path | Recipe:
    """Return a recipe, or the name or path of one; UserError where it is neither."""
    from etude.recipes.schema import Recipe

    return recipe if isinstance(recipe, Recipe) else require_path("recipe", recipe, "a recipe, or its name")


def require_corpus(corpus: str | Path | Opened) -> str | Path | Opened:
    """Return a corpus or a graph, or the path of one; UserError where it is neither, such as texts in a list."""
    from etude.graph.graph import Graph
    from etude.text.corpus.corpus import Corpus

    if isinstance(corpus, (Corpus, Graph)):
        return corpus
    return require_path("corpus", corpus, "a corpus, which etude.prepare makes of files of text")
