"""Text of a study, and one prepared corpus for each tokenizer, cached by content."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.study import cell_code
from etude.study.altered_corpus import Alterations, choose_pseudo_words, is_drawn, label_senses, write_altered
from etude.study.sections import Text
from etude.text.checked_files import MANIFEST
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.text.prepare.sources import find_sources
from etude.text.remote.remote_shards import RemoteFiles
from etude.text.remote.urls import is_url, join_url, make_local
from etude.text.tokenizer.pair_tokenizer import open_tokenizers
from etude.world import World
from etude.world.tasks.sampling import belongs

FIRST_UNSEEN = 100_000_000  # number of the first document of the town that no corpus reaches: the text of made tasks


def hash_json(value: Any) -> str:
    """Hash any JSON-serialisable value."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


@cache
def _hash_file(path: str, modified: int) -> bytes:
    """Hash a file, once while it stays as it is: a study is planned again after each stage of its trials."""
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").digest()


def holds_corpus(place: str) -> bool:
    """Whether a folder or a URL is that of a prepared corpus; a URL of files names one, or has a pattern."""
    place = str(make_local(place))
    if not is_url(place):
        return (Path(place) / MANIFEST).is_file()
    if set(place) & set("*?["):
        return False
    manifest = join_url(place, MANIFEST)
    return manifest in RemoteFiles(place).storage.read_all([manifest])


@dataclass(frozen=True)
class TextSource:
    text: Text
    folder: Path  # of the study

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the text itself, before tokenization."""
        text = self.text
        if text.corpus is not None:
            return Corpus.open(text.corpus).fingerprint
        if text.world is not None:
            code = cell_code.world_text()
            values = ["world", text.world, text.language, text.seed, text.noise, code]
            return hash_json(values if text.pairs is None else [*values, "pairs"])
        assert text.files is not None
        content = hashlib.blake2b(digest_size=16)
        for source in find_sources(text.files):
            for file in source.files:
                if file.format == "hub":
                    content.update(file.path.encode())
                    continue
                if is_url(file.path):  # its version changes with its content, which is read once, by prepare
                    content.update(hash_json([file.path, file.size, file.version]).encode())
                    continue
                content.update(_hash_file(file.path, Path(file.path).stat().st_mtime_ns))
        return content.hexdigest()

    @cached_property
    def base(self) -> TextSource | None:
        """Source of the unaltered corpus, where this one is altered; the world shuffles its own text."""
        text = self.text
        if text.share == 1 and not text.pseudo_words and (not text.noise or text.world is not None):
            return None
        if (text.noise or text.pseudo_words) and text.corpus is not None and Corpus.open(text.corpus).pairs is not None:
            raise UserError(
                f"text.corpus={text.corpus} holds pairs, and noise and pseudo_words would mix the words of their two "
                "sides: leave them out. A share of the pairs can be read with text.share."
            )
        return TextSource(text.model_copy(update=asdict(Alterations())), self.folder)

    @property
    def changes(self) -> Alterations:
        return Alterations(self.text.share, self.text.noise, self.text.pseudo_words)

    def corpus_folder(self, tokenizer: str) -> Path | str:
        """Return the folder of a tokenizer's corpus, prepared or not; or the URL of one in a store."""
        if self.base is not None:
            base, code = Path(self.base.corpus_folder(tokenizer)), cell_code.altered_corpus()
            key = hash_json([self.fingerprint, base.name, asdict(self.changes), code])
            return self.folder / "corpora" / f"{base.name}-remade-{key[:12]}"
        if self.text.corpus is not None:
            place = make_local(str(self.text.corpus))
            return str(place) if is_url(place) else Path(place)
        code = cell_code.corpus()
        values = [self.fingerprint, tokenizer, self.text.valid, self.text.where, code]
        values += [] if self.text.pairs is None else [self.text.pairs]
        if self.text.files and self.text.seed:  # says what is held out; 0 adds nothing: such corpora keep their names
            values.append({"seed": self.text.seed})
        if Path(tokenizer).exists():  # not to be trained: what it holds counts, not where it lies
            values.append({"tokenizer": open_tokenizers(tokenizer).fingerprint})
        key = hash_json(values)
        return self.folder / "corpora" / f"{re.sub(r'[^a-z0-9]+', '-', tokenizer.lower())}-{key[:12]}"

    def is_ready(self, tokenizer: str) -> bool:
        folder = self.corpus_folder(tokenizer)
        return is_url(folder) or (Path(folder) / MANIFEST).is_file()

    def open_corpus(self, tokenizer: str, on_progress: Callable[[str], None] = lambda _: None) -> Corpus:
        place = self.corpus_folder(tokenizer)
        if not self.is_ready(tokenizer):
            folder = Path(place)
            if self.base is not None:
                base_corpus = self.base.open_corpus(tokenizer, on_progress)
                if is_url(base_corpus.location):
                    raise UserError(
                        f"{base_corpus.location} is in a store, and a study alters text (share, noise, pseudo_words) "
                        "of this machine alone. Copy the corpus to a folder and name that."
                    )
                on_progress(f"Making {folder.name} from {base_corpus.folder.name}")
                write_altered(base_corpus.folder, folder, self.changes)
                return Corpus.open(folder)
            if self.text.corpus is not None:
                return Corpus.open(folder)  # says what is wrong
            on_progress(f"Preparing {folder.name} with {tokenizer}")
            files: list[str | Path] = [self._write_world()] if self.text.world else list(self.text.files or [])
            prepare(
                files, folder, tokenizer=tokenizer, valid=self.text.valid, seed=self.text.seed, where=self.text.where,
                pairs=self.text.pairs,
            )  # fmt: skip
        return Corpus.open(place)

    def find_similar(self, tokenizer: str) -> Corpus | None:
        """Return the unaltered corpus if it is prepared and this one is not: FLOPs per token are the same."""
        ready = self.base is not None and self.base.is_ready(tokenizer)
        return self.base.open_corpus(tokenizer) if self.base is not None and ready else None

    @property
    def size(self) -> float:
        """Size of the text in bytes, approximately."""
        if self.text.corpus is not None:
            return float(Corpus.open(self.text.corpus).bytes)
        if self.text.world is not None:
            return self.text.world * 1e6
        return float(sum(file.size for source in find_sources(self.text.files or []) for file in source.files))

    def _write_world(self) -> Path:
        assert self.text.world is not None
        ending = "txt" if self.text.pairs is None else "tsv"
        path = self.folder / "corpora" / f"town-{self.text.language}-{self.fingerprint[:12]}.{ending}"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".writing")
            if self.text.pairs is not None:
                lines = ["en\tko", *("\t".join(pair) for pair in world_pairs(self.text.seed, self.text.world))]
                partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
            else:
                texts = world_texts(self.text.seed, self.text.language, self.text.world)
                shuffled = (_shuffle_words(text, number, self.text.noise) for number, text in enumerate(texts))
                partial.write_text("\n\n".join(shuffled) + "\n", encoding="utf-8")
            partial.replace(path)
        return path

    def open_held_out(self, tokenizer: str) -> Corpus:
        """Open the held-out split."""
        corpus = self.open_corpus(tokenizer).open_split("valid")
        if not len(corpus.documents):
            problem = f"{corpus.location} has no held-out part to make a task from: prepare it with --valid 0.02."
            raise UserError(problem)
        return corpus

    def label_senses(self, tokenizer: str) -> Iterator[dict[str, list[str]]]:
        """Yield sentences with pseudo-words, tagged with the original words."""
        assert self.base is not None, "a study with such a task has pseudo-words"
        whole = self.base.open_corpus(tokenizer)
        return label_senses(self.base.open_held_out(tokenizer), choose_pseudo_words(whole, self.text.pseudo_words))

    def unseen_documents(self, tokenizer: str) -> Iterator[list[str]]:
        """Yield the sentences of each document that is in no training text."""
        if self.text.world is not None:
            town = open_world(self.text)
            for document in town.documents(FIRST_UNSEEN):
                yield document.sentences
            return
        corpus = self.open_held_out(tokenizer)
        for number in range(len(corpus.documents)):
            start, stop = corpus.documents[number], corpus.documents[number + 1]
            first, last = corpus.sentences.find(start), corpus.sentences.find(stop - 1)
            bounds = corpus.sentences.slice(first, last + 2)
            sides = (corpus.tokenizer, corpus.tokenizer.target)  # of pairs: a source and a target
            yield [
                sides[place % 2].decode(corpus.tokens(int(a), int(b))).strip()
                for place, (a, b) in enumerate(pairwise(bounds))
            ]


