"""Answers of `span` as the files that SQuAD's scorer and BERT's run_squad have.

predictions.json              id -> the answer, "" where there is none: what the official scorers read
predictions.nbest.json        id -> the n best, each with text, probability, start_logit and end_logit; where a
                              question may have no answer, that is one of them
predictions.null_odds.json    id -> how much "no answer" is above the best span
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Answers = Sequence[Mapping[str, Any]]


def official(found: Answers) -> dict[str, dict[str, Any]]:
    """The content of each file by the ending of its name."""
    files: dict[str, dict[str, Any]] = {
        "": {str(answer["id"]): answer["answer"] for answer in found},
        ".nbest": {str(answer["id"]): _best(answer) for answer in found},
    }
    if any("null_logits" in answer for answer in found):
        files[".null_odds"] = {str(answer["id"]): answer["null"] for answer in found}
    return files


def _best(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Best first, their probabilities over all that are listed."""
    entries = [{key: one[key] for key in ("text", "start_logit", "end_logit")} for one in answer["nbest"]]
    if answer.get("null_logits"):
        start, end = answer["null_logits"]
        entries.append({"text": "", "start_logit": start, "end_logit": end})
    entries.sort(key=lambda one: -(one["start_logit"] + one["end_logit"]))
    if not entries:
        return []
    top = entries[0]["start_logit"] + entries[0]["end_logit"]
    shares = [math.exp(one["start_logit"] + one["end_logit"] - top) for one in entries]
    return [
        {"text": one["text"], "probability": share / sum(shares), **one}
        for one, share in zip(entries, shares, strict=True)
    ]
