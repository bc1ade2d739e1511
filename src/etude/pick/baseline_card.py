"""The model card of a pick's best model where it is no neural one; others bring the card of their run."""

from __future__ import annotations

from etude.runs.model_card import USE


def format_baseline_card(name: str, label: str, kind: str, labels: int, temperature: float) -> str:
    """Return the model card in Markdown of the model in a folder `name`, learnt from so many labels of a task.

    It goes where the model goes: no path of this machine stands in it.
    """
    probabilities = "as they are" if temperature == 1.0 else f"calibrated: logits divided by {temperature:.3g}"
    return f"""# {name}

{label[0].upper()}{label[1:]} for the task {kind}, chosen by `etude pick` and learnt from all {labels:,} labels.
Probabilities are {probabilities}. What else was tried, its scores and its errors: `report.html` in the pick's folder.

{USE}
In this folder:

    etude evaluate . FILE
    etude predict . < lines.txt

In Python: `etude.load(".").predict(inputs)`.
`export` holds the same model for numpy alone, with the code that reads it (`predict.py`).
"""
