"""A model, looked at: attention of its heads; of word vectors neighbours, analogies, scores; and what a graph holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from etude.errors import UserError
from etude.verbs.limits import require_at_least

if TYPE_CHECKING:
    from etude.graph.graph import Graph
    from etude.inference.model import LoadedModel
    from etude.view.attention import Attention
    from etude.view.coverage import Coverage
    from etude.view.word_scores import Analogies, Similarity


def attention(
    run: str | Path | LoadedModel,
    text: str,
    *,
    second: str | None = None,
    layer: int | None = None,
    out: str | Path | None = None,
    device: str | None = None,
) -> Attention:
    """What the heads of a Transformer look at in a text, and what each makes a habit of.

    Args:
        run: A run, a folder of transformers, or a hub id.
        text: What the model reads.
        second: A second text: the two as a pair; of a translation model, the target whose alignment is shown.
        layer: One layer alone, from 0.
        out: Write the maps of all heads as a page, .html.
        device: cpu or cuda; a GPU where there is one.
    """
    page_file = None if out is None else Path(out)
    if page_file is not None and (page_file.suffix != ".html" or not page_file.parent.is_dir()):
        raise UserError(
            f"{page_file}: the maps are a page. Name a file that ends with .html, in a folder that is there."
        )
    from etude.inference.model import load
    from etude.view.alignment import compute_maps

    model = load(run, device) if isinstance(run, (str, Path)) else run
    result = compute_maps(model, text, second)
    if page_file is not None:
        from etude.train.checkpoint import write_text
        from etude.view.attention_page import render_page

        title = text if second is None else f"{text} ⏐ {second}"
        name = Path(run).name if isinstance(run, (str, Path)) else ""
        write_text(page_file, render_page(result, title, name, layer))
    return result


def graph(graph: str | Path | Graph) -> Graph:
    """What a graph holds: entities, relations, triples, degrees, and what was doubtful in its files.

    Args:
        graph: A graph folder.
    """
    from etude.graph.graph import Graph

    return graph if isinstance(graph, Graph) else Graph.open(graph)


def neighbours(
    run: str | Path,
    words: str | Sequence[str],
    *,
    top: int = 10,
    unknown: Literal["refuse", "rarest", "random", "zero", "subwords"] = "refuse",
) -> dict[str, list[tuple[str, float]]]:
    """The words of the largest cosine with a word.

    Args:
        run: A run of word vectors, or a file of vectors.
        words: Words.
        top: How many to show.
        unknown: What stands for an unknown word: mean of the rarest, a random vector, 0, its n-grams.
    """
    require_at_least("top", top, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.neighbours import neighbours as nearest_words

    vectors = open_vectors(run)
    return {word: nearest_words(vectors, word, top, unknown) for word in ([words] if isinstance(words, str) else words)}


def analogy(
    run: str | Path, a: str, b: str, c: str, *, top: int = 5, rule: Literal["add", "multiply"] = "add"
) -> list[tuple[str, float]]:
    """Which word is to C as B is to A? man king woman -> queen.

    Args:
        run: A run of word vectors, or a file of vectors.
        a: A word, such as man.
        b: A word, such as king.
        c: A word, such as woman.
        top: How many to show.
        rule: b - a + c, or cos b cos c / cos a.
    """
    require_at_least("top", top, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.neighbours import analogy as answers

    return answers(open_vectors(run), a, b, c, top, rule)


def scores(
    run: str | Path,
    files: str | Path | Sequence[str | Path],
    *,
    most: int = 30_000,
    unknown: Literal["leave", "rarest", "random", "zero", "subwords"] = "leave",
) -> list[Similarity | Analogies]:
    """Agreement with people: word similarity (Spearman) and analogies (accuracy).

    Args:
        run: A run of word vectors, or a file of vectors.
        files: Pairs with scores, or analogies.
        most: Analogies are answered among so many frequent words.
        unknown: Pairs with an unknown word: left out, or scored by what stands for it.
    """
    require_at_least("most", most, 1)
    from etude.hub.vector_runs import open_vectors
    from etude.view.word_scores import score_file

    vectors = open_vectors(run)
    paths = [files] if isinstance(files, (str, Path)) else files
    return [score_file(vectors, path, most, None if unknown == "leave" else unknown) for path in paths]


def unknown(run: str | Path, file: str | Path, *, text: str | None = None) -> Coverage:
    """Words of a text that have no vector, the most frequent first.

    Args:
        run: A run of word vectors, or a file of vectors.
        file: One text a line, or examples with a text column.
        text: The column of the text.
    """
    from etude.hub.vector_runs import open_vectors
    from etude.inference.features import read_texts
    from etude.view.coverage import measure_coverage

    return measure_coverage(open_vectors(run), read_texts(Path(file), text))
