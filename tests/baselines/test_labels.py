"""Classification by n-grams: learns what words and syllables tell, answers as a task does, repeats bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etude.baselines.labels import LabelBaseline
from etude.baselines.linear_baseline import WordVectors
from etude.baselines.registry import fit, load, supports
from etude.errors import UserError
from etude.runs.checksums import remove_checksums
from etude.tasks import classify
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples

GOOD = [
    "a fine film",
    "fine acting and fine music",
    "정말 재밌어요",
    "재밌는 영화였다",
    "lovely, lovely work",
    "아주 재밌음",
]
BAD = [
    "a dull film",
    "dull acting and no music",
    "정말 지루해요",
    "지루한 영화였다",
    "dreary, dreary work",
    "아주 지루함",
]


def reviews(repeat: int = 1) -> Examples[LabelledText]:
    items = [LabelledText((text,), label) for texts, label in ((GOOD, "good"), (BAD, "bad")) for text in texts]
    return Examples(items * repeat, "reviews", [f"reviews:{n}" for n in range(len(items) * repeat)])


def unlabelled(*texts: str) -> Examples[LabelledText]:
    return Examples([LabelledText((text,)) for text in texts], "texts", list(texts))


def test_unseen_forms_of_known_stems_are_labelled() -> None:
    model = fit("tfidf", "classify", None, reviews())
    answers = model.predict(unlabelled("재밌었습니다", "지루했습니다", "the finest of films", "dullness"))
    assert [answer["label"] for answer in answers] == ["good", "bad", "good", "bad"]
    for answer in answers:
        assert list(answer["scores"]) == ["bad", "good"]
        assert sum(answer["scores"].values()) == pytest.approx(1)
        assert answer["label"] == max(answer["scores"], key=answer["scores"].__getitem__)


def test_answers_are_scored_like_those_of_a_task() -> None:
    examples = reviews()
    model = fit("tfidf", "classify", classify.Settings(score="macro_f1"), examples)
    assert float(model.task.scoring.outcome(examples, model.predict(examples)).score()) == 1.0


def test_a_saved_baseline_answers_the_same_bits(tmp_path: Path) -> None:
    model = fit("tfidf", "classify", None, reviews(), columns={"text": "review"})
    texts = unlabelled("재밌었어요?", "nothing known: xyz", "DULL film!!")
    model.save(tmp_path / "best")
    again = load(tmp_path / "best")
    assert again.predict(texts) == model.predict(texts)
    assert again.task.columns == {"text": "review"}
    files = sorted(path.name for path in (tmp_path / "best").iterdir())
    assert files == ["baseline.json", "checksums.json", "model.safetensors"]


def test_a_fit_repeats_and_does_not_depend_on_company() -> None:
    first, second = (fit("tfidf", "classify", None, reviews(), seed=3) for _ in range(2))
    texts = unlabelled("재밌었어요", "a dull one")
    assert first.predict(texts) == second.predict(texts)
    assert first.predict(texts)[1:] == first.predict(unlabelled("a dull one"))


def test_a_temperature_scales_the_log_odds() -> None:
    model = fit("tfidf", "classify", None, reviews())
    assert isinstance(model, LabelBaseline)
    texts = unlabelled("재밌었어요", "dull")
    before = model.log_probs(texts)
    model.scale_logits(2.0)
    after = model.log_probs(texts)
    np.testing.assert_allclose(after[:, 0] - after[:, 1], (before[:, 0] - before[:, 1]) / 2, rtol=1e-5)


def test_labels_of_all_folds_are_known_where_facts_are_given() -> None:
    model = fit("tfidf", "classify", None, reviews(), facts={"labels": ["bad", "good", "mixed"]})
    answer = model.predict(unlabelled("fine"))[0]
    assert answer["label"] == "good" and 0 < answer["scores"]["mixed"] < 0.2


def test_word_vectors_carry_over_to_unseen_words(tmp_path: Path) -> None:
    near = {"fine": (1.0, 0.1), "lovely": (0.9, 0.2), "splendid": (1.0, 0.0), "dull": (0.0, 1.0), "dreary": (0.1, 1.0)}
    near |= {"tedious": (0.0, 0.9)}
    vectors = WordVectors(list(near), np.array(list(near.values()), np.float32))
    for name in ("vectors", "tfidf+vectors"):
        model = fit(name, "classify", None, reviews(), vectors=vectors)
        texts = unlabelled("splendid", "tedious", "nothing")
        assert [answer["label"] for answer in model.predict(texts)][:2] == ["good", "bad"]
        model.save(tmp_path / name)
        assert load(tmp_path / name).predict(texts) == model.predict(texts)
    with pytest.raises(ValueError, match="needs word vectors"):
        fit("vectors", "classify", None, reviews())


def test_vectors_weigh_more_where_words_say_little(tmp_path: Path) -> None:
    """Every text has a word of its own, which only its vector connects with the others, among words of no meaning."""
    draw = np.random.default_rng(0)
    words = [f"{letters}" for letters in {"".join(draw.choice(list("abcdefgh"), 6)) for _ in range(80)}]
    matrix = np.stack([[1.0, 0.0] if number % 2 else [0.0, 1.0] for number in range(len(words))])
    vectors = WordVectors(words, (matrix + 0.3 * draw.normal(size=matrix.shape)).astype(np.float32))
    noise = [" ".join(draw.choice(["so", "and", "but", "then", "there", "with"], 4)) for _ in words]
    items = [
        LabelledText((f"{text} {word}",), "good" if number % 2 else "bad")
        for number, (word, text) in enumerate(zip(words, noise, strict=True))
    ]
    examples = Examples(items, "texts", [f"texts:{number}" for number in range(len(items))])
    model = fit("tfidf+vectors", "classify", None, examples.part(range(60)), vectors=vectors)
    assert isinstance(model, LabelBaseline) and model.fitted.features.describe()["settings"]["vector_weight"] == 2.0
    model.save(tmp_path)
    held_out = examples.part(range(60, len(items)))
    assert load(tmp_path).predict(held_out) == model.predict(held_out)


def test_loading_is_strict(tmp_path: Path) -> None:
    fit("tfidf", "classify", None, reviews()).save(tmp_path)
    remove_checksums(tmp_path)  # which would refuse all of it
    path = tmp_path / "baseline.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"words": ["', '"words": ["extra", "', 1), encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        load(tmp_path)
    path.write_text(text.replace('"format": 1', '"format": 99'), encoding="utf-8")
    with pytest.raises(UserError, match="not a baseline of this version"):
        load(tmp_path)
    path.write_text(text, encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"holds no model\.safetensors"):
        load(tmp_path)


def test_what_cannot_be_fitted_is_refused() -> None:
    assert supports("tfidf", "classify") and not supports("tfidf", "nothing")
    with pytest.raises(UserError, match="no baseline 'bayes'"):
        fit("bayes", "classify", None, reviews())
    same = Examples([LabelledText(("x",), "only")] * 4, "same", ["same:1"] * 4)
    with pytest.raises(UserError, match="two or more"):
        fit("tfidf", "classify", None, same)
