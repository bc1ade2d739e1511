"""Checkpoints in parts: without pickle, complete or absent, read by any number of ranks, refused where damaged."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from etude.errors import UserError
from etude.pretraining import pretrain as pretraining
from etude.runs.run import Run
from etude.train import checkpoint, sharded_checkpoint
from etude.train.checkpoint_parts import join_parts
from etude.train.parallel import Ranks
from tests.train.forked_ranks import RankServer
from tests.train.test_sharding import largest_difference, write_recipe

STOPPED = 3


@pytest.fixture(scope="module")
def stopped(server: RankServer, tmp_path_factory: pytest.TempPathFactory, prepared) -> Path:
    """A run of two ranks in shards, stopped by SIGTERM to both in its second step of three."""
    folder = tmp_path_factory.mktemp("sharded")
    recipe = write_recipe(folder, "gpt2", parallel="fsdp", steps=3, micro_tokens=128, eval_every=0)
    codes = server.run(2, "start", recipe, prepared("wordpiece:600"), folder / "run", "term:2")
    assert codes == [STOPPED, STOPPED], server.output()
    return folder / "run"


def test_parts_are_safetensors_that_join_without_pickle(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target,) = (stopped / "checkpoints").iterdir()
    names = sorted(path.name for path in target.iterdir())
    assert names == [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)] + ["state.json"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    groups, state = checkpoint.load(stopped / "checkpoints", 2)
    assert state["step"] == 2 and groups.keys() == {"weights", "optimizer"}
    table = groups["weights"]["model.embedding.tokens.weight"]
    parts = [load_file(target / name)["weights/model.embedding.tokens.weight"] for name in names[:2]]
    assert torch.equal(table, torch.cat(parts)) and len(parts[0]) < len(table)
    assert checkpoint.load(stopped / "checkpoints", 2, ("weights",))[0].keys() == {"weights"}


def test_one_process_goes_on_where_two_stopped(stopped: Path, tmp_path: Path, prepared) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    resumed = pretraining.resume(Run.open(run), quiet=True)
    assert resumed.finished
    recipe = write_recipe(tmp_path, "gpt2", steps=3, micro_tokens=128, eval_every=0)
    single = pretraining.pretrain(recipe, prepared("wordpiece:600"), tmp_path / "single", quiet=True)
    assert largest_difference(single.folder, run) < 1e-6


def test_a_bad_part_is_refused_by_name(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    shutil.copytree(stopped / "checkpoints", folder)
    part = folder / "step-000000000002" / "shard-00002-model-00001-of-00001.safetensors"
    content = part.read_bytes()
    part.unlink()
    with pytest.raises(UserError, match=r"shard-00002-.* it is missing"):
        checkpoint.load(folder, 2)
    for damage in (content[:-1], content[:-1] + bytes([content[-1] ^ 1])):
        part.write_bytes(damage)
        with pytest.raises(UserError, match=r"shard-00002-.* is damaged"):
            checkpoint.load(folder, 2)
    part.write_bytes(content)
    (part.parent / "shard-00003-model-00001-of-00001.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"shard-00003-.* is no part of this checkpoint"):
        checkpoint.load(folder, 2)


def test_headers_that_promise_more_than_the_files_hold_are_refused(stopped: Path, tmp_path: Path) -> None:
    """Before anything is allocated: the parts of a stranger may have hashes that fit."""
    (target,) = (stopped / "checkpoints").iterdir()
    part = sorted(target.glob("*.safetensors"))[1]
    with safe_open(part, "pt") as file:
        metadata = file.metadata()
    [key] = [key for key, value in metadata.items() if "saved_offsets" in value]
    offsets = json.loads(metadata[key])
    offsets["weights/model.embedding.tokens.weight"]["saved_offsets"] = [10**13, 0]
    save_file(load_file(part), tmp_path / part.name, {**metadata, key: json.dumps(offsets)})
    with pytest.raises(UserError, match=r"is damaged: its tensors would have [\d,]+ bytes, and its files have"):
        join_parts(tmp_path, None)


def test_tensors_of_another_model_are_refused_by_name(stopped: Path) -> None:
    groups = {"weights": {"model.embedding.tokens.weight": torch.zeros(3, 4)}}
    with pytest.raises(UserError, match=r"is unexpected|expected"):
        sharded_checkpoint.load(stopped / "checkpoints", 2, groups, Ranks())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "albert", "bilm"])
def test_a_run_moves_between_numbers_of_ranks(server: RankServer, tmp_path: Path, prepared, name: str) -> None:
    """1 -> 4 -> 2 (hybrid) -> 1 -> 2 ranks, one step each, equals one process."""
    corpus, run = prepared("wordpiece:600"), tmp_path / "run"
    recipe = write_recipe(tmp_path, name, steps=5, parallel="fsdp")
    words: list[object] = ["start", recipe, corpus, run]
    for step, ranks in enumerate((1, 4, 2, 1, 2), start=1):
        codes = server.run(ranks, *words, f"term:{step}" if step < 5 else "never")
        assert codes == [0 if step == 5 else STOPPED] * ranks, server.output()
        words = ["resume", run]
        resolved = run / "recipe.yaml"
        text = resolved.read_text(encoding="utf-8")
        if ranks == 4:
            text = text.replace("parallel: fsdp", "parallel: hybrid")
        resolved.write_text(text, encoding="utf-8")
    single = pretraining.pretrain(write_recipe(tmp_path, name, steps=5), corpus, tmp_path / "single", quiet=True)
    assert largest_difference(single.folder, run) < 1e-6


@pytest.mark.slow
def test_a_kill_while_parts_are_written_leaves_the_checkpoint_before(
    server: RankServer, tmp_path: Path, prepared
) -> None:
    corpus, run = prepared("wordpiece:600"), tmp_path / "run"
    recipe = write_recipe(tmp_path, "gpt2", parallel="fsdp", save_every=1)
    codes = server.run(2, "start", recipe, corpus, run, "writing:2")
    assert -9 in codes
    assert checkpoint.list_steps(run / "checkpoints") == [1]
    assert server.run(2, "resume", run, "never") == [0, 0], server.output()
    whole = tmp_path / "whole"
    assert server.run(2, "start", recipe, corpus, whole, "never") == [0, 0]
    left, right = load_file(run / "model.safetensors"), load_file(whole / "model.safetensors")
    assert all(torch.equal(left[name], right[name]) for name in left)
    lines = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines == sorted(lines)
