"""Tokens of a text beside a question, their features, and the span that a linear model of them prefers.

    score(span) = opens(first token) + closes(last token) + sum of holds(token) + length(its tokens)

Each of the four is linear in the features of one token, or of one length, so that all spans of a text are scored by a
few sums over its tokens: a log-linear model of one segment (Sarawagi & Cohen 2004). What tokens say: how much of the
question their sentence and their neighbours have (weighted by idf), how far the next word of the question is, their
own form and that of their neighbours, and all this beside the word that asks (who, when, how many; 누구, 언제, 몇).

Nothing but numpy is imported here: an exported baseline holds a copy of this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

TOKEN = re.compile(r"\d+(?:[.,]\d+)+|\w+|[^\w\s]")
HANGUL_END = re.compile("[\uac00-\ud7a3]$")
# an answer ends before the particle: 서울|에서
PARTICLES = re.compile(
    "(.+?)(에서는|으로는|에서|에게|에는|으로|까지|부터|이라는|라는|이다|였다|이며|이고|처럼|보다|은|는|이|가|을|를|의|에|로|와|과|도|만)$"
)
ASKING = (  # the first that fits says what is asked for
    ("when", re.compile(r"\bwhen\b|\bwhat (?:year|date|day|month|century|decade)\b|언제|몇\s?년|몇\s?월|며칠|연도")),
    ("how many", re.compile(r"\bhow (?:many|much)\b|\bwhat (?:percentage|number|percent)\b|몇|얼마")),
    ("how far", re.compile(r"\bhow (?:long|old|far|tall|large|big|high|often|fast|deep)\b")),
    ("who", re.compile(r"\bwho(?:m|se)?\b|누구|누가")),
    ("where", re.compile(r"\bwhere\b|어디|어느 (?:나라|도시|지역)")),
    ("why", re.compile(r"\bwhy\b|왜|이유")),
    ("how", re.compile(r"\bhow\b|어떻게")),
    ("which", re.compile(r"\bwhich\b|어느|어떤|무슨")),
    ("what", re.compile(r"\bwhat\b|무엇|뭐|뭘")),
)
HEAD_NOUN = re.compile(r"\b(?:what|which)\s+(\w+)")
NEAR = 6  # tokens on either side whose words of the question count
DISTANCES = (1, 2, 3, 5, 8)
CANDIDATES = 50  # spans whose overlap is looked at for an answer
STEM = 5  # letters by which forms of one word are the same; syllables: 2
Feature = tuple[str, float]


def stem(word: str) -> str:
    """The first letters of a word: walked and walking are one."""
    return word[:2] if HANGUL_END.search(word) else word[:STEM]


def word_form(word: str) -> str:
    """Capitals, letters, digits: what kind of a word it is."""
    if word.isdigit():
        return "year" if len(word) == 4 else "digits"
    if any(letter.isdigit() for letter in word):
        return "number"
    if word.isupper() and len(word) > 1:
        return "CAPITALS"
    if word[:1].isupper():
        return "Capital"
    return "word" if word.isalpha() else word


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text with their places in it."""

    words: list[str]
    starts: list[int]
    stops: list[int]
    sentences: list[int]  # the number of the sentence of each

    @classmethod
    def split(cls, text: str) -> Tokens:
        """Words, numbers and single signs; particles of Korean nouns are tokens of their own."""
        words: list[str] = []
        starts: list[int] = []
        stops: list[int] = []
        sentences: list[int] = []
        sentence = 0
        for match in TOKEN.finditer(text):
            begin, whole = match.start(), match.group()
            is_new = words and "\n" in text[stops[-1] : begin]
            if words and words[-1] in ".!?。" and begin > stops[-1] and not whole[0].islower():
                is_new = True
            sentence += bool(is_new)
            parted = PARTICLES.match(whole) if HANGUL_END.search(whole) else None
            for part in parted.groups() if parted else (whole,):
                words.append(part)
                starts.append(begin)
                begin += len(part)
                stops.append(begin)
                sentences.append(sentence)
        return cls(words, starts, stops, sentences)

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def reach(self) -> np.ndarray:
        """(tokens,) how many tokens a span that begins here may have: to the end of its sentence."""
        sentences = np.array(self.sentences)
        return np.searchsorted(sentences, sentences, side="right") - np.arange(len(sentences))


