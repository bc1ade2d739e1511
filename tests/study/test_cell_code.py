"""An edit throws away the cells that its code made, and no others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from etude.study import cell_code, code_hash

CELLS: dict[str, Callable[[], str]] = {
    "world": cell_code.world_text,
    "corpus": cell_code.corpus,
    "altered": cell_code.altered_corpus,
    "initial": lambda: cell_code.initial_weights("transformer", "masked"),
    "bert": lambda: cell_code.pretraining("transformer", "masked"),
    "gpt": lambda: cell_code.pretraining("transformer", "causal"),
    "word2vec": lambda: cell_code.pretraining("static", "skipgram"),
    "bert.tag": lambda: cell_code.transfer("transformer", "masked", "tag"),
    "bert.classify": lambda: cell_code.transfer("transformer", "masked", "classify"),
    "word2vec.classify": lambda: cell_code.transfer("static", "skipgram", "classify"),
    "distilled": lambda: cell_code.distillation(("transformer", "distill"), ("transformer", "masked")),
    "gpt.prompt": lambda: cell_code.prompt("transformer", "causal", "classify"),
    "baseline.classify": lambda: cell_code.baseline("classify"),
    "majority.tag": lambda: cell_code.majority("tag"),
    "majority.classify": lambda: cell_code.majority("classify"),
}
TRANSFERS = {"bert.tag", "bert.classify", "word2vec.classify"}
PRETRAININGS = {"bert", "gpt", "word2vec"}
OPENED = {"distilled", "gpt.prompt"}  # open a finished run: a teacher, what is asked
MAJORITIES = {"majority.tag", "majority.classify", "baseline.classify"}  # read no run

# an edited module -> the cells whose results are made again
EDITS: dict[str, set[str]] = {
    "inference/beam_search.py": {"gpt.prompt"},  # writes the answers of some prompts
    "inference/generation.py": {"gpt.prompt"},
    "hub/exporter.py": set(),
    "train/progress.py": set(),
    "study/report/page.py": set(),
    "cli/main.py": set(),
    "world/world.py": {"world"},
    "text/prepare/sentences.py": {"corpus"},
    "study/altered_corpus.py": {"altered"},
    "hub/run_weights.py": TRANSFERS | OPENED | {"initial"},
    "hub/families/bert.py": TRANSFERS | OPENED | {"initial"},
    "tasks/outcomes.py": TRANSFERS | MAJORITIES | OPENED,
    "transfer/finetune.py": TRANSFERS,
    "tasks/tag/task.py": {"bert.tag", "majority.tag"},
    "objectives/skipgram.py": {"word2vec", "word2vec.classify"},
    "models/transformer.py": TRANSFERS
    | OPENED
    | {"initial", "bert", "gpt", "majority.classify", "baseline.classify"},  # its heads name it
    "train/loop.py": PRETRAININGS | TRANSFERS | {"distilled"},
    "train/stepper.py": PRETRAININGS | TRANSFERS | {"distilled"},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the package that a test may edit."""
    folder = tmp_path_factory.mktemp("source") / "etude"
    shutil.copytree(code_hash.ROOT, folder, ignore=shutil.ignore_patterns("__pycache__", "*.yaml", "*.json"))
    original, code_hash.ROOT = code_hash.ROOT, folder
    yield folder
    code_hash.ROOT = original
    code_hash.forget_sources()


@pytest.fixture(scope="module")
def before(source: Path) -> dict[str, str]:
    """The fingerprints of all cells before any edit."""
    code_hash.forget_sources()
    return {name: fingerprint() for name, fingerprint in CELLS.items()}


@pytest.mark.parametrize("module", EDITS)
def test_an_edit_redoes_what_its_code_made(source: Path, before: dict[str, str], module: str) -> None:
    file = source / module
    text = file.read_text(encoding="utf-8")
    file.write_text(text + "\nEDITED = 1\n", encoding="utf-8")
    code_hash.forget_sources()
    changed = {name for name, fingerprint in CELLS.items() if fingerprint() != before[name]}
    file.write_text(text, encoding="utf-8")
    assert changed == EDITS[module]


def test_every_kind_of_cell_has_code_of_its_own() -> None:
    code_hash.forget_sources()
    fingerprints = [fingerprint() for fingerprint in CELLS.values()]
    assert len({*fingerprints, code_hash.fingerprint()}) == len(CELLS) + 1
