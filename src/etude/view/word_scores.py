"""Intrinsic evaluation of word vectors: word similarity and analogy sets.

Similarity (WordSim-353, Finkelstein et al. 2002; MEN, Bruni et al. 2014, and their kind): Spearman's rank correlation
between cosines and people's scores, over the pairs whose words are both known. Analogies (questions-words, Mikolov et
al. 2013a): the share of questions a b c d where 3CosAdd over the first `most` words gives d. A question with a word
beyond them is left out and counted. The number of words moves a score by ten points, so it is always reported.
"""

from __future__ import annotations

import gzip
import io
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from scipy.stats import spearmanr

from etude.errors import UserError
from etude.hub.word_vectors import Unknown, WordVectors
from etude.text.encodings import suggest_encoding
from etude.text.tokenizer.tokenizer import Tokenizer

BLOCK = 512  # questions answered at once: 512 x 400,000 cosines are 0.8 GB
SYNTACTIC = "gram"  # groups whose name begins so are of grammar


@dataclass(frozen=True)
class Similarity:
    """The score of a similarity set."""

    name: str
    correlation: float  # Spearman
    pairs: int  # that took part
    left_out: int  # with an unknown word

    def json(self) -> dict[str, Any]:
        return {**vars(self), "correlation": _none_if_nan(self.correlation)}


@dataclass(frozen=True)
class Analogies:
    """The score of an analogy set, by group."""

    name: str
    correct: dict[str, int]  # by group
    questions: dict[str, int]  # by group: those with all words known
    left_out: int
    most: int  # words that answers were looked for among

    @property
    def accuracy(self) -> float:
        return self._share(list(self.questions))

    @property
    def syntactic(self) -> float:
        return self._share([group for group in self.questions if group.startswith(SYNTACTIC)])

    @property
    def semantic(self) -> float:
        return self._share([group for group in self.questions if not group.startswith(SYNTACTIC)])

    def json(self) -> dict[str, Any]:
        shares = {name: _none_if_nan(getattr(self, name)) for name in ("accuracy", "semantic", "syntactic")}
        return {"name": self.name, **shares, "left_out": self.left_out, "most": self.most, "right": self.correct,
                "asked": self.questions}  # fmt: skip

    def _share(self, groups: list[str]) -> float:
        total = sum(self.questions[group] for group in groups)
        return sum(self.correct[group] for group in groups) / total if total else float("nan")


def _none_if_nan(value: float) -> float | None:
    """A share of no questions, or a correlation of equal numbers: JSON has no NaN."""
    return None if math.isnan(value) else value


def describe(score: Similarity | Analogies) -> str:
    """Format a score: one line, and for analogies one a group."""
    if isinstance(score, Similarity):
        return f"{score.name}: Spearman {score.correlation:.4f} over {score.pairs:,} pairs, {score.left_out} left out"
    total = sum(score.questions.values())
    kinds = {"semantic": score.semantic, "syntactic": score.syntactic}
    shares = "".join(f", {name} {share:.2%}" for name, share in kinds.items() if not math.isnan(share))
    lines = [
        f"{score.name}: {score.accuracy:.2%} of {total:,} questions{shares}; {score.left_out:,} left out; "
        f"answers among {score.most:,} words"
    ]
    lines += [f"  {score.correct[g] / n:7.2%} of {n:5,}  {g}" for g, n in score.questions.items() if n]
    return "\n".join(lines)


def score_file(
    vectors: WordVectors, path: str | Path, most: int | None = 30_000, unknown: Unknown | None = None
) -> Similarity | Analogies:
    """Score a file of pairs with scores, or of questions under `: group` lines; .gz too."""
    path = Path(path)
    _, first = next(_read_lines(path), ("", [""]))
    if first[0].startswith(":"):
        return analogies(vectors, path, most)
    return similarity(vectors, path, unknown)


