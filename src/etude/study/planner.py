"""Planning of a study: how long everybody trains, and the whole grid of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from etude.errors import UserError
from etude.pretraining.student import with_teacher, without_teacher
from etude.runs.source import resolve_for
from etude.study.budget import (
    Machine,
    compute_cost,
    compute_length,
    make_placeholder_corpus,
    stretch_schedule,
)
from etude.study.executors import count_threads
from etude.study.label_splits import check_files
from etude.study.plan import Draft, Plan, Row, format_budget
from etude.study.plan_cells import list_cells
from etude.study.sections import FROZEN, MAJORITY, Localized
from etude.study.settings import Entry, Study
from etude.study.starts import open_first, open_start
from etude.study.text_source import TextSource
from etude.study.tuning import plan_tuning, tune_draft, with_settings


def make_plan(
    study: Study,
    folder: Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    dry: bool = False,
    keep: bool = False,
    report_only: bool = False,
    any_version: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Plan the whole grid. Prepares the corpora first; a dry run estimates those that do not exist.

    workers: The processes that will share the cores of this machine; None if this one runs the cells.
    report_only: No cell will run, so the plan is that of the machine whose cells lie in the folder.
    any_version: Cells that another version of the code or of torch has done, with the same settings, text and data, are
        done.
    """
    check_files(study)
    machine = Machine(folder / "machine.json", device, report_only, count_threads(workers) if workers else None)
    if not dry:
        machine.save()
    plan = Plan(study, folder, machine, TextSource(study.text, folder), keep, dry)
    if any_version:
        plan.done_before = plan.store.list_done()
    entries = study.entries()
    drafts = _tune_drafts(plan, _make_drafts(plan, entries, dry, on_progress))
    amounts = study.budget.amounts
    for amount in amounts:
        for draft in drafts:
            plan.rows.append(_make_row(plan, draft, drafts, amount, has_curve=len(amounts) > 1))
    if not report_only:
        _refuse_small_budget(study, plan.rows)
    for entry in entries:
        if (run := entry.run(study)) is not None:
            plan.rows.append(Row(entry.name, "start", entry.label, _draft_start(plan, entry, run)))
    drafted = {draft.entry.contender: draft for draft in reversed(drafts)}
    for name, contender in study.controls().items():
        draft = drafted[contender]
        plan.rows.append(Row(name, "control", _localize_baseline(name), draft))
    plan.rows += [Row(name, "baseline", BASELINE_LABELS[name], None) for name in study.control.baselines]
    plan.rows.append(Row(FROZEN, "frozen", _localize_baseline(FROZEN), drafts[0]))
    plan.rows.append(Row(MAJORITY, "majority", _localize_baseline(MAJORITY), None))
    for cell in (*plan.tuning_cells.values(), *list_cells(plan)):
        plan.cells.setdefault(cell.key, cell)
    return plan


def _make_drafts(plan: Plan, entries: list[Entry], dry: bool, on_progress: Callable[[str], None]) -> list[Draft]:
    """Draft every contender with a recipe, in the order of the study; a student is drafted after its teacher."""
    drafts: dict[str, Draft] = {}
    for entry in _teachers_first(plan.study, entries):
        teacher = plan.study.contenders[entry.contender].teacher
        drafts[entry.name] = _make_draft(plan, entry, dry, on_progress, drafts[teacher] if teacher else None)
    return [drafts[entry.name] for entry in entries if entry.name in drafts]


def _tune_drafts(plan: Plan, drafts: list[Draft]) -> list[Draft]:
    """Return every contender with what its trials chose so far, and every student with its teacher as it was tuned."""
    tuned: dict[str, Draft] = {}
    by_name = {draft.entry.name: draft for draft in drafts}
    for entry in _teachers_first(plan.study, [draft.entry for draft in drafts]):
        draft = by_name[entry.name]
        if draft.teacher is not None:
            draft = with_settings(replace(draft, teacher=tuned[draft.teacher.entry.name]), {})
        tuned[entry.name] = draft if plan.study.tune_pretraining is None else _tune(plan, draft, drafts, tuned)
    return [tuned[draft.entry.name] for draft in drafts]


