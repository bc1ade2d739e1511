"""Comparing pre-training methods: `study` runs a file of them, `pick` finds the best one, `demo` shows it all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from etude.errors import UserError
from etude.verbs.limits import require_at_least, require_device
from etude.verbs.paths import require_path, require_paths
from etude.verbs.random_state import keeps_random_state

if TYPE_CHECKING:
    from etude.pick.pick import PickResult
    from etude.study.cells import Cell, State
    from etude.study.forecast import Forecast
    from etude.study.plan import Plan
    from etude.study.runner import Report
    from etude.study.settings import Study

SHARED_FOLDER = "runs/studies"  # of several studies that run from one queue


@keeps_random_state
def study(
    file: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    budget: str | None = None,
    on: Literal["here", "processes", "ray"] = "here",
    workers: int | None = None,
    gpu: bool = False,
    text: Sequence[str] | None = None,
    data: str | Path | None = None,
    device: str | None = None,
    cell: str | None = None,
    retry: bool = False,
    report_only: bool = False,
    minutes: float | None = None,
    import_cells: Sequence[str] | None = None,
    export_cells: str | Path | None = None,
    any_version: bool = False,
    others: Sequence[str] | None = None,
    in_turn: bool = False,
    language: Literal["en", "ko"] = "en",
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare recipes on your text and tasks for the same compute; a kill at any moment loses nothing.

    Args:
        file: A study, a .yaml file such as studies/mlm-vs-electra.yaml
        settings: Settings of the study to change: seeds.pretrain=1
        out: The folder of its cells and results; runs/study-NAME unless given.
        budget: Budget in place of the study's: 10m, 2h, 1e12 (FLOPs), 5e6tokens.
        on: Where cells run: here, one after another; in several processes of this machine; or on ray, a Ray cluster.
        workers: Number of processes on this machine; implies --on processes, which starts 2 unless given.
        gpu: Use the settings of the study's section 'gpu', for a machine with a GPU.
        text: Text in place of the study's: a file, or a prepared corpus; may be given several times for files.
        data: The folder that paths of the tasks' files are relative to, in place of the study's.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        cell: Only this cell (one pre-training or one transfer), by the first letters of its key.
        retry: Run cells again that failed before.
        report_only: Run no cell; write the report of those that are done.
        minutes: Start no cell that would end after this many minutes; cells that settle a claim soonest come first.
        import_cells: A zip of cells from another machine, written by --export-cells; may be given several times.
        export_cells: Write scores, outcomes and curves of all finished cells (no weights) into this zip, as they come.
        any_version: Also use cells that another version of the code or of torch has computed, if their settings, text
            and data are the same; the report states how many versions there are.
        others: More studies, run from the same queue, each in a folder under -o; FILE may also be several files.
        in_turn: Of several studies, cells of the first come first; else those that settle a claim soonest.
        language: Language in which the report opens: English or Korean.
        on_progress: Receives a line for each cell that is done.
    """
    require_at_least("workers", workers, 1)
    from etude.study import runner

    require_at_least("minutes", minutes, 0)
    if on != "ray" and not report_only:  # a cluster's devices are not this machine's
        require_device(device)
    executor: Literal["here", "processes", "ray"] = "processes" if workers and on == "here" else on
    loaded = read_study(file, settings=settings, budget=budget, gpu=gpu, text=text, data=data)
    if others:
        if cell is not None:
            raise UserError("--cell is a cell of one study. Name that study alone.")
        several = [
            read_study(other, settings=settings, budget=budget, gpu=gpu, text=text, data=data) for other in others
        ]
        reports = runner.run_several(
            [loaded, *several],
            SHARED_FOLDER if out is None else out,
            on=executor,
            workers=workers or 2,
            device=device,
            retry=retry,
            work=not report_only,
            minutes=minutes,
            in_turn=in_turn,
            import_from=import_cells or (),
            export_to=export_cells,
            any_version=any_version,
            language=language,
            on_progress=on_progress or (lambda _: None),
        )
        return replace(reports[0], others=tuple(reports[1:]))
    return runner.run(
        loaded,
        study_folder(loaded, out),
        on=executor,
        workers=workers or 2,
        device=device,
        retry=retry,
        only=cell,
        work=not report_only,
        minutes=minutes,
        import_from=import_cells or (),
        export_to=export_cells,
        any_version=any_version,
        language=language,
        on_progress=on_progress or (lambda _: None),
    )