@dataclass(frozen=True)
class QuestionWords:
    """A question: what it asks for, and its words with their weights."""

    kind: str
    noun: str
    stems: Mapping[str, float]

    @classmethod
    def read(cls, question: str, idf: Mapping[str, float], largest: float) -> QuestionWords:
        question = unicodedata.normalize("NFC", question)  # as the text is: Hangul may come as jamo
        lower = question.lower()
        kind = next((name for name, pattern in ASKING if pattern.search(lower)), "other")
        noun = HEAD_NOUN.search(lower)
        words = [word.lower() for word in Tokens.split(question).words if word[0].isalnum()]
        stems = {stem(word): idf.get(word, largest) for word in words}
        return cls(kind, noun.group(1) if noun else "", stems)


def question_features(query: QuestionWords, tokens: Tokens, longest: int, has_null: bool) -> list[list[Feature]]:
    """Features of each token, then of each length of a span, then of "no answer" where there is such a thing."""
    shares = sentence_shares(query, tokens)
    rows = token_features(query, tokens, shares)
    for size in range(1, longest + 1):
        rows.append([(f"length {size}", 1.0), (f"length {size} {query.kind}", 1.0), ("length", size / 10)])
    if has_null:
        best = max(shares, default=0.0)
        rows.append([("null", 1.0), (f"null {query.kind}", 1.0), ("null overlap", best), ("null none", 1 - best)])
    return rows


def sentence_shares(query: QuestionWords, tokens: Tokens) -> list[float]:
    """Of each sentence the share of the question, by weight, that it has."""
    total = max(sum(query.stems.values()), 1e-9)
    held: dict[int, set[str]] = {}
    for word, sentence in zip(tokens.words, tokens.sentences, strict=True):
        held.setdefault(sentence, set()).add(stem(word.lower()))
    return [sum(query.stems.get(each, 0.0) for each in held.get(number, ())) / total
            for number in range(max(tokens.sentences, default=-1) + 1)]  # fmt: skip


def token_features(query: QuestionWords, tokens: Tokens, shares: Sequence[float]) -> list[list[Feature]]:
    """Names and values of the features of each token."""
    lower = [word.lower() for word in tokens.words]
    forms = [word_form(word) for word in tokens.words]
    weights = [query.stems.get(stem(word), 0.0) for word in lower]
    total, top = max(sum(query.stems.values()), 1e-9), max(shares, default=0.0)
    ranks = {number: rank for rank, number in enumerate(sorted(range(len(shares)), key=lambda n: -shares[n]))}
    is_strong = [weight > total / max(1, len(query.stems)) * 0.6 for weight in weights]
    left, right = _distances(is_strong), _distances(is_strong[::-1])[::-1]
    rows = []
    for place, word in enumerate(lower):
        sentence = tokens.sentences[place]
        before = lower[place - 1] if place else "<s>"
        after = lower[place + 1] if place + 1 < len(lower) else "</s>"
        form, form_before = forms[place], forms[place - 1] if place else "<s>"
        form_after = forms[place + 1] if place + 1 < len(forms) else "</s>"
        around = range(max(0, place - NEAR), min(len(lower), place + NEAR + 1))
        near = sum(weights[other] / abs(other - place) for other in around if other != place)
        names = [
            f"word {word}", f"before {before}", f"after {after}", f"form {form}", f"form before {form_before}",
            f"form after {form_after}", f"forms {form_before} {form}", f"forms {form} {form_after} after",
            f"{query.kind} form {form}", f"{query.kind} before {before}", f"{query.kind} after {after}",
            f"{query.kind} word {word}", f"rank {min(ranks[sentence], 4)}",
            f"left {left[place]}", f"right {right[place]}",
        ]  # fmt: skip
        if query.noun:
            names += [f"noun {query.noun} form {form}", f"noun {query.noun} before {before}"]
        if not place or tokens.sentences[place - 1] != sentence:
            names.append("first")
        row = [(name, 1.0) for name in names]
        row += [("sentence", shares[sentence]), ("sentence best", float(shares[sentence] == top)),
                ("near", near / total), (f"{query.kind} near", near / total)]  # fmt: skip
        if weights[place]:
            row += [("asked", 1.0), ("asked weight", weights[place] / total * 5), (f"asked {form}", 1.0)]
        rows.append(row)
    return rows


