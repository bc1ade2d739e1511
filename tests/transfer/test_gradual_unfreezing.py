"""Which layers learn, and when; what starts anew; whose the mix is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from etude.errors import UserError
from etude.hub.run_weights import load_learner
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.runs.run import Run
from etude.train.loop import Loop
from etude.transfer import finetune as transfer
from etude.transfer.finetune import finetune
from tests.transfer.test_finetune import QUICK, stop_at

Bases = Callable[[str], Path]
Files = tuple[Path, Path]


def moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """Parts of a model that changed: "embedding", "attention.0" ..."""
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    return {".".join(name.split(".")[: 2 if name.split(".")[1].isdecimal() else 1]) for name in changed}


@pytest.mark.parametrize("kind", ["bert", pytest.param("recurrent", marks=pytest.mark.slow)])
def test_layers_thaw_from_above(
    base: Bases, reviews: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After each epoch of the three, one layer more has moved; a stop in between changes nothing."""
    seen: list[set[str]] = []
    before = {name: item.clone() for name, item in open_pretrained(base(kind)).model.state_dict().items()}
    advance = Loop.advance

    def watched(self: Loop, step: Any) -> None:
        advance(self, step)
        if self.state.step % 8 == 0:
            seen.append(moved(before, self.model.state_dict()))

    changes = QUICK | {"transfer.gradual": 1, "train.epochs": 4, "train.weight_decay": 0.1, "train.lr": 3e-3}
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "advance", watched)
        whole = finetune(base(kind), "classify", reviews[0], tmp_path / "whole", overrides=changes, quiet=True)
    layers = {
        "bert": [{"pooler"}, {"attention.1", "feedforward.1"}, {"attention.0", "feedforward.0"}, {"embedding"}],
        "recurrent": [set(), {"forwards.1", "backwards.1"}, {"forwards.0", "backwards.0"}, {"embedding"}],
    }[kind]
    assert seen[:3] == [set.union(*layers[: number + 1]) for number in range(3)]
    assert moved(before, TaskModel.open(whole.folder).model.state_dict()) == set.union(*layers)

    with monkeypatch.context() as patch:
        stop_at(patch, 13)
        run = finetune(base(kind), "classify", reviews[0], tmp_path / "halves", overrides=changes, quiet=True)
        assert not run.finished
    transfer.resume(run.folder, quiet=True)
    item, other = (load_file(r.folder / "model.safetensors") for r in (run, whole))
    assert all(torch.equal(item[name], other[name]) for name in item)


def test_fresh_layers(base: Bases, reviews: Files, tmp_path: Path) -> None:
    """At a rate of nearly nothing only what was drawn anew differs, and how it is drawn follows from the seed."""
    changes = QUICK | {"transfer.fresh": 1, "train.lr": 1e-12, "train.epochs": 1, "train.weight_decay": 0.0}
    before = open_pretrained(base("bert")).model.state_dict()
    runs = [
        finetune(base("bert"), "classify", reviews[0], tmp_path / str(seed), overrides=changes | {"train.seed": seed})
        for seed in (0, 1)
    ]
    first, second = (TaskModel.open(run.folder).model.state_dict() for run in runs)
    close = {name for name in before if torch.allclose(before[name], first[name], atol=1e-6)}
    assert moved({n: before[n] for n in before if n not in close}, first) == {"attention.1", "feedforward.1", "pooler"}
    assert not torch.allclose(first["attention.1.qkv.weight"], second["attention.1.qkv.weight"], atol=1e-3)


@pytest.mark.parametrize("frozen", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_rate_of_the_head_is_that_of_the_mix(base: Bases, reviews: Files, tmp_path: Path, frozen: bool) -> None:
    """With a rate of nearly nothing for the model and a large one for the head, the mix moves and the model stays."""
    changes = QUICK | {
        "transfer.frozen": frozen, "transfer.layers": "all", "transfer.combine": "mix", "transfer.mix_norm": "token",
        "train.lr": 1e-12, "train.head_lr": 0.05, "train.epochs": 6, "train.weight_decay": 0.0,
    }  # fmt: skip
    run = finetune(base("bert"), "classify", reviews[0], tmp_path / "x", dev=reviews[1], overrides=changes, quiet=True)
    tuned, before = TaskModel.open(run.folder), load_learner(Run.open(base("bert")))[0].state_dict()
    shares = tuned.model.mix.mixing_weights
    assert shares.shape == (3,) and shares.sum().item() == pytest.approx(1.0) and shares.std() > 0.01
    assert tuned.model.mix is tuned.task.mix and tuned.model.mix.norm == "token"
    after = tuned.model.wrapped.state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    assert {name for name in load_file(run.folder / "model.safetensors") if "mix" in name} == {
        "objective.mix.weights",
        "objective.mix.gamma",
    }


def test_what_does_not_go_together(base: Bases, reviews: Files, tmp_path: Path) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("bert", {"transfer.frozen": True, "transfer.gradual": 1}, "transfer.gradual says which layers learn"),
        ("bert", {"transfer.frozen": True, "transfer.fresh": 1}, "transfer.fresh says which layers learn"),
        ("bert", {"transfer.fresh": 3}, "transfer.fresh=3, and the model has 2 layers"),
        ("static", {"transfer.gradual": 1}, "transfer.gradual counts layers, and this model has none"),
        ("static", {"transfer.freeze": 0}, "transfer.freeze counts layers, and this model has none"),
    ]
    for kind, changes, message in cases:
        with pytest.raises(UserError, match=message):
            finetune(base(kind), "classify", reviews[0], tmp_path / "x", overrides=QUICK | changes, quiet=True)
    assert not (tmp_path / "x").exists()


# --- what it costs ----------------------------------------------------------------------------------


def test_the_run_counts_what_it_computed(base: Bases, reviews: Files, tmp_path: Path) -> None:
    """A pass over the same examples costs more with every layer that has thawed, until all have."""
    changes = QUICK | {"train.epochs": 4, "train.batch_examples": 120, "train.log_every": 1}
    costs = {}
    for name, more in {"whole": {}, "gradual": {"transfer.gradual": 1}, "frozen": {"transfer.frozen": True}}.items():
        folder = tmp_path / name
        run = finetune(base("bert"), "classify", reviews[0], folder, overrides=changes | more, quiet=True)
        costs[name] = np.diff([0, *(line["flops"] for line in run.metrics("train"))])
    whole, gradual = costs["whole"], costs["gradual"]
    assert whole.min() == whole.max() and len(whole) == 4  # one step is one pass over all
    layer = (whole[0] - gradual[0]) / 4  # of a forward pass: two layers without their two backward passes
    assert gradual == pytest.approx(whole - layer * np.array([4, 2, 0, 0]))
    assert 0 < costs["frozen"].max() < whole[0] / 100  # the head alone: the model was read once
