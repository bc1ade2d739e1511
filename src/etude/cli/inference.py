"""`etude evaluate`, `predict`, `features`, `generate`, `fill` and `perplexity`: a model's answers in print."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from etude.cli.adapter import Call, Command
from etude.verbs import inference as verbs

if TYPE_CHECKING:
    from etude.inference.fill import Guess
    from etude.inference.generation import Continuation
    from etude.inference.perplexity import Perplexity
    from etude.tasks.bootstrap import Score
    from etude.verbs.inference import FeatureFile


def present_evaluate(call: Call[dict[str, Score]], *, json: bool = False) -> None:
    """Prints one score a line.

    Args:
        json: One JSON object.
    """
    scores = call()
    if json:
        typer.echo(jsons.dumps({name: score.json() for name, score in scores.items()}))
        return
    width = max(map(len, scores))
    for name, score in scores.items():
        typer.echo(f"{name:<{width}} {score}")


def present_predict(call: Call[Iterator[dict[str, Any]]]) -> None:
    for answer in call():
        sys.stdout.write(jsons.dumps(answer, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def present_features(call: Call[FeatureFile]) -> None:
    features = call()
    typer.echo(f"{features.path}: {features.contents}", err=True)


def present_generate(call: Call[list[Continuation]], *, stream: bool = False) -> None:
    """Prints the texts, and what a reader of them should know and cannot see.

    Args:
        stream: Show the text as it is written.
    """
    if stream:
        writer = StreamWriter()
        continuations = call(on_text=writer)
        typer.echo()
    else:
        continuations = call()
        typer.echo("\n---\n".join(map(str, continuations)))
    slid = [continuation for continuation in continuations if continuation.slides]
    full = [continuation for continuation in continuations if continuation.ended == "context"]
    if slid:
        typer.echo(
            f"! {len(slid)} of {len(continuations)} went on past {slid[0].context} tokens "
            "with the newer half of them in view",
            err=True,
        )
    if full:
        typer.echo(
            f"! {len(full)} of {len(continuations)} stopped at the end of the context ({full[0].context} tokens)",
            err=True,
        )


class StreamWriter:
    """Writes pieces of text as they come, with a line between one continuation and the next."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, piece: str) -> None:
        if number != self.number:
            typer.echo("\n---")
            self.number = number
        typer.echo(piece, nl=False)


def present_fill(call: Call[list[list[Guess]]]) -> None:
    for number, guesses in enumerate(call()):
        if number:
            typer.echo()
        for guess in guesses:
            typer.echo(f"{guess.probability:7.2%}  {guess.token:<12} {guess.text}")


def present_perplexity(call: Call[Perplexity]) -> None:
    result = call()
    name = "pseudo-perplexity" if result.pseudo else "perplexity"
    typer.echo(f"{name} {result.perplexity:.4g} a token, {result.word_perplexity:.4g} a word")
    typer.echo(
        f"{result.nats_per_token:.4f} nats a token, {result.nats_per_word:.4f} nats a word, "
        f"{result.bits_per_byte:.4f} bits a byte"
    )
    typer.echo(f"{result.tokens:,} tokens, {result.words:,} words, {result.bytes:,} bytes")
    if result.pseudo:
        typer.echo(
            "! each token is predicted from both of its sides: not comparable with the perplexity of a causal model"
        )
    else:
        typer.echo(f"windows of {result.context} tokens, {result.stride} apart")
    if result.unknown:
        typer.echo(f"! {result.unknown:,} tokens are unknown ones, whose letters cost nothing: compare with care")
    if result.unscored:
        typer.echo("! the first token was not scored: the tokenizer has no end-of-text to stand before it")


COMMANDS = (
    Command(verbs.evaluate, present_evaluate),
    Command(verbs.predict, present_predict),
    Command(verbs.features, present_features),
    Command(verbs.generate, present_generate),
    Command(verbs.fill, present_fill),
    Command(verbs.perplexity, present_perplexity),
)
