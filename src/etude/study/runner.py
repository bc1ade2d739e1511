"""`etude study`: plans a study, runs the cells that are not done, and writes the report.

Cells wait only for the run they start from. A cell that fails is reported, with those that depend on it, and the rest
continues. Stopped or killed, the same command resumes; a second one at the same time is refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from etude.errors import UserError
from etude.plain_yaml import Writer
from etude.study import planner, results
from etude.study.cell_archive import import_cells
from etude.study.cells import PRETRAININGS, Cell, CellStore
from etude.study.claim_scope import base_cells
from etude.study.execute import release_memory
from etude.study.executors import Executor, ProcessExecutor, RayExecutor, SerialExecutor
from etude.study.folder_checksums import open_for_writing, write_checksums
from etude.study.leaderboard import render_leaderboard_html, render_markdown
from etude.study.plan import Plan
from etude.study.queue import OnProgress, run_cells
from etude.study.registration import register_claims
from etude.study.relative_paths import save_paths
from etude.study.report.page import write_report
from etude.study.settings import Study
from etude.study.stability import describe_change, has_other_rate
from etude.study.study_folder import (
    MACHINE,
    REGISTERED,
    REGISTRATIONS,
    REPORT,
    RESULTS,
    STUDY,
    TABLE,
    lock_folder,
    refuse_other_files,
)
from etude.study.tuning import is_pending
from etude.study.visit import Visit, order_cells
from etude.train import checkpoint

ExecutorName = Literal["here", "processes", "ray"]
SHARED = ("tasks", "corpora", "references")  # of the studies of one queue, beside their cells
HASHED = ("tasks", "references")  # corpora have their own hashes


@dataclass(frozen=True)
class Report:
    """Results of a study and the folder they are in."""

    folder: Path
    results: dict[str, Any]
    others: tuple[Report, ...] = ()  # of the studies that ran from the same queue

    @property
    def page(self) -> Path:
        return self.folder / REPORT

    def _repr_html_(self) -> str:
        """The leaderboard and the claims in a notebook."""
        return render_leaderboard_html(self.results, str(self.page))

    @property
    def failed(self) -> list[str]:
        return [f"{cell['title']}: {cell['error']}" for cell in self.results["cells"] if "error" in cell]


def run(
    study: Study,
    out: str | Path,
    *,
    on: ExecutorName = "here",
    workers: int = 1,
    device: str | None = None,
    retry: bool = False,
    keep: bool = False,
    only: str | None = None,
    work: bool = True,
    minutes: float | None = None,
    import_from: Sequence[str | Path] = (),
    export_to: str | Path | None = None,
    any_version: bool = False,
    language: str = "en",
    quiet: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> Report:
    """Run the cells of a study that are not done, in the folder `out`; `only` runs one cell and its dependency.

    Without `work` no cell runs: the report shows the cells that are done, of an interrupted study too. With `minutes`
    no cell is started that would end later. Cells travel between machines by `import_from` and `export_to`; with
    `any_version` those of another version of the code or of torch count.
    """
    folder = Path(out)
    refuse_other_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    visit = Visit(minutes, None if export_to is None else Path(export_to), folder)

    def make_plan() -> Plan:
        return planner.make_plan(
            study,
            folder,
            device=device,
            workers=workers if on == "processes" else None,
            keep=keep,
            report_only=not work,
            any_version=any_version,
            on_progress=on_progress,
        )

    with lock_folder(folder):
        open_for_writing(folder)
        imported = _import_archives(CellStore(folder / "cells"), import_from, folder, on_progress)
        visit.check_archive(CellStore(folder / "cells"))
        plan = make_plan()
        _tell_unplanned(imported, [plan], on_progress)
        registration = _register(plan, folder)
        if not work:
            visit.export(plan.store)
            return write_results(plan, load_errors(plan, select_cells(plan, only)), registration, language)
        if retry:
            for cell in select_cells(plan, only):
                plan.store.clear_failure(cell.key)
        with _make_executor(on, plan.store.folder, workers, quiet) as executor:
            if only is None:
                planned = [plan]
                errors = _run_tuned(planned, plan.store, lambda _: make_plan(), executor, on_progress, visit)
                plan = planned[0]
            else:
                errors = run_cells(plan.store, select_cells(plan, only), executor, on_progress, visit)
                if any(has_other_rate(plan.store, tuning) for tuning in plan.tunings.values()):
                    plan = make_plan()
        return write_results(plan, _select_errors(plan, errors), registration, language)


def _run_tuned(
    planned: list[Plan], store: CellStore, make_plan: Callable[[int], Plan], executor: Executor,
    on_progress: OnProgress, visit: Visit,
) -> dict[str, str]:  # fmt: skip
    """Run trials of pre-training and all other cells; a plan is made again as soon as a stage of its trials ends."""
    is_ordered = visit.keeps_order or len(planned) > 1

    def list_ready() -> list[Cell]:
        if not is_ordered:
            return [cell for plan in planned for cell in plan.ready_cells()]
        return order_cells(planned, store, visit.in_turn)

    def replan() -> list[Cell] | None:
        settled = [[tuning for tuning in plan.tunings.values() if has_other_rate(store, tuning)] for plan in planned]
        ended = [number for number, plan in enumerate(planned) if settled[number] or ends_stage(plan)]
        for number in ended:
            planned[number] = make_plan(number)
            for before in settled[number]:
                on_progress(describe_change(before, planned[number].tunings[before.entry]))
        return list_ready() if ended else None

    return run_cells(store, list_ready(), executor, on_progress, visit, replan)


def ends_stage(plan: Plan) -> bool:
    """Whether a contender's trials of one setting are all done or failed, so that its next cells can be planned."""
    return any(
        tuning.is_pending and not tuning.waits and not any(is_pending(plan, trial) for trial in tuning.trials)
        for tuning in plan.tunings.values()
    )


