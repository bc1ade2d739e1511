"""The rivals of a pick, each at its best: the settings that matter are chosen by cross-validation on the labels.

tfidf     TF-IDF of words and pairs of words, logistic regression (scikit-learn)
fasttext  fastText supervised (optional: pip install fasttext-numpy2-wheel)
probe     logistic regression on the published sentence vectors of all-MiniLM-L6-v2; of tags, on its hidden states
crf       a linear-chain CRF over the usual features of words (optional: pip install sklearn-crfsuite)
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .data import Record, Task, plain_text
from .scoring import Answer, score_answers

FOLDS, SLOW_FOLDS = 5, 3  # fastText and the taggers take seconds a fit
STRENGTHS = (0.1, 1, 10, 100, 1000)  # C of logistic regressions
EPOCHS = 50  # of fastText: its default of 5 learns nothing from 100 labels
MAX_PIECES = 256  # what the published model reads of a text
RIVALS = {"classify": ("tfidf", "fasttext", "probe"), "tag": ("crf", "probe")}
Fit = Callable[[Sequence[Record]], Callable[[Sequence[Record]], list[Answer]]]


def answer_test(
    side: str, task: Task, labels: Sequence[Record], test: Sequence[Record], minilm: Path, cache: Path
) -> tuple[list[Answer], dict[str, Any]]:
    """Fit a rival on the labels and answer the test; the answers, and the settings that cross-validation chose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # classes of two examples are in fewer folds; lbfgs stops at its last iteration
        if side == "tfidf":
            return _choose_c(_tfidf(), [plain_text(record) for record in labels], labels, list(map(plain_text, test)))
        if side == "probe" and task.kind == "classify":
            vectors = SentenceVectors(minilm, cache / f"{task.name}.npz")
            inputs, test_inputs = vectors.encode(map(plain_text, labels)), vectors.encode(map(plain_text, test))
            return _choose_c(_linear(), inputs, labels, test_inputs)
        if side == "probe":
            sentences = [tuple(record["tokens"]) for record in [*labels, *test]]
            states = {words: _encode_words(minilm, words) for words in sentences}
            fits = {f"C={c:g}": _token_probe(c, states) for c in (0.001, 0.01, 0.1)}
        elif side == "fasttext":
            is_long = sum(len(plain_text(record)) for record in labels) > 500 * len(labels)
            grid = itertools.product((0.1, 0.5, 1.0), (0,) if is_long else (0, 2))  # subwords: ten times the time
            fits = {f"lr={lr:g} epoch={EPOCHS} minn={minn}": _fasttext(lr, EPOCHS, minn) for lr, minn in grid}
        else:
            fits = {f"c1={c1:g} c2={c2:g}": _crf(c1, c2) for c1, c2 in itertools.product((0.01, 0.1), (0.01, 0.1))}
        scores = {name: _cross_validate(task, labels, fit) for name, fit in fits.items()}
        best = max(scores, key=lambda name: scores[name])
        return fits[best](labels)(test), {"settings": best, "cv": round(scores[best], 4)}


def _cross_validate(task: Task, labels: Sequence[Record], fit: Fit) -> float:
    """The score of answers to examples that were left out: of labels stratified, of sentences in turn."""
    from sklearn.model_selection import KFold, StratifiedKFold

    if task.kind == "tag":
        folds = KFold(SLOW_FOLDS).split(list(labels))
    else:
        gold = [record["label"] for record in labels]
        folds = StratifiedKFold(SLOW_FOLDS, shuffle=True, random_state=0).split(gold, gold)
    answers: list[Answer] = [""] * len(labels)
    for train, valid in folds:
        predict = fit([labels[number] for number in train])
        for number, answer in zip(valid, predict([labels[number] for number in valid]), strict=True):
            answers[number] = answer
    return score_answers(task, labels, answers)


def _choose_c(
    pipeline: Any, inputs: Any, labels: Sequence[Record], test_inputs: Any
) -> tuple[list[Answer], dict[str, Any]]:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    search = GridSearchCV(pipeline, {"logisticregression__C": STRENGTHS}, cv=folds)
    search.fit(inputs, [record["label"] for record in labels])
    settings = f"C={search.best_params_['logisticregression__C']:g}"
    return search.predict(test_inputs).tolist(), {"settings": settings, "cv": round(float(search.best_score_), 4)}


def _tfidf() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
    return make_pipeline(words, LogisticRegression(max_iter=1000))


def _linear() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return make_pipeline(LogisticRegression(max_iter=1000))


def _fasttext(lr: float, epoch: int, minn: int) -> Fit:
    def split(record: Record) -> str:
        return " ".join(re.findall(r"\w+|[^\w\s]", plain_text(record).lower()))

    def fit(labels: Sequence[Record]) -> Callable[[Sequence[Record]], list[Answer]]:
        import fasttext

        names = sorted({record["label"] for record in labels})
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.writelines(f"__label__{names.index(record['label'])} {split(record)}\n" for record in labels)
            file.flush()
            model = fasttext.train_supervised(
                file.name, lr=lr, epoch=epoch, wordNgrams=2, minn=minn, maxn=5 if minn else 0, dim=100, thread=1,
                bucket=100_000, verbose=0,
            )  # fmt: skip

        def predict(test: Sequence[Record]) -> list[Answer]:
            answers, _ = model.predict([split(record) for record in test])
            return [names[int(tops[0].removeprefix("__label__"))] if tops else names[0] for tops in answers]

        return predict

    return fit


