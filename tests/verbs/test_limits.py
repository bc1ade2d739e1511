from __future__ import annotations

import pytest

from etude.errors import UserError
from etude.verbs.limits import require_at_least


def test_a_number_below_its_limit_is_named() -> None:
    with pytest.raises(UserError, match="workers=0 is too small: it must be at least 1"):
        require_at_least("workers", 0, 1)
    with pytest.raises(UserError):
        require_at_least("minutes", float("nan"), 0.5)
    require_at_least("workers", 1, 1)
    require_at_least("workers", None, 1)
