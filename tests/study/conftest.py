"""The tiny study and its outcome, run once a test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from etude.study import budget
from etude.study.runner import Report, run
from etude.study.settings import Study
from etude.tasks import bootstrap
from tests.study.repeated_work import do_once
from tests.study.tiny_study import tiny


def shorten(patch: pytest.MonkeyPatch, factory: pytest.TempPathFactory) -> None:
    """Speeds are only estimates here."""
    do_once(patch, factory.mktemp("repeated"))
    patch.setattr(budget, "TRIAL_SECONDS", 0.05)
    patch.setattr(bootstrap, "ROUNDS", 20)  # of the interval on dev, which a study does not look at
    patch.setattr(bootstrap.bootstrap, "__defaults__", (True, 0, 20))  # `rounds` is ROUNDS as it was at import


@pytest.fixture(scope="package", autouse=True)
def _short_trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, tmp_path_factory)
        yield


@pytest.fixture(scope="session")
def study() -> Study:
    return tiny()


@pytest.fixture(scope="session")
def report(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The tiny study, run once a test process."""
    with pytest.MonkeyPatch.context() as patch:  # it is older than the fixture of the package
        shorten(patch, tmp_path_factory)
        return run(study, Path(tmp_path_factory.mktemp("study")) / "tiny")
