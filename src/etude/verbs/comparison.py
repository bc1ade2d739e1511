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

if TYPE_CHECKING:
    from etude.pick.pick import PickResult
    from etude.study.cells import Cell, State
    from etude.study.forecast import Forecast
    from etude.study.plan import Plan
    from etude.study.runner import Report
    from etude.study.settings import Study

SHARED_FOLDER = "runs/studies"  # of several studies that run from one queue


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
    language: Literal["en", "ko"] = "en",
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare recipes on your text and tasks for the same compute; a kill at any moment loses nothing.

    Args:
        file: A study, such as studies/mlm-vs-electra.yaml
        settings: Settings of the study to change: seeds.pretrain=1
        out: Its folder; runs/study-NAME if not given.
        budget: In place of the study's: 10m, 2h, 1e12 (FLOPs), 5e6tokens.
        on: Where cells run: here, in processes of this machine, or on ray.
        workers: So many local processes (means --on processes).
        gpu: Take the study's section 'gpu'.
        text: In place of the study's: files, or a prepared corpus.
        data: The folder that the tasks' files lie under.
        device: cpu or cuda; a GPU if there is one.
        cell: Only this cell, by the first letters.
        retry: Try cells again that failed before.
        report_only: Do no cell: write the report of what there is.
        minutes: Start no cell that would end later; those that settle a claim soonest come first.
        import_cells: Cells from elsewhere, written by --export-cells.
        export_cells: Write scores, outcomes and curves of all finished cells (no weights) into this zip, as they come.
        any_version: Cells that another version of the code or of torch has done count, if their settings, text and data
            are the same; the report tells how many versions there are.
        others: More studies, run from the same queue; each has a folder under -o. Also as further words.
        language: The report opens in en or ko.
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
    cell: str | None = None,
    import_cells: Sequence[str] | None = None,
    any_version: bool = False,
    shares_folder: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> StudyPlan:
    """The cells of a study, their cost and what is cached; nothing is written.

    Args:
        file: A study, such as studies/mlm-vs-electra.yaml
        settings: Settings of the study to change: seeds.pretrain=1
        out: Its folder; runs/study-NAME if not given.
        budget: In place of the study's: 10m, 2h, 1e12 (FLOPs), 5e6tokens.
        gpu: Take the study's section 'gpu'.
        text: In place of the study's: files, or a prepared corpus.
        data: The folder that the tasks' files lie under.
        device: cpu or cuda; a GPU if there is one.
        cell: Only this cell, by the first letters.
        import_cells: Cells from elsewhere count as cached; they are not written either.
        any_version: Cells that another version of the code or of torch has done count.
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
            dry=True,
            any_version=any_version,
        )
        states = {key: plan.store.state(key) for key in plan.cells}
        return StudyPlan(plan, select_cells(plan, cell), describe_power(plan), states, forecast_cells(plan))


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
        out: Where everything goes; the model will be in OUT/best.
        minutes: For all of it.
        dev: To choose on; folds of train if not given.
        test: To report on; a fifth of train if not given.
        start: A run or a folder of transformers to start from, as FOLDER or NAME=FOLDER; may be given several times.
        recipes: To pre-train from scratch, with commas: bert-mini,electra-small
        columns: role=name of a column: -c text=review
        text_field: Field or column that holds the text of a record; of one source: FILE=FIELD.
        errors: 'replace' goes on at invalid UTF-8 in the text, with U+FFFD in its place.
        unique: Drop exact duplicates of documents of the text.
        skip_bad: Leave bad labelled examples out instead of refusing them.
        score: What to choose by, such as macro_f1; the task's own if not given.
        accuracy: Answer "don't know" where the answers would be right less often than this, as in 0.95.
        device: cpu or cuda; a GPU if there is one.
        seed: Of splits, draws and first weights.
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
        skip_bad=skip_bad,
        settings=settings | ({"task.score": score} if score else {}),
        accuracy=accuracy,
        device=device,
        seed=seed,
        on=on,
        begin=begin,
        on_progress=on_progress or (lambda _: None),
    )


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
        out: Where everything goes.
        language: The language of the world's text.
        minutes: What it plans for; on a busy machine it takes longer.
        workers: Processes; as many as cores, four at most.
        seed: Another seed is another town.
        on_progress: Receives a line for each step.
    """
    require_at_least("minutes", minutes, 0.5)
    require_at_least("workers", workers, 1)
    from etude.study import demo as demonstration

    return demonstration.run_demo(Path(out), language, minutes, workers, seed, on_progress or (lambda _: None))
