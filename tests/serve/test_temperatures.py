"""A temperature beyond all use is refused: scores at 1e300 are no numbers, and the answer was a 500."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from etude.serve.limits import MAX_TEMPERATURE
from etude.serve.requests import GenerateRequest, TranslateRequest


@pytest.mark.parametrize("kind", [GenerateRequest, TranslateRequest])
@pytest.mark.parametrize("temperature", [1e300, 101.0, -1.0, float("inf"), float("nan")])
def test_a_temperature_has_bounds(kind: type[GenerateRequest | TranslateRequest], temperature: float) -> None:
    with pytest.raises(ValidationError, match="temperature"):
        kind(input="a", temperature=temperature)
    assert kind(input="a", temperature=MAX_TEMPERATURE).temperature == MAX_TEMPERATURE
