"""The words `RECIPE CORPUS key=value ...` that several commands share."""

from __future__ import annotations

from etude.errors import UserError


def places_and_overrides(words: list[str]) -> tuple[list[str], list[str]]:
    """Splits the words of a command line; a setting is a word with '=' whose left side has a dot."""
    overrides = [word for word in words if "=" in word and "." in word.split("=", 1)[0]]
    places = [word for word in words if word not in overrides]
    bare = next((word for word in places if "=" in word and "/" not in word), None)
    if bare is not None:
        raise UserError(f"'{bare}' is no setting: its name lacks the group, as in model.layers=4, train.lr=1e-3.")
    return places, overrides


def recipe_corpus_overrides(words: list[str]) -> tuple[str, str, list[str]]:
    places, overrides = places_and_overrides(words)
    if len(places) != 2:
        raise UserError(
            "A recipe and a corpus are wanted, for example 'bert-small data/books'; "
            f"got: {' '.join(places) or 'nothing'}. "
            "'etude recipes' lists the recipes, 'etude prepare' makes a corpus."
        )
    return places[0], places[1], overrides
