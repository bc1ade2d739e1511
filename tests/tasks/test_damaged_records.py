"""Records with a damaged part: every kind of task reads them or says what is wrong, and what it read can be written."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.errors import UserError
from etude.runs.task_plan import task_kinds
from tests.tasks.labelled_records import records

KINDS = task_kinds()
LONG = "9" * 5000  # digits: more than Python makes a number of
TEXTS = ["\ud83d", "a\ud83d", LONG, "", " ", "\0", "\u2028", "٣", "1.0", "true", "["]
LISTS = [["\ud83d", "x"], {"\ud83d": 1}, [LONG], [], {}, [[]], [None], [b"\xff"]]
VALUES = [None, True, -1, 1.5, 10**30, math.nan, math.inf, b"\xff", datetime.date(2026, 1, 2)]
ODD = st.sampled_from([*TEXTS, *LISTS, *VALUES]).map(deepcopy)


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    """A record in which parts are replaced, removed or doubled, at any depth."""
    record = json.loads(json.dumps(draw(st.sampled_from(records(kind, 4, 0)))))
    for _ in range(draw(st.integers(1, 2))):
        node: Any = record
        while node:
            key = draw(st.sampled_from(list(node) if isinstance(node, dict) else list(range(len(node)))))
            if isinstance(node[key], (dict, list)) and node[key] and draw(st.booleans()):
                node = node[key]
                continue
            change = draw(st.sampled_from(["replace", "remove", "double"]))
            if change == "remove":
                node.pop(key)
            elif change == "double" and isinstance(node, list):
                node.append(deepcopy(node[key]))
            else:
                node[key] = draw(ODD)
            break
    return record


def check_plain(value: object) -> None:
    """Raise where a value of an example is none that JSON and UTF-8 take."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, float):
        assert math.isfinite(value)
    elif isinstance(value, (list, tuple, frozenset)):
        for item in value:
            check_plain(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        check_plain(list(vars(value).values()))
    else:
        assert value is None or isinstance(value, int)


@pytest.mark.parametrize("name", sorted(KINDS))
@settings(max_examples=30, deadline=None)
@given(st.data(), st.booleans())
def test_a_damaged_record_is_read_or_refused(name: str, data: st.DataObject, labelled: bool) -> None:
    record, kind = data.draw(damaged(name)), KINDS[name]
    try:
        example = kind.parse(record, {}, "x.jsonl:7", labelled)
    except UserError as error:
        assert str(error).startswith("x.jsonl:7")
    else:
        check_plain(example)


@pytest.mark.parametrize(
    ("name", "column", "value", "message"),
    [
        ("span", "id", "a\ud83d", "the text in 'id' holds half a surrogate pair"),
        ("entity_typing", "labels", ["\ud83d"], "the text in 'labels' holds half a surrogate pair"),
        ("entity_typing", "start", LONG, "not the number of a character"),
        ("choice", "answer", LONG, "none of the 2 answers"),
    ],
)
def test_what_could_not_be_written_or_counted_is_told(name: str, column: str, value: object, message: str) -> None:
    """Half a pair came through and broke the file of answers at its end; of LONG Python itself makes no number."""
    [record] = records(name, 1, 0)
    with pytest.raises(UserError, match=rf"^x\.jsonl:7: .*{message}"):
        KINDS[name].parse(record | {column: value}, {}, "x.jsonl:7", True)
