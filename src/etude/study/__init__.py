"""Studies: recipes x tasks x seeds under one budget, cached cell by cell, ending in a report.

The package is also the function of that name: `etude.study("studies/mask-rate.yaml", budget="10m")`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etude.study.runner import On, Report


class _Study(ModuleType):
    """A module that can be called: what a reader looks for under etude.study are both the verb and its rooms."""

    def __call__(
        self,
        file: str | Path,
        out: str | Path | None = None,
        *,
        budget: str | None = None,
        gpu: bool = False,
        on: On = "here",
        workers: int = 2,
        data: str | Path | None = None,
        device: str | None = None,
        **changes: Any,
    ) -> Report:
        """Runs a study file; `**{"seeds.pretrain": 1}` changes its settings, `out` is runs/study-NAME if not given."""
        from etude.study.budget import parsed
        from etude.study.runner import run
        from etude.study.settings import Study

        if budget is not None:
            changes["budget"] = parsed(budget)
        study = Study.load(file, gpu, changes)
        folder = out or Path("runs") / f"study-{study.name}"
        return run(study, folder, on=on, workers=workers, data=data, device=device)


sys.modules[__name__].__class__ = _Study
