"""The wheel holds every file of the package and nothing else, and works where only its dependencies are installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
NO_DOWNLOADS = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")

STUDY = {
    "name": "wheel",
    "text": {"world": 0.3},
    "budget": {"flops": 2e9},
    "contenders": {"bert": {"recipe": "bert-toy"}, "gpt": {"recipe": "gpt2-toy"}},
    "set": {
        "tokenizer": "wordpiece:400",
        "model.layers": 2,
        "model.width": 32,
        "model.heads": 2,
        "train.batch_tokens": 512,
    },
    "tasks": {"topic": {"kind": "classify", "world": "topic", "labels": [16], "dev_size": 40, "test_size": 60}},
    "transfer": {"train.batch_examples": 8, "train.epochs": 2},
    "seeds": {"pretrain": 1, "transfer": 2},
    "claims": [{"claim": "BERT beats GPT", "better": "bert", "than": "gpt"}],
}


def run(*command: str | Path, folder: Path, timeout: int = 600) -> str:
    """The output of a command that must succeed, in an environment that knows nothing of the sources."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    process = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders beside the sources, and takes in what an earlier one left there."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "etude"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    pip = (sys.executable, "-m", "pip", "wheel", *NO_DOWNLOADS, "--no-build-isolation")
    run(*pip, "--wheel-dir", folder, copy, folder=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def test_every_file_of_the_package_is_inside_and_nothing_else(names: set[str]) -> None:
    files = [path.relative_to(ROOT / "src") for path in (ROOT / "src" / "etude").rglob("*") if path.is_file()]
    package = {file.as_posix() for file in files if "__pycache__" not in file.parts}
    assert {Path(name).suffix for name in package} >= {".py", ".yaml", ".json", ".css", ".html"}
    assert "etude/py.typed" in package
    inside = {name for name in names if ".dist-info/" not in name}
    assert not package - inside, "missing in the wheel: see package-data in pyproject.toml"
    assert not inside - package


def test_the_metadata_is_complete(metadata: Message, names: set[str]) -> None:
    assert (metadata["Name"], metadata["License-Expression"]) == ("etude", "Apache-2.0")
    assert metadata["Version"] and metadata["Summary"] and metadata["Author"] and metadata["Keywords"]
    assert metadata["Requires-Python"] == ">=3.11" and metadata["Description-Content-Type"] == "text/markdown"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {"parquet", "tensorboard", "hub", "elmo", "fast", "ray", "all"} <= set(
        metadata.get_all("Provides-Extra", [])
    )


def test_heavy_packages_are_optional(metadata: Message) -> None:
    always = {re.split(r"[^\w.-]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert "torch" in always
    assert not always & {"matplotlib", "tensorboard", "scikit-learn", "pyarrow", "transformers", "numba", "ray"}


# --- installed, in a clean environment ----------------------------------------------------------------


def dependencies(requirements: list[str], seen: set[str]) -> Iterator[Distribution]:
    """The installed distributions that requirements name without an extra, and those that they need in turn."""
    for requirement in requirements:
        name = re.split(r"[^\w.-]", requirement)[0].lower()
        if "extra ==" in requirement or name in seen:
            continue
        seen.add(name)
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # for another platform or an older Python: its marker said so
            continue
        yield installed
        yield from dependencies(installed.requires or [], seen)


@pytest.fixture(scope="module")
def environment(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and what it requires, linked to what is installed here.

    Nothing is downloaded, and nothing is there that the wheel does not ask for: a forgotten dependency is an error.
    """
    folder = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    programs = folder / "bin"
    line = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(run(programs / "python", "-c", line, folder=folder).strip())
    for installed in dependencies(metadata.get_all("Requires-Dist", []), set()):
        for top in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            place, link = Path(str(installed.locate_file(top))), packages / top
            if place.exists() and not link.exists() and place.suffix != ".pth":
                link.symlink_to(place)
    pip = (sys.executable, "-m", "pip", "--python", programs / "python", "install", *NO_DOWNLOADS)
    run(*pip, wheel, folder=folder)
    return programs


@pytest.mark.slow
def test_it_works_where_nothing_else_is_installed(environment: Path, tmp_path: Path) -> None:
    place = run(environment / "python", "-c", "import etude; print(etude.__file__)", folder=tmp_path)
    assert Path(place.strip()).is_relative_to(environment.parent)
    absent = "import importlib.util as u; print([n for n in ('sklearn', 'matplotlib', 'pyarrow') if u.find_spec(n)])"
    assert run(environment / "python", "-c", absent, folder=tmp_path).strip() == "[]"

    assert "pretrain" in run(environment / "etude", "--help", folder=tmp_path)
    recipes = run(environment / "etude", "recipes", folder=tmp_path)
    assert "bert-base" in recipes and "gpt3-175b" in recipes and "word2vec-skipgram" in recipes

    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    run(environment / "etude", "study", "study.yaml", "-o", "out", "--device", "cpu", folder=tmp_path)
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert [row["kind"] for row in results["rows"]][:2] == ["contender", "contender"]
    assert len(results["claims"]) == 1
    assert "<html" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
