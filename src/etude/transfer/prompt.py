"""Zero, one and few shots: a causal model does a task by going on with a text. No weight changes (GPT-3, section 2).

Before every example that is asked, K others are shown with their answers, drawn at random from the training examples
(GPT-3 draws anew for each; so does this, by a hash of the seed and the example's number, and fewer shots are the first
of more). Shots that do not fit into the context are left out; only where none fits is what is asked cut, at its
beginning. A result says how often.

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
from etude.inference.likelihood import Answers, Worth, by_rules, spelled, weigh
from etude.inference.model import Loaded, load
from etude.tasks.bootstrap import Score, bootstrap, bootstrap_mean
from etude.tasks.classify import label_scores
from etude.tasks.data.examples import Examples, label_numbers
from etude.tasks.example_filter import tell_bad
from etude.tasks.metrics import Confusion
from etude.tasks.span import answers as judging
from etude.transfer.prompt_file import PromptFile

METRICS = ("accuracy", "macro_f1", "mcc")  # of labels; where there are two also f1, of the second as in GLUE
GROUP = 256  # examples put at once: bounds what is held, never changes a result


@dataclass(frozen=True)
class Result:
    """One number of shots."""

    shots: int
    scores: dict[str, Score]  # the first is the official one
    compared: str  # the rule by which answers were compared; "written" where the model wrote them
    others: dict[str, float]  # accuracy by the other rules
    shown: float  # shots that fitted, on average
    cut: int  # examples whose own text had to be cut
    answers: list[dict[str, Any]]  # in the order of the examples

    def json(self) -> dict[str, Any]:
        return {
            "shots": self.shots,
            "compared": self.compared,
            "scores": {name: score.json() for name, score in self.scores.items()},
            "accuracy_by": self.others,
            "shown": self.shown,
            "cut": self.cut,
        }


@dataclass(frozen=True)
class Prompted:
    results: list[Result]
    baseline: tuple[str, float] | None  # what no model is worth: its name, and its accuracy

    def json(self) -> dict[str, Any]:
        baseline = None if self.baseline is None else {"name": self.baseline[0], "accuracy": self.baseline[1]}
        return {"baseline": baseline, "results": [one.json() for one in self.results]}


def prompt(
    source: str | Path | Loaded,
    file: str | Path,
    shots: Sequence[int] = (0, 1, 4, 16),
    *,
    train: str | Path | None = None,
    test: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    skip_bad: bool = False,
    device: str | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Prompted:
    """A task, as a prompt file has it, for each number of shots; `limit` asks only the first so many examples.

    `tell` hears how many of how many have been asked.
    """
    said = PromptFile.load(file)
    _check_numbers(shots, limit)
    folder = Path(file).parent
    asked_from = Path(test) if test is not None else folder / said.test
    shown_from = Path(train) if train is not None else folder / said.train if said.train is not None else None
    if max(shots) and shown_from is None:
        raise UserError(f"{file}: {max(shots)} shots are asked for, and 'train' names no file to draw them from.")
    items = said.read(asked_from, skip_bad)
    pool = said.read(shown_from, skip_bad) if shown_from is not None else None
    for examples in (items, pool):
        if examples is not None:
            tell_bad(examples)
    same = shown_from is not None and shown_from.resolve() == asked_from.resolve()
    if pool is not None and max(shots) > len(pool) - same:
        raise UserError(f"{shown_from} holds {len(pool)} examples, and {max(shots)} are to be shown. Ask for fewer.")
    labels = said.labels(items, *([pool] if pool is not None else [])) if said.kind in ("classify", "pair") else []
    if limit is not None:
        items = items.part(range(min(limit, len(items))))
    asked = Asked(_speaking(source, device), said, items, pool, seed, same, labels)
    answered = {"span": asked.written, "word": asked.followed}.get(said.kind, asked.chosen)
    results: list[Result] = []

    def told(number: int) -> None:
        if tell is not None:
            tell(len(results) * len(items) + number, len(shots) * len(items))

    for count in shots:
        results.append(answered(count, told))
    return Prompted(results, asked.baseline())


def _check_numbers(shots: Sequence[int], limit: int | None) -> None:
    if not shots or min(shots) < 0:
        raise UserError(f"shots={list(shots)}: give numbers of examples to show, 0 or more.")
    if len(set(shots)) < len(shots):
        raise UserError(f"shots={list(shots)}: a number stands there twice.")
    if limit is not None and limit < 1:
        raise UserError(f"limit={limit}: ask one example or more.")


def _speaking(source: str | Path | Loaded, device: str | None) -> Loaded:
    loaded = source if isinstance(source, Loaded) else load(source, device)
    if not loaded.model.causal:
        raise UserError(
            "This model does not go on with a text: only a causal Transformer (the GPTs) can be prompted. "
            "Fine-tune a masked model: etude finetune."
        )
    loaded.must_speak()
    return loaded


@dataclass
class Asked:
    """A task put to a model."""

    loaded: Loaded
    said: PromptFile
    items: Examples[Any]
    pool: Examples[Any] | None  # what is shown
    seed: int
    same: bool  # whether what is shown and what is asked is one file: nothing is shown to itself
    labels: list[str]  # of a classification
    sizes: dict[str, int] = field(default_factory=dict)  # tokens of what comes again: shown examples, labels' words

    # --- what stands before an answer ---------------------------------------------------------------

    def drawn(self, number: int, count: int) -> list[int]:
        """The examples shown before example `number`."""
        if not count:
            return []
        assert self.pool is not None
        size = len(self.pool) - self.same
        found = Permutation(size, fold(self.seed, number, "shots"))(np.arange(count)).tolist()
        return [one + (self.same and one >= number) for one in found]

    def context(self, number: int, count: int, room: int) -> tuple[str, int]:
        """What stands before the answer of an example, with as many shots as fit into `room` tokens; how many do."""
        asked = self.said.asked(self.items[number])
        drawn = self.drawn(number, count)
        fit, left = 0, room - self._size(self._joined([], asked))
        for one in reversed(drawn):  # those near to what is asked stay
            left -= self._kept_size(self.said.shown(self._shown(one)) + self.said.separator)
            if left < 0:
                break
            fit += 1
        while True:  # the tokens of all parts and of the whole differ by a few
            shown = [self.said.shown(self._shown(one)) for one in drawn[len(drawn) - fit :]]
            text = self._joined(shown, asked)
            if not fit or self._size(text) <= room:
                return text, fit
            fit -= 1

    def _joined(self, shown: list[str], asked: str) -> str:
        instruction = [self.said.instruction] if self.said.instruction else []
        return self.said.separator.join([*instruction, *shown, asked])

    def _shown(self, number: int) -> Any:
        assert self.pool is not None
        return self.pool[number]

    def _kept_size(self, text: str) -> int:
        if text not in self.sizes:
            self.sizes[text] = self._size(text)
        return self.sizes[text]

    def _size(self, text: str) -> int:
        return len(self.loaded.tokenizer.encode(text).ids)

    # --- answers to choose from ---------------------------------------------------------------------

    def options(self, number: int) -> list[str]:
        """The answers of an example, without the delimiter."""
        item = self.items[number]
        if self.said.kind == "word":
            return [item.target]
        return list(item.choices) if self.said.kind == "choice" else [self.said.words(label) for label in self.labels]

    def weighed(self, count: int, tell: Callable[[int], None]) -> Iterator[tuple[Worth, Worth | None, bool, int]]:
        """Of each example: its answers' worth, the same without a question where that is asked for, whether it was cut,
        and the shots that fitted."""
        for start in range(0, len(self.items), GROUP):
            numbers = range(start, min(start + GROUP, len(self.items)))
            group: list[Answers] = []
            alone: list[Answers] = []
            fits: list[int] = []
            for number in numbers:
                answers = [self.said.delimiter + option for option in self.options(number)]
                room = self.loaded.model.context - max(map(self._kept_size, answers))
                text, fit = self.context(number, count, room)
                group.append(spelled(self.loaded, text, answers))
                fits.append(fit)
                if self.said.compared == "unconditional":
                    alone.append(spelled(self.loaded, self.said.answer_context, answers))
            unasked = weigh(self.loaded, alone) if alone else [None] * len(group)
            for one, worth, free, fit in zip(group, weigh(self.loaded, group), unasked, fits, strict=True):
                yield worth, free, one.cut, fit
            tell(numbers.stop)

    def chosen(self, count: int, tell: Callable[[int], None]) -> Result:
        rated, cuts, fits = [], [], []
        for number, (worth, unasked, cut, fit) in enumerate(self.weighed(count, tell)):
            rated.append(by_rules(worth, self.options(number), unasked))
            cuts.append(cut)
            fits.append(fit)
        found = {rule: np.array([int(one[rule].argmax()) for one in rated]) for rule in rated[0]}
        gold, chosen = self._gold(), found[self.said.compared]
        others: dict[str, float] = {
            rule: float((some == gold).mean()) for rule, some in found.items() if rule != self.said.compared
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
                "log_probabilities": one["sum"].tolist(),
            }
            for number, (one, place) in enumerate(zip(rated, chosen.tolist(), strict=True))
        ]
        return Result(count, scores, self.said.compared, others, float(np.mean(fits)), sum(cuts), answers)

    def _gold(self) -> np.ndarray:
        if self.labels:
            return label_numbers((item.label for item in self.items), self.labels, self.items.places)
        return np.array([item.answer for item in self.items])

    # --- answers that are written -------------------------------------------------------------------

    def followed(self, count: int, tell: Callable[[int], None]) -> Result:
        """The word that follows, which is known: written one token after the other it would be this one, or not."""
        right, nats, cuts, fits = [], [], [], []
        for worth, _, cut, fit in self.weighed(count, tell):
            right.append(bool(worth.likeliest[0]))
            nats.append(float(worth.nats[0]))
            cuts.append(cut)
            fits.append(fit)
        surprise = np.array(nats)
        scores = {
            "accuracy": bootstrap_mean(np.array(right)),
            "perplexity": bootstrap(len(surprise), lambda drawn: math.exp(surprise[drawn].mean())),
        }
        answers = [{"right": one, "log_probability": -value} for one, value in zip(right, nats, strict=True)]
        return Result(count, scores, "written", {}, float(np.mean(fits)), sum(cuts), answers)

    def written(self, count: int, tell: Callable[[int], None]) -> Result:
        said, room = self.said, self.loaded.model.context - self.said.tokens
        if room < 1:
            raise UserError(f"tokens={said.tokens}: the model sees {self.loaded.model.context}. Leave room to ask.")
        answers, exact, overlap, cuts, fits = [], [], [], [], []
        for number, item in enumerate(self.items):
            text, fit = self.context(number, count, room)
            ids = self.loaded.tokenizer.encode(text).ids
            if len(ids) > room:
                text = self.loaded.tokenizer.decode(ids[-room:])
            best = self.loaded.search(text, said.tokens, beams=said.beams, penalty=said.penalty, stop=["\n"])[0]
            answer, right = best.text.strip(), [words for words, _ in item.answers] or [""]
            answers.append({"answer": answer})
            exact.append(judging.exact(answer, right, said.rules))
            overlap.append(judging.f1(answer, right, said.rules))
            cuts.append(len(ids) > room)
            fits.append(fit)
            tell(number + 1)
        scores = {"exact": bootstrap_mean(np.array(exact)), "f1": bootstrap_mean(np.array(overlap))}
        return Result(count, scores, "written", {}, float(np.mean(fits)), sum(cuts), answers)

    # --- what no model is worth ---------------------------------------------------------------------

    def baseline(self) -> tuple[str, float] | None:
        if self.said.kind == "choice":
            return "a guess", float(np.mean([1 / len(item.choices) for item in self.items]))
        if not self.labels:
            return None
        often = Counter(item.label for item in (self.pool if self.pool is not None else self.items)).most_common()
        most = min(label for label, count in often if count == often[0][1])
        return f"always '{self.said.words(most)}'", float(np.mean([item.label == most for item in self.items]))
