"""Batch encoding of documents with cached words: the `tokenizers` library sees each new word once.

For tokenizers whose pre-tokenizer never joins text across white space (BERT's, GPT-2's, and all trained here) the
tokens of a document are those of its pieces end to end: each run of white space with what follows it. A cache
(word_cache.py) holds the tokens of pieces; new pieces are split into words where the pre-tokenizer is known
(pre_tokenization.py), and only new words reach the library, in one batch. The ids equal those that the library gives
for the whole document (held by a property test); with any other tokenizer the library encodes whole documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from etude.text.tokenizer import training
from etude.text.tokenizer.pre_tokenization import build_pre_tokenizer, list_steps
from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.token_spans import PieceOffsets, Spans, find_tokens, find_tokens_of_pieces, select_spans
from etude.text.tokenizer.tokenizer import Tokenizer, encode_flat, explain_failure
from etude.text.tokenizer.word_cache import ID_BITS, WHITE_SPACE, WORD_START, SpanCache, SpanList, Tokens

# white space to one tokenizer, and to BERT's nothing at all
AMBIGUOUS_SPACE = (b"\v", b"\f", "\x85".encode())


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
        self.word_cache = SpanCache(self._tokenize_words, cache_bytes // 3, self.surfaces)
        self.piece_offsets = PieceOffsets(self._tokenize_with_library)

    def encode(self, batch: TextBatch, sentences: np.ndarray, spans: Spans | None = None) -> EncodedBatch:
        """Encode NFC texts, with the positions at which sentences start (see text/prepare/sentence_starts.py).

        spans: spans of characters whose tokens are wanted: number of the text, start and end of each, by text. Both
        ends are characters other than white space.
        """
        is_cacheable = self._find_cacheable(batch, sentences)
        if is_cacheable.all():
            return self._encode_with_cache(batch, sentences, select_spans(spans, 0, len(batch)))
        bounds = [0, *(np.flatnonzero(np.diff(is_cacheable)) + 1).tolist(), len(batch)]
        encoded = []
        for first, last in pairwise(bounds):
            part = batch.slice(first, last) if last - first < len(batch) else batch
            encode = self._encode_with_cache if is_cacheable[first] else self._encode_with_library
            low, high = np.searchsorted(sentences, batch.bounds[[first, last]])
            part_spans = select_spans(spans, first, last)
            encoded.append(encode(part, sentences[low:high] - batch.bounds[first], part_spans))
        return encoded[0] if len(encoded) == 1 else _join(encoded)

    def _find_cacheable(self, batch: TextBatch, sentences: np.ndarray) -> np.ndarray:
        """Whether all sentences of each text end before white space that every tokenizer knows, (T,) bool.

        Chinese and Japanese sentences need not.
        """
        is_cacheable = np.full(len(batch), self.splits_at_space)
        inside = sentences[~batch.is_piece_start[sentences]]
        is_cacheable[batch.find_texts(inside)] = False
        for space in AMBIGUOUS_SPACE:
            if (space.isascii() or len(batch.leads)) and space in batch.encoded:
                is_cacheable &= np.array([space.decode() not in text for text in batch.texts])
        return is_cacheable

    def _encode_with_cache(self, batch: TextBatch, sentences: np.ndarray, spans: Spans) -> EncodedBatch:
        tokens = self.piece_cache.look_up(SpanList(batch.encoded, batch.words, batch.starts, batch.lengths))
        before_piece = np.zeros(len(tokens.lengths) + 1, np.int64)
        np.cumsum(tokens.lengths, out=before_piece[1:])
        # every sentence starts where a piece does
        sentence_starts = before_piece[np.searchsorted(batch.starts, sentences)]
        if len(spans[0]):
            firsts = batch.to_characters(batch.bounds[spans[0]])
            begins, stops = (batch.to_bytes(places + firsts) for places in spans[1:])
            token_spans = find_tokens_of_pieces(batch, begins, stops, tokens, before_piece, self.piece_offsets)
        else:
            token_spans = np.zeros((0, 2), np.int64)
        return _assemble(tokens, sentence_starts, batch.count_in_texts(sentences), token_spans)

    def _tokenize_pieces(self, pieces: SpanList) -> Tokens:
        """Tokenize pieces that are not in the cache."""
        if self.pre_tokenizer is None:
            return self._tokenize_with_library(pieces.decode())
        words, counts, is_common = self.pre_tokenizer.split_pieces(pieces)
        tokens = self.word_cache.look_up(words)
        before_word = np.concatenate([[0], np.cumsum(tokens.lengths)])
        bounds = before_word[np.cumsum([0, *counts[is_common]])]
        common = tokens.regroup(np.diff(bounds))
        if is_common.all():
            return common
        rest = self._tokenize_with_library(pieces.select(np.flatnonzero(~is_common)).decode())
        return _merge(common, rest, is_common)

    def _tokenize_words(self, spans: SpanList) -> Tokens:
        """Tokenize words of the pre-tokenizer that are not in the cache.

        In one of letters and digits only the first token starts a word.
        """
        assert self.pre_tokenizer is not None
        is_plain = np.ones(len(spans), bool) if self.surfaces else self.pre_tokenizer.find_plain(spans)
        inputs = self.pre_tokenizer.to_model_inputs(spans if is_plain.all() else spans.select(np.flatnonzero(is_plain)))
        with explain_failure():
            tokenized = list(map(self.pre_tokenizer.model.tokenize, inputs))
        lengths = np.fromiter(map(len, tokenized), np.int64, len(tokenized))
        ids = np.array([token.id for tokens in tokenized for token in tokens], np.uint32)
        flagged = ids | np.where(np.isin(ids, self.space_ids), WHITE_SPACE, np.uint32(0))
        flagged[(np.cumsum(lengths) - lengths)[lengths > 0]] |= WORD_START
        if self.surfaces:  # one token a word
            return Tokens(flagged, lengths, spans.lengths, np.frombuffer(spans.encoded, np.uint8))
        plain_tokens = Tokens(flagged, lengths)
        if is_plain.all():
            return plain_tokens
        rest = self._tokenize_with_library(spans.select(np.flatnonzero(~is_plain)).decode())
        return _merge(plain_tokens, rest, is_plain)

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

    def _encode_with_library(self, batch: TextBatch, sentences: np.ndarray, spans: Spans) -> EncodedBatch:
        tokens = self._tokenize_with_library(list(batch.texts))
        assert tokens.offsets is not None
        firsts = np.cumsum(tokens.lengths) - tokens.lengths
        counts = batch.count_in_texts(sentences)
        sentence_starts = []
        places = np.split(batch.to_characters(sentences), np.cumsum(counts)[:-1])
        for first, length, own in zip(firsts.tolist(), tokens.lengths.tolist(), places, strict=True):
            # the first token that starts at or after each sentence's start; offsets may step back within a character
            rising = np.maximum.accumulate(tokens.offsets[first : first + length, 0])
            sentence_starts.append(first + np.searchsorted(rising, own - own[0]))
        return _assemble(tokens, np.concatenate(sentence_starts), counts, find_tokens(tokens, spans))


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
    drops_space = first["type"] in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
    if not drops_space and any(step["type"] == "BertNormalizer" for step in normalizers):
        return False  # it puts spaces around Chinese letters and drops others: they join the spaces of the next piece
    if first["type"] == "ByteLevel":
        return first["use_regex"] and not first["add_prefix_space"]
    if first["type"] == "Split":
        known = ((training.PIECE_PATTERN, "Isolated", False), (training.WORD_PATTERN, "Removed", True))
        return (first["pattern"].get("Regex"), first["behavior"], first["invert"]) in known
    return drops_space


def _assemble(tokens: Tokens, sentences: np.ndarray, counts: np.ndarray, spans: np.ndarray) -> EncodedBatch:
    """Build the batch: a sentence starts at its first token that is not white space, and none is empty.

    sentences: token at which each starts, ascending; counts: sentences of each document, at least one.
    """
    first_sentences = np.cumsum(counts) - counts
    starts = sentences[first_sentences]  # of documents
    ends = np.append(starts[1:], len(tokens.flagged))
    limits = np.repeat(ends, counts)
    is_first = np.zeros(len(sentences), bool)
    is_first[first_sentences] = True
    moved = sentences.copy()
    moving = np.flatnonzero(~is_first & (moved < limits))
    while len(moving := moving[(tokens.flagged[moved[moving]] & WHITE_SPACE) != 0]):
        moved[moving] += 1
        moving = moving[moved[moving] < limits[moving]]
    moved = moved[moved < limits]
    is_new = np.ones(len(moved), bool)
    is_new[1:] = moved[1:] != moved[:-1]
    nonempty = np.flatnonzero(ends > starts)
    ids, word_starts = tokens.flagged & ID_BITS, (tokens.flagged & WORD_START) != 0
    letters, surfaces = np.zeros(0, np.int64), b""
    if tokens.byte_lengths is not None and tokens.letters is not None:
        letters = np.cumsum(tokens.byte_lengths, dtype=np.int64) - tokens.byte_lengths
        surfaces = tokens.letters.tobytes()
    return EncodedBatch(
        len(counts), nonempty, ids, word_starts, starts[nonempty], moved[is_new], surfaces, letters, spans
    )


def _merge(chosen: Tokens, others: Tokens, is_chosen: np.ndarray) -> Tokens:
    """Return the tokens of words that were tokenized apart in the order of the words."""
    order = np.empty(len(is_chosen), np.int64)
    order[is_chosen] = np.arange(len(chosen.lengths))
    order[~is_chosen] = len(chosen.lengths) + np.arange(len(others.lengths))
    return Tokens.concatenate([chosen, others]).select(order)


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
