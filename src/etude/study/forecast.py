"""What the cells that are left will take, for `--dry-run`: seconds as on a visit, and what each claim still needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from etude.study.claim_scope import claim_cells
from etude.study.plan import Plan
from etude.study.sections import localize
from etude.study.visit import Durations, list_outdated, missing_bases


@dataclass(frozen=True)
class Forecast:
    """Cells that have to run, and for how long."""

    seconds: dict[str, float]  # of all cells that have to run, by key
    again: frozenset[str]  # pre-trainings among them that are done elsewhere, without weights that others start from

    def sum_seconds(self, keys: Iterable[str]) -> float:
        return sum(self.seconds.get(key, 0.0) for key in keys)


def forecast_cells(plan: Plan) -> Forecast:
    """Forecast by what cells took that are done, where there are any: several at once, if they ran so."""
    cells = plan.cells.values()
    durations, again = Durations(plan.store, cells), frozenset(missing_bases(plan.store, cells))
    outdated = frozenset(chain(*list_outdated(plan.store, cells).values()))
    pending = [cell for cell in cells if cell.key in again | outdated or plan.store.state(cell.key) != "done"]
    return Forecast({cell.key: durations.estimate(cell) for cell in pending}, again)


def describe_claims(plan: Plan, forecast: Forecast, workers: int = 1) -> list[str]:
    """Describe in a line for each claim what is left until its verdict; claims share cells."""
    lines = []
    for claim in plan.study.claims:
        keys = {*claim_cells(plan, claim), *(plan.tuning_cells if plan.untuned else ())} & forecast.seconds.keys()
        flops, minutes = sum(plan.cells[key].flops for key in keys), forecast.sum_seconds(keys) / 60 / workers
        left = f"{len(keys)} cells, {flops:.2e} FLOPs, {minutes:.1f} minutes" if keys else "all of its cells are done"
        lines.append(f"  {localize(claim.claim, 'en')}: {left}")
    return ["Left until each verdict (claims share cells):", *lines] if lines else []
