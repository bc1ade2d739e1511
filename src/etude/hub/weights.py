"""Files of a published folder: config.json and the tensors, from safetensors or an old .bin file.

An old pytorch_model.bin is a pickle. It is read by torch's restricted reader (`weights_only=True`), which rebuilds
tensors and plain containers and refuses everything else; no code in the file is run.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from pathlib import Path
from pickle import UnpicklingError  # the name of an error only
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from etude.errors import UserError
from etude.extras import require
from etude.runs.folder_kinds import explain_other_folder
from etude.runs.model_folder import HUB, require_folder

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
MAX_EXPANSION = 8  # float16 takes twice its bytes as float32, and tied weights are stored once
# what torch's restricted reader raises at a file that is no list of tensors, beside what it documents
_MALFORMED = (OSError, KeyError, TypeError, AttributeError, IndexError, AssertionError, OverflowError, struct.error)
# of a repository on the hub
DOWNLOAD_PATTERNS = [
    "*.json", "*.txt", "*.safetensors", "*.bin", "*.npy", "*.bpe", "*.hdf5", "*.spm", "*.vec", "generator/*",
]  # fmt: skip


def locate_folder(source: str | Path) -> Path:
    """Return the folder of a model: as given, or downloaded where `source` is an id on the hub such as "hf:org/name".

    Without `hf:` nothing is asked: the name of a mistyped folder is nobody else's business.
    """
    text = str(source)
    if not text.startswith(HUB):
        return require_folder(source)
    text = text.removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+(?:/[\w.-]+)?", text):
        raise UserError(f"{source} is no id on the hub: 'hf:org/name' is expected.")
    require("huggingface_hub", f"{source}, an id on the hub,", alternative="download the folder and give its path")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(text, allow_patterns=DOWNLOAD_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(f"The hub did not give a model of the id {text}: {first}") from None


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json."""
    path = folder / "config.json"
    if not path.is_file():
        message = f"{folder} is not a folder of a model: it holds no config.json."
        raise UserError(explain_other_folder(folder) or message)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON: {error}.") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not the description of a model: expected an object of keys and values.")
    return config


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder under the names in its files; floating-point ones become float32."""
    file_name = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    if file_name is None:
        raise UserError(f"{folder} holds no weights: none of {', '.join(WEIGHT_FILES)} is in it.")
    if not file_name.endswith(".index.json"):
        return _read_file(folder / file_name)
    try:
        weight_map = json.loads((folder / file_name).read_text(encoding="utf-8"))["weight_map"]
        shards = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / file_name} is not an index of weights: {error}.") from None
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(shards.values())):
        if Path(name).name != name or len(name) > 200 or not (folder / name).is_file():
            raise UserError(f"{folder / file_name} names {name[:200]!r}, and there is no such file beside it.")
        tensors |= _read_file(folder / name)
    missing = sorted(set(shards) - set(tensors))
    if missing:
        raise UserError(f"{folder / file_name} lists {missing[0]} (and {len(missing) - 1} more), which no shard holds.")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    tensors = read_safetensors(path) if path.suffix == ".safetensors" else _read_bin(path)
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file as they are; UserError where it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file: {error}.") from None


def _read_bin(path: Path) -> dict[str, Tensor]:
    """Read a .bin of tensors; one that would take more memory than its file has bytes is refused before it does."""
    size = path.stat().st_size
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > size:
                raise UserError(f"{path} unpacks to {unpacked:,} bytes, more than the {size:,} it has: no plain file.")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile, MemoryError, *_MALFORMED) as error:
        first = str(error).strip().partition("\n")[0]
        raise UserError(
            f"{path} does not hold plain tensors alone, and nothing else is read from such a file: {first} "
            "Convert it to safetensors where you trust it."
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a file of named tensors is expected.")
    others = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise UserError(f"{path}: {others[0]} is not a tensor; a file of named tensors is expected.")
    for name, tensor in content.items():
        held = tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 0
        if tensor.nbytes > held:
            raise UserError(f"{path}: {name} stretches {held:,} bytes to {tensor.nbytes:,}. Convert it to safetensors.")
    needed = sum(4 * tensor.numel() for tensor in content.values())
    if needed > MAX_EXPANSION * size:
        raise UserError(f"{path}: its tensors need {needed:,} bytes of memory, and the file has {size:,}.")
    return content
