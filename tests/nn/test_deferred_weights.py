"""A model that is built on the meta device and filled later has the bits of one that is built at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from etude.nn import generator_jump
from etude.nn.deferred_weights import record_weights
from etude.nn.generator_jump import CHUNK
from etude.nn.initialization import draw_key, fill_normal, fill_uniform, init_weights
from etude.pretraining.setup import resolve_recipe
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from tests.train.test_sharding import write_recipe


def join(learner: tuple[nn.Module, nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"model": learner[0], "objective": learner[1]})


@pytest.mark.parametrize("name", ["bert", "gpt2", "albert", "electra", "towers"])
def test_the_same_bits(tmp_path: Path, prepared, name: str) -> None:
    corpus = Corpus.open(prepared("wordpiece:600"))
    recipe = resolve_recipe(Recipe.load(write_recipe(tmp_path, name)), corpus, ())
    whole = join(build_learner(recipe, corpus.tokenizer)).state_dict()
    with record_weights() as recording:
        later = join(build_learner(recipe, corpus.tokenizer))
    assert all(parameter.is_meta for parameter in later.parameters())
    deferred = recording.collect(later)
    assert deferred is not None
    deferred.fill(later.to_empty(device="cpu"))
    filled = later.state_dict()
    assert filled.keys() == whole.keys() and all(torch.equal(filled[key], whole[key]) for key in whole)


@pytest.mark.parametrize("fewest", [1000, generator_jump.FEWEST])
@pytest.mark.parametrize("size", [1, 15, 16, 17, CHUNK, 2 * CHUNK + 5, 3 * CHUNK - 7])
def test_as_many_values_are_passed_over(size: int, fewest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_jump, "FEWEST", fewest)
    keys = []
    for is_deferred in (False, True):
        torch.manual_seed(3)
        if is_deferred:
            with record_weights():
                nn.Linear(size, 1), nn.Embedding(1, size)
                keys.append(draw_key())
        else:
            nn.Linear(size, 1), nn.Embedding(1, size)
            keys.append(draw_key())
    assert keys[0] == keys[1]


class Layer(nn.Module):
    def __init__(self, change: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        if change != "unfilled":
            init_weights(self, key=1)
        if change == "row":
            fill_normal(self.linear.weight[0], 2, 1.0, truncated=False)
        elif change == "zeroed":
            nn.init.zeros_(self.linear.bias)
        elif change == "scaled":
            with torch.no_grad():
                self.linear.weight[1:].mul_(2.0)
        elif change == "buffer":
            self.register_buffer("table", torch.arange(3))
        elif change == "attribute":
            self.table = torch.arange(3)
        elif change == "shared":
            self.other = nn.Linear(4, 3)
            self.other.weight, self.other.bias = self.linear.weight, self.linear.bias
        elif change == "again":
            fill_uniform(self.linear.weight, 2, 0.5)


@pytest.mark.parametrize("change", ["unfilled", "row", "zeroed", "scaled", "buffer", "attribute", "shared"])
def test_what_no_record_repeats_is_built_at_once(change: str) -> None:
    with record_weights() as recording:
        layer = Layer(change)
    assert recording.collect(layer) is None


def test_the_last_fill_counts() -> None:
    whole = Layer("again")
    with record_weights() as recording:
        layer = Layer("again")
    deferred = recording.collect(layer)
    assert deferred is not None
    deferred.fill(layer.to_empty(device="cpu"))
    assert torch.equal(layer.linear.weight, whole.linear.weight) and not layer.linear.bias.any()
