"""BLEU and chrF: those of sacrebleu, with the tokenizer that was named and no other."""

from __future__ import annotations

import importlib.util
import unicodedata

import pytest

from etude.errors import UserError
from etude.tasks.translate.pairs import SentencePair, parse_pair
from etude.tasks.translate.scores import choose_tokenizer, score_translations

ENGLISH = ["The cat sat on the mat.", "A dog ran home."]
KOREAN = ["고양이가 매트 위에 앉았다.", "개가 집으로 뛰어갔다."]
CHINESE = ["我昨天在图书馆读了一本书。", "他每天早上喝咖啡。"]
JAPANESE = ["私は昨日図書館で本を読みました。", "彼は毎朝コーヒーを飲みます。"]


def test_the_tokenizer_follows_the_language() -> None:
    assert choose_tokenizer(ENGLISH) == "13a" and choose_tokenizer(["..."]) == "13a"
    has_mecab = importlib.util.find_spec("mecab_ko") is not None
    assert choose_tokenizer(KOREAN) == ("ko-mecab" if has_mecab else "char")
    assert choose_tokenizer(CHINESE) == choose_tokenizer(["東京大学"]) == "zh"
    has_mecab = all(importlib.util.find_spec(package) is not None for package in ("MeCab", "ipadic"))
    assert choose_tokenizer(JAPANESE) == ("ja-mecab" if has_mecab else "char")
    assert choose_tokenizer([*ENGLISH, "Tokyo is 東京 (とうきょう)."]) == "13a"


@pytest.mark.parametrize("references", [CHINESE, JAPANESE], ids=["Chinese", "Japanese"])
def test_languages_without_spaces_are_split(references: list[str]) -> None:
    """By 13a a sentence is one word: one other character in it, and nothing of it is right."""
    pytest.importorskip("sacrebleu")
    wrong = [references[0].replace("本", "詩"), references[1]]
    assert score_translations(wrong, references, "13a")[0].value < 1
    assert 50 < score_translations(wrong, references)[0].value < 100


def test_scores_are_those_of_the_library() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    wrong = ["The cat sat on a mat.", "A dog ran home."]
    bleu, chrf = score_translations(wrong, ENGLISH)
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(wrong, [ENGLISH]).score) and 50 < bleu.value < 100
    assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(wrong, [ENGLISH]).score)
    assert "tok:13a" in bleu.signature and str(bleu).startswith("BLEU ")
    assert score_translations(KOREAN, KOREAN, "char")[0].value == pytest.approx(100)
    assert "tok:char" in score_translations(KOREAN, KOREAN, "char")[0].signature


def test_decomposed_hangul_is_the_same_reference() -> None:
    for text in (KOREAN[0], unicodedata.normalize("NFD", KOREAN[0])):
        assert parse_pair({"source": text, "target": text}, {}, "f:1") == SentencePair(KOREAN[0], KOREAN[0])


def test_mistakes_are_told() -> None:
    pytest.importorskip("sacrebleu")
    with pytest.raises(UserError, match="1 translations and 2 references"):
        score_translations(["a"], ENGLISH)
    with pytest.raises(UserError, match="nothing to score"):
        score_translations([], [])
    with pytest.raises(UserError, match="'14a' is not a tokenizer of BLEU"):
        score_translations(ENGLISH, ENGLISH, "14a")
    if importlib.util.find_spec("mecab_ko") is None:
        with pytest.raises(UserError, match="ko-mecab of BLEU needs mecab_ko"):
            score_translations(KOREAN, KOREAN, "ko-mecab")
