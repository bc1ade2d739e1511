"""Bit flips and truncations of every kind of file that is written here: each is refused, with its name."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import etude
from etude.baselines import registry as baselines
from etude.errors import UserError
from etude.study.altered_corpus import Alterations, write_altered
from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import CellStore
from etude.study.execute import OUTCOME
from etude.tasks import classify
from etude.train import sharded_checkpoint
from etude.train.parallel import Ranks
from tests.hostile.commands import run_command
from tests.hostile.samples import Samples

FAST, SLOW = 1, 30
# written for people, or read line by line as far as it is whole: no hash covers them (docs/security.md)
UNCHECKED = {"README.md", "metrics.jsonl", "study.yaml", "table.md", "report.html"}
LISTS = ("checksums.json", "state.json")
KINDS = ("corpus", "linked", "graph", "run", "checkpoint", "shards", "baseline", "cells", "archive", "export")
# take longer to make
SLOW_KINDS = ("pairs", "two tokenizers", "counts", "vectors", "entities", "altered", "tuned", "study", "pick",
              "translator export", "baseline export")  # fmt: skip
UNFINISHED = ("checkpoint", "shards")  # only their checkpoints have hashes
REPEATED = ("study", "pick")  # have many cells: one file of each name is damaged


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def make_folder(kind: str, samples: Samples, out: Path) -> None:
    """Make one folder of a kind that `etude verify` knows."""
    source = samples.folder
    if kind == "corpus":
        shutil.copytree(source / "corpus", out)
    elif kind == "graph":
        etude.prepare_graph([str(source / "graph.tsv")], out=out)
    elif kind == "linked":
        etude.prepare_graph([str(source / "graph.tsv")], out=out.with_name("linked-graph"))
        text = out.with_name("people.txt")
        text.write_text("\n\n".join(f"person{n} lives in town{n % 7} now." for n in range(40)))
        graph = out.with_name("linked-graph")
        etude.prepare(str(text), out=out, tokenizer="word:200", workers=0, link=graph)
    elif kind == "run":
        shutil.copytree(source / "run", out, ignore=shutil.ignore_patterns("checkpoints"))
    elif kind == "checkpoint":
        shutil.copytree(source / "run", out)
        for name in ("model.safetensors", "checksums.json"):
            (out / name).unlink()
    elif kind == "baseline":
        examples, values = classify.read(source / "labels.jsonl"), classify.Settings()
        facts = classify.learn(examples, values)
        baselines.fit("tfidf", "classify", values, examples, 0, facts=facts, columns={}).save(out)
    elif kind == "cells":
        out.mkdir()
        store = CellStore(out / "cells")
        with store.lock("0" * 32) as work:
            np.save(work / OUTCOME, np.arange(8.0).reshape(8, 1))
            store.finish("0" * 32, {"kind": "majority", "seconds": 1.5, "value": 0.25, "title": "집"})
        store.fail("1" * 32, "The loss is not a number.")
    elif kind == "vectors":
        etude.pretrain("skipgram-toy", source / "corpus", out=out, settings={"train.steps": 2}, quiet=True)
    elif kind == "shards":
        out.mkdir()
        (out / "recipe.yaml").write_bytes((source / "run" / "recipe.yaml").read_bytes())
        groups = {"weights": {"a": torch.arange(60.0).reshape(6, 10), "b": torch.ones(3)}}
        whole = {"averages": {"a": torch.ones(4)}}
        sharded_checkpoint.save(out / "checkpoints", 2, groups, whole, {"step": 2}, Ranks())
    elif kind == "archive":
        store = CellStore(out.with_name("archived-cells"))
        result = {"kind": "pretrain", "seconds": 1.5, "step": 1, "tokens": 5, "flops": 7, "valid": {}, "curve": []}
        with store.lock("0" * 32):
            store.finish("0" * 32, result)
        store.fail("1" * 32, "The loss is not a number.")
        export_cells(store, out / "cells.zip", out)
    elif kind == "export":
        etude.export(source / "run", out=out)
    elif kind == "translator export":
        pairs, run = out.with_name("translated-pairs"), out.with_name("translator")
        etude.prepare(str(source / "pairs.jsonl"), out=pairs, tokenizer="bpe:300", pairs="en,ko", workers=0)
        etude.pretrain("transformer-toy", pairs, out=run, settings={"train.steps": 1}, quiet=True)
        etude.export(run, out=out)
    elif kind == "baseline export":
        make_folder("baseline", samples, out.with_name("exported-baseline"))
        etude.export(out.with_name("exported-baseline"), out=out)
    elif kind == "two tokenizers":
        etude.prepare(str(source / "pairs.jsonl"), out=out, tokenizer="bpe:300", target_tokenizer="bpe:200",
                      pairs="en,ko", workers=0)  # fmt: skip
    elif kind == "counts":
        etude.prepare(str(source / "town.txt"), out=out, tokenizer="word:300", workers=0)
        etude.pretrain("glove-toy", out, out=out.with_name("glove"), settings={"train.steps": 2}, quiet=True)
        assert list(out.glob("cooccurrence-*"))
    elif kind == "entities":
        etude.prepare_graph([str(source / "graph.tsv")], out=out.with_name("embedded"))
        etude.pretrain("transe-toy", out.with_name("embedded"), out=out, settings={"train.steps": 2}, quiet=True)
    elif kind == "altered":
        write_altered(source / "corpus", out, Alterations(share=0.5))
    else:
        verb = {"tuned": "finetune"}.get(kind, kind)
        outcome = run_command(*samples.command(verb, out))
        assert outcome.code == 0, outcome


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def list_files(folder: Path, kind: str) -> list[Path]:
    """Files whose bytes have a hash; of an unfinished run those of its checkpoints."""
    skipped = {"export"} | ({"checkpoints"} if kind in REPEATED else set())
    files = [
        path for path in sorted(folder.rglob("*"))
        if path.is_file() and not is_unchecked(path) and path.name[0] != "." and path.stat().st_size
        and not skipped & set(path.relative_to(folder).parts)
        and (kind not in UNFINISHED or "checkpoints" in path.parts)
    ]  # fmt: skip
    return list({path.name: path for path in files}.values()) if kind in REPEATED else files


def is_unchecked(path: Path) -> bool:
    """Whether a file has no hash: free text, and the text of a study's world, from which its corpora were made."""
    return path.name in UNCHECKED or (path.parent.name == "corpora" and path.suffix in (".txt", ".tsv"))


