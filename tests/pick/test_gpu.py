"""A whole pick on a GPU: candidates share the card, fine-tunings run at once, and it ends in time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import etude
from etude.world import World


@pytest.mark.gpu
def test_a_pick_on_a_gpu(tmp_path: Path) -> None:
    town, lines = World(), []
    (tmp_path / "town.txt").write_text("\n\n".join(town.text(1.0)) + "\n", encoding="utf-8")
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps(record) + "\n" for record in town.task("topic", "train", 100)))
    start, minutes = time.monotonic(), 2.5  # with five other tests beside it
    result = etude.pick(
        [str(tmp_path / "town.txt")], task="classify", train=labels, out=tmp_path / "out", minutes=minutes,
        device="cuda", on_progress=lines.append,
    )  # fmt: skip
    seconds, log = time.monotonic() - start, "\n".join(lines)
    print(log, *result.results["notes"], (tmp_path / "out" / "workers.log").read_text()[-3000:], sep="\n")
    assert seconds <= 1.1 * 60 * minutes
    assert result.results["rounds"], f"nothing was pre-trained:\n{log}"
    folds = {row["name"]: row["folds"] for row in result.results["rows"]}
    assert any(name.endswith("frozen") for name in folds)
    # on a card and cores that many share, a fine-tuning may have no time for one fold, or none at all: then it is said
    left_out = [note["en"] for note in result.results["notes"] if "there was no time for more" in note["en"]]
    untried = [skipped["label"]["en"] for skipped in result.results["untried"]]
    assert any("fine-tuned" in name for name in [*folds, *left_out, *untried]), f"{folds}\n{log}"
    assert any(note["en"].startswith(("Settled after", "Ended after")) for note in result.results["notes"])
    assert not any("process" in note["en"] for note in result.results["notes"]), result.results["notes"]
    assert result.predict(["The baker sells bread."])
