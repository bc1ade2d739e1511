"""Answers of `span` as the files that SQuAD's scorer and BERT's run_squad have.

predictions.json              id -> the answer, "" where there is none: what the official scorers read
predictions.nbest.json        id -> the n best, each with text, probability, start_logit and end_logit; where a
                              question may have no answer, that is one of them
predictions.null_odds.json    id -> how much "no answer" is above the best span
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

Answers = Sequence[Mapping[str, Any]]
log = logging.getLogger("etude")


def official(answers: Answers) -> dict[str, dict[str, Any]]:
    """The content of each file by the ending of its name."""
    lost = len(answers) - len({str(answer["id"]) for answer in answers})
    if lost:
        log.warning(
            "%d of %d answers are not in the official files, which hold one answer an id: later questions have theirs. "
            "Give each question an id of its own, or write .jsonl.", lost, len(answers),
        )  # fmt: skip
    files: dict[str, dict[str, Any]] = {
        "": {str(answer["id"]): answer["answer"] for answer in answers},
        ".nbest": {str(answer["id"]): _best(answer) for answer in answers},
    }
    if any("null_logits" in answer for answer in answers):
        files[".null_odds"] = {str(answer["id"]): answer["null"] for answer in answers}
    return files


def _best(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Best first, their probabilities over all that are listed."""
    entries = [{key: entry[key] for key in ("text", "start_logit", "end_logit")} for entry in answer["nbest"]]
    if answer.get("null_logits"):
        start, end = answer["null_logits"]
        entries.append({"text": "", "start_logit": start, "end_logit": end})
    entries.sort(key=lambda entry: -(entry["start_logit"] + entry["end_logit"]))
    if not entries:
        return []
    top = entries[0]["start_logit"] + entries[0]["end_logit"]
    weights = [math.exp(entry["start_logit"] + entry["end_logit"] - top) for entry in entries]
    return [
        {"text": entry["text"], "probability": weight / sum(weights), **entry}
        for entry, weight in zip(entries, weights, strict=True)
    ]
