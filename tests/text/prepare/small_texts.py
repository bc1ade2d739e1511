"""Texts in English and Korean, and how the tests of preparing look at what became of them."""

from __future__ import annotations

import random
from pathlib import Path

from etude.text.corpus.corpus import Corpus

ENGLISH = ["the", "a", "king", "queen", "dog", "cat", "house", "river", "saw", "took", "gave", "built", "old", "new"]
KOREAN = ["왕은", "왕이", "개가", "고양이를", "집에", "강을", "보았다", "지었다", "오래된", "새로운"]
WORDS = [*ENGLISH, *KOREAN]


def some_text(documents: int, seed: int = 0, longest: int = 12) -> list[str]:
    draw = random.Random(seed)

    def sentence() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(2, 9))).capitalize() + draw.choice([".", "!", "?"])

    texts = []
    for number in range(documents):
        lines = [" ".join(sentence() for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(1, longest))]
        texts.append(f"Title {number}\n" + "\n".join(lines))
    return texts


def as_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def documents_of(corpus: Corpus) -> list[str]:
    return [
        corpus.tokenizer.decode(corpus.tokens(corpus.documents[i], corpus.documents[i + 1]))
        for i in range(len(corpus.documents))
    ]
