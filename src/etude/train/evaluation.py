"""The held-out text of a run: the same rows and the same masks every time, streamed, shared by all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from etude.chance import Chance
from etude.objectives.base import Objective, Rows, Stat
from etude.train.loader import Loader, split
from etude.train.parallel import Ranks
from etude.train.settings import Settings

STEP = -1  # of Chance: no step of training has it
MICRO = 8192  # tokens of a batch where no setting says


def batches(objective: Objective, rows: Rows, settings: Settings, ranks: Ranks, lanes: int) -> Iterator[Any]:
    """This rank's batches; at most `train.eval_tokens`. `lanes` count where rows do not shuffle."""
    if not rows.shuffle:
        yield from _lanes(objective, rows, settings, lanes)
        return
    count = len(rows)
    if settings.eval_tokens and rows.row_tokens:
        count = min(count, max(ranks.size, settings.eval_tokens // rows.row_tokens))
    chance = Chance(settings.seed, STEP)
    group: list[Any] = []
    limit = settings.micro_tokens or settings.batch_tokens or MICRO
    for number in range(ranks.rank, count, ranks.size):  # streamed: only one micro-batch of rows is held
        row = rows[number]
        if group and len(split([*group, row], limit)) > 1:
            yield objective.batch(group, chance)
            group = []
        group.append(row)
    if group:
        yield objective.batch(group, chance)


def _lanes(objective: Objective, rows: Rows, settings: Settings, lanes: int) -> Iterator[Any]:
    """Carries states over the held-out text, from its start."""
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


def means(stats: dict[str, Stat], ranks: Ranks) -> dict[str, float]:
    """Of all ranks; the loss, the weighted sum of its terms, first."""
    sums = ranks.sum({name: float(stat.sum) for name, stat in stats.items()})
    counts = ranks.sum({name: float(stat.count) for name, stat in stats.items()})
    found = {name: sums[name] / max(1.0, counts[name]) for name in stats}
    weighted = [stat.weight * found[name] for name, stat in stats.items() if stat.weight is not None]
    return {"loss": sum(weighted), **{name: mean for name, mean in found.items() if name != "loss"}}
