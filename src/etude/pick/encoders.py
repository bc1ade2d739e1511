"""Encoders of a pick: models that were given, pre-trained on the user's text, or given and trained on.

A pre-training is stored under a key of the recipe, the text and its minutes, not of the labels: where only labels
change, it is there already. One that is slower than planned is shortened, so that its learning rate comes to its end
before the deadline; one that did not get there is used as far as it came.

What is to be computed (`Pretraining`) is JSON-ready and knows its key, so that a process of its own can do it and leave
the result in the store (pick/worker_pool.py).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.pick.clock import OutOfTime
from etude.pick.interruption import raise_if_interrupted
from etude.pick.text import PickText
from etude.pretraining import pretrain as pretraining
from etude.recipes.schema import Recipe
from etude.runs.run import METRICS, RECIPE, TASK, Run
from etude.runs.source import ORIGIN, read_origin
from etude.study import cell_code
from etude.study.cells import CellStore
from etude.study.code_hash import fingerprint as code_fingerprint
from etude.study.text_source import hash_json
from etude.text.corpus.corpus import Corpus
from etude.train.failures import is_machine_error

Label = dict[str, str]

# Without a trial of its speed a pre-training is planned as long as the fastest would be, and shortened.
FASTEST = 4e6  # tokens a second
MOST_EPOCHS = 60  # of the text: repeating it pays less and less (Muennighoff et al. 2023)
COMPILATION_PAYS = 240.0  # seconds of training from which on torch.compile, a minute or more, pays
CONTINUED_BATCH_TOKENS = 16_384  # of a start that goes on, on a GPU
LOADERS = 2  # processes that build batches for a model that shares a GPU: each builds a million tokens a second


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
    epochs: float | None = None  # over the text, where more does not pay; fewer where the time is short


def open_start(folder: Path, name: str) -> Encoder:
    """Take a run or a folder of `transformers` as it is."""
    cost: dict[str, float | None] = {"flops": None, "tokens": None, "seconds": None}
    if _knows_cost(folder):
        lines = Run.open(folder).metrics()
        cost = {column: lines[-1][column] for column in cost} if lines else cost
    key = hash_json(["start", _hash_files(folder)])
    return Encoder(name, {"en": name, "ko": name}, folder, key, 0.0, cost)


def _knows_cost(folder: Path) -> bool:
    """Whether the log of a run is that of its whole pre-training: not of a fine-tuning, nor of one that went on."""
    if not (folder / RECIPE).is_file() or not (folder / METRICS).is_file():  # an imported run has no metrics
        return False
    is_continued = (folder / ORIGIN).is_file() and read_origin(folder).get("start") is not None
    return not (folder / TASK).is_file() and not is_continued


def check_start(folder: Path) -> None:
    """Open a start once: what is wrong with it is said before anything is computed, and not by its absence."""
    if not any((folder / name).is_file() for name in (RECIPE, "config.json")):
        raise UserError(
            f"--start {folder}: it is neither a run (recipe.yaml) nor a folder of transformers (config.json)."
        )
    try:
        open_pretrained(folder)
    except UserError as error:
        raise UserError(f"--start {folder}: {error}") from None


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


@dataclass(frozen=True)
class Pretraining:
    """A pre-training that is to be done, JSON-ready."""

    key: str
    name: str
    label: Label
    recipe: str  # a recipe, or the folder that is gone on from
    corpus: str
    overrides: dict[str, Any]
    minutes: float

    def json(self) -> dict[str, Any]:
        return asdict(self)


def tokenizer_of(candidate: Candidate) -> str | Any:
    """Return the tokenizer that a candidate's corpus needs: a spec, or that of the start."""
    if candidate.is_start:
        return open_pretrained(candidate.recipe).tokenizer
    return Recipe.load(candidate.recipe, dict(candidate.changes)).tokenizer


