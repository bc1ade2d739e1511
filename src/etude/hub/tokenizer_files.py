"""Tokenizer files of published folders, read and written.

Reading: `Tokenizer.open` reads tokenizer.json, vocab.txt, or vocab.json with merges.txt; where the folder has no
tokenizer.json, its tokenizer_config.json says whether text begins with a space, and added_tokens.json (or that file,
too) which tokens stand behind the vocabulary; of BERT's class it says in any case whether text is lower-cased.
Writing: the same tokenizer.json, and two small files that name the special tokens, so that `AutoTokenizer` opens the
folder. Objectives here add markers around text themselves; in transformers a post-processor of the tokenizer does,
which is read on import and added on export.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.hub import sentencepiece_files
from etude.models.framing import Framing
from etude.text.tokenizer.special_tokens import ROLES, Specials
from etude.text.tokenizer.tokenizer import Tokenizer

# our role of a special token -> its name in transformers; a causal model has one token for both ends of a text
TOKEN_NAMES = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "start": "cls_token",
    "separator": "sep_token",
    "mask": "mask_token",
}
# classes that read a tokenizer.json as it is
GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")


def open_tokenizer(folder: Path) -> Tokenizer:
    """Open the tokenizer of a published folder."""
    if sentencepiece_files.has_sentencepiece(folder):
        return sentencepiece_files.open_tokenizers(folder)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")):
        hint = (
            " A SentencePiece file alone (spiece.model) cannot be read." if (folder / "spiece.model").is_file() else ""
        )
        raise UserError(
            f"{folder} holds no tokenizer.{hint} Put its tokenizer.json, or vocab.txt, or vocab.json with merges.txt "
            "there: in transformers, AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes them."
        )
    tokenizer = Tokenizer.open(folder)
    config_file = folder / "tokenizer_config.json"
    config = _read_json(config_file) if config_file.is_file() else {}
    if tokenizer.kind == "wordpiece" and config.get("tokenizer_class") not in GENERIC_CLASSES:
        tokenizer = _apply_case(tokenizer, config, folder)
    return tokenizer if (folder / "tokenizer.json").is_file() else _apply_config(tokenizer, config, folder)


def _apply_case(tokenizer: Tokenizer, config: Mapping[str, Any], folder: Path) -> Tokenizer:
    """Normalise text as BERT's class in transformers does: its tokenizer_config.json counts before a tokenizer.json."""
    keys = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    options = {option: config[key] for key, option in keys.items() if config.get(key) is not None}
    parts = json.loads(tokenizer.content)
    changed = False
    for step in _normalizer_steps(parts["normalizer"]):
        if step["type"] != "BertNormalizer":
            continue
        before = {**step, "strip_accents": _strips_accents(step)}
        step.update(options)
        if "lowercase" in options:
            step["strip_accents"] = options.get("strip_accents")
        step["strip_accents"] = _strips_accents(step)
        changed = changed or step != before
    if not changed:
        return tokenizer
    syllables = any("가" <= letter <= "힣" for word in parts["model"]["vocab"] for letter in word)
    steps = _normalizer_steps(parts["normalizer"])
    if syllables and not any(step["type"] == "NFC" for step in steps):  # without accents Hangul is in pieces
        parts["normalizer"] = {"type": "Sequence", "normalizers": [*steps, {"type": "NFC"}]}
    return Tokenizer(json.dumps(parts, ensure_ascii=False), str(folder))


def _strips_accents(step: Mapping[str, Any]) -> bool:
    """BERT's rule: accents go with capitals, unless it is said."""
    said = step.get("strip_accents")
    return bool(step.get("lowercase", True) if said is None else said)


def _apply_config(tokenizer: Tokenizer, config: Mapping[str, Any], folder: Path) -> Tokenizer:
    """Read text as the small files beside a vocabulary say: what it begins with, and which tokens were added."""
    parts = json.loads(tokenizer.content)
    if config.get("add_prefix_space") and parts["pre_tokenizer"]["type"] == "ByteLevel":
        parts["pre_tokenizer"]["add_prefix_space"] = True
    added = _read_added_tokens(folder, config)
    known = {token["content"] for token in parts["added_tokens"]}
    parts["added_tokens"] += [token for token in added if token["content"] not in known]
    applied = Tokenizer(json.dumps(parts, ensure_ascii=False), str(folder))
    for token in added:
        if applied.id(token["content"]) != token["id"]:
            raise UserError(
                f"{folder}: the added token {token['content']!r} has the id {token['id']}, and behind the vocabulary "
                f"it would be {applied.id(token['content'])}. In transformers, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes a tokenizer.json, which is read."
            )
    return applied


def _read_added_tokens(folder: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tokens that were added to a vocabulary, by id: of added_tokens.json, and of tokenizer_config.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    path, special_path = folder / "added_tokens.json", folder / "special_tokens_map.json"
    special = {name for names in ROLES.values() for name in names}
    tokens: dict[int, dict[str, Any]] = {}
    try:
        for value in (_read_json(special_path) if special_path.is_file() else {}).values():
            entries = value if isinstance(value, list) else [value]
            special |= {entry["content"] if isinstance(entry, dict) else entry for entry in entries}
        for name, id in (_read_json(path) if path.is_file() else {}).items():
            is_special = name in special
            tokens[int(id)] = {"content": name, **flags, "normalized": not is_special, "special": is_special}
        for id, token in config.get("added_tokens_decoder", {}).items():
            values = {key: bool(token.get(key, False)) for key in (*flags, "normalized", "special")}
            tokens[int(id)] = {"content": str(token["content"]), **values}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder}: its files name added tokens in a form that is not known: {error!r}.") from None
    return [{"id": id, **tokens[id]} for id in sorted(tokens)]


