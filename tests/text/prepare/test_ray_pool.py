"""A corpus prepared on a Ray cluster: the bytes of one machine, with machines lost and added, interrupted or not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.text.prepare.small_texts import as_bytes, some_text

from etude.text.prepare import readers
from etude.text.prepare.prepare import Progress, prepare
from etude.text.prepare.worker_pool import SINGLE_THREADED

pytestmark = pytest.mark.slow
SPEC = "bytebpe:400"


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 13)
    path = tmp_path / "town.txt"
    path.write_text("\n\n".join(some_text(1500)), encoding="utf-8")
    return path


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs nothing, and machines beside it, all of them on this one."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'etude[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.add_node(num_cpus=1)
    variables = {**SINGLE_THREADED, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])}
    variables["PYTHONPATH"] = os.pathsep.join(str(Path(name).resolve()) for name in variables["PYTHONPATH"].split(":"))
    ray.init(address=cluster.address, runtime_env={"env_vars": variables}, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_machines_lost_and_added_do_not_show(cluster: Any, text: Path, tmp_path: Path) -> None:
    prepare(text, tmp_path / "local", SPEC, valid=0.1, workers=0)
    second = cluster.add_node(num_cpus=1)
    third: list[Any] = []
    lost: list[float] = []

    def disturb(progress: Progress) -> None:
        if progress.phase == "encoding" and progress.done > 0.3 * progress.total and not lost:
            lost.append(time.monotonic())
            cluster.remove_node(second, allow_graceful=False)  # its blocks are done again
            third.append(cluster.add_node(num_cpus=1))

    prepare(text, tmp_path / "ray", SPEC, valid=0.1, on="ray", progress=disturb)
    assert lost and third
    assert as_bytes(tmp_path / "ray") == as_bytes(tmp_path / "local")

    def stop(progress: Progress) -> None:
        if progress.phase == "encoding" and progress.done > 0.5 * progress.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(text, tmp_path / "again", SPEC, valid=0.1, on="ray", progress=stop, commit_seconds=0)
    assert (tmp_path / "again.partial" / "state.json").exists()
    prepare(text, tmp_path / "again", SPEC, valid=0.1, workers=0)  # goes on on one machine
    assert as_bytes(tmp_path / "again") == as_bytes(tmp_path / "local")
