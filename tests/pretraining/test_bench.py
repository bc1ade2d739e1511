"""`etude bench` measures the real loop: sizes in order, a best one, parts of a step, and memory that runs out."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.objectives.base import Term
from etude.objectives.causal import Causal, CausalBatch
from etude.pretraining import bench as module
from etude.pretraining.bench import bench, micro_batch_sizes, random_corpus
from etude.pretraining.setup import resolve_recipe
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.train import memory
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
    recipe = resolve_recipe("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 32})
    assert micro_batch_sizes(recipe, corpus) == [32, 64, 128, 256, 512, 1024]
    item = recipe.with_settings({"train.micro_tokens": 64})
    assert micro_batch_sizes(item, corpus) == [64]


def test_a_bench_names_the_fastest_and_its_parts(corpus: Corpus) -> None:
    result = bench("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 256}, seconds=0.05)
    assert [item.micro_tokens for item in result.trials] == [256, 512, 1024]
    assert result.best.rate() == max(item.rate() for item in result.trials) > 0
    assert set(result.parts) == {"batches", "forward", "backward", "update"}
    assert all(seconds > 0 for seconds in result.parts.values())
    assert 0 < result.share(result.best) < 1.5


def test_memory_that_runs_out_ends_the_search_and_not_the_bench(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Causal.loss

    def limited(objective: Causal, model: Any, batch: CausalBatch) -> dict[str, Term]:
        if batch.size > 256:
            raise MemoryError
        return real(objective, model, batch)

    monkeypatch.setattr(Causal, "loss", limited)
    result = bench("gpt2-toy", corpus, SMALL | {"objective.row_tokens": 256}, seconds=0.05)
    assert [item.speed is None for item in result.trials] == [False, True]
    assert result.best.micro_tokens == 256
    monkeypatch.setattr(Causal, "loss", Mock(side_effect=MemoryError))
    with pytest.raises(UserError, match=r"objective\.row_tokens"):
        bench("gpt2-toy", corpus, SMALL, seconds=0.05)


def test_the_command_says_what_to_set(corpus: Corpus) -> None:
    settings = [f"{name}={value}" for name, value in (SMALL | {"objective.row_tokens": 512}).items()]
    result = CliRunner().invoke(app, ["bench", "gpt2-toy", str(Path(corpus.folder)), *settings, "--seconds", "0.05"])
    assert result.exit_code == 0, result.output
    assert "train.micro_tokens=" in result.output
    assert "of peak" in result.output


def test_a_plain_bench_needs_neither_recipe_nor_corpus() -> None:
    tiny = [f"{name}={value}" for name, value in SMALL.items()]
    rows = ["objective.row_tokens=512", "objective.length=32", "model.vocab=500"]
    result = CliRunner().invoke(app, ["bench", *tiny, *rows, "--seconds", "0.01"])
    assert result.exit_code == 0, result.output
    assert f"{module.default_recipe().name}, steps of 1,024 tokens; random words, vocabulary 500" in result.output
    lines = result.output.splitlines()
    head = next(number for number, line in enumerate(lines) if "tokens/s" in line and "start-up" in line)
    table = lines[head : head + 3]
    assert [line.split()[0] for line in table] == ["micro-batch", "512", "1,024"]
    assert len({len(line) for line in table}) == 1  # columns end at the same places
    assert "There a step's time goes to: batches" in result.output


def test_words_at_random_have_the_vocabulary_of_the_recipe() -> None:
    recipe = Recipe.load("bert-toy")
    stand_in = random_corpus(recipe)
    assert stand_in.tokenizer.vocab == recipe.tokenizer_size == 1000
    lengths = np.diff(stand_in.sentences.slice(0, 201))
    assert lengths.min() < 15 < 25 < lengths.max()
    assert random_corpus(Recipe.load("bert-toy", {"model.vocab": 500})).tokenizer.vocab == 500


def test_memory_is_the_most_that_was_held_since() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("no /proc here: nobody says what was held")
    memory.reset_peak("cpu")
    before = memory.peak_bytes("cpu")
    assert before is not None
    block = mmap.mmap(-1, 60_000_000)  # taken and given back past malloc, which may keep what is freed
    np.frombuffer(block, np.uint8)[:] = 1
    block.close()
    after = memory.peak_bytes("cpu")
    assert after is not None and 50e6 < after - before < 200e6
    memory.reset_peak("cpu")
    again = memory.peak_bytes("cpu")
    assert again is not None and again < after - 40e6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bert-toy", "a", "b"], "Give a recipe and a corpus at most"),
        (["bert-toy", "layers=3"], "'layers=3' is no setting: its name lacks the group"),
        (["bert-toy", "no/such/corpus"], "no/such/corpus is not a corpus"),
        (["bert-tiy"], "Did you mean 'bert-tiny'?"),
        (["bert-toy", "model.layer=3"], "there is no setting 'model.layer'"),
    ],
)
def test_wrong_words_are_one_message(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert isinstance(result.exception, UserError)  # the entry point makes it exit code 2
    assert said in str(result.exception)
    assert result.output.strip() == ""


def test_no_time_at_all_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "bert-toy", "--seconds", "-1"])
    assert isinstance(result.exception, UserError) and "seconds=-1 is too small" in str(result.exception)
