"""A fitted model with its task: reads files and lines, predicts, scores; whatever the model is.

`TaskModel` (a fine-tuned run) and `BaselineModel` (n-grams under a linear model) say what answers examples; the rest is
the same for both, and here.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

from etude.errors import UserError
from etude.inference.abstention import read_abstention
from etude.notebook import render_card, render_facts
from etude.tasks.base import Answer, Answers, ErrorExample, Scoring, TaskKind
from etude.tasks.bootstrap import Score
from etude.tasks.data.examples import Examples
from etude.tasks.data.records import COMPRESSED, FILES, json_record
from etude.tasks.example_filter import warn_once
from etude.train import checkpoint

LARGEST_CHUNK = 1024  # lines of a pipe that are answered together at most
BYTE_ORDER_MARK = "\ufeff"  # as spreadsheets write it: what follows may be JSON all the same


class Table(Protocol):
    """A pandas DataFrame: one row an input, its columns named as in a file."""

    def to_dict(self, orient: Literal["records"], /) -> list[dict[Any, Any]]:
        """The rows as mappings."""


class ArrowTable(Protocol):
    """A pyarrow.Table, or a record batch of one."""

    def to_pylist(self) -> list[dict[str, Any]]:
        """The rows as mappings."""


Inputs: TypeAlias = Iterable[str | Mapping[str, Any]] | Examples[Any] | Table | ArrowTable


class Predictor(ABC):
    """A model of a task, opened for use."""

    folder: Path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, task={self.kind!r})"

    def _repr_html_(self) -> str:
        """The model in a notebook: its task, and the columns it reads."""
        columns = ", ".join(self.columns.values())
        return render_card(str(self.folder), render_facts([("task", self.kind), ("columns", columns)]))

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind of the task."""

    @property
    @abstractmethod
    def module(self) -> TaskKind:
        """The module of the kind."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, str]:
        """The columns of a file by role, as in training."""

    @property
    @abstractmethod
    def scoring(self) -> Scoring[Any]:
        """How answers are scored."""

    @abstractmethod
    def answer(self, examples: Examples[Any]) -> list[Answer]:
        """Return one answer an example, in order."""

    @abstractmethod
    def admit(self, examples: Examples[Any]) -> Examples[Any]:
        """Return the labelled examples that the model can be scored on; what is wrong with the others is in `bad`."""

    @abstractmethod
    def with_columns(self, columns: Mapping[str, str]) -> Self:
        """Return the same model, reading other columns."""

    def answer_labelled(self, examples: Examples[Any]) -> list[Answer]:
        """Return one answer an example; labels that cannot be scored are refused first."""
        self.require_trained_head()
        self.scoring.check_gold(examples)
        return self.answer(examples)

    def score(self, examples: Examples[Any], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        """Return all scores of answers to labelled examples."""
        return self.scoring.scores(examples, answers, intervals)

    def judge(self, examples: Examples[Any], answers: Answers) -> list[ErrorExample]:
        """Return answers beside labelled examples, for a report."""
        return self.scoring.judge(examples, answers)

    def confusion(self, examples: Examples[Any], answers: Answers) -> tuple[str, Counter[tuple[str, str]]] | None:
        """Return what is counted and the counts of (gold, predicted) classes; None where there are no classes."""
        return self.scoring.confusion(examples, answers)

    def require_trained_head(self) -> None:  # noqa: B027 (most models have nothing to check)
        """Raise UserError where the task head was never trained."""

    def official_files(self, answers: Answers) -> dict[str, Any]:
        """Return what the official scorer reads by the ending of the file's name; {} where it has none."""
        return {}

    # --- scores -------------------------------------------------------------------------------------

    def read(
        self, path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
    ) -> Examples[Any]:
        """Read a file of examples; columns are those of training unless others are named."""
        examples = self.module.read(path, {**self.columns, **(columns or {})}, skip_bad, labelled)
        return self.admit(examples) if skip_bad and labelled else examples

    def evaluate(self, examples: str | Path | Inputs, intervals: bool = True) -> dict[str, Score]:
        """Score the model on a file of labelled examples, records or a table, with bootstrap intervals."""
        self.require_trained_head()  # before a file is read
        if isinstance(examples, Examples):
            dataset = examples
        elif isinstance(examples, (str, Path)):
            dataset = self.read(examples)
        else:
            dataset = self._parse_inputs(examples, "evaluate", True)
            if not len(dataset):
                raise UserError("There are no examples to score. Give one or more.")
        return self.score(dataset, self.answer_labelled(dataset), intervals)

    # --- predictions --------------------------------------------------------------------------------

    def predict(self, inputs: Inputs) -> list[Answer]:
        """Return one answer an input, in order; inputs are texts, mappings of fields, rows of a table, or examples."""
        self.require_trained_head()
        examples = inputs if isinstance(inputs, Examples) else self._parse_inputs(inputs, "predict", False)
        return self._respond(examples) if len(examples) else []

    def _parse_inputs(self, inputs: Inputs, verb: str, labelled: bool) -> Examples[Any]:
        """Return what is in memory as examples: texts, mappings of fields, or rows of a table."""
        rows = table_records(inputs)
        if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
            raise UserError(f"{verb} takes a list of inputs: write {verb}([input]).")
        parser = _Parser(self)
        items, places = [], []
        for number, value in enumerate(rows, 1):
            where = f"input {number}"
            if not isinstance(value, Mapping if labelled else (str, Mapping)):
                wanted = "a mapping of fields such as a dict"
                raise UserError(f"{where} is {value!r:.80}: give {wanted if labelled else f'a text, or {wanted}'}.")
            record = parser.split(value, where) if isinstance(value, str) else dict(value)
            items.append(parser.parse(record, where, labelled))
            places.append(where)
        return Examples(items, "the inputs", places)

    def _respond(self, examples: Examples[Any]) -> list[Answer]:
        """Answers for a user: where the model comes with a threshold, unsure ones are withheld."""
        return self._withhold(self.answer(examples))

    def _withhold(self, answers: list[Answer]) -> list[Answer]:
        abstention = read_abstention(self.folder)
        return answers if abstention is None else abstention.apply(answers)

    def respond(self, examples: Examples[Any]) -> list[Answer | UserError]:
        """Return one answer an example as `predict` does, or why this model refuses that one.

        A reader does not know all that is wrong for a model, such as a text of which its tokenizer leaves nothing.
        """
        responses = self._answer_halves(examples)
        answers = iter(self._withhold([each for each in responses if not isinstance(each, UserError)]))
        return [each if isinstance(each, UserError) else next(answers) for each in responses]

    def _answer_halves(self, examples: Examples[Any]) -> list[Answer | UserError]:
        """`answer`, and where an example is refused, the same of each half: few calls find few bad ones."""
        try:
            return [*self.answer(examples)]
        except UserError as error:
            if len(examples) == 1:
                return [error]
        middle = len(examples) // 2
        halves = examples.part(range(middle)), examples.part(range(middle, len(examples)))
        return [response for half in halves for response in self._answer_halves(half)]

    def write(self, answers: Answers, path: str | Path) -> None:
        """Write answers of `predict` as JSON lines, or as .json in the format of the task's official scorer."""
        path = Path(path)
        files = self.official_files(answers) if path.suffix == ".json" else {}
        if files:
            for ending, content in files.items():  # the first is the requested file
                text = json.dumps(content, ensure_ascii=False)
                checkpoint.write_text(path.with_name(f"{path.stem}{ending}.json"), text)
        else:
            lines = "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers)
            checkpoint.write_text(path, lines)

    def stream(self, lines: Iterable[str], source: str = "input", skip_bad: bool = False) -> Iterator[dict[str, Any]]:
        """Yield answers to lines as they arrive: texts, or JSON objects with the fields of an example.

        Lines that have arrived are answered as one batch, so a person who types gets each answer at once and a long
        pipe is fast. With `skip_bad`, a bad line is answered by {"error": ...} and keeps its place.
        """
        self.require_trained_head()
        parser, warned = _Parser(self), set[tuple[object, ...]]()
        for chunk in batch_arriving_lines(lines):
            answers: list[dict[str, Any] | None] = []
            items, places = [], []
            error: UserError | None = None
            for number, line in chunk:
                where = f"{source}:{number}"
                if number == 1:
                    line = line.removeprefix(BYTE_ORDER_MARK)
                try:
                    items.append(parser.parse_line(line, where))
                    places.append(where)
                    answers.append(None)
                except UserError as problem:
                    error = problem
                    if not skip_bad:  # raised after the answers to the lines before it
                        break
                    answers.append({"error": problem.message})
            with warn_once(warned):  # a long pipe has thousands of chunks
                responses = iter(self.respond(Examples(items, source, places)) if items else [])
            for answer in answers:
                response = next(responses) if answer is None else answer
                if isinstance(response, UserError) and not skip_bad:
                    raise response
                yield {"error": response.message} if isinstance(response, UserError) else response
            if error is not None and not skip_bad:
                raise error

    def check_lines(self, lines: Iterable[str], source: str = "input") -> None:
        """Raise UserError at the first line that `stream` would refuse as it reads it: before anything is answered."""
        parser = _Parser(self)
        for number, line in enumerate(lines, 1):
            parser.parse_line(line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, f"{source}:{number}")

    @property
    def inputs(self) -> dict[str, str]:
        """The parts of a plain line by role, with their columns; empty where a line must be JSON."""
        module = self.module
        return {role: self.columns.get(role, module.COLUMNS[role][0]) for role in module.INPUTS}


