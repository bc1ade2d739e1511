"""The end of a pick: the winner scored on examples that nothing was chosen on, refitted on all labels, and exported."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from etude.baselines.base import is_baseline
from etude.baselines.export import export_baseline
from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.own_class import export_with_own_class
from etude.inference.abstention import Abstention
from etude.pick import calibration
from etude.pick.baseline_card import format_baseline_card
from etude.pick.clock import OutOfTime
from etude.pick.contenders import Contender
from etude.pick.race import Entry, Race
from etude.pick.resampling import draw_scores
from etude.runs.run import MODEL_CARD
from etude.tasks.base import Answer
from etude.tasks.outcomes import Outcome
from etude.train import checkpoint

DRAWS = 5_000
LEVEL = 0.95
EXPORT, LABELS = "export", "labels"
LEAST_SCORED = 100  # examples: fewer say too little
LATEST = 0.1  # of the time that a pick may take longer
SCORED_SHARE = "scored share"  # the decision how much of a test file is answered


@dataclass(frozen=True)
class HeldOutScore:
    """The official score on examples that nothing was chosen on, with its interval over examples."""

    value: float
    low: float
    high: float
    numbers: np.ndarray  # of the examples, in the order of the answers
    answers: list[Answer]

    @property
    def examples(self) -> int:
        return len(self.numbers)

    def json(self) -> dict[str, Any]:
        return {"value": self.value, "low": self.low, "high": self.high, "examples": self.examples}


def choose_winner(race: Race) -> Entry:
    """The first of the ranking whose scored fit and refit end in time; the cheapest where none does."""
    ranking = race.ranking()
    if not ranking:
        reasons = "; ".join(f"{name}: {entry.note}" for name, entry in race.entries.items() if entry.note)
        remedy = "Where the time was short, give it more --minutes."
        raise UserError(f"No contender could be tried. {reasons}{'. ' * bool(reasons)}{remedy}")
    name = race.journal.decide("winner", lambda: _first_in_time(race, ranking))
    return race.entries[name]


def _first_in_time(race: Race, ranking: list[str]) -> str:
    in_time = (name for name in ranking if _ends_in_time(race, race.entries[name]))
    chosen = next(in_time, None) or min(ranking, key=lambda name: race.refit_seconds(race.entries[name]))
    for name in ranking[: ranking.index(chosen)]:
        label = race.entries[name].contender.label
        race.note(f"{label['en']} was better, but no time is left to refit it",
                  f"{label['ko']}: 더 나았지만 다시 학습할 시간이 없음")  # fmt: skip
    return chosen


def _ends_in_time(race: Race, entry: Entry) -> bool:
    """Whether a contender can be scored and refitted in time, with a margin: for both fits, or for the last one.

    While the scored fit runs there is time to notice that the machine is slower, and to leave the score out.
    """
    margin, left = entry.contender.fit_margin, race.clock.left
    if margin * _fit_seconds(race, entry) <= (1 + LATEST) * left:
        return True
    needed = race.scored_seconds(entry) + margin * race.refit_seconds(entry) + race.finishing_seconds()
    return needed <= left + LATEST * race.clock.total


def _fit_seconds(race: Race, entry: Entry) -> float:
    """Seconds of the scored fit and the refit, without the answers."""
    return race.scored_seconds(entry) + race.refit_seconds(entry)


def score_held_out(race: Race, entry: Entry) -> HeldOutScore | None:
    """Score a contender that learnt from what it was chosen on; None where the time is over.

    Where there is no time to answer all of a large test file, a part of it is drawn.
    """
    data = race.data
    margin, seconds = entry.contender.fit_margin, _fit_seconds(race, entry)
    end, late = race.finishing_seconds(), LATEST * race.clock.total
    deadline = race.clock.deadline(end + margin * race.refit_seconds(entry)) + late
    # a fit of a baseline cannot be stopped on the way; one that a kill came after takes no time
    if end + seconds > race.clock.left + late and not _is_scored(race, entry):
        return None
    room, needed = race.clock.left + late - end - margin * seconds, race.answering_seconds(entry)
    fitting = 1.0 if not needed else min(1.0, max(0.0, room) / (margin * needed))
    share = race.journal.decide(SCORED_SHARE, lambda: fitting)
    numbers = draw_part(data.scored_on, share, race.seed)
    try:
        answers, _ = race.run_trial(entry.contender, data.chosen_on, numbers, deadline)
    except OutOfTime:
        return None
    outcome = data.outcome(numbers, answers)
    return HeldOutScore(float(outcome.score()), *bound_score(outcome, race.seed), numbers, answers)


def _is_scored(race: Race, entry: Entry) -> bool:
    """Whether the answers that are scored are in the store."""
    share = race.journal.values["decisions"].get(SCORED_SHARE)
    if share is None:
        return False
    return race.has_trial(entry.contender, race.data.chosen_on, draw_part(race.data.scored_on, share, race.seed))


def bound_score(outcome: Outcome, seed: int) -> tuple[float, float]:
    """Return the ends of the 95 % interval over examples.

    Of a share of right answers it is that of Clopper and Pearson (1934). A bootstrap would call 20 right answers of 20
    "100 to 100 %", because it draws nothing that it has not seen. Other scores have its percentiles (Efron 1979).
    """
    count, error = len(outcome.parts), (1 - LEVEL) / 2
    if outcome.statistic == "mean" and np.isin(outcome.parts[:, 0], (0, 1)).all() and (outcome.parts[:, 1] == 1).all():
        hits = int(outcome.parts[:, 0].sum())
        low, above = (calibration.clopper_pearson_bound(number, count, error) for number in (hits, count - hits))
        return low, 1 - above
    scores = draw_scores(outcome, np.random.default_rng([seed, count]), DRAWS)
    low, high = np.quantile(scores, [error, 1 - error])
    return float(low), float(high)


def draw_part(numbers: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Draw a share of some examples, LEAST_SCORED at least where there are as many; in their order."""
    count = max(int(share * len(numbers)), min(LEAST_SCORED, len(numbers)))
    drawn: np.ndarray = np.sort(np.random.default_rng([seed, len(numbers)]).permutation(numbers)[:count])
    return numbers if count == len(numbers) else drawn