def run_several(
    studies: Sequence[Study],
    out: str | Path,
    *,
    on: ExecutorName = "here",
    workers: int = 1,
    device: str | None = None,
    retry: bool = False,
    work: bool = True,
    minutes: float | None = None,
    in_turn: bool = False,
    import_from: Sequence[str | Path] = (),
    export_to: str | Path | None = None,
    any_version: bool = False,
    language: str = "en",
    quiet: bool = True,
    on_progress: OnProgress = lambda _: None,
) -> list[Report]:
    """Run several studies from one queue, each in its folder under `out`; they share the cells in `out`/cells.

    Cells of the cheapest claim of all come first, or with `in_turn` those of the first study.
    """
    names = [study.name for study in studies]
    if len(set(names)) < len(names):
        raise UserError(f"Two of these studies have one name: {', '.join(names)}. Each needs its own.")
    if reserved := {"cells", *SHARED} & set(names):
        raise UserError(f"A study called '{min(reserved)}' cannot run with others: they share a folder of that name.")
    root = Path(out)
    for name in names:
        refuse_other_files(root / name)
    store = CellStore(root / "cells")
    store.folder.mkdir(parents=True, exist_ok=True)
    visit = Visit(minutes, None if export_to is None else Path(export_to), root, in_turn)
    with contextlib.ExitStack() as locks:
        locks.enter_context(lock_folder(root))
        imported = _import_archives(store, import_from, root, on_progress)
        visit.check_archive(store)
        for study in studies:
            folder = root / study.name
            folder.mkdir(exist_ok=True)
            locks.enter_context(lock_folder(folder))
            open_for_writing(folder)
            _share_cells(folder)
            _share_made_data(folder)

        def make_plan(number: int) -> Plan:
            folder = root / studies[number].name
            _share_machine(root, folder)
            plan = planner.make_plan(
                studies[number],
                folder,
                device=device,
                workers=workers if on == "processes" else None,
                report_only=not work,
                any_version=any_version,
                on_progress=on_progress,
            )
            _share_machine(folder, root)
            return plan

        planned = [make_plan(number) for number in range(len(studies))]
        _tell_unplanned(imported, planned, on_progress)
        registrations = [_register(plan, root) for plan in planned]
        errors: dict[str, str] = {}
        if work:
            if retry:
                for cell in (cell for plan in planned for cell in plan.cells.values()):
                    store.clear_failure(cell.key)
            with _make_executor(on, store.folder, workers, quiet) as executor:
                errors = _run_tuned(planned, store, make_plan, executor, on_progress, visit)
        else:
            visit.export(store)
            for plan in planned:
                errors |= load_errors(plan, list(plan.cells.values()))
        return [
            write_results(plan, _select_errors(plan, errors), registration, language)
            for plan, registration in zip(planned, registrations, strict=True)
        ]


def _share_cells(folder: Path) -> None:
    """Link the cells of a study to those of the folder above."""
    link = folder / "cells"
    if link.is_symlink():
        return
    if link.exists():
        raise UserError(
            f"{link} holds the cells of a study that ran alone. Take them along by --export-cells and --import-cells, "
            "or choose another folder with -o."
        )
    link.symlink_to(Path("..") / "cells", target_is_directory=True)


def _share_made_data(folder: Path) -> None:
    """Link labelled examples, corpora and reference losses to those of the folder above: their names are hashes."""
    for name in SHARED:
        if not (folder / name).exists():
            (folder.parent / name).mkdir(exist_ok=True)
            (folder / name).symlink_to(Path("..") / name, target_is_directory=True)


def _share_machine(source: Path, target: Path) -> None:
    """Copy device and measured speeds, so that all studies of a queue are planned for one machine."""
    if (source / MACHINE).is_file():
        checkpoint.write_text(target / MACHINE, (source / MACHINE).read_text(encoding="utf-8"))


def _import_archives(
    store: CellStore, paths: Sequence[str | Path], folder: Path, on_progress: OnProgress
) -> frozenset[str]:
    """Import the cells of some archives; return their keys."""
    keys: frozenset[str] = frozenset()
    for path in paths:
        report = import_cells(store, Path(path), folder)
        on_progress(f"{path}: {report}")
        keys |= report.keys
    return keys


