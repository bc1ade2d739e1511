"""A tokenizer for each side: what it opens, saves, hashes and refuses."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.text.tokenizer.pair_tokenizer import TARGET_FILE, PairTokenizer, open_tokenizers
from etude.text.tokenizer.tokenizer import Tokenizer

ENGLISH = Tokenizer.train("bpe:80", ["the cat sat on the mat", "a dog ran"])
KOREAN = Tokenizer.train("bpe:60", ["고양이가 앉았다", "개가 달렸다"])


def test_a_tokenizer_is_its_own_target() -> None:
    assert ENGLISH.target is ENGLISH and ENGLISH.shares_ids and ENGLISH.largest_vocab == ENGLISH.vocab


def test_both_sides_survive_a_folder_and_a_process(tmp_path: Path) -> None:
    pair = PairTokenizer(ENGLISH.content, KOREAN)
    pair.save(tmp_path)
    for again in (open_tokenizers(tmp_path), pickle.loads(pickle.dumps(pair))):
        assert again.content == ENGLISH.content and again.target.content == KOREAN.content
        assert again.fingerprint == pair.fingerprint
    assert pair.encode("the cat").ids.tolist() == ENGLISH.encode("the cat").ids.tolist()
    ids = KOREAN.encode("고양이가").ids
    assert pair.target.decode(ids) == "고양이가" and not pair.shares_ids
    assert pair.largest_vocab == max(ENGLISH.vocab, KOREAN.vocab)


def test_either_side_changes_the_fingerprint() -> None:
    pairs = [PairTokenizer(a.content, b) for a, b in ((ENGLISH, KOREAN), (KOREAN, ENGLISH), (ENGLISH, ENGLISH))]
    assert len({*(pair.fingerprint for pair in pairs), ENGLISH.fingerprint, KOREAN.fingerprint}) == 5
    assert pairs[2].shares_ids


def test_special_tokens_under_other_ids_are_refused() -> None:
    content = json.loads(KOREAN.content)
    vocabulary = content["model"]["vocab"]
    vocabulary["[PAD]"], vocabulary["[EOT]"] = vocabulary["[EOT]"], vocabulary["[PAD]"]
    for token in content["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    swapped = Tokenizer(json.dumps(content))
    with pytest.raises(UserError, match=r"special token 'pad' is 0 for sources and 5 for targets"):
        PairTokenizer(ENGLISH.content, swapped)


def test_a_folder_without_a_target_file_has_one_tokenizer(tmp_path: Path) -> None:
    ENGLISH.save(tmp_path)
    assert type(open_tokenizers(tmp_path)) is Tokenizer
    (tmp_path / TARGET_FILE).write_text("{}")
    with pytest.raises(UserError, match=r"target_tokenizer.json is not a tokenizer"):
        open_tokenizers(tmp_path)
