"""A toy two-tower on the built-in world: it must know more of a blank than its two neighbours, and that must pay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.hub.run_weights import save_final
from etude.pretraining import pretrain as pretraining
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.text.corpus.cloze_baseline import cloze_nats
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.transfer.finetune import finetune
from etude.world import World

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("town")
    World(0, "en").write(folder / "world", 1.0)
    prepare(
        str(folder / "world" / "text.txt"), folder / "corpus", tokenizer="wordpiece:1000,lower", valid=0.05, workers=1
    )
    return folder


@pytest.fixture(scope="module")
def run(town: Path) -> Run:
    """Some minutes of one core."""
    return pretraining.pretrain("two-tower-toy", town / "corpus", town / "run", quiet=True)


def test_a_blank_from_the_whole_text_beats_one_from_two_neighbours(town: Path, run: Run) -> None:
    corpus, valid = Corpus.open(town / "corpus"), Corpus.open(town / "corpus", split="valid")
    lines = run.metrics("valid")
    assert lines[-1]["text"] < 0.95 * cloze_nats(corpus, valid)
    assert lines[-1]["text"] > 0.2  # far less would be a leak: names and things are drawn at random


def test_what_was_learnt_pays_downstream(town: Path, run: Run) -> None:
    """Against the same model with its first, random weights, on the same examples."""
    recipe: Recipe = run.recipe
    blank = town / "blank"
    blank.mkdir()
    (blank / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    run.tokenizer.save(blank)
    save_final(Run(blank), *build_learner(recipe, run.tokenizer), model_card="random weights")
    tasks = town / "world" / "tasks"
    parts = {}
    for part, count in (("train", 80), ("valid", 300)):
        rows = [json.loads(line) for line in (tasks / f"tags.{part}.jsonl").read_text(encoding="utf-8").splitlines()]
        parts[part] = town / f"{part}.jsonl"
        lines = [json.dumps({"tokens": row["tokens"], "tags": row["ner"]}, ensure_ascii=False) for row in rows[:count]]
        parts[part].write_text("\n".join(lines) + "\n", encoding="utf-8")
    scores = {}
    for start in (run.folder, blank):
        settings = {"train.epochs": 10, "train.lr": 5e-4}
        out = town / f"{start.name}-names"
        tuned = finetune(start, "tag", parts["train"], out, dev=parts["valid"], overrides=settings, quiet=True)
        plan = Plan.read(tuned.folder)
        scores[start.name] = plan.scores[plan.score]["value"]
    assert scores["run"] > scores["blank"] + 0.05, scores
