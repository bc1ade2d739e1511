"""`etude check RECIPE CORPUS --nodes N --gpus G`: whether a run fits a cluster, what it sends, how long it takes.

The plan is arithmetic on shapes (train/cluster_plan.py). Its rules are checked each time by the real sharded step of
one rank among as many, with fake tensors (pretraining/fake_ranks.py): in float32 and on a CPU, since no GPU is asked
for, against the plan of just that step.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model
from etude.nn.recompute import RecomputePolicy
from etude.objectives.base import Batch, PretrainingObjective
from etude.pretraining.loop import build_rows
from etude.pretraining.setup import load_recipe, resolve_recipe
from etude.recipes.document import Overrides
from etude.recipes.learner import build_learner
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.runs.source import Source, open_source
from etude.train import memory, recomputation, schedule
from etude.train.cluster_plan import (
    ClusterPlan,
    Machine,
    Parts,
    Traffic,
    count_parts,
    find_machine,
    list_meshes,
    plan_memory,
    plan_mesh,
    plan_start,
    plan_traffic,
)
from etude.train.cluster_time import TokenWork
from etude.train.settings import Settings
from etude.train.strategy import gathers_model

AGREEMENT = 0.1  # of the plan and the fake step


@dataclass(frozen=True)
class FakeCheck:
    """The plan of a step in float32 on a CPU beside the same step on fake ranks."""

    planned_peak: int
    peak: int
    planned_traffic: Traffic
    traffic: Traffic
    seconds: float

    @property
    def differences(self) -> list[float]:
        """Return the relative difference of each number: the peak, what is gathered, reduced and added up."""
        planned, traffic = self.planned_traffic, self.traffic
        pairs = [
            (self.planned_peak, self.peak), (planned.gathered, traffic.gathered), (planned.reduced, traffic.reduced),
            (planned.copies, traffic.copies),
        ]  # fmt: skip
        return [abs(planned - measured) / max(1, measured) for planned, measured in pairs]

    @property
    def agrees(self) -> bool:
        return max(self.differences) <= AGREEMENT


@dataclass(frozen=True)
class ClusterCheck:
    """Plans of a recipe on a cluster: the one that its settings ask for, or the best, first."""

    recipe: Recipe
    machine: Machine
    nodes: int
    gpus: int
    parameters: int
    tokens: float  # of the whole run
    plans: list[ClusterPlan]  # the fastest that fits first
    fake: FakeCheck | None
    problems: list[str]
    start_seconds: float  # in which a process draws its share of the weights

    @property
    def best(self) -> ClusterPlan:
        return self.plans[0]

    @property
    def days(self) -> float:
        return self.tokens / self.best.tokens_per_second / 86_400


def check_cluster(
    recipe: str | Path | Recipe,
    corpus: str | Path | Source,
    overrides: Overrides = (),
    *,
    nodes: int = 1,
    gpus: int = 8,
    gpu: str = "h100",
    fake: bool = True,
) -> ClusterCheck:
    """Plan a recipe on `nodes` machines of `gpus` GPUs, and check the plan by a step on fake ranks."""
    machine = find_machine(gpu)
    loaded = load_recipe(recipe, overrides)
    source = open_source(corpus, loaded)
    resolved = resolve_recipe(loaded, source, ())
    settings, ranks = resolved.train, nodes * gpus
    with shapes_only():
        model, objective = build_learner(resolved, source.tokenizer)
    rows = build_rows(resolved, source, objective)
    if rows.row_tokens is None or not model.layer_modules():
        raise UserError(f"{resolved.name} has no layers to shard: a plan for a cluster is for Transformers and LSTMs.")
    if model.activation_bytes(1, 2, "cuda") is None:
        raise UserError(f"The memory of {resolved.model_kind}'s activations is not known, so no plan can be made.")
    batch = objective.batch([rows[0]], Chance(settings.seed, 0))
    flops_per_token = objective.flops(model, batch) / batch.size
    work = _count_work(model, batch, flops_per_token)
    parts = _count(model, objective)
    share = settings.batch_tokens // ranks
    micro_tokens = max(rows.row_tokens, min(settings.micro_tokens or share, share))
    policies: tuple[RecomputePolicy, ...] = ("none", "attention", "all")
    plans = []
    layer_activations = (model.activation_bytes(micro_tokens, 2, "cuda") or 0) // max(1, model.layers)
    for policy in policies if settings.recompute == "none" else (settings.recompute,):
        chosen = settings.model_copy(update={"recompute": policy})
        needs = memory.estimate_for(
            chosen, model, objective, batch, micro_tokens=micro_tokens, precision="bf16", device="cuda"
        )
        for mesh in list_meshes(nodes, gpus):
            is_whole = gathers_model(settings.gather, needs, machine.memory, mesh.shards <= gpus)
            plans.append(
                plan_mesh(
                    needs, replace(parts, gathers_model=is_whole), mesh, machine, gpus=gpus,
                    batch_tokens=settings.batch_tokens, micro_tokens=micro_tokens, work=work, recompute=policy,
                    layer_activations=layer_activations,
                )
            )  # fmt: skip
    plans.sort(key=lambda plan: (not plan.is_fitting, -plan.tokens_per_second * plan.is_fitting, plan.memory.total))
    fake_step = _check_by_fake_step(settings, model, objective, batch, parts, plans[0]) if fake else None
    tokens = total_tokens(settings, rows.row_tokens, len(rows), flops_per_token, plans[0].tokens_per_second)
    uneven = schedule.find_uneven_batch(settings, rows.row_tokens, ranks)
    problems = [f"Such a run is refused: {uneven}"] if uneven else []
    sizes = [parameter.numel() for part in (model, objective) for parameter in part.parameters()]
    start = plan_start(sizes, plans[0].mesh)
    return ClusterCheck(resolved, machine, nodes, gpus, parts.total, tokens, plans, fake_step, problems, start)


def total_tokens(
    settings: Settings, row_tokens: int, epoch_rows: int, flops_per_token: float, tokens_per_second: float
) -> float:
    """Return the tokens of the whole run; `epoch_rows` is a pass over the corpus."""
    steps = schedule.total_steps(
        settings, row_tokens, flops_per_token, tokens_per_second=tokens_per_second, epoch_rows=epoch_rows
    )
    return float(schedule.rows_before(settings, row_tokens, steps) * row_tokens)


def _count_work(model: Model, batch: Batch, flops_per_token: float) -> TokenWork:
    """Return what a token takes; attention is the part that grows with the square of lengths.

    FLOPs count all pairs of tokens, and a causal model computes half of them. The output layer's are more than the
    model's own: its logits cross the memory as activations do.
    """
    lengths, size = batch.lengths, batch.size
    pairs = 2 * max(0, model.flops(lengths) - 2 * model.flops(lengths // 2)) / size
    logits = max(0.0, flops_per_token / 3 - model.flops(lengths) / size) / (2 * model.state_width)
    activations = (model.activation_bytes(size, 2, "cuda") or 0) / size
    return TokenWork(
        products=flops_per_token / 3 - pairs,
        attention=pairs / 2 if model.causal else pairs,
        activations=activations + 2 * logits,
    )


def _count(model: Model, objective: PretrainingObjective) -> Parts:
    from etude.train.sharding import separate_layers  # torch's machinery takes a second to load

    layers = separate_layers(recomputation.list_layers([model, *objective.trunks()]))
    sizes = [[sum(p.numel() for p in module.parameters()) for module in layer] for layer in layers]
    return count_parts(model, objective, sizes)


def _check_by_fake_step(
    settings: Settings,
    model: Model,
    objective: PretrainingObjective,
    batch: Batch,
    parts: Parts,
    plan: ClusterPlan,
) -> FakeCheck:
    """Run one row as rank 0 of the planned mesh, after others of its step where it has several, and plan just that."""
    from etude.pretraining.fake_ranks import take_fake_step

    started = time.perf_counter()
    settings = settings.model_copy(update={"recompute": plan.recompute, "precision": "float32"})
    parts = replace(parts, gathers_model=plan.gathers_model)
    needs = memory.estimate_for(
        settings, model, objective, batch, micro_tokens=batch.size, precision="float32", device="cpu"
    )
    length = int(batch.lengths.max())
    layer_activations = (model.activation_bytes(batch.size, 4, "cpu", length=length) or 0) // max(1, model.layers)
    planned = plan_memory(needs, parts, plan.mesh, 4, layer_activations, plan.micro_batches, plan.recompute)
    step = take_fake_step(
        model, objective, batch, settings, plan.mesh, plan.gathers_model, is_accumulated=plan.micro_batches > 1
    )
    return FakeCheck(
        planned.total, step.peak, plan_traffic(parts, plan.mesh, 4, 1), step.traffic, time.perf_counter() - started
    )
