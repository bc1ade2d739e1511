"""A forward and a backward language model, trained apart, as one run for a tagger.

TagLM (Peters et al. 2017, section 2.2) takes two pre-trained language models that share nothing.

    etude pretrain taglm-toy data -o runs/forward  model.direction=forward
    etude pretrain taglm-toy data -o runs/backward  model.direction=backward
    join_language_models("runs/forward", "runs/backward", "runs/both")
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from etude.errors import UserError, quote_path
from etude.hub.checkpoint_reader import ImportedModel
from etude.hub.checkpoint_writer import read_run_tensors
from etude.hub.importer import write_run
from etude.models import recurrent
from etude.runs.run import Run
from etude.text.run_checksums import verify_checksums

BACKWARD = {"embedding": "backward_embedding", "output": "backward_output"}  # modules that both models have


def join_language_models(forward: str | Path, backward: str | Path, out: str | Path) -> Run:
    """Write the run `out` with the states of both side by side: a recurrent model with `shared: false`."""
    runs = [Run.open(forward), Run.open(backward)]
    for run, direction in zip(runs, ("forward", "backward"), strict=True):
        is_recurrent = run.recipe.model_kind == "recurrent"
        if not is_recurrent or run.recipe.model_settings(recurrent.Settings).direction != direction:
            raise UserError(
                f"{run.folder} is no {direction} language model: train it with model.direction={direction}."
            )
        if not run.finished:
            raise UserError(
                f"{run.folder} is not finished. 'etude pretrain --resume {quote_path(run.folder)}' trains it."
            )
        verify_checksums(run.folder)
    forward_recipe, backward_recipe = (run.recipe for run in runs)
    if runs[0].tokenizer.fingerprint != runs[1].tokenizer.fingerprint:
        raise UserError(
            f"{runs[0].folder} and {runs[1].folder} have different tokenizers: a tagger reads words with one."
        )
    differences = [
        f"model.{name}"
        for name in type(forward_recipe.model).model_fields
        if name != "direction" and getattr(forward_recipe.model, name) != getattr(backward_recipe.model, name)
    ]
    differences += ["objective"] if forward_recipe.objective != backward_recipe.objective else []
    if differences:
        raise UserError(
            f"{runs[0].folder} and {runs[1].folder} differ in {', '.join(differences)}: "
            "only models that are alike can be joined."
        )
    tensors = _read_tensors(runs[0])
    tensors |= {_backward_name(name): tensor for name, tensor in _read_tensors(runs[1]).items()}
    settings = {"name": f"{forward_recipe.name}-joined", "model.direction": "both", "model.shared": False}
    recipe = forward_recipe.with_settings(settings)
    notes = (f"joined from {runs[0].folder.name} and {runs[1].folder.name}",)
    imported = ImportedModel("taglm", "two language models", recipe, tensors, frozenset(), runs[0].tokenizer, notes)
    return write_run(imported, f"{runs[0].folder.name} and {runs[1].folder.name}", Path(out))


def _read_tensors(run: Run) -> dict[str, Tensor]:
    return read_run_tensors(run.recipe, run.tokenizer.special, run.folder)[0]


def _backward_name(name: str) -> str:
    """Return the name that a tensor of the backward model has in the joined one."""
    owner, module, rest = name.split(".", 2)
    return f"{owner}.{BACKWARD.get(module, module)}.{rest}"
