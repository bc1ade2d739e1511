"""On one CUDA GPU: a `train.deterministic` run repeats bit for bit, with and without dropout, compiled or not.

    python benchmarks/determinism_gpu.py

Two runs from the same seed, then a third that is stopped half-way, saved, and taken up by a new loop. Prints a
table and exits with 1 if any final weight differs in any bit. Without a GPU it checks the same on the CPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from training_speed.workloads import random_corpus

from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.train.device import make_deterministic
from etude.train.loop import Loop

VOCAB, STEPS = 4_000, 12


def train(recipe: Recipe, folder: Path, device: torch.device, stop: int | None = None) -> dict[str, torch.Tensor]:
    corpus = random_corpus(VOCAB, 200_000, documents=20)  # the sentence tasks need more than one
    model, objective = build_learner(recipe, corpus.tokenizer)
    loop = Loop(folder, model, objective, objective.rows(corpus, 0), recipe.train, total=STEPS, device=device)
    if stop is not None:
        advance = loop.advance

        def until(step):  # type: ignore[no-untyped-def]
            advance(step)
            loop.interrupted = step.number + 1 == stop

        loop.advance = until  # type: ignore[method-assign]
    loop.run()
    torch._dynamo.reset()
    return {name: value.detach().cpu().clone() for name, value in loop.learner.state_dict().items()}


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    make_deterministic(True)
    print(f"{device}, torch {torch.__version__}")
    failed = False
    for name in ("bert-toy", "gpt2-toy", "albert-toy", "electra-toy"):
        for dropout in (0.0, 0.1):
            for compiled in (False, True) if device.type == "cuda" else (False,):
                recipe = Recipe.load(
                    name,
                    {
                        "model.vocab": VOCAB,
                        "model.dropout": dropout,
                        "model.attention_dropout": dropout,
                        "model.embedding_dropout": dropout,
                        "train.steps": STEPS,
                        "train.batch_tokens": 4096,
                        "train.precision": "bf16" if device.type == "cuda" else "float32",
                        "train.device": device.type,
                        "train.compile": compiled,
                        "train.deterministic": True,
                        "train.save_every": 0,
                    },
                ).resolve(vocab=VOCAB)
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place)
                    one, two = train(recipe, folder / "one", device), train(recipe, folder / "two", device)
                    train(recipe, folder / "three", device, stop=5)
                    three = train(recipe, folder / "three", device)
                same = all(torch.equal(one[key], two[key]) for key in one)
                resumed = all(torch.equal(one[key], three[key]) for key in one)
                failed |= not (same and resumed)
                words = {True: "bit-equal", False: "DIFFERS"}
                print(f"{name:12} dropout {dropout}  {'compiled' if compiled else 'eager':8}  "
                      f"repeat {words[same]}  resume {words[resumed]}", flush=True)  # fmt: skip
    sys.exit(failed)


if __name__ == "__main__":
    main()
