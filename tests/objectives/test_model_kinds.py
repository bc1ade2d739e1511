"""An objective over a model of another kind is refused in the words of a recipe."""

from __future__ import annotations

import pytest

from etude.errors import UserError
from etude.kinds import find_kind
from etude.models import static, transformer
from etude.models.base import Model
from etude.text.tokenizer.special_tokens import Specials

SPECIAL = Specials(pad=0, unknown=1, start=2, separator=3, mask=4, end=5)
FOR_STATIC = ("cbow", "cooccurrence", "ranking", "skipgram")
OTHERS = ("bilm", "causal", "cloze", "entity_alignment", "masked", "translate")


@pytest.mark.parametrize("kind", [*FOR_STATIC, *OTHERS])
def test_a_model_is_named_as_in_a_recipe(kind: str) -> None:
    model: Model
    if kind in FOR_STATIC:
        model = transformer.build(transformer.Settings(layers=1, width=8, heads=2, vocab=20, context=10))
    else:
        model = static.build(static.Settings(width=8, vocab=20))
    objective = find_kind("objectives", kind)
    with pytest.raises(UserError, match=rf"{kind} .*not (of )?{model.kind}[.:]"):
        objective.build(objective.Settings(), model, SPECIAL)
    assert model.kind == ("transformer" if kind in FOR_STATIC else "static")
