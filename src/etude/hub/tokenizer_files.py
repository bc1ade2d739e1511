"""Tokenizer files of published folders, read and written.

Reading: `Tokenizer.open` reads tokenizer.json, vocab.txt, or vocab.json with merges.txt, and what the small files
beside them say (text/tokenizer/folder_settings.py). Writing: the same tokenizer.json, and two small files that name the
special tokens, so that `AutoTokenizer` opens the folder. Objectives here add markers around text themselves; in
transformers a post-processor of the tokenizer does, which is read on import and added on export.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.hub import sentencepiece_files
from etude.models.framing import Framing
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

# our role of a special token -> its name in transformers; a causal model has one token for both ends of a text
TOKEN_NAMES = {
    "pad": "pad_token",
    "unknown": "unk_token",
    "start": "cls_token",
    "separator": "sep_token",
    "mask": "mask_token",
}


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
    return Tokenizer.open(folder)


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


def let_mask_take_space(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer whose mask takes the space before it where tokens hold theirs, as `etude fill` reads it.

    Else a token of a space alone stands before a blank, as in no masked text of pre-training.
    """
    parts = json.loads(tokenizer.content)
    mask = next((token for token in parts["added_tokens"] if token["id"] == tokenizer.special.mask), None)
    if mask is None or mask["lstrip"] or not tokenizer.has_space_tokens:
        return tokenizer
    mask["lstrip"] = True
    return Tokenizer(json.dumps(parts, ensure_ascii=False), "the exported tokenizer")


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


def describe_word_cuts(tokenizer: Tokenizer, ending: str) -> tuple[str, ...]:
    """What to know of a tagger whose tokens hold the space before them, in words; nothing of other models.

    Words that transformers is given one by one (`is_split_into_words`) have no such space, so other tokens.
    """
    together, alone = (tokenizer.encode_ids([text])[0].tolist() for text in ("a a", "a"))
    if ending != "ForTokenClassification" or together == 2 * alone:
        return ()
    return (
        "its tokens hold the spaces between words: give tokenizer(' '.join(words)); words alone (is_split_into_words) "
        "are cut otherwise",
    )


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
