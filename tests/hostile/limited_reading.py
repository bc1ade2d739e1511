"""Read files that ask for more memory than there is, in a process of 2 GB: run as `python -m ... SAMPLES FOLDER COUNT`.

Prints one line of JSON: how many files were read, the highest resident memory, and every answer that is neither a
value nor a UserError.
"""

from __future__ import annotations

import gzip
import json
import lzma
import random
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zstandard

import etude
from etude.errors import UserError
from etude.hub.fasttext_files import MAGIC, VERSION, read_fasttext
from etude.hub.vector_files import read_vectors
from etude.hub.weights import read_tensors
from etude.recipes.document import parse
from etude.recipes.schema import Recipe
from etude.tasks.data.records import records
from etude.text.corpus.corpus import Corpus
from etude.text.prepare.readers import Position, ReadSettings, read_blocks
from etude.text.prepare.sources import find_sources
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.memory import peak_bytes
from tests.manifests import read_values, write_manifest

LIMIT = 2 << 30
HUGE = [10**7, 10**9, 2**31, 10**10, 10**12, 2**40, 2**53, 10**15, 2**62, 10**17]
RECIPES = ["bert-toy", "gpt2-toy", "electra-toy", "transformer-toy", "elmo-toy", "skipgram-toy", "two-tower-toy"]
NUMBERS = ["model.layers", "model.width", "model.vocab", "model.context", "model.heads", "model.feedforward",
           "model.decoder_layers", "model.buckets", "model.cells"]  # fmt: skip
Case = Callable[[Path, random.Random], object]


def read_recipe(folder: Path, draw: random.Random) -> object:
    overrides = [f"{draw.choice(NUMBERS)}={draw.choice(HUGE)}" for _ in range(draw.choice((1, 1, 2)))]
    return Recipe.load(draw.choice(RECIPES), overrides).resolve().build_model()


def read_model(folder: Path, draw: random.Random) -> object:
    model = folder / "model"
    shutil.copytree(SAMPLES / "exported", model)
    config = json.loads((model / "config.json").read_text())
    keys = ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "intermediate_size",
            "num_attention_heads", "type_vocab_size"]  # fmt: skip
    (model / "config.json").write_text(json.dumps(config | {draw.choice(keys): draw.choice(HUGE)}))
    return etude.load(model)


def read_vector_header(folder: Path, draw: random.Random) -> object:
    path = folder / "v.vec"
    words, width = draw.choice(HUGE), draw.choice([1, 300, *HUGE])
    path.write_bytes(f"{words} {width}\n".encode() + draw.choice([b"a 1 2\n", b"a \0\0\0\0", b""]))
    return read_vectors(path)


def read_fasttext_header(folder: Path, draw: random.Random) -> object:
    path = folder / "v.bin"
    numbers = (draw.choice([1, 2**31 - 1]), 5, 5, 5, 5, 1, 2, 2, draw.choice([0, 2**31 - 1]), 3, 6, 1)
    head = struct.pack("<ii12id", int.from_bytes(MAGIC, "little"), VERSION, *numbers, 1e-4)
    words = draw.choice([0, 1, 10**6, 2**31 - 1])
    table = struct.pack("<?qq", False, draw.choice(HUGE), draw.choice([1, *HUGE[:4]]))
    path.write_bytes(head + struct.pack("<iiiqq", words, words, 0, 0, 0) + table)
    return read_fasttext(path)


def read_bin(folder: Path, draw: random.Random) -> object:
    rows = draw.choice([10**5, 10**6, 10**9])
    kind = draw.randrange(3)
    if kind == 0:
        tensors = {"w": torch.zeros(1).expand(rows, 1000)}
    elif kind == 1:
        shared = torch.zeros(100_000, dtype=torch.float16)
        tensors = {str(number): shared for number in range(5000)}
    else:
        tensors = {"w": torch.zeros(1000).as_strided((rows, 1000), (0, 1))}
    torch.save(tensors, folder / "pytorch_model.bin")
    return read_tensors(folder)


