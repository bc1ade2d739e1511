"""The entities of a masked batch: which tokens carry one, and the noise that denoising entity alignment puts on them.

ERNIE (Zhang et al. 2019, section 3.5): of the tokens that carry an entity, 5 % get another entity of the batch, 15 %
lose theirs, 80 % keep it; what is predicted is the true one in all three cases. Every draw is a hash of (seed, step,
row, place in the row); which entities can replace one follows from all rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from etude.graph.entity_links import Alignment
from etude.objectives.base import IGNORE
from etude.objectives.parts.masking import Places
from etude.text.corpus.entities import NO_ENTITY, mention_entities


def aligned_entities(column: np.ndarray, alignment: Alignment) -> np.ndarray:
    """The entity of each token, -1 for none: at the first piece of a mention, or at all of its pieces."""
    return mention_entities(column) if alignment == "all" else np.maximum(column, NO_ENTITY)


def limit_entities(entities: np.ndarray, row: np.ndarray, most: int) -> np.ndarray:
    """The entities without those beyond the first `most` of each row; `row` (N,) ascends."""
    places = np.flatnonzero(entities >= 0)
    counts = np.bincount(row[places], minlength=int(row[-1]) + 1 if len(row) else 0)
    number = np.arange(len(places)) - (np.cumsum(counts) - counts)[row[places]]
    limited = entities.copy()
    limited[places[number >= most]] = NO_ENTITY
    return limited


@dataclass(frozen=True)
class Noise:
    replace_share: float
    drop_share: float

    def apply(self, entities: np.ndarray, aligned: np.ndarray, candidates: np.ndarray, places: Places) -> np.ndarray:
        """A copy in which the entities at `aligned` (A,) were replaced, dropped or kept; `candidates` (C,) ascend."""
        draws = places.uniform("entity noise", aligned)
        noisy = entities.copy()
        replaced = aligned[draws < self.replace_share]
        if len(candidates) > 1:
            own = np.searchsorted(candidates, entities[replaced])
            drawn = places.below("other entity", replaced, len(candidates) - 1)
            noisy[replaced] = candidates[drawn + (drawn >= own)]
        dropped = (draws >= self.replace_share) & (draws < self.replace_share + self.drop_share)
        noisy[aligned[dropped]] = NO_ENTITY
        return noisy


def alignment_slots(
    entities: np.ndarray, aligned: np.ndarray, candidates: np.ndarray, slots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A fixed number of slots: where to look, the place of the true entity among the candidates, and their table rows.

    Unused slots: place 0, target IGNORE, row 0.
    """
    index, targets, rows = np.zeros(slots, np.int64), np.full(slots, IGNORE, np.int64), np.zeros(slots, np.int64)
    index[: len(aligned)] = aligned
    targets[: len(aligned)] = np.searchsorted(candidates, entities[aligned])
    rows[: len(candidates)] = candidates + 1  # row 0 of the table is "no entity"
    return index, targets, rows
