"""The text of a study, and one corpus for each distinct tokenizer, kept by what it is made from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.study import cell_code
from etude.study.altered_corpus import Changes, pseudo_words, remake, senses
from etude.study.settings import Text
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import MANIFEST
from etude.text.prepare.prepare import prepare
from etude.text.prepare.sources import find_sources
from etude.world import World

UNSEEN = 100_000_000  # number of the first document of the town that no corpus reaches: the text of made tasks


def digest(value: Any) -> str:
    """A hash of anything that JSON can say."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Source:
    text: Text
    folder: Path  # of the study

    @cached_property
    def fingerprint(self) -> str:
        """Of the text itself, whatever it will be cut into."""
        text = self.text
        if text.corpus is not None:
            return Corpus.open(text.corpus).fingerprint
        if text.world is not None:
            made_by = cell_code.world_text()
            return digest(["world", text.world, text.language, text.seed, text.noise, made_by])
        assert text.files is not None
        content = hashlib.blake2b(digest_size=16)
        for source in find_sources(text.files):
            for file in source.files:
                if file.format == "hub":
                    content.update(file.path.encode())
                    continue
                with open(file.path, "rb") as opened:
                    content.update(hashlib.file_digest(opened, "sha256").digest())
        return content.hexdigest()

    @cached_property
    def before(self) -> Source | None:
        """What the corpus is made from where that is another one; the world shuffles its own text."""
        text = self.text
        if text.share == 1 and not text.pseudo_words and (not text.noise or text.world is not None):
            return None
        return Source(text.model_copy(update=asdict(Changes())), self.folder)

    @property
    def changes(self) -> Changes:
        return Changes(self.text.share, self.text.noise, self.text.pseudo_words)

    def place(self, tokenizer: str) -> Path:
        """Where the corpus of a tokenizer lies, made or not."""
        if self.before is not None:
            base, made_by = self.before.place(tokenizer), cell_code.altered_corpus()
            key = digest([self.fingerprint, base.name, asdict(self.changes), made_by])
            return self.folder / "corpora" / f"{base.name}-remade-{key[:12]}"
        if self.text.corpus is not None:
            return Path(self.text.corpus)
        made_by = cell_code.corpus()
        key = digest([self.fingerprint, tokenizer, self.text.valid, self.text.where, made_by])
        return self.folder / "corpora" / f"{re.sub(r'[^a-z0-9]+', '-', tokenizer.lower())}-{key[:12]}"

    def ready(self, tokenizer: str) -> bool:
        return (self.place(tokenizer) / MANIFEST).is_file()

    def corpus(self, tokenizer: str, say: Callable[[str], None] = lambda _: None) -> Corpus:
        place = self.place(tokenizer)
        if not self.ready(tokenizer):
            if self.before is not None:
                whole = self.before.corpus(tokenizer, say)
                say(f"Making {place.name} from {whole.folder.name}")
                remake(whole.folder, place, self.changes)
                return Corpus.open(place)
            if self.text.corpus is not None:
                return Corpus.open(place)  # says what is wrong
            say(f"Preparing {place.name} with {tokenizer}")
            files: list[str | Path] = [self._written()] if self.text.world else list(self.text.files or [])
            prepare(
                files, place, tokenizer=tokenizer, valid=self.text.valid, seed=self.text.seed, where=self.text.where
            )
        return Corpus.open(place)

    def like(self, tokenizer: str) -> Corpus | None:
        """Where a corpus is still to be made from one that is there: that one, which costs as much a token."""
        ready = self.before is not None and self.before.ready(tokenizer)
        return self.before.corpus(tokenizer) if self.before is not None and ready else None

    @property
    def bytes(self) -> float:
        """About how much text there is."""
        if self.text.corpus is not None:
            return float(Corpus.open(self.text.corpus).bytes)
        if self.text.world is not None:
            return self.text.world * 1e6
        return float(sum(file.size for source in find_sources(self.text.files or []) for file in source.files))

    def _written(self) -> Path:
        assert self.text.world is not None
        path = self.folder / "corpora" / f"town-{self.text.language}-{self.fingerprint[:12]}.txt"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(".writing")
            town = World(self.text.seed, self.text.language)
            texts = (_noisy(text, number, self.text.noise) for number, text in enumerate(town.text(self.text.world)))
            aside.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
            aside.replace(path)
        return path

    def held_out(self, tokenizer: str) -> Corpus:
        """The part that nobody trains on."""
        corpus = Corpus.open(self.corpus(tokenizer).folder, split="valid")
        if not len(corpus.documents):
            raise UserError(f"{corpus.folder} has no held-out part to make a task from: prepare it with --valid 0.02.")
        return corpus

    def senses(self, tokenizer: str) -> Iterator[dict[str, list[str]]]:
        """Sentences with pseudo-words, and what each of them was before it was merged."""
        assert self.before is not None, "a study with such a task has pseudo-words"
        whole = self.before.corpus(tokenizer)
        return senses(self.before.held_out(tokenizer), pseudo_words(whole, self.text.pseudo_words))

    def unseen(self, tokenizer: str) -> Iterator[list[str]]:
        """Sentences of documents that are in nobody's training text, document by document."""
        if self.text.world is not None:
            town = World(self.text.seed, self.text.language)
            for document in town.documents(UNSEEN):
                yield document.sentences
            return
        corpus = self.held_out(tokenizer)
        for number in range(len(corpus.documents)):
            start, stop = corpus.documents[number], corpus.documents[number + 1]
            first, last = corpus.sentences.find(start), corpus.sentences.find(stop - 1)
            bounds = corpus.sentences.slice(first, last + 2)
            yield [corpus.tokenizer.decode(corpus.tokens(int(a), int(b))).strip() for a, b in pairwise(bounds)]


def _noisy(text: str, number: int, share: float) -> str:
    """The words of a share of the documents in any order: text that looks like text and teaches nothing."""
    if fold("noise", number) % 1000 >= 1000 * share:
        return text
    words = text.split(" ")
    return " ".join(words[place] for place in Permutation(len(words), fold("words", number))(np.arange(len(words))))


def pairs(documents: Iterator[list[str]], made: str, count: int, skip: int = 0) -> list[dict[str, str]]:
    """Two sentences that follow on each other, or do not: the tests of next-sentence and sentence-order models.

    next: the second is the one after the first, or one of the document before. order: as they stand, or swapped.
    One pair a document, labels in turn, so that nothing but the order of sentences tells them apart.
    """
    found: list[dict[str, str]] = []
    before: list[str] = []
    usable = (one for one in documents if len([s for s in one if len(s.split()) > 2]) >= 3)
    for number, sentences in enumerate(islice(usable, skip + count + 1)):
        if number > skip:
            at = fold("pairs", number, "first") % (len(sentences) - 1)
            first, second = sentences[at], sentences[at + 1]
            true = number % 2 == 0
            if made == "order":
                left, right = (first, second) if true else (second, first)
            else:
                left, right = first, second if true else before[fold("pairs", number, "other") % len(before)]
            found.append({"text_a": left, "text_b": right, "label": "yes" if true else "no"})
        before = sentences
    if len(found) < count:
        raise UserError(f"The held-out text gives only {len(found)} of {count} pairs: hold out more, or ask for fewer.")
    return found
