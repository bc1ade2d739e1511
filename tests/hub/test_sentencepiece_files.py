"""SentencePiece models of Marian's folders, against a brute-force search and the library; OPUS-MT in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude import hub
from etude.errors import UserError
from etude.hub import sentencepiece_files
from etude.hub.exporter import export_run
from etude.hub.importer import import_folder
from etude.hub.sentencepiece_files import SentencePieceModel, open_tokenizers, read_model, write_model
from etude.text.tokenizer.pair_tokenizer import PairTokenizer
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world import World

ENGLISH = {"▁": -2.5, "a": -3.0, "b": -3.5, "c": -4.0, "▁a": -1.5, "ab": -1.75, "bc": -2.0, "▁ab": -2.25, "abc": -6.0,
           "<": -9.0, "/": -9.0, "s": -9.0}  # fmt: skip
KOREAN = {"▁": -2.0, "가": -3.0, "나": -3.25, "▁가": -2.5, "가나": -4.0, "a": -8.0}


def write_folder(folder: Path, sides: tuple[dict[str, float], ...] = (ENGLISH, KOREAN), charsmap: bytes = b"") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokens = list(dict.fromkeys(["</s>", "<unk>", *sides[0], *sides[1], "<pad>"]))
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    for name, pieces in zip(("source.spm", "target.spm"), sides, strict=True):
        (folder / name).write_bytes(write_model(SentencePieceModel(pieces, "<unk>", charsmap, True, True)))
    return folder


def best_split(text: str, pieces: dict[str, float]) -> list[str]:
    """The pieces with the largest sum of scores, by trying all."""
    if not text:
        return []
    splits = [[text[:end], *best_split(text[end:], pieces)] for end in range(1, len(text) + 1) if text[:end] in pieces]
    return max(splits, key=lambda split: sum(pieces[piece] for piece in split))


@pytest.mark.parametrize("text", ["abc", "ab c", "a b c", "  cab   bca ", "abcabcabc", "bab aab"])
def test_a_text_is_split_by_the_largest_sum_of_scores(tmp_path: Path, text: str) -> None:
    tokenizer = open_tokenizers(write_folder(tmp_path))
    expected = best_split("▁" + "▁".join(text.split()), ENGLISH)
    assert [tokenizer.token(id) for id in tokenizer.encode(text).ids] == expected
    assert tokenizer.decode(tokenizer.encode(text).ids).strip() == " ".join(text.split())


def test_both_sides_number_pieces_alike_and_split_apart(tmp_path: Path) -> None:
    tokenizer = open_tokenizers(write_folder(tmp_path))
    assert isinstance(tokenizer, PairTokenizer) and tokenizer.shares_ids
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    special = tokenizer.special
    assert (special.end, special.unknown, special.pad) == (0, 1, vocabulary["<pad>"])
    target = tokenizer.target.encode("가나 a").ids.tolist()
    assert target == [vocabulary[piece] for piece in ("▁가", "나", "▁", "a")]
    assert tokenizer.target.decode(target) == "가나 a"
    assert tokenizer.encode("Z 가").ids.tolist() == [vocabulary["▁"], 1, vocabulary["▁"], vocabulary["가"]]


def test_control_tokens_in_a_text_are_characters(tmp_path: Path) -> None:
    tokenizer = open_tokenizers(write_folder(tmp_path))
    for text in ("</s>", "a</s>b", "<pad>"):
        assert not {tokenizer.special.end, tokenizer.special.pad} & set(tokenizer.encode(text).ids.tolist())


def test_written_files_are_the_same_tokenizers(tmp_path: Path) -> None:
    tokenizer = open_tokenizers(write_folder(tmp_path / "a"))
    assert sentencepiece_files.is_sentencepiece(tokenizer)
    for name, content in sentencepiece_files.make_files(tokenizer).items():
        (tmp_path / name).write_bytes(content)
    assert open_tokenizers(tmp_path).fingerprint == tokenizer.fingerprint
    trained = Tokenizer.train("unigram:60", ["the cat sat on the mat"])
    assert not sentencepiece_files.is_sentencepiece(PairTokenizer(trained.content, trained))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    content = (folder / "source.spm").read_bytes()
    for damaged in (b"", content[:-3], b"\xff" * 40, b"{}", content[:20]):
        (folder / "source.spm").write_bytes(damaged)
        with pytest.raises(UserError, match=r"source\.spm is no SentencePiece model, or damaged"):
            open_tokenizers(folder)
    (folder / "source.spm").write_bytes(content + b"\x12\x02\x18\x02")  # trainer_spec.model_type = BPE
    with pytest.raises(UserError, match=r"source\.spm is .* of another kind than unigram"):
        read_model(folder / "source.spm")
    (folder / "source.spm").write_bytes(content)
    for vocabulary, message in (("{", "is damaged"), ('{"</s>": 0, "<unk>": 2}', "from 0 without a gap"),
                                ('{"</s>": 0, "<unk>": 1}', "no token <pad>"), ("[1]", "without a gap")):  # fmt: skip
        (folder / "vocab.json").write_text(vocabulary)
        with pytest.raises(UserError, match=message):
            open_tokenizers(folder)
    (folder / "target.spm").unlink()
    with pytest.raises(UserError, match=r"source\.spm and no target\.spm"):
        open_tokenizers(folder)


# --- OPUS-MT ----------------------------------------------------------------------------------------

TEXTS = ["The cat sat.", "A dog", "two  spaces, and ﬁ Ａ½", *(pair[0] for pair in World(5).pairs(4))]


@pytest.fixture(scope="module")
def opus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Helsinki-NLP publishes them: random weights, two SentencePiece models, one vocabulary."""
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("sentencepiece", reason="MarianTokenizer needs it")
    folder = tmp_path_factory.mktemp("opus-mt-en-ko")
    tokens = ["</s>", "<unk>"]
    for side, name in ((0, "source"), (1, "target")):
        text = folder / f"{name}.txt"
        text.write_text("\n".join(pair[side] for pair in World(0).pairs(400)), encoding="utf-8")
        library.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(folder / name), vocab_size=(220, 600)[side], hard_vocab_limit=False,
            minloglevel=2,
        )  # fmt: skip
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        text.unlink()
        (folder / f"{name}.vocab").unlink()
        model = library.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        tokens += [model.id_to_piece(number) for number in range(3, model.get_piece_size())]
    tokens = [*dict.fromkeys(tokens), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    pad = len(tokens) - 1
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=len(tokens), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
        activation_function="swish", scale_embedding=True, pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=0, num_beams=4, bad_words_ids=[[pad]],
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.4)
        model.final_logits_bias += torch.randn_like(model.final_logits_bias) * 0.5
        model.final_logits_bias[0, 0] += 4.0  # it ends now and then
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    return folder


