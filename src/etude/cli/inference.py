"""`etude evaluate`, `predict`, `features`, `generate`, `translate`, `fill`, `perplexity`: answers in print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.cli.adapter import Call, Command
from etude.cli.printing import echo, to_json
from etude.errors import UserError
from etude.verbs import inference as verbs
from etude.verbs.text_sources import explain_encoding

if TYPE_CHECKING:
    from etude.inference.fill import Guess
    from etude.inference.generation import Continuation
    from etude.inference.perplexity import Perplexity
    from etude.inference.translation import Translation
    from etude.tasks.bootstrap import Score
    from etude.verbs.inference import FeatureFile


def present_evaluate(call: Call[dict[str, Score]], *, json: bool = False) -> None:
    """Prints one score a line.

    Args:
        json: Print one JSON object instead of the lines.
    """
    scores = call()
    if json:
        echo(to_json({name: score.json() for name, score in scores.items()}))
        return
    width = max(map(len, scores))
    for name, score in scores.items():
        echo(f"{name:<{width}} {score}")


def present_predict(call: Call[Iterator[dict[str, Any]]]) -> None:
    for answer in call():
        sys.stdout.write(to_json(answer) + "\n")
        sys.stdout.flush()


def present_features(call: Call[FeatureFile]) -> None:
    features = call()
    echo(f"{features.path}: {features.contents}", err=True)


def present_generate(call: Call[list[Continuation]], *, stream: bool = False) -> None:
    """Prints the texts, and what a reader of them should know and cannot see.

    Args:
        stream: Show the text as it is written.
    """
    if stream:
        writer = StreamWriter()
        continuations = call(on_text=writer)
        echo()
    else:
        continuations = call()
        echo("\n---\n".join(map(str, continuations)))
    slid = [continuation for continuation in continuations if continuation.slides]
    full = [continuation for continuation in continuations if continuation.ended == "context"]
    if slid:
        echo(
            f"! {len(slid)} of {len(continuations)} went on past {slid[0].context} tokens "
            "with the newer half of them in view",
            err=True,
        )
    if full:
        echo(
            f"! {len(full)} of {len(continuations)} stopped at the end of the context ({full[0].context} tokens)",
            err=True,
        )


class StreamWriter:
    """Writes pieces of text as they come, with a line between one continuation and the next."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, piece: str) -> None:
        if number != self.number:
            echo("\n---")
            self.number = number
        echo(piece, nl=False)


def present_translate(
    call: Call[Iterator[list[Translation]]], *, reference: Path | None = None, tokenizer: str | None = None
) -> None:
    """Prints a translation a line; of several of one line, score and text, tab-separated, an empty line after them.

    Args:
        reference: Score the translations against the lines of this file: BLEU and chrF, on standard error.
        tokenizer: Tokenizer of BLEU by sacrebleu's name, such as 13a; by the language of the references unless given.
    """
    if reference is None and tokenizer is not None:
        raise UserError("--tokenizer applies to BLEU: name the file of references, too, with --reference FILE.")
    references = None if reference is None else read_references(reference)
    if tokenizer is not None:
        from etude.tasks.translate.scores import check_tokenizer

        check_tokenizer(tokenizer)
    translations: list[str] = []
    cut = 0
    for alternatives in call():
        translations.append(alternatives[0].text)
        cut += not alternatives[0].finished
        if call.options["best"] == 1:
            sys.stdout.write(alternatives[0].text + "\n")
        else:
            sys.stdout.write("".join(f"{each.score:.4f}\t{each.text}\n" for each in alternatives) + "\n")
        sys.stdout.flush()
    if cut:
        echo(f"! {cut} of {len(translations)} were cut at the greatest length, before they ended", err=True)
    if references is not None:
        from etude.tasks.translate.scores import score_translations

        for score in score_translations(translations, references, tokenizer):
            echo(str(score), err=True)


def read_references(path: Path) -> list[str]:
    """The lines of a file, in NFC, as translations are: with decomposed Hangul they would have no n-gram in common."""
    from etude.extras import require
    from etude.text.tokenizer.normalization import normalize_nfc

    require("sacrebleu", "Scoring translations")  # before an hour of translation, not behind it
    try:
        # without the byte order mark of an editor; a line ends at \n only, as those that are translated
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UserError(f"There is no file {path}.") from None
    except UnicodeDecodeError:
        raise explain_encoding(path) from None
    return [normalize_nfc(line.rstrip("\r")) for line in (lines[:-1] if lines[-1] == "" else lines)]


def present_fill(call: Call[list[list[Guess]]]) -> None:
    from rich.cells import cell_len

    for number, guesses in enumerate(call()):
        if number:
            echo()
        for guess in guesses:
            token = guess.token if guess.token.strip() else _name_white_space(guess.token)
            padding = " " * (12 - cell_len(token))  # columns of a terminal: a Korean letter takes two
            echo(f"{guess.probability:7.2%}  {token}{padding} {guess.text}")


def _name_white_space(token: str) -> str:
    """Name a token that would not be seen: a piece of unigram tokenizers and of those of characters."""
    return "(space)" if token == " " else f"({ascii(token)[1:-1]})"


def present_perplexity(call: Call[Perplexity]) -> None:
    result = call()
    name = "pseudo-perplexity" if result.pseudo else "perplexity"
    echo(f"{name} {result.perplexity:.4g} a token, {result.word_perplexity:.4g} a word")
    echo(
        f"{result.nats_per_token:.4f} nats a token, {result.nats_per_word:.4f} nats a word, "
        f"{result.bits_per_byte:.4f} bits a byte"
    )
    echo(f"{result.tokens:,} tokens, {result.words:,} words, {result.bytes:,} bytes")
    if result.pseudo:
        echo("! each token is predicted from both of its sides: not comparable with the perplexity of a causal model")
    else:
        echo(f"windows of {result.context} tokens, {result.stride} apart")
    if result.unknown:
        echo(f"! {result.unknown:,} tokens are unknown ones, whose letters cost nothing: compare with care")
    if result.unscored:
        echo("! the first token was not scored: the tokenizer has no end-of-text to stand before it")


COMMANDS = (
    Command(verbs.evaluate, present_evaluate),
    Command(verbs.predict, present_predict),
    Command(verbs.features, present_features),
    Command(verbs.generate, present_generate),
    Command(verbs.translate, present_translate),
    Command(verbs.fill, present_fill),
    Command(verbs.perplexity, present_perplexity),
)
