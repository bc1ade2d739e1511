"""What studies of tests do again and again with the same outcome: done once a test process.

Tiny studies share their contenders, texts and tasks. How fast a contender trains, what a text is once it is prepared
and which examples the town gives are looked at where they are made; a study only reads them.
"""

from __future__ import annotations

import shutil
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from etude.pretraining.trial import Speed
from etude.recipes.schema import Recipe
from etude.study import budget, text_source
from etude.text.corpus.corpus import Corpus
from etude.world import World

_SPEEDS: dict[str, Speed] = {}
_CORPORA: dict[str, Path] = {}


@cache
def _make_task(seed: int, language: str, name: str, split: str, count: int) -> list[dict[str, Any]]:
    return World(seed, language).task(name, split, count)


def do_once(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let studies remember speeds, corpora (copied to `folder`) and tasks of the town."""
    measure, prepare = budget.measure_speed, text_source.prepare

    def remember_speed(recipe: Recipe, corpus: Corpus, *given: Any, **options: Any) -> Speed:
        key = recipe.dump()
        if key not in _SPEEDS:
            _SPEEDS[key] = measure(recipe, corpus, *given, **options)
        return _SPEEDS[key]

    def copy_corpus(files: list[str | Path], out: Path, *given: Any, **options: Any) -> None:
        """The name of a corpus in a study has the hash of its text, its tokenizer and the code behind it."""
        if out.name in _CORPORA:
            shutil.copytree(_CORPORA[out.name], out)
            return
        prepare(files, out, *given, **options)
        kept = folder / f"{len(_CORPORA)}"
        _CORPORA[out.name] = Path(shutil.copytree(out, kept))

    class Town(World):
        def task(self, name: str, split: str, count: int) -> list[dict[str, Any]]:
            return deepcopy(_make_task(self.seed, self.language, name, split, count))

    patch.setattr(budget, "measure_speed", remember_speed)
    patch.setattr(text_source, "prepare", copy_corpus)
    patch.setattr(text_source, "World", Town)
