"""Does predicting every token pay? Cloze, bilm and masked models at equal tokens and at equal FLOPs, transferred.

    python benchmarks/two_tower_learning.py --world --toy --out runs/cloze     # a CPU, the built-in town
    python benchmarks/two_tower_learning.py --corpus carry/enwiki --out runs/cloze --tokens 4e7 \
        --task sst2=classify:sst2/train.jsonl:sst2/valid.jsonl --task mrpc=pair:mrpc/train.jsonl:mrpc/valid.jsonl

Baevski et al. 2019, table 4, compares its losses; here BERT's joins them. All have as many blocks of one width:

    cloze    two towers and a combiner
    bilm     two towers, two language models
    mlm      one Transformer of twice the blocks, 15 % of the tokens masked

Each is pre-trained on `--tokens` tokens, and bilm and mlm once more with the FLOPs that cloze spent on them. Every
model is fine-tuned as its paper says, `--tune` steps, on every task; scores are those on dev, with the best weights
chosen there, over `--seeds` of both. What is done already is kept: a run that is stopped goes on. Reported as
obtained, in results.json and as a table.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.pretraining import pretrain as pretraining
from etude.recipes.schema import Recipe
from etude.recipes.size import measure_recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.prepare import prepare
from etude.transfer.finetune import finetune
from etude.world import World

PLAIN = {"model.dropout": 0.0, "model.attention_dropout": 0.0}
BILM = {"objective.predict": "bilm", "model.combiner": "none"}
SHARED = {"train.save_every": 0, "train.log_every": 50, "train.warmup": 0.06, "train.final_lr": 0.0}


@dataclass(frozen=True)
class Task:
    name: str
    kind: str
    train: Path
    dev: Path

    @classmethod
    def parse(cls, text: str) -> Task:
        name, _, rest = text.partition("=")
        kind, train, dev = rest.split(":")
        return cls(name, kind, Path(train), Path(dev))


def systems(toy: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    """Recipes with as many blocks of one width, one length of text, one batch."""
    if toy:
        shape = {"train.batch_tokens": 512, "train.lr": 8e-3, "train.eval_tokens": 16_384}
        shape |= {"model.context": 64, "objective.length": 64, "objective.row_tokens": 256}
        bert = {"model.layers": 4, "objective.sentence": "none", "model.pooler": False, "train.lr": 3e-3}
        bert |= {"model.norm": "pre", "model.positions": "rotary"}  # else so short a run ends on its plateau
        towers = {}
        names = "two-tower-toy", "bert-toy"
    else:
        shape = PLAIN | {"train.batch_tokens": 8_192, "train.lr": 7e-4, "train.eval_tokens": 131_072}
        bert = {"model.context": 128, "objective.length": 128, "objective.sentence": "none", "model.pooler": False}
        bert |= {"model.embedding_dropout": 0.0, "objective.max_predictions": None}  # 8 layers of 512
        # as in the towers; post-LN did not leave its plateau in 2,700 such steps, and this is what left it soonest
        bert |= {"model.norm": "pre", "model.positions": "rotary", "model.init_deviation": 0.03}
        towers = {"model.inner_dropout": 0.0}  # twice 4 layers of 512
        names = "two-tower-small", "bert-medium"
    return {
        "cloze": (names[0], shape | towers),
        "bilm": (names[0], shape | towers | BILM),
        "mlm": (names[1], shape | bert),
    }


def budgets(tokens: int, toy: bool, vocab: int) -> dict[str, list[tuple[str, int]]]:
    """Tokens of each pre-training, by system: the same for all, and as many as the FLOPs of cloze are worth."""
    costs = {}
    for name, (recipe, settings) in systems(toy).items():
        made = Recipe.load(recipe, settings | {"tokenizer": f"word:{vocab}", "train.steps": 10})
        costs[name] = measure_recipe(made).flops_per_token
    equal = {name: int(tokens * costs["cloze"] / cost) for name, cost in costs.items()}
    return {name: [("tokens", tokens)] + ([("FLOPs", equal[name])] if name != "cloze" else []) for name in costs}


def pretrained(folder: Path, corpus: Corpus, system: str, tokens: int, seed: int, toy: bool) -> Run:
    recipe, settings = systems(toy)[system]
    if folder.exists():
        run = Run.open(folder)
        return run if run.finished else pretraining.resume(run, quiet=True)
    steps = max(1, round(tokens / settings["train.batch_tokens"]))
    changes = SHARED | settings | {"train.steps": steps, "train.eval_every": steps, "train.seed": seed}
    run = pretraining.pretrain(recipe, corpus, folder, quiet=True, overrides=changes)
    torch._dynamo.reset()
    return run


def tuned(run: Run, task: Task, steps: int, seed: int) -> dict[str, float]:
    """The scores on dev. The folder is not kept: 36 of them would be gigabytes."""
    folder = run.folder.with_name(f"{run.folder.name}-{task.name}")
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"train.steps": steps, "train.seed": seed, "train.eval_every": max(1, steps // 4)}
    made = finetune(run.folder, task.kind, task.train, folder, dev=task.dev, overrides=settings, quiet=True)
    plan = Plan.read(made.folder)
    scores = {name: one["value"] for name, one in plan.scores.items()}
    shutil.rmtree(folder)
    return {"score": scores[plan.score]} | scores


def table(results: dict[str, Any], tasks: list[Task]) -> str:
    cells: dict[tuple[str, str], list[Any]] = {}
    for cell in results["cells"].values():
        cells.setdefault((cell["system"], cell["budget"]), []).append(cell)
    lines = [
        f"{'system':8} {'equal':8} {'tokens':>12} {'FLOPs':>9} {'held-out':>9}  "
        + "  ".join(f"{t.name:>16}" for t in tasks)
    ]
    for (system, budget), found in cells.items():
        row = f"{system:8} {budget:8} {found[0]['tokens']:12,} {found[0]['flops']:9.2e} "
        row += f"{np.mean([cell['held_out'] for cell in found]):9.3f}  "
        for task in tasks:
            scores = [cell["scores"][task.name]["score"] for cell in found if task.name in cell["scores"]]
            spread = np.std(scores, ddof=1) if len(scores) > 1 else float("nan")
            row += f"  {np.mean(scores):7.4f} ± {spread:6.4f}" if scores else " " * 18
        lines.append(row)
    return "\n".join(lines)


def town(folder: Path, toy: bool) -> tuple[Path, list[Task]]:
    """The built-in world as a corpus and two tasks."""
    if not (folder / "corpus" / "manifest.json").is_file():
        World(0, "en").write(folder / "world", 3.0 if toy else 30.0, True, lambda part, share: None)
        prepare(str(folder / "world" / "text.txt"), folder / "corpus", tokenizer="wordpiece:1000,lower", valid=0.02)
    labelled = folder / "world" / "tasks"
    tasks = []
    for name, column in (("words", "upos"), ("entities", "ner")):  # few sentences: what was read before must help
        files = [labelled / f"{name}.{part}.jsonl" for part in ("train", "valid")]
        for file, part, most in zip(files, ("train", "valid"), (100, 400), strict=True):
            rows = [json.loads(line) for line in (labelled / f"tags.{part}.jsonl").read_text("utf-8").splitlines()]
            lines = [json.dumps({"tokens": row["tokens"], "tags": row[column]}) for row in rows[:most]]
            file.write_text("\n".join(lines) + "\n", "utf-8")
        tasks.append(Task(name, "tag", *files))
    return folder / "corpus", tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="a prepared corpus with a held-out part")
    parser.add_argument("--task", action="append", default=[], help="NAME=KIND:TRAIN:DEV; may be given several times")
    parser.add_argument("--world", action="store_true", help="the built-in town, its text and two of its tasks")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=float, default=None, help="of each pre-training; 4e7, or 4e5 with --toy")
    parser.add_argument("--tune", type=int, default=None, help="steps of fine-tuning; 600, or 100 with --toy")
    parser.add_argument("--seeds", default="0,1,2", help="with commas; several processes may share them out")
    parser.add_argument("--also", type=Path, action="append", default=[], help="another --out, for the table alone")
    parser.add_argument("--only", help="systems, with commas")
    parser.add_argument("--toy", action="store_true", help="toy sizes, for a CPU")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    folder, tasks = (
        town(asked.out, asked.toy) if asked.world else (asked.corpus, [Task.parse(one) for one in asked.task])
    )
    corpus = Corpus.open(folder)
    tokens = int(asked.tokens or (4e5 if asked.toy else 4e7))
    steps = asked.tune or (100 if asked.toy else 600)
    file = asked.out / "results.json"
    results: dict[str, Any] = {
        "hardware": describe_hardware(),
        "versions": describe_versions(),
        "tokens": tokens,
        "tune": steps,
        "cells": {},
    }
    if file.is_file():
        results["cells"] = json.loads(file.read_text())["cells"]
    plans = budgets(tokens, asked.toy, corpus.tokenizer.vocab)
    for seed in (int(one) for one in asked.seeds.split(",") if one):
        for system, chosen in plans.items():
            if asked.only and system not in asked.only.split(","):
                continue
            for budget, amount in chosen:
                name = f"{system}-{budget}-{seed}"
                cell = results["cells"].get(name, {"scores": {}})
                if all(task.name in cell["scores"] for task in tasks) and "held_out" in cell:
                    continue
                run = pretrained(asked.out / name, corpus, system, amount, seed, asked.toy)
                last = run.metrics("valid")[-1]
                cell |= {"system": system, "budget": budget, "seed": seed, "held_out": last.get("text", last["loss"])}
                cell |= {key: last[key] for key in ("tokens", "flops", "seconds")}
                results["cells"][name] = cell
                for task in tasks:
                    if task.name not in cell["scores"]:
                        cell["scores"][task.name] = tuned(run, task, steps, seed)
                        file.write_text(json.dumps(results, indent=1))
                shown = {task.name: round(cell["scores"][task.name]["score"], 4) for task in tasks}
                print(f"{name}: {cell['seconds']:.0f} s, held-out {cell['held_out']:.3f}, {shown}", flush=True)
                file.write_text(json.dumps(results, indent=1))
    for other in asked.also:
        results["cells"] |= json.loads((other / "results.json").read_text())["cells"]
    print(f"\n{results['hardware']}; {results['versions']}\n{table(results, tasks)}")


if __name__ == "__main__":
    main()
