"""A folder's small files are part of its tokenizer, whoever opens it; beside transformers: tests/hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    "content", [b'{"model": {"type": "WordPiece", ', b"null", b'{"model": null}', b'{"model": {}}']
)
def test_a_damaged_tokenizer_with_settings_beside_it_is_told(tmp_path: Path, content: bytes) -> None:
    """A download that broke off: the settings beside it were to be put into what is no JSON."""
    write_folder(tmp_path, tokenizer_config={"do_lower_case": True})
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"its tokenizer is damaged|is not a tokenizer that can be read"):
        Tokenizer.open(tmp_path)


def test_word_pieces_without_a_token_for_other_words_are_told(tmp_path: Path) -> None:
    """The library reads them, and fails at the first word that the pieces do not make up."""
    parts = json.loads(Tokenizer.open(write_folder(tmp_path) / "vocab.txt").content)
    del parts["model"]["vocab"]["[UNK]"]
    parts["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(parts), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json has WordPiece's tokens without '\[UNK\]'"):
        Tokenizer.open(tmp_path / "tokenizer.json")


ODD: list[Any] = [None, True, -1, 10**30, float("inf"), "", "x", "\ud800", [], {}, [None], {"content": "x"}, {"": -2}]
SETTINGS = {
    "tokenizer_config": [
        "do_lower_case",
        "strip_accents",
        "tokenizer_class",
        "add_prefix_space",
        "added_tokens_decoder",
    ],
    "added_tokens": ["new", "the", ""],
    "special_tokens_map": ["unk_token", "additional_special_tokens"],
}


@given(st.sampled_from(["tokenizer.json", "vocab.txt"]), st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_settings_are_read_or_refused(tmp_path: Path, kept: str, data: st.DataObject) -> None:
    """Beside a vocabulary, and beside a tokenizer.json in which something is another value."""
    files = {
        name: data.draw(st.dictionaries(st.sampled_from(keys), st.sampled_from(ODD), max_size=2) | st.sampled_from(ODD))
        for name, keys in SETTINGS.items()
    }
    write_folder(tmp_path, **files)
    parts = json.loads(Tokenizer.open(tmp_path / "vocab.txt").content)
    place = data.draw(
        st.sampled_from([parts, parts["model"], parts["normalizer"], parts["normalizer"]["normalizers"][0]])
    )
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(st.sampled_from(ODD))
    (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    if kept == "tokenizer.json":
        (tmp_path / kept).write_text(json.dumps(parts), encoding="utf-8")
    try:
        tokenizer = Tokenizer.open(tmp_path)
    except UserError as error:
        assert str(tmp_path) in str(error)
    else:
        assert len(tokenizer.encode("The café 빵집").ids) < 20


@pytest.mark.parametrize("content", [{"new": None}, {"new": "x"}])
def test_added_tokens_of_another_form_are_one_message(tmp_path: Path, content: Any) -> None:
    write_folder(tmp_path, added_tokens=content)
    with pytest.raises(UserError, match="name added tokens in a form that is not known"):
        Tokenizer.open(tmp_path)
