"""Every family of transformers, read through its table: the same numbers, padded there and packed here, and back."""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude import hub
from etude.hub import mapping
from etude.hub.families import match_recipe
from tests.hub import published_models as reference
from tests.hub.published_models import CASES

transformers = pytest.importorskip("transformers", reason="parity needs the package transformers")
transformers.logging.set_verbosity_error()

# Of gradients, as README states it: 1e-5 of a tensor's largest value, or 1e-4 of their own. Sums of float32 in another
# order (packed here, padded there) leave 1e-6 of the largest at most.
ABSOLUTE, RELATIVE = 1e-5, 1e-4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path, Any]:
    case = CASES[request.param]
    model = reference.reference_model(case)
    folder = reference.save(model, tmp_path_factory.mktemp("reference") / "model", case)
    return case, model, folder, hub.read_checkpoint(folder)


def test_states_logits_losses_and_gradients_agree(imported: Any) -> None:
    case, there, _, taken = imported
    assert not taken.untrained
    settings = taken.recipe.model
    assert {name: getattr(settings, name) for name in case.ours} == case.ours
    here = reference.ours(taken)
    given = reference.inputs(segments=settings.segments > 0)
    batch, labels = reference.batch_of(here, given)
    if case.model == "AlbertForPreTraining":
        labels["sentence_order_label"] = labels.pop("next_sentence_label")
    theirs = reference.run_reference(there, given, labels)
    real = given.mask.bool()

    states = here["model"](given.packed, layers=True).layers
    expected = list(theirs.hidden_states)
    skip = 1 if settings.embedding_width == 16 and case.config == "ElectraConfig" else 0  # it lists its tables there
    last = -1 if settings.norm == "pre" else None  # some list the last layer before the final norm, some after
    for one, other in list(zip(states, expected, strict=True))[skip:last]:
        torch.testing.assert_close(one, other[real], rtol=1e-5, atol=1e-5)
    scores = theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits
    torch.testing.assert_close(reference.logits(here, given.packed), scores[real], rtol=1e-5, atol=1e-5)

    terms = here["objective"].loss(here["model"], batch)
    total = sum(term.weight * term.sum / term.count for term in terms.values())
    torch.testing.assert_close(total, theirs.loss, rtol=1e-5, atol=1e-5)

    total.backward()
    theirs.loss.backward()
    family, _ = match_recipe(taken.recipe)
    assert family is not None
    gradients = {name: parameter.grad for name, parameter in there.named_parameters()}
    for name, wanted in mapping.to_own_names(family.table, settings, gradients, {}, "gradients").items():
        found = here.get_parameter(name).grad
        assert found is not None, name
        assert_equal_gradients(found, wanted, name)


def assert_equal_gradients(found: Tensor, wanted: Tensor, name: str) -> None:
    """Check a gradient within ABSOLUTE of its tensor's largest value or RELATIVE of its own, whichever is larger."""
    largest = wanted.abs().max()
    excess = (found - wanted).abs() - torch.maximum(ABSOLUTE * largest, RELATIVE * wanted.abs())
    at = int(excess.argmax())
    assert bool((excess <= 0).all()), (  # NaN is not
        f"{name}: {found.flatten()[at]:.4e} here, {wanted.flatten()[at]:.4e} there, where the largest is {largest:.4e}"
    )


def test_gradients_are_compared_as_readme_states() -> None:
    wanted = torch.tensor([2.0, -1e-3, 0.0])
    for off, is_equal in (([1.9e-4, 1.9e-5, 1.9e-5], True), ([2.1e-4, 0, 0], False), ([0, 0, 2.1e-5], False)):
        with contextlib.nullcontext() if is_equal else pytest.raises(AssertionError, match="the largest is 2"):
            assert_equal_gradients(wanted + torch.tensor(off), wanted, "weight")
    with pytest.raises(AssertionError):
        assert_equal_gradients(torch.full((3,), math.nan), wanted, "weight")
    for readme in ("README.md", "README.ko.md"):
        text = (ROOT / readme).read_text(encoding="utf-8")
        [line] = [line for line in text.split("\n- ") if "DistilBERT, ALBERT" in line and "`transformers`" in line]
        assert re.findall(r"\d+e-\d+", line) == ["1e-5", f"{ABSOLUTE:.0e}".replace("e-0", "e-"), "1e-4"], readme


def test_written_back_it_is_the_same_model(imported: Any, tmp_path: Path) -> None:
    case, there, _, taken = imported
    published = hub.to_published(taken.recipe, taken.tensors, taken.tokenizer)
    assert published is not None
    assert published.architecture == case.model
    hub.write_published(published, tmp_path)
    opener = getattr(transformers, published.auto_class)
    again, info = opener.from_pretrained(tmp_path, output_loading_info=True, attn_implementation="eager")
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    given = reference.inputs(segments=taken.recipe.model.segments > 0)
    with torch.no_grad():
        one, other = reference.run_reference(again.eval(), given, {}), reference.run_reference(there, given, {})
    real = given.mask.bool()
    name = "prediction_logits" if "prediction_logits" in one else "logits"
    wanted = other.prediction_logits if "prediction_logits" in other else other.logits
    torch.testing.assert_close(getattr(one, name)[real], wanted[real], rtol=1e-6, atol=1e-6)


def test_reading_what_was_written_gives_the_same_tensors(imported: Any, tmp_path: Path) -> None:
    _, _, _, taken = imported
    published = hub.to_published(taken.recipe, taken.tensors, taken.tokenizer)
    assert published is not None
    hub.write_published(published, tmp_path)
    again, untrained = hub.read_run_tensors(taken.recipe, taken.tokenizer.special, tmp_path)
    assert not untrained
    assert again.keys() == taken.tensors.keys()
    for name, tensor in taken.tensors.items():
        assert torch.equal(again[name], tensor), name


def test_sentence_logits_agree(tmp_path: Path) -> None:
    for name, key in (("bert", "seq_relationship_logits"), ("albert", "sop_logits")):
        case = CASES[name]
        there = reference.reference_model(case)
        here = reference.ours(hub.read_checkpoint(reference.save(there, tmp_path / name, case)))
        given = reference.inputs(segments=True)
        model = here["model"]
        found = here["objective"].sentence(model.pool(model(given.packed).last, given.packed.layout))
        theirs = reference.run_reference(there, given, {})
        torch.testing.assert_close(found, theirs[key], rtol=1e-5, atol=1e-5)
