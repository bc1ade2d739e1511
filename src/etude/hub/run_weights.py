"""The weights of a pre-trained run: written when it is finished, read back into a model and its objective.

Final weights lie under the published names where the family has a class in `transformers`, else under our own
(`config.json` says which). Before the end, those of the last checkpoint are taken, which are always under our own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from etude.errors import UserError, quote_path
from etude.hub.checkpoint_writer import read_run_tensors, to_published, write_published, write_tensors
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective
from etude.recipes.learner import build_learner
from etude.runs.checksums import remove_checksums, write_checksums
from etude.runs.run import MODEL_CARD, WEIGHTS, Run
from etude.text.run_checksums import verify_checksums
from etude.train import checkpoint


def load_learner(run: Run) -> tuple[Model, PretrainingObjective, frozenset[str]]:
    """Return model, objective and the names of tensors never trained: heads that an imported model came without."""
    untrained: set[str] = set()
    if run.finished:
        verify_checksums(run.folder)
    model, objective = build_learner(run.recipe, None if run.recipe.reads_graph else run.tokenizer)
    refuse_other_tokenizer(run, model)
    learner = nn.ModuleDict({"model": model, "objective": objective})
    if run.finished:
        weights, untrained = read_run_tensors(run.recipe, run.special, run.folder)
        initial = {name: tensor for name, tensor in learner.state_dict().items() if name in untrained}
        checkpoint.load_strictly(learner, {**weights, **initial}, str(run.folder / WEIGHTS))
    elif run.steps:
        groups, _ = checkpoint.load(run.checkpoints, run.steps[-1], ("weights",))
        dropped = tuple(f"objective.{start}" for start in objective.training_state)
        weights = {name: tensor for name, tensor in groups["weights"].items() if not name.startswith(dropped)}
        checkpoint.load_strictly(learner, weights, f"checkpoint {run.steps[-1]} of {run.folder}")
        untrained = {
            f"objective.{name}" for name in objective.state_dict().keys() - objective.persistent_state().keys()
        }
    else:
        raise UserError(
            f"{run.folder} has no weights yet. 'etude pretrain --resume {quote_path(run.folder)}' trains it."
        )
    return run.attach_links(model).eval(), objective.eval(), frozenset(untrained)


def refuse_other_tokenizer(run: Run, model: Model) -> None:
    """Raise UserError where the tokenizer of a run has ids that its model has no rows for."""
    if not run.recipe.reads_graph and run.tokenizer.vocab > model.vocab:
        raise UserError(
            f"{run.folder}: the tokenizer has {run.tokenizer.vocab:,} ids, and the model has rows for {model.vocab:,}. "
            "It is damaged, or of another run: take the folder from a copy."
        )


def save_final(run: Run, model: Model, objective: PretrainingObjective, model_card: str) -> None:
    """Write the model card and the final weights, which say that the run is finished; then the checksums."""
    remove_checksums(run.folder)
    checkpoint.write_text(run.folder / MODEL_CARD, model_card)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    weights |= {f"objective.{name}": tensor for name, tensor in objective.persistent_state().items()}
    published = None if run.recipe.reads_graph else to_published(run.recipe, weights, run.tokenizer)
    if published is not None:
        write_published(published, run.folder)
        write_checksums(run.folder)
        return
    config = {"model_type": f"etude-{run.recipe.model_kind}", "etude": run.recipe.model.model_dump(mode="json")}
    every = {f"objective.{name}" for name in objective.state_dict() if not name.startswith(objective.training_state)}
    if every - weights.keys():
        config["untrained"] = sorted(every - weights.keys())
    checkpoint.write_text(run.folder / "config.json", json.dumps(config, indent=1))
    write_tensors(weights, run.folder / WEIGHTS)
    write_checksums(run.folder)


def fingerprint_weights(*modules: nn.Module) -> str:
    """A hash of the names and values of all weights: tells whether a teacher is still the same one."""
    return _hash_tensors(item for module in modules for item in sorted(module.state_dict().items()))


def fingerprint_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A hash of the names and values of some tensors: tells whether the start of a run is still the same one."""
    return _hash_tensors(sorted(tensors.items()))


def _hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
