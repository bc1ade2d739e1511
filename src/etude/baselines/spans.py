"""Questions about a text without pre-training: words shared with the question, under a linear model of spans.

The logistic regression over spans of Rajpurkar et al. 2016 is the model for it. Theirs knows the parse of a sentence,
this one no more than its words, so it works in any language that has words. On SQuAD 1.1 (its dev set; 466 questions of
other articles' paragraphs) it has an F1 of 38 with 100 questions to learn from, and of 42 with 400.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from etude.baselines import span_features
from etude.baselines.base import Baseline, BaselineTask, take_arrays
from etude.baselines.linear import Loss, Problem, fit_best, stack_vectors
from etude.baselines.linear_baseline import WordVectors
from etude.baselines.span_features import Feature, QuestionWords, Tokens, answer_question, question_features
from etude.baselines.text_features import SparseVector
from etude.errors import UserError
from etude.tasks.base import Answer
from etude.tasks.data.examples import Examples
from etude.tasks.span.questions import Question
from etude.tasks.span.task import Settings

LONGEST = 16  # tokens of an answer at most
COVERED = 0.97  # of the training answers are not longer than what is given
OUTPUTS = 3  # opens, closes, holds
PENALTIES = (0.1, 0.3, 1.0)  # on SQuAD 1.1, 100 and 400 questions, from 0.003 to 3: 0.1 and 0.3 were the best
RARE = 2  # questions that a feature must occur in
PREDICT = '''"""Answers with numpy alone; a question and its text with a tab between:   python predict.py < lines.txt"""

import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
from span_features import QuestionWords, Tokens, answer_question, question_features

FOLDER = Path(__file__).resolve().parent
CONTENT = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
MODEL, HAS_NULL = CONTENT["model"], CONTENT["facts"]["null"]
WEIGHTS = dict(np.load(FOLDER / "weights.npz"))
COLUMNS = {name: column for column, name in enumerate(MODEL["features"])}
IDF = dict(zip(MODEL["words"], WEIGHTS["idf"].tolist()))


def predict(line):
    """The span of a text that answers a question."""
    question, text = line.split("\\t", 1)
    text = unicodedata.normalize("NFC", text)
    tokens = Tokens.split(text)
    query = QuestionWords.read(question, IDF, MODEL["largest_idf"])
    scores = []
    for row in question_features(query, tokens, MODEL["longest"], HAS_NULL):
        known = [(COLUMNS[name], value) for name, value in row if name in COLUMNS]
        columns, values = [column for column, _ in known], np.array([value for _, value in known])
        scores.append(values @ WEIGHTS["weight"][columns].astype(np.float64) + WEIGHTS["bias"])
    return answer_question(text, tokens, np.array(scores), MODEL["longest"], HAS_NULL, MODEL["exact"], MODEL["nbest"])


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(json.dumps(predict(line.decode("utf-8").rstrip("\\r\\n")), ensure_ascii=False))
'''


@dataclass(frozen=True)
class SpanVocabulary:
    """What features know: the weights of words, the columns of features, the longest answer."""

    idf: Mapping[str, float]
    largest_idf: float
    columns: Mapping[str, int]
    longest: int
    has_null: bool

    def read(self, question: str, tokens: Tokens) -> list[list[Feature]]:
        query = QuestionWords.read(question, self.idf, self.largest_idf)
        return question_features(query, tokens, self.longest, self.has_null)

    def vector(self, row: Sequence[Feature]) -> SparseVector:
        known = [(self.columns[name], value) for name, value in row if name in self.columns]
        return np.array([column for column, _ in known], np.int64), np.array([value for _, value in known], np.float64)


@dataclass(frozen=True)
class Target:
    """The spans that answer a question, by first token and length - 1; none where there is no answer."""

    reach: np.ndarray  # (tokens,)
    spans: list[tuple[int, int]]


class SpanBaseline(Baseline[Question]):
    """A linear model of the spans of a text."""

    def __init__(self, name: str, task: BaselineTask, vocabulary: SpanVocabulary, weight: np.ndarray,
                 bias: np.ndarray, penalty: float) -> None:  # fmt: skip
        """`weight` (features, OUTPUTS), `bias` (OUTPUTS,)."""
        super().__init__(name, task)
        self.vocabulary, self.weight, self.bias, self.penalty = vocabulary, weight, bias, penalty

    @property
    def _settings(self) -> Settings:
        assert isinstance(self.task.settings, Settings)
        return self.task.settings

    @classmethod
    def fit(
        cls, name: str, task: BaselineTask, examples: Examples[Question], seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:  # fmt: skip
        if vectors is not None:
            raise ValueError("spans are scored without word vectors")
        task.scoring.check_gold(examples)
        has_null = bool(task.facts["null"])
        usable = [item for item in examples if item.answers or has_null]
        splits = {context: Tokens.split(context) for context in {item.context for item in usable}}
        usable = [item for item in usable if len(splits[item.context])]
        if not any(item.answers for item in usable):
            raise UserError(f"{examples.source}: no question has an answer to learn from.")
        idf, largest = _learn_idf(list(splits))
        answers = [_find_spans(item, splits[item.context]) for item in usable]
        longest = _choose_longest([spans for spans in answers if spans])
        longest = min(longest, task.settings.answer if isinstance(task.settings, Settings) else LONGEST)
        plain = SpanVocabulary(idf, largest, {}, longest, has_null)
        rows = [plain.read(item.question, splits[item.context]) for item in usable]
        counts = Counter(name for question in rows for name in {name for row in question for name, _ in row})
        names = sorted(name for name, count in counts.items() if count >= RARE)
        vocabulary = SpanVocabulary(
            idf, largest, {name: column for column, name in enumerate(names)}, longest, has_null
        )
        table = stack_vectors([vocabulary.vector(row) for question in rows for row in question], len(names))
        bounds = np.concatenate([[0], np.cumsum([len(question) for question in rows])])
        pairs = zip(usable, answers, strict=True)
        targets = [_target(spans, splits[item.context], longest) for item, spans in pairs]
        strata = np.array([bool(target.spans) for target in targets], np.int64)
        problem = Problem(
            OUTPUTS, lambda units: span_cross_entropy([targets[unit] for unit in units], longest, has_null),
            strata, bounds,
        )  # fmt: skip
        choice = fit_best([table], problem, seed, PENALTIES)
        return cls(name, task, vocabulary, choice.model.weight.astype(np.float32), choice.model.bias, choice.penalty)

    def predict(self, examples: Examples[Question]) -> list[Answer]:
        answers = []
        splits = {context: Tokens.split(context) for context in {item.context for item in examples}}
        exact, count = self._settings.score == "exact", self._settings.nbest
        for item in examples:
            tokens = splits[item.context]
            rows = self.vocabulary.read(item.question, tokens)
            table = stack_vectors([self.vocabulary.vector(row) for row in rows], len(self.weight))
            scores = np.asarray(table @ self.weight.astype(np.float64)) + self.bias
            known = self.vocabulary
            answer = answer_question(item.context, tokens, scores, known.longest, known.has_null, exact, count)
            answers.append({"id": item.id, **answer})
        return answers

    def scale_logits(self, temperature: float) -> None:
        self.weight, self.bias = (self.weight / temperature).astype(np.float32), self.bias / temperature

    def describe(self) -> dict[str, Any]:
        known = self.vocabulary
        return {
            "features": list(known.columns), "words": list(known.idf), "largest_idf": known.largest_idf,
            "longest": known.longest, "exact": self._settings.score == "exact", "nbest": self._settings.nbest,
            "penalty": self.penalty,
        }  # fmt: skip

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight, "bias": self.bias, "idf": np.array(list(self.vocabulary.idf.values()))}

    @classmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        names, words = description["features"], description["words"]
        take_arrays(arrays, {"weight": (len(names), OUTPUTS), "bias": (OUTPUTS,), "idf": (len(words),)})
        idf = dict(zip(words, arrays["idf"].tolist(), strict=True))
        columns = {feature: column for column, feature in enumerate(names)}
        vocabulary = SpanVocabulary(
            idf, float(description["largest_idf"]), columns, int(description["longest"]), bool(task.facts["null"])
        )
        return cls(name, task, vocabulary, arrays["weight"], arrays["bias"], float(description["penalty"]))

    def standalone(self) -> dict[str, str]:
        return {"predict.py": PREDICT, "span_features.py": inspect.getsource(span_features)}


def _learn_idf(texts: Sequence[str]) -> tuple[dict[str, float], float]:
    """The weight of each word by the sentences that have it; a word of none is as rare as one of one sentence."""
    counts: Counter[str] = Counter()
    total = 0
    for text in texts:
        tokens = Tokens.split(text)
        held = {(word.lower(), sentence) for word, sentence in zip(tokens.words, tokens.sentences, strict=True)}
        counts.update(word for word, _ in held if word[0].isalnum())
        total += max(tokens.sentences, default=-1) + 1
    idf = {word: float(np.log(total / count)) for word, count in sorted(counts.items()) if count > 1}
    return idf, float(np.log(max(2, total)))


def _find_spans(item: Question, tokens: Tokens) -> list[tuple[int, int]]:
    """(first, last) tokens of every different reference."""
    spans = set()
    starts, stops = np.array(tokens.starts), np.array(tokens.stops)
    for text, start in item.answers or ():
        touched = np.flatnonzero((stops > start) & (starts < start + len(text)))
        if len(touched):
            spans.add((int(touched[0]), int(touched[-1])))
    return sorted(spans)


def _choose_longest(answers: Sequence[Sequence[tuple[int, int]]]) -> int:
    sizes = sorted(min(last - first for first, last in spans) + 1 for spans in answers)
    return max(1, min(LONGEST, sizes[min(len(sizes) - 1, int(COVERED * len(sizes)))]))


def _target(spans: Sequence[tuple[int, int]], tokens: Tokens, longest: int) -> Target:
    """Answers that are too long, or go beyond their sentence, are cut."""
    reach = tokens.reach
    cut = {(first, min(last - first, longest - 1, int(reach[first]) - 1)) for first, last in spans}
    return Target(reach, sorted(cut))


def span_cross_entropy(targets: Sequence[Target], longest: int, has_null: bool) -> Loss:
    """The loss of a softmax over all spans of each text and "no answer"; several right spans share the right answer.

    Rows of a question: its tokens, the lengths 1 to `longest`, and "no answer" where `has_null`.
    """
    sizes = np.array([len(target.reach) for target in targets])
    extra = longest + has_null
    row_starts = np.concatenate([[0], np.cumsum(sizes + extra)])[:-1]
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]  # of the tokens of each question, among all tokens
    question = np.repeat(np.arange(len(sizes)), sizes)  # (T,)
    token_rows = np.arange(sizes.sum()) + extra * question
    length_rows = (row_starts + sizes)[:, None] + np.arange(longest)  # (Q, longest)
    null_rows = row_starts + sizes + longest
    steps, places = np.arange(longest), np.arange(len(question))
    is_span = steps < np.concatenate([target.reach for target in targets])[:, None]  # (T, longest)
    last = np.minimum(places[:, None] + steps, len(question) - 1)
    right, right_null = np.zeros(is_span.shape), np.zeros(len(targets))
    for number, target in enumerate(targets):
        for first, size in target.spans:
            right[starts[number] + first, size] = 1 / len(target.spans)
        right_null[number] = not target.spans

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        opens, closes, holds = scores[token_rows].T
        held = np.concatenate([[0.0], np.cumsum(holds)])
        grid = opens[:, None] + closes[last] + held[last + 1] - held[places][:, None]
        grid += scores[length_rows, 0][question]
        grid = np.where(is_span, grid, -np.inf)
        null = scores[null_rows, 0] if has_null else np.full(len(sizes), -np.inf)
        top = np.maximum(np.maximum.reduceat(grid.max(1), starts), null)
        shares = np.exp(grid - top[question][:, None])
        null_share = np.exp(null - top)
        total = np.add.reduceat(shares.sum(1), starts) + null_share
        value = float((np.log(total) + top).sum() - right[right > 0] @ grid[right > 0])
        error = shares / total[question][:, None] - right  # (T, longest)
        slope = np.zeros_like(scores)
        by_first = error.sum(1)
        by_last = np.bincount(last[is_span], error[is_span], minlength=len(question))
        slope[token_rows, 0], slope[token_rows, 1] = by_first, by_last
        # a token is held by the spans that have begun and not ended before it
        slope[token_rows, 2] = np.cumsum(by_first) - np.concatenate([[0.0], np.cumsum(by_last)[:-1]])
        slope[length_rows, 0] = np.add.reduceat(error, starts)
        if has_null:
            value -= float(right_null @ null)
            slope[null_rows, 0] = null_share / total - right_null
        return value, slope

    return loss
