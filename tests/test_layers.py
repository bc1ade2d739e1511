"""No import runs upward, wherever it stands; and what the command line and the workers load stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "etude"

# lowest first; names on one line are neighbours and may use each other
LAYERS = [
    {"errors", "extras", "settings", "chance", "kinds"},
    {"text", "world"},
    {"nn"},
    {"models"},
    {"objectives", "tasks"},
    {"train"},
    {"recipes"},
    {"run", "card", "pretraining", "check", "bench", "loaded", "generation", "beams", "perplexity"}
    | {"transfer", "hub", "view"},
    {"study", "demo", "serve"},
    {"etude"},  # the package itself: the Python interface over all of it
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(SOURCE.rglob("*.py"))


def part(file: Path) -> str:
    """The top-level part of the package that a file belongs to."""
    inside = file.relative_to(SOURCE).with_suffix("").parts
    return "etude" if inside == ("__init__",) else inside[0]


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a module's text, also inside functions; relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            if module == "etude":  # `from etude import text`: the names are the modules
                yield from ((node.lineno, f"etude.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def target(module: str) -> str | None:
    """The part that a module belongs to; None where it is not ours."""
    head, *rest = module.split(".")
    if head != "etude":
        return None
    name = rest[0] if rest else "etude"
    exists = (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()
    return name if exists else "etude"  # a name of the Python interface: `from etude import load`


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_run_downward(file: Path) -> None:
    own = part(file)
    assert own in RANK, f"src/etude/{own} has no layer yet: give it one in LAYERS of {Path(__file__).name}"
    package = ("etude", *file.relative_to(SOURCE).parent.parts)
    for line, module in imports(file.read_text(encoding="utf-8"), package):
        used = target(module)
        if used is not None:
            assert used in RANK, f"{file}:{line} uses {module}, which has no layer"
            assert RANK[used] <= RANK[own], f"{file}:{line}: {own} may not use {module}, a layer above it"


def test_the_rule_can_fail() -> None:
    """The parser sees imports inside functions, in every form."""
    source = "def f():\n    import etude.train.loop\n    from etude import cli\n    from ..models import transformer\n"
    found = [target(module) for _, module in imports(source, ("etude", "text"))]
    assert found == ["train", "cli", "models"]
    assert all(RANK[name] > RANK["text"] for name in found if name)


def loaded_by(code: str) -> set[str]:
    """The top-level modules in memory after running `code` in a process of its own."""
    code += "\nimport sys; print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_text_and_world_load_no_torch() -> None:
    files = [file for file in FILES if part(file) in ("text", "world")]
    names = [".".join(("etude", *file.relative_to(SOURCE).with_suffix("").parts)) for file in files]
    loaded = loaded_by("\n".join(f"import {name.removesuffix('.__init__')}" for name in names))
    assert "etude" in loaded
    assert not loaded & {"torch", "transformers"}


def test_help_loads_nothing_heavy() -> None:
    code = "import sys\nfrom etude.cli.main import main\nsys.argv = ['etude', '--help']\n"
    loaded = loaded_by(code + "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code")
    assert "typer" in loaded
    heavy = {"torch", "transformers", "tokenizers", "numpy", "scipy", "sklearn", "matplotlib", "pyarrow", "pydantic"}
    assert not loaded & heavy
