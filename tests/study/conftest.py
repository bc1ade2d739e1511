"""The tiny study and its outcome, run once a test process."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.study import budget
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.tasks import bootstrap
from tests.study.tiny_study import tiny


@pytest.fixture(scope="session", autouse=True)
def _short_trials() -> None:
    """Speeds are only estimates here."""
    budget.TRIAL_SECONDS = 0.05
    bootstrap.ROUNDS = 20  # of the interval on dev, which a study does not look at


@pytest.fixture(scope="session")
def study() -> Study:
    return tiny()


@pytest.fixture(scope="session")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The tiny study, run once a test process."""
    return run(study, Path(tmp_path_factory.mktemp("study")) / "tiny")
