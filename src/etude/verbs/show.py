"""A model, looked at: attention of its heads, paths of its answers; word vectors; and what a graph holds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.errors import UserError
from etude.verbs.limits import require_at_least, require_device
from etude.verbs.opened import open_language_model
from etude.verbs.paths import require_corpus, require_path, require_recipe
from etude.verbs.random_state import keeps_random_state

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.inference.task_model import TaskModel
    from etude.pretraining.training_batch import TrainingBatch
    from etude.recipes.schema import Recipe
    from etude.runs.run import Run
    from etude.text.corpus.corpus import Corpus
    from etude.verbs.opened import OpenedModel
    from etude.view.attention import Attention
    from etude.view.coverage import Coverage
    from etude.view.heads import HeadReport
    from etude.view.mix import Mix
    from etude.view.paths import PathExplanation
    from etude.view.word_scores import Analogies, Similarity

TASK_RUN = "a fine-tuned run"
VECTORS = "a run of word vectors, or a file of them"


@keeps_random_state
def attention(
    run: str | Path | Run | OpenedModel,
    text: str,
    *,
    second: str | None = None,
    layer: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
) -> Attention:
    """Show what each head of a Transformer attends to in a text, and where most of its weight goes.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        text: The text that the model reads.
        second: A second text: the two as a pair; of a translation model, the target whose alignment is shown.
        layer: Only this layer, counted from 0.
        out: Write the maps of all heads as a page to this .html file.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
    """
    page_file = _check_page(out, "maps are")
    require_device(device)
    from etude.view.alignment import compute_maps

    model = open_language_model(run, "attention", device)
    result = compute_maps(model, text, second)
    if page_file is not None:
        from etude.train.checkpoint import write_text
        from etude.view.attention_page import render_page

        title = text if second is None else f"{text} ⏐ {second}"
        name = Path(run).name if isinstance(run, (str, os.PathLike)) else ""
        write_text(page_file, render_page(result, title, name, layer))
    return result


@keeps_random_state
def heads(
    run: str | Path | Run | OpenedModel,
    treebank: str | Path,
    *,
    sentences: int = 500,
    least: int = 20,
    pruning: int = 40,
    out: str | Path | None = None,
    device: str | None = None,
) -> HeadReport:
    """Find the attention head that matches each relation of a treebank best, and the loss without heads.

    Args:
        run: A run, a folder of transformers, or hf:ID of the hub.
        treebank: Sentences with tokens, head (from 1, 0 for the root) and deprel, such as .jsonl.
        sentences: Number of sentences to read: half of them to choose heads and offsets, half to score them.
        least: Fewest arcs of a relation in each half; rarer relations are left out.
        pruning: Number of sentences on which the loss is measured without heads; 0 for none.
        out: Write everything as a page to this .html file.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
    """
    require_at_least("sentences", sentences, 2)
    require_at_least("least", least, 1)
    require_at_least("pruning", pruning, 0)
    page_file = _check_page(out, "heads are")
    require_device(device)
    from etude.view.heads import measure_heads, read_sentences

    trees = read_sentences(Path(require_path("treebank", treebank, "a treebank")), sentences)
    model = open_language_model(run, "attention heads", device)
    result = measure_heads(model, trees, min_arcs=least, pruning_texts=pruning)
    if page_file is not None:
        from etude.train.checkpoint import write_text
        from etude.view.heads_page import render_heads_page

        name = Path(run).name if isinstance(run, (str, os.PathLike)) else ""
        write_text(page_file, render_heads_page(result, name, Path(treebank).name))
    return result


@keeps_random_state
def paths(
    run: str | Path | Run | TaskModel,
    question: str | Path | Mapping[str, object],
    *,
    out: str | Path | None = None,
    device: str | None = None,
) -> PathExplanation:
    """Explain an answer by a graph: the paths from question to choices, and what KagNet attends to.

    Args:
        run: A run fine-tuned as graph_choice.
        question: A file with a question and its choices as a JSON object, or the object itself.
        out: Write the graphs of all choices as a page to this .html file.
        device: Where to compute: cpu, cuda or cuda:N; a GPU where there is one, unless given.
    """
    page_file = _check_page(out, "paths are")
    require_device(device)
    record, place = _read_question(question)
    from etude.inference.task_model import TaskModel
    from etude.view.paths import explain_paths

    model = run if isinstance(run, TaskModel) else TaskModel.open(require_path("run", run, TASK_RUN), device)
    result = explain_paths(model, record, place)
    if page_file is not None:
        from etude.train.checkpoint import write_text
        from etude.view.paths_page import render_paths_page

        write_text(page_file, render_paths_page(result, model.folder.name))
    return result


def _check_page(out: str | Path | None, what: str) -> Path | None:
    """Return the file of a page; raise UserError where it cannot be one."""
    page_file = None if out is None else Path(out)
    if page_file is not None and (page_file.suffix != ".html" or not page_file.parent.is_dir()):
        raise UserError(f"{page_file}: the {what} a page. Name a file that ends with .html, in a folder that is there.")
    return page_file


def _read_question(question: str | Path | Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """Return a question as a record, and where it stands; raise UserError where it is no JSON object."""
    if isinstance(question, Mapping):
        return question, "question"
    text, place = str(question), "question"
    if not text.lstrip().startswith("{"):
        place = text
        try:
            content: str | bytes = Path(text).read_bytes()
        except (OSError, ValueError):
            raise UserError(
                f"There is no file {text[:200]}. Name a file with one question, or write the JSON object itself."
            ) from None
    else:
        content = text
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{place}: this is not one JSON object ({problem}).") from None
    if not isinstance(record, dict):
        raise UserError(f"{place}: a question is a JSON object with `question` and `choices`.")
    return record, place


@keeps_random_state
def mix(run: str | Path | Run | TaskModel) -> list[Mix]:
    """Show how much of each layer a fine-tuned run uses: the softmax weights and gamma of its mixes (ELMo).

    Args:
        run: A run fine-tuned with transfer.combine=mix, or a tagger with task.network.mix.
    """
    from etude.inference.task_model import TaskModel
    from etude.view.mix import read_mixes

    return read_mixes(run if isinstance(run, TaskModel) else TaskModel.open(require_path("run", run, TASK_RUN), "cpu"))


@keeps_random_state
def batch(
    recipe: str | Path | Run | Recipe,
    corpus: str | Path | Corpus | Graph,
    *,
    step: int = 0,
    sequences: int = 4,
    entities: str | Path | Run | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
) -> TrainingBatch:
    """Show what a training step reads and what it predicts: masked tokens, next tokens, windows, pairs.

    Args:
        recipe: A recipe: a name, or a .yaml file; or a run, of which ELECTRA's generator draws with its own weights.
        corpus: A prepared corpus; of a recipe over triples, a prepared graph.
        step: Number of the step, from 0; the same sequences as in a run with this seed.
        sequences: Number of its sequences to show.
        entities: A run of a graph embedding, such as transe, whose vectors recipes such as ernie read.
        out: Write the sequences as a page to this .html file.
        settings: Settings of the recipe to change: objective.mask_rate=0.3
    """
    recipe, corpus = require_recipe(recipe), require_corpus(corpus)
    entities = None if entities is None else require_path("entities", entities, "a run on a graph")
    require_at_least("step", step, 0)
    require_at_least("sequences", sequences, 1)
    page_file = _check_page(out, "sequences are")
    from etude.pretraining.training_batch import build_training_batch

    result = build_training_batch(
        recipe, corpus, step=step, sequences=sequences, entities=entities, overrides=dict(settings or {})
    )
    if page_file is not None:
        from etude.train.checkpoint import write_text
        from etude.view.batch_page import render_batch_page

        title = f"{result.recipe.name}, step {result.step}"
        write_text(page_file, render_batch_page(result.view, result.names, title, result.describe()))
    return result


def graph(graph: str | Path | Graph) -> Graph:
    """Describe a graph: entities, relations, triples, degrees, and what was doubtful in its files.

    Args:
        graph: The folder of a prepared graph.
    """
    from etude.graph.graph import Graph

    return graph if isinstance(graph, Graph) else Graph.open(graph)


@keeps_random_state
def neighbours(
    run: str | Path | Run,
    words: str | Sequence[str],
    *,
    top: int = 10,
    unknown: Literal["refuse", "rarest", "random", "zero", "subwords"] = "refuse",
) -> dict[str, list[tuple[str, float]]]:
    """List the nearest words of a word, by the cosine of their vectors.

    Args:
        run: A run of word vectors, or a file of vectors.
        words: Words to find neighbours of.
        top: Number of neighbours to show.
        unknown: What to do at a word without a vector: refuse it, or take the mean of the rarest words' vectors, a
            random one, zeros, or the vector of its n-grams (subwords).
    """
    require_at_least("top", top, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.neighbours import neighbours as nearest_words

    vectors = open_vectors(require_path("run", run, VECTORS))
    return {word: nearest_words(vectors, word, top, unknown) for word in ([words] if isinstance(words, str) else words)}


@keeps_random_state
def analogy(
    run: str | Path | Run, a: str, b: str, c: str, *, top: int = 5, rule: Literal["add", "multiply"] = "add"
) -> list[tuple[str, float]]:
    """Find the word that is to C as B is to A: man king woman -> queen.

    Args:
        run: A run of word vectors, or a file of vectors.
        a: A word, such as man.
        b: A word, such as king.
        c: A word, such as woman.
        top: Number of words to show.
        rule: add ranks words by the cosine with b - a + c, multiply by cos b * cos c / cos a.
    """
    require_at_least("top", top, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.neighbours import analogy as answers

    return answers(open_vectors(require_path("run", run, VECTORS)), a, b, c, top, rule)


@keeps_random_state
def scores(
    run: str | Path | Run,
    files: str | Path | Sequence[str | Path],
    *,
    most: int = 30_000,
    unknown: Literal["leave", "rarest", "random", "zero", "subwords"] = "leave",
) -> list[Similarity | Analogies]:
    """Score word vectors on people's judgements: similarity (Spearman) and analogies (accuracy).

    Args:
        run: A run of word vectors, or a file of vectors.
        files: Files of word pairs with scores, or of analogies.
        most: Answer analogies among this many of the most frequent words.
        unknown: Pairs with a word without a vector: leave them out, or what stands for the word, as in 'etude show
            neighbours'.
    """
    require_at_least("most", most, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.word_scores import score_file

    vectors = open_vectors(require_path("run", run, VECTORS))
    paths = [files] if isinstance(files, (str, Path)) else files
    return [score_file(vectors, path, most, None if unknown == "leave" else unknown) for path in paths]


def unknown(run: str | Path | Run, file: str | Path, *, text: str | None = None) -> Coverage:
    """List the words of a text that have no vector, the most frequent first.

    Args:
        run: A run of word vectors, or a file of vectors.
        file: One text a line, or examples with a text column.
        text: Name of the column that holds the text.
    """
    from etude.hub.vector_runs import open_vectors
    from etude.inference.features import read_texts
    from etude.view.coverage import measure_coverage

    texts = read_texts(Path(require_path("file", file)), text, skip_empty=True)
    return measure_coverage(open_vectors(require_path("run", run, VECTORS)), texts)
