"""The weights of a run and its tokenizer belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.hub.run_weights import load_learner
from etude.hub.word_vectors import WordVectors
from etude.runs.run import Run
from tests.serve.toy_runs import ToyRuns


def test_a_tokenizer_with_more_ids_than_rows_is_told(tmp_path: Path) -> None:
    """Its vectors met an IndexError; of a run without checksums, as of other programs."""
    folder = ToyRuns(tmp_path)("skipgram-toy")
    (folder / "checksums.json").unlink(missing_ok=True)
    parts = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    parts["model"]["vocab"]["dog"] = 100
    (folder / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    for read in (load_learner, WordVectors.from_run):
        with pytest.raises(UserError, match=r"skipgram-toy: the tokenizer has 101 ids, and the model has rows for \d+"):
            read(Run.open(folder))
