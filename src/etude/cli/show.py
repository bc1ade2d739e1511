"""`etude show`: a model, looked at. What its heads attend to; of word vectors their neighbours, analogies, scores, and
the words they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from etude.cli.generate import Device, Model

Vectors = Annotated[Path, typer.Argument(metavar="RUN", help="A run of word vectors, or a file of vectors.")]
Top = Annotated[int, typer.Option("--top", "-n", min=1, help="How many to show.")]
Unknown = Annotated[
    Literal["refuse", "rarest", "random", "zero", "subwords"],
    typer.Option(help="What stands for an unknown word: mean of the rarest, a random vector, 0, its n-grams."),
]


def register(app: typer.Typer) -> None:
    show = typer.Typer(no_args_is_help=True, help="Look at a model.")
    app.add_typer(show, name="show")

    show.command()(attention)

    @show.command()
    def neighbours(
        run: Vectors,
        words: Annotated[list[str], typer.Argument(metavar="WORD...")],
        top: Top = 10,
        unknown: Unknown = "refuse",
    ) -> None:
        """The words of the largest cosine with a word."""
        from etude.hub.vector_runs import open_vectors
        from etude.view.neighbours import neighbours as find

        vectors = open_vectors(run)
        for word in words:
            if len(words) > 1:
                typer.echo(f"{word}:")
            for other, cosine in find(vectors, word, top, unknown):
                typer.echo(f"{cosine:7.4f}  {other}")

    @show.command()
    def analogy(
        run: Vectors,
        a: Annotated[str, typer.Argument(metavar="A")],
        b: Annotated[str, typer.Argument(metavar="B")],
        c: Annotated[str, typer.Argument(metavar="C")],
        top: Top = 5,
        rule: Annotated[Literal["add", "multiply"], typer.Option(help="b - a + c, or cos b cos c / cos a.")] = "add",
    ) -> None:
        """Which word is to C as B is to A? man king woman -> queen."""
        from etude.hub.vector_runs import open_vectors
        from etude.view.neighbours import analogy as find

        for word, score in find(open_vectors(run), a, b, c, top, rule):
            typer.echo(f"{score:7.4f}  {word}")

    @show.command()
    def scores(
        run: Vectors,
        files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pairs with scores, or analogies.")],
        most: Annotated[int, typer.Option(min=1, help="Analogies are answered among so many frequent words.")] = 30_000,
        unknown: Annotated[
            Literal["leave", "rarest", "random", "zero", "subwords"],
            typer.Option(help="Pairs with an unknown word: left out, or scored by what stands for it."),
        ] = "leave",
        as_json: Annotated[bool, typer.Option("--json", help="One JSON object a file.")] = False,
    ) -> None:
        """Agreement with people: word similarity (Spearman) and analogies (accuracy)."""
        import json

        from etude.hub.vector_runs import open_vectors
        from etude.view.word_scores import describe, score_file

        vectors = open_vectors(run)
        for file in files:
            score = score_file(vectors, file, most, None if unknown == "leave" else unknown)
            typer.echo(json.dumps(score.json()) if as_json else describe(score))

    @show.command()
    def unknown(
        run: Vectors,
        file: Annotated[Path, typer.Argument(metavar="FILE", help="One text a line, or examples with a text column.")],
        top: Top = 20,
        text: Annotated[str | None, typer.Option("--text", help="The column of the text.")] = None,
    ) -> None:
        """Words of a text that have no vector, the most frequent first."""
        from etude.hub.vector_runs import open_vectors
        from etude.inference.features import read_texts
        from etude.view.coverage import coverage

        found = coverage(open_vectors(run), read_texts(file, text))
        typer.echo(f"{found.words:,} words, {found.kinds:,} different")
        for way, count in found.found.items():
            typer.echo(f"{count / max(1, found.words):8.2%}  found {way}")
        typer.echo(f"{found.share:8.2%}  unknown: {len(found.unknown):,} different words")
        if found.spelled is not None:
            typer.echo(f"{found.spelled / max(1, found.words):8.2%}  unknown, with a vector by their n-grams")
        for word, count in found.unknown.most_common(top):
            typer.echo(f"{count:8,}  {word}")


def attention(
    run: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model reads.")],
    second: Annotated[str | None, typer.Option("--second", help="A second text: the two as a pair.")] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="One layer alone, from 0.")] = None,
    head: Annotated[
        int | None, typer.Option("--head", help="With --layer: what this head looks at, token by token.")
    ] = None,
    top: Top = 3,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the maps of all heads as a page, .html.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Tokens, weights and habits as one JSON object.")] = False,
    device: Device = None,
) -> None:
    """What the heads of a Transformer look at in a text, and what each makes a habit of."""
    import json

    from etude.errors import UserError
    from etude.inference.model import load
    from etude.train.checkpoint import write_text
    from etude.view.attention import describe_head, look, table
    from etude.view.attention_page import page

    if head is not None and layer is None:
        raise UserError("--head is a head of a layer: say which with --layer.")
    if out is not None and (out.suffix != ".html" or not out.parent.is_dir()):
        raise UserError(f"{out}: the maps are a page. Name a file that ends with .html, in a folder that is there.")
    found = look(load(run, device), text, second)
    if found.cut:
        typer.echo("The text is longer than the model sees, and was cut.", err=True)
    if out is not None:
        title = text if second is None else f"{text} ⏐ {second}"
        write_text(out, page(found, title, Path(run).name, layer))
        typer.echo(f"{out}: open it in a browser", err=True)
    elif as_json:
        habits = {name: values.tolist() for name, values in found.habits().items()}
        typer.echo(
            json.dumps({"tokens": found.tokens, "weights": found.weights.tolist(), **habits}, ensure_ascii=False)
        )
    elif layer is not None and head is not None:
        typer.echo(describe_head(found, layer, head, top))
    else:
        typer.echo(table(found, layer))
