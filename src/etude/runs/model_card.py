"""The model card of a pre-trained run: model, data, cost, scores, and how to repeat it."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from etude.runs.source import describe_source, describe_tokenizer

if TYPE_CHECKING:
    from etude.runs.run import Run
    from etude.runs.source import Source
    from etude.train.run_state import TrainResult


USE, REPEAT = "## Use it", "## Repeat it"  # headings of the last section: commands to type in the folder of the run
SIZES = ("layers", "width", "heads", "context", "vocab", "relations", "score")  # of a model, where it has them


def describe_hardware(device: str | None = None) -> str:
    """Describe the machine, without names of hosts or paths; with the `device` of a run, what that run uses of it."""
    if torch.cuda.is_available() and (device is None or device.startswith("cuda")):
        count = torch.cuda.device_count() if device is None else dist.get_world_size() if dist.is_initialized() else 1
        return f"{count} x {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'s' if threads > 1 else ''}"


def describe_versions() -> str:
    """Return the versions of Etude, PyTorch and Python."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("etude")
    except PackageNotFoundError:  # run from a checkout that was not installed
        own = "from source"
    return f"etude {own}, torch {torch.__version__}, Python {platform.python_version()}"


def format_model_card(
    run: Run, corpus: Source, result: TrainResult, teacher: str | None = None, start: str | None = None
) -> str:
    """Return the model card in Markdown; `teacher` and `start` describe what a run learnt from or went on from."""
    recipe, state, fingerprint = run.recipe, result.state, corpus.fingerprint
    model, objective = recipe.model.model_dump(mode="json"), recipe.objective.model_dump(mode="json")
    scores = "\n".join(f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in result.valid.items())
    groups = {name for name, value in objective.items() if isinstance(value, dict)}  # of a teacher: it has its own line
    shape = ", ".join(f"{name} {model[name]}" for name in SIZES if name in model)
    options = ", ".join(f"{k} {v}" for k, v in objective.items() if v is not None and k not in groups)
    noun = "graph" if recipe.reads_graph else "corpus"
    if scores and recipe.train.average > 1:
        scores += "\n\nOf the last step. The weights here are the mean of the last "
        scores += f"{recipe.train.average} checkpoints, or of all where there were fewer."
    source, unit, tokenizer_row = ("graph", "triples", "") if corpus.tokenizer is None else (
        "text", "tokens", f"| tokenizer | {describe_tokenizer(corpus)} |\n"
    )  # fmt: skip
    trained = f"{state.step:,} steps, {state.tokens:,} {unit}, {state.flops:.3e} FLOPs, {state.seconds:,.0f} s"
    teacher_row, command, teacher_note = "", f"pretrain recipe.yaml {noun.upper()}", ""
    if start is not None:
        teacher_row, command = f"| goes on from | {start} |\n", "pretrain START CORPUS"
    if teacher is not None:
        teacher_row, command = f"| teacher | {teacher} |\n", "distill recipe.yaml CORPUS --teacher TEACHER"
        teacher_note = " and the teacher, taught as `distill.yaml` has it,"
    return f"""# {run.folder.name}

{recipe.system or recipe.name}, pre-trained with Etude (recipe `{recipe.name}`). {recipe.note}

| | |
|---|---|
| paper | {recipe.paper or "none"} |
| model | {recipe.model_kind}: {shape} |
| objective | {recipe.objective_kind}: {options} |
| {source} | {describe_source(corpus)}, fingerprint `{fingerprint}` |
{tokenizer_row}| trained | {trained} |
{teacher_row}| seed | {recipe.train.seed} |
| hardware | {describe_hardware(recipe.train.device)} |
| versions | {describe_versions()} |
| date | {datetime.now(UTC).date().isoformat()} |

## Held-out scores
| | |
|---|---|
{scores or f"| none: the {noun} has no held-out part | |"}

{REPEAT}
In this folder, with its `recipe.yaml` and the {noun}{teacher_note} of the fingerprint above:

    etude {command} -o ANOTHER
"""


def cut_commands(card: str) -> str:
    """Return a model card without its last section: commands that hold in the folder of the run and nowhere else."""
    for heading in (USE, REPEAT):
        card = card.partition(f"\n{heading}\n")[0]
    return card.rstrip("\n") + "\n"


def rename_card(card: str, name: str) -> str:
    """Return a model card under the name of another folder."""
    return f"# {name}\n{card.partition(chr(10))[2]}"
