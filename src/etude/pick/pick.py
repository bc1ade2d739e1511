"""`etude pick`: text, labels and minutes in, the best model out.

Everything is checked before anything is computed; contenders race on cross-validated labels (race.py); the winner is
scored on examples set aside, refitted on all labels and exported (final.py). Killed at any moment, the same command
goes on and comes to the same choice; with a changed input, what depends on it is computed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from etude.baselines import registry as baselines
from etude.baselines.base import is_baseline
from etude.errors import UserError
from etude.inference.baseline_model import BaselineModel
from etude.inference.predictor import Inputs, Predictor
from etude.inference.task_model import TaskModel
from etude.pick import page, report
from etude.pick.candidates import parse_candidates
from etude.pick.checks import check_inputs
from etude.pick.data import HELD_OUT, PickData
from etude.pick.encoders import Candidate, Encoder, Label, check_start, open_start
from etude.pick.final import (
    EXPORT,
    LABELS,
    calibrate,
    choose_winner,
    export_model,
    note_answers,
    score_held_out,
    write_best,
)
from etude.pick.folder_lock import lock_folder
from etude.pick.journal import FILE as JOURNAL
from etude.pick.journal import Journal
from etude.pick.label_limit import count_labels, take_labels
from etude.pick.race import Race
from etude.pick.stages import run_race
from etude.pick.text import PickText
from etude.pick.worker_pool import WorkerPool, count_slots
from etude.recipes.datasets import DATASETS
from etude.recipes.document import FOLDER as RECIPES
from etude.recipes.document import find_recipe, parse_overrides
from etude.recipes.schema import Recipe, validate_settings
from etude.runs.run import RECIPE
from etude.runs.staging import try_writing
from etude.runs.task_plan import task_module
from etude.study.cells import CellStore
from etude.study.folder_checksums import write_checksums
from etude.study.study_folder import STUDY
from etude.study.text_source import hash_json
from etude.tasks.base import Answer
from etude.tasks.bootstrap import Score
from etude.tasks.classify import LabelScoring
from etude.tasks.data.examples import Examples
from etude.text.run_checksums import CHECKSUMS, verify_checksums
from etude.text.tokenizer.pair_tokenizer import open_tokenizers
from etude.train import checkpoint
from etude.train.device import default_device, resolve_device
from etude.transfer import probe

RESULTS, REPORT, BEST, CELLS = "results.json", "report.html", "best", "cells"
MIN_SECONDS = 20.0


@dataclass(frozen=True)
class PickResult:
    """The outcome of a pick: a folder with the model, its report and its results."""

    folder: Path
    results: dict[str, Any]

    def _repr_html_(self) -> str:
        """The contenders in a notebook, and how good the best is."""
        return report.render_notebook(self)

    @property
    def winner(self) -> str:
        return self.results["winner"]

    @property
    def model(self) -> Path:
        """The folder of the final model."""
        return self.folder / BEST

    @property
    def page(self) -> Path:
        return self.folder / REPORT

    @cached_property
    def predictor(self) -> Predictor:
        """The final model, opened."""
        return BaselineModel.open(self.model) if is_baseline(self.model) else TaskModel.open(self.model)

    def predict(self, inputs: Inputs) -> list[Answer]:
        """Answer texts, records or the rows of a DataFrame."""
        return self.predictor.predict(inputs)

    def evaluate(self, examples: str | Path | Examples[Any]) -> dict[str, Score]:
        """Score the final model on labelled examples, or a file of them."""
        return self.predictor.evaluate(examples)

    def export(self, out: str | Path) -> Path:
        """Write the final model in its published form into a new folder."""
        reason = export_model(self.model, Path(out))
        if reason is not None:
            raise UserError(reason)
        return Path(out)


def pick(
    text: Sequence[str],
    task: str,
    train: str | Path,
    out: str | Path,
    minutes: float,
    *,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    starts: Sequence[str | Path] = (),
    recipes: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    text_field: Sequence[str] = (),
    errors: str = "strict",
    unique: bool = False,
    encoding: str | None = None,
    skip_bad: bool = False,
    settings: Mapping[str, object] | None = None,
    accuracy: float | None = None,
    device: str | None = None,
    seed: int = 0,
    on: Literal["here", "ray"] = "here",
    begin: float | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> PickResult:
    """Pick the best model for a task; the arguments are those of the verb (verbs/comparison.py).

    The minutes count from `begin` (of time.monotonic), now if None.
    """
    if accuracy is not None and not 0 < accuracy < 1:
        raise UserError(f"--accuracy is the share of answers that are right, such as 0.95, not {accuracy:g}.")
    if seed < 0:
        raise UserError(f"--seed {seed}: a seed is 0 or more.")
    if 60 * minutes < MIN_SECONDS:
        raise UserError(f"A pick takes at least {MIN_SECONDS:.0f} seconds: --minutes {minutes:g} is less.")
    begin = time.monotonic() if begin is None else begin
    loading = time.monotonic() - begin
    out, device = Path(out), _check_device(device)
    _refuse_other_files(out)
    _refuse_folder_of_text(out, text)
    try_writing(out, inside=True)
    if task in DATASETS:  # a published data set by name: its kind, and the settings by which it is scored
        task, settings = DATASETS[task].kind, {**DATASETS[task].settings, **(settings or {})}
    kind = task_module(task)
    _refuse_kind_without_contenders(task, has_encoders=bool(starts or text))
    task_settings = validate_settings(kind.Settings, _task_values(settings or {}), parse_overrides({}), "task")
    checked = check_inputs(
        list(text), task, train, dev=dev, test=test, columns=columns, settings=task_settings, text_field=text_field,
        errors=errors, unique=unique, encoding=encoding, skip_bad=skip_bad,
    )  # fmt: skip
    warnings = [problem.texts for problem in checked.warnings]
    for texts in warnings:
        on_progress(texts["en"])
    data = PickData.build(checked.train, checked.dev, checked.test, task_settings, HELD_OUT, seed)
    if accuracy is not None and not isinstance(data.scoring, LabelScoring):
        raise UserError(f"--accuracy withholds labels that are unsure, and {task} answers none: leave it out.")
    pile = PickText(checked.text, checked.corpus, out / "corpora") if text else None
    start_encoders = [open_start(*_parse_start(start)) for start in starts]
    _refuse_equal_names([encoder.name for encoder in start_encoders])
    for encoder in start_encoders:
        check_start(encoder.folder)
    scratch = parse_candidates(list(recipes), device)
    for candidate in scratch:
        # an unknown name is said before anything is done
        if Recipe.load(candidate.recipe, dict(candidate.changes)).reads_graph:
            raise UserError(f"{candidate.recipe} learns from a graph, and a pick reads text: name another recipe.")
    if not text:
        _refuse_options_of_text(recipes, text_field, errors, unique)
    out.mkdir(parents=True, exist_ok=True)
    with lock_folder(out):
        verify_checksums(out)
        journal = Journal(
            out, _fingerprint_inputs(data, pile, start_encoders, scratch, minutes, device, seed, accuracy)
        )
        if journal.changed:
            on_progress(
                f"Changed since the last pick here: {', '.join(journal.changed)}. What depends on it is done again."
            )
        if journal.is_resumed and (finished := _read_finished(out)) is not None:
            on_progress("This pick is done already; nothing changed.")
            return finished
        (out / CHECKSUMS).unlink(missing_ok=True)
        journal.start(60 * minutes, time.monotonic() - begin)
        pool = _open_pool(on, device, out)
        loading = journal.decide("loading", lambda: loading)
        clock, train_labels = journal.clock, checked.train
        assert clock is not None
        count = journal.decide("labels", lambda: count_labels(data, train_labels, clock.left, seed))
        limit: Label | None = None
        if count < len(train_labels):
            train_labels = take_labels(train_labels, count, seed)
            data = PickData.build(train_labels, checked.dev, checked.test, task_settings, HELD_OUT, seed)
            limit = _describe_limit(len(train_labels), len(checked.train), minutes)
            on_progress(limit["en"])
        race = Race(data, journal, CellStore(out / CELLS), device, seed, on_progress, pool, loading)
        race.notes += [] if limit is None else [limit]
        (out / CELLS).mkdir(exist_ok=True)
        continued = [
            (encoder, Candidate(f"{encoder.name} continued",
                                {"en": f"{encoder.label['en']} continued", "ko": f"{encoder.label['ko']} 추가 학습"},
                                encoder.folder, {}, is_start=True))
            for encoder in start_encoders
        ]  # fmt: skip
        with closing(pool) if pool is not None else nullcontext():
            run_race(race, pile, continued, scratch, must_pay=not recipes)
        winner = choose_winner(race)
        score = score_held_out(race, winner)
        scaling = calibrate(race, winner, accuracy)
        note_answers(race, scaling, accuracy)
        write_best(race, winner, out / BEST, scaling, accuracy, on_progress)
        not_exported = export_model(out / BEST, out / BEST / EXPORT)
        results = report.collect(race, winner, score, scaling, not_exported, warnings)
        page.write(out / REPORT, results)
        checkpoint.write_text(out / RESULTS, json.dumps(results, indent=1, ensure_ascii=False))
        journal.finish()
        write_checksums(out, (JOURNAL, RESULTS))
        return PickResult(out, results)


def _describe_limit(count: int, given: int, minutes: float) -> Label:
    return {
        "en": f"Learns from {count:,} of {given:,} labels: fits on all of them would take too much of {minutes:g} "
        f"minute{'s' * (minutes != 1)}. More --minutes use more.",
        "ko": f"레이블 {given:,}개 중 {count:,}개로 학습합니다. 모두 쓰면 {minutes:g}분 안에 끝나지 않습니다. "
        "--minutes를 늘리면 더 씁니다.",
    }


def _open_pool(on: Literal["here", "ray"], device: str, out: Path) -> WorkerPool | None:
    """Processes that share a GPU, or a cluster; None where this process does everything."""
    if on == "ray":
        from etude.pick.ray_pool import RayPool

        return RayPool(out, device)
    slots = count_slots(device)
    return WorkerPool(slots, out) if slots > 1 else None


def _check_device(device: str | None) -> str:
    if device is None:
        return default_device()
    if device not in ("cpu", "cuda"):
        raise UserError(f"--device {device}: a pick runs on cpu or cuda. CUDA_VISIBLE_DEVICES says which GPU.")
    return resolve_device(device).type


def _refuse_kind_without_contenders(task: str, has_encoders: bool) -> None:
    """Refuse a kind of task that no baseline and no linear head can do: nothing could be compared."""
    kinds = sorted({kind for families in baselines.FAMILIES.values() for kind in families})
    if task not in kinds and not (has_encoders and probe.supports(task)):
        hint = "Fine-tune a run for it: etude finetune." if not probe.supports(task) else "Give it a --start, or text."
        raise UserError(f"A pick compares models of {', '.join(kinds)}, and has none of {task}. {hint}")


def _refuse_options_of_text(recipes: Sequence[str], text_field: Sequence[str], errors: str, unique: bool) -> None:
    """Refuse options that say how text is read or what learns from it, where there is no text."""
    given = {"--recipes": bool(recipes), "--text-field": bool(text_field), "--errors": errors != "strict",
             "--unique": unique}  # fmt: skip
    for option, is_given in given.items():
        if is_given:
            raise UserError(f"{option} is of plain text, and none is named: name files of text, or leave it out.")


def _refuse_other_files(out: Path) -> None:
    """Refuse a folder that is no pick's and holds what a pick would write over, such as a run that is called best."""
    if (out / JOURNAL).is_file() or ((out / CELLS).is_dir() and not (out / STUDY).is_file()):
        return
    taken = [name for name in (RECIPE, STUDY, BEST, LABELS, RESULTS, REPORT, CHECKSUMS) if (out / name).exists()]
    if taken:
        raise UserError(
            f"{out} holds {taken[0]}, which no pick has put there, and a pick would write over what lies there. Choose "
            "another folder with -o."
        )


