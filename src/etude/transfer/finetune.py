"""`etude finetune`: a run and a task become a run that does the task, through the same loop as pre-training.

Files are read, and the model and the task built, once: `Transfer` holds them from the first check to the last step.
The best weights are those with the best official score on dev; without a dev file, the last. A run that was
stopped goes on where it was (`resume`), bit for bit. Several rates or seeds are so many runs (transfer/search.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.inference.opening import Pretrained, open_pretrained
from etude.models.base import Model
from etude.models.depth import learner_depths
from etude.models.transfer import check_settings
from etude.models.transfer_settings import Markers
from etude.objectives.base import Objective, Rows
from etude.recipes.datasets import resolve_dataset
from etude.recipes.document import Overrides
from etude.runs import task_plan as plans
from etude.runs.run import TASK, Run
from etude.runs.staging import refuse_existing
from etude.runs.task_plan import ExampleFile, Plan
from etude.runs.training import discard_untrained, lock_run, train_loop
from etude.stages import report_stage
from etude.tasks.base import Task
from etude.tasks.data.decoding import decoding
from etude.tasks.data.examples import Examples
from etude.tasks.data.single_labels import warn_of_single_labels
from etude.tasks.distilled_task import DistilledTask
from etude.tasks.example_filter import admit_examples, warn_bad, warn_once
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint, schedule
from etude.train.device import make_deterministic, resolve_device
from etude.train.loop import Loop
from etude.train.pace import Pace
from etude.train.parallel import Ranks, connect
from etude.train.progress import Progress
from etude.train.run_state import SelectionMetric, TrainResult
from etude.train.settings import BUDGETS
from etude.train.settings import Settings as TrainSettings
from etude.transfer import task_teacher as teachers
from etude.transfer import vector_init
from etude.transfer.entity_linker import attach_linker
from etude.transfer.gradual_unfreezing import ThawingLoop
from etude.transfer.model_card import format_model_card
from etude.transfer.probe_run import solve_probe
from etude.transfer.task_markers import add_markers, choose_markers
from etude.transfer.task_weights import write_task_run
from etude.transfer.untrained_inputs import warn_untrained_inputs


@dataclass
class Transfer:
    """A fine-tuning in memory: its plan, the model as the task reads it, the task, and the labelled examples."""

    plan: Plan
    model: Model
    task: Task
    objective: Objective[Any, Any, Any]  # the task, or the task learnt from a teacher
    examples: Examples[Any]
    rows: Rows[Any]
    dev: Examples[Any] | None = None
    dev_rows: Rows[Any] | None = None

    @property
    def trains_head(self) -> bool:
        return self.plan.distill is None or self.plan.distill.answers

    @property
    def epoch_steps(self) -> int:
        """The steps of one pass over the examples."""
        settings = self.plan.with_train(**_only_budget(epochs=1)).train
        return schedule.total_steps(settings, None, epoch_rows=len(self.rows))


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
    deadline: float | None = None,
    shorten: bool = False,
    encoding: str | None = None,
) -> Run:
    """Train a task, or a data set by its name, on the examples of `train`; `overrides` as {"task.dropout": 0.2}.

    With {"distill.teacher": run}, it learns the task from a teacher (tasks/distilled_task.py). Stopped by a signal or
    by `deadline` (of time.monotonic), it leaves a checkpoint and returns an unfinished run; `resume` goes on. With
    `shorten` the deadline does not stop it: one that would be late becomes a shorter run (train/pace.py), and finishes.
    `encoding`: of the files of examples, where they are not UTF-8.
    """
    refuse_existing(Path(out))
    kind, overrides = resolve_dataset(task, overrides)
    report_stage(f"opening {base}")
    start = open_pretrained(base)
    report_stage(f"reading {train}")
    _, settings, train_settings = plans.resolve_settings(kind, overrides, start.model, start.recipe)
    attach_linker(start.model, settings)
    with warn_once():
        if settings.probe:
            return solve_probe(start, kind, train, out, dev, columns, overrides, skip_bad, encoding)
        markers = choose_markers(start, settings, plans.distill_settings(overrides))
        start = add_markers(start, markers, train_settings.seed)
        transfer = plan_transfer(start, kind, train, dev, columns, overrides, skip_bad, markers, encoding)
        device = resolve_device(transfer.plan.train.device)
        with connect(device.type == "cuda") as ranks:
            run = Run(Path(out))
            if ranks.is_first:
                files = {TASK: transfer.plan.dump()}
                run = Run.create(out, start.recipe, start.tokenizer, files, start.model.links)
            ranks.barrier()
            with discard_untrained(run, ranks), lock_run(run, ranks):
                return _train(run, transfer, device, ranks, quiet, deadline, shorten)


def resume(folder: str | Path, quiet: bool = False, deadline: float | None = None) -> Run:
    """Go on from the last complete checkpoint, or from the beginning where there is none."""
    run = Run.open(folder)
    plan = Plan.read(run.folder)
    if run.finished:
        return run
    if run.steps:
        model = run.recipe.build_model()
    else:
        model = add_markers(open_pretrained(plan.base), plan.transfer.markers or "own", plan.train.seed).model
    model = run.attach_links(model)
    device = resolve_device(plan.train.device)
    with warn_once(), connect(device.type == "cuda") as ranks, lock_run(run, ranks):
        return _train(run, _reopen(plan, model, run.tokenizer), device, ranks, quiet, deadline)


# --- what is settled before training ----------------------------------------------------------------


def plan_transfer(
    start: Pretrained,
    kind: str,
    train: str | Path,
    dev: str | Path | None,
    columns: Mapping[str, str] | None,
    overrides: Overrides,
    skip_bad: bool,
    markers: Markers | None = None,
    encoding: str | None = None,
) -> Transfer:
    """Settle everything: the settings, the labels, the number of steps. A bad file is refused here.

    `markers`: those that `start` was given (transfer/task_markers.py), for the record.
    """
    module = plans.task_module(kind)
    settings, transfer_settings, train_settings = plans.resolve_settings(kind, overrides, start.model, start.recipe)
    check_settings(start.model, transfer_settings)
    column_names = plans.check_columns(kind, columns)
    sources = ExampleFile.from_path(train, encoding), None if dev is None else ExampleFile.from_path(dev, encoding)
    with decoding(encoding):
        examples = module.read(train, column_names, skip_bad)
    warn_of_single_labels(examples.source, [module.strata(example) for example in examples])
    facts = module.learn(examples, settings)
    distill = plans.distill_settings(overrides)
    teacher = fingerprint = None
    if distill is not None:
        teacher, fingerprint = teachers.load_teacher(distill, kind, start.tokenizer)
        facts = teachers.take_labels(facts, distill, teacher)
    plan = Plan(
        kind=kind,
        settings=settings,
        transfer=transfer_settings.model_copy(update={"markers": markers}),
        train=train_settings,
        facts=vector_init.add_vector_words(facts, settings),
        columns=column_names,
        base=start.folder,
        examples=sources[0],
        dev=sources[1],
        skip_bad=skip_bad,
    )
    model, task = plan.build(start.model, start.tokenizer)
    objective: Objective[Any, Any, Any] = task
    if distill is not None and teacher is not None and fingerprint is not None:
        plan = teachers.record_teacher(plan, distill, fingerprint)
        objective = DistilledTask(task, distill, model, teacher)
    examples, rows = admit_examples(task, examples, skip_bad, train_settings.seed)
    warn_untrained_inputs(start, rows, examples.source)
    transfer = Transfer(plan, model, task, objective, examples, rows)
    if dev is not None:
        with decoding(encoding):
            dev_examples = module.read(dev, column_names, skip_bad)
        _add_dev(transfer, dev_examples)
    transfer.plan = plan.with_train(
        **_only_budget(steps=_total_steps(train_settings, rows, model, objective)),
        eval_every=train_settings.eval_every or transfer.epoch_steps,
    )
    return transfer


def _reopen(plan: Plan, model: Model, tokenizer: Tokenizer) -> Transfer:
    """The transfer of a stored plan; UserError where its files or its teacher changed."""
    model, task = plan.build(model, tokenizer)
    objective = teachers.build_objective(plan, task, model, tokenizer)
    with decoding(plan.examples.encoding):
        examples = plan.module.read(plan.examples.check(), plan.columns, plan.skip_bad)
    examples, rows = admit_examples(task, examples, plan.skip_bad, plan.train.seed)
    transfer = Transfer(plan, model, task, objective, examples, rows)
    if plan.dev:
        with decoding(plan.dev.encoding):
            dev_examples = plan.module.read(plan.dev.check(), plan.columns, plan.skip_bad)
        _add_dev(transfer, dev_examples)
    return transfer


def _add_dev(transfer: Transfer, dev: Examples[Any]) -> None:
    plan = transfer.plan
    transfer.dev, transfer.dev_rows = admit_examples(transfer.task, dev, plan.skip_bad, plan.train.seed)


def _only_budget(**budget: Any) -> dict[str, Any]:
    """One budget of `train`, the others unset."""
    return dict.fromkeys(BUDGETS) | budget


def _total_steps(settings: TrainSettings, rows: Rows[Any], model: Model, objective: Objective[Any, Any, Any]) -> int:
    if settings.minutes is not None:
        raise UserError(
            "A transfer has no budget in minutes: set train.epochs, train.steps, train.tokens or train.flops."
        )
    mean_tokens, flops_per_token = None, None
    if settings.tokens or settings.flops:
        sample = [rows[number] for number in range(min(len(rows), 256))]
        mean_tokens = max(1, round(float(np.mean([len(row.tokens) for row in sample]))))
        batch = objective.batch(sample, Chance(settings.seed, 0))
        flops_per_token = objective.flops(model, batch) / batch.size
    return schedule.total_steps(settings, mean_tokens, flops_per_token, epoch_rows=len(rows))


# --- training ---------------------------------------------------------------------------------------


def _train(
    run: Run,
    transfer: Transfer,
    device: torch.device,
    ranks: Ranks,
    quiet: bool,
    deadline: float | None,
    shorten: bool = False,
) -> Run:
    plan, model, task, dev = transfer.plan, transfer.model, transfer.task, transfer.dev
    settings = plan.train
    make_deterministic(settings.deterministic)
    assert settings.steps is not None  # plan_transfer stored it
    total = settings.steps
    if not run.steps:
        vector_init.init_word_vectors(task)
    warn_bad(transfer.examples)
    metric = None
    if dev is not None:
        warn_bad(dev)
        if transfer.trains_head:
            metric = SelectionMetric(task.score, lambda: _score_values(task, model, dev))

    def build_loop(progress: Progress) -> ThawingLoop:
        loop = ThawingLoop(
            run.folder,
            model,
            transfer.objective,
            transfer.rows,
            settings,
            total=total,
            valid_rows=transfer.dev_rows,
            device=device,
            ranks=ranks,
            progress=progress,
            depth_of=learner_depths(model),
            selection_metric=metric,
        )
        if plan.transfer.gradual:
            loop.thaw(max(1, round(plan.transfer.gradual * transfer.epoch_steps)))
        if shorten and deadline is not None:
            loop.pace = Pace(deadline, total)
        loop.saver.end_with_best()
        return loop

    loop, outcome = train_loop(run, build_loop, settings, device, ranks, quiet, None if shorten else deadline)
    if outcome.finished:
        _load_best(loop, outcome)
        if ranks.is_first:
            finish(run, transfer, outcome)
    ranks.barrier()
    return run


def _score_values(task: Task, model: Model, dev: Examples[Any]) -> dict[str, float]:
    return {name: score.value for name, score in task.evaluate(model, dev, intervals=False).items()}


def _load_best(loop: Loop, outcome: TrainResult) -> None:
    best = outcome.state.best_step
    if best is not None and best != outcome.state.step:
        weights, source = loop.saver.read_weights(best)
        checkpoint.load_strictly(loop.learner, weights, source)


def finish(run: Run, transfer: Transfer, outcome: TrainResult) -> None:
    """Tune what is tuned on dev, score it, and write plan, model card and weights; the weights last."""
    plan, model, task, dev = transfer.plan, transfer.model, transfer.task, transfer.dev
    scores = {}
    if dev is not None and transfer.trains_head:
        task.tune_on_dev(model, dev)
        scores = {name: score.json() for name, score in task.evaluate(model, dev).items()}
    plan = replace(plan, facts=task.facts(), score=task.score, scores=scores)
    card = format_model_card(run, run.recipe, plan, outcome)
    write_task_run(run.folder, run.recipe, plan, model.cpu(), task.cpu(), card)
    shutil.rmtree(run.checkpoints, ignore_errors=True)  # the best are the final weights: nothing to resume