def _teachers_first(study: Study, entries: list[Entry]) -> list[Entry]:
    with_recipe = [entry for entry in entries if entry.run(study) is None]
    return sorted(with_recipe, key=lambda entry: study.contenders[entry.contender].teacher is not None)


def _tune(plan: Plan, draft: Draft, drafts: list[Draft], tuned: Mapping[str, Draft]) -> Draft:
    """Plan the trials of a contender and return it with what they chose so far."""
    beside = [tuned.get(each.entry.name, each) for each in drafts]
    tuning = plan_tuning(
        plan,
        draft,
        lambda changed, amount: _make_row(plan, changed, drafts, amount, has_curve=False),
        lambda changed, amount: _make_row(plan, changed, beside, amount, has_curve=False),
    )
    plan.tunings[draft.entry.name] = tuning
    return tune_draft(draft, tuning)


BASELINE_NAMES: dict[str, str] = {
    "no pre-training": "사전 학습 없음", FROZEN: "고정된 무작위 인코더", MAJORITY: "최빈값",
}  # fmt: skip


BASELINE_LABELS: dict[str, Localized] = {
    "tfidf": {"en": "tf-idf, linear", "ko": "tf-idf, 선형"}, "ngrams": {"en": "bag of n-grams", "ko": "n-gram 모음"},
}  # fmt: skip


def _localize_baseline(name: str) -> Localized:
    for english, korean in BASELINE_NAMES.items():
        if name.startswith(english):
            return {"en": name, "ko": name.replace(english, korean)}
    return name


# --- who trains how long ----------------------------------------------------------------------------


def _make_draft(
    plan: Plan, entry: Entry, dry: bool, on_progress: Callable[[str], None], teacher: Draft | None
) -> Draft:
    contender = plan.study.contenders[entry.contender]
    recipe, own_text, first = entry.recipe(plan.study), contender.text, open_first(contender.start, contender.entities)
    recipe = without_teacher(recipe) if teacher is None else with_teacher(recipe)
    source = TextSource(own_text, plan.folder) if own_text is not None else plan.source
    ready = source.is_ready(recipe.tokenizer)
    corpus = source.open_corpus(recipe.tokenizer, on_progress) if ready or not dry else None
    similar = corpus or source.find_similar(recipe.tokenizer)
    recipe = recipe if first is None else first.complete(recipe, corpus)
    resolved = plan.machine.fit_recipe(resolve_for(recipe, similar) if similar else recipe.resolve())
    place = source.corpus_folder(recipe.tokenizer)
    if teacher is not None and place != teacher.corpus_folder:
        raise UserError(
            f"The contender {entry.name} and its teacher have different tokenizers ({recipe.tokenizer} and "
            f"{teacher.recipe.tokenizer}): a token would mean two things. Set both to one."
        )
    of_teacher = None if teacher is None else teacher.recipe
    if corpus is not None:
        cost = compute_cost(resolved, corpus, of_teacher)
    elif similar is not None:
        similar_cost = compute_cost(resolved, similar, of_teacher)
        cost = replace(similar_cost, epoch_tokens=int(similar_cost.epoch_tokens * source.text.share))
    else:
        plan.exact = False
        cost = compute_cost(resolved, make_placeholder_corpus(resolved), of_teacher)
        cost = replace(cost, epoch_tokens=int(source.size / 4))  # about, for pieces of words
    return Draft(entry, resolved, corpus, cost, place, first=first, teacher=teacher)


def _draft_start(plan: Plan, entry: Entry, run: str) -> Draft:
    start = open_start(run)
    recipe = plan.machine.fit_recipe(start.recipe.with_settings({"train.steps": 1}))
    return Draft(entry, recipe, None, compute_cost(recipe, make_placeholder_corpus(recipe)), start.folder, start)