def check_folder(folder: Path) -> None:
    """Raise UserError where a folder is damaged: an archive of cells by importing it, others by `etude verify`."""
    archive = folder / "cells.zip"
    if not archive.is_file():
        etude.verify(folder)
        return
    with tempfile.TemporaryDirectory() as home:
        import_cells(CellStore(Path(home) / "cells"), archive, Path(home))


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
            check_folder(folder)
            faults.append(f"{path} {change.__name__} {number}: accepted")
        except UserError as error:
            # a list of others is named itself, or the first of them that it does not describe
            if str(path.parent if path.name in LISTS else path) not in str(error):
                faults.append(f"{path} {change.__name__} {number}: not named: {error}")
        except Exception as error:
            faults.append(f"{path} {change.__name__} {number}: {error!r}")
    path.write_bytes(whole)
    return count, faults


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process writes shards
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_refused_by_name(samples: Samples, root: Path, kind: str) -> None:
    check(samples, root / kind, kind, FAST)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", KINDS + SLOW_KINDS)
def test_thirty_damages_of_each_file_are_refused(samples: Samples, root: Path, kind: str) -> None:
    check(samples, root / kind, kind, SLOW)


def check(samples: Samples, folder: Path, kind: str, times: int) -> None:
    if not folder.exists():
        make_folder(kind, samples, folder)
    check_folder(folder)
    total, faults = 0, []
    files = list_files(folder, kind)
    for path in files:
        for change in (flip_bit, truncate):
            count, wrong = damage(folder, path, change, times)
            total, faults = total + count, faults + wrong
    names = sorted({path.name for path in files})
    print(f"{kind}: {total} damages of {len(files)} files, {len(faults)} accepted or unnamed ({', '.join(names)})")
    assert files and not faults, "\n".join(faults[:20])
