"""Tokenizers travel with their models, Korean text included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.hub.tokenizer_files import add_markers, let_mask_take_space, make_tokenizer_configs, open_tokenizer
from etude.text.tokenizer.tokenizer import Tokenizer
from tests.hub import published_models as reference

transformers = pytest.importorskip("transformers", reason="what is written is opened by the package transformers")
transformers.logging.set_verbosity_error()

TEXTS = [
    "The baker's daughter sold 12 loaves at the market.",
    "빵집 주인의 딸은 시장에서 빵 열두 개를 팔았다.",
    "값을 깎아 주지 않았지만, 손님들은 좋아했다! 뷁",
    "Straße, naïve, café: 東京 ¿qué?",
    "  two  spaces\tand a tab\n",
]


@pytest.mark.parametrize("spec", ["wordpiece:400", "bpe:400", "bytebpe:400", "unigram:300", "word:60", "char"])
def test_a_trained_tokenizer_gives_the_same_ids_there(spec: str, tmp_path: Path) -> None:
    tokenizer = add_markers(let_mask_take_space(Tokenizer.train(spec, TEXTS * 8)))
    tokenizer.save(tmp_path)
    for name, text in make_tokenizer_configs(tokenizer, context=64, segments=True).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    special = tokenizer.special
    assert (there.pad_token_id, there.mask_token_id, there.cls_token_id) == (special.pad, special.mask, special.start)
    assert there.model_max_length == 64
    for text in TEXTS:
        ours = tokenizer.encode(text).ids.tolist()
        assert there(text, add_special_tokens=False).input_ids == ours
        assert there(text).input_ids == [special.start, *ours, special.separator]
        assert there.decode(ours) == tokenizer.decode(ours)
    pair = there("빵", "시장")
    first, second = (len(tokenizer.encode(text)) for text in ("빵", "시장"))
    assert pair.token_type_ids == [0] * (first + 2) + [1] * (second + 1)
    for blank in ("[MASK]", "at [MASK]."):
        filled = blank.replace(" [MASK]", "[MASK]") if tokenizer.has_space_tokens else blank  # as `etude fill` reads it
        assert there(blank, add_special_tokens=False).input_ids == tokenizer.encode(filled, special=True).ids.tolist()


def test_a_causal_tokenizer_gets_no_markers_and_no_segments(tmp_path: Path) -> None:
    tokenizer = reference.byte_tokenizer()
    tokenizer.save(tmp_path)
    for name, text in make_tokenizer_configs(tokenizer, context=64, segments=False).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = there("빵 열두 개")
    assert set(found) == {"input_ids", "attention_mask"}
    assert found.input_ids == tokenizer.encode("빵 열두 개").ids.tolist()
    assert there.decode(found.input_ids) == "빵 열두 개"
    assert there.eos_token_id == tokenizer.special.end


WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "The",
    "cafe",
    "café",
    "s",
    "##s",
    "빵",
    "##집",
    "시장",
    "!",
]


@pytest.mark.parametrize(("config", "tokens"), [
    ({"do_lower_case": False}, ["The", "café", "##s", "!"]),
    ({"do_lower_case": True}, ["the", "cafe", "##s", "!"]),
    ({"do_lower_case": True, "strip_accents": False}, ["the", "café", "##s", "!"]),
    ({}, ["The", "café", "##s", "!"]),  # a list with capitals is cased
])  # fmt: skip
def test_a_list_of_words_is_read_as_its_configuration_says(tmp_path: Path, config: dict, tokens: list[str]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = open_tokenizer(tmp_path)
    assert [tokenizer.token(id) for id in tokenizer.encode("The cafés!").ids] == tokens
    korean = [tokenizer.token(id) for id in tokenizer.encode("빵집 시장").ids]
    assert korean == ["빵", "##집", "시장"]


def test_the_same_ids_as_the_class_for_that_list(tmp_path: Path) -> None:
    words = [word for word in WORDS if word == word.lower() or word.startswith("[")]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    here = add_markers(open_tokenizer(tmp_path))
    special = here.special
    for text in ("The cafés!", "the s"):
        assert there(text).input_ids == [special.start, *here.encode(text).ids.tolist(), special.separator]


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast", None])
def test_where_two_files_differ_the_class_decides_as_there(tmp_path: Path, cased: bool, name: str | None) -> None:
    """Of BERT's class tokenizer_config.json counts; others take tokenizer.json as it is."""
    words = [word for word in WORDS if not "가" <= word[-1] <= "힣"]
    vocabulary = {word: number for number, word in enumerate(words)}
    transformers.BertTokenizer(vocab=vocabulary, do_lower_case=cased).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"do_lower_case": not cased, "tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    here, there = open_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The cafés!", "THE café s"):
        assert here.encode(text).ids.tolist() == there(text, add_special_tokens=False).input_ids
    if name == "PreTrainedTokenizerFast":
        assert here.content == (tmp_path / "tokenizer.json").read_text(encoding="utf-8")


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json cannot be read as JSON"):
        open_tokenizer(tmp_path)


