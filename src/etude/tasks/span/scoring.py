"""How the answers of a reader are scored, and what is answered without reading: no answer."""

from __future__ import annotations

from typing import Literal

import numpy as np

from etude.errors import UserError
from etude.tasks.base import Answer, Answers, ErrorExample, Scoring
from etude.tasks.bootstrap import Score, bootstrap_mean
from etude.tasks.data.examples import Examples
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.tasks.span import answers as rules
from etude.tasks.span.answers import Rules
from etude.tasks.span.questions import Question


class SpanScoring(Scoring[Question]):
    def __init__(self, score: Literal["f1", "exact"], given: Rules | None, null: bool) -> None:
        """`null`: whether training had questions without an answer, which decides SQuAD's version unless rules are
        given."""
        self.score: str = score
        self.rules: Rules = given or ("squad2" if null else "squad1")

    def value(self, name: str, text: str, item: Question) -> float:
        """Exact match or F1 of one answer."""
        measure = rules.exact if name == "exact" else rules.f1
        return float(measure(text, self.references(item), self.rules))

    def references(self, item: Question) -> list[str]:
        """[""] where there is no answer, or none by the rules."""
        return rules.choose_references([text for text, _ in item.answers or ()], self.rules)

    def outcome(self, examples: Examples[Question], answers: Answers) -> Outcome:
        pairs = zip(examples, answers, strict=True)
        return mean_outcome([self.value(self.score, answer["answer"], item) for item, answer in pairs])

    def check_gold(self, examples: Examples[Question]) -> None:
        for item, where in zip(examples, examples.places, strict=True):
            if item.answers is None:
                raise UserError(f"{where}: this question was read without its answers.")

    def scores(self, examples: Examples[Question], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        self.check_gold(examples)
        scores = {}
        has = np.array([bool(item.answers) for item in examples])
        for name in ("exact", "f1"):
            pairs = zip(examples, answers, strict=True)
            values = np.array([self.value(name, answer["answer"], item) for item, answer in pairs])
            scores[name] = bootstrap_mean(values, intervals)
            if has.any() and not has.all():
                scores[f"{name}_answerable"] = bootstrap_mean(values[has], intervals)
                scores[f"{name}_unanswerable"] = bootstrap_mean(values[~has], intervals)
        return scores

    def judge(self, examples: Examples[Question], answers: Answers) -> list[ErrorExample]:
        """Ordered by how far the answer is from every reference, then by how sure it was."""
        errors = []
        for item, answer in zip(examples, answers, strict=True):
            prob = answer["nbest"][0]["probability"] if answer["nbest"] else 0.0
            errors.append(
                ErrorExample(
                    text=f"{item.question} ⏐ {item.context}",
                    gold=" / ".join(dict.fromkeys(self.references(item))) or "(no answer)",
                    predicted=answer["answer"] or "(no answer)",
                    correct=self.value("exact", answer["answer"], item) == 1.0,
                    loss=1.0 - self.value("f1", answer["answer"], item) + prob,
                )
            )
        return errors


def majority(train: Examples[Question], test: Examples[Question]) -> list[Answer]:
    return [{"answer": ""} for _ in test]
