"""What a visit to a GPU has brought home: its cells into the archive that is kept, then the pages of its studies.

    python benchmarks/take_home.py cells VISIT/study/cells.zip
    python benchmarks/take_home.py pages CORPUS TASKS NAME...

The first takes seconds, and the archive is to be committed at once: a visit cannot be repeated for free. The second
needs the corpus of the archive (benchmarks/results/cells/README.md says which text), prepared as
benchmarks/studies_gpu.py does, and the tasks that the visit had; it judges each study from the archive, puts results,
report and table into docs/studies as NAME.gpu, writes the page of all claims anew and prints a row for
docs/results/studies.md of every claim.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from etude.study.cell_archive import export_cells, import_cells
from etude.study.cells import CellStore
from etude.study.leaderboard import format_points
from etude.study.report.claims_page import add_results, load_claims, write_index

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "benchmarks" / "results" / "cells" / "wikipedia-280mb.zip"
PAGES = ROOT / "docs" / "studies"


def merge(visit: Path, archive: Path) -> None:
    """Put the cells of a visit into an archive, which is replaced as a whole or not at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = CellStore(folder / "cells")
        for path in [archive, visit] if archive.exists() else [visit]:
            print(f"{path.name}: {import_cells(store, path, folder)}")
        print(f"{export_cells(store, archive, folder)} cells in {archive}")


def report(name: str, corpus: Path, tasks: Path, archive: Path, out: Path, settings: list[str]) -> Path:
    """Judge a study from an archive; returns its results.json."""
    study = ROOT / "studies" / f"{name}.yaml"
    command = [sys.executable, "-m", "etude", "study", str(study), "--gpu", "--device", "cuda",
               "--report", "--any-version", "--text", str(corpus), "--data", str(tasks),
               "--import-cells", str(archive), "-o", str(out / name), *settings]  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out / name / "results.json"


def list_rows(name: str, results: dict[str, Any]) -> list[str]:
    """Return a row of the table of claims for each claim of a study."""
    rows, link = [], f"[{name}](../studies/{name}.gpu.html) ([table](../studies/{name}.gpu.md))"
    for claim in results["claims"]:
        text = claim["claim"]["en"] if isinstance(claim["claim"], dict) else claim["claim"]
        points = "–"
        if "mean" in claim:
            interval = f"{format_points(claim['low'])} … {format_points(claim['high'])}"
            points = f"{format_points(claim['mean'], sign=True)} ({interval})"
        rows.append(f"| {link} | {text} | {points} | {claim['verdict']} |")
        link = ""
    return rows


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--archive", type=Path, default=ARCHIVE)
    commands = parser.add_subparsers(dest="command", required=True)
    cells = commands.add_parser("cells")
    cells.add_argument("visit", type=Path)
    pages = commands.add_parser("pages")
    pages.add_argument("corpus", type=Path)
    pages.add_argument("tasks", type=Path)
    pages.add_argument("studies", nargs="+", metavar="NAME[:SETTING=VALUE...]", help="mlm-vs-electra:seeds.pretrain=5")
    pages.add_argument("--pages", type=Path, default=PAGES)
    arguments = parser.parse_args(words)
    if arguments.command == "cells":
        merge(arguments.visit, arguments.archive)
        print(f"Commit it now: git commit {arguments.archive.name}")
        return
    load_claims(arguments.pages)  # the folder of the list of claims: before minutes are spent
    with tempfile.TemporaryDirectory() as folder:
        for word in arguments.studies:
            name, *settings = word.split(":")
            path = report(name, arguments.corpus, arguments.tasks, arguments.archive, Path(folder), settings)
            add_results(arguments.pages, path, f"{name}.gpu")
            print(*list_rows(name, json.loads(path.read_text(encoding="utf-8"))), sep="\n")
    print(write_index(arguments.pages))


if __name__ == "__main__":
    main(sys.argv[1:])
