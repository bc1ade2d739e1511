"""The reference of recipes: every shipped file, its system, paper and what it follows."""

from __future__ import annotations

from pathlib import Path

from docs.generator.commands import cell

from etude.recipes.schema import Recipe

FOLDER = Path(__file__).resolve().parents[2] / "src" / "etude" / "recipes"


def page() -> str:
    recipes = [Recipe.load(file.stem) for file in sorted(FOLDER.glob("*.yaml"))]
    rows = [
        f"| [`{recipe.name}`](../../src/etude/recipes/{recipe.name}.yaml) | {cell(recipe.system)} |"
        f" `{recipe.model_kind}` | `{recipe.objective_kind}` | {cell(recipe.paper)} |"
        for recipe in sorted(recipes, key=lambda recipe: (recipe.system.lower(), recipe.name))
    ]
    return "\n".join(["| recipe | system | model | objective | paper |", "|---|---|---|---|---|", *rows]) + "\n"
