"""The race of a pick: who is tried, in which order, and how long.

Cheap contenders come first, so that there is something to return at any moment: baselines, then linear heads on the
features of the starts. What is left of the time goes to word vectors of the text, to rounds of pre-training, and to
fine-tuning the encoders whose features were best. Before each piece of work the time for refitting the present leader
is set aside; work that cannot end before it is not begun, and work in flight stops there.
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
from etude.pick import candidates as candidate_list
from etude.pick.candidates import plan_rounds
from etude.pick.clock import OutOfTime
from etude.pick.contenders import (
    Answerer,
    BaselineContender,
    Contender,
    Majority,
    ProbeContender,
    TunedContender,
    task_code,
)
from etude.pick.data import PickData
from etude.pick.encoders import Candidate, Encoder, pretrain_candidate
from etude.pick.journal import Journal
from etude.pick.selection import Comparison, Standing, Trials
from etude.pick.text import PickText
from etude.study.cells import CellStore
from etude.study.text_source import hash_json
from etude.tasks.base import Answer
from etude.train import checkpoint
from etude.transfer import probe

ANSWERS = "answers.jsonl"
FINISHING = 6.0  # seconds for calibration, export and report, and FINISHING_SHARE of the whole on a slow machine
FINISHING_SHARE = 0.02
CHEAP_SHARE = 0.12  # of the time for the folds of one baseline or one linear head; more folds are not tried
FIT_MARGIN = 1.5  # a refit may take so many times what its folds took
VECTOR_SHARE = 0.1  # of the time for word vectors of the text
PRETRAIN_SHARE = 0.6  # of the time left after the cheap contenders, for pre-training; the rest is for fine-tuning
READ_SHARE = 0.08  # of the time for preparing one corpus
BYTES_PER_SECOND = 1.5e6  # of text prepared by two cores, tokenizer included; measured on a slow one
PRETRAIN_OVERHEAD = {"cpu": 6.0, "cuda": 45.0}  # seconds: opening, the trial of speed, compilation
BASELINE_LABELS = {
    "tfidf": {"en": "TF-IDF, logistic regression", "ko": "TF-IDF, 로지스틱 회귀"},
    "ngrams": {"en": "bag of n-grams", "ko": "n-그램 가방"},
    "vectors": {"en": "word vectors of the text", "ko": "글의 단어 벡터"},
    "tfidf+vectors": {"en": "TF-IDF and word vectors", "ko": "TF-IDF와 단어 벡터"},
}
TAGGER_LABELS = {"tfidf": {"en": "word features, linear chain", "ko": "단어 자질, 선형 연쇄"}}


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
    entries: dict[str, Entry] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.journal.clock is not None
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
        """Seconds that scoring and refitting take, for the slower of the leader and `entry`."""
        entries = [candidate for candidate in (self.leader(), entry) if candidate is not None]
        finishing = FINISHING + FINISHING_SHARE * self.clock.total
        return finishing + max((2 * FIT_MARGIN * candidate.trials.cost for candidate in entries), default=0.0)

    # --- trials -------------------------------------------------------------------------------------

    def enter(self, contender: Answerer, encoder: Encoder | None = None) -> Entry:
        entry = Entry(contender, Trials(contender.name, 0.0), encoder)
        self.entries[contender.name] = entry
        return entry

    def run_folds(self, entry: Entry, share: float = 1.0) -> None:
        """Run a contender's folds as far as the time goes, in a share of the whole that the first fold is held against.

        An error of the contender ends only its own folds.
        """
        name, number, allowed = entry.contender.name, 0, len(self.data.folds)
        while number < allowed:
            try:
                answers, seconds = self._trial(entry, number)
            except OutOfTime:
                self.journal.values["decisions"][f"folds {name}"] = number
                self.journal.save()
                break
            except UserError as error:
                entry.note = f"failed: {error}"
                entry.trials.answers.clear()
                break
            entry.trials.answers[number], entry.trials.seconds[number] = answers, seconds
            mean = float(np.mean(list(entry.trials.seconds.values())))
            entry.trials.cost = entry.contender.estimate(self.data, mean)
            number += 1
            allowed = self.journal.decide(f"folds {name}", partial(self._count_folds, share, seconds))
        if not entry.note and number < len(self.data.folds):
            entry.note = f"{number} of {len(self.data.folds)} folds: there was no time for more"
        if entry.trials.answers:
            self._report(entry)
        elif entry.note:
            self.on_progress(f"{entry.contender.label['en']}: {entry.note}")

    def _count_folds(self, share: float, seconds: float) -> int:
        """How many folds fit into a share of the whole time, at so many seconds each."""
        return max(1, min(len(self.data.folds), int(share * self.clock.total / max(seconds, 1e-3))))

    def _trial(self, entry: Entry, number: int) -> tuple[list[Answer], float]:
        fold, contender = self.data.folds[number], entry.contender
        return self.run_trial(contender, fold.train, fold.valid, self.clock.deadline(self.reserve(entry)))

    def run_trial(
        self, contender: Answerer, train: np.ndarray, valid: np.ndarray, deadline: float | None
    ) -> tuple[list[Answer], float]:
        """Return answers for `valid` after learning from `train`, and the seconds; stored under their key."""
        key = hash_json([
            "trial", contender.key, self.data.fingerprint, train.tolist(), valid.tolist(),
            task_code(self.data.labelled.kind),
        ])  # fmt: skip
        if self.store.state(key) == "failed":
            raise UserError(self.store.error(key))
        if self.store.state(key) != "done":
            with self.store.lock(key) as work:
                try:
                    contender.prepare(self.data, deadline)  # what folds share is no cost of a refit
                    start = time.monotonic()
                    answers = contender.answer(self.data, train, valid, work, deadline)
                except UserError as error:
                    self.store.fail(key, str(error))
                    raise
                lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
                checkpoint.write_text(work / ANSWERS, lines)
                self.store.finish(key, {"contender": contender.name, "seconds": time.monotonic() - start})
            self.journal.save()
        text = (self.store.result_folder(key) / ANSWERS).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()], float(self.store.result(key)["seconds"])

    def _report(self, entry: Entry) -> None:
        standing, leader = self.standing(entry.contender.name), self.leader()
        name = entry.contender.label["en"]
        lead = "" if leader is None else "leads" if leader is entry else f"{leader.contender.label['en']} leads"
        self.on_progress(
            f"{_format_seconds(self.clock.spent)} of {_format_seconds(self.clock.total)}  {name}: "
            f"{100 * standing.score:.1f} ± {100 * standing.error:.1f}  ({lead})"
        )

    # --- stages -------------------------------------------------------------------------------------

    def run_baselines(self, vectors: Encoder | None = None) -> None:
        """Models that read plain text, or words with the vectors of the user's text."""
        if vectors is None:
            self.run_folds(self.enter(Majority()))
        labels = BASELINE_LABELS | (TAGGER_LABELS if self.data.labelled.kind == "tag" else {})
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
            self.notes.append(f"{contender.label['en']}: about {2 * entry.trials.cost + estimate:.0f} s, not tried")
            return
        self.run_folds(entry)
        if not entry.trials.answers:
            self.notes.append(f"{contender.label['en']}: {entry.note}")

    def text_share(self, text: PickText) -> float:
        """Share of the text that can be prepared in time; rounded, so that a corpus is found again."""
        usable = READ_SHARE * self.clock.total * BYTES_PER_SECOND
        share = min(1.0, usable / max(1, text.size))
        return share if share == 1.0 else max(0.001, float(f"{share:.2g}"))

    def run_vectors(self, text: PickText) -> None:
        """Word vectors of the user's text, averaged over a text's words, alone and beside the words."""
        if not any(baselines.needs_vectors(name) and baselines.supports(name, self.data.labelled.kind)
                   for name in BASELINE_LABELS):  # fmt: skip
            return
        encoder = self._pretrain(candidate_list.VECTORS, text, VECTOR_SHARE * self.clock.total)
        if encoder is not None:
            self.run_baselines(encoder)

    def run_rounds(self, stage: str, entering: Sequence[Candidate], text: PickText, share: float) -> None:
        """Rounds of pre-training, each longer than the one before, ranked by the linear head on frozen features.

        The last one is fine-tuned, too.
        """
        overhead = PRETRAIN_OVERHEAD[self.device] + READ_SHARE * self.clock.total / 3
        seconds = self.journal.decide(f"pretrain {stage}", lambda: share * (self.clock.left - self.reserve()))
        minimum = candidate_list.FIRST_ROUND_SECONDS[self.device]
        count, rounds = plan_rounds(len(entering), seconds, overhead, minimum)
        if not count:
            needed, left = (overhead + minimum) / share, max(0.0, self.clock.left - self.reserve())
            self.notes.append(f"no {stage}: it needs about {needed:.0f} seconds, and {left:.0f} were left")
            return
        alive = list(entering[:count])
        results: list[tuple[Candidate, Entry]] = []
        for planned in rounds:
            results = []
            for candidate in alive:
                encoder = self._pretrain(candidate, text, planned.seconds)
                entry = self.run_probe(encoder) if encoder is not None else None
                if entry is not None:
                    results.append((candidate, entry))
            if not results:
                return
            order = [name for name in self.ranking() if name in {entry.contender.name for _, entry in results}]
            results.sort(key=lambda pair: order.index(pair[1].contender.name))
            alive = [candidate for candidate, _ in results[: planned.survivors]]
            self.rounds.append({
                "stage": stage, "seconds": planned.seconds, "survivors": [candidate.name for candidate in alive],
                "scores": {entry.contender.name: self.standing(entry.contender.name).score for _, entry in results},
            })  # fmt: skip
        for _, entry in results:
            self.run_tuned(entry)

    def _pretrain(self, candidate: Candidate, text: PickText, seconds: float) -> Encoder | None:
        minutes = float(f"{seconds / 60:.2g}")
        self.on_progress(f"pre-training {candidate.label['en']} for {_format_seconds(60 * minutes)}")
        deadline = self.clock.deadline(self.reserve(), 1.5 * seconds + 2 * PRETRAIN_OVERHEAD[self.device])
        try:
            encoder = pretrain_candidate(
                candidate, text, self.text_share(text), minutes, self.store, self.device, self.seed, deadline,
                self.on_progress,
            )  # fmt: skip
        except OutOfTime:
            self.notes.append(f"{candidate.label['en']}: no time to pre-train it")
            return None
        except UserError as error:
            self.notes.append(f"{candidate.label['en']}: {error}")
            return None
        finally:
            self.journal.save()
        return encoder


def _format_seconds(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def run_race(
    race: Race, text: PickText | None, starts: Sequence[tuple[Encoder, Candidate]], scratch: Sequence[Candidate]
) -> None:
    """All stages in their order."""
    race.run_baselines()
    probed = [entry for encoder, _ in starts if (entry := race.run_probe(encoder)) is not None]
    if text is not None:
        race.run_vectors(text)
    order = race.ranking()
    probed.sort(key=lambda entry: order.index(entry.contender.name))
    for entry in probed:  # the best start first
        race.run_tuned(entry)
    if text is not None and starts:
        race.run_rounds("continued pre-training", [candidate for _, candidate in starts], text, PRETRAIN_SHARE)
    if text is not None:
        race.run_rounds("pre-training from scratch", scratch, text, PRETRAIN_SHARE)
