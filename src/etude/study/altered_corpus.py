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

FIRST = 100  # rank of the most frequent word that is merged: before it stand words that any neighbour may have
LETTERS = 5  # at least: short words are mostly names of units, months, particles
LONGEST = 64  # tokens of a sentence that is asked about


@dataclass(frozen=True)
class Changes:
    share: float = 1.0
    noise: float = 0.0
    pseudo_words: int = 0


def remake(source: Path, place: Path, changes: Changes) -> None:
    """Writes the corpus aside and gives it its name when it is whole."""
    aside = place.with_name(place.name + ".writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    manifest = json.loads((source / MANIFEST).read_text(encoding="utf-8"))
    pairs = pseudo_words(Corpus.open(source), changes.pseudo_words)
    for part in SPLITS:
        if manifest["parts"].get(part, {}).get("tokens"):
            own = Changes() if part == "valid" else changes
            manifest["parts"][part] = _write(Corpus.open(source, part), aside / part, own, pairs)
    manifest["remade"] = asdict(changes)
    shutil.copyfile(source / TOKENIZER_FILE, aside / TOKENIZER_FILE)
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.rename(place)


def _write(corpus: Corpus, folder: Path, changes: Changes, pairs: dict[int, int]) -> SplitEntry:
    vocab = corpus.tokenizer.vocab
    writer = SplitWriter(folder, vocab, choose_id_dtype(vocab), surfaces=corpus.tokenizer.word_level)
    for number in range(len(corpus.documents)):
        if fold("share", number) % 1000 >= 1000 * changes.share:
            continue
        document = _document(corpus, number)
        if fold("noise", number) % 1000 < 1000 * changes.noise:
            document = _shuffled(document, number)
        document.tokens = _merged(document.tokens, document.words, pairs)
        # bytes are not counted by document: a share of the tokens is about that share of them
        upto = [round(corpus.bytes * corpus.documents[number + more] / corpus.total) for more in (0, 1)]
        writer.append(document, upto[1] - upto[0])
    return writer.finish()


def _document(corpus: Corpus, number: int) -> Shard:
    """One document as a writer takes it: bounds from its own start, a byte a word flag."""
    start, stop = corpus.documents[number], corpus.documents[number + 1]
    first, last = corpus.sentences.find(start), corpus.sentences.find(stop - 1)
    sentences = corpus.sentences.slice(first, last + 1) - start
    words = corpus.word_starts(start, stop)
    words[0] = True  # a cut document may begin inside a word
    found = Shard(corpus.tokens(start, stop), np.zeros(1, np.int64), sentences, words.astype(np.uint8))
    if corpus.tokenizer.word_level:
        _spell(found, corpus.surfaces(start, stop))
    return found


def _spell(document: Shard, surfaces: list[bytes]) -> None:
    lengths = np.array([len(one) for one in surfaces])
    document.surfaces = np.frombuffer(b"".join(surfaces), np.uint8)
    document.letters = np.cumsum(lengths) - lengths


def _shuffled(document: Shard, number: int) -> Shard:
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
        _spell(found, [spelled[place] for place in places])
    return found


# --- pseudo-words -----------------------------------------------------------------------------------


def pseudo_words(corpus: Corpus, count: int) -> dict[int, int]:
    """Second word of each pair -> its first: neighbours in the order of frequency, so that neither is the usual one."""
    if not count:
        return {}
    tokenizer, counts = corpus.tokenizer, corpus.token_counts()
    found: list[int] = []
    for token in np.argsort(-counts, kind="stable").tolist():
        word = tokenizer.token(token)  # of letters alone: no piece that goes on, no special token
        if word.isalpha() and len(word) >= LETTERS and tokenizer.encode(word).ids.tolist() == [token]:
            found.append(token)
        if len(found) == FIRST + 2 * count:
            break
    else:
        raise UserError(
            f"text.pseudo_words={count}: this corpus has only {len(found)} words of {LETTERS} letters or more that are "
            f"one token, and {FIRST + 2 * count} are needed. Ask for fewer, or prepare it with a larger vocabulary."
        )
    chosen = found[FIRST:]
    return {second: first for first, second in zip(chosen[::2], chosen[1::2], strict=True)}


def _whole(words: np.ndarray) -> np.ndarray:
    """Which tokens are a word by themselves."""
    return words.astype(bool) & np.append(words[1:], 1).astype(bool)


def _merged(tokens: np.ndarray, words: np.ndarray, pairs: dict[int, int]) -> np.ndarray:
    if not pairs:
        return tokens
    seconds = np.array(sorted(pairs))
    firsts = np.array([pairs[second] for second in seconds.tolist()])
    place = np.minimum(np.searchsorted(seconds, tokens), len(seconds) - 1)
    changed = _whole(words) & (seconds[place] == tokens)
    return np.where(changed, firsts[place], tokens)


def senses(corpus: Corpus, pairs: dict[int, int]) -> Iterator[dict[str, list[str]]]:
    """Held-out sentences with pseudo-words in them, and what each had been, as tags that write entities.

    `corpus` is the held-out part before words were merged. Whoever knows only the word finds every one of them and
    guesses one of two; the rest must come from the sentence.
    """
    known = {**pairs, **{first: first for first in pairs.values()}}
    members = np.array(sorted(known))
    for number in range(len(corpus.sentences)):
        start, stop = corpus.sentences[number], corpus.sentences[number + 1]
        if stop - start > LONGEST:
            continue
        tokens, starts = corpus.tokens(start, stop), corpus.word_starts(start, stop)
        starts[0] = True
        asked = np.isin(tokens, members) & _whole(starts)
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
