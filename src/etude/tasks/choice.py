"""Multiple choice: one score an answer, a softmax over the answers of a question (SWAG, CommonsenseQA, RACE).

    both directions   [CLS] question [SEP] answer [SEP] for each answer (BERT, section 4.4)
    causal            start context question delimiter answer end (GPT-1, section 3.3); what dropout takes from one
                      answer of a question it takes from all, as in its code
    static, recurrent question and answer read alone, joined as [u; v; |u - v|; u * v]

Questions may have different numbers of answers. Files: CommonsenseQA's and OpenBookQA's JSON lines (their own nested
form too), SWAG's CSV (sent1, sent2, ending0 ...), and any record with `question` and a list of `choices`. RACE has an
article beside the question: both have to stand in one column.
The official score is accuracy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model
from etude.nn.packed import send_array
from etude.nn.states import States
from etude.objectives.base import Stat, Term
from etude.tasks import pooled_head as pooled
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring, most_common
from etude.tasks.bootstrap import Score, bootstrap_mean
from etude.tasks.data.examples import (
    Examples,
    Record,
    checked_text,
    column_of,
    gather,
    parse_whole,
    short,
    text_of,
    value_of,
)
from etude.tasks.data.records import FILES, records
from etude.tasks.linear_task import PartialRows, Targets
from etude.tasks.outcomes import Outcome, mean_outcome
from etude.tasks.pair import pair_reading
from etude.tasks.pooled_head import ExampleBatch, ExampleRow, ExampleRows, PooledHead
from etude.tasks.pooled_task import PooledTask
from etude.tasks.prompt_form import ChoicePrompt
from etude.tasks.published_head import EncoderFamily, PublishedHead
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Choice", "ChoiceScoring", "Question",
    "Settings", "build", "describe_answer", "gold_answers", "learn", "majority", "parse", "read", "records", "scoring",
    "strata",
]  # fmt: skip

SUMMARY = "which of several answers (SWAG, CommonsenseQA, OpenBookQA, RACE)"
SCORES = "accuracy"
COLUMNS = {
    "question": ("question", "sent1", "startphrase"),
    "choices": ("choices", "options", "endings"),
    "answer": ("answer", "answerKey", "label"),
}
INPUTS: tuple[str, ...] = ()  # a line holds JSON
TEXTS: tuple[str, ...] = ()


class Settings(pooled.Settings):
    texts: ClassVar[int] = 2
    reading: Literal["joint", "apart"] | None = Field(
        default=None,
        description="question and answer in one sequence, or each alone; what suits the model unless given",
    )


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...]
    answer: int | None = None


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> Question:
    record = _flat(record)
    if "article" in record and "question" not in columns:
        raise UserError(
            f"{where}: a question is read without the column 'article'. Write both into one column and name it with "
            "-c question=NAME; -c question=question leaves the article out."
        )
    column = column_of(record, "question", columns, COLUMNS["question"])
    text = text_of(record, column, where)
    choices, names = _choices(record, columns, where)
    second = record.get("sent2")
    if column == "sent1" and isinstance(second, str):  # SWAG: the ending goes on with the second sentence
        choices = [f"{second} {choice}".strip() for choice in choices]
    if not labelled:
        return Question(text, tuple(choices))
    answer = column_of(record, "answer", columns, COLUMNS["answer"])
    return Question(text, tuple(choices), _answer(value_of(record, answer, where), answer, names, where))


def _flat(record: Record) -> Record:
    """CommonsenseQA as published keeps {"stem", "choices": [{"label", "text"}]} under `question`."""
    nested = record.get("question")
    if isinstance(nested, dict) and "stem" in nested:
        return {**record, "question": nested["stem"], "choices": nested.get("choices")}
    return record


def _choices(record: Record, columns: Mapping[str, str], where: str) -> tuple[list[str], list[str]]:
    """The texts of the answers, and the names they go by."""
    endings = [name for number in range(26) if (name := f"ending{number}") in record]
    if endings and "choices" not in columns:
        return [text_of(record, name, where) for name in endings], [str(n) for n in range(len(endings))]
    column = column_of(record, "choices", columns, COLUMNS["choices"])
    value = value_of(record, column, where)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)  # a list in a cell of a CSV file
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, dict) and isinstance(value.get("text"), list):  # {"label": [...], "text": [...]}
        texts, labels = value["text"], value.get("label", list(range(len(value["text"]))))
        if not isinstance(labels, list) or len(labels) != len(texts):  # else answers would be lost unseen
            raise UserError(f"{where}: the column '{column}' has not one 'label' for each 'text': {short(value)}.")
        value = [{"label": a, "text": b} for a, b in zip(labels, texts, strict=True)]
    if not isinstance(value, list) or len(value) < 2:
        raise UserError(f"{where}: the column '{column}' holds {short(value)}, not a list of two or more answers.")
    if all(isinstance(choice, dict) for choice in value):
        names = [str(choice.get("label", number)) for number, choice in enumerate(value)]
        return [text_of(choice, "text", where) for choice in value], names
    return [checked_text(text, column, where) for text in value], [chr(65 + number) for number in range(len(value))]


def _answer(value: object, column: str, names: Sequence[str], where: str) -> int:
    """The number of the right answer: from 0, or the letter it goes by."""
    word = str(value).strip()
    if not isinstance(value, bool):
        if word in names:
            return list(names).index(word)
        number = parse_whole(word)
        if number is not None and number < len(names):
            return number
    raise UserError(
        f"{where}: the column '{column}' holds {short(value)}, which is none of the {len(names)} answers: "
        f"a number from 0 to {len(names) - 1}, or one of {', '.join(names)}."
    )


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[Question]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[Question], settings: Settings) -> dict[str, Any]:
    return {}


def strata(example: Question) -> frozenset[str]:
    return frozenset()  # the number of an answer is no class


def majority(train: Examples[Question], test: Examples[Question]) -> list[Answer]:
    answer = int(most_common([str(item.answer) for item in train]))
    return [{"answer": answer} for _ in test]


class QuestionPrompt(ChoicePrompt[Question]):
    def values(self, example: Question) -> dict[str, str]:
        listed = "\n".join(f"{chr(65 + number)}. {text}" for number, text in enumerate(example.choices))
        return {"question": example.text, "choices": listed}

    def choices(self, example: Question) -> tuple[str, ...]:
        return example.choices

    def gold(self, example: Question) -> int:
        assert example.answer is not None
        return example.answer


PROMPT = QuestionPrompt(("question", "choices"))


class ChoiceScoring(Scoring[Question]):
    score = "accuracy"

    def check_gold(self, examples: Examples[Question]) -> None:
        gold_answers(examples)

    def outcome(self, examples: Examples[Question], answers: Answers) -> Outcome:
        pairs = zip(examples, answers, strict=True)
        return mean_outcome([float(item.answer == answer["answer"]) for item, answer in pairs])

    def scores(self, examples: Examples[Question], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        predicted = np.array([answer["answer"] for answer in answers])
        return {"accuracy": bootstrap_mean(predicted == gold_answers(examples), intervals)}

    def judge(self, examples: Examples[Question], answers: Answers) -> list[ErrorExample]:
        return [
            ErrorExample(
                text=item.text,
                gold=item.choices[gold],
                predicted=answer["text"],
                correct=answer["answer"] == gold,
                loss=-math.log(max(1e-9, answer["scores"][gold])),
            )
            for item, answer, gold in zip(examples, answers, gold_answers(examples).tolist(), strict=True)
        ]


def scoring(settings: Settings, facts: Facts) -> ChoiceScoring:
    return ChoiceScoring()


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Choice:
    return Choice(settings, model, tokenizer)


class Choice(PooledTask[Question]):
    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.settings, self.scoring = settings, ChoiceScoring()
        self.pooled = PooledHead(settings, model, tokenizer, 1, pair_reading(settings.reading, model, tokenizer))
        self.framing = self.pooled.framing
        self.pooled.shared_dropout = model.causal

    def facts(self) -> dict[str, Any]:
        return {}

    def rows(self, corpus: Examples[Question], seed: int = 0) -> ExampleRows:
        rows = self.unlabelled_rows(corpus)
        rows.labels = gold_answers(corpus)
        return rows

    def unlabelled_rows(self, examples: Examples[Question]) -> ExampleRows:
        texts = [[(item.text, choice) for choice in item.choices] for item in examples]
        return self.pooled.rows(texts, examples.places, examples.source)

    def batch(self, rows: Sequence[ExampleRow], chance: Chance) -> ExampleBatch:
        return self.pooled.batch(rows)

    def _scores(self, model: Model, batch: ExampleBatch) -> tuple[Tensor, States]:
        """(R, most answers), -inf where a question has fewer."""
        flat, states = self.pooled(model, batch)  # (answers of all questions, 1)
        return arrange_scores(flat[:, 0], self.pooled.feature_counts(batch)), states

    def loss(self, model: Model, batch: ExampleBatch) -> dict[str, Term]:
        assert batch.labels is not None
        scores, states = self._scores(model, batch)
        total = F.cross_entropy(scores, batch.labels, reduction="sum")
        return {"loss": Term(total, batch.counts["loss"])} | self.pooled.auxiliary(model, states, batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: ExampleBatch) -> dict[str, Stat]:
        assert batch.labels is not None
        scores, count = self._scores(model, batch)[0], batch.counts["loss"]
        return {
            "loss": Stat(F.cross_entropy(scores, batch.labels, reduction="sum"), count, weight=1.0),
            "accuracy": Stat((scores.argmax(-1) == batch.labels).sum(), count),
        }

    def flops(self, model: Model, batch: ExampleBatch) -> int:
        return self.pooled.flops(model, batch)

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[Question]) -> list[Answer]:
        batches = self.batches(model, self.unlabelled_rows(examples))
        return answer_questions(examples, ((group, self._scores(model, batch)[0]) for group, batch in batches))

    # --- the head alone -----------------------------------------------------------------------------

    def targets(self, examples: Examples[Question], rows: PartialRows[ExampleRow]) -> Targets:
        sizes = [len(item.choices) for item in examples]
        return Targets(
            "candidates", [np.eye(size)[gold] for size, gold in zip(sizes, gold_answers(examples), strict=True)]
        )

    def answers(
        self, examples: Examples[Question], rows: PartialRows[ExampleRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        pairs = zip(examples, logits, strict=True)
        return [describe_answer(item, torch.from_numpy(scores[:, 0]).softmax(-1).numpy()) for item, scores in pairs]

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        return self.pooled.published_head(model, family, "ForMultipleChoice", self.state_dict(), {})


def arrange_scores(flat: Tensor, sizes: np.ndarray) -> Tensor:
    """(answers of all questions,), (R,) answers of each -> (R, most answers), -inf where a question has fewer.

    By numbers that the host knows: for a mask, a GPU would be waited for in the backward pass.
    """
    is_answer = np.arange(int(sizes.max())) < sizes[:, None]
    scores = flat.new_full((is_answer.size,), float("-inf"))
    return scores.index_copy(0, send_array(np.flatnonzero(is_answer), flat.device), flat).view(is_answer.shape)


def answer_questions(examples: Examples[Question], scores: Iterable[tuple[list[int], Tensor]]) -> list[Answer]:
    """Answers in the order of the questions, from groups of their numbers with scores (questions, answers)."""
    answers: list[Answer] = [{} for _ in range(len(examples))]
    for group, logits in scores:
        for number, row in zip(group, logits.softmax(-1).float().cpu().numpy(), strict=True):
            answers[number] = describe_answer(examples[number], row[: len(examples[number].choices)])
    return answers


def describe_answer(item: Question, probs: np.ndarray) -> Answer:
    """The answer to one question from the probabilities (answers,)."""
    best = int(probs.argmax())
    return {"answer": best, "text": item.choices[best], "scores": [float(value) for value in probs]}


def gold_answers(examples: Examples[Question]) -> np.ndarray:
    """(examples,) the numbers of the right answers; UserError where an example has none."""
    for item, where in zip(examples, examples.places, strict=True):
        if item.answer is None:
            raise UserError(f"{where}: this question has no answer. Name the column that holds it.")
    return np.array([item.answer for item in examples], dtype=np.int64)
