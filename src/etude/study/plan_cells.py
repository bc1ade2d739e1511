"""Cells of a plan: what each depends on, its key, and what it will cost."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

from etude.recipes.schema import Recipe
from etude.study import cell_code
from etude.study.cells import Cell
from etude.study.label_splits import TaskFiles
from etude.study.plan import Column, Draft, Plan, Row, Unit
from etude.study.prompts import TaskPrompt
from etude.study.relative_paths import locate_settings
from etude.study.sections import Changes
from etude.study.text_source import hash_json
from etude.text.checked_files import MANIFEST
from etude.text.run_checksums import CHECKSUMS

EVALUATIONS = 10  # on dev in a transfer, where the study does not say: the best of them is taken
TRANSFER_OVERHEAD = 1.5  # seconds that a transfer takes beside its steps: reading, building, saving, predicting
# how answers are scored
SCORING = ("task.score", "task.positive", "task.nothing", "task.rules", "task.scheme", "task.tokenizer")
READING = ("task.typed", "task.signs")  # how the text of an example is read, by a baseline of words too
LENGTHS = ("train.epochs", "train.steps", "train.tokens", "train.flops")


def list_cells(plan: Plan) -> Iterator[Cell]:
    """Yield the cells seed by seed, so that an interrupted study has complete seeds."""
    for seed in range(plan.study.seeds.pretrain):
        for row in plan.rows:
            base: Cell | None = None
            if row.draft is not None:
                base = base_cell(plan, row, row.draft, seed)
                plan.bases[row.name, seed] = base.key
                yield base
            for second in range(plan.study.seeds.transfer):
                for column in plan.columns:
                    for number, tuned in enumerate(plan.tune_grid(row)):
                        cell = transfer_cell(plan, row, column, (seed, second), tuned, base)
                        plan.trials[row.name, column.name, number, (seed, second)] = cell.key
                        yield cell


def base_cell(plan: Plan, row: Row, draft: Draft, seed: int) -> Cell:
    """Plan the pre-training of a row; of a baseline, its initial weights; of a start, the copy of its run."""
    if row.kind == "start":
        assert draft.start is not None
        return Cell(
            **_choose_key(plan, ["start", draft.start.fingerprint], cell_code.start(), []),
            kind="start",
            title=f"weights of {row.name}",
            arguments={"run": str(draft.start.folder)},
            position={"row": row.name, "seed": seed},
            seconds=1.0,
            needs=_cell_needs(plan),
        )
    if (teacher := teacher_cell(plan, row, seed)) is not None:
        return _distillation_cell(plan, row, draft, seed, teacher)
    is_trained = row.recipe is not None
    recipe = (row.recipe or draft.recipe.with_settings({"train.steps": 1})).with_settings({"train.seed": seed})
    kind: Literal["pretrain", "untrained"] = "pretrain" if is_trained else "untrained"
    code = (cell_code.pretraining if is_trained else cell_code.initial_weights)(
        recipe.model_kind, recipe.objective_kind
    )
    arguments = {"recipe": recipe.dump(), "corpus": str(draft.corpus_folder)}
    depends: list[object] = [kind, _key_settings(recipe), draft.fingerprint]
    if draft.first is not None:
        contender = plan.study.contenders[draft.entry.contender]
        depends.append(draft.first.fingerprint)
        code = hash_json([code, cell_code.first_weights()])
        # a baseline without pre-training has the entity vectors alone
        sources = {"start": contender.start if is_trained else None, "entities": contender.entities}
        arguments |= {name: str(Path(source).resolve()) for name, source in sources.items() if source is not None}
    return Cell(
        **_choose_key(plan, depends, code, [plan.machine.torch_version]),
        kind=kind,
        title=f"pre-training {row.name}, seed {seed}"
        if is_trained
        else f"first weights of {draft.entry.name}, seed {seed}",
        arguments=arguments,
        position={"row": row.name, "seed": seed},
        text=draft.fingerprint,
        flops=row.length.flops if row.length else 0.0,
        seconds=row.length.tokens / plan.tokens_per_second(draft) if row.length else 0.2,
        needs=_cell_needs(plan),
    )


def teacher_cell(plan: Plan, row: Row, seed: int) -> Cell | None:
    """Plan the pre-training that a row learns from, with the same seed; None where it has no teacher."""
    if row.teacher is None:
        return None
    assert row.teacher.draft is not None
    return base_cell(plan, row.teacher, row.teacher.draft, seed)


def _distillation_cell(plan: Plan, row: Row, draft: Draft, seed: int, teacher: Cell) -> Cell:
    assert row.recipe is not None and row.length is not None and draft.teacher is not None
    recipe, of_teacher = row.recipe.with_settings({"train.seed": seed}), draft.teacher.recipe
    code = cell_code.distillation(
        (recipe.model_kind, recipe.objective_kind), (of_teacher.model_kind, of_teacher.objective_kind)
    )
    depends: list[object] = ["distill", _key_settings(recipe), draft.fingerprint, teacher.settings_key]
    return Cell(
        **_choose_key(plan, depends, code, [teacher.key, plan.machine.torch_version]),
        kind="distill",
        title=f"distillation {row.name}, seed {seed}",
        arguments={"recipe": recipe.dump(), "corpus": str(draft.corpus_folder), "teacher": teacher.key},
        position={"row": row.name, "seed": seed},
        depends_on=teacher.key,
        text=draft.fingerprint,
        flops=row.length.flops,
        seconds=row.length.tokens / plan.tokens_per_second(draft),
        needs=_cell_needs(plan),
    )


class _Keys(TypedDict):
    key: str
    settings_key: str
    code: str


def _choose_key(plan: Plan, depends: list[object], code: str, versions: list[object]) -> _Keys:
    """Return the keys of a cell, and the hash of its code.

    depends: All that its result depends on but code, torch and the versions of the cell that it starts from.
    versions: These.
    """
    settings_key = hash_json(depends)
    key = hash_json([settings_key, code, versions])
    if settings_key in plan.done_before and plan.store.state(key) != "done":
        key = plan.done_before[settings_key]
    return {"key": key, "settings_key": settings_key, "code": code}


def _key_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that a result depends on: not names, notes or when checkpoints are saved.

    Those that have their default are left out, so that a setting which a later version adds changes nothing; the
    defaults themselves are code.
    """
    train = recipe.train.model_dump(mode="json", exclude_defaults=True)
    for name in ("save_every", "keep", "tensorboard", "log_every", "workers"):
        train.pop(name, None)
    return {
        "model": [recipe.model_kind, recipe.model.model_dump(mode="json", exclude_defaults=True)],
        "objective": [recipe.objective_kind, recipe.objective.model_dump(mode="json", exclude_defaults=True)],
        "train": train,
    }


