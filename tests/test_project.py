"""What a public project carries: files that are there, agree with each other and point at nothing missing."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from etude.extras import EXTRAS
from tests.import_nodes import import_nodes

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SOURCES = sorted((ROOT / "src" / "etude").rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirements(extra: str | None = None) -> list[Requirement]:
    return [
        Requirement(line) for line in (PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"])
    ]


def test_the_licence_is_the_same_everywhere() -> None:
    assert "Apache License" in read("LICENSE") and "END OF TERMS AND CONDITIONS" in read("LICENSE")
    assert PROJECT["license"] == "Apache-2.0" == yaml.safe_load(read("CITATION.cff"))["license"]


def test_the_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load(read("CITATION.cff"))["version"] == PROJECT["version"]
    newest = re.search(r"^## \[(.+?)\] - (\S+)$", read("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None and newest[1] == PROJECT["version"]
    assert newest[2] == "unreleased" or date.fromisoformat(newest[2])


def test_the_citation_has_the_required_fields() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["title"]
    assert citation["authors"] == [{"name": author["name"]} for author in PROJECT["authors"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"https?://|#|mailto:", link):
            assert (page.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/glossary.md", "docs/dependencies.md"])
def test_paths_that_a_page_names_exist(page: str) -> None:
    """`src/etude/x.py` and, in tables, `x/y.py` of the package; capitals stand for a name of one's own."""
    for name in re.findall(r"`([\w./]+/[\w./]*|\w+\.py)`", read(page)):
        if not re.search(r"[A-Z]{2}", name) and not name.startswith(("runs/", "data/")):
            assert (ROOT / name).exists() or (ROOT / "src/etude" / name).exists(), f"{page} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_files_that_a_page_names_exist(page: Path) -> None:
    """In text and in commands, whole or from the package on: modules move, and pages must move along."""
    for name in re.findall(r"(?<![\w/.-])((?:\w+/)+\w+\.py)\b", page.read_text(encoding="utf-8")):
        if not re.search(r"[A-Z]{2}|^my_", name):
            assert (ROOT / name).exists() or (ROOT / "src/etude" / name).exists(), f"{page} names {name}"


def list_messages(source: str) -> Iterator[str]:
    """The texts that a user meets: of errors, and the descriptions of settings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            is_error = isinstance(node.func, ast.Name) and node.func.id.endswith("Error")
            texts = [word.value for word in node.keywords if word.arg in ("description", "help")]
            for text in node.args if is_error else texts:
                parts = [part.value for part in ast.walk(text) if isinstance(part, ast.Constant)]
                yield "".join(part for part in parts if isinstance(part, str))


def test_no_message_names_a_file_of_the_code() -> None:
    """A user has commands and settings; files of the code help whoever reads it."""
    sources = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in SOURCES}
    for file, source in sources.items():
        messages = list_messages(source) if ".py" in source else ()  # walking through a whole file takes long
        for message in messages:
            for name in re.findall(r"[\w/]+\.py\b", message):
                assert not any(path.endswith(f"/{name}") for path in sources), f"{file}: {message}"


def test_make_check_and_the_hooks_run_the_same_programs() -> None:
    hooks = [hook for repo in yaml.safe_load(read(".pre-commit-config.yaml"))["repos"] for hook in repo["hooks"]]
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in hooks)
    recipe = read("Makefile").partition("\ncheck: ")[2].partition("\n\n")[0]
    programs = re.findall(r"\$\(BIN\)/(\w+(?: check| format)?)", recipe)
    assert programs == [hook["name"] for hook in hooks]


def test_every_make_target_is_explained() -> None:
    makefile = read("Makefile")
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE)) - {"help", "setup"}
    assert targets == set(re.findall(r'@echo "make (\w+) ', makefile))
    assert targets <= set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]


def test_constraints_are_exact_and_within_the_ranges() -> None:
    lines = [line for line in read("constraints.txt").splitlines() if line and not line.startswith("#")]
    pinned = {
        name.lower().replace("_", "-"): Version(version) for name, version in (line.split("==") for line in lines)
    }
    for requirement in [*requirements(), *requirements("dev"), *requirements("parity"), *requirements("fast")]:
        name = requirement.name.lower().replace("_", "-")
        if name != PROJECT["name"]:
            assert name in pinned, f"constraints.txt has no {name}"
            assert pinned[name] in requirement.specifier, name


def test_every_dependency_has_its_reason() -> None:
    page = read("docs/dependencies.md")
    extras = PROJECT["optional-dependencies"]
    for requirement in [*requirements(), *(entry for extra in extras for entry in requirements(extra))]:
        assert requirement.name == PROJECT["name"] or re.search(rf"\b{requirement.name}\b", page), requirement.name
    assert not [extra for extra in extras if extra not in page]


def third_party_imports() -> dict[str, set[str]]:
    """Top-level package -> the files of ours that import it; _typeshed is there for type checkers alone."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "src" / "etude").rglob("*.py")):
        for node in import_nodes(file.read_text(encoding="utf-8")):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules.append(node.module)
            for name in {module.partition(".")[0] for module in modules} - {
                "etude",
                "_typeshed",
                *sys.stdlib_module_names,
            }:
                found.setdefault(name, set()).add(str(file.relative_to(ROOT / "src")))
    return found


def test_every_import_is_a_declared_dependency() -> None:
    """Of the package itself, or of an extra that etude.extras knows."""
    modules = {"PyYAML": "yaml"}
    always = {modules.get(requirement.name, requirement.name) for requirement in requirements()}
    # by another package, and used only where that one is at work
    brought = {"triton": "torch", "llvmlite": "numba", "pydantic_core": "pydantic"}
    imports = third_party_imports()
    assert not {name: files for name, files in imports.items() if name not in {*always, *EXTRAS, *brought}}
    assert (always | set(EXTRAS)) - set(imports) <= {"tensorboard", "s3fs", "gcsfs"}  # torch and fsspec import them


def test_our_packages_hide_no_installed_one() -> None:
    """`etude.nn.triton` is no `triton`: imports are absolute, and no folder of ours is on the path by itself."""
    import etude.nn.triton

    assert etude.nn.triton.__name__ == "etude.nn.triton"
    assert not set(sys.path) & {str(path.parent) for path in (ROOT / "src" / "etude").rglob("__init__.py")}
    spec = importlib.util.find_spec("triton")
    assert spec is None or "etude" not in Path(str(spec.origin)).parts
