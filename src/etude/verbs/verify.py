"""`verify`: are the files of a run, a corpus, a graph, a study, a pick or an export still what was written?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.verbs.paths import require_path

if TYPE_CHECKING:
    from etude.runs.run import Run


@dataclass(frozen=True)
class Verified:
    """What was checked in one folder; a damaged one raises UserError."""

    folder: Path | str  # a URL of a corpus in a store
    kind: str  # run, corpus, graph, study, pick or export
    files: int
    notes: tuple[str, ...] = ()  # what could not be checked


def verify(folder: str | Path | Run) -> Verified:
    """Check every file of a run, a corpus, a graph, a study, a pick or an export against the hashes written with it.

    Opening checks small files each time and large ones of a corpus by their length; this reads all of them.

    Args:
        folder: A run, a corpus, a graph, an export, or the folder of a study or a pick; of a corpus also its URL.
    """
    import json

    from etude.errors import UserError
    from etude.text.checked_files import MANIFEST
    from etude.text.remote.urls import is_url, make_local
    from etude.text.run_checksums import CHECKSUMS, verify_checksums

    folder = make_local(require_path("folder", folder, "a run, a corpus or another folder with hashes"))
    if is_url(folder):
        return _verify_remote_corpus(str(folder))
    path = Path(folder)
    if (path / MANIFEST).is_file():
        try:
            content = json.loads((path / MANIFEST).read_bytes())
        except (ValueError, RecursionError):
            raise UserError(f"{path / MANIFEST} is damaged: it is not JSON. Prepare the folder again.") from None
        is_graph = isinstance(content, dict) and content.get("format") == "etude graph"
        return _verify_graph(path) if is_graph else _verify_corpus(path)
    if (path / "recipe.yaml").is_file() or (path / "baseline.json").is_file():
        return _verify_run(path)
    if (path / "cells").is_dir():
        return _verify_study(path)
    if (path / CHECKSUMS).is_file():
        return Verified(path, "export", verify_checksums(path) or 0)
    if not path.exists():
        raise UserError(f"There is no folder {path}.")
    raise UserError(f"{path} is no run, corpus, graph, study, pick or export: nothing in it has hashes. Name one.")


def _verify_corpus(folder: Path) -> Verified:
    from etude.text.corpus.cooccurrence import FILES, FOLDERS, Cooccurrences
    from etude.text.corpus.corpus import Corpus
    from etude.text.corpus.manifest import read_manifest

    files = 1  # the manifest
    for split, entry in read_manifest(folder)["parts"].items():
        if entry["tokens"]:
            Corpus.open(folder, split, verify=True)
            files += 1 + sum(len(shard["files"]) for shard in entry["shards"])
    for counts in sorted(folder.glob(FOLDERS)):
        Cooccurrences.open(counts, Corpus.open(folder).tokenizer.vocab, verify=True)
        files += 1 + len(FILES)
    return Verified(folder, "corpus", files)


def _verify_remote_corpus(url: str) -> Verified:
    """Fetch every file of a corpus in a store once and check it: its manifest names them all."""
    from etude.text.corpus.corpus import Corpus
    from etude.text.corpus.manifest import SPLITS

    files, parts = 1, Corpus.open(url).manifest["parts"]
    for split in SPLITS:
        if split in parts and parts[split]["tokens"]:
            Corpus.open(url, split, verify=True)
            files += 1 + sum(len(shard["files"]) for shard in parts[split]["shards"])
    return Verified(url, "corpus", files)


def _verify_graph(folder: Path) -> Verified:
    from etude.graph.graph import Graph
    from etude.graph.graph_files import read_manifest

    Graph.open(folder, verify=True)
    return Verified(folder, "graph", 1 + len(read_manifest(folder)["files"]))


def _verify_run(folder: Path) -> Verified:
    from etude.text.run_checksums import CHECKSUMS, verify_checksums
    from etude.train import checkpoint

    count, notes = verify_checksums(folder), []
    checkpoints = folder / "checkpoints"
    steps = checkpoint.list_steps(checkpoints)
    files = (count or 0) + sum(len(checkpoint.verify(checkpoints, step)["files"]) + 1 for step in steps)
    if count is None:
        is_finished = (folder / "model.safetensors").is_file()
        notes.append(f"its final files have no {CHECKSUMS}" if is_finished else "it is not finished")
    return Verified(folder, "run", files, tuple(notes))


def _verify_study(folder: Path) -> Verified:
    """Check a study or a pick: its own files, its corpora, every cell with its run, and the model of a pick."""
    from etude.pick.journal import FILE as JOURNAL
    from etude.study.cells import ERROR, RESULT, CellStore
    from etude.study.folder_checksums import verify_cell
    from etude.text.checked_files import MANIFEST
    from etude.text.run_checksums import CHECKSUMS, verify_checksums

    kind = "pick" if (folder / JOURNAL).is_file() else "study"
    count, notes = verify_checksums(folder), []
    if count is None:
        notes.append(f"its own files have no {CHECKSUMS}: it is not finished, or of an earlier version")
    files, store = count or 0, CellStore(folder / "cells")
    files += sum(_verify_corpus(manifest.parent).files for manifest in sorted(folder.glob(f"*/*/{MANIFEST}")))
    for result in sorted([*store.folder.glob(f"*/{RESULT}"), *store.folder.glob(f"*.failed/{ERROR}")]):
        if result.parent.suffix == ".work":
            continue
        files += verify_cell(result.parent) or 1
        if result.name == ERROR:
            store.error(result.parent.stem)
            continue
        kind_of_cell, folder_of_run = store.result(result.parent.name).get("kind"), result.parent / "run"
        if kind_of_cell == "transfer" and _lists_dropped_weights(folder_of_run):
            notes.append(f"{result.parent.name}: the weights of its run were not kept, but are in its {CHECKSUMS}")
        elif (folder_of_run / "recipe.yaml").is_file():
            run = _verify_run(folder_of_run)
            files += run.files
            notes += [f"{result.parent.name}: {note}" for note in run.notes if note != "it is not finished"]
    if kind == "pick" and (folder / "best").is_dir():
        files += _verify_run(folder / "best").files
    return Verified(folder, kind, files, tuple(notes))


def _lists_dropped_weights(run: Path) -> bool:
    """Whether a transfer of an earlier version dropped its weights and left them in its checksums."""
    from etude.text.run_checksums import CHECKSUMS

    checksums, weights = run / CHECKSUMS, run / "model.safetensors"
    return checksums.is_file() and not weights.exists() and weights.name.encode() in checksums.read_bytes()
