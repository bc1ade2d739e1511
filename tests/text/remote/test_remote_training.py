"""Training from a corpus in a store: the batches and weights of a local one, also after a kill."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.text.remote.s3_server import S3Server, Trouble
from tests.text.remote.test_remote_corpus import limit_cache, shard_bytes
from tests.train.forked_ranks import RankServer

from etude.pretraining.loop import build_rows
from etude.pretraining.pretrain import pretrain, resume
from etude.pretraining.setup import resolve_recipe
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.corpus.corpus import Corpus
from etude.train.loader import Loader

RECIPE = """name: remote
tokenizer: bytebpe:400
model: {kind: transformer, layers: 1, width: 32, heads: 2, context: 32, direction: causal}
objective: {kind: causal, row_tokens: 64}
train: {steps: 8, batch_tokens: 256, save_every: 2, eval_every: 4, eval_tokens: 256, log_every: 1, workers: 1,
  device: cpu, precision: float32, seed: 5, lr: 0.001}
"""


@pytest.fixture
def corpora(corpora: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """With a cache for two of its shards, and a recipe."""
    sizes = shard_bytes(Corpus.open(corpora[0]))
    assert len(sizes) >= 5
    limit_cache(monkeypatch, int(2.5 * max(sizes)))
    (corpora[0].parent / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return corpora


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the process that is killed: sums over threads have other last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build_loader(recipe: Path, corpus: Corpus) -> Loader:
    resolved = resolve_recipe(Recipe.load(recipe), corpus, ())
    _, objective = build_learner(resolved, corpus.tokenizer)
    return Loader(
        objective, build_rows(resolved, corpus, objective), seed=5, batch_rows=lambda step: 4,
        rows_before=lambda step: 4 * step, micro_tokens=128, workers=1,
    )  # fmt: skip


def list_values(value: object) -> list[object]:
    """All values of a batch, which is made of dataclasses, tensors as nested lists."""
    if is_dataclass(value):
        return [inner for field in fields(value) for inner in list_values(getattr(value, field.name))]
    return [value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value]


def test_the_loader_gives_the_batches_of_a_local_corpus(corpora: tuple[Path, str], s3: S3Server) -> None:
    local, remote = Corpus.open(corpora[0]), Corpus.open(corpora[1])
    troubles: dict[int, Trouble] = {3: "error", 7: "cut", 12: "garbled"}
    s3.trouble = lambda method, path, number: troubles.get(number % 20)
    loaders = [build_loader(corpora[0].parent / "recipe.yaml", corpus) for corpus in (local, remote)]
    epoch = len(loaders[0].rows) // 4
    assert len(loaders[0].rows) == len(loaders[1].rows) and epoch > 5
    start = epoch - 3  # into the second epoch
    for left, right in zip(loaders[0].steps(start, epoch + 3), loaders[1].steps(start, epoch + 3), strict=True):
        assert len(left.batches) == 2
        assert list(map(list_values, left.batches)) == list(map(list_values, right.batches))


def kill_in_training(
    server: RankServer, recipe: Path, corpus: str, run: Path, moment: str, words: str = "start"
) -> int:
    """A fork of the server, and not of this process: it might wait for ever for threads that only this one has."""
    arguments = [words, recipe, corpus, run, moment] if words == "start" else [words, run, moment]
    [code] = server.run(0, *arguments, environment=os.environ)
    return code


def read_weights(run: Run | Path) -> dict[str, torch.Tensor]:
    return load_file((run if isinstance(run, Path) else run.folder) / "model.safetensors")


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.usefixtures("one_thread")
def test_a_killed_run_ends_with_the_bits_of_a_local_one(
    corpora: tuple[Path, str], tmp_path: Path, server: RankServer
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("steps: 8", "steps: 4"), encoding="utf-8")
    code = kill_in_training(server, recipe, corpora[1], tmp_path / "killed", "step:3")
    assert code == -signal.SIGKILL, server.output()
    assert not Run.open(tmp_path / "killed").finished
    resumed = resume(tmp_path / "killed", quiet=True)
    whole = pretrain(recipe, corpora[0], tmp_path / "whole", quiet=True)
    assert resumed.finished and equal(read_weights(resumed), read_weights(whole))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("moments", [["writing:4", "step:5", "evaluation:8"], ["half:2", "term:3", "step:7"]])
def test_many_kills_and_a_store_in_trouble(
    corpora: tuple[Path, str], tmp_path: Path, s3: S3Server, server: RankServer, moments: list[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("steps: 8", "steps: 40"), encoding="utf-8")
    whole = pretrain(recipe, corpora[0], tmp_path / "whole", quiet=True)
    troubles: dict[int, Trouble] = {3: "error", 7: "cut", 12: "garbled"}
    s3.trouble = lambda method, path, number: troubles.get(number % 20)
    for number, moment in enumerate(moments):
        words = "resume" if number else "start"
        code = kill_in_training(server, recipe, corpora[1], tmp_path / "killed", moment, words)
        assert code == (3 if moment.startswith("term") else -signal.SIGKILL)
        shutil.rmtree(tmp_path / "cache" / "corpora")  # what was fetched may be lost, too
    resumed = resume(tmp_path / "killed", quiet=True)
    assert resumed.finished and equal(read_weights(resumed), read_weights(whole))