def transfer_cell(plan: Plan, row: Row, column: Column, unit: Unit, tuned: Changes, base: Cell | None) -> Cell:
    task, files = plan.study.tasks[column.task], plan.files[column.task]
    unit_number = unit[0] * plan.study.seeds.transfer + unit[1]  # drawn labels and heads differ from unit to unit
    # the drawn labels are drawn evenly, so the majority is that of all there are
    train = files.write_train(column.labels if row.kind != "majority" else None, unit_number)
    examples = _count_lines(train)
    settings = _transfer_settings(plan, row, column, tuned, examples, unit_number)
    located = locate_settings(settings, plan.study.root)
    kind: Literal["majority", "baseline", "direct", "prompt", "transfer"] = "majority"
    if row.kind == "baseline":
        kind, code = "baseline", cell_code.baseline(task.kind)
    elif row.draft is None:
        code = cell_code.majority(task.kind)
    else:
        kind = "direct" if task.direct else "transfer" if task.prompt is None else "prompt"
        make_code = {"direct": cell_code.direct, "prompt": cell_code.prompt, "transfer": cell_code.transfer}[kind]
        code = make_code(row.draft.recipe.model_kind, row.draft.recipe.objective_kind, task.kind)
    data_hashes = [_read_file(path).digest for path in (train, files.dev, files.test)]
    key_settings = {
        name: value
        for name, value in settings.items()
        if (name.startswith("task.") if kind != "transfer" else name != "train.save_every")
    }
    data_hashes += [_read_file(path).digest for path in _named_files(located)]
    depends: list[object] = [
        kind, base.settings_key if base else None, task.kind, key_settings, task.columns, data_hashes
    ]  # fmt: skip
    arguments: dict[str, Any] = {
        "base": base.key if base else None, "task": task.kind, "train": str(train), "dev": str(files.dev),
        "test": str(files.test), "columns": task.columns, "settings": located, "keep": plan.keep,
    }  # fmt: skip
    if kind == "baseline":
        arguments["baseline"] = row.name
        depends += [row.name, unit_number]
    if task.prompt is not None:
        arguments["prompt"] = task.prompt.model_dump(mode="json")
        depends += [arguments["prompt"], settings["train.seed"] if base else None]  # which examples are shown
    flops, seconds = (0.0, 2.0) if task.direct else _estimate_transfer(plan, row, settings, train, files)
    if task.prompt is not None and row.draft is not None:
        flops, seconds = _estimate_prompts(plan, row.draft, task.prompt, train, files)
    versions: list[object] = [base.key if base else None]
    if base is not None and base.kind == "start":  # a copy of weights, whose key is that of every version of torch
        versions.append(plan.machine.torch_version)
    suffix = f", {', '.join(f'{name}={value}' for name, value in tuned.items())}" if tuned else ""
    return Cell(
        **_choose_key(plan, depends, code, versions),
        kind=kind,
        title=f"{row.name} on {column.name}, seed {unit[0]}.{unit[1]}{suffix}",
        arguments=arguments,
        position={"row": row.name, "column": column.name, "unit": list(unit), "tuned": tuned},
        depends_on=base.key if base else None,
        flops=flops,
        seconds=seconds,
        needs=_cell_needs(plan),
    )


