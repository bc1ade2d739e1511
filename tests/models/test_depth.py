"""Layer-wise decay on a Transformer, at the rates of ELECTRA's paper and of its code; and tied embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from etude.models import recurrent, transformer
from etude.models.depth import learner_depths, learning_share, training_flops
from etude.models.freezing import freeze, refresh
from etude.nn.packed import pack
from etude.train import optim
from etude.train import settings as train

LAYERS, DECAY = 3, 0.8


def learner(**changes: Any) -> nn.ModuleDict:
    wanted = {"layers": LAYERS, "width": 8, "heads": 2, "context": 8, "vocab": 20, "segments": 2, "pooler": True}
    model = transformer.build(transformer.Settings(**{**wanted, "embedding_width": 4, **changes}))
    return nn.ModuleDict({"model": model, "objective": nn.Linear(8, 2)})


@pytest.mark.parametrize(("above", "top"), [(1, 1), (2, 2)])  # the paper, the code
def test_rates_fall_layer_by_layer(above: int, top: int) -> None:
    built = learner()
    settings = train.Settings(steps=1, lr=1.0, layer_decay=DECAY)
    optimizer = optim.build(settings, built.named_parameters(), learner_depths(built["model"], above))
    names = {parameter: name for name, parameter in built.named_parameters()}
    rates = {names[one]: group["lr"] for group in optimizer.param_groups for one in group["params"]}
    assert set(rates) == set(names.values())
    for name, rate in rates.items():
        if name.startswith("objective"):
            power = 0
        elif "embedding" in name:
            power = LAYERS + top
        elif ".attention." in name or ".feedforward." in name:
            power = LAYERS - 1 - int(name.split(".")[2]) + top
        else:  # the final norm and the pooler
            power = top - 1
        assert rate == pytest.approx(DECAY**power), name


def test_shared_layers_lie_where_they_are_used_last() -> None:
    built = learner(share="attention")
    depth_of = learner_depths(built["model"])
    assert depth_of("model.attention.0.qkv.weight") == LAYERS
    assert depth_of("model.feedforward.0.up.weight") == 1
    every = learner_depths(learner(share="all")["model"])
    assert every("model.feedforward.0.up.weight") == every("model.attention.0.out.bias") == LAYERS
    assert depth_of("teacher.attention.0.qkv.weight") is None


@pytest.mark.parametrize("characters", [None, {"filters": [[1, 4], [2, 4]], "highways": 1}])
def test_the_words_of_both_directions_lie_below_all_layers(characters: dict[str, Any] | None) -> None:
    """TagLM's directions share nothing: frozen words stay in both, and fresh layers leave both as they are."""
    sizes = {"layers": 2, "width": 8, "cells": 12, "vocab": 20, "shared": False, "characters": characters}
    model = recurrent.build(recurrent.Settings.model_validate(sizes))
    words = {name: parameter for name, parameter in model.named_parameters() if "embedding." in name}
    assert {name.split(".")[0] for name in words} == {"embedding", "backward_embedding"}
    assert {model.parameter_depth(name) for name in words} == {0}
    before = {name: parameter.detach().clone() for name, parameter in words.items()}
    refresh(model, 2)
    assert all(torch.equal(words[name], before[name]) for name in words)
    freeze(model, 0)
    assert not any(parameter.requires_grad for parameter in words.values())


def test_tied_embedding_parts_belong_to_the_other_model() -> None:
    """A model without tables of its own computes what it would with copies of the owner's."""
    torch.manual_seed(0)
    changes = {"embedding_norm": True, "norm": "post"}
    owner, whole = learner(**changes)["model"], learner(**changes, width=12)["model"]
    tied = {"tokens", "positions", "segments", "norm"}
    bare = transformer.Transformer(whole.settings, tied=tied)
    own = {name for name, _ in bare.named_parameters()}
    assert {name for name in own if name.startswith("embedding")} == {
        "embedding.project.weight",
        "embedding.project.bias",
    }
    nn.init.normal_(owner.embedding.norm.bias)
    tables = {name: one for name, one in owner.state_dict().items() if name.split(".")[1] in tied}
    whole.load_state_dict({**whole.state_dict(), **bare.state_dict(), **tables})
    packed = pack([[1, 2, 3], [4, 5]])
    packed.segments = torch.tensor([0, 0, 1, 0, 1])
    states = bare(packed, tied_to=owner.embedding)
    assert torch.equal(states.last, whole(packed).last)
    assert states.table is owner.embedding.tokens.weight
    states.last.sum().backward()
    assert all(owner.get_parameter(name).grad is not None for name in tables)


# --- what it costs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "expected"), [("none", [1, 1, 2 / 3, 1 / 3, 0]), ("all", [1, 1, 1, 1, 0])])
def test_no_backward_pass_below_the_lowest_layer_that_learns(share: Any, expected: list[float]) -> None:
    """None frozen, the embedding, and one, two and all three layers with it; layers that are one learn in the first."""
    lengths, found = np.array([7, 5]), []
    for layers in (None, 0, 1, 2, 3):
        model = transformer.Transformer(
            transformer.Settings(layers=3, width=16, heads=2, vocab=30, context=8, pooler=True, share=share)
        )
        if layers is not None:
            freeze(model, layers)
        found.append(learning_share(model))
        forward = model.flops(lengths)
        assert training_flops(model, lengths) == forward + round(2 * found[-1] * forward)
    assert found == pytest.approx(expected)
