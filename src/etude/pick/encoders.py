"""Encoders of a pick: models that were given, pre-trained on the user's text, or given and trained on.

A pre-training is stored under a key of the recipe, the text and its minutes, not of the labels: where only labels
change, it is there already. At its deadline it stops with a checkpoint and is used as far as it came.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.pick.clock import OutOfTime
from etude.pick.text import PickText
from etude.pretraining import pretrain as pretraining
from etude.recipes.schema import Recipe
from etude.runs.run import RECIPE, Run
from etude.study import cell_code
from etude.study.cells import CellStore
from etude.study.code_hash import fingerprint as code_fingerprint
from etude.study.text_source import hash_json

Label = dict[str, str]


@dataclass(frozen=True)
class Encoder:
    """A model to read features from or to fine-tune."""

    name: str
    label: Label
    folder: Path
    key: str
    minutes: float  # of pre-training in this pick
    cost: dict[str, float | None]  # flops, tokens and seconds of its pre-training; None where nobody knows


@dataclass(frozen=True)
class Candidate:
    """A pre-training that may be tried: a recipe from scratch, or a start that goes on."""

    name: str
    label: Label
    recipe: str | Path  # a recipe by name or file; the run or folder it starts from where `is_start`
    changes: Mapping[str, Any]
    is_start: bool = False


def open_start(folder: Path, name: str) -> Encoder:
    """Take a run or a folder of `transformers` as it is."""
    cost: dict[str, float | None] = {"flops": None, "tokens": None, "seconds": None}
    if (folder / RECIPE).is_file():
        lines = Run.open(folder).metrics()
        cost = {column: lines[-1][column] for column in cost} if lines else cost
    key = hash_json(["start", _hash_files(folder)])
    return Encoder(name, {"en": name, "ko": name}, folder, key, 0.0, cost)


def _hash_files(folder: Path) -> list[tuple[str, str]]:
    """Names and hashes of the files of a model."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".json", ".yaml", ".txt"))
    if not any(path.suffix == ".safetensors" for path in files):
        raise UserError(f"--start {folder}: there are no weights (model.safetensors) in it.")
    hashes = []
    for path in files:
        with path.open("rb") as opened:
            hashes.append((path.name, hashlib.file_digest(opened, "sha256").hexdigest()))
    return hashes


def tokenizer_of(candidate: Candidate) -> str | Any:
    """Return the tokenizer that a candidate's corpus needs: a spec, or that of the start."""
    if candidate.is_start:
        return open_pretrained(candidate.recipe).tokenizer
    return Recipe.load(candidate.recipe, dict(candidate.changes)).tokenizer


def pretrain_candidate(
    candidate: Candidate, text: PickText, share: float, minutes: float, store: CellStore, device: str, seed: int,
    deadline: float, on_progress: Callable[[str], None],
) -> Encoder:  # fmt: skip
    """Pre-train a candidate for some minutes, or read it from the store; raises OutOfTime where it cannot begin."""
    corpus = text.open_corpus(tokenizer_of(candidate), share, on_progress)
    overrides = {**candidate.changes, "train.minutes": minutes, "train.seed": seed, "train.device": device}
    key = _encoder_key(candidate, corpus.fingerprint, overrides)
    folder = store.result_folder(key) / "run"
    label = {
        "en": f"{candidate.label['en']}, {_format_minutes(minutes, 'en')}",
        "ko": f"{candidate.label['ko']}, {_format_minutes(minutes, 'ko')}",
    }
    if store.state(key) == "failed":
        raise UserError(store.error(key))
    if store.state(key) != "done":
        if time.monotonic() > deadline:
            raise OutOfTime
        with store.lock(key) as work:
            run_folder = work / "run"
            try:
                if (run_folder / RECIPE).is_file():
                    run = pretraining.resume(run_folder, corpus=corpus.folder, quiet=True, deadline=deadline)
                else:
                    run = pretraining.pretrain(
                        candidate.recipe, corpus, run_folder, quiet=True, overrides=overrides, deadline=deadline
                    )
            except UserError as error:
                store.fail(key, str(error))
                raise
            lines = run.metrics()
            if not lines:
                raise OutOfTime
            last = lines[-1]
            store.finish(key, {name: last[name] for name in ("step", "tokens", "flops", "seconds")})
    result = store.result(key)
    cost = {name: float(result[name]) for name in ("flops", "tokens", "seconds")}
    return Encoder(f"{candidate.name} {_format_minutes(minutes, 'en')}", label, folder, key, minutes, dict(cost))


def _encoder_key(candidate: Candidate, corpus: str, overrides: Mapping[str, Any]) -> str:
    if candidate.is_start:
        start = open_start(Path(candidate.recipe), candidate.name)
        code = code_fingerprint("etude.pretraining.loop")
        return hash_json(["continued", start.key, corpus, dict(overrides), code])
    recipe = Recipe.load(candidate.recipe, dict(candidate.changes))
    code = cell_code.pretraining(recipe.model_kind, recipe.objective_kind)
    return hash_json(["pretrained", recipe.dump(), corpus, dict(overrides), code])


def _format_minutes(minutes: float, language: str) -> str:
    if minutes < 1:
        return f"{60 * minutes:.0f} {'s' if language == 'en' else '초'}"
    return f"{minutes:.1f} {'min' if language == 'en' else '분'}"
