"""Published tokenizer files: tokenizer.json, BERT's vocab.txt, GPT's vocab.json with merges.txt.

Each is converted to the text of a tokenizer.json; all other code knows that format only.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from etude.errors import UserError
from etude.text.tokenizer.folder_settings import apply_folder_settings

# (vocabulary, merges): the names `transformers` uses, and those of the first release of GPT-2
BPE_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
KNOWN_FILES = ("tokenizer.json", "vocab.txt", *(name for pair in BPE_FILES for name in pair))


def read_tokenizer_json(path: Path) -> str:
    """Return the text of a tokenizer.json for the file at `path`, or the first known file in that folder.

    Of a folder, what its small files say is part of it (folder_settings.py).
    """
    if not path.exists():
        raise UserError(f"No tokenizer at {path}: there is no such file or folder.")
    if path.is_dir():
        file = next((path / name for name in KNOWN_FILES if (path / name).is_file()), None)
        if file is None:
            raise UserError(f"The folder {path} holds no tokenizer: none of {', '.join(KNOWN_FILES)} is in it.")
        return apply_folder_settings(_read_file(file), path)
    return _read_file(path)


def _read_file(path: Path) -> str:
    for vocabulary, merges in BPE_FILES:
        if path.name in (vocabulary, merges):
            missing = next((name for name in (vocabulary, merges) if not (path.parent / name).is_file()), None)
            if missing:
                raise UserError(f"{path} needs {missing} beside it: a BPE tokenizer is a vocabulary and its merges.")
            return _convert_merges(path.parent / vocabulary, path.parent / merges)
    if path.suffix == ".txt":
        return _convert_word_list(path)
    return _read_text(path)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")  # a byte order mark would be a part of the first token
    except UnicodeDecodeError as problem:
        raise UserError(f"{path} is not a tokenizer: byte {problem.start} is not UTF-8.") from None


def _convert_word_list(path: Path) -> str:
    """Convert BERT's WordPiece vocabulary, one token a line.

    The tokenizer is lower-casing if no token has an upper-case letter.
    """
    words = [line.removesuffix("\r") for line in _read_text(path).split("\n")]
    vocabulary = {word: number for number, word in enumerate(words) if word}
    special = {word for word in vocabulary if word.startswith("[") and word.endswith("]") and len(word) > 2}
    if "[UNK]" not in vocabulary:
        raise UserError(f"{path} is not a WordPiece vocabulary: no line is [UNK]. One token a line is expected.")
    lower = not any(word != word.lower() for word in vocabulary if word not in special)
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.normalizer = _build_bert_normalizer(vocabulary, lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    known = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    backend.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word in known if word in vocabulary]
    )
    return backend.to_str()


def _build_bert_normalizer(vocabulary: dict[str, int], lower: bool) -> normalizers.Normalizer:
    """Return BERT's normalizer, with NFC behind it where the vocabulary holds Hangul syllables.

    Uncased models strip accents, which also splits Hangul into jamo. Vocabularies built that way hold the jamo; where
    a vocabulary holds syllables instead, they are composed again.
    """
    bert = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=lower, lowercase=lower)
    syllables = any("가" <= letter <= "힣" for word in vocabulary for letter in word)
    return normalizers.Sequence([bert, normalizers.NFC()]) if syllables else bert


def _convert_merges(vocabulary_path: Path, merges_path: Path) -> str:
    """Convert BPE: over bytes as in GPT-2, or over characters with "</w>" at word ends as in GPT-1."""
    try:
        vocabulary = json.loads(_read_text(vocabulary_path))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{vocabulary_path} is not JSON: {problem}.") from None
    if not isinstance(vocabulary, dict) or not all(isinstance(id, int) for id in vocabulary.values()):
        raise UserError(f"{vocabulary_path} is not a BPE vocabulary: expected one object of token: id.")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read_text(merges_path).split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line or line.startswith("#version"):
            continue
        left, _, right = line.partition(" ")
        if not right or " " in right:
            raise UserError(f"{merges_path}, line {number}: a merge is two tokens with a space between, not {line!r}.")
        merges.append((left, right))
    unknown = "<unk>" if "<unk>" in vocabulary else None
    try:
        if any(token.endswith("</w>") for token in vocabulary):
            backend = Backend(models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>"))
            backend.normalizer = _build_bert_normalizer(vocabulary, lower=True)
            backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            backend.decoder = decoders.BPEDecoder(suffix="</w>")
        else:
            backend = Backend(models.BPE(vocabulary, merges))
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
    except Exception as problem:  # the library raises bare Exception
        raise UserError(f"{merges_path} does not fit {vocabulary_path}: {problem}.") from None
    names = ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>", "_start_", "_delimiter_", "_classify_")
    special = [AddedToken(name, special=True, normalized=False) for name in names if name in vocabulary]
    backend.add_special_tokens(special)
    return backend.to_str()
