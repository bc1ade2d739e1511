"""SentencePiece models of Marian's folders (source.spm, target.spm), read and written without the library.

A .spm file is a protocol buffer, `ModelProto` of sentencepiece_model.proto: pieces with scores, how it was trained, and
how text is normalised before. A folder of OPUS-MT has one for each side, and one vocab.json that numbers the pieces of
both: so the tokenizer of a side is a unigram model over the whole vocabulary, in which pieces of the other side alone
have a score that no text of its own side pays. Characters that the side cannot spell are looked up among them (Marian
looks up whole runs of such characters, and finds fewer).

Kudo 2018: the tokens of a text are the sequence of pieces with the largest sum of scores; what no piece covers is
unknown, runs of it are one token.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.text.tokenizer.pair_tokenizer import PairTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
END, UNKNOWN, PAD = "</s>", "<unk>", "<pad>"
NORMAL, UNKNOWN_TYPE, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # of a piece
UNIGRAM = 1  # trainer_spec.model_type
# score of a character of a piece that only the other side has: less than any text of this side costs
OTHER_SIDE = -10_000.0
SPACE = "\u2581"


@dataclass(frozen=True)
class SentencePieceModel:
    """What a .spm file says about text."""

    pieces: dict[str, float]  # normal and user-defined ones, and their scores
    unknown: str
    charsmap: bytes  # the compiled table of the normaliser; empty: text stays as it is
    has_prefix: bool  # a space is put before a text
    joins_spaces: bool  # runs of spaces are one, and none is at either end


# --- in ---------------------------------------------------------------------------------------------


def has_sentencepiece(folder: Path) -> bool:
    """Whether a folder has the tokenizers of OPUS-MT, and none that is read without them."""
    return (folder / SOURCE).is_file() and not (folder / "tokenizer.json").is_file()


def open_tokenizers(folder: Path) -> PairTokenizer:
    """Open the tokenizers of a folder of OPUS-MT: of sources, and of targets."""
    for name in (TARGET, VOCABULARY):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has {SOURCE} and no {name}: take the whole folder.")
    vocabulary = _read_vocabulary(folder / VOCABULARY)
    sides = [make_tokenizer_json(read_model(folder / name), vocabulary, folder / name) for name in (SOURCE, TARGET)]
    return PairTokenizer(sides[0], Tokenizer(sides[1], str(folder / TARGET)), str(folder))


def read_model(path: Path) -> SentencePieceModel:
    """Read a .spm file; UserError where it is none, or no unigram model."""
    try:
        pieces: dict[str, float] = {}
        unknown, model_type, normalizer = UNKNOWN, UNIGRAM, {}
        for field, value in _fields(path.read_bytes()):
            if field == 1:
                piece = dict(_fields(_message(value)))
                text, kind = _message(piece[1]).decode(), piece.get(3, NORMAL)
                if kind == BYTE:
                    raise UserError(f"{path} has pieces of single bytes, which Marian's models have not.")
                if kind == UNKNOWN_TYPE:
                    unknown = text
                elif kind in (NORMAL, USER_DEFINED):
                    (pieces[text],) = struct.unpack("<f", _message(piece.get(2, b"\0\0\0\0")))
            elif field == 2:
                model_type = int(dict(_fields(_message(value))).get(3, UNIGRAM))
            elif field == 3:
                normalizer = dict(_fields(_message(value)))
        if not pieces:
            raise ValueError("no pieces")
        charsmap = _message(normalizer.get(2, b""))
        switches = {name: bool(normalizer.get(name, 1)) for name in (3, 4, 5)}
    except UserError:
        raise
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as problem:
        raise UserError(f"{path} is no SentencePiece model, or damaged ({problem}). Take it from a copy.") from None
    if model_type != UNIGRAM:
        raise UserError(f"{path} is a SentencePiece model of another kind than unigram; only those are read.")
    if not switches[5]:
        raise UserError(f"{path} leaves spaces unmarked (escape_whitespaces=false), which is not read.")
    return SentencePieceModel(pieces, unknown, charsmap, switches[3], switches[4])


def make_tokenizer_json(model: SentencePieceModel, vocabulary: Mapping[str, int], path: Path) -> str:
    """Return the text of a tokenizer.json that splits as a model does and numbers as a vocabulary does."""
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    # a longer one costs more than its characters: none takes in what this side can spell
    scores = [[token, model.pieces.get(token, (OTHER_SIDE - 1) * len(token))] for token in tokens]
    worst = min(model.pieces.values())
    if worst <= OTHER_SIDE / 2:
        raise UserError(f"{path} has a piece with a score of {worst:g}; those of a log-probability are read.")
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.joins_spaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    # a text that spells a control token is read as characters
    steps += [
        {"type": "Replace", "pattern": {"String": token}, "content": f"{token[0]} {token[1:]}"} for token in (END, PAD)
    ]
    space = {
        "type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always" if model.has_prefix else "never",
        "split": False,
    }  # fmt: skip
    special = [token for token in tokens if token in (END, UNKNOWN, PAD)]
    codes = [token for token in tokens if token.startswith(">>") and token.endswith("<<")]  # of target languages
    added = [
        {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": token in special}
        for token in sorted([*special, *codes], key=vocabulary.__getitem__)
    ]  # fmt: skip
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": space,
        "post_processor": None, "decoder": space,
        "model": {"type": "Unigram", "unk_id": vocabulary[UNKNOWN], "vocab": scores, "byte_fallback": False},
    }  # fmt: skip
    return json.dumps(content, ensure_ascii=False)


def _read_vocabulary(path: Path) -> dict[str, int]:
    """Read the numbers of all pieces; UserError where a number is missing or twice."""
    try:
        vocabulary = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is damaged: {problem}. Take it from a copy.") from None
    is_numbering = isinstance(vocabulary, dict) and all(type(number) is int for number in vocabulary.values())
    if not is_numbering or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(f"{path} does not number its pieces from 0 without a gap. Take it from a copy.")
    missing = [token for token in (END, UNKNOWN, PAD) if token not in vocabulary]
    if missing:
        raise UserError(f"{path} has no token {missing[0]}, which a Marian vocabulary needs.")
    return vocabulary


# --- the wire format of protocol buffers --------------------------------------------------------------

Value = int | bytes


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        field, wire = key >> 3, key & 7
        if wire == 0:
            number, place = _varint(data, place)
            yield field, number
            continue
        if wire == 2:
            size, place = _varint(data, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of type {wire}")
        if place + size > len(data):
            raise ValueError("it ends within a field")
        yield field, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number in the place of a text")
    return value


# --- out --------------------------------------------------------------------------------------------


def is_sentencepiece(tokenizer: Tokenizer) -> bool:
    """Whether a tokenizer came from a folder of OPUS-MT, and can be written as one again."""
    if not isinstance(tokenizer, PairTokenizer) or not tokenizer.shares_ids:
        return False
    return all(_describe(side) is not None for side in (tokenizer.source, tokenizer.target))


def make_files(tokenizer: PairTokenizer) -> dict[str, bytes]:
    """Return the files of MarianTokenizer by name."""
    vocabulary = {token: number for number, (token, _) in enumerate(_vocab(tokenizer))}
    files = {VOCABULARY: (json.dumps(vocabulary, ensure_ascii=False, indent=1) + "\n").encode()}
    for name, side in ((SOURCE, tokenizer.source), (TARGET, tokenizer.target)):
        model = _describe(side)
        assert model is not None, "is_sentencepiece says so"
        files[name] = write_model(model)
    return files


def write_model(model: SentencePieceModel) -> bytes:
    """Return the content of a .spm file."""
    kinds = [(model.unknown, 0.0, UNKNOWN_TYPE), ("<s>", 0.0, CONTROL), (END, 0.0, CONTROL)]
    kinds += [(piece, score, NORMAL) for piece, score in model.pieces.items() if piece not in ("<s>", END)]
    pieces = b"".join(
        _chunk(1, _chunk(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind))
        for piece, score, kind in kinds
    )
    trainer = _number(3, UNIGRAM) + _number(4, len(kinds))
    normalizer = _chunk(1, b"nmt_nfkc" if model.charsmap else b"identity") + _chunk(2, model.charsmap)
    normalizer += _number(3, model.has_prefix) + _number(4, model.joins_spaces) + _number(5, 1)
    return pieces + _chunk(2, trainer) + _chunk(3, normalizer)


def _describe(tokenizer: Tokenizer) -> SentencePieceModel | None:
    """The model that `make_tokenizer_json` makes such a tokenizer of; None where there is none."""
    content = json.loads(tokenizer.content)
    if content["model"].get("type") != "Unigram" or (content.get("pre_tokenizer") or {}).get("type") != "Metaspace":
        return None
    vocab = content["model"]["vocab"]
    steps = (content.get("normalizer") or {}).get("normalizers") or []
    charsmap = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), "")
    model = SentencePieceModel(
        {token: score for token, score in vocab if score > OTHER_SIDE},
        UNKNOWN,
        base64.b64decode(charsmap),
        content["pre_tokenizer"]["prepend_scheme"] == "always",
        any(step["type"] == "Strip" for step in steps),
    )
    vocabulary = {token: number for number, (token, _) in enumerate(vocab)}
    if not model.pieces or not {END, UNKNOWN, PAD} <= vocabulary.keys():
        return None
    return model if make_tokenizer_json(model, vocabulary, Path(SOURCE)) == tokenizer.content else None


def _vocab(tokenizer: Tokenizer) -> list[list[Any]]:
    vocab: list[list[Any]] = json.loads(tokenizer.content)["model"]["vocab"]
    return vocab


def _chunk(field: int, data: bytes) -> bytes:
    return _encode(field << 3 | 2) + _encode(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _encode(field << 3) + _encode(int(value))


def _encode(value: int) -> bytes:
    """A varint."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)