def test_bpe_files_of_gpt2(tmp_path: Path) -> None:
    """vocab.json with merges.txt, written by the library itself."""
    trained = reference.byte_tokenizer(300)
    trained.backend.model.save(str(tmp_path))
    assert (tmp_path / "merges.txt").is_file()
    tokenizer = open_tokenizer(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text).ids.tolist() == trained.encode(text).ids.tolist()
        assert tokenizer.decode(tokenizer.encode(text).ids) == Tokenizer.normalise(text)


@pytest.mark.parametrize("form", ["added_tokens.json", "tokenizer_config.json"])
def test_tokens_added_to_a_list_of_words_stay(tmp_path: Path, form: str) -> None:
    """Their rows are trained: a folder without tokenizer.json names them in a file of their own."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    config: dict[str, Any] = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    first = len(WORDS)
    if form == "added_tokens.json":
        (tmp_path / form).write_text(json.dumps({"코로나": first, "<entity>": first + 1}), encoding="utf-8")
        special = {"additional_special_tokens": ["<entity>"], "unk_token": "[UNK]"}
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    else:
        config["added_tokens_decoder"] = {
            "0": {"content": "[PAD]", "special": True},
            str(first): {"content": "코로나", "normalized": True, "special": False},
            str(first + 1): {"content": "<entity>", "special": True},
        }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    here, there = open_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert here.vocab == len(there) == first + 2
    text = "The 코로나 시장"
    assert here.encode(text).ids.tolist() == there(text, add_special_tokens=False).input_ids
    assert here.id("<entity>") == first + 1
    assert first + 1 not in here.encode("<entity>").ids, "the name of a special token is plain text"


def test_added_tokens_that_do_not_follow_the_vocabulary_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"new": len(WORDS) + 7}))
    with pytest.raises(UserError, match=r"'new' has the id 22, and behind the vocabulary it would be 15"):
        open_tokenizer(tmp_path)
    (tmp_path / "added_tokens.json").write_text("[1]")
    with pytest.raises(UserError, match=r"added_tokens\.json cannot be read"):
        open_tokenizer(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"new": None}))
    with pytest.raises(UserError, match="in a form that is not known"):
        open_tokenizer(tmp_path)


def test_bpe_files_with_a_space_before_every_text(tmp_path: Path) -> None:
    reference.byte_tokenizer(300).backend.model.save(str(tmp_path))
    size = len(json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8")))
    config = {"add_prefix_space": True, "tokenizer_class": "GPT2Tokenizer", "eos_token": "[EOT]", "unk_token": "[EOT]"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<new>": size}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    here, there = open_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("one two <new>", "two", "세 번"):
        assert here.encode(text).ids.tolist() == there(text).input_ids


def test_markers_are_put_in_once() -> None:
    once = add_markers(Tokenizer.train("wordpiece:200", TEXTS))
    assert add_markers(once) is once


PROCESSORS = {
    "ByteLevel": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "RobertaProcessing": {
        "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": True,
        "add_prefix_space": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_published_tokenizer_is_framed_as_the_model_was_trained(name: str) -> None:
    """One that only trims offsets puts no markers, and RoBERTa's puts two separators between two texts."""
    parts = json.loads(reference.byte_tokenizer().content)
    tokenizer = add_markers(Tokenizer(json.dumps({**parts, "post_processor": PROCESSORS[name]})))
    one, two = (encoding.ids.tolist() for encoding in tokenizer.encode_batch(["a", "b"]))
    single = tokenizer.backend.encode("a", add_special_tokens=True)
    pair = tokenizer.backend.encode("a", "b", add_special_tokens=True)
    assert single.ids == [2, *one, 3]
    assert (pair.ids, pair.type_ids) == ([2, *one, 3, *two, 3], [0, 0, 0, 1, 1])
    assert add_markers(tokenizer) is tokenizer
