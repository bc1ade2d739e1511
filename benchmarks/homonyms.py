"""A homonym's vector moves with its context, a static one does not: senses told apart in the built-in world.

    python benchmarks/homonyms.py --out runs/homonyms

Pre-trains the toy ELMo and a toy skip-gram on the same text about the town. For each homonym ("bank", "bat" ...) the
mean state of each of its senses is taken from labelled sentences, and other sentences are given the sense with the
nearer mean (cosine): the probe of Peters et al. 2018, section 5.3, layer by layer. Guessing is right half of the time.
Prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import etude
from etude.inference.model import LoadedModel
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run
from etude.world import World


def states_of(model: LoadedModel, examples: list[dict[str, Any]]) -> np.ndarray:
    """(examples, layers, width): of the homonym in each text."""
    encodings = model.tokenizer.encode_batch([one["text"] for one in examples])
    found = []
    for one, encoding, states in zip(
        examples, encodings, model.states([model.frame(encoding.ids) for encoding in encodings]), strict=True
    ):
        place = int(np.flatnonzero(encoding.offsets[:, 0] == one["start"])[0])
        shift = (states.shape[1] - len(encoding)) // 2  # markers on both sides, or none
        found.append(states[:, place + shift])
    return np.stack(found)


def right(model: LoadedModel, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> list[float]:
    """Share of senses told right, for each layer."""
    known, asked = states_of(model, train), states_of(model, test)
    scores = []
    for layer in range(known.shape[1]):
        means = {
            label: known[[number for number, one in enumerate(train) if one["label"] == label], layer].mean(0)
            for label in {one["label"] for one in train}
        }
        hits = 0
        for one, state in zip(test, asked[:, layer], strict=True):
            senses = [label for label in means if label.split(".")[0] == one["word"]]
            hits += one["label"] == max(senses, key=lambda label: cosine(means[label], state))
        scores.append(round(hits / len(test), 4))
    return scores


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / max(1e-12, np.linalg.norm(one) * np.linalg.norm(other)))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/homonyms"))
    parser.add_argument("--megabytes", type=float, default=3.0)
    parser.add_argument("--recipes", default="elmo-toy,skipgram-toy")
    asked = parser.parse_args()
    print(f"{describe_hardware()}, {describe_versions()}", flush=True)
    town = asked.out / "town"
    if not town.is_dir():
        World(seed=0, language="en").write(town, asked.megabytes)
    train, test = (lines(town / "tasks" / f"sense.{part}.jsonl") for part in ("train", "test"))
    for recipe in asked.recipes.split(","):
        folder, corpus = asked.out / recipe, asked.out / f"corpus-{recipe}"
        if not corpus.is_dir():
            spec = "word:5000,lower" if "skipgram" in recipe else "word:5000"
            etude.prepare(town / "text.txt", out=corpus, tokenizer=spec, valid=0.02)
        begun = time.perf_counter()
        if not (folder.is_dir() and Run.open(folder).finished):
            if folder.is_dir():
                etude.resume(folder, quiet=True)
            else:
                etude.pretrain(recipe, corpus, out=folder, quiet=True)
        scores = right(etude.load(folder), train, test)
        held = Run(folder).metrics("valid")[-1]["loss"]
        told = {"recipe": recipe, "layers": scores, "examples": len(test), "held_out": round(held, 4)}
        print(json.dumps(told | {"seconds": round(time.perf_counter() - begun)}), flush=True)


if __name__ == "__main__":
    main()