def read_study(
    file: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    budget: str | None = None,
    gpu: bool = False,
    text: Sequence[str] | None = None,
    data: str | Path | None = None,
) -> Study:
    """A study file with its changes; the arguments are those of `study`."""
    from etude.study.budget import parse_budget
    from etude.study.settings import Study
    from etude.study.text_source import holds_corpus

    changes: dict[str, Any] = dict(settings or {})
    if budget:
        changes["budget"] = parse_budget(budget)
    if text:
        is_corpus = len(text) == 1 and holds_corpus(text[0])
        changes["text.world"] = None
        changes["text.files"] = None if is_corpus else list(text)
        changes["text.corpus"] = text[0] if is_corpus else None
    if data is not None:
        changes["data"] = str(data)
    return Study.load(require_path("file", file, "a study, a .yaml file"), gpu, changes)


def study_folder(study: Study, out: str | Path | None) -> Path:
    """Where a study's results go unless it was said."""
    return Path("runs") / f"study-{study.name}" if out is None else Path(out)


class StudyPlan(NamedTuple):
    """What a study would do."""

    plan: Plan
    cells: list[Cell]  # all of them, or those that were asked for
    power: list[str]  # what it could settle, in lines
    states: dict[str, State]  # of all cells, by key; plan.store may be gone by now
    forecast: Forecast  # of those that have to run