def _refuse_folder_of_text(out: Path, text: Sequence[str]) -> None:
    """Refuse a folder among the text: the same command would read what the pick has written there as more text."""
    for name in text:
        if Path(name).is_dir() and out.resolve().is_relative_to(Path(name).resolve()):
            raise UserError(
                f"-o {out} lies in {name}, and all files there are read as text: those of the pick would be, too. "
                "Choose a folder elsewhere."
            )


def _task_values(settings: Mapping[str, object]) -> dict[str, Any]:
    unknown = [name for name in settings if not name.startswith("task.")]
    if unknown:
        raise UserError(f"'{unknown[0]}' is no setting of a pick: it takes those of the task, such as task.score.")
    return {name.removeprefix("task."): value for name, value in settings.items()}


def _parse_start(start: str | Path) -> tuple[Path, str]:
    """Read --start FOLDER or NAME=FOLDER; the name is the folder's, or its parent's where that says nothing."""
    name, equals, rest = str(start).partition("=")
    folder = Path(rest) if equals and not Path(start).is_dir() else Path(start)
    if not folder.is_dir():
        raise UserError(f"--start {start}: there is no such folder. Give a run, or a folder of transformers.")
    if folder != Path(start):
        return folder, name
    path = folder.resolve()
    return folder, path.parent.name if path.name in ("model", "export", "best") else path.name


