"""Batch encoding of documents with cached words: the `tokenizers` library sees each new word once.

For tokenizers whose pre-tokenizer never joins text across white space (BERT's, GPT-2's, and all trained here) the
tokens of a document are those of its pieces end to end: each run of white space with what follows it. A cache
(word_cache.py) holds the tokens of pieces; new pieces are split into words where the pre-tokenizer is known
(pre_tokenization.py), and only new words reach the library, in one batch. The ids equal those that the library gives
for the whole document (held by a property test); with any other tokenizer the library encodes whole documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, groupby

import numpy as np

from etude.text.tokenizer import characters, training
from etude.text.tokenizer.pre_tokenization import build_pre_tokenizer, list_steps
from etude.text.tokenizer.token_spans import PieceOffsets, Pieces, Spans, find_tokens, select_spans
from etude.text.tokenizer.tokenizer import Tokenizer, encode_flat
from etude.text.tokenizer.word_cache import ID_BITS, WHITE_SPACE, WORD_START, SpanCache, Tokens, WordCache

# white space to one tokenizer, and to BERT's nothing at all
AMBIGUOUS_SPACE = "\v\f\x85"


@dataclass
class EncodedBatch:
    """Encoded documents end to end, without those that have no token."""

    count: int  # documents given
    nonempty: np.ndarray  # numbers of the documents that have tokens
    ids: np.ndarray  # (N,) uint32
    word_starts: np.ndarray  # (N,) bool
    documents: np.ndarray  # (len(nonempty),) int64: first token of each
    sentences: np.ndarray  # (sentences,) int64: first token of each
    surfaces: bytes  # word-level tokenizers: the letters of all tokens
    letters: np.ndarray  # (N,) int64: where each token's letters start
    spans: np.ndarray  # (spans, 2) int64: first token and end of each span of characters that was given


class BatchEncoder:
    """Encodes documents, many at a time, with a cache that lives as long as the encoder."""

    def __init__(self, tokenizer: Tokenizer, cache_bytes: int) -> None:
        """`cache_bytes` bounds the memory of the cache."""
        self.backend = tokenizer.backend
        self.surfaces = tokenizer.word_level
        self.splits_at_space = is_split_at_space(tokenizer)
        self.pre_tokenizer = build_pre_tokenizer(tokenizer) if self.splits_at_space else None
        self.space_ids = [id for name in (" ", "\n", "Ġ", "Ċ") if (id := tokenizer.id(name)) is not None]
        piece_bytes = cache_bytes if self.pre_tokenizer is None else 2 * cache_bytes // 3
        self.piece_cache = SpanCache(self._tokenize_pieces, piece_bytes, self.surfaces)
        self.word_cache = WordCache(self._tokenize_words, cache_bytes // 3, self.surfaces)
        self.piece_offsets = PieceOffsets(self._tokenize_with_library)

    def encode(self, texts: list[str], ends: list[list[int]], spans: Spans | None = None) -> EncodedBatch:
        """Encode NFC texts, none empty, each with the ends of its sentences (see text/prepare/sentences.py).

        spans: spans of characters whose tokens are wanted: number of the text, start and end of each, by text. Both
        ends are characters other than white space.
        """
        runs = groupby(zip(texts, ends, strict=True), lambda pair: self.splits_at_space and _has_plain_spaces(*pair))
        encoded = []
        first = 0
        for cacheable, run in runs:
            some_texts, some_ends = zip(*run, strict=True)
            encode = self._encode_with_cache if cacheable else self._encode_with_library
            some_spans = select_spans(spans, first, first + len(some_texts))
            encoded.append(encode(list(some_texts), list(some_ends), some_spans))
            first += len(some_texts)
        return encoded[0] if len(encoded) == 1 else _join(encoded)

    def _encode_with_cache(self, texts: list[str], ends: list[list[int]], spans: Spans) -> EncodedBatch:
        text = "".join(texts)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        firsts = np.cumsum([0, *map(len, texts)])
        space = characters.class_table()[codes] == characters.SPACE
        cut = space.copy()
        cut[1:] &= ~space[:-1]
        cut[firsts[:-1]] = True
        starts = np.flatnonzero(cut)
        tokens = self.piece_cache.look_up(text, codes, starts)
        before_piece = np.concatenate([[0], np.cumsum(tokens.lengths)])
        # every sentence starts where a piece does
        places = np.concatenate([[0, *places[:-1]] for places in ends]).astype(np.int64)
        document_of = np.repeat(np.arange(len(texts)), [len(places) for places in ends])
        sentence_starts = before_piece[np.searchsorted(starts, places + firsts[document_of])]
        numbers, begins, stops = spans
        pieces = Pieces(text, starts, before_piece, space)
        token_spans = pieces.find_tokens(begins + firsts[numbers], stops + firsts[numbers], tokens, self.piece_offsets)
        return _assemble(len(texts), tokens, sentence_starts, document_of, token_spans)

    def _tokenize_pieces(self, pieces: list[str]) -> Tokens:
        """Tokenize pieces that are not in the cache."""
        if self.pre_tokenizer is None:
            return self._tokenize_with_library(pieces)
        splits = list(map(self.pre_tokenizer.split, pieces))
        is_common = np.fromiter((words is not None for words in splits), bool, len(splits))
        tokens = self.word_cache.look_up(list(chain.from_iterable(words for words in splits if words is not None)))
        before_word = np.concatenate([[0], np.cumsum(tokens.lengths)])
        bounds = before_word[np.cumsum([0, *(len(words) for words in splits if words is not None)])]
        common = tokens.regroup(np.diff(bounds))
        if is_common.all():
            return common
        rest = self._tokenize_with_library(
            [piece for piece, words in zip(pieces, splits, strict=True) if words is None]
        )
        order = np.empty(len(splits), np.int64)
        order[is_common] = np.arange(is_common.sum())
        order[~is_common] = is_common.sum() + np.arange((~is_common).sum())
        return Tokens.concatenate([common, rest]).select(order)

    def _tokenize_words(self, words: list[str]) -> Tokens:
        """Tokenize words of the pre-tokenizer.

        In one of letters and digits only the first token starts a word.
        """
        assert self.pre_tokenizer is not None
        is_plain = np.fromiter((self.surfaces or word.lstrip(" ").isalnum() for word in words), bool, len(words))
        inputs = [self.pre_tokenizer.to_model_input(word) for word, plain in zip(words, is_plain, strict=True) if plain]
        encoding = self.pre_tokenizer.model.encode(inputs, is_pretokenized=True, add_special_tokens=False)
        ids = np.array(encoding.ids, np.uint32)
        word_numbers = np.array(encoding.word_ids, np.int64)
        first = np.ones(len(ids), bool)
        first[1:] = word_numbers[1:] != word_numbers[:-1]
        flagged = ids | np.where(first, WORD_START, 0) | np.where(np.isin(ids, self.space_ids), WHITE_SPACE, 0)
        lengths = np.bincount(word_numbers, minlength=len(inputs))
        surfaces = [word.encode() for word in words] if self.surfaces else None  # one token a word
        plain_tokens = Tokens.build(flagged.astype(np.uint32), lengths, surfaces)
        if is_plain.all():
            return plain_tokens
        rest = self._tokenize_with_library([word for word, plain in zip(words, is_plain, strict=True) if not plain])
        order = np.empty(len(words), np.int64)
        order[is_plain] = np.arange(len(inputs))
        order[~is_plain] = len(inputs) + np.arange(len(words) - len(inputs))
        return Tokens.concatenate([plain_tokens, rest]).select(order)

    def _tokenize_with_library(self, texts: list[str]) -> Tokens:
        """Tokenize texts with the `tokenizers` library."""
        flat = encode_flat(self.backend, texts)
        flags = np.where(flat.word_starts, WORD_START, 0) | np.where(flat.white_space, WHITE_SPACE, 0)
        surfaces = None
        if self.surfaces:
            text_numbers = np.repeat(np.arange(len(texts)), flat.lengths).tolist()
            places = zip(text_numbers, flat.offsets.tolist(), strict=True)
            surfaces = [texts[number][first:last].encode() for number, (first, last) in places]
        flagged = flat.ids.astype(np.uint32) | flags
        return Tokens.build(flagged.astype(np.uint32), flat.lengths, surfaces, flat.offsets)

    def _encode_with_library(self, texts: list[str], ends: list[list[int]], spans: Spans) -> EncodedBatch:
        tokens = self._tokenize_with_library(texts)
        assert tokens.offsets is not None
        firsts = np.cumsum(tokens.lengths) - tokens.lengths
        sentence_starts = []
        for first, length, places in zip(firsts, tokens.lengths, ends, strict=True):
            # the first token that starts at or after each sentence's start; offsets may step back within a character
            rising = np.maximum.accumulate(tokens.offsets[first : first + length, 0])
            sentence_starts.append(first + np.searchsorted(rising, [0, *places[:-1]]))
        document_of = np.repeat(np.arange(len(texts)), [len(places) for places in ends])
        token_spans = find_tokens(tokens, spans)
        return _assemble(len(texts), tokens, np.concatenate(sentence_starts), document_of, token_spans)


def is_split_at_space(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a text are those of its pieces, split before white space.

    True for known components only.
    """
    components = tokenizer.components
    for added in components.get("added_tokens") or []:
        # special tokens are read as plain letters; others are searched for in the text before pre-tokenization
        if not added["special"] and (
            added["lstrip"] or added["rstrip"] or added["content"].split() != [added["content"]]
        ):
            return False
    if components["model"].get("dropout"):
        return False
    normalizers = list_steps(components.get("normalizer"), "normalizers")
    if any(step["type"] not in ("NFC", "NFKC", "Lowercase", "BertNormalizer") for step in normalizers):
        return False
    steps = list_steps(components.get("pre_tokenizer"), "pretokenizers")
    if not steps:
        return False
    first, rest = steps[0], steps[1:]
    if any(step["type"] not in ("Digits", "Punctuation", "BertPreTokenizer") for step in rest):
        return False  # these split a piece further, looking at nothing outside it
    if first["type"] == "ByteLevel":
        return first["use_regex"] and not first["add_prefix_space"]
    if first["type"] == "Split":
        known = ((training.PIECE_PATTERN, "Isolated", False), (training.WORD_PATTERN, "Removed", True))
        return (first["pattern"].get("Regex"), first["behavior"], first["invert"]) in known
    return first["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")