def _make_row(plan: Plan, draft: Draft, drafts: list[Draft], amount: float, has_curve: bool) -> Row:
    study, kind = plan.study, plan.study.budget.kind
    contender = study.contenders[draft.entry.contender]
    epochs, rivals = contender.epochs, [other for other in drafts if other.entry.name in contender.flops_of]
    if rivals:
        lengths = [_make_row(plan, rival, drafts, amount, has_curve=False).length for rival in rivals]
        flops = sum(length.flops for length in lengths if length is not None)
        length = compute_length(draft.recipe, draft.cost, "flops", flops, study.epochs, None)
    elif epochs is not None:
        tokens = epochs * draft.cost.epoch_tokens
        length = compute_length(draft.recipe, draft.cost, "tokens", tokens, max(epochs, study.epochs), None)
    elif kind == "minutes" or (draft.cost.updates_itself and not all(other.cost.updates_itself for other in drafts)):
        minutes = amount if kind == "minutes" else fmean(_gradient_seconds(plan, drafts, amount)) / 60
        speed = plan.machine.tokens_per_second(draft.recipe, draft.corpus)
        length = compute_length(draft.recipe, draft.cost, "minutes", minutes, study.epochs, speed)
        length = replace(length, by_clock=kind != "minutes")
    else:
        length = compute_length(draft.recipe, draft.cost, kind, amount, study.epochs, None)
    recipe = stretch_schedule(draft.recipe, draft.cost, length, study.curve)
    name = f"{draft.entry.name} @ {format_budget(kind, amount)}" if has_curve else draft.entry.name
    teacher = None
    if draft.teacher is not None:
        # of a trial too: a student is tuned for the teacher that it will have
        full = amount if amount in study.budget.amounts else study.budget.amounts[-1]
        teacher = _make_row(plan, draft.teacher, drafts, full, has_curve)
    return Row(name, "contender", draft.entry.label, draft, amount, recipe, length, teacher)


def _refuse_small_budget(study: Study, rows: list[Row]) -> None:
    """Raise UserError where one step of a contender costs more than the budget: compute would not be equal."""
    steps: list[tuple[str, float, float]] = []  # (row, cost of a step, budget), of those that the budget is meant for
    for row in rows:
        length, entry = row.length, row.draft.entry if row.draft is not None else None
        if length is None or length.by_clock or length.capped or entry is None or row.amount is None:
            continue
        contender = study.contenders[entry.contender]
        if contender.epochs is None and not contender.flops_of:
            steps.append((row.name, length.tokens / length.steps * row.amount / length.budget_tokens, row.amount))
    over = [(name, amount) for name, cost, amount in steps if cost > amount]
    if over:
        kind, (name, amount) = study.budget.kind, over[0]
        raise UserError(
            f"{study.name}: budget: {format_budget(kind, amount)} are less than one step of {name} costs, so compute "
            f"would not be equal. Give at least {{{kind}: {10 * max(cost for _, cost, _ in steps):.1e}}}, ten steps "
            "of every contender."
        )


def _gradient_seconds(plan: Plan, drafts: list[Draft], amount: float) -> list[float]:
    """Estimate the seconds of each contender that learns by gradients, as long as it trains in the study."""
    seconds = []
    for draft in drafts:
        if draft.cost.updates_itself:
            continue
        if _goes_by_clock(plan, draft, drafts):  # it waits for what these seconds decide: as long as the others
            length = compute_length(draft.recipe, draft.cost, plan.study.budget.kind, amount, plan.study.epochs, None)
        else:
            planned = _make_row(plan, draft, drafts, amount, has_curve=False).length
            assert planned is not None
            length = planned
        timed = draft.teacher or draft  # a trial knows no teacher: a student has its teacher's speed in FLOPs
        speed = plan.machine.tokens_per_second(timed.recipe, timed.corpus)
        seconds.append(length.tokens * (draft.cost.flops_per_token / timed.cost.flops_per_token) / speed)
    return seconds


def _goes_by_clock(plan: Plan, draft: Draft, drafts: list[Draft]) -> bool:
    """Whether the length of a contender follows from that of word vectors, by `flops_of`, directly or not."""
    names = plan.study.contenders[draft.entry.contender].flops_of
    rivals = [other for other in drafts if other.entry.name in names]
    return any(rival.cost.updates_itself or _goes_by_clock(plan, rival, drafts) for rival in rivals)
