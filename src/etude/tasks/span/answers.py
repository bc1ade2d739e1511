"""How answers in words are scored: the official rules of SQuAD, KorQuAD, KLUE and CoQA.

SQuAD (Rajpurkar et al. 2016, 2018; its evaluation script): lower case, ASCII punctuation deleted, the words a, an,
the replaced by a space, white space collapsed. Exact match is equality of what is left, F1 the overlap of its
words as a bag. The best over the references counts. Version 2: with an empty side, 1 if both are empty, else 0; the
references of a question without an answer are [""]. Version 1.1 knows no empty answers: no common word is 0.
KorQuAD 1.0: quotation marks and brackets become spaces, no article step, F1 over characters without spaces.
KLUE's MRC ("ROUGE-W" in its tables): F1 of the longest common run of characters, after SQuAD's clean-up without
articles. Its code means to blank quotation marks too, but its pattern practically never fits; that is kept. In
references of 200 characters and more its matcher starts no run at a frequent character; here every run counts.
CoQA: SQuAD's normalisation; with n > 1 references the mean over i of the best against all but reference i.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Literal

Rules = Literal["squad1", "squad2", "korquad", "klue", "coqa"]

ROUNDING, MARGIN = 1e-5, 1e-3  # scores closer than the one may be equal; a threshold lies off all of them by the other
ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
KORQUAD = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalise(text: str) -> str:
    """SQuAD's: what two answers are compared by."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def normalise_korquad(text: str) -> str:
    return " ".join(text.translate(KORQUAD).lower().translate(PUNCTUATION).split())


def normalise_klue(text: str) -> str:
    return " ".join(text.lower().translate(PUNCTUATION).split())


NORMALISE: dict[str, Callable[[str], str]] = {
    "squad1": normalise,
    "squad2": normalise,
    "korquad": normalise_korquad,
    "klue": normalise_klue,
    "coqa": normalise,
}


def choose_references(texts: Sequence[str], rules: Rules) -> list[str]:
    """The references of a question, [""] where it has none.

    SQuAD 2.0's script leaves out those that its clean-up leaves nothing of ("the"); the others keep them, and in CoQA
    their number counts.
    """
    references = [text for text in texts if normalise(text)] if rules == "squad2" else list(texts)
    return references or [""]


def exact(prediction: str, references: Sequence[str], rules: Rules = "squad2") -> float:
    """1 where the prediction is one of the references, by the rules."""
    clean = NORMALISE[rules]
    return _best([float(clean(prediction) == clean(reference)) for reference in references], rules)


def f1(prediction: str, references: Sequence[str], rules: Rules = "squad2") -> float:
    """The best F1 over the references; [""] is the reference of a question without an answer."""
    return _best([_f1(prediction, reference, rules) for reference in references], rules)


def _best(values: list[float], rules: Rules) -> float:
    """The best value; in CoQA, where people gave several answers, the mean of the best without each one of them.

    So a model is measured as a person is, who is compared with the others.
    """
    if rules != "coqa" or len(values) == 1:
        return max(values)
    return sum(max(values[:i] + values[i + 1 :]) for i in range(len(values))) / len(values)


def _f1(prediction: str, reference: str, rules: Rules) -> float:
    if rules == "klue":
        return _longest_run(normalise_klue(prediction), normalise_klue(reference))
    predicted, gold = _parts(prediction, rules), _parts(reference, rules)
    if rules in ("squad2", "coqa") and not (predicted and gold):
        return float(predicted == gold)
    return overlap(predicted, gold)


def _parts(text: str, rules: Rules) -> list[str]:
    """Words, or KorQuAD's characters."""
    if rules == "korquad":
        return [letter for letter in normalise_korquad(text) if letter != " "]
    return normalise(text).split()


def overlap(predicted: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags."""
    common = sum((Counter(predicted) & Counter(gold)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _longest_run(predicted: str, gold: str) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    matcher = SequenceMatcher(None, predicted, gold, autojunk=False)
    size = matcher.find_longest_match(0, len(predicted), 0, len(gold)).size
    if not size:
        return 0.0
    precision, recall = size / len(predicted), size / len(gold)
    return 2 * precision * recall / (precision + recall)


def best_threshold(
    no_answer: Sequence[float], scores: Sequence[float], answerable: Sequence[bool], empty: Sequence[bool]
) -> tuple[float, float]:
    """SQuAD 2.0's threshold: (best mean score, threshold), a question being null where its score lies above it.

    `no_answer` is the score of having no answer, `scores` the value of its best span (EM or F1), `empty`
    whether that span is empty anyway. The walk starts with every question null, goes up in `no_answer` and keeps
    the first best prefix, as the official script does.
    """
    current = best = float(sum(not has for has in answerable))
    threshold = 0.0
    for number in sorted(range(len(no_answer)), key=lambda number: no_answer[number]):
        if answerable[number]:
            current += scores[number]
        elif not empty[number]:
            current -= 1.0
        if current > best:
            best, threshold = current, no_answer[number]
    return best / max(1, len(no_answer)), float(threshold)


def clear_of(threshold: float, values: Sequence[float]) -> float:
    """A threshold that is one of the values, moved halfway to the next above it: the same values lie above, and none so
    near that rounding decides (other company in a batch, another machine)."""
    if threshold not in values:
        return threshold
    above = [value for value in values if value > threshold + ROUNDING]
    return (threshold + min(above)) / 2 if above else threshold + MARGIN
