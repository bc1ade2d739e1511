"""What an interrupted command does next, and what its end is compared by."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hostile.commands import hash_files
from tests.hostile.samples import Samples
from tests.study.test_runner import timeless

RUN_FILES = ("model.safetensors", "checkpoints/*/*.safetensors", "recipe.yaml", "task.yaml", "tokenizer.json")


def choose_words(samples: Samples, verb: str, out: Path) -> list[str]:
    """The same command again; a run goes on by --resume."""
    if verb in ("pretrain", "finetune") and (out / "recipe.yaml").is_file():
        return [verb, "--resume", str(out), "-q"]
    return samples.command(verb, out)


def read_outcome(verb: str, out: Path) -> object:
    if verb == "study":
        return timeless(json.loads((out / "results.json").read_text(encoding="utf-8")))
    if verb == "pick":
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return results["winner"], {row["name"]: (row["folds"], row["score"]) for row in results["rows"]}
    return hash_files(out, *(RUN_FILES if verb in ("pretrain", "finetune") else ("**/*",)))
