"""What a folder is that someone took for a model: a corpus, the folder of a pick, or one that holds runs."""

from __future__ import annotations

from pathlib import Path

from etude.errors import quote_path

CORPUS = "manifest.json"
MODELS = ("recipe.yaml", "config.json", "baseline.json")  # a run, a folder of transformers, a saved baseline
WEIGHTS = ("*.safetensors", "*.bin")
MOST_NAMED = 6  # models that a message names


def explain_other_folder(folder: Path) -> str | None:
    """Return what a folder that is no model is, and what to name instead; None where it is nothing known."""
    if (folder / CORPUS).is_file():
        command = f"'etude pretrain RECIPE {quote_path(folder)} -o runs/NAME'"
        return f"{folder} is a corpus or a graph, not a run. {command} makes one."
    if any(any(folder.glob(pattern)) for pattern in WEIGHTS):  # a model that lost a file
        return None
    try:
        inside = sorted(path for path in folder.iterdir() if any((path / name).is_file() for name in MODELS))
    except OSError:  # no folder, or none that may be read: the caller says which
        return None
    if not inside:
        return None
    rest = f" and {len(inside) - MOST_NAMED} more" if len(inside) > MOST_NAMED else ""
    listed = ", ".join(map(str, inside[:MOST_NAMED]))
    return f"{folder} holds models and is none itself: name one of them, {listed}{rest}."
