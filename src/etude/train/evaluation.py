"""Held-out evaluation: the same rows and the same masks every time, streamed, shared by all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from etude.chance import Chance
from etude.objectives.base import Batch, Objective, Row, Rows, Stat
from etude.train.loader import Loader
from etude.train.parallel import Ranks
from etude.train.settings import Settings

STEP = -1  # of Chance: no training step has this number
MICRO_TOKENS = 8192  # of a batch where no setting gives them


def build_batches(objective: Objective, rows: Rows, settings: Settings, ranks: Ranks, lanes: int) -> Iterator[Batch]:
    """Yield this rank's batches, at most `train.eval_tokens` in all; `lanes` matters where rows do not shuffle."""
    if not rows.shuffle:
        yield from _build_lane_batches(objective, rows, settings, lanes)
        return
    count = len(rows)
    if settings.eval_tokens and rows.row_tokens:
        count = min(count, max(ranks.size, settings.eval_tokens // rows.row_tokens))
    chance = Chance(settings.seed, STEP)
    group: list[Row] = []
    tokens = 0
    limit = settings.micro_tokens or settings.batch_tokens or MICRO_TOKENS
    for number in range(ranks.rank, count, ranks.size):  # streamed: only one micro-batch of rows is held
        row = rows[number]
        if group and tokens + len(row.tokens) > limit:
            yield objective.batch(group, chance)
            group, tokens = [], 0
        group.append(row)
        tokens += len(row.tokens)
    if group:
        yield objective.batch(group, chance)


def in_lockstep(
    batches: Iterator[Batch], objective: Objective, rows: Rows, settings: Settings, ranks: Ranks
) -> Iterator[tuple[Batch, bool]]:
    """Yield as many batches on every rank, and whether each counts: for what all do together, as gathering weights.

    A rank that has no batch left is given the first row, which does not count.
    """
    while True:
        batch = next(batches, None)
        if not ranks.any(batch is not None):
            return
        spare = batch or objective.batch([rows[0]], Chance(settings.seed, STEP))
        yield spare, batch is not None


def _build_lane_batches(objective: Objective, rows: Rows, settings: Settings, lanes: int) -> Iterator[Batch]:
    """Yield the steps of fixed lanes, whose states are carried over the held-out text from its start."""
    length, tokens = len(rows) // lanes, lanes * (rows.row_tokens or 1)
    objective.set_lanes(lanes)
    loader = Loader(
        objective,
        rows,
        seed=settings.seed,
        batch_rows=lambda _: lanes,
        rows_before=lambda step: step * lanes,
        micro_tokens=None,
        workers=0,
    )
    for step in range(max(1, min(length, (settings.eval_tokens or tokens * length) // tokens))):
        yield from loader.step(step).batches


def average(stats: dict[str, Stat], ranks: Ranks) -> dict[str, float]:
    """Average the statistics of all ranks; the loss, the weighted sum of its terms, comes first."""
    sums = ranks.sum({name: float(stat.sum) for name, stat in stats.items()})
    counts = ranks.sum({name: float(stat.count) for name, stat in stats.items()})
    means = {name: sums[name] / max(1.0, counts[name]) for name in stats}
    weighted = [stat.weight * means[name] for name, stat in stats.items() if stat.weight is not None]
    return {"loss": sum(weighted), **{name: mean for name, mean in means.items() if name != "loss"}}
