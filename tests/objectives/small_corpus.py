"""A corpus in memory from documents of sentences of ids, and the word-level tokenizer those ids belong to."""

from __future__ import annotations

import json
from functools import cache

from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.tokenizer import Tokenizer

VOCAB = 40


@cache
def tokenizer(vocab: int = VOCAB) -> Tokenizer:
    """Special tokens at 0..5, then the words w6, w7 ..."""
    words = [*TRAINED_SPECIALS, *(f"w{number}" for number in range(len(TRAINED_SPECIALS), vocab))]
    model = {"type": "WordLevel", "vocab": {word: number for number, word in enumerate(words)}, "unk_token": "[UNK]"}
    return Tokenizer(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}))


SPECIAL = tokenizer().special


def small_corpus(documents: list[list[list[int]]]) -> Corpus:
    return Corpus.from_documents(documents, tokenizer())
