"""Probabilities at another temperature: softmax(logits / T), folded into the last layer of a finished run.

One number, found on examples that were not trained on, calibrates the probabilities of a network that is too sure
(Guo et al. 2017). In the weights it holds wherever they go: predictions, serving, exports. No answer changes, since the
order of the logits stays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from torch import nn

from etude.errors import UserError, quote_path
from etude.hub import write_tensors
from etude.inference.task_model import TaskModel
from etude.runs.checksums import remove_checksums, write_checksums
from etude.runs.run import TASK, WEIGHTS, Run
from etude.tasks.linear_task import LinearTask
from etude.train import checkpoint


def scale_logits(run: Run | str | Path, temperature: float) -> Run:
    """Divide the logits of a finished run of a task by a temperature, in its weights; again, both count."""
    run = run if isinstance(run, Run) else Run.open(run)
    if not math.isfinite(temperature) or temperature <= 0:
        raise UserError(f"A temperature of {temperature}: it divides logits, and must be above 0.")
    if not run.finished:
        raise UserError(
            f"{run.folder} is not finished. 'etude finetune --resume {quote_path(run.folder)}' trains it to its end."
        )
    tuned = TaskModel.open(run.folder, device="cpu")
    if not isinstance(tuned.task, LinearTask) or not tuned.task.gives_probabilities:
        raise UserError(f"A temperature scales probabilities of labels, and the task {tuned.plan.kind} gives none.")
    tuned.task.scale_logits(temperature)
    plan = replace(tuned.plan, temperature=tuned.plan.temperature * temperature)
    weights = nn.ModuleDict({"model": tuned.model, "objective": tuned.task}).state_dict()
    remove_checksums(run.folder)
    write_tensors(weights, run.folder / WEIGHTS)
    checkpoint.write_text(run.folder / TASK, plan.dump())
    write_checksums(run.folder)
    return run
