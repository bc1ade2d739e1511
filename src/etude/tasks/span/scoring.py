"""How the answers of a reader are scored, and what is answered without reading: no answer."""

from __future__ import annotations

from typing import Literal

from etude.tasks.base import Answer, Answers, Scoring
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
        """[""] where there is no answer, or none that is left after the official clean-up."""
        return [text for text, _ in item.answers or () if rules.NORMALISE[self.rules](text)] or [""]

    def outcome(self, examples: Examples[Question], answers: Answers) -> Outcome:
        pairs = zip(examples, answers, strict=True)
        return mean_outcome([self.value(self.score, answer["answer"], item) for item, answer in pairs])


def majority(train: Examples[Question], test: Examples[Question]) -> list[Answer]:
    return [{"answer": ""} for _ in test]
