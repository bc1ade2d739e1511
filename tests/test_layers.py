"""No import runs upward, no files import each other in a circle; what the command line and workers load stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_nodes import import_nodes

SOURCE = Path(__file__).resolve().parents[1] / "src" / "etude"

# One rank a package, lowest first: a package uses itself and what stands before it.
# fmt: off
ORDER = [
    "cores", "startup", "errors", "plain_yaml", "settings", "chance", "kinds", "extras", "stages", "notebook",
    "text", "graph", "world", "nn", "models", "objectives", "tasks",
    "train", "recipes", "runs", "baselines", "hub", "inference", "view", "pretraining", "transfer", "study", "pick",
    "serve", "verbs",
    "etude",  # the package itself: the Python interface over all of it
    "cli", "__main__",
]
# fmt: on
RANK = {name: rank for rank, name in enumerate(ORDER)}
FILES = sorted(SOURCE.rglob("*.py"))


def part(file: Path) -> str:
    """The top-level part of the package that a file belongs to."""
    inside = file.relative_to(SOURCE).with_suffix("").parts
    return "etude" if inside == ("__init__",) else inside[0]


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a module's text, also inside functions; relative ones made absolute."""
    for node in import_nodes(source):
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
    assert own in RANK, f"src/etude/{own} has no layer yet: give it one in ORDER of {Path(__file__).name}"
    package = ("etude", *file.relative_to(SOURCE).parent.parts)
    for line, module in imports(file.read_text(encoding="utf-8"), package):
        used = target(module)
        if used is not None:
            assert used in RANK, f"{file}:{line} uses {module}, which has no layer"
            assert RANK[used] <= RANK[own], f"{file}:{line}: {own} may not use {module}, a layer above it"


def module_name(file: Path) -> str:
    return ".".join(("etude", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports anywhere, for the type checker too."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        graph[name] = set()
        for node in import_nodes(source):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names if alias.name in sources}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    graph[name] |= {inner if inner in sources else node.module} & sources.keys()
    return {name: imported - {name} for name, imported in graph.items()}


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of modules, or []; modules without imports are taken away until none is left."""
    left = {name: set(imported) for name, imported in graph.items()}
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    circle: list[str] = [next(iter(sorted(left)))] if left else []
    while circle and circle[-1] not in circle[:-1]:
        circle.append(sorted(left[circle[-1]] & left.keys())[0])
    return circle


def test_no_circle_of_files() -> None:
    graph = import_graph({module_name(file): file.read_text(encoding="utf-8") for file in FILES})
    assert not (circle := find_circle(graph)), " -> ".join(circle)


def test_a_circle_is_found() -> None:
    sources = {
        "etude.a": "def f():\n    from etude import b",
        "etude.b": "import etude.c",
        "etude.c": "from etude.a import x",
    }
    assert set(find_circle(import_graph(sources))) == {"etude.a", "etude.b", "etude.c"}
    assert not find_circle(import_graph(sources | {"etude.c": ""}))


FAMILIES = {"Transformer", "TwoTower", "Recurrent", "Static", "LayerFeatures"}
# what stands somewhere in a file with a probe: the name of a class, or of a model before a comma
PROBED = re.compile(rf"\b(?:{'|'.join(FAMILIES)})\b|\b(?:model|trunk|teacher)\s*,")
PROBE = re.compile(r"\b(?:isinstance|getattr|hasattr)\(")


def family_probes(source: str) -> list[int]:
    """Lines that ask a model for its class, or for an attribute that it may not have."""
    lines: list[int] = []
    if not (PROBED.search(source) and PROBE.search(source)):  # walking through a whole file takes long
        return lines
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
            continue
        question = node.args[1]
        if node.func.id == "isinstance":
            classes = {name.id for name in ast.walk(question) if isinstance(name, ast.Name)}
            classes |= {name.attr for name in ast.walk(question) if isinstance(name, ast.Attribute)}
            lines += [node.lineno] if classes & FAMILIES else []
        elif node.func.id in ("getattr", "hasattr") and isinstance(question, ast.Constant):
            subject = ast.unparse(node.args[0])
            lines += [node.lineno] if subject.split(".")[-1] in ("model", "trunk", "teacher") else []
    return lines


def test_nobody_asks_a_model_for_its_class() -> None:
    """Outside models/, what is asked of a model is a member of its contract (models/base.py)."""
    probes = [
        f"{file.relative_to(SOURCE)}:{line}"
        for file in FILES
        if part(file) != "models"
        for line in family_probes(file.read_text(encoding="utf-8"))
    ]
    assert not probes, probes


def test_a_probe_is_found() -> None:
    source = "isinstance(m, (int, models.Static))\ngetattr(self.model, 'causal', None)\nisinstance(m, Model)\n"
    assert family_probes(source) == [1, 2]


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


def test_text_graph_and_world_load_no_torch() -> None:
    files = [file for file in FILES if part(file) in ("text", "graph", "world")]
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