def _refuse_equal_names(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"Two starts are called '{name}': name them, as in --start small=FOLDER.")


def _fingerprint_inputs(
    data: PickData, pile: PickText | None, starts: Sequence[Encoder], scratch: Sequence[Candidate], minutes: float,
    device: str, seed: int, accuracy: float | None,
) -> dict[str, str]:  # fmt: skip
    return {
        "the labels": hash_json([data.fingerprint, data.chosen_on.tolist(), data.scored_on.tolist()]),
        "the text": pile.fingerprint if pile is not None else "",
        "the starts": hash_json([[encoder.name, encoder.key] for encoder in starts]),
        "the recipes": hash_json([identify_recipe(candidate) for candidate in scratch]),
        "the minutes": f"{minutes:g}", "the device": device, "the seed": str(seed), "the accuracy": str(accuracy),
    }  # fmt: skip


def identify_recipe(candidate: Candidate) -> list[Any]:
    """What the results of a recipe depend on: its name, and the content of one that does not come with Etude."""
    name = [candidate.name, str(candidate.recipe), dict(candidate.changes)]
    if find_recipe(candidate.recipe).parent == RECIPES:
        return name
    recipe = Recipe.load(candidate.recipe, dict(candidate.changes))
    tokenizer = open_tokenizers(recipe.tokenizer).fingerprint if Path(recipe.tokenizer).exists() else None
    return [*name, recipe.dump(), tokenizer]


def _read_finished(out: Path) -> PickResult | None:
    journal_done = json.loads((out / "pick.json").read_text(encoding="utf-8")).get("finished")
    if not journal_done or not (out / RESULTS).is_file() or not (out / BEST).is_dir():
        return None
    return PickResult(out, json.loads((out / RESULTS).read_text(encoding="utf-8")))
