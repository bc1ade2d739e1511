"""Models as shapes alone: built in milliseconds, since nothing is drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import etude


def test_the_size_of_a_recipe_needs_no_compiler() -> None:
    """Drawing on the meta device imports torch's compiler and sympy, which takes seconds."""
    code = """
import sys
from etude.recipes.schema import Recipe
from etude.recipes.size import measure_recipe
assert measure_recipe(Recipe.load("electra-toy")).parameters > 0
sys.exit("sympy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_model_without_values_is_built_without_draws() -> None:
    source = Path(etude.__file__).parent
    files = [file for file in source.rglob("*.py") if 'device("meta")' in file.read_text(encoding="utf-8")]
    # the second records what would be drawn
    assert {str(file.relative_to(source)) for file in files} == {"recipes/model_memory.py", "nn/deferred_weights.py"}
