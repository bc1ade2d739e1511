"""Bit flips and truncations of every kind of file that is written here: each is refused, with its name."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import etude
from etude.errors import UserError
from tests.hostile.samples import SMALL, Samples

FAST, SLOW = 2, 30
# written by people or for them, or read line by line as far as it is whole: no hash covers them
UNCHECKED = {"README.md", "metrics.jsonl", ".lock", "manifest.json"}
WHOLE_FOLDERS = ("corpus", "linked", "graph", "run", "checkpoint", "baseline")


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


@pytest.fixture(scope="module")
def folders(samples: Samples, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of each kind that `etude verify` knows."""
    from etude.baselines import registry as baselines
    from etude.tasks import classify

    root, source = tmp_path_factory.mktemp("damaged"), samples.folder
    shutil.copytree(source / "corpus", root / "corpus")
    etude.prepare_graph([str(source / "graph.tsv")], out=root / "graph")
    text = root / "people.txt"
    text.write_text("\n\n".join(f"person{n} lives in town{n % 7} now." for n in range(40)))
    etude.prepare(str(text), out=root / "linked", tokenizer="word:200", workers=0, link=root / "graph")
    shutil.copytree(source / "run", root / "run")
    shutil.rmtree(root / "run" / "checkpoints")
    settings = {name: int(value) for name, value in (word.split("=") for word in SMALL)}
    etude.pretrain("bert-toy", source / "corpus", out=root / "checkpoint", settings=settings, quiet=True)
    for name in ("model.safetensors", "checksums.json"):
        (root / "checkpoint" / name).unlink()
    examples, values = classify.read(source / "labels.jsonl"), classify.Settings()
    facts = classify.learn(examples, values)
    baselines.fit("tfidf", "classify", values, examples, 0, facts=facts, columns={}).save(root / "baseline")
    return {name: root / name for name in WHOLE_FOLDERS}


def list_files(folder: Path, is_checkpoint: bool) -> list[Path]:
    """Files whose bytes have a hash; of an unfinished run those of its checkpoints."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNCHECKED)
    return [path for path in files if path.stat().st_size and (not is_checkpoint or "checkpoints" in path.parts)]


def damage(
    folder: Path, path: Path, change: Callable[[bytes, random.Random], bytes], times: int
) -> tuple[int, list[str]]:
    """Change a file some times; return how many changes there were, and what was accepted or answered wrongly."""
    whole, faults, count = path.read_bytes(), [], 0
    for number in range(times):
        content = change(whole, random.Random(f"{path.name} {change.__name__} {number}"))
        if content == whole:
            continue
        path.write_bytes(content)
        count += 1
        try:
            etude.verify(folder)
            faults.append(f"{path} {change.__name__} {number}: accepted")
        except UserError as error:
            # a file that lists others is named itself, or the first that it does not describe
            if str(folder) not in str(error):
                faults.append(f"{path} {change.__name__} {number}: not named: {error}")
        except Exception as error:
            faults.append(f"{path} {change.__name__} {number}: {error!r}")
    path.write_bytes(whole)
    return count, faults


@pytest.mark.parametrize("kind", WHOLE_FOLDERS)
def test_damage_is_refused_by_name(folders: dict[str, Path], kind: str) -> None:
    check(folders[kind], kind, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WHOLE_FOLDERS)
def test_thirty_damages_of_each_file_are_refused(folders: dict[str, Path], kind: str) -> None:
    check(folders[kind], kind, SLOW)


def check(folder: Path, kind: str, times: int) -> None:
    etude.verify(folder)
    total, faults = 0, []
    files = list_files(folder, kind == "checkpoint")
    for path in files:
        for change in (flip_bit, truncate):
            count, wrong = damage(folder, path, change, times)
            total, faults = total + count, faults + wrong
    print(f"{kind}: {total} damages of {len(files)} files, {len(faults)} accepted or unnamed")
    assert files and not faults, "\n".join(faults[:20])
