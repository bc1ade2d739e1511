"""A corpus made from another, for studies whose question is the text itself.

    share          so many of its documents, chosen by a hash of their number
    noise          of those, so many with their words in any order: text that looks like text and teaches nothing
    pseudo_words   so many pairs of words, each pair written as its first word (Gale, Church, Yarowsky 1992; Schütze
                   1992): an ambiguous word whose sense in every place is known, since one knows what stood there

Held-out text stays whole and clean, so that contenders are measured on the same; pseudo-words are merged there too.
Only words that are one token are merged, and only where they stand as a whole word.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.manifest import MANIFEST, SPLITS, SplitEntry
from etude.text.corpus.shard import Shard, choose_id_dtype
from etude.text.corpus.split_writer import SplitWriter
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE

FIRST_RANK = 100  # rank of the most frequent word that is merged: before it stand words that any neighbour may have
MIN_LETTERS = 5  # at least: short words are mostly names of units, months, particles
MAX_TOKENS = 64  # tokens of a sentence that is asked about


@dataclass(frozen=True)
class Alterations:
    share: float = 1.0
    noise: float = 0.0
    pseudo_words: int = 0


def write_altered(source: Path, place: Path, changes: Alterations) -> None:
    """Writes the corpus aside and gives it its name when it is whole."""
    aside = place.with_name(place.name + ".writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    manifest = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
    pairs = choose_pseudo_words(Corpus.open(source), changes.pseudo_words)
    for part in SPLITS:
        if manifest["parts"].get(part, {}).get("tokens"):
            own = Alterations() if part == "valid" else changes
            manifest["parts"][part] = _write_split(Corpus.open(source, part), aside / part, own, pairs)
    manifest["remade"] = asdict(changes)
    shutil.copyfile(source / TOKENIZER_FILE, aside / TOKENIZER_FILE)
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.rename(place)


def _write_split(corpus: Corpus, folder: Path, changes: Alterations, pairs: dict[int, int]) -> SplitEntry:
    vocab = corpus.tokenizer.vocab
    writer = SplitWriter(folder, vocab, choose_id_dtype(vocab), surfaces=corpus.tokenizer.word_level)
    for number in range(len(corpus.documents)):
        if fold("share", number) % 1000 >= 1000 * changes.share:
            continue
        document = _read_document(corpus, number)
        if fold("noise", number) % 1000 < 1000 * changes.noise:
            document = _shuffle_words(document, number)
        document.tokens = _merge_words(document.tokens, document.words, pairs)
        # bytes are not counted by document: a share of the tokens is about that share of them
        upto = [round(corpus.bytes * corpus.documents[number + more] / corpus.total) for more in (0, 1)]
        writer.append(document, upto[1] - upto[0])
    return writer.finish()


def _read_document(corpus: Corpus, number: int) -> Shard:
    """One document as a writer takes it: bounds from its own start, a byte a word flag."""
    start, stop = corpus.documents[number], corpus.documents[number + 1]
    first, last = corpus.sentences.find(start), corpus.sentences.find(stop - 1)
    sentences = corpus.sentences.slice(first, last + 1) - start
    words = corpus.word_starts(start, stop)
    words[0] = True  # a cut document may begin inside a word
    found = Shard(corpus.tokens(start, stop), np.zeros(1, np.int64), sentences, words.astype(np.uint8))
    if corpus.tokenizer.word_level:
        _set_surfaces(found, corpus.surfaces(start, stop))
    return found


def _set_surfaces(document: Shard, surfaces: list[bytes]) -> None:
    lengths = np.array([len(one) for one in surfaces])
    document.surfaces = np.frombuffer(b"".join(surfaces), np.uint8)
    document.letters = np.cumsum(lengths) - lengths


def _shuffle_words(document: Shard, number: int) -> Shard:
    """Its words in any order; every sentence keeps as many of them."""
    starts = np.flatnonzero(document.words)  # (W,)
    lengths = np.diff([*starts, len(document.tokens)])
    order = Permutation(len(starts), fold("words", number))(np.arange(len(starts)))
    taken, lengths = starts[order], lengths[order]
    begins = np.cumsum(lengths) - lengths
    places = np.repeat(taken - begins, lengths) + np.arange(len(document.tokens))
    sentences = np.unique(begins[np.searchsorted(starts, document.sentences)])
    found = Shard(document.tokens[places], document.documents, sentences, document.words[places])
    if document.surfaces is not None and document.letters is not None:
        ends = [*document.letters[1:], len(document.surfaces)]
        letters = document.surfaces.tobytes()
        spelled = [letters[a:b] for a, b in zip(document.letters, ends, strict=True)]
        _set_surfaces(found, [spelled[place] for place in places])
    return found


# --- pseudo-words -----------------------------------------------------------------------------------


def choose_pseudo_words(corpus: Corpus, count: int) -> dict[int, int]:
    """Second word of each pair -> its first: neighbours in the order of frequency, so that neither is the usual one."""
    if not count:
        return {}
    tokenizer, counts = corpus.tokenizer, corpus.token_counts()
    found: list[int] = []
    for token in np.argsort(-counts, kind="stable").tolist():
        word = tokenizer.token(token)  # of letters alone: no piece that goes on, no special token
        if word.isalpha() and len(word) >= MIN_LETTERS and tokenizer.encode(word).ids.tolist() == [token]:
            found.append(token)
        if len(found) == FIRST_RANK + 2 * count:
            break
    else:
        raise UserError(
            f"text.pseudo_words={count}: this corpus has only {len(found)} words of {MIN_LETTERS} letters or more that are "
            f"one token, and {FIRST_RANK + 2 * count} are needed. Ask for fewer, or prepare it with a larger vocabulary."
        )
    chosen = found[FIRST_RANK:]
    return {second: first for first, second in zip(chosen[::2], chosen[1::2], strict=True)}


def _whole_words(words: np.ndarray) -> np.ndarray:
    """Which tokens are a word by themselves."""
    return words.astype(bool) & np.append(words[1:], 1).astype(bool)


def _merge_words(tokens: np.ndarray, words: np.ndarray, pairs: dict[int, int]) -> np.ndarray:
    if not pairs:
        return tokens
    seconds = np.array(sorted(pairs))
    firsts = np.array([pairs[second] for second in seconds.tolist()])
    place = np.minimum(np.searchsorted(seconds, tokens), len(seconds) - 1)
    changed = _whole_words(words) & (seconds[place] == tokens)
    return np.where(changed, firsts[place], tokens)


def label_senses(corpus: Corpus, pairs: dict[int, int]) -> Iterator[dict[str, list[str]]]:
    """Held-out sentences with pseudo-words in them, and what each had been, as tags that write entities.

    `corpus` is the held-out part before words were merged. Whoever knows only the word finds every one of them and
    guesses one of two; the rest must come from the sentence.
    """
    known = {**pairs, **{first: first for first in pairs.values()}}
    members = np.array(sorted(known))
    for number in range(len(corpus.sentences)):
        start, stop = corpus.sentences[number], corpus.sentences[number + 1]
        if stop - start > MAX_TOKENS:
            continue
        tokens, starts = corpus.tokens(start, stop), corpus.word_starts(start, stop)
        starts[0] = True
        asked = np.isin(tokens, members) & _whole_words(starts)
        if not asked.any():
            continue
        words, tags = [], []
        bounds = [*np.flatnonzero(starts).tolist(), len(tokens)]
        for a, b in pairwise(bounds):
            token = int(tokens[a])
            words.append(corpus.tokenizer.decode([known[token]] if asked[a] else tokens[a:b].tolist()).strip())
            tags.append(f"B-{corpus.tokenizer.token(token)}" if asked[a] else "O")
        if all(words):
            yield {"tokens": words, "tags": tags}
