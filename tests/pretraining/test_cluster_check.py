"""A plan for a cluster agrees with the real sharded step on fake ranks, and compares meshes as it should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import etude
from etude.errors import UserError
from etude.pretraining.cluster_check import ClusterCheck, check_cluster
from etude.train.cluster_plan import MACHINES, Mesh, Parts, Traffic, find_machine, list_meshes, plan_start, plan_traffic

GPT = {"model.window": None, "model.layers": 3, "model.width": 128, "model.heads": 4, "model.context": 256,
       "train.batch_tokens": 65_536, "train.micro_tokens": 256, "train.batch_ramp": None}  # fmt: skip


def plan(corpus: Path, changes: dict[str, object]) -> ClusterCheck:
    return check_cluster("gpt3-small", corpus, {**GPT, **changes}, nodes=16, gpus=4)


def test_the_plan_of_fsdp_agrees_with_64_fake_ranks(prepared) -> None:
    result = plan(prepared("wordpiece:600"), {"train.gather": "layer"})
    assert result.fake is not None and not result.best.gathers_model
    assert result.fake.agrees, result.fake
    assert result.best.is_fitting and result.days > 0
    traffic = result.fake.traffic
    assert traffic.reduced == pytest.approx(4 * result.parameters, rel=0.02)
    worse = replace(result.fake, planned_peak=2 * result.fake.peak)
    assert not worse.agrees


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("policy", ["none", "attention", "all"])
@pytest.mark.parametrize("gather", ["layer", "model"])
def test_every_policy_agrees(prepared, gather: str, policy: str, micro_batches: int) -> None:
    batch_tokens = 64 * 256 * micro_batches
    changes = {"train.recompute": policy, "train.batch_tokens": batch_tokens, "train.gather": gather}
    result = plan(prepared("wordpiece:600"), changes)
    assert result.best.recompute == policy or policy == "none"
    assert result.best.micro_batches == micro_batches
    assert result.fake is not None and result.fake.agrees, result.fake


def test_gradients_of_earlier_micro_batches_are_held(prepared) -> None:
    corpus = prepared("wordpiece:600")
    first = plan(corpus, {"train.batch_tokens": 64 * 256, "train.gather": "layer"}).fake
    later = plan(corpus, {"train.batch_tokens": 2 * 64 * 256, "train.gather": "layer"}).fake
    assert first is not None and later is not None
    assert first.agrees and later.agrees, (first, later)
    assert later.peak > first.peak and later.planned_peak > first.planned_peak
    assert later.traffic == first.traffic


def test_a_small_model_is_gathered_once_a_step(prepared) -> None:
    result = plan(prepared("wordpiece:600"), {"train.batch_tokens": 2 * 64 * 256})
    assert result.best.gathers_model and result.best.mesh == Mesh(16, 4)  # not between machines
    assert result.fake is not None and result.fake.agrees, result.fake
    assert result.fake.traffic.gathered == pytest.approx(4 * result.parameters, rel=0.02)  # of two micro-batches
    assert not any(other.gathers_model for other in result.plans if other.mesh.shards > 4)


def test_a_single_gpu_sends_nothing(prepared) -> None:
    """It has all weights: the plan counted what it gathers and reduces, and differed from the step."""
    for changes in ({}, {"train.gather": "layer"}):
        result = check_cluster("gpt2-toy", prepared("bytebpe:600"), {**GPT, **changes}, nodes=1, gpus=1)
        assert result.best.traffic == Traffic(0, 0, 0)
        assert result.fake is not None and result.fake.agrees, result.fake


@pytest.mark.parametrize("recipe", ["bert-toy", "albert-toy", "electra-toy", "decoder-modern-toy", "gpt2-toy"])
def test_sequences_of_many_lengths_and_masked_tokens_agree_with_fake_ranks(prepared, recipe: str) -> None:
    result = check_cluster(recipe, prepared("wordpiece:600"), {"model.layers": 2, "train.epochs": 2}, nodes=1, gpus=2)
    assert result.fake is not None and result.fake.agrees, result.fake
    assert max(result.fake.differences[1:]) < 0.02  # what is sent
    # two passes over the corpus, to the end of a step
    changes = {"model.layers": 2, "train.epochs": 1}
    once = check_cluster(recipe, prepared("wordpiece:600"), changes, nodes=1, gpus=2, fake=False)
    assert once.tokens < result.tokens <= 2 * once.tokens


@pytest.mark.parametrize("size", ["nodes", "gpus"])
def test_a_cluster_of_nothing_is_refused(prepared, size: str) -> None:
    with pytest.raises(UserError, match=f"{size}.*0"):
        etude.check("bert-toy", prepared("wordpiece:600"), **{size: 0})


def test_the_tracker_counts_storages_once_while_they_live() -> None:
    from etude.pretraining.fake_ranks import StepTracker

    weight = torch.zeros(1000)  # 4,000 bytes
    with StepTracker([weight]) as tracker:
        product = weight * 2
        view = product.view(10, 100)
        assert tracker.current == tracker.peak == 8_000
        del product
        assert tracker.current == 8_000  # the view holds it
        view.untyped_storage().resize_(0)  # as FSDP frees what it gathered
        assert tracker.current == 4_000
        view.untyped_storage().resize_(12_000)
        del view
        larger, total = weight.max(dim=0)  # two results: 4 and 8 bytes
        assert (tracker.current, tracker.peak) == (4_012, 16_000)
        del larger, total
    assert (tracker.current, tracker.peak) == (4_000, 16_000)
    storage = torch.zeros(10).untyped_storage()
    storage.resize_(0)
    assert tracker.current == 4_000  # it is over


def test_meshes_and_machines() -> None:
    assert list_meshes(4, 8) == [Mesh(1, 32), Mesh(2, 16), Mesh(4, 8)]
    assert list_meshes(3, 8) == [Mesh(1, 24), Mesh(3, 8)]
    assert find_machine("h200") is MACHINES["h200"]
    with pytest.raises(UserError, match="Did you mean 'h100'"):
        find_machine("h10")


def test_traffic_follows_from_sizes() -> None:
    parts = Parts([100, 100], 50)
    traffic = plan_traffic(parts, Mesh(2, 4), element_size=2, micro_batches=3)
    assert traffic.gathered == 3 * (2 * 2 * 200 + 4 * 50)
    assert traffic.reduced == 3 * 4 * 250 and traffic.copies == 250
    assert plan_traffic(parts, Mesh(1, 8), 2, 3).copies == 0
    whole = plan_traffic(replace(parts, gathers_model=True), Mesh(2, 4), element_size=2, micro_batches=3)
    assert whole == Traffic(gathered=4 * 250, reduced=4 * 250, copies=250)


def test_a_start_takes_as_long_as_a_share() -> None:
    sizes = [12288 * 4 * 12288] * 96 + [12288] * 96
    seconds = [plan_start(sizes, mesh) for mesh in (Mesh(1, 1), Mesh(1, 128), Mesh(8, 128), Mesh(1, 1024))]
    assert seconds[0] > 1000 and seconds[0] > 80 * seconds[1] and seconds[1] == seconds[2] > seconds[3]


def test_what_does_not_fit_is_said(prepared) -> None:
    changes = {"model.layers": 96, "model.width": 12288, "model.heads": 96, "train.batch_tokens": 65_536}
    result = check_cluster(
        "gpt3-small", prepared("wordpiece:600"), {**changes, "train.batch_ramp": None}, nodes=1, gpus=8, fake=False
    )
    assert not result.best.is_fitting
    assert "32 rows cannot be divided" not in str(result.problems)
    assert result.best.memory.total > 300e9
    assert 400 < result.start_seconds < 500  # 174 billion values in eight shards
