"""Speed of ERNIE's pre-training beside BERT's with the same layers, in turns.

    python benchmarks/ernie_speed.py --out results.json                  # on a GPU: both at base size, bf16, compiled
    python benchmarks/ernie_speed.py --tiny --rounds 3 --seconds 2       # does it run? on a CPU

Both train by the real loop on the same made-up text, of which every eighth token (--every) mentions an entity; BERT
passes the entities over. Layers, width, length, batch, precision, dropout and sentence task are the same; ERNIE
has its entity stream, the fusion of both and the alignment loss on top. The sides take turns; a ratio is the median of
those of the rounds. The goal is at least 70 % of BERT's tokens a second.

A line on stderr says what is being built, compiled or trained, and after how many seconds; --out is written anew after
each side of each round, so a run that is cut off leaves what it has. Compiling both at base size takes minutes on a
GPU: --limit SECONDS starts no round that would end behind it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from etude.pretraining.loop import build_rows
from etude.pretraining.setup import resolve_recipe
from etude.pretraining.trial import WARM_UP
from etude.recipes import size
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.recipes.size import MADE_UP, synthetic_corpus
from etude.runs.model_card import describe_hardware, describe_versions
from etude.text.corpus.corpus import Corpus
from etude.train.device import resolve_device, synchronize
from etude.train.loop import Loop

TINY: dict[str, object] = {
    "model.layers": 3, "model.width": 32, "model.heads": 2, "model.context": 64, "objective.length": 64,
    "train.batch_tokens": 1024, "train.workers": 0,
}  # fmt: skip
TINY_KINDS = ["sim", "mix", "norm"]
STARTED = time.perf_counter()


def report(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


class Side:
    """One model in its training loop, which goes on where it stopped."""

    def __init__(self, name: str, recipe: Recipe, corpus: Corpus, folder: Path) -> None:
        report(f"{name}: building")
        self.device = resolve_device(recipe.train.device)
        self.model, objective = build_learner(recipe, corpus.tokenizer)
        rows = build_rows(recipe, corpus, objective)
        self.loop = Loop(folder, self.model, objective, rows, recipe.train, total=10**9, device=self.device)
        self.steps = self.loop.loader.steps(0, 10**9)
        steps = 1 + (WARM_UP if self.loop.compiled else 1)
        for number in range(steps):
            self.loop.advance(next(self.steps))
            synchronize(self.device)
            report(f"{name}: warm-up step {number + 1} of {steps}")

    def train(self, seconds: float) -> float:
        """Tokens a second over some seconds."""
        start, before = time.perf_counter(), self.loop.state.tokens
        while time.perf_counter() - start < seconds:
            for _ in range(8 if self.device.type == "cuda" else 1):
                self.loop.advance(next(self.steps))
            synchronize(self.device)
        return (self.loop.state.tokens - before) / (time.perf_counter() - start)


def load_recipes(changes: dict[str, object], tiny: bool, corpus: Corpus) -> dict[str, Recipe]:
    """Both recipes; what they have in common is ERNIE's."""
    entities: dict[str, object] = {"model.entities": corpus.tokenizer.vocab, "model.graph": MADE_UP}
    if tiny:
        entities |= {"model.layer_kinds": TINY_KINDS, "model.entity_width": 16, "model.entity_heads": 2}
    ernie = resolve_recipe(Recipe.load("ernie", {**changes, **entities, "objective.min_entities": 0}), corpus, ())
    shared: dict[str, Any] = {f"train.{key}": value for key, value in ernie.train.model_dump().items()}
    shared |= {
        f"objective.{name}": getattr(ernie.objective, name) for name in ("length", "row_tokens", "max_predictions")
    }
    shared |= {"model.activation": "gelu", **changes}
    return {"bert": resolve_recipe(Recipe.load("bert-base", shared), corpus, ()), "ernie": ernie}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a few layers, to try the script on a CPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each side in each round")
    parser.add_argument("--every", type=int, default=size.MENTION_EVERY, help="tokens for each mention of an entity")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds of the whole run, compiling included")
    parser.add_argument("--out", type=Path, help="results as JSON")
    parser.add_argument("settings", nargs="*", help="changes of both recipes, as train.batch_tokens=65536")
    options = parser.parse_args()
    size.MENTION_EVERY = options.every
    changes: dict[str, object] = dict(TINY) if options.tiny else {"train.batch_tokens": 32_768}
    changes |= dict(setting.split("=", 1) for setting in options.settings)
    corpus = synthetic_corpus(20_000 if options.tiny else 200_000, 900 if options.tiny else 30_000, entities=True)
    changes = {key: json.loads(value) if isinstance(value, str) else value for key, value in changes.items()}
    recipes = load_recipes(changes, options.tiny, corpus)
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(name, recipe, corpus, Path(folder) / name) for name, recipe in recipes.items()}
        rounds: list[dict[str, float]] = []
        for number in range(options.rounds):
            if time.perf_counter() - STARTED + 2 * options.seconds > options.limit:
                report(f"round {number} would end behind {options.limit:.0f} s: left out")
                break
            rounds.append({})
            for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                rounds[-1][name] = sides[name].train(options.seconds)
                report(f"round {number}, {name}: {rounds[-1][name]:,.0f} tokens a second")
                if options.out is not None:
                    summary = summarize(options, recipes, sides, rounds)
                    options.out.write_text(json.dumps(summary, indent=1) + "\n")
    summary = summarize(options, recipes, sides, rounds)
    print(json.dumps({key: value for key, value in summary.items() if key != "rounds"}, indent=1))


def summarize(
    options: argparse.Namespace, recipes: dict[str, Recipe], sides: dict[str, Side], rounds: list[dict[str, float]]
) -> dict[str, Any]:
    """Medians and their ratio over the rounds that both sides have finished."""
    whole = [speeds for speeds in rounds if len(speeds) == len(sides)]
    ernie = recipes["ernie"]
    return {
        "what": "pre-training, tokens a second",
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "layers": list(ernie.model.model_dump()["layer_kinds"]),
        "length": ernie.objective.length,
        "batch_tokens": ernie.train.batch_tokens,
        "precision": ernie.train.precision,
        "mention_every": options.every,
        "parameters": {name: sum(p.numel() for p in side.model.parameters()) for name, side in sides.items()},
        "medians": {name: round(statistics.median(speeds[name] for speeds in whole)) for name in sides if whole},
        "ratio": round(statistics.median(speeds["ernie"] / speeds["bert"] for speeds in whole), 3) if whole else None,
        "rounds": [{name: round(speed) for name, speed in speeds.items()} for speeds in rounds],
    }


if __name__ == "__main__":
    torch.set_float32_matmul_precision("high")
    main()