def _normalizer_steps(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    steps: list[dict[str, Any]] = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    return steps


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} cannot be read: an object of keys and values is expected.")
    return content


def make_tokenizer_configs(
    tokenizer: Tokenizer, context: int, segments: bool, start: int | None = None, pad: int | None = None
) -> dict[str, str]:
    """Return tokenizer_config.json and special_tokens_map.json; `start`: a causal model's start token, where that is
    not end-of-text; `pad`: what pads, where the tokenizer has no token of that role."""
    special = tokenizer.special
    tokens = {
        name: tokenizer.token(id) for role, name in TOKEN_NAMES.items() if (id := getattr(special, role)) is not None
    }
    if pad is not None:
        tokens["pad_token"] = tokenizer.token(pad)
    if special.end is not None:
        tokens["eos_token"] = tokenizer.token(special.end)
        tokens["bos_token"] = tokens["eos_token"] if start is None else tokenizer.token(start)
    inputs = ["input_ids", "token_type_ids", "attention_mask"] if segments else ["input_ids", "attention_mask"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # takes tokenizer.json as it is; named classes build their own
        "model_max_length": context,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        **tokens,
    }
    return {
        "tokenizer_config.json": json.dumps(config, indent=1, ensure_ascii=False) + "\n",
        "special_tokens_map.json": json.dumps(tokens, indent=1, ensure_ascii=False) + "\n",
    }


def padding_token(special: Specials, framing: Framing) -> int | None:
    """Return what pads texts of a causal model: any token but the last of a text will do; None where there is none."""
    return next((id for id in (special.pad, special.unknown, *framing.before) if id is not None), None)


def find_prefix_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens that a tokenizer itself puts before a text with add_special_tokens: Llama's <s>.

    tokenizer.json alone decides, as in transformers 5, which ignores `add_bos_token` of tokenizer_config.json, too.
    """
    probe = tokenizer.backend.encode("a", add_special_tokens=True)
    return [id for id, _ in takewhile(lambda pair: pair[1], zip(probe.ids, probe.special_tokens_mask, strict=True))]


def add_start_token(tokenizer: Tokenizer, start: int | None) -> Tokenizer:
    """Return the tokenizer that puts this token before a text with add_special_tokens; None: that puts none."""
    before = [] if start is None else [start]
    if find_prefix_tokens(tokenizer) == before:
        return tokenizer
    return add_framing(tokenizer, Framing(before, [], [], pooling="last", segments=True))


def add_markers(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer that puts [CLS] and [SEP] around text with add_special_tokens, as transformers expects.

    Objectives here add them themselves, so a tokenizer of ours has no such step.
    """
    start, separator = tokenizer.special.start, tokenizer.special.separator
    if start is None or separator is None:
        return tokenizer
    return add_framing(tokenizer, Framing([start], [separator], [separator], pooling="start", segments=True))


def add_framing(tokenizer: Tokenizer, framing: Framing) -> Tokenizer:
    """Return the tokenizer that frames one text or two with add_special_tokens as a model reads them here."""
    if _has_framing(tokenizer, framing):
        return tokenizer  # a published tokenizer that does so by itself

    def pieces(ids: Sequence[int], segment: int) -> list[dict[str, Any]]:
        return [_token_piece(tokenizer.token(id), segment) for id in ids]

    second = 1 if framing.segments else 0
    first = [*pieces(framing.before, 0), _text_piece("A", 0)]
    markers = {*framing.before, *framing.between, *framing.after}
    step = {
        "type": "TemplateProcessing",
        "single": [*first, *pieces(framing.after, 0)],
        "pair": [*first, *pieces(framing.between, 0), _text_piece("B", second), *pieces(framing.after, second)],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]} for id in sorted(markers) if (name := tokenizer.token(id))
        },
    }
    parts = json.loads(tokenizer.content)
    existing = parts.get("post_processor")
    keeps = existing is not None and existing["type"] == "ByteLevel"  # trims offsets: it goes on doing that
    parts["post_processor"] = {"type": "Sequence", "processors": [existing, step]} if keeps else step
    return Tokenizer(json.dumps(parts, ensure_ascii=False), "the exported tokenizer")


def _has_framing(tokenizer: Tokenizer, framing: Framing) -> bool:
    """Whether a tokenizer itself frames one text and two so; RoBERTa's, say, has two separators between two texts."""
    first, second = (tokenizer.backend.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
    if tokenizer.backend.encode("a", add_special_tokens=True).ids != [*framing.before, *first, *framing.after]:
        return False
    pair = tokenizer.backend.encode("a", "b", add_special_tokens=True)
    left, right = [*framing.before, *first, *framing.between], [*second, *framing.after]
    has_segments = pair.type_ids == [0] * len(left) + [1] * len(right)
    return pair.ids == [*left, *right] and (has_segments or not framing.segments)


def _token_piece(name: str, segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": segment}}


def _text_piece(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}