class _Parser:
    """Reads the inputs of one call: what does not change from one to the next is asked for once."""

    def __init__(self, predictor: Predictor) -> None:
        self.kind, self.module, self.columns = predictor.kind, predictor.module, predictor.columns
        self.inputs = predictor.inputs

    def parse(self, record: dict[str, Any], where: str, labelled: bool = False) -> Any:
        """Return the example of some fields."""
        return self.module.parse(record, self.columns, where, labelled)

    def parse_line(self, line: str, where: str) -> Any:
        """Return the example of a line: plain, or a JSON object."""
        line = line.removesuffix("\n").removesuffix("\r")
        if not line.strip():
            raise UserError(
                f"{where}: this line is empty. Take it out.", 'With --skip-bad its answer is {"error": ...}.'
            )
        if not line.lstrip().startswith("{"):
            return self.parse(self.split(line, where), where)
        record = json_record(line, where)
        if isinstance(record, UserError):
            raise record
        return self.parse(record, where)

    def split(self, line: str, where: str) -> dict[str, Any]:
        """Split a plain line into the fields of an example: one text, or several with tabs between them."""
        names = list(self.inputs.values())
        if not names:
            columns = list(self.module.COLUMNS.values())
            example = json.dumps({names[0]: "…" for names in columns[:2]}, ensure_ascii=False)
            raise UserError(
                f"{where}: an input of the task {self.kind} is a JSON object such as {example}, not a plain line."
            )
        parts = line.split("\t", len(names) - 1)
        if len(parts) < len(names):
            wanted = " <tab> ".join(self.inputs)
            raise UserError(f"{where}: a line of the task {self.kind} holds {wanted}; this one has {len(parts)}.")
        return dict(zip(names, parts, strict=True))


