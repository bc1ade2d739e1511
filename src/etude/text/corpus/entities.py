"""The entity column of a corpus: which entity of a knowledge graph each token is a piece of a mention of.

    -1           no entity
    e >= 0       the first piece of a mention of entity e
    -2 - e       a later piece of the same mention

So the first pieces are `entities >= 0`, and `mention_entities` has the entity of all pieces. A mention never
crosses the start of a sentence: where a text's does, the rest is a mention of its own. The numbers belong to one graph,
which a corpus knows by its fingerprint alone.
"""

from __future__ import annotations

import numpy as np

ENTITY = np.dtype("<i4")
NO_ENTITY = -1


def mention_entities(entities: np.ndarray) -> np.ndarray:
    """Return the entity of every piece, first or later; -1 where there is none."""
    return np.where(entities < NO_ENTITY, -2 - entities, entities)


def mark_mentions(count: int, spans: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the column of `count` tokens from mentions in order: first token and end, (M, 2), and entity of each.

    Where two mentions share a token it belongs to the first; a mention without a token is left out.
    """
    column = np.full(count, NO_ENTITY, ENTITY)
    firsts, ends = spans[:, 0].copy(), spans[:, 1]
    firsts[1:] = np.maximum(firsts[1:], np.maximum.accumulate(ends)[:-1])
    chosen = np.flatnonzero(ends > firsts)
    firsts, ends, ids = firsts[chosen], ends[chosen], ids[chosen]
    lengths = ends - firsts
    places = np.repeat(firsts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    column[places] = np.repeat(-2 - ids, lengths)
    column[firsts] = ids
    return column


def restart_mentions(column: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the column with a new mention at later pieces that start a sentence, or do not follow their mention."""
    entity = mention_entities(column)
    restarted = column.copy()
    restarted[1:] = np.where(entity[1:] == entity[:-1], column[1:], entity[1:])
    restarted[starts] = entity[starts]
    return restarted


def is_well_formed(column: np.ndarray, starts: np.ndarray) -> bool:
    """Whether every later piece follows a piece of the same mention, and none is at a start of a sentence."""
    return np.array_equal(column, restart_mentions(column, starts))