def similarity(vectors: WordVectors, path: str | Path, unknown: Unknown | None = None) -> Similarity:
    """Score a similarity set; `unknown` is the rule for unknown words, None leaves their pairs out."""
    path, words, scores, left_out = Path(path), [], [], 0
    for where, fields in _read_lines(path):
        if len(fields) != 3:
            raise UserError(f"{where}: expected two words and a score, found {len(fields)} fields.")
        try:
            score = float(fields[2])
        except ValueError:
            if where.endswith(":1"):
                continue  # a heading
            raise UserError(f"{where}: '{fields[2]}' is not a score.") from None
        if unknown is None and any(vectors.find_row(word) is None for word in fields[:2]):
            left_out += 1
            continue
        words += fields[:2]
        scores.append(score)
    if len(scores) < 3:
        raise UserError(f"{path}: of {len(scores) + left_out} pairs only {len(scores)} have both words known.")
    pairs = vectors.vectors(words, unknown or "refuse").reshape(len(scores), 2, -1)
    lengths = np.linalg.norm(pairs, axis=2).prod(1)
    cosines = (pairs[:, 0] * pairs[:, 1]).sum(1) / np.where(lengths > 0, lengths, 1)
    return Similarity(_name(path), float(spearmanr(cosines, scores).statistic), len(scores), left_out)


def analogies(vectors: WordVectors, path: str | Path, most: int | None = 30_000) -> Analogies:
    """Score an analogy set, ignoring case: words that differ in case alone are one answer, and one question word.

    The vector of a question word is that of its most frequent writing.
    """
    path, vectors = Path(path), vectors.most_frequent(most)
    index: dict[str, int] = {}
    for number, word in enumerate(vectors.words):
        index.setdefault(word.lower(), number)
    same = np.array([index[word.lower()] for word in vectors.words])  # (W,) the first row of the same word
    further: defaultdict[int, list[int]] = defaultdict(list)  # other rows of a word, by its first
    for row in np.flatnonzero(same != np.arange(len(same))).tolist():
        further[int(same[row])].append(row)
    questions: dict[str, list[list[int]]] = {}
    left_out, group = 0, ""
    for where, fields in _read_lines(path):
        if fields[0].startswith(":"):
            group = " ".join(fields)[1:].strip()
            questions.setdefault(group, [])
            continue
        if len(fields) != 4 or not group:
            raise UserError(f"{where}: expected four words under a line ': group', found {len(fields)}.")
        places = [index.get(word.lower(), -1) for word in fields]
        if min(places) < 0:
            left_out += 1
        else:
            questions[group].append(places)
    unit = vectors.unit
    correct = {}
    for group, group_questions in questions.items():
        correct[group] = 0
        for start in range(0, len(group_questions), BLOCK):
            part = np.array(group_questions[start : start + BLOCK])
            queries = unit[part[:, 1]] - unit[part[:, 0]] + unit[part[:, 2]]
            scores = queries @ unit.T  # their length is the same for all answers
            np.put_along_axis(scores, part[:, :3], -np.inf, axis=1)
            for question, places in enumerate(part[:, :3].tolist()):
                scores[question, [row for place in places for row in further.get(place, ())]] = -np.inf
            correct[group] += int((same[scores.argmax(1)] == part[:, 3]).sum())
    if not any(questions.values()):
        raise UserError(f"{path}: no question has all its words among the {len(vectors.words):,} that take part.")
    return Analogies(_name(path), correct, {g: len(q) for g, q in questions.items()}, left_out, len(vectors.words))


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[0] or path.name


def _open(path: Path) -> TextIO:
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig")
    return open(path, encoding="utf-8-sig")


def _read_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (place, fields) of every line; fields are separated by tabs, commas or spaces."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                line = Tokenizer.normalise(line)  # as the words of a run are
                separator = next((mark for mark in "\t," if mark in line), None)
                fields = [field.strip() for field in line.split(separator)]
                if any(fields):
                    yield f"{path}:{number}", fields
    except UnicodeDecodeError:
        hint = suggest_encoding(path, is_labelled=True)
        raise UserError(f"{path} is not UTF-8.{hint or ' Convert it.'}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise UserError(f"{path} cannot be unpacked: {problem}. Copy it anew.") from None
