"""A folder's small files are part of its tokenizer, whoever opens it; beside transformers: tests/hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.text.tokenizer.tokenizer import Tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cafe", "café", "빵", "##집"]


def write_folder(folder: Path, **files: Any) -> Path:
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(id) for id in tokenizer.encode(text).ids]


def test_settings_that_change_nothing_change_no_byte(tmp_path: Path) -> None:
    """A fingerprint decides whether a corpus and a model belong together."""
    plain = Tokenizer.open(write_folder(tmp_path) / "vocab.txt")
    assert Tokenizer.open(tmp_path).fingerprint == plain.fingerprint
    write_folder(tmp_path, tokenizer_config={"do_lower_case": False, "model_max_length": 512})  # as the words say
    assert Tokenizer.open(tmp_path).fingerprint == plain.fingerprint
    Tokenizer.open(tmp_path).save(tmp_path)
    write_folder(tmp_path, tokenizer_config={"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"})
    assert Tokenizer.open(tmp_path).fingerprint == plain.fingerprint


def test_a_saved_tokenizer_is_that_of_its_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, tokenizer_config={"do_lower_case": True}, added_tokens={"new": len(WORDS)})
    tokenizer = Tokenizer.open(tmp_path)
    assert tokens(tokenizer, "The café new 빵집") == ["the", "cafe", "new", "빵", "##집"]
    saved = tmp_path / "saved"
    saved.mkdir()
    tokenizer.save(saved)
    assert Tokenizer.open(saved).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("content", [{"new": None}, {"new": "x"}])
def test_added_tokens_of_another_form_are_one_message(tmp_path: Path, content: Any) -> None:
    write_folder(tmp_path, added_tokens=content)
    with pytest.raises(UserError, match="name added tokens in a form that is not known"):
        Tokenizer.open(tmp_path)
