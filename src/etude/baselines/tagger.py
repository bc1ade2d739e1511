"""One tag a word without pre-training: features of words under a linear-chain conditional random field.

Decoding keeps the rules of the scheme in which chunks are learnt (IOB2: an I-x only after B-x or I-x), so every answer
is valid.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Self

import numpy as np
from scipy import sparse

from etude.baselines import tag_features
from etude.baselines.base import Baseline, BaselineTask, take_arrays
from etude.baselines.chain import Chain, Sequences, choose_chain
from etude.baselines.linear_baseline import WordVectors
from etude.baselines.tag_features import (
    best_tags,
    compose,
    emissions,
    sentence_features,
    spread_tags,
    tag_probabilities,
)
from etude.baselines.word_clusters import GRAINS
from etude.errors import UserError, suggest_name
from etude.tasks.base import Answer
from etude.tasks.data.examples import Examples
from etude.tasks.tag.encodings import allowed, convert, spans
from etude.tasks.tag.sentences import TaggedSentence
from etude.tasks.tag.text_words import add_offsets, split_text

RARE = 2000  # from so many sentences on, a feature that occurs once is left out
FORBIDDEN = -1e4  # the score of what the scheme forbids

PREDICT = '''"""Tags of words with numpy alone; one sentence a line:   python predict.py < lines.txt"""

import json
import sys
from pathlib import Path

import numpy as np
from tag_features import best_tags, compose, emissions, sentence_features, spread_tags, tag_probabilities
from text_words import add_offsets, split_text

FOLDER = Path(__file__).resolve().parent
MODEL = json.loads((FOLDER / "model.json").read_text(encoding="utf-8"))
FACTS = MODEL["facts"]
WEIGHTS = dict(np.load(FOLDER / "weights.npz"))
COLUMNS = {name: column for column, name in enumerate(MODEL["model"]["features"])}
WORDS = MODEL["model"]["cluster_words"]
CLUSTERS = dict(zip(WORDS, WEIGHTS["clusters"].tolist())) if WORDS else None


def predict(line):
    """A tag for each word, its probability, where it stands, and the entities where tags write chunks."""
    words = list(line) if FACTS["characters"] else [word.word for word in split_text(line)]
    if not words:  # an empty line
        return {"tokens": [], "tags": [], "scores": [], **({"entities": []} if FACTS["scheme"] else {})}
    units, owners = compose(words) if FACTS["characters"] and FACTS["scheme"] else (words, range(len(words)))
    scores = emissions(sentence_features(units, FACTS["characters"], CLUSTERS), COLUMNS, WEIGHTS["weight"])
    chain = [WEIGHTS[name] for name in ("start", "transitions", "end")]
    numbers = best_tags(scores, *chain)
    probs = [round(prob, 6) for prob in tag_probabilities(scores, *chain, numbers)]
    tags = spread_tags([FACTS["labels"][number] for number in numbers], owners)
    answer = {"tokens": words, "tags": tags, "scores": [probs[owner] for owner in owners]}
    if FACTS["scheme"]:
        answer["entities"] = entities(words, tags)
    if not FACTS["characters"]:
        add_offsets(answer, line)
    return answer


def entities(words, tags):
    """Chunks of tags such as B-x I-x; a tag opens a chunk unless it goes on with the one before it."""
    chunks, before = [], "O"
    for place, tag in enumerate(tags):
        prefix, kind = tag[0], tag[2:] or "_"
        if tag != "O":
            goes_on = prefix in "IE" and before[0] in "BI" and (before[2:] or "_") == kind
            if not goes_on:
                chunks.append({"type": kind, "start": place, "end": place + 1})
            chunks[-1]["end"] = place + 1
        before = tag
    between = "" if FACTS["characters"] else " "
    return [{**chunk, "text": between.join(words[chunk["start"] : chunk["end"]])} for chunk in chunks]


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(json.dumps(predict(line.decode("utf-8").rstrip("\\r\\n")), ensure_ascii=False))
'''


class TagBaseline(Baseline[TaggedSentence]):
    """A linear chain over the words of a sentence, with the clusters of words where there are vectors."""

    def __init__(
        self,
        name: str,
        task: BaselineTask,
        features: Sequence[str],
        chain: Chain,
        penalty: float,
        words: Sequence[str] = (),
        clusters: np.ndarray | None = None,
    ) -> None:
        """`chain` holds FORBIDDEN where the scheme forbids a tag; `clusters` (words, grains) those of `words`."""
        super().__init__(name, task)
        self.features, self.chain, self.penalty = list(features), chain, penalty
        self.words, self.clusters = list(words), clusters
        self._clusters = _look_up(words, clusters)
        self._columns = {feature: column for column, feature in enumerate(self.features)}

    @property
    def labels(self) -> list[str]:
        return list(self.task.facts["labels"])

    @classmethod
    def fit(
        cls,
        name: str,
        task: BaselineTask,
        examples: Examples[TaggedSentence],
        seed: int = 0,
        vectors: WordVectors | None = None,
    ) -> Self:
        words, clusters = ([], None) if vectors is None else (vectors.words, vectors.clusters)
        lookup = _look_up(words, clusters)
        if len(task.facts["labels"]) < 2:
            raise UserError(f"A tagger tells tags apart, and there is only {task.facts['labels']}. Give two or more.")
        task.scoring.check_gold(examples)
        tags = np.concatenate([_gold(task, item, where) for item, where in zip(examples, examples.places, strict=True)])
        units = [_compose(task, _units(task, item))[0] for item in examples]
        names = [sentence_features(words, task.facts["characters"], lookup) for words in units]
        counts = Counter(name for sentence in names for word in sentence for name in word)
        smallest = 1 if len(examples) < RARE else 2
        features = sorted(name for name, count in counts.items() if count >= smallest)
        columns = {feature: column for column, feature in enumerate(features)}
        indices = [[columns[name] for name in word if name in columns] for sentence in names for word in sentence]
        bounds = np.concatenate([[0], np.cumsum([len(row) for row in indices])])
        flat = np.concatenate([np.array(row, np.int64) for row in indices])
        table = sparse.csr_matrix((np.ones(len(flat)), flat, bounds), shape=(len(indices), len(features)))
        table.sum_duplicates()
        lengths = np.array([len(sentence) for sentence in names])
        chain, penalty = choose_chain(Sequences(table, tags, lengths), len(task.facts["labels"]), seed)
        return cls(name, task, features, _constrained(task, chain), penalty, words, clusters)

    def predict(self, examples: Examples[TaggedSentence]) -> list[Answer]:
        """A tag for each word, with its probability, and the entities they write."""
        facts = self.task.facts
        scheme, encoding = facts["scheme"], facts["encoding"]
        labels, layers = self.labels, (self.chain.start, self.chain.transitions, self.chain.end)
        answers = []
        for item in examples:
            words = _units(self.task, item)
            units, owners = _compose(self.task, words)
            features = sentence_features(units, facts["characters"], self._clusters)
            scores = emissions(features, self._columns, self.chain.weight)
            numbers = best_tags(scores, *layers)
            tags = spread_tags([labels[number] for number in numbers], owners)
            if scheme is not None and encoding != scheme:
                tags = convert(tags, scheme)
            probs = [round(prob, 6) for prob in tag_probabilities(scores, *layers, numbers)]
            answer: Answer = {"tokens": words, "tags": tags, "scores": [probs[owner] for owner in owners]}
            if scheme is not None:
                between = "" if facts["characters"] else " "
                answer["entities"] = [
                    {"type": kind, "start": start, "end": stop, "text": between.join(words[start:stop])}
                    for kind, start, stop in spans(tags)
                ]
            if item.text is not None and not facts["characters"]:
                add_offsets(answer, item.text)
            answers.append(answer)
        return answers

    def scale_logits(self, temperature: float) -> None:
        """Of transitions too: marginals are then those of all scores divided by it."""
        chain = self.chain
        parts = [part / temperature for part in (chain.weight, chain.start, chain.transitions, chain.end)]
        parts[0] = parts[0].astype(np.float32)
        self.chain = _constrained(self.task, Chain(*parts))

    def describe(self) -> dict[str, Any]:
        return {"features": self.features, "penalty": self.penalty, "cluster_words": self.words}

    def arrays(self) -> dict[str, np.ndarray]:
        return {**vars(self.chain), **({} if self.clusters is None else {"clusters": self.clusters})}

    @classmethod
    def restore(
        cls, name: str, task: BaselineTask, description: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Self:
        tags, features = len(task.facts["labels"]), description["features"]
        words = description.get("cluster_words", [])  # older taggers have none
        shapes = {"weight": (len(features), tags), "start": (tags,), "transitions": (tags, tags), "end": (tags,)}
        if words:
            shapes["clusters"] = len(words), len(GRAINS)
        take_arrays(arrays, shapes)
        chain = Chain(**{part: array for part, array in arrays.items() if part != "clusters"})
        return cls(name, task, features, chain, description["penalty"], words, arrays.get("clusters"))

    def standalone(self) -> dict[str, str]:
        facts = self.task.facts
        if facts["encoding"] != facts["scheme"]:
            raise UserError(
                f"This tagger has learnt chunks as {facts['encoding']} and writes {facts['scheme']}, which its export "
                "cannot. Leave task.encoding out."
            )
        # by its function: to import the module from its package would make the whole task part of every baseline's code
        copied = {"tag_features.py": tag_features, "text_words.py": sys.modules[split_text.__module__]}
        return {"predict.py": PREDICT, **{name: inspect.getsource(module) for name, module in copied.items()}}


def _look_up(words: Sequence[str], clusters: np.ndarray | None) -> dict[str, list[int]] | None:
    return None if clusters is None else dict(zip(words, clusters.tolist(), strict=True))


def _units(task: BaselineTask, item: TaggedSentence) -> list[str]:
    """The words, or the characters, as the tagger was trained to see them."""
    characters = task.facts["characters"]
    if item.text is not None and characters:
        return list(item.text)
    if item.characters == characters:
        return item.words
    text = "".join(item.words) if item.characters else " ".join(item.words)
    return list(text) if characters else text.split()


def _compose(task: BaselineTask, words: list[str]) -> tuple[list[str], Sequence[int]]:
    """The units that are tagged, and which of them each word is part of: jamo are tagged as syllables."""
    by_character = task.facts["characters"] and task.facts["scheme"] is not None
    return compose(words) if by_character else (words, range(len(words)))


def _join_tags(tags: Sequence[str], owners: Sequence[int]) -> list[str]:
    """Tags of composed characters from those of their parts, which spread_tags gives back."""
    joined = []
    for _, places in groupby(range(len(tags)), key=lambda place: owners[place]):
        parts = [tags[place] for place in places]
        prefix, rest = parts[0][0], parts[0][1:]
        if parts[-1][0] in "ES" and prefix != "O":
            prefix = "S" if prefix in "BS" else "E"
        joined.append(prefix + rest)
    return joined


def _gold(task: BaselineTask, item: TaggedSentence, where: str) -> np.ndarray:
    """(units,) the numbers of the tags."""
    labels, tags = task.facts["labels"], item.tags or []
    numbers = {label: number for number, label in enumerate(labels)}
    if task.facts["encoding"] != task.facts["scheme"]:
        tags = convert(tags, task.facts["encoding"])
    unknown = next((place for place, tag in enumerate(tags) if tag not in numbers), None)
    if unknown is not None:
        raise UserError(
            f"{item.place(where, unknown)}: the tag '{tags[unknown]}' is not one the model knows."
            f"{suggest_name(tags[unknown], labels)} Correct it, or leave the sentence out."
        )
    if task.facts["scheme"] is not None:
        tags = _join_tags(tags, _compose(task, _units(task, item))[1])
    return np.array([numbers[tag] for tag in tags], dtype=np.int64)


def _constrained(task: BaselineTask, chain: Chain) -> Chain:
    """The same chain with the rules of the scheme, and the precision in which it is saved."""
    parts = [chain.start, chain.transitions, chain.end]
    if task.facts["encoding"] is not None:
        rules = allowed(task.facts["labels"], task.facts["encoding"])
        pairs = zip(parts, (rules.starts, rules.transitions, rules.ends), strict=True)
        parts = [np.where(is_allowed, part, FORBIDDEN) for part, is_allowed in pairs]
    return Chain(chain.weight.astype(np.float32), *parts)