def translate_there(folder: Path, texts: list[str], limits: list[int]) -> tuple[list[list[int]], list[str]]:
    import transformers

    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    model: Any = transformers.MarianMTModel.from_pretrained(folder).eval()
    ids, written = [], []
    for text, limit in zip(texts, limits, strict=True):
        batch = tokenizer([text], return_tensors="pt")
        [best] = model.generate(**batch, num_beams=4, length_penalty=1.0, max_new_tokens=limit, do_sample=False,
                                forced_eos_token_id=None)  # fmt: skip
        ids.append([token for token in best.tolist()[1:] if token not in (0, tokenizer.pad_token_id)])
        written.append(tokenizer.decode(best, skip_special_tokens=True, use_source_tokenizer=False))
    return ids, written


def test_sources_are_split_as_by_the_library(opus: Path) -> None:
    import transformers

    there = transformers.MarianTokenizer.from_pretrained(opus)
    here = hub.read_checkpoint(opus).tokenizer
    for text in TEXTS:
        assert here.encode(text).ids.tolist() == there(text)["input_ids"][:-1]
    for text in [pair[1] for pair in World(5).pairs(12)]:
        ids = here.target.encode(text).ids.tolist()
        assert ids == there(text_target=text)["input_ids"][:-1]
        assert (
            here.target.decode(ids, special=False).strip()
            == there.decode(ids, skip_special_tokens=True, use_source_tokenizer=False).strip()
        )


def test_beam_search_is_that_of_generate(opus: Path, tmp_path: Path) -> None:
    import_folder(opus, tmp_path / "run")
    tokenizer = etude.load(opus).tokenizer
    limits = [min(64, len(tokenizer.encode(text).ids) + 51) for text in TEXTS]
    ids, written = translate_there(opus, TEXTS, limits)
    for loaded in (etude.load(opus), etude.load(tmp_path / "run")):
        ours = [best[0] for best in loaded.translate(TEXTS, penalty=1.0, convention="generate")]
        assert [list(best.ids) for best in ours] == ids
        assert [best.text for best in ours] == [text.strip() for text in written]
    assert len({best.text for best in ours}) > 3


def test_it_leaves_as_it_came(opus: Path, tmp_path: Path) -> None:
    import transformers

    run = import_folder(opus, tmp_path / "run")
    export_run(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(tokenizer).__name__ == "MarianTokenizer"
    before, after = (transformers.MarianMTModel.from_pretrained(folder) for folder in (opus, tmp_path / "out"))
    for name, value in before.state_dict().items():
        torch.testing.assert_close(after.state_dict()[name], value, rtol=0, atol=0, msg=name)
    assert translate_there(opus, TEXTS[:3], [20] * 3) == translate_there(tmp_path / "out", TEXTS[:3], [20] * 3)
    assert hub.read_checkpoint(tmp_path / "out").tokenizer.fingerprint == run.tokenizer.fingerprint


@pytest.mark.slow
def test_it_learns_on_from_pairs(opus: Path, tmp_path: Path) -> None:
    import_folder(opus, tmp_path / "run")
    World(1).write_pairs(tmp_path / "pairs.tsv", 60)
    corpus = etude.prepare(tmp_path / "pairs.tsv", out=tmp_path / "c", tokenizer=tmp_path / "run", pairs="en,ko")
    assert corpus.tokenizer.fingerprint == etude.load(tmp_path / "run").tokenizer.fingerprint
    settings = {"train.steps": 2, "train.warmup": 0, "train.eval_every": 0, "train.batch_tokens": 1024}
    etude.pretrain(tmp_path / "run", tmp_path / "c", out=tmp_path / "on", settings=settings, quiet=True)
    export_run(tmp_path / "on", tmp_path / "out")
    assert (tmp_path / "out" / "source.spm").read_bytes()
    ids, _ = translate_there(tmp_path / "out", TEXTS[:2], [20] * 2)
    assert len(ids) == 2
