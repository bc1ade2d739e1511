"""Grounding: the concepts that a question and an answer mention (KagNet, section 3.1).

Names of concepts are matched as n-grams of lemmas over the words of a text: all of them, also where they overlap, as
the released code does with a matcher. Of the concepts of one span the lemma form counts, else the three shortest; vague
ones (VAGUE) count only where a text has no other. A span that shares a word with the answer is no concept of the
question: it would join them by itself.

The code matches the statement (the question with the answer in place of its wh-word); here question and answer are
matched alone, which differs only where an n-gram would run over the border between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from etude.graph.concept_graph import STOP_WORDS, ConceptGraph
from etude.graph.lemmas import Lemmatizer
from etude.text.tokenizer.normalization import normalize_nfc

LONGEST = 6  # words of a concept that is matched; longer names of ConceptNet are sentences
SHORTEST_KEPT = 3  # concepts of one span, where none is its lemma form
# concepts of ConceptNet that are in nearly every text and say nothing of it: the code's list, without its stop words
VAGUE_NAMES = """
    actually everybody likely make one possibly somebody someone something sometimes sometimes_people want want_to
"""
VAGUE = frozenset(VAGUE_NAMES.split())

_WORD = re.compile(r"\w+(?:-\w+)*")


@dataclass(frozen=True)
class Grounding:
    """The concepts of a question and of one of its answers, by number, ascending; none is in both."""

    question: tuple[int, ...]
    answer: tuple[int, ...]


class Grounder:
    """Matches texts with the names of a concept graph."""

    def __init__(self, graph: ConceptGraph) -> None:
        self.graph = graph
        self.drops_stop_words = graph.merge == "conceptnet"
        forms = [*enumerate(graph.names), *graph.aliases]
        # read as texts are: "st._mary's" is the words st, mary, s
        split_forms = [(number, split_words(form.replace("_", " "))) for number, form in forms]
        lexicon = {word for _, words in split_forms for word in words}
        self.lemmatizer = Lemmatizer(lexicon)
        self.spans: dict[str, list[int]] = {}  # lemmas of a name, joined by spaces -> its concepts
        self.prefixes: set[str] = set()
        for number, words in split_forms:
            if not words or len(words) > LONGEST:
                continue
            for key in dict.fromkeys((" ".join(map(self.lemmatizer.lemma, words)), " ".join(words))):
                self.spans.setdefault(key, []).append(number)
                parts = key.split(" ")
                self.prefixes.update(" ".join(parts[:end]) for end in range(1, len(parts)))

    def ground(self, question: str, answer: str) -> Grounding:
        """The concepts of a question and of an answer."""
        answer_words = split_words(answer)
        answers = self._match(answer_words) or self._match_single(answer_words)
        questions = self._match(split_words(question), frozenset(answer_words)) - answers
        if not questions:
            questions = self._match_single(split_words(question)) - answers
        return Grounding(self._prune(questions, strict=True), self._prune(answers, strict=False))

    def _match(self, words: Sequence[str], taboo: frozenset[str] = frozenset()) -> set[int]:
        """The concepts of all spans of words; none of a span with a word of `taboo`."""
        concepts: set[int] = set()
        for start in range(len(words)):
            partial = [""]
            for end in range(start, min(len(words), start + LONGEST)):
                if words[end] in taboo:
                    break
                lemmas = self.lemmatizer.lemmas(words[end])
                keys = [f"{key} {lemma}" if key else lemma for key in partial for lemma in lemmas]
                candidates = dict.fromkeys(number for key in keys for number in self.spans.get(key, ()))
                if candidates:
                    selected = self._select(list(candidates), words[start : end + 1])
                    concepts.update(number for number in selected if not self._is_vague(number))
                partial = [key for key in keys if key in self.prefixes]
                if not partial:
                    break
        return concepts

    def _select(self, candidates: list[int], span: Sequence[str]) -> list[int]:
        """Of the concepts of one span: its lemma form, or the shortest few."""
        names = self.graph.names
        shortest = sorted(candidates, key=lambda number: (len(names[number]), names[number]))[:SHORTEST_KEPT]
        lemma_form = "_".join(map(self.lemmatizer.lemma, span))
        return [number for number in shortest if names[number] == lemma_form] or shortest

    def _is_vague(self, number: int) -> bool:
        return self.drops_stop_words and self.graph.names[number] in VAGUE

    def _match_single(self, words: Sequence[str]) -> set[int]:
        """The fallback: concepts that are the lemma of one word."""
        numbers = self.graph.numbers
        return {numbers[lemma] for lemma in map(self.lemmatizer.lemma, words) if lemma in numbers}

    def _prune(self, concepts: set[int], strict: bool) -> tuple[int, ...]:
        """Without near-duplicates ("Xer" and "Xe" beside X) and, of ConceptNet, without stop words.

        `strict`, of a question: no concept may hold a stop word. Of an answer: not of stop words alone.
        """
        names = {self.graph.names[number] for number in concepts}
        pruned = []
        for number in concepts:
            name = self.graph.names[number]
            content = [word not in STOP_WORDS for word in name.split("_")]
            has_stop_words = not (all(content) if strict else any(content))
            if not _is_near_duplicate(name, names) and not (self.drops_stop_words and has_stop_words):
                pruned.append(number)
        return tuple(sorted(pruned))


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, NFC, without punctuation."""
    return _WORD.findall(normalize_nfc(text).lower().replace("’", "'"))


def _is_near_duplicate(name: str, names: set[str]) -> bool:
    return (name.endswith("er") and name[:-2] in names) or (name.endswith("e") and name[:-1] in names)
