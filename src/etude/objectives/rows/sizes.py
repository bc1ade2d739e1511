"""How long a sequence and a row are: what a recipe says, what the model allows, and what follows from both.

And the name of a corpus in messages about what it lacks for an objective.
"""

from __future__ import annotations

from etude.errors import UserError
from etude.text.corpus.corpus import Corpus


def sequence_length(requested: int | None, context: int | None) -> int:
    """`objective.length`, or all of the model's context."""
    length = requested or context
    if length is None:
        raise UserError("this model reads sequences of any length: say with objective.length how long they are to be")
    if context is not None and length > context:
        raise UserError(
            f"objective.length={length} is more than model.context={context}. Lower the one or raise the other."
        )
    return int(length)


def whole_rows(requested: int | None, length: int, least: int) -> int:
    """`objective.row_tokens`, or the smallest multiple of `length` that holds `least` tokens."""
    row_tokens = requested or length * max(1, -(-least // length))
    if row_tokens % length:
        raise UserError(
            f"objective.row_tokens={row_tokens} is not a multiple of the {length} tokens of a sequence. "
            f"Set it to {length * max(1, round(row_tokens / length))}."
        )
    return row_tokens


def corpus_name(corpus: Corpus) -> str:
    """The folder of a corpus, or its size where it lies in memory."""
    try:
        return str(corpus.folder)
    except ValueError:
        return repr(corpus)