# --- all-MiniLM-L6-v2 -----------------------------------------------------------------------------------


class SentenceVectors:
    """Mean-pooled, normalised vectors of texts by the published weights, kept in a file between calls."""

    def __init__(self, minilm: Path, cache: Path) -> None:
        self.minilm, self.cache = minilm, cache
        self.vectors: dict[str, np.ndarray] = {}
        if cache.is_file():
            with np.load(cache) as file:
                self.vectors = dict(zip(file["keys"].tolist(), file["vectors"], strict=True))

    def encode(self, texts: Iterable[str]) -> np.ndarray:  # (texts, 384)
        texts = list(texts)
        keys = {hashlib.sha256(text.encode()).hexdigest(): text for text in texts}
        missing = sorted((key for key in keys if key not in self.vectors), key=lambda key: len(keys[key]))
        if missing:
            pooled = _pool(self.minilm, [keys[key] for key in missing])
            self.vectors |= dict(zip(missing, pooled, strict=True))
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            np.savez(self.cache, keys=np.array(list(self.vectors)), vectors=np.stack(list(self.vectors.values())))
        return np.stack([self.vectors[hashlib.sha256(text.encode()).hexdigest()] for text in texts])


@functools.cache
def _open(minilm: Path) -> tuple[Any, Any]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model: Any = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32)
    return transformers.AutoTokenizer.from_pretrained(minilm), model.eval()


def _pool(minilm: Path, texts: Sequence[str]) -> np.ndarray:
    import torch

    tokenizer, model = _open(minilm)
    rows = []
    with torch.no_grad():
        for start in range(0, len(texts), 32):
            chunk = list(texts[start : start + 32])
            batch = tokenizer(chunk, padding=True, truncation=True, max_length=MAX_PIECES, return_tensors="pt")
            states, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            mean = (states * mask).sum(1) / mask.sum(1)
            rows.append(torch.nn.functional.normalize(mean, dim=1).numpy())
    return np.concatenate(rows)


@functools.cache
def _encode_words(minilm: Path, words: tuple[str, ...]) -> np.ndarray:  # (words, 384)
    """The last hidden state of the first piece of every word; zeros for words beyond the model's length."""
    import torch

    tokenizer, model = _open(minilm)
    with torch.no_grad():
        batch = tokenizer([list(words)], is_split_into_words=True, truncation=True, max_length=512, return_tensors="pt")
        states = model(**batch).last_hidden_state[0].numpy()
    vectors = np.zeros((len(words), states.shape[1]), dtype=np.float32)
    for place, word in reversed(list(enumerate(batch.word_ids(0)))):  # the first piece is written last
        if word is not None:
            vectors[word] = states[place]
    return vectors


def _token_probe(c: float, states: Mapping[tuple[str, ...], np.ndarray]) -> Fit:
    def fit(labels: Sequence[Record]) -> Callable[[Sequence[Record]], list[Answer]]:
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=200))
        gold = [tag for record in labels for tag in record["ner"]]
        model.fit(np.concatenate([states[tuple(record["tokens"])] for record in labels]), gold)
        return lambda test: [model.predict(states[tuple(record["tokens"])]).tolist() for record in test]

    return fit


# --- CRF ------------------------------------------------------------------------------------------------


def _crf(c1: float, c2: float) -> Fit:
    def fit(labels: Sequence[Record]) -> Callable[[Sequence[Record]], list[Answer]]:
        import sklearn_crfsuite

        model = sklearn_crfsuite.CRF(c1=c1, c2=c2, max_iterations=100, all_possible_transitions=True)
        model.fit([word_features(record["tokens"]) for record in labels], [record["ner"] for record in labels])
        return lambda test: [list(tags) for tags in model.predict([word_features(r["tokens"]) for r in test])]

    return fit


def word_features(words: Sequence[str]) -> list[dict[str, str | bool]]:
    """Form, affixes, capitals and shape of each word, and of the two words on either side."""
    rows = []
    for place, word in enumerate(words):
        row: dict[str, str | bool] = {
            "lower": word.lower(), "shape": _shape(word), "digit": word.isdigit(), "first": place == 0,
            "upper": word.isupper(), "title": word.istitle(), "bias": True,
        }  # fmt: skip
        row |= {f"prefix{size}": word[:size].lower() for size in (2, 3, 4)}
        row |= {f"suffix{size}": word[-size:].lower() for size in (2, 3, 4)}
        for step in (-2, -1, 1, 2):
            if 0 <= place + step < len(words):
                near = words[place + step]
                row |= {f"{step}:lower": near.lower(), f"{step}:title": near.istitle(), f"{step}:shape": _shape(near)}
            else:
                row[f"{step}:none"] = True
        rows.append(row)
    return rows


def _shape(word: str) -> str:
    """Runs of the same class of characters count once: `McDonald-3` is XxXx-d."""
    classes = ("X" if c.isupper() else "x" if c.isalpha() else "d" if c.isdigit() else c for c in word)
    return "".join(letter for letter, _ in itertools.groupby(classes))
