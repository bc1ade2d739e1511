"""Contenders of a pick: each learns from some labels and answers for others, and can be refitted as the final model.

BaselineContender   reads plain text, no pre-training (baselines/); with word vectors learnt from the user's text
ProbeContender      a frozen encoder with a linear head that is solved exactly (transfer/probe.py)
TunedContender      an encoder fine-tuned with its head (transfer/finetune.py), settings by the number of labels;
                    shorter where time is short, longer where it is left
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from etude.baselines import registry as baselines
from etude.baselines.base import Baseline
from etude.baselines.linear_baseline import WordVectors
from etude.hub.vector_runs import open_vectors
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.kinds import find_module
from etude.pick import tuning
from etude.pick.clock import OutOfTime, check_deadline
from etude.pick.data import PickData
from etude.pick.encoders import Encoder
from etude.runs.task_plan import task_module
from etude.study.code_hash import fingerprint as code_fingerprint
from etude.study.text_source import hash_json
from etude.tasks.base import Answer
from etude.transfer import few_labels, probe, temperature

Label = dict[str, str]  # by language of the report
BACKWARD = 3  # forward and backward cost three times the forward pass
STARTUP_SECONDS = 2.0  # of a fine-tuning: opening the model, the first step, writing
GPU_STEP_SECONDS = 0.04  # of a small batch on a GPU, which waits for its launches
FIT_MARGIN = 1.5  # a refit may take so many times what its folds took
TUNED_MARGIN = 1.2  # of one that becomes shorter where it would be late
LENGTHS: dict[float, tuple[str, str, str]] = {  # of a fine-tuning: what its name and its label add
    0.25: (" shorter", ", a quarter as long", ", 4분의 1 길이"),
    0.5: (" short", ", half as long", ", 절반 길이"),
    1.0: ("", "", ""),
    2.0: (" long", ", twice as long", ", 두 배 길이"),
}
WARM_UP_EXAMPLES = 32
TRIAL_EXAMPLES = 16  # by which the time of all features is guessed on a processor


class Answerer(ABC):
    """Learns from some examples and answers for others."""

    name: str
    label: Label
    fit_margin = FIT_MARGIN
    feature_seconds: float = 0.0  # of what all its fits share: measured once, or read from a stored trial

    @property
    @abstractmethod
    def key(self) -> str:
        """Hash of everything its answers depend on besides the labels."""

    def prepare(self, data: PickData, deadline: float | None) -> None:
        """Compute what all fits share, once; raises OutOfTime at the deadline. Most share nothing."""
        return

    @abstractmethod
    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        """Learn from the examples `train` and answer for `valid`; raises OutOfTime at the deadline."""

    def seconds_before(self, work: Path) -> float:
        """Seconds that went into a trial's folder before `answer`: by another process, or before a kill."""
        return 0.0

    @property
    def preparing_seconds(self) -> float:
        """Seconds that `prepare` still takes before the next fit: trials that are read from the store left it out."""
        return 0.0

    def estimate_scoring(self, data: PickData) -> float:
        """Estimate the seconds of answering what was set aside, where that is more than a part of a fit."""
        return 0.0

    def estimate(self, data: PickData, seconds: float, count: int) -> float:
        """Estimate the seconds of a fit on `count` examples from those of a fold."""
        return seconds * count / max(1, len(data.folds[0].train))


class Contender(Answerer):
    """An answerer that can be the result of a pick."""

    @abstractmethod
    def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
        """Learn from all labels and write the final model to `out`; `labels` takes the file that it was learnt from."""

    @abstractmethod
    def scale_logits(self, folder: Path, value: float) -> None:
        """Divide the logits of a written model by a temperature."""


class Majority(Answerer):
    """The most frequent answer of the training labels; in the table for comparison, never the result."""

    name = "majority"
    label = {"en": "most frequent answer", "ko": "가장 흔한 답"}

    @property
    def key(self) -> str:
        return "majority"

    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        kind = task_module(data.labelled.kind)
        return kind.majority(data.examples(train), data.examples(valid))


