"""Altered copies of a corpus, for studies whose question is the text itself.

    share          the fraction of documents that stay, chosen by a hash of their number
    noise          the fraction of those whose words are shuffled: text that looks like text and teaches nothing
    pseudo_words   the number of pairs of words that are merged, each pair written as its first word (Gale, Church,
                   Yarowsky 1992; Schütze 1992): an ambiguous word whose sense is known at every position

The held-out split keeps all its documents, unshuffled, so that contenders are measured on the same text; pseudo-words
are merged there too. Only words that are one token are merged, and only where they stand as a whole word.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from etude.chance import Permutation, fold
from etude.errors import UserError
from etude.text.checked_files import write_manifest
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.entities import restart_mentions
from etude.text.corpus.manifest import SPLITS, SplitEntry, read_manifest
from etude.text.corpus.shard import Shard, choose_id_dtype
from etude.text.corpus.split_writer import SplitWriter
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer

FIRST_RANK = 100  # rank of the most frequent word that is merged: before it stand words that any neighbour may have
MIN_LETTERS = 5  # at least: short words are mostly names of units, months, particles
MAX_TOKENS = 64  # tokens of a sentence that is asked about


@dataclass(frozen=True)
class Alterations:
    share: float = 1.0
    noise: float = 0.0
    pseudo_words: int = 0


def write_altered(source: Path, target: Path, changes: Alterations) -> None:
    """Write an altered copy of the corpus in `source`; it gets its name `target` when it is complete."""
    partial = target.with_name(target.name + ".writing")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    manifest = read_manifest(source)
    pairs = choose_pseudo_words(Corpus.open(source), changes.pseudo_words)
    for split in SPLITS:
        if split in manifest["parts"] and manifest["parts"][split]["tokens"]:
            split_changes = Alterations() if split == "valid" else changes
            manifest["parts"][split] = _write_split(Corpus.open(source, split), partial / split, split_changes, pairs)
    manifest["remade"] = asdict(changes)
    for name in (TOKENIZER_FILE, *([TARGET_FILE] if "target_tokenizer" in manifest else [])):
        shutil.copyfile(source / name, partial / name)
    write_manifest(partial, manifest)
    partial.rename(target)


def is_drawn(purpose: str, number: int, share: float) -> bool:
    """Whether a document is among a share of all, by a hash of its number; steps of 0.001 are those of the first 1000.

    The rest of the hash tells smaller shares apart: of a large corpus, a thousandth may be what is asked for.
    """
    draw = fold(purpose, number)
    return draw % 1_000 + draw // 1_000 % 1_000_000 / 1_000_000 < 1_000 * share


def _write_split(corpus: Corpus, folder: Path, changes: Alterations, pairs: dict[int, int]) -> SplitEntry:
    vocab = corpus.tokenizer.largest_vocab
    writer = SplitWriter(
        folder, vocab, choose_id_dtype(vocab), surfaces=corpus.tokenizer.word_level, entities=corpus.graph is not None
    )
    for number in range(len(corpus.documents)):
        if not is_drawn("share", number, changes.share):
            continue
        document = _read_document(corpus, number)
        if is_drawn("noise", number, changes.noise):
            document = _shuffle_words(document, number)
        _merge_document(document, pairs, corpus.tokenizer)
        # bytes are not counted by document: estimated from the document's share of the tokens
        bytes_before = [round(corpus.bytes * corpus.documents[number + offset] / corpus.total) for offset in (0, 1)]
        writer.append(document, bytes_before[1] - bytes_before[0])
    return writer.finish()


def _read_document(corpus: Corpus, number: int) -> Shard:
    """Read one document as a shard: offsets count from its start, word flags are bytes."""
    start, stop = corpus.documents[number], corpus.documents[number + 1]
    first, last = corpus.sentences.find(start), corpus.sentences.find(stop - 1)
    sentences = corpus.sentences.slice(first, last + 1) - start
    words = corpus.word_starts(start, stop)
    words[0] = True  # a cut document may begin inside a word
    document = Shard(corpus.tokens(start, stop), np.zeros(1, np.int64), sentences, words.astype(np.uint8))
    if corpus.tokenizer.word_level:
        _set_surfaces(document, corpus.surfaces(start, stop))
    if corpus.graph is not None:
        document.entities = corpus.entities(start, stop)
    return document


def _set_surfaces(document: Shard, surfaces: list[bytes]) -> None:
    lengths = np.array([len(surface) for surface in surfaces])
    document.surfaces = np.frombuffer(b"".join(surfaces), np.uint8)
    document.letters = np.cumsum(lengths) - lengths


def _list_surfaces(document: Shard) -> list[bytes]:
    """List the letters of each token; [] where the tokenizer keeps none."""
    if document.surfaces is None or document.letters is None:
        return []
    ends = [*document.letters[1:], len(document.surfaces)]
    letters = document.surfaces.tobytes()
    return [letters[a:b] for a, b in zip(document.letters, ends, strict=True)]


def _shuffle_words(document: Shard, number: int) -> Shard:
    """Shuffle the words of a document; every sentence keeps its number of words."""
    starts = np.flatnonzero(document.words)  # (W,)
    lengths = np.diff([*starts, len(document.tokens)])
    order = Permutation(len(starts), fold("words", number))(np.arange(len(starts)))
    shuffled_starts, lengths = starts[order], lengths[order]
    new_starts = np.cumsum(lengths) - lengths
    source_positions = np.repeat(shuffled_starts - new_starts, lengths) + np.arange(len(document.tokens))
    sentences = np.unique(new_starts[np.searchsorted(starts, document.sentences)])
    shuffled = Shard(document.tokens[source_positions], document.documents, sentences, document.words[source_positions])
    if surfaces := _list_surfaces(document):
        _set_surfaces(shuffled, [surfaces[position] for position in source_positions])
    if document.entities is not None:
        shuffled.entities = restart_mentions(document.entities[source_positions], sentences)
    return shuffled


# --- pseudo-words -----------------------------------------------------------------------------------


def choose_pseudo_words(corpus: Corpus, count: int) -> dict[int, int]:
    """Choose pairs of words to merge: second -> first, neighbours in frequency so that neither dominates."""
    if not count:
        return {}
    tokenizer, counts = corpus.tokenizer, corpus.token_counts()
    candidates: list[int] = []
    for token in np.argsort(-counts, kind="stable").tolist():
        word = tokenizer.decode([token]).strip()
        if word.isalpha() and _count_letters(word) >= MIN_LETTERS and _is_whole_word(tokenizer, token, word):
            candidates.append(token)
        if len(candidates) == FIRST_RANK + 2 * count:
            break
    else:
        raise UserError(
            f"text.pseudo_words={count}: this corpus has only {len(candidates)} words of {MIN_LETTERS} letters or more "
            f"that are one token, and {FIRST_RANK + 2 * count} are needed. Ask for fewer, or prepare it with a larger "
            "vocabulary."
        )
    chosen = candidates[FIRST_RANK:]
    return {second: first for first, second in zip(chosen[::2], chosen[1::2], strict=True)}


def _count_letters(word: str) -> int:
    """Count the letters of a word; a syllable of Hangul has two or three."""
    return sum(len(unicodedata.normalize("NFD", sign)) if "가" <= sign <= "힣" else 1 for sign in word)


def _is_whole_word(tokenizer: Tokenizer, token: int, word: str) -> bool:
    """Whether the token is the word as it stands inside a text, not a piece of it, nor a piece after a lone space."""
    encoding = tokenizer.encode(f"{word} {word}")
    if len(encoding) < 2 or encoding.ids[-1] != token or not encoding.word_starts[-1]:
        return False
    return bool(tokenizer.decode(encoding.ids[-2:-1]).strip()) and tokenizer.decode(encoding.ids[:-1]).strip() == word


def _whole_words(words: np.ndarray) -> np.ndarray:
    """Return a mask of the tokens that are a whole word."""
    return words.astype(bool) & np.append(words[1:], 1).astype(bool)


def _merge_document(document: Shard, pairs: dict[int, int], tokenizer: Tokenizer) -> None:
    """Write each pair as its first word, in letters too: a model of characters would read the sense otherwise."""
    merged = _merge_words(document.tokens, document.words, pairs)
    places = np.flatnonzero(merged != document.tokens)
    document.tokens = merged
    if len(places) and (surfaces := _list_surfaces(document)):
        for place in places.tolist():
            surfaces[place] = tokenizer.token(int(merged[place])).encode()
        _set_surfaces(document, surfaces)


def _merge_words(tokens: np.ndarray, words: np.ndarray, pairs: dict[int, int]) -> np.ndarray:
    if not pairs:
        return tokens
    seconds = np.array(sorted(pairs))
    firsts = np.array([pairs[second] for second in seconds.tolist()])
    index = np.minimum(np.searchsorted(seconds, tokens), len(seconds) - 1)
    is_second = _whole_words(words) & (seconds[index] == tokens)
    return np.where(is_second, firsts[index], tokens)


def label_senses(corpus: Corpus, pairs: dict[int, int]) -> Iterator[dict[str, list[str]]]:
    """Yield held-out sentences with pseudo-words, each tagged with its original word as an entity.

    `corpus` is the held-out split before words were merged. The word alone gives away where the pseudo-words are and
    leaves two candidates for each; the right one must come from the sentence.
    """
    merged = {**pairs, **{first: first for first in pairs.values()}}
    members = np.array(sorted(merged))
    for number in range(len(corpus.sentences)):
        start, stop = corpus.sentences[number], corpus.sentences[number + 1]
        if stop - start > MAX_TOKENS:
            continue
        tokens, starts = corpus.tokens(start, stop), corpus.word_starts(start, stop)
        starts[0] = True
        is_pseudo = np.isin(tokens, members) & _whole_words(starts)
        if not is_pseudo.any():
            continue
        words, tags = [], []
        bounds = [*np.flatnonzero(starts).tolist(), len(tokens)]
        for a, b in pairwise(bounds):
            token = int(tokens[a])
            words.append(corpus.tokenizer.decode([merged[token]] if is_pseudo[a] else tokens[a:b].tolist()).strip())
            tags.append(f"B-{corpus.tokenizer.decode([token]).strip()}" if is_pseudo[a] else "O")
        if all(words):
            yield {"tokens": words, "tags": tags}
