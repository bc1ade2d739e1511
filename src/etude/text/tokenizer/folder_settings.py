"""What the small files of a published folder say of its tokenizer: case, a space before a text, added tokens.

tokenizer_config.json   do_lower_case, strip_accents, tokenize_chinese_chars: of BERT's class they count before what a
                        tokenizer.json says, as in transformers. Beside a vocabulary alone: add_prefix_space, and
                        added_tokens_decoder
added_tokens.json       beside a vocabulary alone: tokens behind its last id; special_tokens_map.json says which of
                        them are special
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from etude.errors import UserError
from etude.text.tokenizer.special_tokens import ROLES

GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")  # they read a tokenizer.json as it is
# keys of tokenizer_config.json -> options of BERT's normalizer
CASE_KEYS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


def apply_folder_settings(content: str, folder: Path) -> str:
    """Return the text of a tokenizer.json with the settings of its folder; as it is where they change nothing.

    UserError where the two do not fit each other, as half of a downloaded tokenizer.json and its settings.
    """
    try:
        return _apply_settings(content, folder)
    except UserError:
        raise
    except BaseException as problem:  # the library raises bare Exception, and a BaseException where Rust panics
        if not isinstance(problem, Exception) and type(problem).__name__ != "PanicException":
            raise
        raise UserError(
            f"{folder}: its tokenizer is damaged, or the settings beside it are: {problem!r}. Take its files from a "
            "copy, all of them."
        ) from None


def _apply_settings(content: str, folder: Path) -> str:
    config = _read_json(folder / "tokenizer_config.json")
    options = {option: config[key] for key, option in CASE_KEYS.items() if config.get(key) is not None}
    if options and config.get("tokenizer_class") not in GENERIC_CLASSES:
        content = _apply_case(content, options)
    if (folder / "tokenizer.json").is_file():
        return content
    if config.get("add_prefix_space"):
        content = _add_prefix_space(content)
    added = _read_added_tokens(folder, config)
    return _add_tokens(content, added, folder) if added else content


def _apply_case(content: str, options: Mapping[str, Any]) -> str:
    """Normalise text as BERT's class does with these options."""
    parts = json.loads(content)
    if parts["model"].get("type") != "WordPiece":
        return content
    steps = _normalizer_steps(parts["normalizer"])
    changed = False
    for step in steps:
        if step["type"] == "BertNormalizer":
            before = {**step, "strip_accents": _strips_accents(step)}
            step.update(options)
            if "lowercase" in options:
                step["strip_accents"] = options.get("strip_accents")
            step["strip_accents"] = _strips_accents(step)
            changed = changed or step != before
    if not changed:
        return content
    has_syllables = any("가" <= letter <= "힣" for word in parts["model"]["vocab"] for letter in word)
    if has_syllables and not any(step["type"] == "NFC" for step in steps):  # without accents Hangul is in pieces
        parts["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "NFC"}]}
    return json.dumps(parts, ensure_ascii=False)


def _normalizer_steps(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    steps: list[dict[str, Any]] = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return steps


def _strips_accents(step: Mapping[str, Any]) -> bool:
    """BERT's rule: accents go with capitals, unless it is said."""
    said = step.get("strip_accents")
    return bool(step.get("lowercase", True) if said is None else said)


def _add_prefix_space(content: str) -> str:
    parts = json.loads(content)
    if parts["pre_tokenizer"]["type"] == "ByteLevel":
        parts["pre_tokenizer"]["add_prefix_space"] = True
    return json.dumps(parts, ensure_ascii=False)


def _add_tokens(content: str, added: list[dict[str, Any]], folder: Path) -> str:
    """Put tokens behind a vocabulary; UserError where they have other ids there."""
    parts = json.loads(content)
    known = {token["content"] for token in parts["added_tokens"]}
    parts["added_tokens"] += [token for token in added if token["content"] not in known]
    content = json.dumps(parts, ensure_ascii=False)
    backend = Backend.from_str(content)
    for token in added:
        id = backend.token_to_id(token["content"])
        if id != token["id"]:
            raise UserError(
                f"{folder}: the added token {token['content']!r} has the id {token['id']}, and behind the vocabulary "
                f"it would be {id}. In transformers, AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes "
                "a tokenizer.json, which is read."
            )
    return content


def _read_added_tokens(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that were added to a vocabulary, by id: of added_tokens.json, and of tokenizer_config.json."""
    special = {name for names in ROLES.values() for name in names}
    tokens: dict[int, dict[str, Any]] = {}
    try:
        for value in _read_json(folder / "special_tokens_map.json").values():
            entries = value if isinstance(value, list) else [value]
            special |= {entry["content"] if isinstance(entry, dict) else entry for entry in entries}
        for name, id in _read_json(folder / "added_tokens.json").items():
            is_special = name in special
            flags = {**dict.fromkeys(FLAGS, False), "normalized": not is_special, "special": is_special}
            tokens[int(id)] = {"content": name, **flags}
        for id, token in config.get("added_tokens_decoder", {}).items():
            tokens[int(id)] = {"content": str(token["content"]), **{key: bool(token.get(key)) for key in FLAGS}}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{folder}: its files name added tokens in a form that is not known: {error!r}.") from None
    return [{"id": id, **tokens[id]} for id in sorted(tokens)]


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a file of settings; nothing where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} cannot be read: an object of keys and values is expected.")
    return content
