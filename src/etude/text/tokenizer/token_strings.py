"""The tokens of a tokenizer as strings."""

from __future__ import annotations

from etude.text.tokenizer.tokenizer import Tokenizer


def list_token_strings(tokenizer: Tokenizer) -> list[str | None]:
    """Return the string of every token by id; None for special tokens and ids without a token."""
    special = set(tokenizer.special.ids())
    named = {id: word for word, id in tokenizer.backend.get_vocab(with_added_tokens=True).items()}
    return [None if id in special else named.get(id) for id in range(tokenizer.vocab)]
