"""Splits that share nothing, and labels that come equally often.

Which split a piece of content belongs to is a hash of the content itself (a text, a claim, the path of a
question), so the same content can never fall into two splits, however much is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from etude.chance import fold
from etude.errors import UserError
from etude.world.draw import Draw

Candidate = tuple[str, dict[str, Any]] | None  # (content, example), or nothing where a draw led nowhere

_SHARES = {"train": range(6), "valid": range(6, 8), "test": range(8, 10)}  # tenths of all content
_PATIENCE = 5_000  # draws in a row without a new example: the world has no more of them


def belongs(content: str, split: str) -> bool:
    return fold("split", content) % 10 in _SHARES[split]


def balanced(
    labels: tuple[Any, ...], make: Callable[[Draw, Any], Candidate], key: int, split: str
) -> Iterator[dict[str, Any]]:
    """Examples with the labels in turn, each turn in another order.

    An example that was given before, or whose content belongs to another split, is passed over.
    """
    seen: set[str] = set()
    number = 0
    order = Draw(fold(key, split, "order"))
    while True:
        for label in order.shuffled(labels):
            for _ in range(_PATIENCE):
                candidate = make(Draw(fold(key, split, number)), label)
                number += 1
                if candidate is not None and belongs(candidate[0], split) and repr(candidate[1]) not in seen:
                    break
            else:
                raise UserError(
                    f"The world has only {len(seen)} different examples of this task in its split '{split}': "
                    "ask for fewer."
                )
            seen.add(repr(candidate[1]))
            yield candidate[1]
