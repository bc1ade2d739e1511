"""A finished run is opened only where its files are what was written."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from etude.runs.checksums import remove_checksums, write_checksums
from etude.text.run_checksums import CHECKSUMS, verify_checksums
from etude.train import checkpoint
from etude.world import World

HOSTILE = '{"format": "etude checksums", "files": {"../x": {"bytes": 1, "sha256": ""}}}'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checksums")
    (folder / "town.txt").write_text("\n\n".join(World().text(0.05)), encoding="utf-8")
    etude.prepare(str(folder / "town.txt"), out=folder / "corpus", tokenizer="wordpiece:300")
    settings = {"train.steps": 2, "model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 256}
    return etude.pretrain("bert-toy", folder / "corpus", out=folder / "run", settings=settings, quiet=True).folder


def flip_bit(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def test_a_finished_run_has_checksums_of_what_it_is_used_by(run: Path) -> None:
    assert verify_checksums(run)
    names = (run / CHECKSUMS).read_text(encoding="utf-8")
    for name in ("model.safetensors", "config.json", "recipe.yaml", "tokenizer.json", "origin.json"):
        assert f'"{name}"' in names
    assert "README.md" not in names and "step-" not in names


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "recipe.yaml"])
def test_a_flipped_bit_is_refused_by_name(run: Path, tmp_path: Path, name: str) -> None:
    """30 of 30 flips in the weights and 19 of 30 in the tokenizer had been accepted."""
    draw = random.Random(name)
    for number in range(30):
        damaged = tmp_path / str(number)
        shutil.copytree(run, damaged, ignore=shutil.ignore_patterns("checkpoints"))
        flip_bit(damaged / name, draw)
        with pytest.raises(UserError, match=name):
            verify_checksums(damaged)
        if number < 3:
            with pytest.raises(UserError):
                etude.load(damaged)


def test_a_truncated_or_missing_file_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "short")
    weights = tmp_path / "short" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model\.safetensors is truncated"):
        etude.load(tmp_path / "short")
    shutil.copytree(run, tmp_path / "less")
    (tmp_path / "less" / "origin.json").unlink()
    with pytest.raises(UserError, match=r"origin\.json is missing"):
        etude.load(tmp_path / "less")


@pytest.mark.parametrize("content", ["", "[]", '{"format": "etude checksums"}', HOSTILE])
def test_damaged_checksums_are_refused(run: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / CHECKSUMS).write_text(content)
    with pytest.raises(UserError, match="damaged"):
        verify_checksums(tmp_path / "run")


def test_a_run_without_checksums_opens(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    remove_checksums(tmp_path / "run")
    assert verify_checksums(tmp_path / "run") is None
    assert etude.load(tmp_path / "run")
    write_checksums(tmp_path / "run")
    assert verify_checksums(tmp_path / "run")


def test_a_flipped_bit_in_the_state_of_a_checkpoint_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "checkpoints", tmp_path / "checkpoints")
    step = checkpoint.list_steps(tmp_path / "checkpoints")[-1]
    state = tmp_path / "checkpoints" / f"step-{step:012d}" / "state.json"
    content, draw = state.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(60):
        flip_bit(state, draw)
        try:
            checkpoint.load(tmp_path / "checkpoints", step)
        except UserError:
            refused += 1
        else:  # white space between values says nothing
            assert json.loads(state.read_bytes()) == json.loads(content)
        state.write_bytes(content)
    assert refused >= 50
