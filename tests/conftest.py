"""What several tests share: prepared corpora of the built-in world, made once a test process; Triton's interpreter."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.half_precision import open_means_float32
from tests.interpreter import Interpreter
from tests.train.forked_ranks import RankServer, serve_ranks

SOURCE = Path(__file__).resolve().parents[1] / "src" / "etude"

pytest_plugins = ["tests.transfer_fixtures"]

# examples are as slow as the machine is busy: neither a deadline nor a slow strategy says anything about the code
settings.register_profile("busy machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machines")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what files of tests import is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_looked_for_among_new_objects() -> None:
    """A search among all that the suite has imported takes half a second, and a study searches after each cell."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _libraries_as_they_were() -> Iterator[None]:
    """A bf16 product on a CPU without it switches oneDNN off for the whole process: not for the next test."""
    yield
    if "torch" in sys.modules:
        import torch

        torch.backends.mkldnn.enabled = True


@pytest.fixture(scope="session", autouse=True)
def _disks_are_not_waited_for() -> Iterator[None]:
    """What was flushed to a disk outlives a power cut, which no test makes; a killed process it outlives anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _seeds_of_absent_gpus_are_not_kept() -> Iterator[None]:
    """torch.manual_seed formats the whole stack for the first use of a GPU, which takes as long as a small test."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:  # a test that needs none is not to wait for it
            import torch

            for device in (torch.cuda, torch.xpu):
                if not device.is_available():
                    patch.setattr(device, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _precision_does_not_depend_on_the_machine() -> None:
    if "torch" in sys.modules:  # a test that needs none is not to wait for it
        open_means_float32()


@pytest.fixture(scope="session", autouse=True)
def _loops_compiled_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Numba needs many seconds for a loop of word vectors: the processes of a whole run share, and keep, what it made.

    Numba asks whether the file of a function has changed; what its constants are from is in the name of the folder.
    """
    with pytest.MonkeyPatch.context() as patch:
        kept = getattr(request.config, "cache", None)
        if kept and "PYTEST_XDIST_WORKER" in os.environ and importlib.util.find_spec("numba"):
            import numba

            key = blake2b(f"{sys.version} {numba.__version__}".encode(), digest_size=8)
            for path in sorted(SOURCE.rglob("*.py")):
                if path.parent.name == "kernels" or b"njit" in path.read_bytes():
                    key.update(path.read_bytes())
            patch.setattr(numba.config, "CACHE_DIR", str(kept.mkdir(f"numba-{key.hexdigest()}")))
            patch.setattr(numba, "njit", partial(numba.njit, cache=True))
        yield


@pytest.fixture(scope="session")
def compiled_kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what Triton compiles; a whole run keeps it, since a kernel takes half a second of a processor.

    Triton asks for the source of a kernel and all that it calls, its arguments, the GPU and its own version.
    """
    kept = getattr(request.config, "cache", None)
    return kept.mkdir("triton") if kept and "PYTEST_XDIST_WORKER" in os.environ else tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="session", autouse=True)
def _commands_say_nothing_while_they_wait() -> Iterator[None]:
    """After a second a command says what it is doing, which on a busy machine stands before what a test looks at."""
    from etude.cli import activity

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activity, "FIRST_SECONDS", 3600.0)
        yield


@pytest.fixture(scope="session")
def world_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 200 KB of English about the built-in town."""
    from etude.world import World

    folder = tmp_path_factory.mktemp("world")
    path = folder / "town.txt"
    path.write_text("\n\n".join(World(seed=0, language="en").text(megabytes=0.2)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def prepared(world_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a tokenizer's specification to the folder of a corpus with it."""
    made: dict[str, Path] = {}

    def prepare(tokenizer: str) -> Path:
        if tokenizer not in made:
            from etude.text.prepare.prepare import prepare as run

            folder = tmp_path_factory.mktemp("corpora") / tokenizer.replace(":", "-")
            run(str(world_text), folder, tokenizer=tokenizer, valid=0.1, workers=1)
            made[tokenizer] = folder
        return made[tokenizer]

    return prepare


@pytest.fixture
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `etude check` measure for moments and not for two seconds, where a test looks at no speed."""
    from etude.pretraining import check

    monkeypatch.setattr(check, "measure_speed", partial(check.measure_speed, seconds=0.02))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("interpreted") and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("runs inside test_in_the_interpreter")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankServer]:
    """A server of processes that train: torch's machinery is imported once for all of them."""
    with serve_ranks(tmp_path_factory.mktemp("ranks")) as server:
        yield server


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    process = Interpreter()
    yield process
    process.close()


@pytest.fixture
def in_the_interpreter(interpreter: Interpreter) -> Callable[[str], None]:
    """Runs the interpreted tests of a file where Triton interprets: it must know that before it is imported."""

    def run(path: str) -> None:
        if os.environ.get("TRITON_INTERPRET") == "1" or importlib.util.find_spec("triton") is None:
            pytest.skip("Triton is not installed: the GPU kernels are not checked here")
        code, output = interpreter.run(path)
        assert code == 0, output

    return run
