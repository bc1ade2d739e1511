"""Splits that share nothing, and labels that come equally often.

Which split a piece of content belongs to is a hash of the content itself (a text, a premise, the path of a
question), so the same content can never fall into two splits, however much is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from etude.chance import fold
from etude.errors import UserError
from etude.world.draw import Draw

_SHARES = {"train": range(8), "valid": range(8, 9), "test": range(9, 10)}  # tenths of all content
_PATIENCE = 20_000  # draws in a row without a new example: the world has no more of them


def belongs(content: str, split: str) -> bool:
    return fold("split", content) % 10 in _SHARES[split]


def balanced(
    labels: tuple[Hashable, ...], make: Callable[[Draw, Any], tuple[str, dict[str, Any]] | None], key: int, split: str
) -> Iterator[dict[str, Any]]:
    """Examples with the labels in turn, in an order shuffled within each turn.

    `make(draw, label)` gives (content, example), or None where that draw led nowhere. Content that was given
    before, or that belongs to another split, is passed over.
    """
    seen: set[str] = set()
    number = 0
    order = Draw(fold(key, split, "order"))
    while True:
        waiting = deque(order.shuffled(labels))
        while waiting:
            label = waiting.popleft()
            for _ in range(_PATIENCE):
                made = make(Draw(fold(key, split, number)), label)
                number += 1
                if made is not None and made[0] not in seen and belongs(made[0], split):
                    break
            else:
                raise UserError(
                    f"The world has only {len(seen)} different examples of this task in the split '{split}': ask for fewer."
                )
            seen.add(made[0])
            yield made[1]