class BaselineContender(Contender):
    """A baseline by name; `vectors` is a run of word vectors that it reads beside the text."""

    def __init__(self, name: str, label: Label, vectors: Encoder | None = None, seed: int = 0) -> None:
        self.name, self.label, self.vectors, self.seed = name, label, vectors, seed
        self._fitted: Baseline[Any] | None = None  # on all labels, where it was scored so

    @property
    def key(self) -> str:
        code = code_fingerprint("etude.baselines.registry")
        return hash_json([self.name, self.vectors.key if self.vectors else None, self.seed, code])

    def _fit(self, data: PickData, numbers: np.ndarray) -> Baseline[Any]:
        """Fit on some labels; on all of them once: with a test file, what is scored is what is refitted."""
        if self._fitted is not None and np.array_equal(numbers, data.refit_on):
            return self._fitted
        fitted = baselines.fit(
            self.name, data.labelled.kind, data.settings, data.examples(numbers), self.seed, facts=data.facts,
            columns=data.labelled.columns, vectors=self._word_vectors,
        )  # fmt: skip
        if np.array_equal(numbers, data.refit_on):
            self._fitted = fitted
        return fitted

    def prepare(self, data: PickData, deadline: float | None) -> None:
        if self._word_vectors is not None and data.labelled.kind == "tag":
            _ = self._word_vectors.clusters  # once for all folds: no cost of a refit

    @cached_property
    def _word_vectors(self) -> WordVectors | None:
        return None if self.vectors is None else read_vectors(self.vectors.folder)

    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        check_deadline(deadline)
        return self._fit(data, train).predict(data.examples(valid))

    def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
        self._fit(data, data.refit_on).save(out)

    def scale_logits(self, folder: Path, value: float) -> None:
        baseline = baselines.load(folder)
        baseline.scale_logits(value)
        shutil.rmtree(folder)
        baseline.save(folder)