def read_tokenizer(folder: Path, draw: random.Random) -> object:
    step = {"type": "Replace", "pattern": draw.choice([{"String": "a"}, {"Regex": "."}, {"Regex": ""}]),
            "content": "a" * draw.choice([2, 10, 1000, 10_000])}  # fmt: skip
    steps = [step] * draw.choice([1, 5, 20])
    vocabulary = {"[UNK]": 0, "a": draw.choice([1, *HUGE[:4]])}
    content = {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
               "normalizer": {"type": "Sequence", "normalizers": steps}}  # fmt: skip
    return Tokenizer(json.dumps(content)).encode("a" * 1000)


def read_yaml(folder: Path, draw: random.Random) -> object:
    size = draw.choice([1000, 20_000, 100_000])
    lines = "\n".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))
    texts = [
        "[" * size,
        "{a: " * size,
        "- " * size,
        "a: " + "9" * size,
        f"a0: &a0 [x, x]\n{lines}",
        "a: |\n " + "x" * size,
    ]
    return parse(draw.choice(texts), "x.yaml")


def read_packed(folder: Path, draw: random.Random) -> object:
    """One line of 256 MB out of some KB, as records and as text."""
    ending = draw.choice(["gz", "xz", "zst"])
    kind = draw.choice(["jsonl", "txt"])
    path = folder / f"x.{kind}.{ending}"
    path.write_bytes(PACKED[ending])
    if kind == "jsonl" and draw.random() < 0.3:
        return sum(1 for _ in records(path))
    total = 0
    for source in find_sources(str(path)):
        for block in read_blocks(list(source.files), ReadSettings(), Position()):
            total += len(block.payload)
    return total


def read_deep_json(folder: Path, draw: random.Random) -> object:
    path = folder / "x.jsonl"
    deep = draw.choice(["[", '{"a":'])
    path.write_text(deep * draw.choice([1000, 10**5, 10**6]) + "\n")
    return list(records(path))


def read_manifest(folder: Path, draw: random.Random) -> object:
    corpus = folder / "corpus"
    shutil.copytree(SAMPLES / "corpus", corpus)
    manifest = read_values(corpus)
    part = manifest["parts"]["train"]
    target = draw.choice([part, part["shards"][0], part["counts"], manifest["tokenizer"]])
    key = draw.choice([key for key, value in target.items() if isinstance(value, int)])
    target[key] = draw.choice(HUGE)
    write_manifest(corpus, manifest)
    opened = Corpus.open(corpus)
    return opened.tokens(0, opened.total), opened.token_counts()


def read_counts(folder: Path, draw: random.Random) -> object:
    from tests.hostile.targets import rehash

    corpus = folder / "corpus"
    shutil.copytree(SAMPLES / "corpus", corpus)
    path = corpus / "train" / "counts.npy"
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({draw.choice(HUGE)},), }}".ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(80))
    rehash(corpus)
    return Corpus.open(corpus).token_counts()


CASES: list[tuple[Case, int]] = [
    (read_recipe, 150), (read_model, 50), (read_vector_header, 60), (read_fasttext_header, 40), (read_bin, 30),
    (read_tokenizer, 50), (read_yaml, 30), (read_packed, 20), (read_deep_json, 20), (read_manifest, 40),
    (read_counts, 20),
]  # fmt: skip


def main() -> None:
    global SAMPLES, PACKED
    SAMPLES, root, share = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    line = b"a" * (1 << 28)
    PACKED = {"gz": gzip.compress(line, 1), "xz": lzma.compress(line, preset=0),
              "zst": zstandard.ZstdCompressor(1).compress(line)}  # fmt: skip
    del line
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    faults, count = [], 0
    for case, times in CASES:
        for number in range(max(1, round(times * share))):
            folder = root / f"{case.__name__}-{number}"
            folder.mkdir()
            try:
                case(folder, random.Random(f"{case.__name__} {number}"))
            except UserError:
                pass
            except BaseException as error:
                faults.append(f"{case.__name__} {number}: {type(error).__name__}: {str(error)[:150]}")
            shutil.rmtree(folder)
            count += 1
    print(json.dumps({"files": count, "peak": peak_bytes("cpu"), "faults": faults}))


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
