"""What is wrong with a body: one sentence a fault, of the reading that was meant."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from etude.serve.faults import explain_faults
from etude.serve.problems import Problem
from etude.serve.requests import (
    AnalogyRequest,
    FillRequest,
    GenerateRequest,
    PathsRequest,
    PredictRequest,
    Request,
)


def explain(kind: type[Request], body: dict[str, Any]) -> Problem:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    return explain_faults(caught.value.errors(include_url=False), list(kind.model_fields))


@pytest.mark.parametrize(
    ("kind", "body", "detail"),
    [
        (FillRequest, {"input": ""}, "'input' is empty."),
        (FillRequest, {"input": []}, "'input' is empty."),
        (FillRequest, {"input": None}, "'input' is null; it must be a text or a list."),
        (FillRequest, {"input": 5}, "'input' is a number; it must be a text or a list."),
        (FillRequest, {"input": ["a", 5, ""]}, "'input[1]' is a number; it must be a text. 'input[2]' is empty."),
        (FillRequest, {"input": ["a"] * 1025}, "'input' has 1,025 items; at most 1,024 are taken."),
        (FillRequest, {"inptu": "a"}, "The field 'input' is missing. There is no field 'inptu'. Did you mean 'input'?"),
        (PredictRequest, {"input": True}, "'input' is true; it must be a text or an object or a list."),
        (PredictRequest, {"input": [5]}, "'input[0]' is a number; it must be a text or an object."),
        (AnalogyRequest, {"input": "a"}, "'input' is a text; it must be a list."),
        (AnalogyRequest, {"input": ["a", "b"]}, "'input' has 2 items; at least 3 are needed."),
        (AnalogyRequest, {"input": [["a", "b"]]}, "'input[0]' has 2 items; at least 3 are needed."),
        (GenerateRequest, {"input": "a", "tokens": 0}, "'tokens' must be greater than or equal to 1."),
        (GenerateRequest, {"input": "a", "seed": "1"}, "'seed' is a text; it must be a whole number."),
        (GenerateRequest, {"input": "a", "stop": [""]}, "'stop[0]' is empty."),
        (PathsRequest, {"input": {"question": "a"}}, "The field 'choices' is missing in 'input'."),
        (
            PathsRequest,
            {"input": [{"question": "a", "choices": ["b", "c"], "x": 1}]},
            "There is no field 'x' in 'input[0]'.",
        ),
    ],
)
def test_one_sentence_a_fault(kind: type[Request], body: dict[str, Any], detail: str) -> None:
    problem = explain(kind, body)
    assert problem.status == 422 and problem.detail == detail


def test_of_many_faults_some_are_told() -> None:
    detail = explain(FillRequest, {"input": [""] * 1000}).detail
    assert detail.startswith("'input[0]' is empty. ") and detail.endswith("There are 995 more such faults.")
    assert len(detail) < 200
