"""Texts, strategies and trained tokenizers that several tests of tokenizers share."""

from __future__ import annotations

from hypothesis import strategies as st

from etude.text.tokenizer.tokenizer import Tokenizer

ENGLISH = [
    "The king's three dogs didn't bark at 3.5 p.m. yesterday, did they? “No,” she said; it cost $1,200.",
    "A naïve café owner in Zürich read well-known stories about kings and dogs: low, lower, lowest, newer, newest.",
]
KOREAN = [
    "모스크바 지하철은 1935년 5월 15일에 개통되었으며, 소비에트 연방의 첫 번째 지하철이다.",
    "지하철은 오전 5시 30분에 개장하고, 다음날 오전 1시까지 영업한다. 정말이에요? 그렇습니다!",
]
TEXTS = [*ENGLISH, *KOREAN] * 3
SPECS = ["word:300", "wordpiece:300", "bpe:400", "bytebpe:400", "unigram:300", "char"]
LOSSLESS = ["bpe:1500", "bytebpe:400", "unigram:1500", "char"]

_trained: dict[str, Tokenizer] = {}


def trained(spec: str) -> Tokenizer:
    if spec not in _trained:
        _trained[spec] = Tokenizer.train(spec, TEXTS)
    return _trained[spec]


# Characters that real text mixes: letters of several scripts, jamo, marks, digits, symbols, every kind of space.
LETTERS = (
    "aAbzéÉßİıſŉǅøΣσς김밥가힣ᄀ\u1161\u11a8漢字かжक\u093f\u0301\u200d🙂_'’“”-–—.,!?…()[]$·«»0123９½²\u00ad\u200b\ufeff"
)
spaces = st.sampled_from(
    [
        "",
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "\n\n",
        " \n",
        "\n ",
        "\t",
        "\t ",
        "\u00a0",
        "\u2028",
        "\x85",
        "\x1c",
        "\r\n",
        "\u3000",
    ]
)
mixed = st.lists(st.tuples(st.text(LETTERS, max_size=8), spaces), max_size=12).map(
    lambda pairs: "".join(a + b for a, b in pairs)
)