def table_records(inputs: Inputs) -> Iterable[str | Mapping[str, Any]]:
    """The rows of a table of pandas or pyarrow as mappings; other inputs as they are."""
    pandas, pyarrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")  # a table is of a package that is loaded
    if pandas is not None and isinstance(inputs, pandas.DataFrame):
        return cast(Table, inputs).to_dict("records")
    if pyarrow is not None and isinstance(inputs, (pyarrow.Table, pyarrow.RecordBatch)):
        return cast(ArrowTable, inputs).to_pylist()
    return cast(Iterable[str | Mapping[str, Any]], inputs)


def holds_lines(path: Path) -> bool:
    """Whether a file is answered line by line as it is read; tables and compressed files are read whole."""
    ending = path.suffix.lower()
    return ending == ".jsonl" or ending not in {*COMPRESSED, *FILES, ".conll", ".conllu"}


def batch_arriving_lines(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield numbered lines in groups as they arrive, without waiting to fill a group; re-raise errors of reading."""
    waiting: queue.Queue[tuple[int, str] | BaseException | None] = queue.Queue(2 * LARGEST_CHUNK)

    def read() -> None:
        try:
            for numbered in enumerate(lines, 1):
                waiting.put(numbered)
            waiting.put(None)
        except BaseException as problem:
            waiting.put(problem)

    threading.Thread(target=read, daemon=True, name="etude-reader").start()
    end: BaseException | bool | None = False
    while end is False:
        group: list[tuple[int, str]] = []
        while len(group) < LARGEST_CHUNK and (not group or not waiting.empty()):
            entry = waiting.get()
            if not isinstance(entry, tuple):
                end = entry
                break
            group.append(entry)
        if group:
            yield group
    if isinstance(end, BaseException):
        raise end