@dataclass(frozen=True)
class Calibration:
    """A temperature from out-of-fold probabilities, and the confidence above which answers are right often enough."""

    temperature: float
    error_before: float  # expected calibration error
    error_after: float
    loss_before: float  # negative log likelihood: what the temperature is fitted by
    loss_after: float
    answers: int  # that both were measured on
    threshold: float | None

    def json(self) -> dict[str, Any]:
        return vars(self).copy()


def calibrate(race: Race, entry: Entry, accuracy: float | None) -> Calibration | None:
    """Fit a temperature on the winner's out-of-fold answers; None where answers are no classes."""
    gold, probabilities, seen = [], [], set()
    for number in sorted(entry.trials.answers):
        for example, answer in zip(race.data.folds[number].valid.tolist(), entry.trials.answers[number], strict=True):
            label, scores = race.data.gold[example], answer.get("scores")
            if label is None or not isinstance(scores, dict):
                return None
            if label not in scores or example in seen:
                continue  # a class that this fold did not train on; an example of an earlier repeat is no new evidence
            seen.add(example)
            names = sorted(scores)
            gold.append(names.index(label))
            probabilities.append([scores[name] for name in names])
    if not gold or len({len(row) for row in probabilities}) != 1:
        return None
    log_probs = np.log(np.maximum(np.array(probabilities), 1e-12))  # (answers, classes)
    labels = np.array(gold)
    temperature = calibration.fit_temperature(log_probs, labels)
    plain, scaled = _softmax(log_probs), _softmax(log_probs / temperature)
    correct = scaled.argmax(1) == labels
    threshold = calibration.choose_threshold(scaled.max(1), correct, accuracy) if accuracy is not None else None
    before = calibration.expected_calibration_error(plain.max(1), correct)
    after = calibration.expected_calibration_error(scaled.max(1), correct)
    loss = calibration.negative_log_likelihood(log_probs, labels)
    scaled_loss = calibration.negative_log_likelihood(log_probs, labels, temperature)
    return Calibration(temperature, before, after, loss, scaled_loss, len(labels), threshold)


def note_answers(race: Race, scaling: Calibration | None, accuracy: float | None) -> None:
    """Say that the model always answers where an accuracy was asked for that no confidence is known to reach."""
    if accuracy is None or (scaling is not None and scaling.threshold is not None):
        return
    answers = scaling.answers if scaling is not None else 0
    least = math.ceil(math.log(1 - calibration.CONFIDENCE_LEVEL) / math.log(accuracy))
    race.note(
        f"--accuracy {accuracy:g}: by {answers:,} answers of the folds, no confidence is known to be right that often, "
        f"so the model always answers. It takes at least {least:,} sure answers, all of them right, to know.",
        f"--accuracy {accuracy:g}: 겹의 예측 {answers:,}개로는 그만큼 자주 맞는 확신의 기준을 찾지 못해, 모형은 "
        f"언제나 답합니다. 확신하는 예측이 적어도 {least:,}개 있고 모두 맞아야 알 수 있습니다.",
    )
    race.on_progress(race.notes[-1]["en"])


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def write_best(
    race: Race,
    entry: Entry,
    out: Path,
    scaling: Calibration | None,
    accuracy: float | None,
    on_progress: Callable[[str], None],
) -> None:
    """Refit the winner on all labels, calibrate it, and put it at `out`, complete or not at all."""
    on_progress(f"refitting {entry.contender.label['en']} on all {len(race.data.refit_on):,} labels")
    staging = out.with_name(f".{out.name}.writing")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    writing = staging / out.name  # the name of the folder heads the model card
    contender = entry.contender
    assert isinstance(contender, Contender)  # only such are ranked
    # late by half of what is allowed: a fine-tuning that would end after it becomes shorter
    latest = race.clock.deadline(race.finishing_seconds()) + LATEST * race.clock.total / 2
    contender.refit(race.data, writing, out.parent / LABELS, latest)
    if scaling is not None and scaling.temperature != 1.0:
        contender.scale_logits(writing, scaling.temperature)
    if scaling is not None and scaling.threshold is not None and accuracy is not None:
        Abstention(scaling.threshold, accuracy).write(writing)
    if is_baseline(writing):
        temperature = 1.0 if scaling is None else scaling.temperature
        labels, kind = len(race.data.refit_on), race.data.labelled.kind
        card = format_baseline_card(out.name, contender.label["en"], kind, labels, temperature)
        (writing / MODEL_CARD).write_text(card, encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    writing.rename(out)
    shutil.rmtree(staging)
    checkpoint.flush(out.parent)


def export_model(folder: Path, target: Path) -> str | None:
    """Export a final model into a new folder; returns why not where that is impossible.

    What no class of transformers can hold comes with one of its own.
    """
    try:
        if is_baseline(folder):
            export_baseline(folder, target)
            return None
        try:
            export_run(folder, target)
        except UserError:
            export_with_own_class(folder, target)
    except UserError as error:
        return str(error)
    return None
