"""Tokenizers on their way in and out of the published form.

In: `Tokenizer.open` reads tokenizer.json, vocab.txt, or vocab.json with merges.txt; where the folder has only a
vocab.txt, its tokenizer_config.json says whether text is lower-cased. Out: the same tokenizer.json, and two small
files that name the special tokens, so that `AutoTokenizer` opens the folder. Objectives here put markers around text
themselves; there a step of the tokenizer does, which is read when a model comes in and written when it goes out.
"""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

# role here -> name in transformers; a causal model has one token for both ends of a text
NAMES = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "start": "cls_token",
    "separator": "sep_token",
    "mask": "mask_token",
}


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a published folder."""
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json", "encoder.json")):
        only = (
            " A SentencePiece file alone (spiece.model) cannot be read." if (folder / "spiece.model").is_file() else ""
        )
        raise UserError(
            f"{folder} holds no tokenizer.{only} Put its tokenizer.json, or vocab.txt, or vocab.json with merges.txt "
            "there: in transformers, AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes them."
        )
    tokenizer = Tokenizer.open(folder)
    words_alone = (folder / "vocab.txt").is_file() and not (folder / "tokenizer.json").is_file()
    return _as_configured(tokenizer, folder / "tokenizer_config.json") if words_alone else tokenizer


def _as_configured(tokenizer: Tokenizer, config_file: Path) -> Tokenizer:
    """A list of words does not say how text is prepared; the file beside it does."""
    if not config_file.is_file():
        return tokenizer
    config = _json(config_file)
    keys = {
        "do_lower_case": "lowercase",
        "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    }
    said = {ours: config[theirs] for theirs, ours in keys.items() if theirs in config}
    if "lowercase" in said and said.get("strip_accents") is None:
        said["strip_accents"] = said["lowercase"]  # BERT's rule: accents go with capitals
    parts = json.loads(tokenizer.content)
    for step in _steps(parts["normalizer"]):
        if step["type"] == "BertNormalizer":
            step.update(said)
    return Tokenizer(json.dumps(parts, ensure_ascii=False), str(config_file.parent))


def _steps(normaliser: dict[str, Any]) -> list[dict[str, Any]]:
    return normaliser["normalizers"] if normaliser["type"] == "Sequence" else [normaliser]


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None


def make_tokenizer_configs(
    tokenizer: Tokenizer, context: int, segments: bool, start: int | None = None
) -> dict[str, str]:
    """tokenizer_config.json and special_tokens_map.json. `start`: what a causal model's text stands behind, where that
    is not end-of-text."""
    special = tokenizer.special
    tokens = {
        theirs: tokenizer.token(id) for ours, theirs in NAMES.items() if (id := getattr(special, ours)) is not None
    }
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


def find_prefix_tokens(tokenizer: Tokenizer) -> list[int]:
    """The tokens that a tokenizer itself puts before a text when asked for special tokens: Llama's <s>.

    tokenizer.json alone decides, as in transformers 5; `add_bos_token` beside it is not looked at there either.
    """
    probe = tokenizer.backend.encode("a", add_special_tokens=True)
    return [id for id, _ in takewhile(lambda one: one[1], zip(probe.ids, probe.special_tokens_mask, strict=True))]


def add_start_token(tokenizer: Tokenizer, start: int) -> Tokenizer:
    """The tokenizer that puts one token before a text when asked for special tokens."""
    if find_prefix_tokens(tokenizer) == [start]:
        return tokenizer
    name = tokenizer.token(start)
    step = {
        "type": "TemplateProcessing",
        "single": [_token(name, 0), _text("A", 0)],
        "pair": [_token(name, 0), _text("A", 0), _text("B", 1)],
        "special_tokens": {name: {"id": name, "ids": [start], "tokens": [name]}},
    }
    parts = json.loads(tokenizer.content)
    there = parts.get("post_processor")
    parts["post_processor"] = step if there is None else {"type": "Sequence", "processors": [there, step]}
    return Tokenizer(json.dumps(parts, ensure_ascii=False), "the exported tokenizer")


def add_markers(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer that puts [CLS] and [SEP] around text when asked for special tokens, as transformers expects.

    Objectives here put them in themselves, so a tokenizer of ours has no such step.
    """
    special = tokenizer.special
    if special.start is None or special.separator is None or tokenizer.components.get("post_processor") is not None:
        return tokenizer
    parts = json.loads(tokenizer.content)
    parts["post_processor"] = _template(tokenizer, special)
    return Tokenizer(json.dumps(parts, ensure_ascii=False), "the exported tokenizer")


def _token(name: str, segment: int) -> dict[str, Any]:
    return {"SpecialToken": {"id": name, "type_id": segment}}


def _text(name: str, segment: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": segment}}


def _template(tokenizer: Tokenizer, special: Specials) -> dict[str, Any]:
    assert special.start is not None
    assert special.separator is not None
    start, end = tokenizer.token(special.start), tokenizer.token(special.separator)
    single = [_token(start, 0), _text("A", 0), _token(end, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, _text("B", 1), _token(end, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [id], "tokens": [name]}
            for name, id in ((start, special.start), (end, special.separator))
        },
    }