def _named_files(settings: Changes) -> list[Path]:
    """List the files that settings name: of a folder what vouches for it, a graph's manifest or a run's checksums.

    A setting may be a group of others, such as `task.network: {vectors: runs/words}`.
    """
    files: list[Path] = []
    for _, value in sorted(settings.items()):
        if isinstance(value, dict):
            files += _named_files(value)
        elif isinstance(value, str) and value:
            place = Path(value)
            files += [file for file in (place, place / MANIFEST, place / CHECKSUMS) if _is_file(file)]
    return files


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a text that is too long for a name
        return False


def _cell_needs(plan: Plan) -> dict[str, float]:
    needs = plan.study.needs
    gpus = needs.gpus if needs.gpus is not None else float(plan.machine.device.startswith("cuda"))
    return {"cpus": needs.cpus, "gpus": gpus}


def _transfer_settings(plan: Plan, row: Row, column: Column, tuned: Changes, examples: int, seed: int) -> Changes:
    """Merge the settings of a transfer: study, task, contender, tuning, then the kind of row."""
    study = plan.study
    settings: Changes = dict(study.tasks[column.task].set)
    if row.draft is not None:
        settings = study.merge_transfer(column.task, row.draft.entry.contender, row.kind == "control")
    else:  # a baseline has no head or network that settings of the study could name, and is scored like everybody
        shared = SCORING if row.kind == "majority" else (*SCORING, *READING)
        settings = {**{name: study.transfer[name] for name in shared if name in study.transfer}, **settings}
    settings |= tuned
    if row.kind == "frozen":
        settings |= {"transfer.frozen": True}
        for name in ("train.lr", "train.epochs", "transfer.freeze", "transfer.dropout", "train.layer_decay"):
            settings.pop(name, None)  # those of fine-tuning; a head on features has usual values of its own
    if row.kind == "control":
        settings = _set_control_length(plan, row, settings, examples)
        settings.pop("transfer.frozen", None)
        settings |= study.control.set
        if any(name in study.control.tune for name in LENGTHS):
            settings = {name: value for name, value in settings.items() if name not in LENGTHS}
        settings |= {name: tuned[name] for name in study.control.tune}
    settings = {"train.precision": plan.machine.precision, **settings}  # a study may ask for its own
    settings |= {"train.seed": seed, "train.device": plan.machine.device}
    if row.draft is not None and "train.eval_every" not in settings:
        defaults = row.draft.transfer_defaults[bool(settings.get("transfer.frozen"))]
        batch = settings.get("train.batch_examples", defaults["batch_examples"])
        steps = settings.get("train.steps")
        if not any(name in settings for name in ("train.steps", "train.tokens", "train.flops")):
            steps = math.ceil(settings.get("train.epochs", defaults["epochs"]) * examples / batch)
        if steps is not None:
            settings["train.eval_every"] = max(1, math.ceil(steps / EVALUATIONS))
    return settings


