"""A checkpoint is complete or absent, checked on reading, and never loads loosely."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from etude.errors import UserError
from etude.train import checkpoint


def write(folder: Path, step: int, value: float = 1.0) -> Path:
    return checkpoint.save(folder, step, {"weights": {"a": torch.full((3,), value)}}, {"note": step, "big": 1e300})


def test_round_trip(tmp_path: Path) -> None:
    write(tmp_path, 7, 0.1)
    groups, state = checkpoint.load(tmp_path, 7)
    assert torch.equal(groups["weights"]["a"], torch.full((3,), 0.1))
    assert state == {"note": 7, "big": 1e300}
    assert checkpoint.list_steps(tmp_path) == [7]


def test_a_copy_beside_the_checkpoints_is_none(tmp_path: Path) -> None:
    write(tmp_path, 7)
    for name in ("step-000000000007-backup", "step-old", "step-7", "step-"):
        (tmp_path / name).mkdir()
    assert checkpoint.list_steps(tmp_path) == [7]


def test_a_second_writing_of_a_step_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 7, 1.0)
    write(tmp_path, 7, 2.0)
    assert checkpoint.load(tmp_path, 7)[0]["weights"]["a"][0] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000007"]


def test_a_death_before_the_rename_leaves_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "rename_into_place", die)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2)
    monkeypatch.undo()
    assert checkpoint.list_steps(tmp_path) == [1]
    checkpoint.prune(tmp_path, keep=3, best=None)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000001"]


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, 3) / "weights.safetensors"
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        checkpoint.load(tmp_path, 3)


def test_checkpoints_of_the_first_format_are_read_and_checked(tmp_path: Path) -> None:
    target = write(tmp_path, 3)
    content = json.loads((target / "state.json").read_text())
    path = target / "weights.safetensors"
    content["format"] = 1
    content["files"][path.name] = {"bytes": path.stat().st_size, "blake2b": checkpoint.hash_file(path)}
    del content["blake2b"]
    content["blake2b"] = checkpoint._hash_content(content)
    (target / "state.json").write_text(json.dumps(content))
    assert checkpoint.load(tmp_path, 3)[1]["note"] == 3
    damaged = path.read_bytes()
    path.write_bytes(damaged[:-1] + bytes([damaged[-1] ^ 1]))
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged"):
        checkpoint.load(tmp_path, 3)


def test_retention_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    for step in range(1, 8):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2, best=3)
    assert checkpoint.list_steps(tmp_path) == [3, 6, 7]


def test_loading_is_strict() -> None:
    module = nn.Linear(2, 2)
    good = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for tensors, words in [
        ({"weight": good["weight"]}, "missing: bias"),
        (good | {"extra": torch.zeros(1)}, "unexpected: extra"),
        (good | {"bias": torch.zeros(3)}, r"bias \(3,\) where \(2,\) is expected"),
    ]:
        with pytest.raises(UserError, match=words):
            checkpoint.load_strictly(module, tensors, "a test")
    checkpoint.load_strictly(module, {name: tensor + 1 for name, tensor in good.items()}, "a test")
    assert torch.equal(module.bias, good["bias"] + 1)


def test_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    """The library makes them readable for their owner alone, so that nobody else could open a shared run."""
    (tmp_path / "any").write_text("")
    target = write(tmp_path, 1)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "any", *target.iterdir())}
    assert len(modes) == 1
    before = os.umask(0o027)
    try:
        (target / "weights.safetensors").chmod(0o600)
        checkpoint.allow_reading(target / "weights.safetensors")
        assert os.umask(0o027) == 0o027  # it is what it was
    finally:
        os.umask(before)
    assert (target / "weights.safetensors").stat().st_mode & 0o777 == 0o640
