"""Entity scores: hand-worked, and equal to seqeval's in both its modes on real and on damaged tags."""

from __future__ import annotations

import json
import lzma
import warnings
from typing import Any

import numpy as np
import pytest

from etude.tasks.tag.encodings import Scheme, convert
from etude.tasks.tag.entities import EntityScore, TagScore, compare
from tests.shared_data import DATA

TASKS = DATA / "tasks"


def sentences(task: str, split: str, count: int) -> list[list[str]]:
    path = TASKS / task / f"{split}.jsonl.xz"
    if not path.exists():
        pytest.skip(f"the data set {task} is not on this machine")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line)["ner"] for _, line in zip(range(count), file, strict=False)]


def damaged(gold: list[list[str]], share: float, seed: int) -> list[list[str]]:
    """Tags replaced, shifted, and cut in two at random, so that most rules are broken somewhere."""
    chance = np.random.default_rng(seed)
    names = sorted({tag for tags in gold for tag in tags})
    found = []
    for tags in gold:
        tags = list(tags)
        for place in range(len(tags)):
            if chance.random() < share:
                tags[place] = names[chance.integers(len(names))]
        if chance.random() < share and len(tags) > 1:
            tags = tags[1:] + tags[:1]
        found.append(tags)
    return found


def made(scheme: Scheme, seed: int) -> list[list[str]]:
    """Sentences of any tags of a scheme whatever, mostly illegal."""
    chance = np.random.default_rng(seed)
    tags = ["O", *(f"{prefix}-{kind}" for prefix in {"iobes": "BIES"}.get(scheme, "BI") for kind in ("x", "y", "z-z"))]
    return [[tags[n] for n in chance.integers(len(tags), size=chance.integers(1, 12))] for _ in range(120)]


def seqeval_scores(gold: Any, predicted: Any, strict: Scheme | None) -> dict[str, list[float]]:
    pytest.importorskip("seqeval", reason="seqeval (the extra 'parity') is not installed")
    from seqeval import scheme as schemes
    from seqeval.metrics import accuracy_score
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support as lenient
    from seqeval.metrics.v1 import precision_recall_fscore_support as exact

    found: dict[str, list[float]] = {"accuracy": [float(accuracy_score(gold, predicted))]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types without a prediction
        for average in ("micro", "macro", None):
            if strict is None:
                values = lenient(gold, predicted, average=average)
            else:
                values = exact(gold, predicted, average=average, scheme=getattr(schemes, strict.upper()))
            found[average or "types"] = np.ravel(values[:3]).tolist()
    return found


def our_scores(gold: Any, predicted: Any, strict: Scheme | None) -> dict[str, list[float]]:
    score, tags = EntityScore(strict), TagScore()
    for one, other in zip(gold, predicted, strict=True):
        score.add(one, other)
        tags.add(one, other)
    types = score.by_type.values()
    return {
        "accuracy": [tags.accuracy],
        "micro": [score.micro.precision, score.micro.recall, score.micro.f1],
        "macro": [score.macro.precision, score.macro.recall, score.macro.f1],
        "types": [getattr(one, name) for name in ("precision", "recall", "f1") for one in types],
    }


@pytest.mark.parametrize("strict", [None, "iob1", "iob2", "iobes"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_to_seqeval_on_tags_of_any_order(strict: Scheme | None, seed: int) -> None:
    scheme: Scheme = strict or ("iobes" if seed else "iob2")
    gold = made(scheme, seed)
    for predicted in (made(scheme, seed + 9), damaged(gold, 0.1, seed), gold):
        predicted = [(one * 12)[: len(other)] for one, other in zip(predicted, gold, strict=True)]
        assert our_scores(gold, predicted, strict) == seqeval_scores(gold, predicted, strict)


@pytest.mark.parametrize(("task", "split"), [("wikigold_ner", "train"), ("wnut17_ner", "valid"), ("klue_ner", "valid")])
@pytest.mark.parametrize("scheme", ["iob1", "iob2", "iobes"])
def test_equal_to_seqeval_on_real_sentences(task: str, split: str, scheme: Scheme) -> None:
    gold = [convert(tags, scheme) for tags in sentences(task, split, 60)]
    for share in (0.0, 0.03, 0.3):
        predicted = damaged(gold, share, seed=7)
        for strict in (None, scheme):
            ours = our_scores(gold, predicted, strict)
            assert ours == seqeval_scores(gold, predicted, strict)
            assert (ours["micro"][2] == 1.0) == (share == 0.0)


def test_by_hand() -> None:
    gold = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG"]
    predicted = ["B-PER", "I-PER", "O", "B-ORG", "I-LOC", "O"]
    lenient, strict = EntityScore(), EntityScore("iob2")
    for score in (lenient, strict):
        score.add(gold, predicted)
    # lenient: PER right; ORG at 3 wrong; the lone I-LOC is an entity at 4, wrong: 1 of 3 found, 1 of 3 there
    assert (lenient.micro.precision, lenient.micro.recall, lenient.micro.f1) == (1 / 3, 1 / 3, 1 / 3)
    # strict: I-LOC is nothing: 1 of 2 found
    assert (strict.micro.precision, strict.micro.recall) == (1 / 2, 1 / 3)
    assert {kind: ratio.f1 for kind, ratio in strict.by_type.items()} == {"LOC": 0.0, "ORG": 0.0, "PER": 1.0}
    assert strict.macro.f1 == 1 / 3 and strict.macro.gold == 3


def test_a_cut_sentence_misses_its_entities() -> None:
    """What a model could not see counts as missed; it is not left out."""
    score = EntityScore()
    score.add(["B-x", "O", "B-x"], ["B-x", "O", "O"])
    assert score.micro.recall == 0.5 and score.micro.precision == 1.0


def test_sentences_stand_alone_and_nothing_of_them_is_kept() -> None:
    score = EntityScore()
    score.add(["B-x"], ["B-x"])
    score.add(["I-x"], ["I-x"])  # opens a chunk of its own: the sentence before is over
    assert score.micro.gold == 2 and score.micro.f1 == 1.0
    for _ in range(50):
        score.add(["B-x", "O"], ["O", "B-y"])
    assert set(score.counts) == {"x", "y"} and score.counts["x"].tolist() == [2, 2, 52]
    found = compare(["B-x"], ["B-y"])
    assert found["x"].tolist() == [0, 0, 1] and found["y"].tolist() == [0, 1, 0]


def test_tags_one_by_one_equal_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, f1_score

    gold, predicted = made("iob2", 3), damaged(made("iob2", 3), 0.3, 1)
    tags = TagScore()
    for one, other in zip(gold, predicted, strict=True):
        tags.add(one, other)
    flat = [[tag for sentence in side for tag in sentence] for side in (gold, predicted)]
    assert tags.accuracy == accuracy_score(*flat)
    assert tags.macro_f1 == pytest.approx(f1_score(*flat, average="macro"), abs=1e-15)


def test_nothing_scores_nothing() -> None:
    assert EntityScore().micro.f1 == 0.0 and EntityScore().macro.f1 == 0.0
    with pytest.raises(ValueError, match="no tag"):
        _ = TagScore().accuracy
    with pytest.raises(ValueError, match="1 predicted tags for a sentence of 2"):
        compare(["O", "O"], ["O"])
