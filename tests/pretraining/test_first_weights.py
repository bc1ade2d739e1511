"""ERNIE from a BERT and a graph: what is taken over, a stop changes nothing, wrong graphs, a run that needs nobody."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import etude
from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.graph.entity_table import load_entity_table
from etude.graph.graph import Graph
from etude.inference.task_model import TaskModel
from etude.pretraining import pretrain as pretraining
from etude.runs.run import Run
from etude.tasks.data.examples import Examples
from etude.train import checkpoint
from etude.train.loop import Loop
from etude.transfer.search import search
from tests.knowledge_town import Town, build_town, typing_records
from tests.manifests import read_values, write_manifest

SMALL: dict[str, Any] = {
    "model.width": 32, "model.heads": 2, "objective.row_tokens": 64, "train.batch_tokens": 256, "train.workers": 0,
    "train.save_every": 3, "train.eval_every": 0, "train.steps": 6, "train.log_every": 1,
}  # fmt: skip
ERNIE = SMALL | {"model.entity_width": 16, "model.entity_heads": 2}
VECTORS = {"model.width": 16, "train.steps": 3, "train.save_every": 0, "train.eval_every": 0, "train.batch_tokens": 64}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    built = build_town(tmp_path_factory.mktemp("town"), people=20, documents=80)
    etude.pretrain("transe-toy", built.graph, out=built.folder / "transe", quiet=True, settings=VECTORS)
    etude.pretrain("bert-toy", built.corpus, out=built.folder / "bert", quiet=True, settings=SMALL)
    return built


def pretrain_ernie(town: Town, out: Path, **changes: Any) -> Run:
    return etude.pretrain(
        "ernie-toy", town.corpus, out=out, quiet=True, start=town.folder / "bert", entities=town.folder / "transe",
        settings=ERNIE | changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(town: Town) -> Run:
    return pretrain_ernie(town, town.folder / "ernie")


def test_a_bert_is_taken_over_and_the_rest_is_named(
    town: Town, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners: list[Any] = []
    monkeypatch.setattr(pretraining, "_train", lambda run, corpus, learner, *rest: learners.append(learner) or run)
    with caplog.at_level(logging.WARNING, "etude"):
        pretrain_ernie(town, tmp_path / "run")
    assert "entity_attention" in caplog.text and "left out are none" in caplog.text
    (model, objective), bert = learners[0], load_file(town.folder / "bert" / "model.safetensors")
    weights = model.state_dict()
    assert torch.equal(weights["embedding.tokens.weight"], bert["bert.embeddings.word_embeddings.weight"])
    assert torch.equal(weights["feedforward.1.up.weight"], bert["bert.encoder.layer.1.intermediate.dense.weight"])
    assert torch.equal(objective.head.dense.weight, bert["cls.predictions.transform.dense.weight"])
    assert weights["feedforward.1.entity_up.weight"].std() > 0


def test_the_table_is_stored_and_never_changes(run: Run, town: Town) -> None:
    table = load_entity_table(town.folder / "transe")
    stored = load_file(run.folder / "model.safetensors")["model.entity_table"]
    assert np.array_equal(stored[1:].numpy(), table.vectors) and not stored[0].any()
    assert run.recipe.model.graph == table.graph == Graph.open(town.graph).fingerprint
    groups, _ = checkpoint.load(run.checkpoints, run.steps[-1])
    state = {name for group, tensors in groups.items() if group != "weights" for name in tensors}
    assert state and not any("entity_table" in name for name in state)  # the optimiser knows nothing of it
    origin = json.loads((run.folder / "origin.json").read_text())
    assert origin["start"]["partial"] and origin["entities"]["source"].endswith("transe")


@pytest.mark.parametrize("stop", [0, 4])
def test_kill_and_resume_is_bit_equal(
    run: Run, town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    from etude.train.loop import Loop

    advance = Loop.advance

    def advance_until(self: Loop, step: Any) -> Any:
        if step.number >= stop:
            raise KeyboardInterrupt  # not a signal that saves: what was not saved is lost
        return advance(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", advance_until)
        patch.setattr(pretraining, "discard_untrained", lambda run, ranks: contextlib.nullcontext())
        with pytest.raises(KeyboardInterrupt):
            pretrain_ernie(town, tmp_path / "run")
    assert not Run.open(tmp_path / "run").finished
    resumed = etude.resume(tmp_path / "run", quiet=True)
    expected, own = (load_file(folder / "model.safetensors") for folder in (run.folder, resumed.folder))
    assert all(torch.equal(own[name], tensor) for name, tensor in expected.items())


def test_wrong_inputs_have_one_message(town: Town, tmp_path: Path, short_trials: None) -> None:
    other = tmp_path / "corpus"
    shutil.copytree(town.corpus, other)
    manifest = read_values(other)
    manifest["entities"]["graph"] = "0" * 64
    write_manifest(other, manifest)
    vectors = town.folder / "transe"
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (other, {"entities": vectors}, "another graph"),
        (town.corpus, {}, "--entities"),
        (town.corpus, {"entities": vectors, "settings": ERNIE | {"model.entity_width": 32}}, "entity_width=16"),
        (town.corpus, {"entities": tmp_path / "nothing"}, "no run and no file"),
    ]
    for corpus, options, message in cases:
        with pytest.raises(UserError, match=message):
            etude.pretrain("ernie-toy", corpus, out=tmp_path / "x", quiet=True, **{"settings": ERNIE, **options})
    checked = etude.check("ernie-toy", town.corpus, entities=vectors, settings=ERNIE)
    assert checked.parameters > 0
    with pytest.raises(UserError, match="reads no entities"):
        etude.pretrain("bert-toy", town.corpus, out=tmp_path / "x", quiet=True, entities=vectors, settings=SMALL)
    with pytest.raises(UserError, match="goes on"):
        etude.pretrain(town.folder / "bert", town.corpus, out=tmp_path / "x", start=town.folder / "bert")


def test_a_fine_tuned_run_needs_neither_graph_nor_base(run: Run, town: Town, tmp_path: Path) -> None:
    base, graph = tmp_path / "base", tmp_path / "graph"
    shutil.copytree(run.folder, base)
    shutil.copytree(town.graph, graph)
    file = tmp_path / "train.jsonl"
    records = typing_records(town, list(range(20)), 24, 1)
    file.write_text("".join(json.dumps({**record, "entities": None}) + "\n" for record in records))
    settings = {"train.epochs": 1, "transfer.link": str(graph)}
    tuned = etude.finetune(base, "entity_typing", train=file, out=tmp_path / "tuned", quiet=True, settings=settings)
    shutil.rmtree(base)
    shutil.rmtree(graph)
    model = TaskModel.open(tuned.folder, device="cpu")
    text = f"{town.names[3]} met {town.names[5]} ."
    example = model.module.parse({"text": text, "start": 0, "end": len(town.names[3])}, {}, "here", False)
    row = model.task.unlabelled_rows(Examples([example], "here", ["1"]))[0]  # type: ignore[attr-defined]
    assert [int(entity) - 1 for entity in row.entities if entity] == [3, 5]
    answers = model.predict([{"text": text, "start": 0, "end": len(town.names[3])}])
    assert set(answers[0]["scores"]) == {"baker", "singer", "doctor", "pilot"}
    plain = etude.load(run.folder)  # without entities it is a masked language model like any other
    assert len(plain.fill(f"{town.names[3]} [MASK] {town.names[5]} .", top=2)) >= 1


def test_a_linker_of_another_graph_is_refused(run: Run, tmp_path: Path) -> None:
    Graph.from_triples(np.array([[0, 0, 1]]), ["a", "b"], ["r"]).save(tmp_path / "graph")
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": "a b", "start": 0, "end": 1, "labels": ["x"]}\n')
    with pytest.raises(UserError, match="another graph"):
        etude.finetune(
            run.folder,
            "entity_typing",
            train=file,
            out=tmp_path / "x",
            settings={"transfer.link": str(tmp_path / "graph")},
        )


def test_a_transfer_links_as_it_is_told(run: Run, town: Town, tmp_path: Path) -> None:
    """Settings of the linker go into the fine-tuned run; a linker that no run can keep is refused before training."""
    file = tmp_path / "train.jsonl"
    records = typing_records(town, list(range(20)), 24, 1)
    file.write_text("".join(json.dumps({**record, "entities": None}) + "\n" for record in records))
    mentions = {}
    for linker in ("trie", "trie,case=false"):
        settings = {"train.steps": 1, "transfer.link": str(town.graph), "transfer.linker": linker}
        out = tmp_path / linker.replace(",", "-")
        etude.finetune(run.folder, "entity_typing", train=file, out=out, quiet=True, settings=settings)
        links = EntityLinks.load(out)
        assert links is not None
        mentions[linker] = links.find(town.names[3].lower())
    assert [span.row - 1 for span in mentions["trie,case=false"]] == [3] and not mentions["trie"]
    for linker, message in (("my_package.my_linker", "column 'entities'"), ("trie,plural", "plural")):
        settings = {"transfer.link": str(town.graph), "transfer.linker": linker}
        with pytest.raises(UserError, match=message):
            etude.finetune(run.folder, "entity_typing", train=file, out=tmp_path / "x", settings=settings)


def test_the_best_of_several_rates_keeps_its_linker(run: Run, town: Town, tmp_path: Path) -> None:
    """A run has folders too: what a search takes home without them cannot be opened."""
    file = tmp_path / "train.jsonl"
    records = typing_records(town, list(range(20)), 24, 1)
    file.write_text("".join(json.dumps({**record, "entities": None}) + "\n" for record in records))
    settings = {"train.steps": 1, "transfer.link": str(town.graph)}
    out = tmp_path / "x"
    search(
        run.folder,
        "entity_typing",
        file,
        out,
        dev=file,
        vary={"train.lr": [1e-4, 1e-3]},
        overrides=settings,
        quiet=True,
    )
    links = EntityLinks.load(out)
    assert links is not None and [span.row - 1 for span in links.find(town.names[3])] == [3]
    assert TaskModel.open(out).evaluate(file)


@pytest.mark.slow
def test_entities_tell_the_types_of_unseen_mentions(tmp_path: Path) -> None:
    """Types are in the graph alone: a BERT guesses them, ERNIE knows them, as far as the links are right."""
    town = build_town(tmp_path, people=80, documents=600)
    sizes = {**SMALL, "objective.row_tokens": 128, "train.batch_tokens": 512, "train.steps": 150, "train.save_every": 0}
    vectors = VECTORS | {"model.width": 32, "train.steps": 400, "train.batch_tokens": 256}
    etude.pretrain("transe-toy", town.graph, out=tmp_path / "transe", quiet=True, settings=vectors)
    etude.pretrain("bert-toy", town.corpus, out=tmp_path / "bert", quiet=True, settings=sizes)
    etude.pretrain(
        "ernie-toy", town.corpus, out=tmp_path / "ernie", quiet=True, start=tmp_path / "bert",
        entities=tmp_path / "transe", settings={**sizes, "model.entity_width": 32, "model.entity_heads": 2},
    )  # fmt: skip
    seen = [number for number in range(80) if (number // 4) % 2 == 0]
    unseen = [number for number in range(80) if number not in seen]
    files = {
        "train": typing_records(town, seen, 400, 1),
        "unseen": typing_records(town, unseen, 200, 3),
        "noisy": typing_records(town, unseen, 200, 3, noise=0.3),
    }
    for name, records in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    scores = {}
    settings = {"train.epochs": 30, "train.lr": 2e-3, "train.batch_examples": 16, "task.dropout": 0.0}
    for base in ("bert", "ernie"):
        out = tmp_path / f"{base}-typing"
        etude.finetune(
            tmp_path / base, "entity_typing", train=tmp_path / "train.jsonl", out=out, quiet=True, settings=settings
        )
        model = etude.load(out)
        for name in ("unseen", "noisy"):
            scores[base, name] = model.evaluate(tmp_path / f"{name}.jsonl", intervals=False)["micro_f1"].value
    assert scores["bert", "unseen"] < 0.45
    assert scores["ernie", "unseen"] > 0.8
    assert scores["ernie", "unseen"] - 0.1 > scores["ernie", "noisy"] > scores["bert", "noisy"] + 0.2