@keeps_random_state
def plan_study(
    file: str | Path,
    *,
    settings: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    budget: str | None = None,
    gpu: bool = False,
    text: Sequence[str] | None = None,
    data: str | Path | None = None,
    device: str | None = None,
    workers: int | None = None,
    cell: str | None = None,
    import_cells: Sequence[str] | None = None,
    any_version: bool = False,
    shares_folder: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> StudyPlan:
    """The cells of a study, their cost and what is cached; nothing is written.

    Args:
        file: A study, a .yaml file such as studies/mlm-vs-electra.yaml
        settings: Settings of the study to change: seeds.pretrain=1
        out: The folder of its cells and results; runs/study-NAME unless given.
        budget: Budget in place of the study's: 10m, 2h, 1e12 (FLOPs), 5e6tokens.
        gpu: Use the settings of the study's section 'gpu', for a machine with a GPU.
        text: Text in place of the study's: a file, or a prepared corpus; may be given several times for files.
        data: The folder that paths of the tasks' files are relative to, in place of the study's.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        workers: Number of processes that will share this machine; speeds are measured with the threads of one.
        cell: Only this cell (one pre-training or one transfer), by the first letters of its key.
        import_cells: Cells from elsewhere count as cached; they are not written either.
        any_version: Also use cells that another version of the code or of torch has computed.
        shares_folder: The folder is that of several studies; this one has its own inside.
        on_progress: Receives a line for each archive of cells.
    """
    import contextlib
    import tempfile

    from etude.study import planner
    from etude.study.forecast import forecast_cells
    from etude.study.power import describe_power
    from etude.study.runner import overlay_archives, select_cells

    loaded = read_study(file, settings=settings, budget=budget, gpu=gpu, text=text, data=data)
    with contextlib.ExitStack() as stack:  # a dry run leaves nothing behind
        folder = Path(out or SHARED_FOLDER) / loaded.name if shares_folder else study_folder(loaded, out)
        if import_cells or not folder.is_dir():
            present, folder = folder, Path(stack.enter_context(tempfile.TemporaryDirectory()))
            if import_cells:
                overlay_archives(present, import_cells, folder, on_progress or (lambda _: None))
        plan = planner.make_plan(
            loaded,
            folder,
            device=device,
            workers=workers,
            dry=True,
            any_version=any_version,
        )
        states = {key: plan.store.state(key) for key in plan.cells}
        return StudyPlan(plan, select_cells(plan, cell), describe_power(plan), states, forecast_cells(plan))


@keeps_random_state
def pick(
    text: str | Sequence[str] = (),
    *,
    task: str,
    train: str | Path,
    out: str | Path,
    minutes: float = 30.0,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    start: Sequence[str] | None = None,
    recipes: str | Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    text_field: Sequence[str] | None = None,
    errors: Literal["strict", "replace"] = "strict",
    unique: bool = False,
    encoding: str | None = None,
    skip_bad: bool = False,
    score: str | None = None,
    accuracy: float | None = None,
    device: str | None = None,
    seed: int = 0,
    on: Literal["here", "ray"] = "here",
    on_progress: Callable[[str], None] | None = None,
) -> PickResult:
    """Find the best model for your labels in the minutes you have, with an honest score.

    Contenders are a bag of words, word vectors of your text, models pre-trained on it, and those you start from
    (frozen, fine-tuned, trained on with your text). The final model learns from all labels; its score comes from
    examples that nothing was chosen on.

    Args:
        text: Plain text to learn from: files, folders, or one prepared corpus; task.NAME=VALUE sets the task.
        task: classify, pair, tag …: 'etude tasks' lists them.
        train: Labelled examples.
        out: The folder for everything that is written; the model will be in OUT/best.
        minutes: Minutes for all of it, from reading the labels to the final model.
        dev: Labelled examples to choose the model on; folds of train unless given.
        test: Labelled examples for the final score; a fifth of train unless given.
        start: A run or a folder of transformers to start from, as FOLDER or NAME=FOLDER; may be given several times.
        recipes: Recipes to pre-train from scratch, with commas, as in bert-mini,electra-small; unless given,
            some that suit the device.
        columns: Which column holds what, as role=name: -c text=review -c label=stars
        text_field: Field or column that holds the text of a record; of one source: FILE=FIELD.
        errors: At invalid UTF-8 in the text 'strict' stops with an error, and 'replace' puts U+FFFD in its place.
        unique: Drop documents of the text that are exact duplicates of others.
        encoding: Encoding of labelled files that are not UTF-8: cp1252 (Windows), cp949 (Korean), utf-16 or another of
            Python's names.
        skip_bad: Leave out invalid labelled examples and count them, instead of stopping.
        score: Measure to choose the model by, such as macro_f1; the task's own unless given.
        accuracy: Accuracy that answers shall have, as in 0.95; where the model is less sure, it answers "don't know".
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
        seed: Seed of splits, samples and initial weights.
        on: Where models are pre-trained and fine-tuned: here, or on ray, a cluster that sees the same folders.
        on_progress: Receives a line for each contender and round.
    """
    import time

    begin = time.monotonic()  # loading torch takes seconds, which count
    if not math.isfinite(minutes):
        raise UserError(f"--minutes {minutes}: say how many minutes it may take, as in 30.")
    from etude.pick import pick as picking
    from etude.recipes.document import parse_overrides

    words = list(map(str, require_paths("text", text, "a file or folder of text")))
    train = require_path("train", train, "a file of examples")
    dev = None if dev is None else require_path("dev", dev, "a file of examples")
    test = None if test is None else require_path("test", test, "a file of examples")
    is_setting = [re.match(r"task\.\w+=", str(word)) is not None for word in words]
    for word, is_set in zip(words, is_setting, strict=True):
        if not is_set and re.match(r"[a-z_]+(\.\w+)+=", str(word)) and not Path(word).exists():
            raise UserError(f"'{word}' is no setting of a pick: it takes task.NAME=VALUE, such as task.score=macro_f1.")
    given = parse_overrides([word for word, is_set in zip(words, is_setting, strict=True) if is_set]).values
    settings: dict[str, object] = {f"task.{name}": value for name, value in given.get("task", {}).items()}
    return picking.pick(
        [word for word, is_set in zip(words, is_setting, strict=True) if not is_set],
        task,
        train,
        out,
        minutes,
        dev=dev,
        test=test,
        starts=start or (),
        recipes=[name for name in (recipes.split(",") if isinstance(recipes, str) else recipes or ()) if name],
        columns=columns,
        text_field=text_field or (),
        errors=errors,
        unique=unique,
        encoding=encoding,
        skip_bad=skip_bad,
        settings=settings | ({"task.score": score} if score else {}),
        accuracy=accuracy,
        device=device,
        seed=seed,
        on=on,
        begin=begin,
        on_progress=on_progress or (lambda _: None),
    )


@keeps_random_state
def demo(
    *,
    out: str | Path = "demo",
    language: Literal["en", "ko"] = "en",
    minutes: float = 4.5,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare several ways to pre-train, at toy size and equal compute, in about five minutes on an idle CPU.

    Args:
        out: The folder for everything that is written.
        language: The language of the world's text.
        minutes: Minutes to plan for; on a busy machine it takes longer.
        workers: Number of processes; one for each core unless given, four at most.
        seed: Seed of the town: another seed is another town.
        on_progress: Receives a line for each step.
    """
    require_at_least("minutes", minutes, 0.5)
    require_at_least("workers", workers, 1)
    from etude.study import demo as demonstration

    return demonstration.run_demo(Path(out), language, minutes, workers, seed, on_progress or (lambda _: None))