def open_world(text: Text) -> World:
    """The town in the language of a text; in English where that has both."""
    return World(text.seed, "en" if text.language == "both" else text.language)


def world_texts(seed: int, language: str, megabytes: float) -> Iterator[str]:
    """Texts of the town of together so many megabytes; of both languages in turn, no document in both."""
    if language != "both":
        yield from World(seed, language).text(megabytes)
        return
    towns, left = (World(seed, "en"), World(seed, "ko")), megabytes * 1_000_000
    for number in count():
        text = towns[number % 2].document(number).text
        yield text
        left -= len(text.encode()) + 2
        if left <= 0:
            return


def world_pairs(seed: int, megabytes: float) -> Iterator[tuple[str, str]]:
    """Pairs of the town of together so many megabytes, without those that its translation tasks hold out."""
    left = megabytes * 1_000_000
    for pair in World(seed).pairs(sys.maxsize):
        if belongs(pair[0], "train"):
            yield pair
            left -= len("".join(pair).encode()) + 2
            if left <= 0:
                return


def _shuffle_words(text: str, number: int, share: float) -> str:
    """Shuffle the words of a share of the documents, chosen by their number."""
    if not is_drawn("noise", number, share):
        return text
    words = text.split(" ")
    return " ".join(words[place] for place in Permutation(len(words), fold("words", number))(np.arange(len(words))))


def make_sentence_pairs(documents: Iterator[list[str]], made: str, count: int, skip: int = 0) -> list[dict[str, str]]:
    """Make pairs of sentences for next-sentence and sentence-order tasks.

    next: the second is the one after the first, or one of the document before. order: as they stand, or swapped.
    One pair a document, labels in turn, so that nothing but the order of sentences tells them apart.
    """
    pairs: list[dict[str, str]] = []
    previous: list[str] = []
    usable = (document for document in documents if len([s for s in document if len(s.split()) > 2]) >= 3)
    for number, sentences in enumerate(islice(usable, skip + count + 1)):
        if number > skip:
            index = fold("pairs", number, "first") % (len(sentences) - 1)
            first, second = sentences[index], sentences[index + 1]
            is_yes = number % 2 == 0
            if made == "order":
                left, right = (first, second) if is_yes else (second, first)
            else:
                left, right = first, second if is_yes else previous[fold("pairs", number, "other") % len(previous)]
            pairs.append({"text_a": left, "text_b": right, "label": "yes" if is_yes else "no"})
        previous = sentences
    if len(pairs) < count:
        raise UserError(f"The held-out text gives only {len(pairs)} of {count} pairs: hold out more, or ask for fewer.")
    return pairs