class ProbeContender(Contender):
    """A linear head on the frozen features of an encoder, computed once for all folds."""

    def __init__(self, encoder: Encoder, device: str) -> None:
        self.encoder, self.device = encoder, device
        self.name = f"{encoder.name} frozen"
        self.label = {"en": f"{encoder.label['en']}, frozen", "ko": f"{encoder.label['ko']}, 고정"}
        self._probe: probe.Probe | None = None
        self._features: probe.Features | None = None

    @property
    def key(self) -> str:
        return hash_json(["probe", self.encoder.key, code_fingerprint("etude.transfer.probe")])

    def prepare(self, data: PickData, deadline: float | None) -> None:
        if self._features is not None:
            return
        start_model = open_pretrained(self.encoder.folder)
        self._probe = probe.Probe(start_model, data.labelled.kind, data.settings, data.facts, self.device)
        try:
            if self.device != "cpu":  # libraries and kernels load at the first pass, which says nothing of the next
                self._probe.features(data.examples(range(min(WARM_UP_EXAMPLES, len(data.labelled)))), deadline)
            else:
                self._check_time(data, deadline)
            start = time.monotonic()
            # what is learnt from comes first in the examples: a test file is read only where this contender is scored
            self._features = self._read(data, range(len(data.refit_on)), deadline)
        except TimeoutError:
            raise OutOfTime from None
        self.feature_seconds = time.monotonic() - start

    def measure_again(self, data: PickData, deadline: float | None) -> float | None:
        """Return the seconds that reading the features would take now, by those of a few; None where nothing is open.

        They may have been read while other work slowed the machine, or while the GPU was started by many at once.
        """
        if self._probe is None:
            return None
        try:
            return self._time_sample(data, deadline)
        except (OutOfTime, TimeoutError):
            return None

    def _time_sample(self, data: PickData, deadline: float | None) -> float:
        """Return the seconds that reading all features would take, by those of a few."""
        numbers = data.refit_on[:: max(1, len(data.refit_on) // TRIAL_EXAMPLES)][:TRIAL_EXAMPLES].tolist()
        start = time.monotonic()
        self._read(data, numbers, deadline)
        return (time.monotonic() - start) * len(data.refit_on) / len(numbers)

    def _check_time(self, data: PickData, deadline: float | None) -> None:
        """Raise OutOfTime where the features cannot be read in time, by what a few examples take.

        A batch of them may take a minute on a busy processor, and cannot be stopped on the way.
        """
        if deadline is None or len(data.refit_on) < 4 * TRIAL_EXAMPLES:
            return
        self._read(data, data.refit_on[:2].tolist(), deadline)  # the first pass is slower than all others
        if self._time_sample(data, deadline) > deadline - time.monotonic():
            raise OutOfTime

    def _read(self, data: PickData, numbers: Iterable[int], deadline: float | None) -> probe.Features:
        """Compute features, and stop before the batch that would end after the deadline, not behind it."""
        assert self._probe is not None
        before = time.monotonic()

        def check(done: int, total: int) -> None:
            nonlocal before
            now = time.monotonic()
            if deadline is not None and done < total and 2 * now - before > deadline:
                raise OutOfTime
            before = now

        return self._probe.features(data.examples(numbers), deadline, check)

    @property
    def preparing_seconds(self) -> float:
        return self.feature_seconds if self._features is None else 0.0

    def estimate_scoring(self, data: PickData) -> float:
        return self.feature_seconds * len(data.scored_on) / max(1, len(data.refit_on)) if data.has_test else 0.0

    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        check_deadline(deadline)
        self.prepare(data, deadline)
        assert self._probe is not None and self._features is not None
        head = self._probe.fit(self._features, train, groups=data.labelled.groups)
        if int(valid.max(initial=-1)) < len(data.refit_on):
            return self._probe.predict(head, self._features, valid)
        try:
            features = self._read(data, valid.tolist(), deadline)
        except TimeoutError:
            raise OutOfTime from None
        return self._probe.predict(head, features, range(len(valid)))

    def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
        self.prepare(data, None)  # after a kill they are read again: a late model is better than none
        assert self._probe is not None and self._features is not None
        head = self._probe.fit(self._features, data.refit_on, groups=data.labelled.groups)
        examples = data.write(data.refit_on, labels)
        self._probe.write(head, out, examples, columns=data.labelled.columns)

    def scale_logits(self, folder: Path, value: float) -> None:
        temperature.scale_logits(folder, value)


class TunedContender(Contender):
    """An encoder fine-tuned on the labels; `length` is a key of LENGTHS, the share of the usual updates."""

    fit_margin = TUNED_MARGIN

    def __init__(self, encoder: Encoder, device: str, length: float = 1.0, seed: int = 0) -> None:
        self.encoder, self.device, self.length, self.seed = encoder, device, length, seed
        suffix, english, korean = LENGTHS[length]
        self.name = f"{encoder.name} fine-tuned{suffix}"
        self.label = {"en": f"{encoder.label['en']}, fine-tuned{english}",
                      "ko": f"{encoder.label['ko']}, 미세 조정{korean}"}  # fmt: skip

    @property
    def key(self) -> str:
        return hash_json([
            "tuned", self.encoder.key, self.length, self.seed, self.device,
            code_fingerprint("etude.transfer.finetune", "etude.transfer.few_labels"),
        ])  # fmt: skip

    def _overrides(self, data: PickData, count: int) -> dict[str, object]:
        """The settings of a fine-tuning on so many examples."""
        start = open_pretrained(self.encoder.folder)
        updates, _ = self._count_updates(count)
        return {
            **_task_overrides(data), **few_labels.finetuning_overrides(start, data.settings, count),
            "train.steps": updates, "train.seed": self.seed, "train.device": self.device,
            **({} if self.device == "cpu" else {"train.workers": 1}),
        }  # fmt: skip

    def _count_updates(self, count: int) -> tuple[int, int]:
        """Updates of a fine-tuning on so many examples, and the examples of each."""
        updates, batch = few_labels.plan_updates(count)
        return max(1, round(self.length * updates)), batch

    def plan(self, data: PickData, train: np.ndarray, key: str, work: Path) -> tuning.Tuning:
        """The fine-tuning of a trial, for a process of its own; its examples are written to the trial's folder."""
        examples, overrides = data.write(train, work), self._overrides(data, len(train))
        return tuning.Tuning(
            key, str(self.encoder.folder), data.labelled.kind, str(examples), dict(data.labelled.columns), overrides
        )

    def _train(
        self, data: PickData, numbers: np.ndarray, folder: Path, examples: Path, deadline: float | None,
        *, shorten: bool = False,
    ) -> None:  # fmt: skip
        tuning.tune(
            self.encoder.folder, data.labelled.kind, examples, folder, data.labelled.columns,
            self._overrides(data, len(numbers)), deadline, shorten=shorten,
        )  # fmt: skip

    def answer(
        self, data: PickData, train: np.ndarray, valid: np.ndarray, work: Path, deadline: float | None
    ) -> list[Answer]:
        check_deadline(deadline)
        self._train(data, train, work / tuning.RUN, data.write(train, work), deadline)
        tuned = TaskModel.open(work / tuning.RUN, device=self.device)
        answers = tuned.task.predict(tuned.model, data.examples(valid))
        shutil.rmtree(work / tuning.RUN)  # its answers are what a trial keeps
        return answers

    def seconds_before(self, work: Path) -> float:
        return tuning.read_seconds(work)

    def refit(self, data: PickData, out: Path, labels: Path, deadline: float | None) -> None:
        examples = data.write(data.refit_on, labels)
        self._train(data, data.refit_on, out, examples, deadline, shorten=True)

    def scale_logits(self, folder: Path, value: float) -> None:
        temperature.scale_logits(folder, value)

    def estimate_fold(self, data: PickData, feature_seconds: float) -> float:
        """Estimate the seconds of a fold from those of computing the features of all examples once.

        An update costs three forward passes over its examples.
        """
        updates, batch = self._count_updates(len(data.folds[0].train))
        least = updates * GPU_STEP_SECONDS if self.device != "cpu" else 0.0
        return STARTUP_SECONDS + max(least, BACKWARD * updates * batch * feature_seconds / len(data.refit_on))

    def estimate(self, data: PickData, seconds: float, count: int) -> float:
        """By the number of updates, and on a processor of the examples in each: not by the number of labels."""

        def work(examples: int) -> int:
            updates, batch = self._count_updates(examples)
            return updates * batch if self.device == "cpu" else updates

        starting = min(seconds, STARTUP_SECONDS)
        return starting + (seconds - starting) * work(count) / work(len(data.folds[0].train))


def _task_overrides(data: PickData) -> dict[str, object]:
    """The settings of the task that the user gave, as overrides of a fine-tuning.

    Also where one equals the task's default: the recipe of a start may have another (`task.language_model`).
    """
    values = data.settings.model_dump(mode="json", exclude_unset=True)
    return {f"task.{name}": value for name, value in values.items()}


def read_vectors(folder: Path) -> WordVectors:
    """The word vectors of a run, words in lower case as the baselines read them."""
    vectors = open_vectors(folder)
    ngram_table = vectors.grams and replace(
        vectors.grams, table=vectors.grams.table.astype(np.float16)
    )  # half the file
    return WordVectors([word.lower() for word in vectors.words], vectors.matrix, ngram_table)


def task_code(kind: str) -> str:
    """Hash of the code of a kind of task, which every answer depends on."""
    return code_fingerprint(find_module("tasks", kind))