def overlay_archives(folder: Path, paths: Sequence[str | Path], target: Path, on_progress: OnProgress) -> None:
    """Make an empty folder look like that of a study with some archives imported, by links to what is there."""
    store = CellStore(target / "cells")
    store.folder.mkdir()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != "cells":
            (target / path.name).symlink_to(path.absolute())
    for path in (folder / "cells").glob("[!.]*"):
        (store.folder / path.name).symlink_to(path.absolute())
    _import_archives(store, paths, target, on_progress)


def _tell_unplanned(imported: frozenset[str], plans: Sequence[Plan], on_progress: OnProgress) -> None:
    """Say that imported cells are not those that are planned here, and why that may be."""
    rejected = {
        key for plan in plans for tuning in plan.tunings.values() for runs in tuning.rejected for key in runs.keys
    }
    others = sorted(imported.difference(rejected, *(plan.cells for plan in plans)))
    if not others:
        return
    store = plans[0].store
    done = [store.result(key) for key in others if store.state(key) == "done"]
    versions = sorted({result["versions"] for result in done if "versions" in result})
    known = {"", *(cell.text for plan in plans for cell in plan.cells.values())}
    foreign = sum(result.get("kind") in PRETRAININGS and result.get("text", "") not in known for result in done)
    text_note = f" {foreign} pre-trainings among them read another text, or one with other tokens." if foreign else ""
    on_progress(
        f"{len(others)} of {len(imported)} imported cells are not among those planned here: their settings, text, "
        f"data, code or torch are others. Theirs: {'; '.join(versions) or 'no version is recorded'}; here: torch "
        f"{plans[0].machine.torch_version}.{text_note} (--report plans with the torch of the archive, --any-version "
        "takes cells of every version of code and torch.)"
    )


def _register(plan: Plan, root: Path) -> dict[str, Any]:
    """Register the claims and save the study beside its cells; a file there that says the same stays as it is."""
    registration = register_claims(plan, root)
    values = save_paths(plan.study.dump(), plan.study.root, plan.folder)
    if not _says(plan.folder / STUDY, values):
        text = yaml.dump(values, Dumper=Writer, sort_keys=False, allow_unicode=True, width=110)
        checkpoint.write_text(plan.folder / STUDY, text)
    return registration


def _says(file: Path, values: dict[str, Any]) -> bool:
    """Whether a study file, perhaps one that a person wrote there, with comments, says these values."""
    if not file.is_file():
        return False
    try:
        study = Study.load(file)
    except UserError:
        return False  # of another version, or damaged: written anew
    return save_paths(study.dump(), study.root, file.parent) == values


def _select_errors(plan: Plan, errors: Mapping[str, str]) -> dict[str, str]:
    """Return the errors of cells that a study still has: those of a rate that was given up are no concern of it."""
    return {key: errors[key] for key in plan.cells if key in errors}


def load_errors(plan: Plan, cells: list[Cell]) -> dict[str, str]:
    """Load the messages of stored failures, by key."""
    return {cell.key: plan.store.error(cell.key) for cell in cells if plan.store.state(cell.key) == "failed"}


def write_results(plan: Plan, errors: dict[str, str], registration: dict[str, Any], language: str = "en") -> Report:
    """Write results.json, the Markdown table and the HTML report."""
    collected = results.collect(plan, errors, registration)
    checkpoint.write_text(plan.folder / RESULTS, json.dumps(collected, indent=1, ensure_ascii=False))
    checkpoint.write_text(plan.folder / TABLE, render_markdown(collected))
    write_report(plan.folder / REPORT, collected, language)
    inputs = [str(path.relative_to(plan.folder)) for name in HASHED for path in (plan.folder / name).rglob("*.json*")]
    write_checksums(plan.folder, (MACHINE, REGISTERED, REGISTRATIONS, RESULTS, *inputs))
    return Report(plan.folder, collected)


def select_cells(plan: Plan, only: str | None) -> list[Cell]:
    """Select all cells, or one of them with the cells it depends on."""
    if only is None:
        return list(plan.cells.values())
    matches = [cell for key, cell in plan.cells.items() if key.startswith(only)]
    if len(matches) != 1:
        count = "no cell" if not matches else f"{len(matches)} cells"
        raise UserError(
            f"--cell {only}: {count} of this study begin{'' if matches[1:] else 's'} like this. --dry-run lists them."
        )
    return [*(plan.cells[base] for base in base_cells(plan, matches[0].key)), *matches]


def _make_executor(on: ExecutorName, folder: Path, workers: int, quiet: bool) -> Executor:
    folder.mkdir(parents=True, exist_ok=True)
    release_memory()  # speeds were measured in this process, and cells need the GPU
    if on == "ray":
        return RayExecutor(folder)
    return ProcessExecutor(folder, workers) if on == "processes" else SerialExecutor(folder, quiet)
