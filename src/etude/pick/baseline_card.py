"""The model card of a pick's best model where it is no neural one; others bring the card of their run."""

from __future__ import annotations

import shlex
from pathlib import Path


def format_baseline_card(folder: Path, label: str, kind: str, labels: int, temperature: float) -> str:
    """Return the model card in Markdown of a model in `folder`, learnt from so many labels of a task."""
    probabilities = "as they are" if temperature == 1.0 else f"calibrated: logits divided by {temperature:.3g}"
    return f"""# {folder.name}

{label[0].upper()}{label[1:]} for the task {kind}, chosen by `etude pick` and learnt from all {labels:,} labels.
Probabilities are {probabilities}. What else was tried, its scores and its errors: `{folder.parent / "report.html"}`.

    etude predict {shlex.quote(str(folder))} < lines.txt

In Python: `etude.load({str(folder)!r}).predict(["a text"])`.
`{folder / "export"}` holds the same model for numpy alone, with the code that reads it (`predict.py`).
"""
