"""What a small file asks for is compared with its bytes and the machine's memory before anything is allocated."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import pytest
import torch

import etude
from etude.errors import UserError
from etude.hub.fasttext_files import MAGIC, VERSION, read_fasttext
from etude.hub.vector_files import read_vectors
from etude.hub.weights import read_tensors
from etude.pretraining.check import check
from etude.recipes.schema import Recipe
from etude.text.tokenizer.expansion import compute_expansion
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import memory
from tests.hostile.samples import Samples

VOCABULARY = {"[UNK]": 0, "a": 1}


@pytest.mark.parametrize(
    "override",
    ["model.layers=10000000", "model.width=1000000000000", "model.context=100000000000000000", "model.width=6400000",
     "model.vocab=100000000000", "model.feedforward=900000000000"],
)  # fmt: skip
def test_a_recipe_larger_than_the_machine_is_refused(override: str) -> None:
    with pytest.raises(UserError, match=r"memory|less than or equal"):
        Recipe.load("bert-toy", [override]).resolve().build_model()


@pytest.mark.parametrize("changes", [{"num_hidden_layers": 10**9}, {"hidden_size": 10**12}, {"vocab_size": 10**11}])
def test_a_config_larger_than_its_weights_is_refused(samples: Samples, tmp_path: Path, changes: dict[str, int]) -> None:
    etude.export(samples.folder / "run", out=tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(UserError):
        etude.import_(tmp_path / "model", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_check_says_what_does_not_fit_without_building_it(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: 10_000)
    with pytest.raises(UserError, match="GB of memory"):
        check("bert-toy", samples.folder / "corpus")
    before = memory.bytes_in_use("cpu") or 0
    monkeypatch.undo()
    with pytest.raises(UserError, match="memory"):
        check("gpt3-175b", samples.folder / "corpus", ["train.device=cpu"])
    assert (memory.bytes_in_use("cpu") or 0) - before < 1e9


def test_a_stretched_tensor_is_refused_by_name(tmp_path: Path) -> None:
    """1.6 KB of file had become gigabytes of weights."""
    torch.save({"w": torch.zeros(1).expand(100_000, 100_000)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="w stretches 4 bytes"):
        read_tensors(tmp_path)
    shared = torch.zeros(100_000, dtype=torch.float16)
    torch.save({str(number): shared for number in range(1000)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="bytes of memory"):
        read_tensors(tmp_path)
    torch.save({"tied": shared, "also": shared}, tmp_path / "pytorch_model.bin")
    assert set(read_tensors(tmp_path)) == {"tied", "also"}


def test_a_packed_bin_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1_000_000)}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry), zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="unpacks to"):
        read_tensors(tmp_path)


def test_headers_of_vectors_are_compared_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "vectors.vec"
    path.write_text("999999999 3\na 1 2 3\n")
    with pytest.raises(UserError, match="do not fit into its"):
        read_vectors(path)
    for header in ("3 184467440737095516164", "184467440737095516164 3", "0 184467440737095516164", "9" * 5000 + " 3"):
        path.write_text(f"{header}\na 1 2 3\n")
        with pytest.raises(UserError, match="as its first line promises"):
            read_vectors(path)
    path.write_bytes(b"999999999 300\na \0\0")
    with pytest.raises(UserError, match=r"too short|do not fit"):
        read_vectors(path)
    header = struct.pack("<ii12id", int.from_bytes(MAGIC, "little"), VERSION, 3, 5, 5, 5, 5, 1, 2, 2, 0, 0, 0, 1, 1e-4)
    sizes = struct.pack("<iiiqq", 2**31 - 1, 2**31 - 1, 0, 0, 0)
    path.write_bytes(header + sizes)
    with pytest.raises(UserError, match="do not fit into the rest"):
        read_fasttext(path)


def tokenizer_json(**components: object) -> str:
    return json.dumps({"model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "[UNK]"}, **components})


def replace(content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": content}


@pytest.mark.parametrize(
    "normalizer",
    [replace("a" * 10_000), {"type": "Sequence", "normalizers": [replace("aa")] * 10},
     {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 100}],
)  # fmt: skip
def test_a_tokenizer_that_stretches_text_is_refused(normalizer: dict[str, object]) -> None:
    with pytest.raises(UserError, match="characters of one"):
        Tokenizer(tokenizer_json(normalizer=normalizer), "x.json")


def test_usual_components_are_read(samples: Samples) -> None:
    assert compute_expansion(json.loads((samples.folder / "corpus" / "tokenizer.json").read_text())) <= 8
    Tokenizer(tokenizer_json(normalizer=replace("▁")))


def test_an_id_far_above_the_tokens_is_refused() -> None:
    content = json.dumps({"model": {"type": "WordLevel", "vocab": VOCABULARY | {"b": 10**9}, "unk_token": "[UNK]"}})
    with pytest.raises(UserError, match="for each id"):
        Tokenizer(content, "x.json")
