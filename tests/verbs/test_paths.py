"""What a notebook gives where a verb reads a path: a run in the place of its folder, or data in the place of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.verbs.paths import require_path, require_paths

Bases = Callable[[str], Path]


def test_a_run_stands_for_its_folder(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    run = Run.open(base("bert"))
    assert os.fspath(run) == str(run.folder) == require_path("run", run)
    by_run, by_folder = etude.load(run, device="cpu"), etude.load(run.folder, device="cpu")
    assert np.array_equal(by_run.encode(["good film"]), by_folder.encode(["good film"]))
    assert etude.fill(run, "good [MASK]", device="cpu") == etude.fill(run.folder, "good [MASK]", device="cpu")
    assert etude.export(run, out=tmp_path / "hf").published is not None
    tuned = etude.finetune(
        run, "classify", train=reviews[0], out=tmp_path / "tuned", quiet=True, settings={"train.steps": 2}, lr=1e-3
    )
    assert Plan.read(tuned.folder).train.lr == 1e-3
    answers = list(etude.predict(tuned.folder, reviews[1]))
    loaded = etude.load(tuned, device="cpu")
    assert answers == list(etude.predict(tuned, reviews[1])) == list(etude.predict(loaded, reviews[1]))
    assert etude.evaluate(tuned, reviews[1]) == etude.evaluate(loaded, reviews[1]) == tuned.evaluate(reviews[1])
    assert etude.verify(tuned).kind == "run"


def test_data_in_the_place_of_a_path_is_one_message(base: Bases, reviews: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = pytest.importorskip("pandas").DataFrame({"text": ["good film"], "label": ["good"]})
    with pytest.raises(UserError, match=r"train is of the type DataFrame.*train\.to_csv\('train\.csv', index=False\)"):
        etude.finetune(base("bert"), "classify", train=table, out=out)
    with pytest.raises(UserError, match=r"dev is of the type list: give the path of a file of examples\."):
        etude.finetune(base("bert"), "classify", train=reviews[0], dev=[{}], out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="corpus is of the type list: give the path of a corpus"):
        etude.pretrain("bert-toy", ["a text"], out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="recipe is of the type int"):
        etude.show.batch(3, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="source is None: give the path of a run"):
        etude.load(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"sources is of the type DataFrame.*sources\.to_csv"):
        etude.prepare(table, out=out)
    with pytest.raises(UserError, match="this is longer than a path: 'good film good film"):
        etude.prepare(["good film " * 100], out=out)
    with pytest.raises(UserError, match="train is of the type DataFrame"):
        etude.pick([], task="classify", train=table, out=out)
    assert not out.exists()


def test_paths_may_come_from_a_generator() -> None:
    assert require_paths("sources", (name for name in ("a", Path("b")))) == ["a", Path("b")]
    assert require_paths("sources", "a") == ["a"]


def test_numbers_of_numpy_and_paths_are_settings(tmp_path: Path) -> None:
    recipe = Recipe.load("bert-toy", {"train.steps": np.int64(7), "train.lr": np.float32(0.5), "tokenizer": tmp_path})
    assert (recipe.train.steps, recipe.train.lr, recipe.tokenizer) == (7, 0.5, str(tmp_path))
