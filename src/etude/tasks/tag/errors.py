"""What a tagger got wrong, sentence by sentence, for a person to look at (transfer/error_report.py).

Where tags write chunks, the chunks that only one side has are shown, else the words whose tags differ. A sentence is
the worse the more words are wrong and the surer the tagger was of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from etude.tasks.base import Judged
from etude.tasks.tag.encodings import Scheme, Span, parse_tag, spans
from etude.tasks.tag.sentences import Tagged


def judge(item: Tagged, answer: dict[str, Any], scheme: Scheme | None) -> Judged:
    gold, found = item.tags or [], answer["tags"]
    between = "" if item.characters else " "
    wrong = [place for place, word in enumerate(item.words) if gold[place] != found[place] and not word.isspace()]
    if scheme is not None:
        there, said = spans(gold), spans(found)
        missed, invented = (
            [one for one in mine if one not in others] for mine, others in ((there, said), (said, there))
        )
        told = [_chunks(chunks, item.words, between) for chunks in (missed, invented)]
        right = not missed and not invented
    else:
        told = ["  ".join(f"{item.words[place]}/{tags[place]}" for place in wrong) for tags in (gold, found)]
        right = not wrong
    return Judged(
        text=between.join(item.words),
        gold=told[0] or "(nothing)",
        predicted=told[1] or "(nothing)",
        right=right,
        loss=float(sum(answer["scores"][place] for place in wrong)),
    )


def _chunks(chunks: Sequence[Span], words: Sequence[str], between: str) -> str:
    return "; ".join(f"{kind}: {between.join(words[start:stop])}" for kind, start, stop in chunks)


def confusion(gold: Sequence[str], found: Sequence[str], scheme: Scheme | None) -> Counter[tuple[str, str]]:
    """How often a word of one kind was taken for another: types of chunks, or the tags themselves."""
    kinds = ((_kind(one, scheme), _kind(other, scheme)) for one, other in zip(gold, found, strict=True))
    return Counter(kinds)


def _kind(tag: str, scheme: Scheme | None) -> str:
    return tag if scheme is None or tag == "O" else parse_tag(tag).kind
