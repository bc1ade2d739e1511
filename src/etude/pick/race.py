"""The race of a pick: contenders with their answers, who leads, and trials that end in time.

Before each piece of work the time for refitting the present leader is set aside; work that cannot end before it is not
begun, and work in flight stops there. Folds are taken one by one, and each is counted: contenders are compared on the
folds that both have. Who is tried in which order: pick/stages.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from etude.baselines import registry as baselines
from etude.errors import UserError
from etude.pick.clock import OutOfTime, format_seconds
from etude.pick.contenders import (
    Answerer,
    BaselineContender,
    Contender,
    Label,
    Majority,
    ProbeContender,
    TunedContender,
    task_code,
)
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.pick.journal import Journal
from etude.pick.memory_errors import explain_memory_error
from etude.pick.pace import Pace
from etude.pick.selection import Comparison, Standing, Trials
from etude.pick.worker_pool import Job, WorkerPool
from etude.study.cells import CellStore
from etude.study.text_source import hash_json
from etude.tasks.base import Answer
from etude.train import checkpoint
from etude.train.failures import is_machine_error
from etude.transfer import probe

ANSWERS = "answers.jsonl"
FINISHING = 6.0  # seconds for calibration, export and report, and FINISHING_SHARE of the whole on a slow machine
FINISHING_SHARE = 0.02
MOST_SLOWER = 8.0  # than at first; the end has no margin of its own, as the fits have
MOST_FINISHING = 0.25  # of the whole, however long loading took
CHEAP_SHARE = 0.12  # of the time for the folds of one baseline or one linear head; more folds are not tried
REPEATS_SHARE = 0.03  # of the time: where all repeats take more, one comes first, and ties get the others
SCORING_SHARE = 0.15  # of the time at most for answering a test file: a better model is worth more than a finer score
BEHIND_FOLDS, BEHIND_ERRORS = 3, 2.0  # a dear contender that is so many standard errors behind after so many folds ends
LOADING_SHARE = 0.5  # of the seconds that loading torch took are what the end takes, on a machine as busy as then
NEW_CONTENDERS = 1.5  # repeats of the dearest cheap contender so far, in which two with word vectors are scored
LATE_BASELINE = "ngrams"  # has won none of 40 picks with text (benchmarks/results/pick): vectors go before it
# messages of errors are in English alone, and the Korean page says where they stand
KOREAN_ERROR = "오류로 중단됨 (오류 메시지는 영어 화면에 있음)"
BASELINE_LABELS = {
    "tfidf": {"en": "TF-IDF, logistic regression", "ko": "TF-IDF, 로지스틱 회귀"},
    "tfidf+vectors": {"en": "TF-IDF and word vectors", "ko": "TF-IDF + 단어 벡터"},
    "vectors": {"en": "word vectors of the text", "ko": "텍스트로 학습한 단어 벡터"},
    "ngrams": {"en": "bag of n-grams", "ko": "n-그램 (fastText 방식)"},
}
TAGGER_LABELS = {
    "tfidf": {"en": "word features, linear chain", "ko": "단어 자질, 선형 연쇄"},
    "tfidf+vectors": {"en": "word features and clusters of the text's words", "ko": "단어 자질과 글의 단어 군집"},
}
SPAN_LABELS = {"tfidf": {"en": "words of the question, linear spans", "ko": "질문의 단어, 선형 구간"}}
KIND_LABELS = {"tag": TAGGER_LABELS, "span": SPAN_LABELS}


@dataclass
class Entry:
    """A contender in the race."""

    contender: Answerer
    trials: Trials
    encoder: Encoder | None = None
    note: str = ""  # why it has not every fold
    korean_note: str = ""
    has_failed: bool = False  # by an error, not for lack of time
    scored_cost: float = 0.0  # seconds of a fit on what was chosen on, as trials.cost is of one on all labels
    estimated: float = 0.0  # seconds of a fold as they were foreseen; 0 where nothing was

    def explain(self, english: str, korean: str) -> None:
        """Say why it has not every fold."""
        self.note, self.korean_note = english, korean

    @property
    def is_selectable(self) -> bool:
        """Whether it can be the result of the pick."""
        return isinstance(self.contender, Contender)


@dataclass
class Race:
    data: PickData
    journal: Journal
    store: CellStore
    device: str
    seed: int
    on_progress: Callable[[str], None]
    pool: WorkerPool | None = None  # processes that fine-tune at once, on a GPU
    loading: float = 0.0  # seconds that loading torch took: what the end will take, too, on a busy machine
    entries: dict[str, Entry] = field(default_factory=dict)
    notes: list[Label] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    untried: list[dict[str, Label]] = field(default_factory=list)  # label and reason of those that were not worth it
    pace: Pace = field(default_factory=Pace)
    tie_rounds: int = 0  # that were planned so far (pick/ties.py)
    refused: list[Entry] = field(default_factory=list)  # frozen encoders that there was no time to fine-tune
    retries: int = 0  # times that those were asked for again (pick/fine_tuning.py)
    fitted_ahead: dict[str, range] = field(default_factory=dict)  # the folds of a contender that were begun together

    def __post_init__(self) -> None:
        assert self.journal.clock is not None
        self.first_pace = float(self.journal.decide("pace", self.pace.now))
        self.clock = self.journal.clock
        self.comparison = Comparison(self.data.folds, self.data.outcome, self.data.gold, self.seed)

    # --- scores -------------------------------------------------------------------------------------

    def ranking(self) -> list[str]:
        """Names from best to worst, of those that can be returned."""
        return self.comparison.rank({name: e.trials for name, e in self.entries.items() if e.is_selectable})

    def standing(self, name: str) -> Standing:
        return self.comparison.rate(self.entries[name].trials)

    def leader(self) -> Entry | None:
        names = self.ranking()
        return self.entries[names[0]] if names else None

    def reserve(self, entry: Entry | None = None) -> float:
        """Seconds that scoring and refitting take, for the slower of the leader and `entry`, and the end after them."""
        entries = [candidate for candidate in (self.leader(), entry) if candidate is not None]
        fits = (candidate.contender.fit_margin * self.final_seconds(candidate) for candidate in entries)
        return self.finishing_seconds() + max(fits, default=0.0)

    def finishing_seconds(self) -> float:
        """Seconds of calibration, export and report: more where loading was slow or the machine became so."""
        slower = self.pace.slowdown(self.first_pace, MOST_SLOWER)
        estimates = slower * FINISHING, LOADING_SHARE * self.loading
        finishing = max(FINISHING, min(max(estimates), MOST_FINISHING * self.clock.total))
        return finishing + FINISHING_SHARE * self.clock.total

    def final_seconds(self, entry: Entry) -> float:
        """Seconds that the scored fit, its answers and the refit take now; of a large test file, those for a part."""
        most = SCORING_SHARE * self.clock.total / entry.contender.fit_margin
        preparing = entry.contender.preparing_seconds * self.pace.slowdown(entry.trials.pace)
        fits = self.scored_seconds(entry) + self.refit_seconds(entry)
        return preparing + fits + min(most, self.answering_seconds(entry))

    def answering_seconds(self, entry: Entry) -> float:
        """Seconds that answers to all examples set aside take now, where that is more than a part of a fit."""
        return entry.contender.estimate_scoring(self.data) * self.pace.slowdown(entry.trials.pace)

    def refit_seconds(self, entry: Entry) -> float:
        """Seconds that a fit on all labels takes now: as its folds say, and longer where the machine became slower."""
        return entry.trials.cost * self.pace.slowdown(entry.trials.pace)

    def scored_seconds(self, entry: Entry) -> float:
        """Seconds that the fit takes now whose answers to the examples set aside are scored."""
        return entry.scored_cost * self.pace.slowdown(entry.trials.pace)

    def room(self, entry: Entry | None = None) -> float:
        """Seconds until work must end, so that the slower of the leader and `entry` can be scored and refitted."""
        return self.clock.left - self.reserve(entry)

    def scoring_seconds(self) -> float:
        """Seconds in which new contenders with word vectors are scored, by the dearest so far."""
        cheap = [e for e in self.entries.values() if e.trials.seconds and not isinstance(e.contender, TunedContender)]
        fold = max((e.trials.fold_seconds * self.pace.slowdown(e.trials.pace) for e in cheap), default=0.0)
        # each of the two ends after its share of the time, or after one fold
        return min(NEW_CONTENDERS * self.data.repeat * fold, 2 * max(fold, CHEAP_SHARE * self.clock.total))

    def set_cost(self, entry: Entry, fold_seconds: float) -> None:
        """Foresee the fits of the end from the seconds of a fold."""
        data, estimate = self.data, entry.contender.estimate
        entry.trials.cost = estimate(data, fold_seconds, len(data.refit_on))
        entry.scored_cost = estimate(data, fold_seconds, len(data.chosen_on))

    # --- trials -------------------------------------------------------------------------------------

    def build_entry(self, contender: Answerer, encoder: Encoder | None = None) -> Entry:
        return Entry(contender, Trials(contender.name, 0.0), encoder)

    def enter(self, contender: Answerer, encoder: Encoder | None = None) -> Entry:
        entry = self.build_entry(contender, encoder)
        self.entries[contender.name] = entry
        return entry

    def run_folds(self, entry: Entry, share: float = 1.0, until: int | None = None) -> None:
        """Run a contender's folds as far as the time goes, in a share of the whole that the first fold is held against.

        An error of the contender ends only its own folds. `until` is how many there are to be, all that are planned if
        not given.
        """
        until = self.data.planned if until is None else until
        number = self._run_until(
            entry, until, f"folds {entry.contender.name}", partial(self._count_folds, share, until)
        )
        if not entry.note and number < min(until, self.data.repeat):
            self._explain_missing(entry, number)
        self._conclude(entry)

    def _explain_missing(self, entry: Entry, number: int) -> None:
        planned = self.data.planned
        entry.explain(f"{number} of {planned} folds: there was no time for more",
                      f"{planned}겹 중 {number}겹: 시간이 모자람")  # fmt: skip

    def run_more_folds(self, entry: Entry, until: int, decision: str) -> None:
        """Run a contender's folds up to a number, beyond those that were planned; `decision` names how far it came."""
        before, note = len(entry.trials.answers), entry.note
        number = self._run_until(entry, until, decision, lambda _: until)
        if entry.trials.answers and number >= self.data.planned:
            entry.explain("", "")
        elif number > before and note and entry.note == note:
            self._explain_missing(entry, number)
        self._conclude(entry)

    def _run_until(self, entry: Entry, allowed: int, decision: str, count: Callable[[float], int]) -> int:
        """Run the next folds, as many as `count` says after the first of them; returns how many there are."""
        number = len(entry.trials.answers)
        allowed = min(allowed, self.journal.values["decisions"].get(decision, allowed))
        while number < allowed and not self._is_behind(entry):
            try:
                self._check_time(entry, number)
                self._fit_ahead(entry, range(number, allowed))
                answers, seconds = self._trial(entry, number)
            except OutOfTime:
                self.journal.values["decisions"][decision] = number
                self.journal.save()
                break
            except UserError as error:
                entry.explain(f"failed: {error}", KOREAN_ERROR)
                entry.has_failed = True
                entry.trials.answers.clear()
                break
            entry.trials.answers[number], entry.trials.seconds[number] = answers, seconds
            entry.trials.paces[number] = self._stored_pace(entry.contender, number)
            self.set_cost(entry, entry.trials.fold_seconds)
            number += 1
            allowed = self.journal.decide(decision, partial(count, seconds))
        return number

    def _is_behind(self, entry: Entry) -> bool:
        """Whether more folds of a fine-tuning would change nothing: it is clearly behind on those that it has.

        As in a race of models (Maron and Moore 1994): its time is worth more to those that may still win.
        """
        leader, count = self.leader(), len(entry.trials.answers)
        if not isinstance(entry.contender, TunedContender) or count < BEHIND_FOLDS or leader in (None, entry):
            return False
        assert leader is not None
        difference, error = self.comparison.difference(leader.trials, entry.trials)
        if difference <= BEHIND_ERRORS * error:
            return False
        planned = self.data.planned
        entry.explain(f"{count} of {planned} folds: clearly behind", f"{planned}겹 중 {count}겹: 뚜렷이 뒤처짐")
        return True

    def _check_time(self, entry: Entry, number: int) -> None:
        """Raise OutOfTime where the next fold would not end in time, by those before it."""
        is_done = self.has_trial(entry.contender, *self.data.folds[number])
        if entry.trials.seconds and not is_done and entry.trials.fold_seconds > self.room(entry):
            raise OutOfTime

    def _stored_pace(self, contender: Answerer, number: int) -> float:
        fold = self.data.folds[number]
        result = self.store.result(self._trial_key(contender, fold.train, fold.valid))
        return float(result.get("pace", self.first_pace))  # picks of earlier versions stored none

    def _count_folds(self, share: float, until: int, seconds: float) -> int:
        """How many folds fit into a share of the whole time, at so many seconds each: all repeats, or one."""
        if share < 1 and until * seconds > REPEATS_SHARE * self.clock.total:
            until = min(until, self.data.repeat)
        return max(1, min(until, int(share * self.clock.total / max(seconds, 1e-3))))

    def _trial(self, entry: Entry, number: int) -> tuple[list[Answer], float]:
        fold, contender = self.data.folds[number], entry.contender
        with explain_memory_error():
            return self.run_trial(contender, fold.train, fold.valid, self.clock.deadline(self.reserve(entry)))

    def _fit_ahead(self, entry: Entry, numbers: range) -> None:
        """Fine-tune the next folds at once where there are processes for it: their trials then find what they need."""
        contender, pool = entry.contender, self.pool
        if pool is None or not isinstance(contender, TunedContender):
            return
        if numbers[0] in self.fitted_ahead.get(contender.name, ()):
            return
        together = numbers[: pool.slots]
        self.fitted_ahead[contender.name] = together
        deadline, jobs = self.clock.deadline(self.reserve(entry)), []
        for number in together:
            fold = self.data.folds[number]
            key = self._trial_key(contender, fold.train, fold.valid)
            if self.store.state(key) in ("done", "failed"):
                continue
            with self.store.lock(key) as work:
                planned = contender.plan(self.data, fold.train, key, work)
            jobs.append(pool.submit(Job("finetune", planned.json(), self.store.folder, deadline)))
        errors = {error for job in jobs if (error := job.result()) is not None}
        if errors and time.monotonic() < deadline:
            reasons = "; ".join(sorted(errors))
            self.note(f"{contender.label['en']}, in a process of its own: {reasons}",
                      f"{contender.label['ko']}, 별도 프로세스: {KOREAN_ERROR}")  # fmt: skip

    def _trial_key(self, contender: Answerer, train: np.ndarray, valid: np.ndarray) -> str:
        return hash_json([
            "trial", contender.key, self.data.fingerprint, train.tolist(), valid.tolist(),
            task_code(self.data.labelled.kind),
        ])  # fmt: skip

    def has_trial(self, contender: Answerer, train: np.ndarray, valid: np.ndarray) -> bool:
        """Whether the answers are in the store."""
        return self.store.state(self._trial_key(contender, train, valid)) == "done"

    def run_trial(
        self, contender: Answerer, train: np.ndarray, valid: np.ndarray, deadline: float | None
    ) -> tuple[list[Answer], float]:
        """Return answers for `valid` after learning from `train`, and the seconds; stored under their key."""
        key = self._trial_key(contender, train, valid)
        if self.store.state(key) == "failed":
            raise UserError(self.store.error(key))
        if self.store.state(key) != "done":
            with self.store.lock(key) as work:
                try:
                    contender.prepare(self.data, deadline)  # what folds share is no cost of a refit
                    start = time.monotonic() - contender.seconds_before(work)
                    answers = contender.answer(self.data, train, valid, work, deadline)
                except UserError as error:
                    if not is_machine_error(error):
                        self.store.fail(key, str(error))
                    raise
                lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
                checkpoint.write_text(work / ANSWERS, lines)
                seconds = time.monotonic() - start
                self.store.finish(key, {"contender": contender.name, "seconds": seconds, "pace": self.pace.now(),
                                        "feature_seconds": contender.feature_seconds})  # fmt: skip
            self.journal.save()
        result = self.store.result(key)
        # fine-tunings are foreseen by it, also where no feature had to be read this time
        contender.feature_seconds = contender.feature_seconds or float(result.get("feature_seconds", 0.0))
        text = (self.store.result_folder(key) / ANSWERS).read_text(encoding="utf-8")
        # not splitlines: answers hold the user's text, and that may hold U+2028
        return [json.loads(line) for line in text.split("\n") if line], float(result["seconds"])

    def _conclude(self, entry: Entry) -> None:
        """Report how a contender stands, or note why it is not in the table: it has no answers."""
        label = entry.contender.label
        if entry.trials.answers:
            self._report(entry)
        elif entry.note:
            self.note(f"{label['en']}: {entry.note}", f"{label['ko']}: {entry.korean_note}")
            self.on_progress(self.notes[-1]["en"])

    def _report(self, entry: Entry) -> None:
        standing, leader = self.standing(entry.contender.name), self.leader()
        name = entry.contender.label["en"]
        lead = "" if leader is None else "  (leads)" if leader is entry else f"  ({leader.contender.label['en']} leads)"
        self.on_progress(
            f"{format_seconds(self.clock.spent)} of {format_seconds(self.clock.total)}  {name}: "
            f"{100 * standing.score:.1f} ± {100 * standing.error:.1f}{lead}"
        )

    def note(self, english: str, korean: str) -> None:
        """Add a line to what the summary and the page say of how the pick went."""
        self.notes.append({"en": english, "ko": korean})

    def skip(self, labels: Sequence[Label], reason: Label) -> None:
        """Say in the table that contenders were not tried, and why."""
        self.untried += [{"label": label, "reason": reason} for label in labels]
        self.on_progress(f"{', '.join(label['en'] for label in labels)}: {reason['en']}")

    # --- stages -------------------------------------------------------------------------------------

    def run_baselines(self, vectors: Encoder | None = None) -> None:
        """Models that read plain text, or words with the vectors of the user's text; not yet the late one."""
        if vectors is None:
            self.run_folds(self.enter(Majority()))
        for name in BASELINE_LABELS:
            if name != LATE_BASELINE and baselines.needs_vectors(name) == (vectors is not None):
                self._run_baseline(name, vectors)

    def run_late_baseline(self) -> None:
        """The one that wins least often: where time is short, others get it."""
        self._run_baseline(LATE_BASELINE)

    def _run_baseline(self, name: str, vectors: Encoder | None = None) -> None:
        kind = self.data.labelled.kind
        if baselines.supports(name, kind):
            label = KIND_LABELS.get(kind, {}).get(name, BASELINE_LABELS[name])
            self.run_folds(self.enter(BaselineContender(name, label, vectors, self.seed), vectors), CHEAP_SHARE)

    def run_probe(self, encoder: Encoder) -> Entry | None:
        """A linear head on frozen features; None where the task has none or nothing was answered."""
        if not probe.supports(self.data.labelled.kind):
            return None
        contender = ProbeContender(encoder, self.device)
        entry = self.enter(contender, encoder)
        self.run_folds(entry, CHEAP_SHARE)
        self.journal.decide(f"features {encoder.key}", lambda: contender.feature_seconds)
        return entry if entry.trials.answers else None
