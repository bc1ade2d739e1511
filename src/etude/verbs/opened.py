"""Models that a verb is given: a path to open, or what `etude.load` opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from etude.verbs.limits import require_device
from etude.verbs.paths import require_path

if TYPE_CHECKING:
    from etude.inference.baseline_model import BaselineModel
    from etude.inference.graph_model import GraphModel
    from etude.inference.model import LoadedModel
    from etude.inference.opening import Dtype
    from etude.inference.predictor import Predictor
    from etude.runs.run import Run

    OpenedModel: TypeAlias = LoadedModel | BaselineModel | GraphModel  # what `etude.load` returns

PRETRAINED = "a run or a folder of transformers"


def open_language_model(
    run: str | Path | Run | OpenedModel, verb: str, device: str | None, dtype: Dtype | None = None
) -> LoadedModel:
    """Open a run for a verb that asks a language model; UserError where it is a baseline, or learnt from a graph."""
    require_device(device)
    from etude.inference import model
    from etude.inference.lacking import LacksText

    if isinstance(run, model.LoadedModel):
        return run
    if isinstance(run, LacksText):
        run.refuse(verb)
    return model.load(require_path("run", run, PRETRAINED), device, dtype)


def open_task(run: str | Path | Run | Predictor | OpenedModel) -> Predictor:
    """Open a fine-tuned run or a baseline for a verb that asks for answers of a task."""
    from etude.baselines.base import is_baseline
    from etude.inference.baseline_model import BaselineModel
    from etude.inference.predictor import Predictor
    from etude.inference.task_model import TaskModel

    if isinstance(run, Predictor):
        return run
    if not isinstance(run, (str, os.PathLike)):  # a baseline in a file is opened without torch
        from etude.inference.graph_model import GraphModel
        from etude.inference.model import LoadedModel

        if isinstance(run, LoadedModel):
            return run.task_model
        if isinstance(run, GraphModel):
            run.refuse("task")
    run = require_path("run", run, "a fine-tuned run")
    return BaselineModel.open(run) if is_baseline(run) else TaskModel.open(run)
