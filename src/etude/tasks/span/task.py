"""Questions answered by a span of a text: SQuAD 1.1 and 2.0, KorQuAD, KLUE's MRC.

[CLS] question [SEP] text [SEP], in overlapping windows where the text is long; a start and an end score at every
token, softmax over the whole sequence; windows without the answer point at [CLS] (BERT, sections 4.2 and 4.3, and its
code). A causal model has its null answer at the end token, which alone has seen all.

Decoding: the best `nbest` starts and ends of every window, in the text, in order, the start in the window where it
has most context (span/windows.py), at most `answer` tokens. Null score: the smallest over the windows. Where training
had questions without an answer (SQuAD 2.0), a question is null if null score - best span > threshold, found on dev
after training. `null: head` decides by a classifier on [CLS] of its own, and trains spans on windows with an answer.

Answers are cut from the text by character offsets; scores by the official rules (tasks/span/answers.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model
from etude.models.depth import training_flops
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import IGNORE, Term, join
from etude.settings import Strict
from etude.tasks.base import Answer, Answers, Facts
from etude.tasks.data.examples import Examples, gather
from etude.tasks.data.records import FILES, records
from etude.tasks.linear_task import LinearTask, PartialRows, Targets
from etude.tasks.published_head import EncoderFamily, PublishedHead
from etude.tasks.span import answers as rules
from etude.tasks.span.answers import Rules
from etude.tasks.span.official_files import official
from etude.tasks.span.questions import COLUMNS, INPUTS, PROMPT, TEXTS, Question, parse, strata
from etude.tasks.span.rows import QuestionRows, WindowBatch, WindowedQuestion, WindowRow, WindowRows, by_sequence
from etude.tasks.span.scoring import SpanScoring, majority
from etude.tasks.span.windows import windows
from etude.text.tokenizer.tokenizer import Encoding, Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "Span", "build", "learn",
    "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "a span of a text that answers a question (SQuAD 1.1 and 2.0, KorQuAD, KLUE-MRC)"

SCORES = "F1, exact match, answerable and not, by the rules of SQuAD 1.1, SQuAD 2.0, KorQuAD, KLUE, CoQA"


class Settings(Strict):
    length: int = Field(default=384, ge=16, description="tokens of a window with its question, the context at most")
    stride: int = Field(default=128, ge=1, description="tokens between the starts of two windows")
    question: int = Field(default=64, ge=1, description="most tokens of a question; longer ones are cut")
    answer: int = Field(default=30, ge=1, description="most tokens of an answer")
    nbest: int = Field(default=20, ge=1)
    null: Literal["span", "head"] = Field(default="span", description="how a question without an answer is recognised")
    rules: Rules | None = Field(default=None, description="rules of the score; SQuAD's, by version, unless given")
    score: Literal["f1", "exact"] = "f1"
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the states; BERT has none here")
    deviation: float = Field(default=0.02, gt=0)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[Question]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[Question], settings: Settings) -> dict[str, Any]:
    return {"null": any(not item.answers for item in examples), "threshold": 0.0}


def scoring(settings: Settings, facts: Facts) -> SpanScoring:
    return SpanScoring(settings.score, settings.rules, facts["null"])


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Span:
    return Span(settings, model, tokenizer, facts["null"], facts["threshold"])


class Span(LinearTask[Question, WindowRow, WindowBatch]):
    pads_batches = True
    gives_probabilities = False  # of a label
    has_token_units = True
    scoring: SpanScoring

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, null: bool, threshold: float) -> None:
        super().__init__()
        if not model.layers:
            raise UserError("The task span relates a question to a text, and static vectors see no other word.")
        self.settings, self.tokenizer, self.null, self.threshold = settings, tokenizer, null, threshold
        self.scoring = SpanScoring(settings.score, settings.rules, null)
        self.framing = model.frame(tokenizer.special).limit(settings.length)
        self.last = model.causal
        self.head = nn.Linear(model.width, 2)
        self.absent = nn.Linear(model.width, 1) if settings.null == "head" and null else None
        for layer in (self.head, self.absent):
            if layer is not None:
                nn.init.normal_(layer.weight, std=settings.deviation)
                nn.init.zeros_(layer.bias)

    def facts(self) -> dict[str, Any]:
        return {"null": self.null, "threshold": self.threshold}

    # --- texts to windows ---------------------------------------------------------------------------

    def rows(self, corpus: Examples[Question], seed: int = 0) -> WindowRows:
        windowed = []
        for start in range(0, len(corpus), 256):  # encodings are large: not all at once
            part = corpus.items[start : start + 256]
            questions = self.tokenizer.encode_ids([item.question for item in part])
            texts = {item.context for item in part}  # many questions share a text
            encodings = dict(zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True))
            for number, (item, question) in enumerate(zip(part, questions, strict=True)):
                where = corpus.places[start + number]
                windowed.append(self._split(item, question, encodings[item.context], where))
        return WindowRows(windowed, self.framing.segments, self.last)

    def _split(self, item: Question, question: np.ndarray, text: Encoding, where: str) -> WindowedQuestion:
        if not len(text.ids) or not len(question):
            raise UserError(f"{where}: the tokenizer leaves nothing of the text or the question. Remove it.")
        before = np.concatenate([self.framing.before, question[: self.settings.question], self.framing.between])
        room = (
            len(text.ids)
            if self.framing.length is None
            else self.framing.length - len(before) - len(self.framing.after)
        )
        try:
            cut = windows(len(text.ids), max(room, 8) if self.framing.length is None else room,
                          self.settings.stride, self.settings.answer)  # fmt: skip
        except UserError as problem:
            raise UserError(f"{where}: {problem}") from None
        answer = self._tokens(item, text.offsets)
        sequences, spans = [], []
        for start, stop in zip(cut.starts.tolist(), cut.stops.tolist(), strict=True):
            sequences.append(np.concatenate([before, text.ids[start:stop], self.framing.after]).astype(np.int32))
            inside = answer is not None and start <= answer[0] and answer[1] < stop
            shift = len(before) - start
            spans.append((answer[0] + shift, answer[1] + shift) if inside and answer is not None else None)
        return WindowedQuestion(item, cut, len(before), text.offsets, sequences, spans)

    @staticmethod
    def _tokens(item: Question, offsets: np.ndarray) -> tuple[int, int] | None:
        """First and last token that share a character with the first reference; None where there is none."""
        if not item.answers:
            return None
        text, start = item.answers[0]
        touched = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < start + len(text)))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None

    # --- training -----------------------------------------------------------------------------------

    def batch(self, rows: Sequence[WindowRow], chance: Chance) -> WindowBatch:
        nulls = [row.null for row in rows]
        spans = [row.span for row in rows]
        # with a head of its own for "no answer", spans learn from windows that have one
        elsewhere = nulls if self.absent is None else [IGNORE] * len(rows)
        targets = [span or (place, place) for span, place in zip(spans, elsewhere, strict=True)]
        counts = {"loss": sum(start != IGNORE for start, _ in targets)}
        if self.absent is not None:
            counts["absent"] = len(rows)
        longest = self.framing.length or max(len(row.tokens) for row in rows)
        return WindowBatch(
            **join(rows, 0, longest),
            counts=counts,
            starts=torch.tensor([start for start, _ in targets]),
            ends=torch.tensor([end for _, end in targets]),
            nulls=torch.tensor(nulls),
            absent=torch.tensor([float(span is None) for span in spans]),
            row_lengths=np.array([len(row.tokens) for row in rows]),
        )

    def _scores(self, model: Model, batch: WindowBatch) -> tuple[Tensor, Tensor | None]:
        """(N, 2) start and end scores; (S,) of the null head where there is one."""
        last = F.dropout(model(batch).last, self.settings.dropout, self.training)
        absent = None
        if self.absent is not None:
            assert batch.nulls is not None
            absent = upcast(self.absent(last[batch.layout.bounds[: batch.sequences].long() + batch.nulls]))[:, 0]
        return upcast(self.head(last)), absent

    def loss(self, model: Model, batch: WindowBatch) -> dict[str, Term]:
        assert batch.starts is not None and batch.ends is not None and batch.absent is not None
        scores, absent = self._scores(model, batch)
        padded = by_sequence(scores, batch)  # (S, L, 2)
        parts = [
            F.cross_entropy(padded[..., side], target, ignore_index=IGNORE, reduction="sum")
            for side, target in enumerate((batch.starts, batch.ends))
        ]
        terms = {"loss": Term((parts[0] + parts[1]) / 2, batch.counts["loss"])}
        if absent is not None:
            total = F.binary_cross_entropy_with_logits(absent, batch.absent, reduction="sum")
            terms["absent"] = Term(total, batch.counts["absent"])
        return terms

    def flops(self, model: Model, batch: WindowBatch) -> int:
        lengths = batch.lengths
        head = 2 * int(lengths.sum()) * model.width * 2 + (2 * len(lengths) * model.width if self.absent else 0)
        return training_flops(model, lengths) + 3 * head

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[Question]) -> list[Answer]:
        """The answer, the null score, and the n best spans with their places in the text."""
        rows = self.rows(examples)
        outputs_of_rows: list[tuple[np.ndarray, float | None]] = [(np.zeros((0, 2)), None)] * len(rows)
        for group, batch in self.batches(model, rows):
            scores, absent = self._scores(model, batch)
            pieces = scores.float().cpu().split(batch.layout.lengths.tolist())
            for number, (row, piece) in enumerate(zip(group, pieces, strict=True)):
                outputs_of_rows[row] = piece.numpy(), None if absent is None else float(absent[number])
        outputs = iter(outputs_of_rows)
        return [self._answer(windowed, [next(outputs) for _ in windowed.sequences]) for windowed in rows.questions]

    def _answer(self, windowed: WindowedQuestion, outputs: list[tuple[np.ndarray, float | None]]) -> Answer:
        candidates: list[tuple[float, int, int, float, float]] = []
        nulls: list[tuple[float, list[float]]] = []
        for window, (scores, absent) in enumerate(outputs):
            null = scores[-1 if self.last else 0]
            nulls.append((float(null.sum()) if absent is None else absent, null.tolist()))
            candidates += self._spans(windowed, window, scores)
        candidates.sort(key=lambda span: (-span[0], span[1], span[2]))
        best: dict[str, dict[str, Any]] = {}
        for score, first, last, opens, closes in candidates:
            start, stop = int(windowed.offsets[first, 0]), int(windowed.offsets[last, 1])
            text = self.tokenizer.normalise(windowed.question.context)[start:stop]
            start += len(text) - len(text.lstrip())  # tokens of byte-level tokenizers begin with their space
            text = text.strip()
            if text and text not in best:
                best[text] = {"text": text, "score": score, "start": start, "start_logit": opens, "end_logit": closes}
            if len(best) == self.settings.nbest:
                break
        answer: Answer = {
            "id": windowed.question.id,
            "answer": "",
            "null": min(nulls)[0],
            "nbest": list(best.values()),
        }
        if self.null and self.absent is None:
            answer["null_logits"] = min(nulls)[1]
        if best:
            top = answer["nbest"][0]
            # a null head gives log-odds, which are compared with 0; null spans are compared with the best span
            answer["null"] -= 0.0 if self.absent is not None else top["score"]
            weights = np.exp(np.array([span["score"] for span in answer["nbest"]]) - top["score"])
            for span, value in zip(answer["nbest"], weights / weights.sum(), strict=True):
                span["probability"] = float(value)
            if not self.null or answer["null"] <= self.threshold:
                answer["answer"] = top["text"]
        return answer

    def _spans(
        self, windowed: WindowedQuestion, window: int, scores: np.ndarray
    ) -> list[tuple[float, int, int, float, float]]:
        """(score, first token, last token, its two parts) of the best spans of one window."""
        cut = windowed.windows
        start, stop = int(cut.starts[window]), int(cut.stops[window])
        inside = scores[windowed.before : windowed.before + stop - start]
        is_scored = cut.scored_in[start:stop] == window
        firsts = _top(np.where(is_scored, inside[:, 0], -np.inf), self.settings.nbest)
        lasts = _top(inside[:, 1], self.settings.nbest)
        grid = inside[firsts, 0][:, None] + inside[lasts, 1][None, :]
        length = lasts[None, :] - firsts[:, None] + 1
        fit = (length >= 1) & (length <= cut.answer) & is_scored[firsts][:, None]
        return [
            (
                float(grid[i, j]),
                start + int(firsts[i]),
                start + int(lasts[j]),
                float(inside[firsts[i], 0]),
                float(inside[lasts[j], 1]),
            )
            for i, j in zip(*np.nonzero(fit), strict=True)
        ]

    # --- a linear probe: units are the tokens of all windows, each side has one softmax over them ------------

    @property
    def output_layer(self) -> nn.Linear:
        return self.head

    @property
    def nonlinear_part(self) -> str | None:
        return "task.null=head" if self.absent is not None else None

    def unlabelled_rows(self, examples: Examples[Question]) -> QuestionRows:
        return QuestionRows(self.rows(examples).questions, self.framing.segments)

    def features(self, model: Model, states: States, batch: WindowBatch) -> Tensor:
        return states.last  # (N, D)

    def unit_counts(self, batch: WindowBatch) -> np.ndarray:
        assert batch.row_lengths is not None
        return batch.row_lengths

    def targets(self, examples: Examples[Question], rows: PartialRows[WindowRow]) -> Targets:
        """Where the answer opens and closes, in every window that has it; the null answers where there is none."""
        assert isinstance(rows, QuestionRows)
        values = []
        for item, windowed in zip(examples, rows.questions, strict=True):
            parts = []
            for sequence, span in zip(windowed.sequences, windowed.spans, strict=True):
                marks = np.zeros((len(sequence), 2))
                null = len(sequence) - 1 if self.last else 0
                places = span if item.answers else (null, null)
                if places is not None:
                    marks[places, (0, 1)] = 1
                parts.append(marks)
            values.append(np.concatenate(parts))
        return Targets("candidates", values)

    def answers(
        self, examples: Examples[Question], rows: PartialRows[WindowRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        assert isinstance(rows, QuestionRows)
        answers = []
        for windowed, scores in zip(rows.questions, logits, strict=True):
            bounds = np.cumsum([len(sequence) for sequence in windowed.sequences])[:-1]
            answers.append(self._answer(windowed, [(piece, None) for piece in np.split(scores, bounds)]))
        return answers

    # --- scores -------------------------------------------------------------------------------------

    def tune_on_dev(self, model: Model, dev: Examples[Question]) -> None:
        """The threshold that suits dev best, by the official walk; where that finds nothing better than to answer no
        question at all it returns 0, at which some would be answered: then the threshold lies below them all."""
        if not self.null:
            return
        answers = self.predict(model, dev)
        best = [answer["nbest"][0]["text"] if answer["nbest"] else "" for answer in answers]
        values = [self.scoring.value(self.score, text, item) for text, item in zip(best, dev, strict=True)]
        answerable = [bool(item.answers) for item in dev]
        nulls = [answer["null"] for answer in answers]
        score, threshold = rules.best_threshold(nulls, values, answerable, [not text for text in best])
        self.threshold = rules.clear_of(threshold, nulls)
        if 0 < score * len(answers) <= answerable.count(False) + 1e-9:
            self.threshold = min(0.0, min(nulls) - rules.MARGIN)

    def official_files(self, answers: Answers) -> dict[str, Any]:
        return official(answers)

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        misfits, notes = [], []
        if self.absent is not None:
            misfits.append("task.null=head (a classifier of its own for questions without an answer)")
        if self.null:
            notes.append(
                f"the threshold for questions without an answer is not part of that class: {self.threshold:.4f}"
            )
        return PublishedHead(
            "ForQuestionAnswering", {family.span_layer: "head"}, self.state_dict(),
            misfits=tuple(misfits), notes=tuple(notes),
        )  # fmt: skip


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the largest values, best first; of equals the first."""
    return np.argsort(-values, kind="stable")[:count]
