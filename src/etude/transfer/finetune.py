"""`etude finetune`: a run and a task become a run that does the task, through the same loop as pre-training.

The best weights are those with the best official score on dev; without a dev file, the last. A run that was
stopped goes on where it was (`resume`), bit for bit. Several rates or seeds are so many runs (transfer/search.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.chance import Chance
from etude.errors import UserError
from etude.hub import adopt, write_tensors
from etude.models.depth import learner_depths
from etude.objectives.base import Objective, Rows
from etude.pretrain.pretrain import make_deterministic
from etude.recipes.datasets import resolve
from etude.recipes.document import Overrides
from etude.recipes.schema import Recipe
from etude.runs import task_plan as plans
from etude.runs.run import Run, refuse_existing
from etude.runs.task_plan import Plan, Source
from etude.tasks.base import Task
from etude.tasks.distilled_task import Taught
from etude.tasks.example_filter import admitted, said_once, tell_bad
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint, memory, peak, schedule
from etude.train.parallel import Ranks, connect
from etude.train.progress import Progress
from etude.train.run_state import SelectionMetric, TrainResult
from etude.transfer import task_teacher as teaching
from etude.transfer import vector_init as starting
from etude.transfer.gradual_unfreezing import ThawingLoop
from etude.transfer.model_card import card


@dataclass(frozen=True)
class Base:
    """What a transfer starts from."""

    folder: str
    recipe: Recipe
    tokenizer: Tokenizer
    model: nn.Module

    @classmethod
    def open(cls, place: str | Path) -> Base:
        """A run of ours, or a folder in the published form."""
        folder = Path(place)
        if not (folder / "recipe.yaml").is_file() and (folder / "config.json").is_file():
            adopted = adopt(folder)
            model = adopted.recipe.build_model()
            own = {
                name.removeprefix("model."): tensor
                for name, tensor in adopted.tensors.items()
                if name.startswith("model.")
            }
            checkpoint.load_strictly(model, own, str(folder))
            return cls(str(folder.resolve()), adopted.recipe, adopted.tokenizer, model)
        run = Run.open(folder)
        model, _ = run.build()
        return cls(str(run.folder.resolve()), run.recipe, run.tokenizer, model.base)


def finetune(
    base: str | Path,
    task: str,
    train: str | Path,
    out: str | Path,
    *,
    dev: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    overrides: Overrides = (),
    skip_bad: bool = False,
    quiet: bool = False,
) -> Run:
    """Trains a task, or a data set by its name, on the examples of `train`; `overrides` as {"task.dropout": 0.2}.

    With {"distill.teacher": run}, it learns the task from a teacher (tasks/distilled_task.py).
    """
    refuse_existing(Path(out))
    task, overrides = resolve(task, overrides)
    start = Base.open(base)
    with said_once():
        plan = make_plan(start, task, train, dev, columns, overrides, skip_bad)
        return _start(Path(out), plan, start, quiet)


def _start(out: Path, plan: Plan, start: Base, quiet: bool) -> Run:
    device = device_of(plan)
    with connect(device.type == "cuda") as ranks:
        if ranks.is_first:
            create(out, plan, start.recipe, start.tokenizer)
        ranks.barrier()
        return _train(Run(out), plan, start.model, device, ranks, quiet)


def resume(folder: str | Path, quiet: bool = False) -> Run:
    """Goes on from the last complete checkpoint, or from the beginning where there is none."""
    run = Run.open(folder)
    plan = Plan.read(run.folder)
    if run.finished:
        return run
    model = run.recipe.build_model() if run.steps else Base.open(plan.base).model
    device = device_of(plan)
    with said_once(), connect(device.type == "cuda") as ranks:
        return _train(run, plan, model, device, ranks, quiet)


def make_plan(
    start: Base,
    task: str,
    train: str | Path,
    dev: str | Path | None,
    columns: Mapping[str, str] | None,
    overrides: Overrides,
    skip_bad: bool,
) -> Plan:
    """Everything settled: the settings, the labels, the number of steps."""
    module = plans.task_module(task)
    settings, way, training = plans.settle(task, overrides, start.model)
    named = dict(columns or {})
    unknown = [role for role in named if role not in module.COLUMNS]
    if unknown:
        raise UserError(
            f"The task {task} has no column of the role '{unknown[0]}': it reads {', '.join(module.COLUMNS)}."
        )
    sources = Source.of(train), Source.of(dev) if dev is not None else None
    examples = module.read(train, named, skip_bad)
    facts = module.learn(examples, settings)
    ways = plans.ways_of(overrides)
    if ways is not None:
        teacher, fingerprint = teaching.found(ways, task, start.tokenizer)
        facts = teaching.with_labels(facts, ways, teacher)
    plan = Plan(
        kind=task,
        settings=settings,
        transfer=way,
        train=training,
        facts=starting.with_words(facts, settings),
        columns=named,
        base=start.folder,
        examples=sources[0],
        dev=sources[1],
        skip_bad=skip_bad,
    )
    with torch.random.fork_rng(devices=[]):
        shape = start.recipe.build_model()  # a copy: freezing and wrapping leave the one that is trained alone
        model, built = plan.build(shape, start.tokenizer)
        learnt: Objective = built
        if ways is not None:
            plan, learnt = teaching.settled(plan, ways, fingerprint), Taught(built, ways, model, teacher)
    _, rows = admitted(built, examples, skip_bad, training.seed)
    if dev is not None:  # a bad file is told now, not after the first epoch
        admitted(built, module.read(dev, named, skip_bad), skip_bad, training.seed)
    epoch = _epoch(plan, rows)
    return plan.with_train(
        **_budget(steps=_steps(training, rows, model, learnt)),
        eval_every=training.eval_every or epoch,
        save_every=training.save_every or epoch,
    )


def _epoch(plan: Plan, rows: Rows) -> int:
    """The steps of one pass over the examples."""
    return schedule.total_steps(plan.with_train(**_budget(epochs=1)).train, None, epoch_rows=len(rows))


def _budget(**chosen: Any) -> dict[str, Any]:
    return dict.fromkeys(plans.BUDGETS) | chosen


def _steps(settings: Any, rows: Rows, model: Any, objective: Objective) -> int:
    if settings.minutes is not None:
        raise UserError(
            "A transfer has no budget in minutes: set train.epochs, train.steps, train.tokens or train.flops."
        )
    mean, cost = None, None
    if settings.tokens or settings.flops:
        sample = [rows[number] for number in range(min(len(rows), 256))]
        mean = max(1, round(float(np.mean([len(row.tokens) for row in sample]))))
        batch = objective.batch(sample, Chance(settings.seed, 0))
        cost = objective.flops(model, batch) / batch.size
    return schedule.total_steps(settings, mean, cost, epoch_rows=len(rows))


def device_of(plan: Plan) -> torch.device:
    name = plan.train.device or "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("This run wants a CUDA device and there is none here. Set train.device=cpu.")
    return torch.device(name)


def create(folder: Path, plan: Plan, recipe: Recipe, tokenizer: Tokenizer) -> None:
    """The folder with everything a resume needs, there at once or not at all."""
    refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    writing = folder.with_name(f".{folder.name}.creating-{os.getpid()}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    checkpoint.write_text(writing / "recipe.yaml", recipe.dump())
    checkpoint.write_text(writing / plans.FILE, plan.dump())
    tokenizer.save(writing)
    checkpoint.flush(writing)
    if folder.is_dir():  # empty: checked above
        folder.rmdir()
    os.rename(writing, folder)
    checkpoint.flush(folder.parent)


# --- training ---------------------------------------------------------------------------------------


def _train(run: Run, plan: Plan, model: nn.Module, device: torch.device, ranks: Ranks, quiet: bool) -> Run:
    settings, module = plan.train, plan.module
    make_deterministic(settings.deterministic)
    assert settings.steps is not None  # make_plan stored it
    model, task = plan.build(model, run.tokenizer)
    objective = teaching.objective_of(plan, task, model, run.tokenizer)
    answers = plan.distill is None or plan.distill.answers
    if not run.steps:
        starting.begin(task)
    examples = module.read(plan.examples.check(), plan.columns, plan.skip_bad)
    examples, rows = admitted(task, examples, plan.skip_bad, settings.seed)
    tell_bad(examples)
    dev, valid_rows = None, None
    if plan.dev:
        dev = module.read(plan.dev.check(), plan.columns, plan.skip_bad)
        dev, valid_rows = admitted(task, dev, plan.skip_bad, settings.seed)
        tell_bad(dev)
    quiet = quiet or not ranks.is_first
    precision = peak.resolve_precision(settings.precision, device)
    best = None if quiet else peak.measure_peak(device, precision) * ranks.size
    with Progress(settings.steps, quiet=quiet, peak=best, memory=lambda: memory.bytes_in_use(device)) as progress:
        metric = SelectionMetric(task.score, lambda: _values(task, model, dev))
        loop = ThawingLoop(
            run.folder,
            model,
            objective,
            rows,
            settings,
            total=settings.steps,
            valid_rows=valid_rows,
            device=device,
            ranks=ranks,
            progress=progress,
            depth_of=learner_depths(model),
            selection_metric=metric if dev is not None and answers else None,
        )
        if plan.transfer.gradual:
            loop.thaw(max(1, round(plan.transfer.gradual * _epoch(plan, rows))))
        outcome = loop.run()
    if outcome.finished:
        _take_best(run, loop.learner, outcome)
        if ranks.is_first:
            finish(run, plan, model, task, dev if answers else None, outcome)
    ranks.barrier()
    return run


def _values(task: Task, model: nn.Module, dev: Any) -> dict[str, float]:
    return {name: score.value for name, score in task.evaluate(model, dev, intervals=False).items()}


def _take_best(run: Run, learner: nn.Module, outcome: TrainResult) -> None:
    best = outcome.state.best_step
    if best is not None and best != outcome.state.step:
        groups, _ = checkpoint.load(run.folder / "checkpoints", best)
        checkpoint.load_strictly(learner, groups["weights"], f"checkpoint {best} of {run.folder}")


def finish(run: Run, plan: Plan, model: nn.Module, task: Task, dev: Any, outcome: TrainResult) -> None:
    """Tunes what is tuned on dev, scores it, and writes plan, card and weights; the weights last."""
    scores = {}
    if dev is not None:
        task.settle(model, dev)
        scores = {name: score.json() for name, score in task.evaluate(model, dev).items()}
    plan = replace(plan, facts=task.facts(), score=task.score, scores=scores)
    checkpoint.write_text(run.folder / plans.FILE, plan.dump())
    checkpoint.write_text(run.folder / "README.md", card(run, plan, outcome))
    recipe = run.recipe
    config = {"model_type": f"etude-{recipe.model_kind}-{plan.kind}", "etude": recipe.model.model_dump(mode="json")}
    checkpoint.write_text(run.folder / "config.json", json.dumps(config, indent=1))
    weights = nn.ModuleDict({"model": model.cpu(), "objective": task.cpu()}).state_dict()
    write_tensors(weights, run.folder / "model.safetensors")
    shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)  # the best are the final weights: nothing to resume
