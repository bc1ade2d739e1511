"""What there is, as data: recipes with sizes, tasks with files, columns and settings."""

from __future__ import annotations

import pytest

import etude
from etude.errors import UserError


def test_one_recipe_is_resolved_with_settings() -> None:
    [info] = etude.recipes("gpt2-toy", settings={"model.layers": 3, "model.vocab": 100})
    assert info.recipe.model.layers == 3 and info.recipe.model.feedforward == 4 * info.recipe.model.width
    assert info.size.parameters > 0 and info.size is info.size


def test_all_recipes_are_listed() -> None:
    names = {info.recipe.name for info in etude.recipes()}
    assert {"bert-base", "gpt2", "electra-small", "glove"} <= names


def test_a_task_has_its_settings_and_a_list_has_none() -> None:
    catalog = etude.tasks()
    kinds = {info.kind: info for info in catalog.tasks}
    assert {"classify", "pair", "tag", "span"} <= set(kinds)
    assert "text" in kinds["classify"].columns and not kinds["classify"].settings
    assert "CoLA" in catalog.suites["glue"] and catalog.compressed
    [classify] = etude.tasks("classify").tasks
    settings = {setting.name: setting for setting in classify.settings}
    assert "task.dropout" in settings and settings["transfer.frozen"].default == "false"
    assert all(setting.meaning or setting.default == "…" for setting in classify.settings)
    assert not etude.tasks("glue").tasks
    with pytest.raises(UserError, match="classify"):
        etude.tasks("clasify")
