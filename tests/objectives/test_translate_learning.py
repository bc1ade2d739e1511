"""The Transformer toy learns to copy and to reverse: 99 of 100 unseen sequences come out whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import etude

WORDS = [f"w{number}" for number in range(12)]
SETTINGS = {
    "train.steps": 800, "train.lr": 3e-3, "train.batch_tokens": 1024, "train.eval_every": 0, "objective.smoothing": 0.0,
}  # fmt: skip


def write_pairs(path: Path, count: int, seed: int, reverse: bool) -> list[tuple[str, str]]:
    draw = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        words = draw.choice(WORDS, draw.integers(3, 9)).tolist()
        pairs.append((" ".join(words), " ".join(words[::-1] if reverse else words)))
    path.write_text("a\tb\n" + "".join(f"{source}\t{target}\n" for source, target in pairs))
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_unseen_sequences_are_copied_and_reversed(reverse: bool, tmp_path: Path) -> None:
    write_pairs(tmp_path / "p.tsv", 6000, 0, reverse)
    test = write_pairs(tmp_path / "t.tsv", 200, 1, reverse)
    etude.prepare(tmp_path / "p.tsv", out=tmp_path / "c", tokenizer="word:100", pairs="a,b", valid=0.02)
    run = etude.pretrain("transformer-toy", tmp_path / "c", out=tmp_path / "run", settings=SETTINGS, quiet=True)
    translations = etude.load(run.folder).translate([source for source, _ in test], beams=1)
    right = sum(best[0].text == target for best, (_, target) in zip(translations, test, strict=True))
    assert right >= 198, f"{right} of 200"
