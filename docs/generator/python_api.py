"""The reference of the Python interface: blocks for mkdocstrings, one a verb and one a type, from `etude.__all__`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import etude

OPTIONS = """\
    options:
      heading: {heading}
      toc_label: {label}
      heading_level: 3
      show_root_heading: true
      show_root_full_path: false
"""
CONTRACTS = ("etude.models.base.Model", "etude.objectives.base.Objective", "etude.objectives.base.UsableObjective",
             "etude.objectives.base.PretrainingObjective", "etude.tasks.base.Task")  # fmt: skip


def block(path: str, heading: str, members: bool = False) -> str:
    options = OPTIONS.format(heading=heading, label=heading.removeprefix("etude."))
    return f"::: {path}\n{options}" + ("" if members else "      members: false\n")


def verbs() -> Iterator[str]:
    for name in etude.__all__:
        value = getattr(etude, name)
        function = getattr(value, "verb", value)
        if name == "show":
            for verb in ("attention", "neighbours", "analogy", "scores", "unknown", "paths", "graph"):
                yield block(f"etude.verbs.show.{verb}", f"etude.show.{verb}")
        elif inspect.isfunction(function):
            yield block(f"{function.__module__}.{function.__name__}", f"etude.{name}")
        elif inspect.ismodule(value):
            yield block(f"etude.verbs.{VERB_PACKAGES[name]}.{name}", f"etude.{name}")


VERB_PACKAGES = {"pick": "comparison", "recipes": "catalog", "serve": "serving", "study": "comparison",
                 "tasks": "catalog", "world": "corpus"}  # fmt: skip


def types() -> Iterator[str]:
    for name, module in etude.TYPES.items():
        yield block(f"{module}.{name}", f"etude.{name}", members=True)


def contracts() -> Iterator[str]:
    for path in CONTRACTS:
        yield block(path, path.rpartition(".")[2], members=True)


def page() -> str:
    sections = [("Verbs", verbs()), ("What verbs take and return", types()), ("Contracts", contracts())]
    return "\n".join(f"## {title}\n\n" + "\n".join(blocks) for title, blocks in sections)
