"""The model card of a run: what it is, what it learnt from, what it cost, what it scored, how to repeat it."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from etude.runs.run import Run
    from etude.text.corpus.corpus import Corpus
    from etude.train.run_state import TrainResult


def hardware() -> str:
    """The machine in words, without names of hosts or paths."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("etude")
    except PackageNotFoundError:  # run from a checkout that was not installed
        own = "from source"
    return f"etude {own}, torch {torch.__version__}, Python {platform.python_version()}"


def model_card(run: Run, corpus: Corpus, result: TrainResult, teacher: str | None = None) -> str:
    """`teacher`: in words, where there was one."""
    recipe, state, fingerprint = run.recipe, result.state, corpus.fingerprint
    model, objective = recipe.model.model_dump(mode="json"), recipe.objective.model_dump(mode="json")
    scores = "\n".join(f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in result.valid.items())
    groups = {name for name, value in objective.items() if isinstance(value, dict)}  # of a teacher: it has its own line
    shape = ", ".join(
        f"{name} {model[name]}" for name in ("layers", "width", "heads", "context", "vocab") if name in model
    )
    options = ", ".join(f"{k} {v}" for k, v in objective.items() if v is not None and k not in groups)
    taught, command, beside = "", "pretrain recipe.yaml CORPUS", ""
    if teacher is not None:
        taught, command = f"| teacher | {teacher} |\n", "distill recipe.yaml CORPUS --teacher TEACHER"
        beside = " and the teacher, taught as `distill.yaml` has it,"
    return f"""# {run.folder.name}

{recipe.system or recipe.name}, pre-trained with Etude (recipe `{recipe.name}`). {recipe.note}

| | |
|---|---|
| paper | {recipe.paper or "none"} |
| model | {recipe.model_kind}: {shape} |
| objective | {recipe.objective_kind}: {options} |
| text | {corpus.total:,} tokens in {len(corpus.documents):,} documents, fingerprint `{fingerprint}` |
| tokenizer | {recipe.tokenizer}, {corpus.tokenizer.vocab:,} tokens |
| trained | {state.step:,} steps, {state.tokens:,} tokens, {state.flops:.3e} FLOPs, {state.seconds:,.0f} s |
{taught}| seed | {recipe.train.seed} |
| hardware | {hardware()} |
| versions | {versions()} |
| date | {datetime.now(UTC).date().isoformat()} |

## Held-out scores
| | |
|---|---|
{scores or "| none: the corpus has no held-out part | |"}

## Repeat it
    etude {command} -o {run.folder.name}

with the `recipe.yaml` of this folder and the corpus{beside} of the fingerprint above.
"""