def plan_pretraining(
    candidate: Candidate, text: PickText, share: float, minutes: float, device: str, seed: int,
    on_progress: Callable[[str], None], *, is_timed: bool = True,
) -> Pretraining:  # fmt: skip
    """Settle a pre-training of some minutes; the text is prepared here if it is not there yet.

    A number of epochs is shortened where the minutes are too few. One that is timed has a trial of its speed first. On
    a device that others share the trial would say nothing, and it costs as much as the rest of a short run: then the
    run is planned too long, and shortened.
    """
    corpus = text.open_corpus(tokenizer_of(candidate), share, on_progress)
    overrides = {**candidate.changes, "train.seed": seed, "train.device": device}
    if candidate.epochs is not None:
        overrides["train.tokens"] = max(1, int(candidate.epochs * corpus.total))
    elif is_timed:
        overrides["train.minutes"] = minutes
    else:
        overrides |= _untimed_overrides(candidate, corpus, 60 * minutes, device)
    label = {
        "en": f"{candidate.label['en']}, {_format_minutes(minutes, 'en')}",
        "ko": f"{candidate.label['ko']}, {_format_minutes(minutes, 'ko')}",
    }
    key = _encoder_key(candidate, corpus.fingerprint, {**overrides, "minutes": minutes})
    name = f"{candidate.name} {_format_minutes(minutes, 'en')}"
    return Pretraining(key, name, label, str(candidate.recipe), str(corpus.folder), overrides, minutes)


def _untimed_overrides(candidate: Candidate, corpus: Corpus, seconds: float, device: str) -> dict[str, Any]:
    """The length of a pre-training, as many steps as could be; on a GPU also whether it is worth compiling."""
    overrides: dict[str, Any] = {}
    if device == "cuda":  # of a run of minutes, checkpoints on the way would cost more than doing it again
        overrides |= {"train.workers": LOADERS, "train.save_every": 0, "train.eval_every": 0}
    if device == "cuda" and seconds < COMPILATION_PAYS:
        overrides["train.compile"] = False
    if candidate.is_start:
        batch_tokens = CONTINUED_BATCH_TOKENS
        overrides["train.batch_tokens"] = batch_tokens
    else:
        batch_tokens = Recipe.load(candidate.recipe, dict(candidate.changes)).train.batch_tokens
    tokens = min(FASTEST * seconds, MOST_EPOCHS * corpus.total)
    return overrides | {"train.steps": max(1, int(tokens / batch_tokens))}


def run_pretraining(store: CellStore, planned: Pretraining, deadline: float) -> None:
    """Do a pre-training unless it is in the store; raises OutOfTime where it cannot begin."""
    if store.state(planned.key) == "failed":
        raise UserError(store.error(planned.key))
    if store.state(planned.key) == "done":
        return
    if time.monotonic() > deadline:
        raise OutOfTime
    with store.lock(planned.key) as work:
        folder, corpus = work / "run", Corpus.open(planned.corpus)
        try:
            if (folder / RECIPE).is_file():
                run = pretraining.resume(folder, corpus=corpus.folder, quiet=True, deadline=deadline, shorten=True)
            else:
                run = pretraining.pretrain(
                    planned.recipe, corpus, folder, quiet=True, overrides=planned.overrides, deadline=deadline,
                    shorten=True,
                )  # fmt: skip
        except UserError as error:
            if not is_machine_error(error):
                store.fail(planned.key, str(error))
            raise
        raise_if_interrupted(run, deadline)
        lines = run.metrics()
        if not lines:
            raise OutOfTime
        store.finish(planned.key, {name: lines[-1][name] for name in ("step", "tokens", "flops", "seconds")})


def read_encoder(store: CellStore, planned: Pretraining) -> Encoder:
    """The encoder of a pre-training that is done."""
    result = store.result(planned.key)
    cost: dict[str, float | None] = {name: float(result[name]) for name in ("flops", "tokens", "seconds")}
    folder = store.result_folder(planned.key) / "run"
    return Encoder(planned.name, planned.label, folder, planned.key, planned.minutes, cost)


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
