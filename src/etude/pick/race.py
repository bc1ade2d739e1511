"""The race of a pick: contenders with their answers, who leads, and trials that end in time.

Before each piece of work the time for refitting the present leader is set aside; work that cannot end before it is not
begun, and work in flight stops there. Who is tried in which order: pick/stages.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from etude.baselines import registry as baselines
from etude.errors import UserError
from etude.pick.clock import OutOfTime
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
from etude.pick.pace import Pace
from etude.pick.selection import Comparison, Standing, Trials
from etude.pick.worker_pool import Job, WorkerPool
from etude.study.cells import CellStore
from etude.study.text_source import hash_json
from etude.tasks.base import Answer
from etude.train import checkpoint
from etude.transfer import probe

ANSWERS = "answers.jsonl"
FINISHING = 6.0  # seconds for calibration, export and report, and FINISHING_SHARE of the whole on a slow machine
FINISHING_SHARE = 0.02
MOST_FINISHING = 0.25  # of the whole, however long loading took
CHEAP_SHARE = 0.12  # of the time for the folds of one baseline or one linear head; more folds are not tried
SCORING_SHARE = 0.15  # of the time at most for answering a test file: a better model is worth more than a finer score
FIT_MARGIN = 1.5  # a refit may take so many times what its folds took
BASELINE_LABELS = {
    "tfidf": {"en": "TF-IDF, logistic regression", "ko": "TF-IDF, 로지스틱 회귀"},
    "ngrams": {"en": "bag of n-grams", "ko": "n-그램 가방"},
    "vectors": {"en": "word vectors of the text", "ko": "글의 단어 벡터"},
    "tfidf+vectors": {"en": "TF-IDF and word vectors", "ko": "TF-IDF와 단어 벡터"},
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
    notes: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    untried: list[dict[str, Label]] = field(default_factory=list)  # label and reason of those that were not worth it
    pace: Pace = field(default_factory=Pace)

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
        fits = (FIT_MARGIN * self.final_seconds(candidate) for candidate in entries)
        return self.finishing_seconds() + max(fits, default=0.0)

    def finishing_seconds(self) -> float:
        """Seconds of calibration, export and report: more where loading was slow or the machine became so."""
        slower = self.pace.slowdown(self.first_pace)
        finishing = max(FINISHING, min(max(slower * FINISHING, self.loading), MOST_FINISHING * self.clock.total))
        return finishing + FINISHING_SHARE * self.clock.total

    def final_seconds(self, entry: Entry) -> float:
        """Seconds that the scored fit, its answers and the refit take now; of a large test file, those for a part."""
        most = SCORING_SHARE * self.clock.total / FIT_MARGIN
        return 2 * self.refit_seconds(entry) + min(most, self.answering_seconds(entry))

    def answering_seconds(self, entry: Entry) -> float:
        """Seconds that answers to all examples set aside take now, where that is more than a part of a fit."""
        return entry.contender.estimate_scoring(self.data) * self.pace.slowdown(entry.trials.pace)

    def refit_seconds(self, entry: Entry) -> float:
        """Seconds that a fit on all labels takes now: as its folds say, and longer where the machine became slower."""
        return entry.trials.cost * self.pace.slowdown(entry.trials.pace)

    # --- trials -------------------------------------------------------------------------------------

    def enter(self, contender: Answerer, encoder: Encoder | None = None) -> Entry:
        entry = Entry(contender, Trials(contender.name, 0.0), encoder)
        self.entries[contender.name] = entry
        return entry

    def run_folds(self, entry: Entry, share: float = 1.0) -> None:
        """Run a contender's folds as far as the time goes, in a share of the whole that the first fold is held against.

        An error of the contender ends only its own folds.
        """
        planned = self.data.planned
        number = self._run_until(entry, planned, f"folds {entry.contender.name}", partial(self._count_folds, share))
        if not entry.note and number < planned:
            entry.note = f"{number} of {planned} folds: there was no time for more"
        if entry.trials.answers:
            self._report(entry)
        elif entry.note:
            self.on_progress(f"{entry.contender.label['en']}: {entry.note}")

    def run_more_folds(self, entry: Entry, until: int, decision: str) -> None:
        """Run a contender's folds up to a number, beyond those that were planned; `decision` names how far it came."""
        number = self._run_until(entry, until, decision, lambda _: until)
        if not entry.trials.answers:
            self.on_progress(f"{entry.contender.label['en']}: {entry.note}")
            return
        entry.note = "" if number >= self.data.planned else entry.note
        self._report(entry)

    def _run_until(self, entry: Entry, allowed: int, decision: str, count: Callable[[float], int]) -> int:
        """Run the next folds, as many as `count` says after the first of them; returns how many there are."""
        number = len(entry.trials.answers)
        while number < allowed:
            try:
                self._fit_ahead(entry, range(number, allowed))
                answers, seconds = self._trial(entry, number)
            except OutOfTime:
                self.journal.values["decisions"][decision] = number
                self.journal.save()
                break
            except UserError as error:
                entry.note = f"failed: {error}"
                entry.trials.answers.clear()
                break
            entry.trials.answers[number], entry.trials.seconds[number] = answers, seconds
            entry.trials.paces[number] = self._stored_pace(entry.contender, number)
            mean = float(np.mean(list(entry.trials.seconds.values())))
            entry.trials.cost = entry.contender.estimate(self.data, mean)
            number += 1
            allowed = self.journal.decide(decision, partial(count, seconds))
        return number

    def _stored_pace(self, contender: Answerer, number: int) -> float:
        fold = self.data.folds[number]
        result = self.store.result(self._trial_key(contender, fold.train, fold.valid))
        return float(result.get("pace", self.first_pace))  # picks of earlier versions stored none

    def _count_folds(self, share: float, seconds: float) -> int:
        """How many folds fit into a share of the whole time, at so many seconds each."""
        return max(1, min(self.data.planned, int(share * self.clock.total / max(seconds, 1e-3))))

    def _trial(self, entry: Entry, number: int) -> tuple[list[Answer], float]:
        fold, contender = self.data.folds[number], entry.contender
        return self.run_trial(contender, fold.train, fold.valid, self.clock.deadline(self.reserve(entry)))

    def _fit_ahead(self, entry: Entry, numbers: range) -> None:
        """Fine-tune the next folds at once where there are processes for it: their trials then find what they need."""
        contender, pool = entry.contender, self.pool
        if pool is None or not isinstance(contender, TunedContender) or numbers[0] % pool.slots:
            return
        deadline, jobs = self.clock.deadline(self.reserve(entry)), []
        for number in numbers[: pool.slots]:
            fold = self.data.folds[number]
            key = self._trial_key(contender, fold.train, fold.valid)
            if self.store.state(key) in ("done", "failed"):
                continue
            with self.store.lock(key) as work:
                planned = contender.plan(self.data, fold.train, key, work)
            jobs.append(pool.submit(Job("finetune", planned.json(), self.store.folder, deadline)))
        errors = {error for job in jobs if (error := job.result()) is not None}
        if errors and time.monotonic() < deadline:
            self.notes.append(f"{contender.label['en']}, in a process of its own: {'; '.join(sorted(errors))}")

    def _trial_key(self, contender: Answerer, train: np.ndarray, valid: np.ndarray) -> str:
        return hash_json([
            "trial", contender.key, self.data.fingerprint, train.tolist(), valid.tolist(),
            task_code(self.data.labelled.kind),
        ])  # fmt: skip

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
                    self.store.fail(key, str(error))
                    raise
                lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
                checkpoint.write_text(work / ANSWERS, lines)
                seconds = time.monotonic() - start
                self.store.finish(key, {"contender": contender.name, "seconds": seconds, "pace": self.pace.now()})
            self.journal.save()
        text = (self.store.result_folder(key) / ANSWERS).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()], float(self.store.result(key)["seconds"])

    def _report(self, entry: Entry) -> None:
        standing, leader = self.standing(entry.contender.name), self.leader()
        name = entry.contender.label["en"]
        lead = "" if leader is None else "  (leads)" if leader is entry else f"  ({leader.contender.label['en']} leads)"
        self.on_progress(
            f"{format_seconds(self.clock.spent)} of {format_seconds(self.clock.total)}  {name}: "
            f"{100 * standing.score:.1f} ± {100 * standing.error:.1f}{lead}"
        )

    def skip(self, label: Label, reason: Label) -> None:
        """Say in the table that a contender was not tried, and why."""
        self.untried.append({"label": label, "reason": reason})
        self.on_progress(f"{label['en']}: {reason['en']}")

    # --- stages -------------------------------------------------------------------------------------

    def run_baselines(self, vectors: Encoder | None = None) -> None:
        """Models that read plain text, or words with the vectors of the user's text."""
        if vectors is None:
            self.run_folds(self.enter(Majority()))
        labels = BASELINE_LABELS | KIND_LABELS.get(self.data.labelled.kind, {})
        for name, label in labels.items():
            is_due = baselines.needs_vectors(name) == (vectors is not None)
            if is_due and baselines.supports(name, self.data.labelled.kind):
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

    def run_tuned(self, probed: Entry) -> None:
        """Fine-tune an encoder whose features were read, where a fold, the scored fit and the refit end in time."""
        encoder = probed.encoder
        assert encoder is not None and isinstance(probed.contender, ProbeContender)
        contender = TunedContender(encoder, self.device, {}, self.seed)
        entry = self.enter(contender, encoder)
        measured = probed.contender.feature_seconds
        seconds = self.journal.decide(f"features {encoder.key}", lambda: measured)
        estimate = contender.estimate_fold(self.data, seconds)
        entry.trials.cost = contender.estimate(self.data, estimate)
        fits = self.journal.decide(f"fits {contender.name}", lambda: estimate + self.reserve(entry) < self.clock.left)
        if not fits:
            del self.entries[contender.name]
            needed = f"{2 * entry.trials.cost + estimate:.0f}"
            self.skip(contender.label, {"en": f"not tried: needs about {needed} s",
                                        "ko": f"시도하지 않음: 약 {needed}초 필요"})  # fmt: skip
            return
        self.run_folds(entry)
        if not entry.trials.answers:
            self.notes.append(f"{contender.label['en']}: {entry.note}")


def format_seconds(seconds: float) -> str:
    """As in 1m05s."""
    whole = round(seconds)
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"
