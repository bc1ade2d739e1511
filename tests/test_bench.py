"""`etude bench` measures the real loop: sizes in order, a best one, parts of a step, and memory that runs out."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from etude import bench as module
from etude.bench import bench, sizes
from etude.cli.main import app
from etude.errors import UserError
from etude.pretraining import resolve
from etude.text.corpus import Corpus
from etude.text.prepare import prepare
from etude.world import World

SMALL = {
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.context": 32,
    "train.batch_tokens": 1024,
    "train.precision": "float32",
    "train.device": "cpu",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "text.txt").write_text("".join(World(seed=1).text(0.05)), encoding="utf-8")
    prepare(folder / "text.txt", folder / "corpus", tokenizer="wordpiece:400", workers=1)
    return Corpus.open(folder / "corpus")


def test_sizes_double_up_to_a_whole_step(corpus: Corpus) -> None:
    recipe = resolve("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 32})
    assert sizes(recipe, corpus) == [32, 64, 128, 256, 512, 1024]
    one = recipe.with_settings({"train.micro_tokens": 64})
    assert sizes(one, corpus) == [64]


def test_a_bench_names_the_fastest_and_its_parts(corpus: Corpus) -> None:
    found = bench("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 256}, seconds=0.05)
    assert [one.micro_tokens for one in found.measured] == [256, 512, 1024]
    assert found.best.rate() == max(one.rate() for one in found.measured) > 0
    assert set(found.parts) == {"batches", "forward", "backward", "update"}
    assert all(seconds > 0 for seconds in found.parts.values())
    assert 0 < found.share(found.best) < 1.5


def test_memory_that_runs_out_ends_the_search_and_not_the_bench(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.trial

    def limited(recipe: object, *rest: object) -> object:
        if recipe.train.micro_tokens > 256:  # type: ignore[attr-defined]
            raise MemoryError
        return real(recipe, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "trial", limited)
    found = bench("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 256}, seconds=0.05)
    assert [one.speed is None for one in found.measured] == [False, True]
    assert found.best.micro_tokens == 256
    monkeypatch.setattr(module, "trial", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(UserError, match=r"objective\.row_tokens"):
        bench("gpt2-toy", corpus, SMALL, seconds=0.05)


def test_the_command_says_what_to_set(corpus: Corpus) -> None:
    settings = [f"{name}={value}" for name, value in (SMALL | {"objective.row_tokens": 512}).items()]
    found = CliRunner().invoke(app, ["bench", "gpt2-toy", str(Path(corpus.folder)), *settings, "--seconds", "0.05"])
    assert found.exit_code == 0, found.output
    assert "train.micro_tokens=" in found.output
    assert "of peak" in found.output
