"""`etude show`: a model, looked at. Heads of attention; neighbours, analogies and scores of word vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from etude.cli.adapter import Call, Command
from etude.cli.graph import present_graph
from etude.cli.printing import echo, make_console, to_json
from etude.errors import UserError
from etude.verbs import show as verbs
from etude.verbs.limits import require_at_least

if TYPE_CHECKING:
    from etude.pretraining.training_batch import TrainingBatch
    from etude.view.attention import Attention
    from etude.view.coverage import Coverage
    from etude.view.heads import HeadReport
    from etude.view.mix import Mix
    from etude.view.paths import PathExplanation
    from etude.view.word_scores import Analogies, Similarity


def present_attention(call: Call[Attention], *, head: int | None = None, top: int = 3, json: bool = False) -> None:
    """Prints a table of heads, what a head looks at, or everything as JSON.

    Args:
        head: With --layer: show what this head attends to, token by token; counted from 0.
        top: Number of attended tokens to show for each token.
        json: Print tokens, weights and habits as one JSON object.
    """
    require_at_least("top", top, 1)
    out, layer = call.options["out"], call.options["layer"]
    if head is not None and layer is None:
        raise UserError("--head is a head of a layer: say which with --layer.")
    if head is not None and (out is not None or json):
        raise UserError("--head is shown as lines; a page and --json hold all heads: leave out --head.")
    _refuse_page_and_json(call, json)
    attention = call()
    from etude.view.attention import describe_head, format_habits

    if attention.cut:
        echo("The text is longer than the model sees, and was cut.", err=True)
    if out is not None:
        echo(f"{out}: open it in a browser", err=True)
    elif json:
        layers = slice(None)
        if layer is not None:
            layers = slice(attention.check_number("layer", layer, 0), layer + 1)
        habits = {name: values[layers].tolist() for name, values in attention.habits().items()}
        values = {"tokens": attention.tokens, "weights": attention.weights[layers].tolist(), **habits}
        if attention.keys is not None:
            values["keys"] = attention.keys
        echo(to_json(values))
    elif layer is not None and head is not None:
        echo(describe_head(attention, layer, head, top))
    else:
        echo(format_habits(attention, layer))


def _refuse_page_and_json(call: Call[Any], json: bool) -> None:
    """Raise UserError where both a page and JSON are asked for: one of them would be left out."""
    if call.options["out"] is not None and json:
        raise UserError("--json is printed and --out writes a page: leave out one of them.")


def present_batch(call: Call[TrainingBatch], *, tokens: int = 120, json: bool = False) -> None:
    """Prints the sequences with marks, or everything as JSON.

    Args:
        tokens: Most tokens to show of each sequence.
        json: Print everything as one JSON object.
    """
    require_at_least("tokens", tokens, 1)
    _refuse_page_and_json(call, json)
    batch = call()
    from etude.view.batch import format_view, view_json

    if call.options["out"] is not None:
        echo(f"{call.options['out']}: open it in a browser", err=True)
    elif json:
        head = {"recipe": batch.recipe.name, "step": batch.step, "rows": batch.rows}
        echo(to_json({**head, **view_json(batch.view, batch.names)}))
    else:
        console = make_console(soft_wrap=True)
        console.print(f"{batch.recipe.name}, step {batch.step}: {batch.describe()[0]}")
        for line in format_view(batch.view, batch.names, width=max(40, console.width - 1), tokens=tokens):
            console.print(line)


def present_mix(call: Call[list[Mix]], *, json: bool = False) -> None:
    """Prints a bar for each layer, or everything as JSON.

    Args:
        json: Print one JSON object for each mix.
    """
    mixes = call()
    from etude.view.mix import format_mixes

    echo("\n".join(to_json(mix.json()) for mix in mixes) if json else format_mixes(mixes))


def present_heads(call: Call[HeadReport], *, top: int = 20) -> None:
    """Prints a line for each relation, the most frequent first, and the loss without heads.

    Args:
        top: Number of relations to show.
    """
    require_at_least("top", top, 1)
    report = call()
    from etude.view.heads import format_report

    typer.echo(format_report(report, top))
    if call.options["out"] is not None:
        typer.echo(f"{call.options['out']}: open it in a browser", err=True)


def present_paths(call: Call[PathExplanation], *, top: int = 3, json: bool = False) -> None:
    """Prints the answers, the likeliest first, with their heaviest paths.

    Args:
        top: Number of paths to show of each answer.
        json: Print everything as one JSON object.
    """
    require_at_least("top", top, 1)
    _refuse_page_and_json(call, json)
    explanation = call()
    from etude.view.paths import describe_paths

    if call.options["out"] is not None:
        echo(f"{call.options['out']}: open it in a browser", err=True)
    elif json:
        echo(to_json(explanation.json()))
    else:
        echo(describe_paths(explanation, top))


def present_neighbours(call: Call[dict[str, list[tuple[str, float]]]]) -> None:
    result = call()
    for word, neighbours in result.items():
        if len(result) > 1:
            echo(f"{word}:")
        for neighbour, cosine in neighbours:
            echo(f"{cosine:7.4f}  {neighbour}")


def present_analogy(call: Call[list[tuple[str, float]]]) -> None:
    for word, score in call():
        echo(f"{score:7.4f}  {word}")


def present_scores(call: Call[list[Similarity | Analogies]], *, json: bool = False) -> None:
    """Prints the agreement with people, file by file.

    Args:
        json: Print one JSON object for each file.
    """
    scores = call()
    from etude.view.word_scores import describe

    for score in scores:
        echo(to_json(score.json()) if json else describe(score))


def present_unknown(call: Call[Coverage], *, top: int = 20) -> None:
    """Prints which words are known and how, and the most frequent unknown ones.

    Args:
        top: Number of unknown words to show.
    """
    require_at_least("top", top, 1)
    coverage = call()
    echo(f"{coverage.words:,} words, {coverage.distinct:,} different")
    for rule, count in coverage.known.items():
        echo(f"{count / max(1, coverage.words):8.2%}  found {rule}")
    echo(f"{coverage.share:8.2%}  unknown, {len(coverage.unknown):,} different")
    if coverage.from_ngrams is not None:
        echo(f"{coverage.from_ngrams / max(1, coverage.words):8.2%}  unknown, with a vector by their n-grams")
    for word, count in coverage.unknown.most_common(top):
        echo(f"{count:8,}  {word}")


COMMANDS = (
    Command(verbs.graph, present_graph),
    Command(verbs.batch, present_batch, usage="Give a recipe and a corpus, as in 'bert-toy data/books'"),
    Command(verbs.attention, present_attention),
    Command(verbs.heads, present_heads),
    Command(verbs.mix, present_mix),
    Command(verbs.paths, present_paths),
    Command(verbs.neighbours, present_neighbours),
    Command(verbs.analogy, present_analogy),
    Command(verbs.scores, present_scores),
    Command(verbs.unknown, present_unknown),
)


def app() -> typer.Typer:
    """The group of commands `etude show ...`."""
    group = typer.Typer(no_args_is_help=True, help="Look at a model, at what it learns from, or at a graph.")
    for command in COMMANDS:
        group.command(command.called)(command.function())
    return group
