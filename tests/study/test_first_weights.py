"""Contenders whose pre-training begins with another model's weights and a graph's vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import etude
from etude.errors import UserError
from etude.recipes.document import parse
from etude.runs.checksums import remove_checksums
from etude.study.planner import make_plan
from etude.study.runner import run
from etude.study.settings import Study
from tests.knowledge_town import build_town, typing_records

STUDY = """
name: entities
title: Do entities help?
question: Does it run?
text: {{corpus: {corpus}}}
budget: {{flops: 2e9}}
epochs: 50
contenders:
  bert: {{recipe: bert-toy, start: {bert}}}
  ernie: {{recipe: ernie-toy, start: {bert}, entities: {transe}, set: {{model.entity_width: 8, model.entity_heads: 2}}}}
set: {{model.width: 16, model.heads: 2, objective.row_tokens: 64, train.batch_tokens: 256}}
tasks:
  typing: {{kind: entity_typing, train: {folder}/train.jsonl, dev: {folder}/dev.jsonl, test: {folder}/dev.jsonl}}
transfer: {{train.epochs: 1, train.batch_examples: 8}}
seeds: {{pretrain: 1, transfer: 2}}
claims:
  - {{claim: Entities help, better: ernie, than: bert, on: typing}}
"""


@pytest.fixture(scope="module")
def study_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("town")
    town = build_town(folder, people=20, documents=80)
    shared: dict[str, Any] = {"train.save_every": 0, "train.eval_every": 0, "train.steps": 2}
    vectors = shared | {"model.width": 8, "train.batch_tokens": 64}
    etude.pretrain("transe-toy", town.graph, out=folder / "transe", quiet=True, settings=vectors)
    sizes = shared | {"model.width": 16, "model.heads": 2, "objective.row_tokens": 64, "train.batch_tokens": 256}
    etude.pretrain("bert-toy", town.corpus, out=folder / "bert", quiet=True, settings=sizes)
    for name, seed in (("train", 1), ("dev", 2)):
        records = typing_records(town, list(range(20)), 24, seed)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    places = {"corpus": town.corpus, "bert": folder / "bert", "transe": folder / "transe", "folder": folder}
    return STUDY.format(**places)


@pytest.mark.slow
def test_a_study_of_models_that_start_from_elsewhere(study_text: str, tmp_path: Path) -> None:
    study = Study.from_document(parse(study_text, "study.yaml"))
    report = run(study, tmp_path / "study")
    rows = {row["name"]: row for row in report.results["rows"]}
    assert rows["ernie"]["mean"] is not None and rows["bert"]["mean"] is not None
    assert report.results["claims"][0]["verdict"]
    plan = make_plan(study, tmp_path / "study")
    assert not plan.pending_cells()
    transe = Path(study.contenders["ernie"].entities or "")
    remove_checksums(transe)
    weights = load_file(transe / "model.safetensors")
    weights["model.entities.weight"] += 1.0
    save_file(weights, transe / "model.safetensors", metadata={"format": "pt"})
    from etude.study import starts

    starts.open_first.cache_clear()
    changed = make_plan(study, tmp_path / "study")
    old, new = (dict(one.bases) for one in (plan, changed))
    assert old["bert", 0] == new["bert", 0] and old["ernie", 0] != new["ernie", 0]


def test_a_run_has_no_first_weights(study_text: str) -> None:
    with pytest.raises(UserError, match="trained already"):
        Study.from_document(parse(study_text, "study.yaml"), changes={"contenders.bert": {"run": "x", "start": "y"}})


@pytest.mark.parametrize("gpu", [False, True])
def test_the_shipped_study_is_sound(gpu: bool) -> None:
    file = Path(__file__).resolve().parents[2] / "studies" / "linked" / "entities-help.yaml"
    study = Study.load(file, gpu=gpu)
    assert study.name == file.stem and len(study.claims) == (1 if gpu else 3) and study.seeds.pretrain == 5
    for entry in study.entries():
        assert entry.recipe(study).resolve(vocab=1000).model.vocab == 1000


def test_two_studies_share_the_pre_training_of_their_bert() -> None:
    """The text alone of paths-help is the BERT of entities-help: one queue trains it once a seed."""
    folder = Path(__file__).resolve().parents[2] / "studies"
    entities = Study.load(folder / "linked" / "entities-help.yaml", gpu=True)
    paths = Study.load(folder / "paths-help.yaml", gpu=True)
    assert (entities.text, entities.budget, entities.epochs) == (paths.text, paths.budget, paths.epochs)
    bert = next(entry for entry in entities.entries() if entry.name == "bert")
    for entry in paths.entries():
        assert entry.recipe(paths).dump() == bert.recipe(entities).dump()
        assert paths.contenders[entry.contender].start == entities.contenders["bert"].start