def _set_control_length(plan: Plan, row: Row, settings: Changes, examples: int) -> Changes:
    """Give a control its own number of epochs, or the length of its contender's transfer where that is longer.

    settings: Of the contender's transfer. Where they give tokens or FLOPs, nothing tells beforehand which of the two is
        longer: the epochs count.
    """
    assert row.draft is not None
    epochs, defaults = plan.study.control.epochs, row.draft.transfer_defaults
    contender_epochs = settings.get("train.epochs")
    if not any(name in settings for name in LENGTHS):
        contender_epochs = defaults[bool(settings.get("transfer.frozen"))]["epochs"]
        if epochs is None:  # a head on features has more of them than fine-tuning, which a control is
            is_shorter = defaults[False]["epochs"] < contender_epochs
            return {**settings, "train.epochs": contender_epochs} if is_shorter else settings
    if epochs is None:
        return settings
    others = {name: value for name, value in settings.items() if name not in LENGTHS}
    if (steps := settings.get("train.steps")) is None:
        return {**others, "train.epochs": max(epochs, contender_epochs or 0)}
    batch = {**settings, **plan.study.control.set}.get("train.batch_examples", defaults[False]["batch_examples"])
    return settings if steps > math.ceil(epochs * examples / batch) else {**others, "train.epochs": epochs}


def _estimate_transfer(plan: Plan, row: Row, settings: Changes, train: Path, files: TaskFiles) -> tuple[float, float]:
    """Estimate (FLOPs, seconds) of a transfer: four bytes per token, half of a record being text."""
    if row.draft is None:
        return 0.0, 0.2
    frozen = bool(settings.get("transfer.frozen"))
    epochs = settings.get("train.epochs", row.draft.transfer_defaults[frozen]["epochs"])
    if "train.steps" in settings:
        examples = max(1, _count_lines(train))
        epochs = settings["train.steps"] * settings.get("train.batch_examples", 32) / examples
    train_tokens, dev_tokens, test_tokens = (path.stat().st_size / 8 for path in (train, files.dev, files.test))
    tokens = train_tokens * (1 if frozen else epochs)
    evaluated = (dev_tokens * (1 if frozen else EVALUATIONS) + test_tokens) / 3
    return tokens * row.draft.cost.flops_per_token, (tokens + evaluated) / plan.tokens_per_second(
        row.draft
    ) + TRANSFER_OVERHEAD


def _estimate_prompts(
    plan: Plan, draft: Draft, prompt: TaskPrompt, train: Path, files: TaskFiles
) -> tuple[float, float]:
    """Estimate (FLOPs, seconds) of answering prompts: every question is read with its shots, once for each answer."""
    example = train.stat().st_size / max(1, _count_lines(train)) / 4
    questions = sum(_count_lines(path) for path in (files.dev, files.test))
    answers = max(2, len(prompt.answers))
    tokens = questions * answers * sum(1 + shots for shots in prompt.all_shots) * example
    seconds = tokens / 3 / plan.tokens_per_second(draft) + TRANSFER_OVERHEAD
    return tokens / 3 * draft.cost.flops_per_token, seconds


class _FileFacts(NamedTuple):
    digest: str
    lines: int


def _read_file(path: Path) -> _FileFacts:
    """Hash a file and count its lines; once while it stays as it is, for it is part of many cells."""
    return _scan_file(path, path.stat().st_mtime_ns)


def _count_lines(path: Path) -> int:
    return _read_file(path).lines


@cache
def _scan_file(path: Path, modified: int) -> _FileFacts:
    digest, lines = hashlib.blake2b(digest_size=16), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            lines += block.count(b"\n")
    return _FileFacts(digest.hexdigest(), lines)
