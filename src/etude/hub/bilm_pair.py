"""Two language models that were trained apart, one forward and one backward, as the one run a tagger reads.

TagLM (Peters et al. 2017, section 2.2) takes its two language models from elsewhere; nothing is shared between them.

    etude pretrain taglm-toy data -o runs/forward  model.direction=forward
    etude pretrain taglm-toy data -o runs/backward  model.direction=backward
    joining.join("runs/forward", "runs/backward", "runs/both")
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from etude.errors import UserError
from etude.hub.checkpoint_reader import Adopted
from etude.hub.checkpoint_writer import reread
from etude.hub.importer import store
from etude.runs.run import Run

BACKWARD = {"embedding": "backward_embedding", "output": "backward_output"}  # what both have, under its second name


def join(forward: str | Path, backward: str | Path, out: str | Path) -> Run:
    """The run `out` with the states of both, side by side: a recurrent model with `shared: false`."""
    runs = [Run.open(forward), Run.open(backward)]
    for run, direction in zip(runs, ("forward", "backward"), strict=True):
        if run.recipe.model_kind != "recurrent" or run.recipe.model.direction != direction:
            raise UserError(
                f"{run.folder} is no {direction} language model: train it with model.direction={direction}."
            )
        if not run.finished:
            raise UserError(f"{run.folder} is not finished. 'etude pretrain --resume {run.folder}' trains it.")
    ahead, back = (run.recipe for run in runs)
    if runs[0].tokenizer.fingerprint != runs[1].tokenizer.fingerprint:
        raise UserError(
            f"{runs[0].folder} and {runs[1].folder} have different tokenizers: a tagger reads words with one."
        )
    differ = [
        f"model.{name}"
        for name in type(ahead.model).model_fields
        if name != "direction" and getattr(ahead.model, name) != getattr(back.model, name)
    ]
    differ += ["objective"] if ahead.objective != back.objective else []
    if differ:
        raise UserError(
            f"{runs[0].folder} and {runs[1].folder} differ in {', '.join(differ)}: only like models are joined."
        )
    tensors = _tensors(runs[0]) | {_renamed(name): one for name, one in _tensors(runs[1]).items()}
    recipe = ahead.with_settings({"name": f"{ahead.name}-joined", "model.direction": "both", "model.shared": False})
    notes = (f"joined from {runs[0].folder.name} and {runs[1].folder.name}",)
    adopted = Adopted("taglm", "two language models", recipe, tensors, frozenset(), runs[0].tokenizer, notes)
    return store(adopted, f"{runs[0].folder.name} and {runs[1].folder.name}", Path(out))


def _tensors(run: Run) -> dict[str, Tensor]:
    return reread(run.recipe, run.tokenizer.special, run.folder)[0]


def _renamed(name: str) -> str:
    whole, part, rest = name.split(".", 2)
    return f"{whole}.{BACKWARD.get(part, part)}.{rest}"
