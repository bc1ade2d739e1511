"""Zero-, one- and few-shot evaluation of causal models: tasks as prompts, without training (GPT-3, section 2).

K demonstrations are shown before every question, drawn at random from the training examples (anew for each question,
as in GPT-3, by a hash of the seed and the example's number; fewer shots are the first of more). Shots that do not fit
into the context are left out; only where none fits is the question truncated, at its beginning. A result counts both.

    classify, pair    each label has words; the likeliest of them is the answer (inference/likelihood.py)
    choice            the example brings its answers
    word              the word that follows (LAMBADA): right where each of its tokens is the likeliest one
    span              an answer in free form, by beam search up to the end of the line (GPT-3: 4 beams, penalty 0.6)

The rules by which answers are compared give different numbers, so a result says which one it is, and gives the
accuracy by the others beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.inference.likelihood import Answers, AnswerScores, encode_answers, score_answers, score_by_rule
from etude.inference.model import LoadedModel, load
from etude.tasks.base import Answer
from etude.tasks.bootstrap import Score, bootstrap, bootstrap_mean
from etude.tasks.classify import label_scores
from etude.tasks.data.examples import Examples, label_numbers
from etude.tasks.example_filter import warn_bad
from etude.tasks.metrics import Confusion
from etude.tasks.prompt_form import ChoicePrompt, LabelPrompt, WordPrompt, WritePrompt
from etude.tasks.span import answers as span_answers
from etude.transfer.prompt_file import PromptFile

METRICS = ("accuracy", "macro_f1", "mcc")  # of labels; where there are two also f1, of the second as in GLUE
GROUP = 256  # examples scored at once: bounds memory, never changes a result
Progress = Callable[[int, int], None]  # receives the questions done and their total


@dataclass(frozen=True)
class ShotResult:
    """The result for one number of shots."""

    shots: int
    scores: dict[str, Score]  # the first is the official one
    compared: str  # the rule by which answers were compared; "written" where the model wrote them
    accuracy_by: dict[str, float]  # accuracy by the other rules
    mean_shots: float  # shots that fitted, on average
    truncated: int  # examples whose own text had to be cut
    answers: list[Answer]  # in the order of the examples

    def json(self) -> dict[str, Any]:
        return {
            "shots": self.shots,
            "compared": self.compared,
            "scores": {name: score.json() for name, score in self.scores.items()},
            "accuracy_by": self.accuracy_by,
            "shown": self.mean_shots,
            "cut": self.truncated,
        }


@dataclass(frozen=True)
class PromptResult:
    """The results for all numbers of shots, and a baseline."""

    results: list[ShotResult]
    baseline: tuple[str, float] | None  # a baseline without a model: its name, and its accuracy

    def json(self) -> dict[str, Any]:
        baseline = None if self.baseline is None else {"name": self.baseline[0], "accuracy": self.baseline[1]}
        return {"baseline": baseline, "results": [result.json() for result in self.results]}


def prompt(
    source: str | Path | LoadedModel,
    file: str | Path,
    shots: Sequence[int] = (0, 1, 4, 16),
    *,
    train: str | Path | None = None,
    test: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: bool = False,
    device: str | None = None,
    on_progress: Progress | None = None,
) -> PromptResult:
    """Score a task, as a prompt file describes it, for each number of shots; `limit`: only the first examples."""
    description = PromptFile.load(file)
    _check_numbers(shots, limit)
    folder = Path(file).parent
    test_path = Path(test) if test is not None else folder / description.test
    train_path = Path(train) if train is not None else folder / description.train if description.train else None
    if max(shots) and train_path is None:
        raise UserError(f"{file}: {max(shots)} shots are asked for, and 'train' names no file to draw them from.")
    examples = description.read(test_path, skip_bad)
    pool = description.read(train_path, skip_bad) if train_path is not None else None
    for part in (examples, pool):
        if part is not None:
            warn_bad(part)
    same = train_path is not None and train_path.resolve() == test_path.resolve()
    if pool is not None and max(shots) > len(pool) - same:
        raise UserError(f"{train_path} holds {len(pool)} examples, and {max(shots)} are to be shown. Ask for fewer.")
    labels = description.labels(examples, *([pool] if pool is not None else []))
    if limit is not None:
        examples = examples.part(range(min(limit, len(examples))))
    task = PromptTask(_load_causal(source, device), description, examples, pool, seed, same, labels)
    if max(shots):
        task.require_room(max(shots))
    results: list[ShotResult] = []

    def report(number: int) -> None:
        if on_progress is not None:
            on_progress(len(results) * len(examples) + number, len(shots) * len(examples))

    for count in shots:
        results.append(task.run(count, report))
    return PromptResult(results, task.baseline())


def _check_numbers(shots: Sequence[int], limit: int | None) -> None:
    if not shots or min(shots) < 0:
        raise UserError(f"shots={list(shots)}: give numbers of examples to show, 0 or more.")
    if len(set(shots)) < len(shots):
        raise UserError(f"shots={list(shots)}: a number stands there twice.")
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit}: ask one example or more.")


def _load_causal(source: str | Path | LoadedModel, device: str | None) -> LoadedModel:
    loaded = source if isinstance(source, LoadedModel) else load(source, device)
    if not loaded.model.causal:
        raise UserError(
            "This model does not go on with a text: only a causal Transformer (the GPTs) can be prompted. "
            "Fine-tune a masked model: etude finetune."
        )
    loaded.require_trained_head()
    return loaded


@dataclass
class PromptTask:
    """A model, a prompt file and its examples."""

    loaded: LoadedModel
    file: PromptFile
    examples: Examples[Any]
    pool: Examples[Any] | None  # examples to show
    seed: int
    same: bool  # whether the pool and the examples are one file: nothing is shown to itself
    labels: list[str]  # of a classification
    lengths: dict[str, int] = field(default_factory=dict)  # tokens of what comes again: shown examples, labels' words

    def run(self, count: int, report: Callable[[int], None]) -> ShotResult:
        """Evaluate with `count` shots; `report` receives the number of examples done."""
        if isinstance(self.file.form, WritePrompt):
            return self.write_answers(self.file.form, count, report)
        if isinstance(self.file.form, WordPrompt):
            return self.predict_words(count, report)
        return self.choose_answers(count, report)

    # --- the text before an answer ------------------------------------------------------------------

    def draw_shots(self, number: int, count: int) -> list[int]:
        """Return the numbers of the demonstrations shown before example `number`."""
        if not count:
            return []
        assert self.pool is not None
        size = len(self.pool) - self.same
        numbers = Permutation(size, fold(self.seed, number, "shots"))(np.arange(count)).tolist()
        return [drawn + (self.same and drawn >= number) for drawn in numbers]

    def context(self, number: int, count: int, room: int) -> tuple[str, int]:
        """Return the text before the answer, with as many shots as fit into `room` tokens, and their number."""
        question = self.file.question(self.examples[number])
        drawn = self.draw_shots(number, count)
        fit, left = 0, room - self._length(self._join([], question))
        for shot in reversed(drawn):  # those near to the question stay
            left -= self._cached_length(self._demonstration(shot) + self.file.separator)
            if left < 0:
                break
            fit += 1
        while True:  # the tokens of all parts and of the whole differ by a few
            text = self._join([self._demonstration(shot) for shot in drawn[len(drawn) - fit :]], question)
            if not fit or self._length(text) <= room:
                return text, fit
            fit -= 1

    def room(self, number: int) -> int:
        """Return the tokens of the context that are left before the answer of an example."""
        if isinstance(self.file.form, WritePrompt):
            return self.loaded.model.max_length - self.file.tokens
        answers = [self.file.delimiter + option for option in self.options(number)]
        return self.loaded.model.max_length - max(map(self._cached_length, answers))

    def require_room(self, count: int) -> None:
        """Raise UserError where not one shot fits before a question: all numbers of shots would be none."""
        numbers = range(min(GROUP, len(self.examples)))
        if any(self.context(number, 1, self.room(number))[1] for number in numbers):
            return
        context = self.loaded.model.max_length
        question, shot = (self._length(text) for text in (self.context(0, 0, 0)[0], self._demonstration(0)))
        needed = 1 << (question + count * (shot + 2) + context - self.room(0)).bit_length()
        raise UserError(
            f"Not one shot fits into the {context} tokens that this model sees: a question has about {question}, an "
            f"example with its answer {shot}. Pre-train with model.context={needed} for {count} shots, shorten the "
            "template, or ask with --shots 0."
        )

    def _join(self, demonstrations: list[str], question: str) -> str:
        instruction = [self.file.instruction] if self.file.instruction else []
        return self.file.separator.join([*instruction, *demonstrations, question])

    def _demonstration(self, number: int) -> str:
        assert self.pool is not None
        return self.file.demonstration(self.pool[number])

    def _cached_length(self, text: str) -> int:
        if text not in self.lengths:
            self.lengths[text] = self._length(text)
        return self.lengths[text]

    def _length(self, text: str) -> int:
        return len(self.loaded.tokenizer.encode(text).ids)

    # --- answers to choose from ---------------------------------------------------------------------

    def options(self, number: int) -> list[str]:
        """Return the possible answers of an example, without the delimiter."""
        form, example = self.file.form, self.examples[number]
        if isinstance(form, WordPrompt):
            return [form.word(example)]
        if isinstance(form, ChoicePrompt):
            return list(form.choices(example))
        return [self.file.words(label) for label in self.labels]

    def score_options(
        self, count: int, report: Callable[[int], None]
    ) -> Iterator[tuple[AnswerScores, AnswerScores | None, bool, int]]:
        """Yield for each example: the scores of its answers, those without the question where the rule needs them,
        whether it was truncated, and the shots that fitted."""
        for start in range(0, len(self.examples), GROUP):
            numbers = range(start, min(start + GROUP, len(self.examples)))
            group: list[Answers] = []
            alone: list[Answers] = []
            fits: list[int] = []
            for number in numbers:
                answers = [self.file.delimiter + option for option in self.options(number)]
                text, fit = self.context(number, count, self.room(number))
                group.append(encode_answers(self.loaded, text, answers))
                fits.append(fit)
                if self.file.compared == "unconditional":
                    alone.append(encode_answers(self.loaded, self.file.answer_context, answers))
            unconditional = score_answers(self.loaded, alone) if alone else [None] * len(group)
            for options, answer_scores, unconditional_scores, fit in zip(
                group, score_answers(self.loaded, group), unconditional, fits, strict=True
            ):
                yield answer_scores, unconditional_scores, options.cut, fit
            report(numbers.stop)

    def choose_answers(self, count: int, report: Callable[[int], None]) -> ShotResult:
        """Answer every example with the likeliest of its options, and score the answers."""
        rule_scores, cuts, fits = [], [], []
        for number, (answer_scores, unconditional, cut, fit) in enumerate(self.score_options(count, report)):
            rule_scores.append(score_by_rule(answer_scores, self.options(number), unconditional))
            cuts.append(cut)
            fits.append(fit)
        choices = {rule: np.array([int(scores[rule].argmax()) for scores in rule_scores]) for rule in rule_scores[0]}
        gold, chosen = self._gold(), choices[self.file.compared]
        accuracy_by: dict[str, float] = {
            rule: float((choice == gold).mean()) for rule, choice in choices.items() if rule != self.file.compared
        }
        if self.labels:
            counts = Confusion(len(self.labels))
            counts.add(gold, chosen)
            scores = label_scores(counts, [*METRICS, "f1"] if len(self.labels) == 2 else METRICS)
        else:
            scores = {"accuracy": bootstrap_mean(chosen == gold)}
        answers = [
            {
                "answer": self.options(number)[place],
                **({"label": self.labels[place]} if self.labels else {"choice": place}),
                "log_probabilities": by_rule["sum"].tolist(),
            }
            for number, (by_rule, place) in enumerate(zip(rule_scores, chosen.tolist(), strict=True))
        ]
        return ShotResult(count, scores, self.file.compared, accuracy_by, float(np.mean(fits)), sum(cuts), answers)

    def _gold(self) -> np.ndarray:
        form = self.file.form
        if isinstance(form, LabelPrompt):
            return label_numbers((form.label(example) for example in self.examples), self.labels, self.examples.places)
        assert isinstance(form, ChoicePrompt)
        return np.array([form.gold(example) for example in self.examples])

    # --- answers that are written -------------------------------------------------------------------

    def predict_words(self, count: int, report: Callable[[int], None]) -> ShotResult:
        """Predict the last word: accuracy of greedy decoding, and the perplexity of the word."""
        correct, nats, cuts, fits = [], [], [], []
        for answer_scores, _, cut, fit in self.score_options(count, report):
            correct.append(bool(answer_scores.likeliest[0]))
            nats.append(float(answer_scores.nats[0]))
            cuts.append(cut)
            fits.append(fit)
        surprise = np.array(nats)
        scores = {
            "accuracy": bootstrap_mean(np.array(correct)),
            "perplexity": bootstrap(len(surprise), lambda drawn: math.exp(surprise[drawn].mean())),
        }
        pairs = zip(correct, nats, strict=True)
        answers = [{"right": is_correct, "log_probability": -value} for is_correct, value in pairs]
        return ShotResult(count, scores, "written", {}, float(np.mean(fits)), sum(cuts), answers)

    def write_answers(self, form: WritePrompt[Any], count: int, report: Callable[[int], None]) -> ShotResult:
        """Generate an answer by beam search, up to the end of the line, and score it."""
        file, room = self.file, self.loaded.model.max_length - self.file.tokens
        if room < 1:
            raise UserError(f"tokens={file.tokens}: the model sees {self.loaded.model.max_length}. Leave room to ask.")
        answers, exact, overlap, cuts, fits = [], [], [], [], []
        for number, example in enumerate(self.examples):
            text, fit = self.context(number, count, room)
            ids = self.loaded.tokenizer.encode(text).ids
            if len(ids) > room:
                # a cut between the bytes of a letter, as of Hangul, leaves signs that stand for none
                text = self.loaded.tokenizer.decode(ids[-room:]).lstrip("\ufffd")
            best = self.loaded.search(text, file.tokens, beams=file.beams, penalty=file.penalty, stop=["\n"])[0]
            answer = best.text.strip()
            references = span_answers.choose_references(form.references(example), file.rules)
            answers.append({"answer": answer})
            exact.append(span_answers.exact(answer, references, file.rules))
            overlap.append(span_answers.f1(answer, references, file.rules))
            cuts.append(len(ids) > room)
            fits.append(fit)
            report(number + 1)
        scores = {"exact": bootstrap_mean(np.array(exact)), "f1": bootstrap_mean(np.array(overlap))}
        return ShotResult(count, scores, "written", {}, float(np.mean(fits)), sum(cuts), answers)

    # --- without a model ----------------------------------------------------------------------------

    def baseline(self) -> tuple[str, float] | None:
        """Return a baseline without a model, its name and accuracy: a random choice, or the majority label."""
        form = self.file.form
        if isinstance(form, ChoicePrompt):
            return "a guess", float(np.mean([1 / len(form.choices(example)) for example in self.examples]))
        if not isinstance(form, LabelPrompt):
            return None
        counts = Counter(map(form.label, self.pool if self.pool is not None else self.examples)).most_common()
        most = min(label for label, count in counts if count == counts[0][1])
        accuracy = float(np.mean([form.label(example) == most for example in self.examples]))
        return f"always '{self.file.words(most)}'", accuracy
