"""Export of a finished run as a folder that `transformers` opens, or in the format of ELMo's release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from etude.errors import UserError, quote_path
from etude.graph.entity_links import EntityLinks
from etude.hub import elmo_files as elmo
from etude.hub import ernie_files as ernie
from etude.hub import translator_files
from etude.hub.checkpoint_writer import (
    PublishedModel,
    describe_mismatch,
    read_run_tensors,
    to_published,
    to_published_encoder,
    write_published,
)
from etude.hub.task_heads import to_published_with_head
from etude.hub.tokenizer_files import add_markers, add_start_token, let_mask_take_space
from etude.models import ernie as ernie_model
from etude.models import recurrent
from etude.recipes.schema import Recipe
from etude.runs.checksums import write_checksums
from etude.runs.model_card import USE, cut_commands
from etude.runs.run import MODEL_CARD, Run
from etude.runs.staging import staged_folder
from etude.text.run_checksums import verify_checksums
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint


def export_run(run: Run | str | Path, out: str | Path) -> PublishedModel:
    """Write config.json, model.safetensors and the tokenizer of a run into the new folder `out`."""
    run = run if isinstance(run, Run) else Run.open(run)
    if not run.finished:
        verb = "finetune" if run.is_fine_tuned else "pretrain"
        raise UserError(
            f"{run.folder} is not finished. 'etude {verb} --resume {quote_path(run.folder)}' trains it to its end."
        )
    recipe, folder = run.recipe, Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already. Choose another folder with -o.")
    verify_checksums(run.folder)  # damaged weights would leave with checksums of their own
    if run.is_fine_tuned:
        tuned = to_published_with_head(run)
        with _exported_folder(folder, run, tuned) as staging:
            write_published(tuned, staging)
        return replace(tuned, usage=tuple(line.replace("FOLDER", str(folder)) for line in tuned.usage))
    tensors, _ = read_run_tensors(recipe, run.tokenizer.special, run.folder)
    if recipe.model_kind == "recurrent":
        return _export_elmo(run, tensors, folder)
    if recipe.model_kind == "ernie":
        return _export_ernie(run, tensors, folder)
    is_translator = recipe.objective_kind == "translate"
    if is_translator:
        reason = translator_files.describe_mismatch(recipe, run.tokenizer)
    else:
        reason = describe_mismatch(recipe, tensors)
    tokenizer = _add_framing(recipe, run.tokenizer)
    published = to_published_encoder(recipe, tensors, tokenizer) if reason and not is_translator else None
    if reason and published is None:
        raise UserError(f"{run.folder} cannot be exported to transformers: {reason}.")
    if is_translator:
        translator = translator_files.to_published(recipe, tensors, run.tokenizer)
        with _exported_folder(folder, run, translator) as staging:
            write_published(translator, staging)
        return translator
    published = published or to_published(recipe, tensors, tokenizer, trim=True)
    assert published is not None  # as describe_mismatch is empty
    published = _add_tokenizer_file(published, tokenizer.content)
    with _exported_folder(folder, run, published) as staging:
        write_published(published, staging)
    return published


@contextmanager
def _exported_folder(folder: Path, run: Run, published: PublishedModel | None = None) -> Iterator[Path]:
    """Yield a folder to write into, with the run's model card; it becomes `folder` at the end or not at all."""
    with staged_folder(folder) as staging:
        model_card = run.folder / MODEL_CARD
        if model_card.is_file():
            card = cut_commands(model_card.read_text(encoding="utf-8"))
            checkpoint.write_text(staging / MODEL_CARD, card + _format_usage(published))
        yield staging
        write_checksums(staging)


def _format_usage(published: PublishedModel | None) -> str:
    """The section of a card that says how the folder is opened; "." stands for the folder."""
    if published is None:
        return ""
    lines = published.usage or (
        f"It opens as {published.architecture}:",
        f"  from transformers import AutoTokenizer, {published.auto_class}",
        f'  model = {published.auto_class}.from_pretrained("FOLDER")',
        '  tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
    )
    text = "\n".join(f"    {line.strip()}" if line.startswith("  ") else f"{line}\n" for line in lines)
    notes = "".join(f"- {note}\n" for note in published.notes)
    return f"\n{USE}\n{text}\n" + (f"\n{notes}" if notes else "")


def _export_elmo(run: Run, tensors: Mapping[str, Tensor], folder: Path) -> PublishedModel:
    """Write options.json and weights.hdf5, as ELMo was released."""
    reason = elmo.describe_mismatch(run.recipe)
    if reason:
        raise UserError(f"{run.folder} cannot be exported: {reason}.")
    with _exported_folder(folder, run) as staging:
        elmo.write_release(run.recipe, tensors, run.tokenizer, staging)
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    usage = ("Opens where ELMo's released files do, and here:", f'  model = etude.load("{folder}")')
    return PublishedModel(elmo.make_options(run.recipe.model_settings(recurrent.Settings)), own, usage=usage)


def _export_ernie(run: Run, tensors: Mapping[str, Tensor], folder: Path) -> PublishedModel:
    """Write ernie_config.json, pytorch_model.bin and the entity vectors, as ERNIE was released."""
    reason = ernie.describe_mismatch(run.recipe, run.tokenizer)
    if reason:
        raise UserError(f"{run.folder} cannot be exported as ERNIE's release: it has no place for {reason}.")
    links = EntityLinks.load(run.folder)
    with _exported_folder(folder, run) as staging:
        ernie.write_release(run.recipe, tensors, run.tokenizer, None if links is None else list(links.names), staging)
    usage = (
        "Opens where ERNIE's released files do (thunlp/ERNIE), and here:",
        f"  etude import {quote_path(folder)} -o runs/NAME",
    )
    config = ernie.make_config(run.recipe.model_settings(ernie_model.Settings))
    return PublishedModel(config | {"architectures": ["BertForPreTraining"]}, dict(tensors), usage=usage)


def _add_framing(recipe: Recipe, tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer that frames a text in transformers as the objective does here."""
    if recipe.objective_kind != "causal":
        tokenizer = let_mask_take_space(tokenizer)
        has_markers = getattr(recipe.objective, "markers", True)
        return add_markers(tokenizer) if has_markers else add_start_token(tokenizer, None)
    special = tokenizer.special
    start = special.start if recipe.objective.start else special.end if recipe.objective.documents == "split" else None
    return add_start_token(tokenizer, start)


def _add_tokenizer_file(published: PublishedModel, tokenizer: str) -> PublishedModel:
    """Add tokenizer.json to a model and its submodels."""
    submodels = {name: _add_tokenizer_file(part, tokenizer) for name, part in published.submodels.items()}
    return replace(published, files={**published.files, "tokenizer.json": tokenizer}, submodels=submodels)
