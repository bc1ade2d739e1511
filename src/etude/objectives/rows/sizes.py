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
    """The folder or URL of a corpus, or its size where it lies in memory."""
    try:
        return corpus.location
    except ValueError:
        return repr(corpus)


def part_name(corpus: Corpus) -> str:
    """The name of a corpus, or of its held-out part where it is that."""
    return f"{'the held-out part of ' * (corpus.split == 'valid')}{corpus_name(corpus)}"


# --- static shapes ----------------------------------------------------------------------------------

SIZES = 8  # of a batch from each power of two to the next
SMALLEST = 32  # tokens between two sizes, and the smallest bound on lengths


def grain_of(tokens: int) -> int:
    """Return the distance from one size to the next, around a number of tokens."""
    return max(SMALLEST, next_power(tokens) // 2 // SIZES)


def next_power(value: int) -> int:
    """Return the next power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()