def _has_plain_spaces(text: str, ends: list[int]) -> bool:
    """Whether all sentences end before white space that every tokenizer knows.

    Chinese and Japanese sentences need not.
    """
    if any(character in text for character in AMBIGUOUS_SPACE):
        return False
    return all(text[place] in characters.WHITE_SPACE for place in ends[:-1])


def _assemble(
    count: int, tokens: Tokens, sentences: np.ndarray, document_of: np.ndarray, spans: np.ndarray
) -> EncodedBatch:
    """Build the batch: a sentence starts at its first token that is not white space, and none is empty."""
    total = len(tokens.flagged)
    first_of_document = np.ones(len(document_of), bool)
    first_of_document[1:] = document_of[1:] != document_of[:-1]
    starts = sentences[first_of_document]  # every document has a sentence
    ends = np.append(starts[1:], total)
    solid = np.arange(total + 1)  # the next token that is not white space
    solid[:total][(tokens.flagged & WHITE_SPACE) != 0] = total
    solid = np.minimum.accumulate(solid[::-1])[::-1]
    moved = np.where(first_of_document, sentences, solid[sentences])
    sentence_starts = np.unique(moved[moved < ends[document_of]])
    nonempty = np.flatnonzero(ends > starts)
    ids, word_starts = tokens.flagged & ID_BITS, (tokens.flagged & WORD_START) != 0
    letters, surfaces = np.zeros(0, np.int64), b""
    if tokens.byte_lengths is not None and tokens.letters is not None:
        letters = np.cumsum(tokens.byte_lengths, dtype=np.int64) - tokens.byte_lengths
        surfaces = tokens.letters.tobytes()
    return EncodedBatch(count, nonempty, ids, word_starts, starts[nonempty], sentence_starts, surfaces, letters, spans)


def _join(parts: list[EncodedBatch]) -> EncodedBatch:
    tokens = np.cumsum([0, *(len(part.ids) for part in parts)])
    letters = np.cumsum([0, *(len(part.surfaces) for part in parts)])
    documents = np.cumsum([0, *(part.count for part in parts)])
    return EncodedBatch(
        count=int(documents[-1]),
        nonempty=np.concatenate([part.nonempty + base for part, base in zip(parts, documents, strict=False)]),
        ids=np.concatenate([part.ids for part in parts]),
        word_starts=np.concatenate([part.word_starts for part in parts]),
        documents=np.concatenate([part.documents + base for part, base in zip(parts, tokens, strict=False)]),
        sentences=np.concatenate([part.sentences + base for part, base in zip(parts, tokens, strict=False)]),
        surfaces=b"".join(part.surfaces for part in parts),
        letters=np.concatenate([part.letters + base for part, base in zip(parts, letters, strict=False)]),
        spans=np.concatenate([part.spans + base for part, base in zip(parts, tokens, strict=False)]),
    )
