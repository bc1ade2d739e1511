"""`etude pretrain`: what is refused before a run has a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.pretraining import pretrain as module
from etude.train.parallel import Ranks


@pytest.mark.parametrize(
    ("recipe", "tokenizer", "message"),
    [
        ("bert-toy", "wordpiece:600", r"4 rows cannot be divided among 3 processes\. Set train\.batch_tokens=768\."),
        ("skipgram-toy", "word:600", r"skipgram-toy updates its vectors in place.*without torchrun\."),
    ],
)
def test_what_these_processes_cannot_do_leaves_no_folder(
    prepared: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    tokenizer: str,
    message: str,
) -> None:
    """Whoever takes the advice of the message names the same folder again."""

    @contextmanager
    def three_processes(*_: Any, **__: Any) -> Iterator[Ranks]:
        yield Ranks(rank=1, size=3)  # not the first, which alone removes what it has written

    monkeypatch.setattr(module, "connect", three_processes)
    monkeypatch.setattr(module, "_create", lambda *_: pytest.fail("a folder was made"))
    with pytest.raises(UserError, match=message):
        module.pretrain(recipe, prepared(tokenizer), tmp_path / "run", overrides={"train.steps": 3}, quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("warmup", [0.1, 10_000])
def test_a_warm_up_longer_than_the_run_is_told(
    prepared: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, warmup: float
) -> None:
    """A published recipe with a short budget: the run would learn next to nothing without a word."""
    changes = {"train.steps": 2, "train.warmup": warmup, "train.device": "cpu", "train.precision": "float32"}
    module.pretrain("bert-toy", prepared("wordpiece:600"), tmp_path / "run", overrides=changes, quiet=True)
    assert ("no shorter than the run (2 steps)" in caplog.text) == (warmup > 1)
