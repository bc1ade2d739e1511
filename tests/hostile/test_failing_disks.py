"""Every write failure is one message and exit code 2; nothing that was complete is lost, and the same work goes on."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from etude.train import checkpoint
from tests.hostile.commands import (
    Outcome,
    hash_files,
    list_leftovers,
    make_read_only,
    mounted_disk,
    resize_disk,
    run_command,
)
from tests.hostile.outcomes import choose_words, read_outcome
from tests.hostile.samples import VERBS, Samples


def check_message(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2, outcome
    assert outcome.message.count("Error: ") == 1 and "Traceback" not in outcome.message
    assert any(word in outcome.message for word in words), outcome.message


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_cannot_be_written_is_one_message(samples: Samples, tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").write_text("")
    check_message(run_command(*samples.command(verb, tmp_path / "file" / "out")), "file")
    check_message(run_command(*samples.command(verb, tmp_path / ("x" * 300))), "shorter name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_read_only_disk_is_one_message_for_every_verb(samples: Samples, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk") as disk:
        make_read_only(disk)
        for verb in VERBS:
            check_message(run_command(*samples.command(verb, disk / "out")), "read-only", "Read-only")


@pytest.mark.parametrize(("verb", "size"), [("pretrain", "740k"), ("finetune", "360k")])
def test_training_on_a_full_disk_resumes(samples: Samples, tmp_path: Path, verb: str, size: str) -> None:
    """The checkpoint before stays whole, and the run ends as one on a large disk."""
    whole = tmp_path / "whole"
    assert run_command(*samples.command(verb, whole)).code == 0
    with mounted_disk(tmp_path / "disk", size) as disk:
        out = disk / "out"
        check_message(run_command(*samples.command(verb, out)), "no space is left")
        assert not list_leftovers(disk), "a full disk is not made fuller"
        if out.exists():
            assert len(checkpoint.list_steps(out / "checkpoints")) >= 1
            (out / "checkpoints" / ".writing-000000000006-1").mkdir()
        resize_disk(disk, "64m")
        words = [verb, "--resume", str(out), "-q"] if out.exists() else samples.command(verb, out)
        assert run_command(*words).code == 0
        assert not list_leftovers(disk)
        assert hash_files(out, "model.safetensors") == hash_files(whole, "model.safetensors")


@pytest.mark.parametrize(("verb", "sizes"), [("prepare", ("80k",)), ("pairs", ("32k",)), ("graph", ("16k",))])
def test_preparing_on_a_full_disk_goes_on(samples: Samples, tmp_path: Path, verb: str, sizes: tuple[str, ...]) -> None:
    whole = tmp_path / "whole"
    assert run_command(*samples.command(verb, whole)).code == 0
    for size in sizes:
        with mounted_disk(tmp_path / "disk", size) as disk:
            check_message(run_command(*samples.command(verb, disk / "out")), "no space is left")
            assert not (disk / "out").exists(), "a corpus is complete or absent"
            resize_disk(disk, "64m")
            assert run_command(*samples.command(verb, disk / "out")).code == 0
            assert hash_files(disk / "out", "**/*") == hash_files(whole, "**/*")
            assert [path.name for path in disk.iterdir()] == ["out"]


def test_exporting_to_a_full_disk_leaves_nothing(samples: Samples, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "40k") as disk:
        check_message(run_command(*samples.command("export", disk / "out")), "no space is left")
        assert not list(disk.iterdir())


def test_a_run_whose_folder_is_removed_notices_at_the_next_save(
    samples: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, saved = tmp_path / "run", []
    save = checkpoint.save

    def save_and_remove(folder: Path, step: int, *arguments: object) -> Path:
        saved.append(step)
        path = save(folder, step, *arguments)  # type: ignore[arg-type]
        if step == 2:
            shutil.rmtree(out)
        return path

    monkeypatch.setattr(checkpoint, "save", save_and_remove)
    check_message(run_command(*samples.command("pretrain", out)), "was removed, moved or replaced")
    assert saved == [2], "noticed before the next checkpoint, not at the end"
    assert not out.exists()


def test_left_overs_of_a_killed_start_are_removed_by_the_next(samples: Samples, tmp_path: Path) -> None:
    for name in (".out.creating-1", ".out.creating-999999"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "large").write_bytes(bytes(1000))
    assert run_command(*samples.command("export", tmp_path / "out")).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


MOMENTS = {"pretrain": 4, "finetune": 4, "prepare": 4, "graph": 4, "export": 4, "study": 3, "pick": 3}


@pytest.mark.slow
@pytest.mark.parametrize("verb", MOMENTS)
def test_a_disk_that_is_full_at_random_moments(samples: Samples, tmp_path: Path, verb: str) -> None:
    """A disk of a random size below what the whole needs, then a larger one: the end is that of a large disk."""
    whole = tmp_path / "whole"
    assert run_command(*samples.command(verb, whole)).code == 0
    needed = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file() and not path.is_symlink())
    draw = random.Random(verb)
    for moment in range(MOMENTS[verb]):
        size = draw.randrange(8, max(9, needed // 1024 * 9 // 10))
        with mounted_disk(tmp_path / "disk", f"{size}k") as disk:
            out = disk / "out"
            outcome = run_command(*samples.command(verb, out))
            check_message(outcome, "no space is left")
            # a preparation goes on from its .partial
            assert not [name for name in list_leftovers(disk) if not name.split("/")[0].endswith(".partial")
                        and not re.search(r"corpora/[^/]*\.partial", name)]  # fmt: skip
            resize_disk(disk, "64m")
            assert run_command(*choose_words(samples, verb, out)).code == 0
            assert read_outcome(verb, out) == read_outcome(verb, whole)
            assert not list_leftovers(disk)
            print(f"{verb} {moment}: full at {size} of {needed // 1024} KB: {outcome.message.splitlines()[-1]}")
