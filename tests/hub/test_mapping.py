"""The language of the tables: stacking, splitting, turning, and nothing lost in either direction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from etude.errors import UserError
from etude.hub.families import FAMILIES
from etude.hub.mapping import (
    ConstantBuffer,
    FixedTensor,
    Table,
    TiedCopy,
    find_parts,
    linear,
    norm,
    tensor,
    to_own_names,
    to_published_names,
)
from etude.models.transformer import Settings

SETTINGS = Settings(layers=2, width=4, heads=2, vocab=7, context=8)
TABLE = Table(
    prefix="base.",
    rules=(
        *tensor("base.words", "model.tokens"),
        *linear(["base.layer.{i}.q", "base.layer.{i}.k"], "model.{i}.qk"),
        *linear("base.layer.{i}.both", ["model.{i}.gate", "model.{i}.up"]),
        *linear("base.layer.{i}.turned", "model.{i}.out", transposed=True),
        *norm("base.layer.{i}.norm", "model.{i}.norm", start=1),
        *linear("head", "objective.head", part="head"),
    ),
    copies=(TiedCopy("head.table", "base.words", part="head"),),
    constants=(ConstantBuffer("base.layer.{i}.mask", lambda shape: torch.ones(shape).tril()),),
    old_suffixes={"norm.gamma": "norm.weight"},
)


def published() -> dict[str, Tensor]:
    torch.manual_seed(0)
    found = {"base.words": torch.randn(7, 4), "head.weight": torch.randn(3, 4), "head.bias": torch.randn(3)}
    for layer in range(2):
        start = f"base.layer.{layer}."
        for name, rows in (("q", 4), ("k", 4), ("both", 6)):
            found |= {f"{start}{name}.weight": torch.randn(rows, 4), f"{start}{name}.bias": torch.randn(rows)}
        found |= {f"{start}turned.weight": torch.randn(4, 5), f"{start}turned.bias": torch.randn(5)}
    return found | {"base.layer.1.norm.weight": torch.randn(4), "base.layer.1.norm.bias": torch.randn(4)}


def there(changes: dict[str, Tensor] | None = None, without: str = "", **options: Any) -> dict[str, Tensor]:
    found = {name: one for name, one in (published() | (changes or {})).items() if name != without}
    return to_own_names(TABLE, SETTINGS, found, options.pop("shapes", {}), "the file", **options)


def test_each_form_of_a_rule() -> None:
    found, ours = published(), there()
    assert torch.equal(
        ours["model.0.qk.weight"], torch.cat([found["base.layer.0.q.weight"], found["base.layer.0.k.weight"]])
    )
    assert torch.equal(ours["model.1.gate.bias"], found["base.layer.1.both.bias"][:3])
    assert torch.equal(ours["model.1.up.weight"], found["base.layer.1.both.weight"][3:])
    assert torch.equal(ours["model.0.out.weight"], found["base.layer.0.turned.weight"].t())
    assert "model.0.norm.weight" not in ours  # the rule starts at layer 1
    assert find_parts(TABLE, SETTINGS, found) == {"head"}


def test_back_is_the_same_file() -> None:
    found = published()
    again = to_published_names(TABLE, SETTINGS, there(), "the model")
    assert again.keys() == found.keys()
    assert all(torch.equal(again[name], found[name]) and again[name].is_contiguous() for name in found)


def test_a_part_is_there_as_a_whole_or_not_at_all() -> None:
    headless = {name: one for name, one in published().items() if not name.startswith("head")}
    ours = to_own_names(TABLE, SETTINGS, headless, {}, "the file")
    assert not any(name.startswith("objective") for name in ours)
    assert to_published_names(TABLE, SETTINGS, ours, "the model").keys() == headless.keys()
    with pytest.raises(UserError, match=r"the file: head\.bias is missing\."):
        there(without="head.bias")


def test_every_fault_is_named() -> None:
    with pytest.raises(UserError, match=r"base\.layer\.1\.k\.weight is missing"):
        there(without="base.layer.1.k.weight")
    with pytest.raises(UserError, match=r"base\.layer\.2\.k\.weight is unexpected"):
        there({"base.layer.2.k.weight": torch.zeros(4, 4)})
    with pytest.raises(UserError, match=r"base\.layer\.0\.turned\.weight has the shape \(4, 5\), and \(4, 9\)"):
        there(shapes={"model.0.out.weight": (9, 4)})
    with pytest.raises(UserError, match=r"base\.layer\.0\.q\.bias has the shape \(4,\), and \(8,\)"):
        there(shapes={"model.0.qk.bias": (16,)})
    ours = there()
    with pytest.raises(UserError, match=r"the model: objective\.other has no place in the published form"):
        to_published_names(TABLE, SETTINGS, {**ours, "objective.other": torch.zeros(1)}, "the model")
    del ours["model.0.up.bias"]
    with pytest.raises(UserError, match=r"the model: model\.0\.up\.bias is missing"):
        to_published_names(TABLE, SETTINGS, ours, "the model")


def test_copies_and_buffers_are_compared_never_dropped_unseen() -> None:
    table = published()["base.words"]
    assert there({"head.table": table.clone()}).keys() == there().keys()
    with pytest.raises(UserError, match=r"head\.table differs from base\.words"):
        there({"head.table": table + 1})
    with pytest.raises(UserError, match=r"head\.table is missing, and config\.json says that it is not tied"):
        there(tied=False)
    assert there({"base.layer.0.mask": torch.ones(3, 3).tril().bool()}).keys() == there().keys()
    with pytest.raises(UserError, match=r"base\.layer\.0\.mask is a buffer with other values"):
        there({"base.layer.0.mask": torch.ones(3, 3)})


def test_older_and_shorter_names() -> None:
    older = published()
    older["base.layer.1.norm.gamma"] = older.pop("base.layer.1.norm.weight")
    bare = {name.removeprefix("base."): one for name, one in older.items()}
    assert all(
        torch.equal(one, there()[name]) for name, one in to_own_names(TABLE, SETTINGS, bare, {}, "the file").items()
    )
    with pytest.raises(UserError, match=r"base\.layer\.1\.norm\.weight is there under two names"):
        there({"base.layer.1.norm.gamma": torch.zeros(4)})


def test_a_fixed_parameter_is_written_and_asked_for() -> None:
    table = Table("", tensor("a", "b"), fixed=(FixedTensor("extra", lambda settings: torch.eye(settings.width)),))
    found = to_published_names(table, SETTINGS, {"b": torch.ones(2)}, "the model")
    assert torch.equal(found["extra"], torch.eye(4))
    assert to_own_names(table, SETTINGS, found, {}, "the file").keys() == {"b"}
    with pytest.raises(UserError, match="extra is missing"):
        to_own_names(table, SETTINGS, {"a": torch.ones(2)}, {}, "the file")
    with pytest.raises(UserError, match="extra has other values"):
        to_own_names(table, SETTINGS, {"a": torch.ones(2), "extra": torch.ones(4, 4)}, {}, "the file")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}-{family.objective}")
def test_no_table_uses_a_name_twice(family: Any) -> None:
    rules = family.table.expand(SETTINGS.model_copy(update=dict(family.fixed)))
    for names in ([n for rule in rules for n in rule.published], [n for rule in rules for n in rule.own]):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}-{family.objective}")
def test_config_of_settings_and_back(family: Any) -> None:
    """Fields, fixed values and the odd ones together say everything that is not for training only."""
    from etude.hub.family import TRAINING

    config = family.make_config(family.parse_config({}, "nothing"), set())
    again = family.parse_config(config, "the config")
    for name in set(Settings.model_fields) - TRAINING:
        assert getattr(again, name) == getattr(family.parse_config({}, "nothing"), name), name
    assert not family.find_mismatches(again)
