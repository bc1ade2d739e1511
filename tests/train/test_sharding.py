"""Shards, copies and one process train the same model: losses and final weights to 1e-6, with accumulation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from etude.errors import UserError
from etude.nn.recompute import Recomputable, recomputable
from etude.pretraining import pretrain as pretraining
from etude.pretraining.setup import resolve_recipe
from etude.recipes.learner import build_learner
from etude.text.corpus.corpus import Corpus
from etude.train import sharding
from etude.train.memory import Estimate
from etude.train.parallel import Ranks
from etude.train.settings import Settings
from etude.train.strategy import (
    GATHERED_SHARE,
    choose_strategy,
    gathered_bytes,
    gathers_model,
    refuse_sharding,
    shard_estimate,
)
from tests.train.forked_ranks import RankServer, use_exact_muon

ENCODER = "layers: 2, width: 32, heads: 2, context: 32, segments: 2, norm: post, embedding_norm: true"
MODELS = {
    "bert": f"model: {{kind: transformer, {ENCODER}, pooler: true}}\n"
    "objective: {kind: masked, sentence: next, row_tokens: 64}",
    "gpt2": "model: {kind: transformer, layers: 2, width: 32, heads: 2, context: 32, direction: causal}\n"
    "objective: {kind: causal, row_tokens: 64}",
    "albert": f"model: {{kind: transformer, {ENCODER}, pooler: true, share: all, embedding_width: 16}}\n"
    "objective: {kind: masked, sentence: order, row_tokens: 64}",
    "electra": f"model: {{kind: transformer, {ENCODER}}}\nobjective: {{kind: replaced, row_tokens: 64}}",
    "towers": "model: {kind: two_tower, layers: 2, width: 32, heads: 2, context: 32}\n"
    "objective: {kind: cloze, row_tokens: 64}",
    "bilm": "model: {kind: recurrent, layers: 2, width: 16, cells: 24, dropout: 0.0}\n"
    "objective: {kind: bilm, unroll: 16}",
}  # fmt: skip


def write_recipe(folder: Path, name: str, **train: object) -> Path:
    """Write a recipe of four steps of several micro-batches for each of four ranks.

    Adam divides by the size of a gradient: where the true one is 0 (the bias of a key) it would make steps of full size
    out of rounding, so its epsilon is large here.
    """
    batch = {"batch_tokens": 128, "micro_tokens": 16} if name == "bilm" else {"batch_tokens": 512, "micro_tokens": 64}
    settings = batch | {
        "steps": 4, "lr": 1e-3, "epsilon": 1e-4, "save_every": 2, "eval_every": 2, "eval_tokens": 256, "log_every": 1,
        "workers": 0, "device": "cpu", "precision": "float32", "seed": 5,
    } | train  # fmt: skip
    path = folder / "recipe.yaml"
    text = f"name: exact\ntokenizer: wordpiece:600\n{MODELS[name]}\ntrain: {json.dumps(settings)}\n"
    path.write_text(text, encoding="utf-8")
    return path


def read_losses(run: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def largest_difference(left: Path, right: Path) -> float:
    """Return the largest difference of final weights, and of logged losses in proportion: they are float32."""
    tensors, others = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    assert tensors.keys() == others.keys()
    weights = max(float((tensors[name] - others[name]).abs().max()) for name in tensors)
    losses = [abs(a - b) / max(1.0, abs(a)) for a, b in zip(read_losses(left), read_losses(right), strict=True)]
    return max(weights, *losses)


def train_and_compare(
    server: RankServer, folder: Path, corpus: Path, name: str, ranks: int, *, steps: int = 4, optimizer: str,
    **train: object,
) -> None:  # fmt: skip
    with use_exact_muon():
        recipe = write_recipe(folder, name, optimizer=optimizer, steps=steps)
        single = pretraining.pretrain(recipe, corpus, folder / "single", quiet=True)
    recipe = write_recipe(folder, name, optimizer=optimizer, steps=steps, **train)
    codes = server.run(ranks, "start", recipe, corpus, folder / "ranks", "never")
    assert codes == [0] * ranks, server.output()
    assert largest_difference(single.folder, folder / "ranks") < 1e-6


@pytest.mark.parametrize(("gather", "optimizer"), [("layer", "muon"), ("model", "adamw")])
def test_shards_with_recomputation_equal_one_process(
    server: RankServer, tmp_path: Path, prepared, gather: str, optimizer: str
) -> None:
    train_and_compare(
        server, tmp_path, prepared("wordpiece:600"), "gpt2", 2, steps=2, optimizer=optimizer, parallel="fsdp",
        recompute="all", micro_tokens=128, gather=gather,
    )  # fmt: skip


def test_lamb_takes_the_same_steps_in_shards(server: RankServer, tmp_path: Path, prepared) -> None:
    """Queries, keys and values have ratios of their own, also where a shard ends within one of them."""
    corpus = prepared("wordpiece:600")
    train_and_compare(server, tmp_path, corpus, "albert", 2, steps=2, optimizer="lamb", parallel="fsdp")


@pytest.mark.parametrize(
    ("name", "mode", "ranks"),
    [("bert", "fsdp", 2), ("gpt2", "fsdp", 2), ("albert", "fsdp", 2), ("electra", "fsdp", 2), ("bert", "hybrid", 4)],
)
def test_shards_begin_with_the_bits_of_a_whole_model(
    server: RankServer, tmp_path: Path, prepared, name: str, mode: str, ranks: int
) -> None:
    folder = prepared("wordpiece:600")
    options: dict[str, object] = {"shard_ranks": 2} if mode == "hybrid" else {}
    recipe = write_recipe(tmp_path, name, parallel=mode, gather="model" if name == "gpt2" else "layer", **options)
    path = tmp_path / "initial.safetensors"
    assert server.run(ranks, "initial", recipe, folder, path) == [0] * ranks, server.output()
    corpus = Corpus.open(folder)
    model, objective = build_learner(resolve_recipe(recipe, corpus, ()), corpus.tokenizer)
    whole = nn.ModuleDict({"model": model, "objective": objective}).state_dict()
    shards = load_file(tmp_path / "initial.safetensors")
    assert shards.keys() == whole.keys() and all(torch.equal(shards[key], whole[key]) for key in whole)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "hybrid"])
@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_in_every_mode(
    server: RankServer, tmp_path: Path, prepared, name: str, mode: str, optimizer: str
) -> None:
    corpus = prepared("wordpiece:600")
    options: dict[str, object] = {"parallel": mode} | ({"shard_ranks": 2} if mode == "hybrid" else {})
    for ranks, gather in ((2, "layer"), (4, "layer"), (4, "model")):
        folder = tmp_path / f"{ranks}-{gather}"
        folder.mkdir()
        if mode != "ddp" or gather == "layer":
            train_and_compare(server, folder, corpus, name, ranks, optimizer=optimizer, gather=gather, **options)


def read_weights(folder: Path, corpus: Path, recompute: str) -> dict[str, torch.Tensor]:
    text = write_recipe(folder, "bert", recompute=recompute).read_text(encoding="utf-8")
    (folder / "recipe.yaml").write_text(text.replace("pooler: true", "pooler: true, dropout: 0.1"), encoding="utf-8")
    run = pretraining.pretrain(folder / "recipe.yaml", corpus, folder / recompute, quiet=True)
    return load_file(run.folder / "model.safetensors")


def test_recomputation_changes_no_bit_even_with_dropout(tmp_path: Path, prepared) -> None:
    corpus = prepared("wordpiece:600")
    kept = read_weights(tmp_path, corpus, "none")
    for policy in ("attention", "all"):
        recomputed = read_weights(tmp_path, corpus, policy)
        assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


class CountingLayer(Recomputable):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    @recomputable
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.linear(x))


@pytest.mark.parametrize(("recompute", "calls"), [(False, 1), (True, 2)])
def test_a_layer_runs_again_in_the_backward_pass(recompute: bool, calls: int) -> None:
    layer = CountingLayer()
    layer.recompute = recompute
    layer(torch.ones(2, 4, requires_grad=True)).sum().backward()
    assert layer.calls == calls
    with torch.no_grad():
        layer(torch.ones(2, 4))
    assert layer.calls == calls + 1


def test_recomputation_needs_layers(tmp_path: Path, prepared) -> None:
    recipe = write_recipe(tmp_path, "bilm", recompute="attention")
    with pytest.raises(UserError, match="no attention to compute again"):
        pretraining.pretrain(recipe, prepared("wordpiece:600"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_shared_layers_are_left_to_the_root() -> None:
    shared, own = CountingLayer(), [CountingLayer(), CountingLayer()]
    assert sharding.separate_layers([[shared, own[0]], [shared, own[1]]]) == [[own[0]], [own[1]]]
    assert sharding.separate_layers([[shared], [shared]]) == []


def test_auto_takes_the_first_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Estimate(parameters=400, gradients=400, optimizer=800, casts=0, activations=100, output=0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    settings, ranks = Settings(steps=1), Ranks(0, 8, 0)
    chosen = [choose_strategy(settings, ranks, needs, memory) for memory in (3000, 700, 350, None)]
    assert [strategy.mode for strategy in chosen] == ["ddp", "hybrid", "fsdp", "ddp"]
    assert all(strategy.reason for strategy in chosen)
    assert shard_estimate(needs, 4) == 500
    assert choose_strategy(settings, Ranks(), needs, 1).mode == "single"
    assert choose_strategy(Settings(steps=1, parallel="fsdp"), ranks, needs, 10**9).mode == "fsdp"


def test_a_small_model_is_gathered_as_a_whole_within_a_machine() -> None:
    needs = Estimate(parameters=400, gradients=400, optimizer=800, casts=200, activations=None, output=0)
    assert gathered_bytes(needs) == 1400  # weights, gradients and their copy, casts
    small, large = 1400 / GATHERED_SHARE - 1, 1400 / GATHERED_SHARE
    assert gathers_model("auto", needs, large, True)
    assert not gathers_model("auto", needs, small, True)  # it would take more than its share
    assert not gathers_model("auto", needs, large, False) and not gathers_model("auto", needs, None, True)
    active = replace(needs, activations=int(0.9 * large) - 3100)  # hardly anything is left
    assert not gathers_model("auto", active, large, True)
    assert gathers_model("model", needs, None, False) and not gathers_model("layer", needs, large, True)


def test_fine_tuning_refuses_shards() -> None:
    refuse_sharding(Settings(steps=1, parallel="ddp"), "etude finetune")
    with pytest.raises(UserError, match="for pre-training"):
        refuse_sharding(Settings(steps=1, parallel="fsdp"), "etude finetune")


def test_a_mesh_must_divide_the_processes() -> None:
    with pytest.raises(UserError, match="6 processes cannot be divided into groups of 4"):
        sharding.build_mesh(Ranks(0, 6, 0), torch.device("cpu"), True, 4)
    with pytest.raises(ValueError, match=r"train\.parallel=hybrid"):
        Settings(steps=1, shard_ranks=4)
