"""Word vectors between files and runs, which tasks, `features` and `show` can use.

An imported run has a word-level tokenizer: our special tokens, then the words of the file, composed (NFC) as every text
is. Text is lower-cased where no word of the file has an upper-case letter. The output table, where the file holds none,
is 0.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from etude.errors import UserError, explain_write_failure
from etude.hub.fasttext_files import FastText, FastTextTraining, read_fasttext, write_fasttext
from etude.hub.run_weights import load_learner, save_final
from etude.hub.vector_files import VectorFormat, detect_format, read_vectors, write_vectors
from etude.hub.word_vectors import WordVectors, explain_no_vectors
from etude.models.base import require
from etude.models.static import Static
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run, import_origin, write_run_files
from etude.runs.staging import refuse_existing, staged_folder
from etude.text.tokenizer.normalization import normalize_nfc
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.token_strings import list_token_strings
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.text.tokenizer.training import WORD_PATTERN
from etude.train import checkpoint

SYSTEMS = {"word2vec": "word2vec", "word2vec-binary": "word2vec", "glove": "GloVe", "fasttext": "fastText"}


def import_vectors(source: str | Path, out: str | Path, form: VectorFormat | None = None) -> Run:
    """Read a file of vectors and write the run `out`, which is complete or absent."""
    source, folder = Path(source), Path(out)
    refuse_existing(folder)
    form = form or detect_format(source)
    fasttext = read_fasttext(source) if form == "fasttext" else None
    vectors = fasttext.vectors() if fasttext else read_vectors(source, form)
    if fasttext is None:  # n-grams of a fastText model are those of its own spelling
        vectors = replace(vectors, words=[normalize_nfc(word) for word in vectors.words])
    if not vectors.words:
        raise UserError(f"{source} has no words. Is it the right file?")
    tokenizer = _make_tokenizer(vectors.words)
    recipe = _make_recipe(vectors, form, source.name, fasttext, tokenizer.vocab)
    model, objective = build_learner(recipe, tokenizer)
    _fill_tables(require(model, Static, f"{source} was not read as word vectors."), vectors, fasttext, tokenizer)
    model_card = (
        f"# {recipe.name}\n\n{SYSTEMS[form]} vectors of {len(vectors.words):,} words, {vectors.width} wide, imported "
        f"from `{source.name}`. They were trained elsewhere; see there for data and licence.\n"
    )
    with staged_folder(folder) as staging:
        write_run_files(staging, recipe, tokenizer, import_origin(source.name))
        save_final(Run(staging), model, objective, model_card)
    return Run(folder)


def export_vectors(run: Run | str | Path, path: str | Path, form: VectorFormat | None = None) -> VectorFormat:
    """Write the vectors of a run as a file; its format follows from the name unless `form` is given."""
    run, path = run if isinstance(run, Run) else Run.open(run), Path(path)
    if path.exists():
        raise UserError(f"{path} exists already. Choose another name with -o.")
    loaded, _, _ = load_learner(run)
    model = require(loaded, Static, explain_no_vectors(run))
    form = form or _form_from_name(path, bool(model.settings.buckets))
    writing = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        with explain_write_failure(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if form == "fasttext":
                write_fasttext(_to_fasttext(run, model), writing)
            else:
                words, unknown = list_token_strings(run.tokenizer), run.tokenizer.special.unknown
                write_vectors(WordVectors.from_model(model, words, unknown), writing, form)
            checkpoint.flush(writing)
            writing.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            writing.unlink(missing_ok=True)
        raise
    return form


def open_vectors(source: str | Path) -> WordVectors:
    """Open the vectors of a run or of a file."""
    source = Path(source)
    if source.is_dir():
        return WordVectors.from_run(Run.open(source))
    if not source.is_file():
        raise UserError(f"There is no run and no file of vectors at {source}.")
    return read_vectors(source)


def _form_from_name(path: Path, has_buckets: bool) -> VectorFormat:
    if path.suffix == ".bin":
        return "fasttext" if has_buckets else "word2vec-binary"
    if path.suffix == ".vec":
        return "word2vec"
    raise UserError(
        f"{path}: give its format with --form word2vec, word2vec-binary, glove or fasttext; or name it .vec (word2vec "
        "text) or .bin."
    )


def _to_fasttext(run: Run, model: Static) -> FastText:
    words, counts = list_token_strings(run.tokenizer), model.counts.numpy()
    ids = np.array([id for id, word in enumerate(words) if word is not None], np.int64)
    inputs, outputs = (table.weight.detach().numpy() for table in (model.input, model.output))
    if model.settings.result == "sum":  # GloVe: the file has one table
        inputs = inputs[: model.vocab] + outputs
    objective: Any = run.recipe.objective
    is_word2vec = run.recipe.objective_kind in ("skipgram", "cbow")
    training = FastTextTraining(
        window=objective.window,
        negatives=objective.negatives,
        output=objective.output,
        objective=run.recipe.objective_kind,
        subsample=objective.subsample or 0.0,
    ) if is_word2vec else FastTextTraining()  # fmt: skip
    if training.output == "hierarchical":
        # rows of the output table are nodes of the tree that a reader builds from the counts, which fall in its files;
        # fastText's label at a node is that of word2vec, and ours, turned round [code]: so is the sign of its row
        ids = ids[counts[ids] > 0]  # a word that the text does not have has no place in the tree
        ids = ids[np.argsort(-counts[ids], kind="stable")]
    return FastText(
        [str(words[id]) for id in ids],
        counts[ids],
        np.concatenate([inputs[ids], inputs[model.vocab :]]),
        -outputs[: len(ids)] if training.output == "hierarchical" else outputs[ids],
        model.settings.grams,
        training,
    )


def _make_tokenizer(words: list[str]) -> Tokenizer:
    vocab = {word: number for number, word in enumerate(TRAINED_SPECIALS)}
    for word in words:
        vocab.setdefault(word, len(vocab))
    backend = Backend(models.WordLevel(vocab, unk_token="[UNK]"))
    is_cased = any(word != word.lower() for word in words)
    steps: list[normalizers.Normalizer] = [normalizers.NFC(), *([] if is_cased else [normalizers.Lowercase()])]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORD_PATTERN), "removed", invert=True)
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in TRAINED_SPECIALS])
    return Tokenizer(backend.to_str())


def _make_recipe(vectors: WordVectors, form: VectorFormat, name: str, fasttext: FastText | None, vocab: int) -> Recipe:
    settings: dict[str, Any] = {
        "name": name,
        "tokenizer": f"word:{vocab}",
        "model.width": vectors.width,
        "model.vocab": vocab,
        "train.steps": 1,
        "system": SYSTEMS[form],
        "note": f"imported from {name}",
    }
    if fasttext is not None:
        settings |= {
            "model.buckets": fasttext.buckets,
            "model.unknown": "subwords" if fasttext.buckets else "rarest",
            "objective.window": fasttext.training.window,
            "objective.negatives": max(1, fasttext.training.negatives),
            "objective.output": fasttext.training.output,
            "objective.subsample": fasttext.training.subsample or None,
        }
        settings |= {"model.grams": list(fasttext.ngram_sizes)} if fasttext.buckets else {}
        base = "fasttext" if fasttext.training.objective == "skipgram" else "word2vec-cbow"
    else:
        settings |= {"model.unknown": "own" if vectors.unknown_row is not None else "rarest"}
        base = "word2vec-skipgram"
    return Recipe.load(base, settings).resolve(vocab=vocab)


@torch.no_grad()
def _fill_tables(model: Static, vectors: WordVectors, fasttext: FastText | None, tokenizer: Tokenizer) -> None:
    """Copy the file's vectors into the tables; rows of special tokens are 0, but for the file's own unknown word."""
    first = len(TRAINED_SPECIALS)
    for table in (model.input, model.output):
        table.weight[:] = 0
    # a word that comes twice, or has the name of a special token, has one row
    ids = np.array([tokenizer.id(word) for word in vectors.words])
    order = np.arange(len(ids))[::-1]  # of two rows for one id, the first is written last
    rows = vectors.matrix if fasttext is None else fasttext.inputs[: len(vectors.words)]
    model.input.weight[torch.from_numpy(ids[order])] = torch.from_numpy(rows[order].copy())
    if fasttext is not None:
        model.input.weight[model.vocab :] = torch.from_numpy(fasttext.inputs[len(vectors.words) :])
        if fasttext.training.output == "hierarchical":  # nodes of a tree, not words
            nodes = -fasttext.outputs[: model.vocab]  # see _to_fasttext
            model.output.weight[: len(nodes)] = torch.from_numpy(nodes)
        else:
            model.output.weight[torch.from_numpy(ids[order])] = torch.from_numpy(fasttext.outputs[order].copy())
    if vectors.counts is not None:
        model.counts[torch.from_numpy(ids[order])] = torch.from_numpy(vectors.counts[order].copy())
    if vectors.unknown_row is not None and tokenizer.special.unknown is not None:
        assert tokenizer.special.unknown < first
        model.input.weight[tokenizer.special.unknown] = torch.from_numpy(vectors.unknown_row)
