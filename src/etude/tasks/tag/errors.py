"""What a tagger got wrong, sentence by sentence, for a person to look at (transfer/error_report.py).

Where tags write chunks, the chunks that only one side has are shown, else the words whose tags differ. A sentence is
the worse the more words are wrong and the surer the tagger was of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from etude.tasks.base import Answer, ErrorExample
from etude.tasks.tag.encodings import Scheme, Span, parse_tag, spans
from etude.tasks.tag.sentences import TaggedSentence


def judge(item: TaggedSentence, answer: Answer, scheme: Scheme | None) -> ErrorExample:
    gold, predicted = item.tags or [], answer["tags"]
    between = "" if item.characters else " "
    wrong = [place for place, word in enumerate(item.words) if gold[place] != predicted[place] and not word.isspace()]
    if scheme is not None:
        gold_chunks, predicted_chunks = spans(gold), spans(predicted)
        missed = [chunk for chunk in gold_chunks if chunk not in predicted_chunks]
        invented = [chunk for chunk in predicted_chunks if chunk not in gold_chunks]
        texts = [_chunks(chunks, item.words, between) for chunks in (missed, invented)]
        correct = not missed and not invented
    else:
        texts = ["  ".join(f"{item.words[place]}/{tags[place]}" for place in wrong) for tags in (gold, predicted)]
        correct = not wrong
    return ErrorExample(
        text=between.join(item.words),
        gold=texts[0] or "(nothing)",
        predicted=texts[1] or "(nothing)",
        correct=correct,
        loss=float(sum(answer["scores"][place] for place in wrong)),
    )


def _chunks(chunks: Sequence[Span], words: Sequence[str], between: str) -> str:
    return "; ".join(f"{kind}: {between.join(words[start:stop])}" for kind, start, stop in chunks)


def confusion(gold: Sequence[str], predicted: Sequence[str], scheme: Scheme | None) -> Counter[tuple[str, str]]:
    """How often a word of one type was taken for another: types of chunks, or the tags themselves."""
    return Counter((_type(left, scheme), _type(right, scheme)) for left, right in zip(gold, predicted, strict=True))


def _type(tag: str, scheme: Scheme | None) -> str:
    return tag if scheme is None or tag == "O" else parse_tag(tag).kind
