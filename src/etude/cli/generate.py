"""`etude generate`, `etude fill`, `etude perplexity`: a trained language model in use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from etude.inference.generation import Continuation
    from etude.inference.model import Loaded
    from etude.text.corpus.corpus import Corpus

Model = Annotated[str, typer.Argument(metavar="RUN", help="A run, a folder of transformers, or a hub id.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; a GPU where there is one.")]


def register(app: typer.Typer) -> None:
    app.command()(generate)
    app.command()(fill)
    app.command()(perplexity)


def generate(
    run: Model,
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="[PROMPT]...", help="Texts to go on with; none: from nothing.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="How many at most.")] = 40,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token; 1: as the model says.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Only among so many of the likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only among the likeliest with this share together.")] = None,
    top_p_rule: Annotated[
        str, typer.Option(help="gpt2: leave out the token that crosses the share, as GPT-2's code.")
    ] = "usual",
    samples: Annotated[int, typer.Option(help="Of each prompt.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed is another text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given several times.")] = None,
    past_end: Annotated[bool, typer.Option("--past-end", help="Go on past end-of-text.")] = False,
    overflow: Annotated[str, typer.Option(help="When the context is full: slide, or stop.")] = "slide",
    beams: Annotated[int | None, typer.Option(help="Beam search with so many beams, in place of sampling.")] = None,
    penalty: Annotated[float, typer.Option(help="Of length, in beam search.")] = 0.6,
    stream: Annotated[bool, typer.Option("--stream", help="Show the text as it is written.")] = False,
    device: Device = None,
) -> None:
    """Go on with a text by a causal model."""
    from typing import Any, cast

    from etude.errors import UserError
    from etude.inference.generation import Sample, Way
    from etude.inference.generation import generate as run_all
    from etude.inference.generation import write as run_stream
    from etude.inference.model import load

    way = Way(tokens, temperature, top_k, top_p, cast(Any, top_p_rule), seed, stop or (), past_end, cast(Any, overflow))
    if beams is not None and (stream or samples > 1):
        raise UserError("--beams gives one text, known only at its end: leave out --stream and --samples.")
    loaded = load(run, device)
    texts = prompts or [""]
    done: list[Continuation] = []
    if beams is not None:
        for text in texts:
            done.append(loaded.search(text, tokens, beams=beams, penalty=penalty, stop=stop or ())[0])
            _show(str(done[-1]), first=len(done) == 1)
    elif stream:
        for text in texts:
            for number in range(samples):
                _show(text, first=not done, newline=False)
                sample = Sample(loaded, text, way, number)
                for _, piece in run_stream(loaded, [sample], way):
                    typer.echo(piece, nl=False)
                typer.echo()
                done.append(sample.result())
    else:
        done = run_all(loaded, texts, way, samples)
        for number, one in enumerate(done):
            _show(str(one), first=number == 0)
    _tell(done, loaded)


def _show(text: str, first: bool, newline: bool = True) -> None:
    if not first:
        typer.echo("---")
    typer.echo(text, nl=newline)


def _tell(done: list[Continuation], loaded: Loaded) -> None:
    """What a reader of the texts should know and cannot see."""
    context = loaded.model.context
    slid, full = sum(one.slides > 0 for one in done), sum(one.ended == "context" for one in done)
    if slid:
        typer.echo(
            f"! {slid} of {len(done)} went on past {context} tokens with the newer half of them in view", err=True
        )
    if full:
        typer.echo(f"! {full} of {len(done)} stopped at the end of the context ({context} tokens)", err=True)


def fill(
    run: Model,
    text: Annotated[str, typer.Argument(help='With a blank, written [MASK]: "The [MASK] sat."')],
    top: Annotated[int, typer.Option(help="Guesses for each blank.")] = 5,
    device: Device = None,
) -> None:
    """Fill the blanks of a text by a masked model."""
    from etude.inference.fill import Guess
    from etude.inference.model import load

    found = load(run, device).fill(text, top)
    blanks = [found] if isinstance(found[0], Guess) else found
    for number, guesses in enumerate(blanks):
        if number:
            typer.echo()
        for guess in guesses:
            typer.echo(f"{guess.probability:7.2%}  {guess.token:<12} {guess.text}")


def perplexity(
    run: Model,
    text: Annotated[Path, typer.Argument(help="A text file, or a prepared corpus.")],
    stride: Annotated[int | None, typer.Option(help="Tokens between windows; half the context unless given.")] = None,
    part: Annotated[str, typer.Option(help="Of a corpus: train or valid.")] = "valid",
    device: Device = None,
) -> None:
    """How well a model predicts a text: nats a token and a word, bits a byte."""
    from etude.inference.model import load
    from etude.inference.perplexity import perplexity as measure
    from etude.inference.perplexity import pseudo_perplexity

    source = _source(text, part)
    loaded = load(run, device)
    found = measure(loaded, source, stride) if loaded.model.causal else pseudo_perplexity(loaded, source)
    name = "pseudo-perplexity" if found.pseudo else "perplexity"
    typer.echo(f"{name} {found.perplexity:.4g} a token, {found.word_perplexity:.4g} a word")
    typer.echo(
        f"{found.nats_per_token:.4f} nats a token, {found.nats_per_word:.4f} nats a word, "
        f"{found.bits_per_byte:.4f} bits a byte"
    )
    typer.echo(f"{found.tokens:,} tokens, {found.words:,} words, {found.bytes:,} bytes")
    if found.pseudo:
        typer.echo("! each token is told from both of its sides: not comparable with the perplexity of a causal model")
    else:
        typer.echo(f"windows of {found.context} tokens, {found.stride} apart")
    if found.unknown:
        typer.echo(f"! {found.unknown:,} tokens are unknown ones, whose letters cost nothing: compare with care")
    if found.unscored:
        typer.echo("! the first token was not scored: the tokenizer has no end-of-text to stand before it")


def _source(path: Path, part: str) -> str | Corpus:
    """A text, or a corpus."""
    from etude.errors import UserError
    from etude.text.corpus.corpus import Corpus

    if path.is_dir():
        return Corpus.open(path, part)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}. Give a text file, or the folder of a prepared corpus.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read.") from None
