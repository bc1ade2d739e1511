"""Ids of many documents, fast: words repeat, so the ids of a whole word are looked up, not computed again.

For tokenizers whose first cut never joins text across white space (BERT's, GPT-2's, and all trained here) a document
is the sum of its pieces: each run of white space with what follows it. A memory (text/tokenizer/word_cache.py) holds the tokens of
pieces; new ones are put together from words where the first cut is known (text/tokenizer/pre_tokenization.py), and only new
words reach the `tokenizers` library, in one batch. The ids are those the library gives for the whole document (a
property test holds that); any other tokenizer takes the library's way throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from etude.text.tokenizer import characters, training
from etude.text.tokenizer.pre_tokenization import cut_of, flatten
from etude.text.tokenizer.tokenizer import Tokenizer, encode_flat
from etude.text.tokenizer.word_cache import BLANK, ID, START, BySpan, ByText, Tokens

# white space to one tokenizer, and to BERT's nothing at all
DOUBTFUL = "\v\f\x85"


@dataclass
class Encoded:
    """Documents end to end. Those without a single token are left out."""

    count: int  # documents given
    kept: np.ndarray  # numbers of the documents that are there
    ids: np.ndarray  # (n,) uint32
    word_starts: np.ndarray  # (n,) bool
    documents: np.ndarray  # (kept,) int64: first token of each
    sentences: np.ndarray  # (sentences,) int64: first token of each
    surfaces: bytes  # word-level tokenizers: the letters of all tokens
    letters: np.ndarray  # (n,) int64: where each token's letters start


class Encoder:
    def __init__(self, tokenizer: Tokenizer, memory: int) -> None:
        """`memory` in bytes bounds what is remembered."""
        self.backend = tokenizer.backend
        self.surfaces = tokenizer.word_level
        self.independent = cuts_at_space(tokenizer)
        self.cut = cut_of(tokenizer) if self.independent else None
        self.blank_ids = [id for name in (" ", "\n", "Ġ", "Ċ") if (id := tokenizer.id(name)) is not None]
        self.pieces = BySpan(self._compute, memory if self.cut is None else 2 * memory // 3, self.surfaces)
        self.words = ByText(self._compute_words, memory // 3, self.surfaces)

    def encode(self, texts: list[str], ends: list[list[int]]) -> Encoded:
        """NFC texts, none empty, each with the ends of its sentences (see text/prepare/sentences.py)."""
        runs = groupby(zip(texts, ends, strict=True), lambda pair: self.independent and _cut_is_safe(*pair))
        encoded = []
        for quick, run in runs:
            some_texts, some_ends = zip(*run, strict=True)
            encoded.append((self._encode_pieces if quick else self._encode_whole)(list(some_texts), list(some_ends)))
        return encoded[0] if len(encoded) == 1 else _join(encoded)

    def _encode_pieces(self, texts: list[str], ends: list[list[int]]) -> Encoded:
        text = "".join(texts)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        firsts = np.cumsum([0, *map(len, texts)])
        space = characters.table()[codes] == characters.SPACE
        cut = space.copy()
        cut[1:] &= ~space[:-1]
        cut[firsts[:-1]] = True
        starts = np.flatnonzero(cut)
        tokens = self.pieces.tokens(text, codes, starts)
        before_piece = np.concatenate([[0], np.cumsum(tokens.lengths)])
        # every sentence starts where a piece does
        places = np.concatenate([[0, *places[:-1]] for places in ends]).astype(np.int64)
        of_document = np.repeat(np.arange(len(texts)), [len(places) for places in ends])
        sentence_starts = before_piece[np.searchsorted(starts, places + firsts[of_document])]
        return _assemble(len(texts), tokens, sentence_starts, of_document)

    def _compute(self, pieces: list[str]) -> Tokens:
        """The tokens of new pieces."""
        if self.cut is None:
            return self._ask(pieces)
        cuts = list(map(self.cut.words, pieces))
        common = np.fromiter((words is not None for words in cuts), bool, len(cuts))
        words = self.words.tokens(list(chain.from_iterable(words for words in cuts if words is not None)))
        before_word = np.concatenate([[0], np.cumsum(words.lengths)])
        bounds = before_word[np.cumsum([0, *(len(words) for words in cuts if words is not None)])]
        known = words.regrouped(np.diff(bounds))
        if common.all():
            return known
        asked = self._ask([piece for piece, words in zip(pieces, cuts, strict=True) if words is None])
        order = np.empty(len(cuts), np.int64)
        order[common] = np.arange(common.sum())
        order[~common] = common.sum() + np.arange((~common).sum())
        return Tokens.joined([known, asked]).taken(order)

    def _compute_words(self, words: list[str]) -> Tokens:
        """The tokens of new words of the first cut. In one of letters and digits only the first token starts a word."""
        assert self.cut is not None
        plain = np.fromiter((self.surfaces or word.lstrip(" ").isalnum() for word in words), bool, len(words))
        fed = [self.cut.fed(word) for word, is_plain in zip(words, plain, strict=True) if is_plain]
        encoding = self.cut.bare.encode(fed, is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, np.uint32)
        of_word = np.array(encoding.word_ids, np.int64)
        first = np.ones(len(ids), bool)
        first[1:] = of_word[1:] != of_word[:-1]
        flagged = ids | np.where(first, START, 0) | np.where(np.isin(ids, self.blank_ids), BLANK, 0)
        lengths = np.bincount(of_word, minlength=len(fed))
        surfaces = [word.encode() for word in words] if self.surfaces else None  # one token a word
        known = Tokens.of(flagged.astype(np.uint32), lengths, surfaces)
        if plain.all():
            return known
        asked = self._ask([word for word, is_plain in zip(words, plain, strict=True) if not is_plain])
        order = np.empty(len(words), np.int64)
        order[plain] = np.arange(len(fed))
        order[~plain] = len(fed) + np.arange(len(words) - len(fed))
        return Tokens.joined([known, asked]).taken(order)

    def _ask(self, texts: list[str]) -> Tokens:
        """The library's own answer for each text."""
        flat = encode_flat(self.backend, texts)
        flagged = flat.ids.astype(np.uint32) | np.where(flat.word_starts, START, 0) | np.where(flat.blank, BLANK, 0)
        surfaces = None
        if self.surfaces:
            of_text = np.repeat(np.arange(len(texts)), flat.lengths).tolist()
            places = zip(of_text, flat.offsets.tolist(), strict=True)
            surfaces = [texts[number][first:last].encode() for number, (first, last) in places]
        return Tokens.of(flagged.astype(np.uint32), flat.lengths, surfaces, flat.offsets)

    def _encode_whole(self, texts: list[str], ends: list[list[int]]) -> Encoded:
        tokens = self._ask(texts)
        assert tokens.offsets is not None
        firsts = np.cumsum(tokens.lengths) - tokens.lengths
        sentence_starts = []
        for first, length, places in zip(firsts, tokens.lengths, ends, strict=True):
            # the first token that starts at or after each sentence's start; offsets may step back within a character
            rising = np.maximum.accumulate(tokens.offsets[first : first + length, 0])
            sentence_starts.append(first + np.searchsorted(rising, [0, *places[:-1]]))
        of_document = np.repeat(np.arange(len(texts)), [len(places) for places in ends])
        return _assemble(len(texts), tokens, np.concatenate(sentence_starts), of_document)