def _distances(is_strong: Sequence[bool]) -> list[str]:
    """How far the last word of the question before each token is, in coarse steps."""
    steps, gap = [], 0
    for strong in is_strong:
        gap += gap > 0
        steps.append(next((str(step) for step in DISTANCES if 0 < gap <= step), "far"))
        gap = 1 if strong else gap
    return steps


# --- answering --------------------------------------------------------------------------------------


def span_scores(scores: np.ndarray, reach: np.ndarray, longest: int) -> np.ndarray:
    """(tokens, longest) of each span by its first token and its length, -inf where there is none.

    `scores` (tokens + longest, 3): opens, closes and holds of the tokens; the first column of each length.
    """
    count = len(reach)
    places, sizes = np.arange(count)[:, None], np.arange(longest)[None]
    last = np.minimum(places + sizes, count - 1)
    held = np.concatenate([[0.0], np.cumsum(scores[:count, 2])])
    grid = scores[:count, :1] + scores[last, 1] + held[last + 1] - held[places] + scores[count : count + longest, 0]
    return np.where(sizes < reach[:, None], grid, -np.inf)


def answer_question(
    text: str, tokens: Tokens, scores: np.ndarray, longest: int, has_null: bool, exact: bool, count: int
) -> dict[str, Any]:
    """The answer and the best spans, from the scores of `question_features`.

    By F1 the answer is the span whose expected overlap with the right one is largest, by exact match the likeliest. "No
    answer" is right with its probability, and is answered where that is more than any span can expect.
    """
    grid = span_scores(scores, tokens.reach, longest)
    null = float(scores[-1, 0]) if has_null else -np.inf
    if not len(tokens):
        return {"answer": "", "nbest": []}
    top = max(float(grid.max()), null)
    total = float(np.exp(grid - top).sum() + np.exp(null - top))
    order = np.argsort(-grid, axis=None, kind="stable")[:CANDIDATES]
    firsts, sizes = np.unravel_index(order[np.isfinite(grid.ravel()[order])], grid.shape)
    probs = np.exp(grid[firsts, sizes] - top) / total
    expected = probs
    if not exact:
        ends = firsts + sizes + 1
        common = np.minimum(ends[:, None], ends) - np.maximum(firsts[:, None], firsts)
        expected = (2 * np.maximum(common, 0) / (sizes[:, None] + sizes + 2)) @ probs
    best: list[dict[str, Any]] = []
    for number in np.argsort(-expected, kind="stable")[:count].tolist():
        first, size = int(firsts[number]), int(sizes[number])
        start, stop = tokens.starts[first], tokens.stops[first + size]
        closes = float(scores[first + size, 1])
        score = float(grid[first, size])
        best.append({"text": text[start:stop], "score": score, "start": start, "start_logit": score - closes,
                     "end_logit": closes, "probability": float(probs[number])})  # fmt: skip
    answer: dict[str, Any] = {"answer": best[0]["text"], "nbest": best}
    if has_null:
        answer |= {"null": null - best[0]["score"], "null_logits": [null, 0.0]}
        if np.exp(null - top) / total > expected.max():
            answer["answer"] = ""
    return answer
