"""Accuracy of baselines on few labels, beside scikit-learn's pipelines and fastText.

    python benchmarks/baselines.py DATA [--tasks sst2 trec6] [--labels 100 400] [--fasttext PYTHON]

DATA holds one folder a task with `train.jsonl.xz`. Labels are drawn in three stratified draws; the test part of a draw
is never drawn from. scikit-learn's models are TfidfVectorizer and LogisticRegression as they come (words of 1-2, or
characters in words of 2-5), and with C = 10 and sublinear tf. fastText runs in an interpreter of its own that has it
installed: wordNgrams=2, minn=2, maxn=5, lr=0.5, epoch=50.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from etude.baselines.registry import fit
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples

TASKS = ("sst2", "trec6", "imdb", "snips_intent_slots", "ynat", "nsmc_rebuilt", "3i4k_intent")
LABEL = {"snips_intent_slots": "intent"}
TEST = 1000  # examples of a test part at most
FASTTEXT = """
import json, sys, fasttext, numpy as np
train, test = sys.argv[1:]
model = fasttext.train_supervised(train, lr=0.5, epoch=50, wordNgrams=2, minn=2, maxn=5, thread=1, verbose=0)
for line in open(test, encoding="utf-8"):
    print(model.f.predict(line.rstrip("\\n") + "\\n", 1, 0.0, "strict")[0][1].removeprefix("__label__"))
"""

Method = Callable[[list[str], list[str], list[str]], list[str]]


def read(folder: Path, task: str) -> list[tuple[str, str]]:
    with lzma.open(folder / task / "train.jsonl.xz", "rt", encoding="utf-8", newline="\n") as lines:
        records = [json.loads(line) for line in lines]
    label = LABEL.get(task, "label")
    return [(record["text"], str(record[label])) for record in records if record["text"].strip()]


def draw(rows: list[tuple[str, str]], count: int, seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """A stratified training part and a test part; each label has two training examples at least."""
    order = np.random.default_rng(seed).permutation(len(rows)).tolist()
    test, pool = order[:TEST], order[TEST:]
    names = sorted({label for _, label in rows})
    share = {name: sum(label == name for _, label in rows) / len(rows) for name in names}
    chosen: list[int] = []
    for name in names:
        chosen += [number for number in pool if rows[number][1] == name][: max(2, int(share[name] * count))]
    taken = set(chosen)
    rest = [number for number in pool if number not in taken]
    chosen = (chosen + rest[: max(0, count - len(chosen))])[:count]
    return [rows[number] for number in chosen], [rows[number] for number in test]


def ours(name: str) -> Method:
    def predict(texts: list[str], labels: list[str], test: list[str]) -> list[str]:
        items = [LabelledText((text,), label) for text, label in zip(texts, labels, strict=True)]
        model = fit(name, "classify", None, Examples(items, "draw", [""] * len(items)))
        answers = model.predict(Examples([LabelledText((text,)) for text in test], "test", [""] * len(test)))
        return [answer["label"] for answer in answers]

    return predict


def theirs(analyzer: str, sizes: tuple[int, int], strength: float) -> Method:
    def predict(texts: list[str], labels: list[str], test: list[str]) -> list[str]:
        features = TfidfVectorizer(analyzer=analyzer, ngram_range=sizes, sublinear_tf=strength != 1)
        model = make_pipeline(features, LogisticRegression(C=strength, max_iter=1000))
        return model.fit(texts, labels).predict(test).tolist()

    return predict


def fasttext(python: str) -> Method:
    def predict(texts: list[str], labels: list[str], test: list[str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / "train.txt", Path(folder) / "test.txt"]
            plain = [" ".join(text.lower().split()) for text in texts]
            paths[0].write_text(
                "".join(f"__label__{label} {text}\n" for label, text in zip(labels, plain, strict=True)),
                encoding="utf-8",
            )
            paths[1].write_text("".join(" ".join(text.lower().split()) + "\n" for text in test), encoding="utf-8")
            command = [python, "-c", FASTTEXT, *map(str, paths)]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--labels", nargs="+", type=int, default=[100, 400])
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--fasttext", help="an interpreter that has fastText")
    options = parser.parse_args()
    methods: dict[str, Method] = {
        "tfidf": ours("tfidf"),
        "ngrams": ours("ngrams"),
        "words C=1": theirs("word", (1, 2), 1.0),
        "words C=10": theirs("word", (1, 2), 10.0),
        "chars C=1": theirs("char_wb", (2, 5), 1.0),
        "chars C=10": theirs("char_wb", (2, 5), 10.0),
    }
    if options.fasttext:
        methods["fastText"] = fasttext(options.fasttext)
    methods = {name: method for name, method in methods.items() if name in (options.methods or methods)}
    print("| task | labels | " + " | ".join(methods) + " |")
    print("|---" * (len(methods) + 2) + "|")
    for task in options.tasks:
        rows = read(options.data, task)
        for count in options.labels:
            cells = []
            draws = [draw(rows, count, seed) for seed in range(options.draws)]
            for method in methods.values():
                scores, start = [], time.process_time()
                for train, test in draws:
                    texts, labels = map(list, zip(*train, strict=True))
                    predicted = method(texts, labels, [text for text, _ in test])
                    scores.append(100 * np.mean([a == b for a, (_, b) in zip(predicted, test, strict=True)]))
                seconds = (time.process_time() - start) / len(draws)
                cells.append(f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f} ({seconds:.1f} s)")
            print(f"| {task} | {count} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