def cuts_at_space(tokenizer: Tokenizer) -> bool:
    """Is every document the sum of its pieces cut before white space? Only for parts known to keep that promise."""
    parts = tokenizer.parts
    for added in parts.get("added_tokens") or []:
        # special tokens are read as plain letters; others are looked for in the text before anything is cut
        if not added["special"] and (
            added["lstrip"] or added["rstrip"] or added["content"].split() != [added["content"]]
        ):
            return False
    if parts["model"].get("dropout"):
        return False
    normalisers = flatten(parts.get("normalizer"), "normalizers")
    if any(step["type"] not in ("NFC", "NFKC", "Lowercase", "BertNormalizer") for step in normalisers):
        return False
    steps = flatten(parts.get("pre_tokenizer"), "pretokenizers")
    if not steps:
        return False
    first, rest = steps[0], steps[1:]
    if any(step["type"] not in ("Digits", "Punctuation", "BertPreTokenizer") for step in rest):
        return False  # these cut a piece further, looking at nothing outside it
    if first["type"] == "ByteLevel":
        return first["use_regex"] and not first["add_prefix_space"]
    if first["type"] == "Split":
        known = ((training.PIECE_PATTERN, "Isolated", False), (training.WORD_PATTERN, "Removed", True))
        return (first["pattern"].get("Regex"), first["behavior"], first["invert"]) in known
    return first["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")


def _cut_is_safe(text: str, ends: list[int]) -> bool:
    """Do all sentences end before white space (Chinese and Japanese ones need not), and is all of that real space?"""
    if any(character in text for character in DOUBTFUL):
        return False
    return all(text[place] in characters.WHITE_SPACE for place in ends[:-1])


def _assemble(count: int, tokens: Tokens, sentences: np.ndarray, of_document: np.ndarray) -> Encoded:
    """Settles bounds: a sentence starts at its first token that is not white space, and none is empty."""
    total = len(tokens.flagged)
    first_of_document = np.ones(len(of_document), bool)
    first_of_document[1:] = of_document[1:] != of_document[:-1]
    starts = sentences[first_of_document]  # every document has a sentence
    ends = np.append(starts[1:], total)
    solid = np.arange(total + 1)  # the next token that is not white space
    solid[:total][(tokens.flagged & BLANK) != 0] = total
    solid = np.minimum.accumulate(solid[::-1])[::-1]
    moved = np.where(first_of_document, sentences, solid[sentences])
    settled = np.unique(moved[moved < ends[of_document]])
    kept = np.flatnonzero(ends > starts)
    ids, word_starts = tokens.flagged & ID, (tokens.flagged & START) != 0
    letters, surfaces = np.zeros(0, np.int64), b""
    if tokens.sizes is not None and tokens.spelled is not None:
        letters = np.cumsum(tokens.sizes, dtype=np.int64) - tokens.sizes
        surfaces = tokens.spelled.tobytes()
    return Encoded(count, kept, ids, word_starts, starts[kept], settled, surfaces, letters)


def _join(parts: list[Encoded]) -> Encoded:
    tokens = np.cumsum([0, *(len(part.ids) for part in parts)])
    letters = np.cumsum([0, *(len(part.surfaces) for part in parts)])
    documents = np.cumsum([0, *(part.count for part in parts)])
    return Encoded(
        count=int(documents[-1]),
        kept=np.concatenate([part.kept + base for part, base in zip(parts, documents, strict=False)]),
        ids=np.concatenate([part.ids for part in parts]),
        word_starts=np.concatenate([part.word_starts for part in parts]),
        documents=np.concatenate([part.documents + base for part, base in zip(parts, tokens, strict=False)]),
        sentences=np.concatenate([part.sentences + base for part, base in zip(parts, tokens, strict=False)]),
        surfaces=b"".join(part.surfaces for part in parts),
        letters=np.concatenate([part.letters + base for part, base in zip(parts, letters, strict=False)]),
    )
