"""ERNIE's release: names and layer kinds in both directions, equal to a plain reading of the files themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etude
from etude.errors import UserError
from etude.graph.entity_links import EntityLinks
from etude.hub import ernie_files
from etude.hub.exporter import export_run
from etude.hub.importer import import_folder
from etude.hub.run_weights import load_learner, save_final
from etude.models.ernie import Ernie, Settings
from etude.nn.entity_stream import build_stream
from etude.nn.packed import pack
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run, import_origin
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.models.ernie_reference import Reference

NAMES = [f"Q{number}" for number in range(7)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    tokenizer = Tokenizer.train("wordpiece:200,lower", ["the cat sat on the mat", "a dog ran to the door"] * 4)
    settings: dict[str, Any] = {
        "model.width": 24, "model.heads": 3, "model.layers": 3, "model.layer_kinds": ["sim", "mix", "norm"],
        "model.entity_width": 12, "model.entity_heads": 4, "model.entities": 7, "model.graph": "g" * 64,
        "model.activation": "gelu",
    }  # fmt: skip
    recipe = Recipe.load("ernie-toy", settings).resolve(vocab=tokenizer.vocab)
    model, objective = build_learner(recipe, tokenizer)
    generator = torch.Generator().manual_seed(0)
    for parameter in [*model.parameters(), *objective.parameters()]:
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    model.set_entity_vectors(np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32))
    folder = tmp_path_factory.mktemp("ernie") / "run"
    made = Run.create(folder, recipe, tokenizer, import_origin("a test"), EntityLinks("g" * 64, NAMES))
    save_final(made, model, objective, "a test")
    return made


@pytest.fixture(scope="module")
def released(run: Run) -> Path:
    folder = run.folder.parent / "released"
    export_run(run, folder)
    return folder


def test_the_files_are_those_of_the_release(released: Path) -> None:
    config = json.loads((released / "ernie_config.json").read_text())
    assert config["layer_types"] == ["sim", "mix", "norm"] and config["hidden_act"] == "gelu"
    tensors = torch.load(released / "pytorch_model.bin", weights_only=True)
    last = "bert.encoder.layer.2."
    for name in (
        "attention.self_ent.query.weight", "attention.output_ent.LayerNorm.bias", "intermediate.dense_ent.weight",
        "output.dense_ent.weight", "output.LayerNorm_ent.weight",
    ):  # fmt: skip
        assert f"{last}{name}" in tensors
    assert "bert.encoder.layer.0.intermediate.dense_ent.weight" not in tensors
    assert "bert.encoder.layer.1.attention.self_ent.query.weight" not in tensors
    assert tensors["cls.predictions_ent.transform.dense.weight"].shape == (12, 24)


def test_a_run_comes_back_bit_for_bit(run: Run, released: Path, tmp_path: Path) -> None:
    again = import_folder(released, tmp_path / "run")
    (model, objective, untrained), (own, own_objective, _) = load_learner(again), load_learner(run)
    assert not untrained
    for ours, theirs in ((model, own), (objective, own_objective)):
        state, expected = ours.state_dict(), theirs.state_dict()
        assert state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)
    assert model.links is not None and list(model.links.names) == NAMES
    assert etude.load(again.folder).fill("the [MASK] sat", top=1)
    assert again.tokenizer.fingerprint == run.tokenizer.fingerprint


def test_settings_without_a_key_there_come_back_or_are_named(run: Run, tmp_path: Path) -> None:
    """Which pieces carry an entity, and what the sentence task asks, change what a model reads and says."""
    recipe = run.recipe.with_settings({"model.alignment": "all", "objective.sentence": "order"})
    model, objective = build_learner(recipe, run.tokenizer)
    made = Run.create(tmp_path / "run", recipe, run.tokenizer, import_origin("a test"), EntityLinks("g" * 64, NAMES))
    save_final(made, model, objective, "a test")
    export_run(made, tmp_path / "out")
    again = import_folder(tmp_path / "out", tmp_path / "again").recipe
    assert (again.model_settings(Settings).alignment, again.objective.sentence) == ("all", "order")
    other = run.recipe.with_settings({"objective.activation": "relu"})
    assert "objective.activation=relu" in ernie_files.describe_mismatch(other, run.tokenizer)


def test_a_tokenizer_of_another_kind_has_no_place_in_a_vocab_txt(run: Run) -> None:
    tokenizer = Tokenizer.train("bpe:200", ["the cat sat on the mat"] * 4)
    assert "a tokenizer of the kind bpe" in ernie_files.describe_mismatch(run.recipe, tokenizer)
    assert ernie_files.describe_mismatch(run.recipe, run.tokenizer) == ""


def test_it_equals_a_plain_reading_of_the_files(released: Path, tmp_path: Path) -> None:
    model, objective, _ = load_learner(import_folder(released, tmp_path / "run"))
    assert isinstance(model, Ernie)
    tensors = torch.load(released / "pytorch_model.bin", weights_only=True)
    vectors = np.loadtxt(released / "entity2vec.vec", dtype=np.float32)
    table = torch.cat([torch.zeros(1, 12), torch.from_numpy(vectors)])
    random = np.random.default_rng(1)
    tokens, rows = random.integers(0, model.vocab, 20), random.integers(0, 8, 20)
    rows[0] = 0
    packed = pack([tokens], 32)
    packed.entities = build_stream(rows, packed.layout)
    reference = Reference(tensors, ["sim", "mix", "norm"], 3, 4)
    mask = torch.from_numpy(rows > 0)[None].long()
    mask[:, 0] = 1
    ids, zeros = torch.from_numpy(tokens)[None], torch.zeros(1, 20, dtype=torch.long)
    expected = reference.states(ids, zeros, zeros + 1, table[torch.from_numpy(rows)][None], mask)
    with torch.no_grad():
        states = model(packed)
        torch.testing.assert_close(states.last, expected[-1][0], atol=1e-5, rtol=1e-5)
        logits = objective.entity_head(states.last) @ table.t()  # type: ignore[operator, union-attr]
        torch.testing.assert_close(logits, reference.alignment_logits(expected[-1][0], table), atol=1e-4, rtol=1e-4)


def test_old_names_of_norms_are_read(released: Path, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for file in released.iterdir():
        if file.name != "checksums.json":
            (folder / file.name).write_bytes(file.read_bytes())
    tensors = torch.load(released / "pytorch_model.bin", weights_only=True)
    old = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        is_norm = module.endswith(("LayerNorm", "LayerNorm_ent"))
        old[f"{module}.{ {'weight': 'gamma', 'bias': 'beta'}[kind] }" if is_norm else name] = tensor
    torch.save(old, folder / "pytorch_model.bin")
    ours, theirs = (ernie_files.read_release(place).tensors for place in (folder, released))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_without_vectors_it_is_told(released: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("ernie_config.json", "pytorch_model.bin", "vocab.txt"):
        (plain / name).write_bytes((released / name).read_bytes())
    release = ernie_files.read_release(plain)
    assert "no entity vectors" in release.notes[0] and release.links is None
    assert import_folder(plain, tmp_path / "run").finished


def test_bad_files_have_one_message(released: Path, tmp_path: Path) -> None:
    for change, message in (
        ({"layer_types": ["sim", "sum"]}, "layer_kinds"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"layer_types": 7}, "layer_types"),
    ):
        folder = tmp_path / message
        folder.mkdir()
        for file in released.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        config = json.loads((folder / "ernie_config.json").read_text())
        (folder / "ernie_config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            import_folder(folder, tmp_path / "run")
