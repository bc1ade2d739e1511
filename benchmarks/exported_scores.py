"""A fine-tuned classifier and its export, opened by transformers alone: the same answers, the same score?

    python benchmarks/exported_scores.py RUN FILE        # FILE: labelled examples, such as tasks/mrpc/valid.jsonl.xz

Both run in float32 on the CPU, one text or pair at a time in transformers, so that padding has no part in it. Printed
as JSON: the accuracy of both, the answers that differ, and the largest difference of a probability.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import etude
from etude.hub.exporter import export_run
from etude.runs.run import Run


def read_examples(file: Path) -> list[dict[str, Any]]:
    with lzma.open(file, "rt", encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def share_equal(answers: list[str], labels: list[str]) -> float:
    return sum(map(str.__eq__, answers, labels)) / len(labels)


def compare_export(run: Path, file: Path) -> dict[str, Any]:
    """Score a run and what transformers makes of its export on labelled examples."""
    import transformers

    examples = read_examples(file)
    labels = [str(example["label"]) for example in examples]
    given = [{name: value for name, value in example.items() if name.startswith("text")} for example in examples]
    ours = etude.load(run, device="cpu", dtype="float32").predict(given)
    with tempfile.TemporaryDirectory() as folder:
        export_run(Run.open(run), Path(folder) / "exported")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(f"{folder}/exported").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(f"{folder}/exported")
    names, theirs, apart = model.config.id2label, [], 0.0
    with torch.inference_mode():
        for texts, own in zip(given, ours, strict=True):
            read = tokenizer(*texts.values(), truncation=True, max_length=128, return_tensors="pt")
            chances = model(**read).logits.float().softmax(-1)[0]
            theirs.append(names[int(chances.argmax())])
            apart = max([apart, *(abs(float(chance) - own["scores"][names[n]]) for n, chance in enumerate(chances))])
    answers = [answer["label"] for answer in ours]
    return {
        "examples": len(examples),
        "etude": 100 * share_equal(answers, labels),
        "transformers": 100 * share_equal(theirs, labels),
        "answers that differ": sum(map(str.__ne__, answers, theirs)),
        "probabilities apart": apart,
        "class": type(model).__name__,
    }


if __name__ == "__main__":
    print(json.dumps(compare_export(Path(sys.argv[1]), Path(sys.argv[2]))))
