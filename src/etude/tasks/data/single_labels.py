"""Labels that only one example has: nothing can be learnt of them that a score would know."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Sequence

LEAST_EXAMPLES = 20  # below, a label each may be meant
NEARLY_ALL = 0.9  # of the examples: then the column is hardly one of labels
RIGHT_COLUMN = "Is the column of the labels the right one?"
log = logging.getLogger("etude")


def find_single_labels(strata: Sequence[frozenset[str]], inputs: Sequence[Hashable] | None = None) -> list[str]:
    """Return the labels of one example, sorted; with `inputs`, an example that stands twice counts once."""
    keys = range(len(strata)) if inputs is None else inputs
    pairs = {(name, key) for classes, key in zip(strata, keys, strict=True) for name in classes}
    counts = Counter(name for name, _ in pairs)
    return sorted(name for name, count in counts.items() if count == 1)


def warn_of_single_labels(source: str, strata: Sequence[frozenset[str]]) -> None:
    """Log where nearly every example has a label of its own: such a column numbers examples, or is a text."""
    single = len(find_single_labels(strata))
    has_classes = all(len(classes) == 1 for classes in strata)
    if has_classes and len(strata) >= LEAST_EXAMPLES and single >= NEARLY_ALL * len(strata):
        log.warning(
            "%s: %d of %d examples have a label that no other has, so there is nothing to learn from them. %s "
            "-c label=NAME names another.",
            source, single, len(strata), RIGHT_COLUMN,
        )  # fmt: skip
