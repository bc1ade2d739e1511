"""`verify`: are the files of a run, a corpus, a graph or a study still what was written?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Verified:
    """What was checked in one folder; a damaged one raises UserError."""

    folder: Path
    kind: str  # run, corpus, graph or study
    files: int
    notes: tuple[str, ...] = ()  # what could not be checked


def verify(folder: str | Path) -> Verified:
    """Check every file of a run, a corpus, a graph or a study against the hashes written with it.

    Opening checks small files each time and large ones of a corpus by their length; this reads all of them.

    Args:
        folder: A run, a corpus, a graph, or the folder of a study.
    """
    import json

    from etude.errors import UserError
    from etude.text.checked_files import MANIFEST

    path = Path(folder)
    if (path / MANIFEST).is_file():
        try:
            content = json.loads((path / MANIFEST).read_bytes())
        except ValueError:
            raise UserError(f"{path / MANIFEST} is damaged: it is not JSON. Prepare the folder again.") from None
        is_graph = isinstance(content, dict) and content.get("format") == "etude graph"
        return _verify_graph(path) if is_graph else _verify_corpus(path)
    if (path / "recipe.yaml").is_file() or (path / "baseline.json").is_file():
        return _verify_run(path)
    if (path / "cells").is_dir():
        return _verify_study(path)
    raise UserError(f"{path} is no run, corpus, graph or study: nothing in it has hashes.")


def _verify_corpus(folder: Path) -> Verified:
    from etude.text.corpus.corpus import Corpus
    from etude.text.corpus.manifest import read_manifest

    files = 0
    for split, entry in read_manifest(folder)["parts"].items():
        if entry["tokens"]:
            Corpus.open(folder, split, verify=True)
            files += 1 + sum(len(shard["files"]) for shard in entry["shards"])
    return Verified(folder, "corpus", files)


def _verify_graph(folder: Path) -> Verified:
    from etude.graph.graph import Graph
    from etude.graph.graph_files import read_manifest

    Graph.open(folder, verify=True)
    return Verified(folder, "graph", len(read_manifest(folder)["files"]))


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
    import json

    from etude.errors import UserError

    files, notes = 0, []
    for result in sorted((folder / "cells").glob("*/result.json")):
        try:
            json.loads(result.read_bytes())
        except ValueError:
            raise UserError(
                f"{result} is damaged: it is not JSON. Remove {result.parent} to run the cell again."
            ) from None
        files += 1
        run = result.parent / "run"
        if (run / "recipe.yaml").is_file():
            cell = _verify_run(run)
            files += cell.files
            notes += [f"{run.parent.name}: {note}" for note in cell.notes if note != "it is not finished"]
    return Verified(folder, "study", files, tuple(notes))
