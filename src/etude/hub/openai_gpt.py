"""Files of OpenAI's GPT-1 release (openai/finetune-transformer-lm, folder `model`): arrays without names.

    params_0.npy ... params_9.npy   one flat float32 array, in pieces
    params_shapes.json              the shapes of its tensors, in order: positions, tokens, then twelve a layer
    encoder_bpe_40000.json          token -> id
    vocab_40000.bpe                 the merges

Each tensor gets its name in transformers, and the family's table does the rest. Matrices are stored as (1, in, out).
The files do not give the number of heads: a head is 64 wide in every GPT (section 4.1).
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.text.checked_files import load_array
from etude.text.tokenizer.tokenizer import Tokenizer

SHAPES, TOKENS, MERGES = "params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe"
HEAD_WIDTH = 64

# in the order of the file; matrices have a leading axis of size 1
LAYER_TENSORS = (
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_1.weight",
    "ln_1.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
)


def is_release(folder: Path) -> bool:
    """Whether a folder holds OpenAI's arrays."""
    return (folder / SHAPES).is_file()


def read_release(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], Tokenizer]:
    """Return config.json, tensors and tokenizer as in a folder of transformers."""
    shapes = _read_shapes(folder / SHAPES)
    layers, rest = divmod(len(shapes) - 2, len(LAYER_TENSORS))
    if layers < 1 or rest:
        raise UserError(
            f"{folder / SHAPES} lists {len(shapes)} tensors; GPT-1 has two tables and {len(LAYER_TENSORS)} tensors "
            "a layer."
        )
    flat = _read_arrays(folder)
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != len(flat):
        raise UserError(f"{folder}: the arrays hold {len(flat)} numbers, and {SHAPES} asks for {sum(sizes)}.")
    names = ["positions_embed.weight", "tokens_embed.weight"]
    names += [f"h.{layer}.{name}" for layer in range(layers) for name in LAYER_TENSORS]
    pieces = np.split(flat, np.cumsum(sizes)[:-1])
    tensors = {
        f"transformer.{name}": torch.from_numpy(piece.reshape(shape[1:] if len(shape) == 3 else shape).copy())
        for name, piece, shape in zip(names, pieces, shapes, strict=True)
    }
    context, width = shapes[0]
    if width % HEAD_WIDTH:
        raise UserError(
            f"{folder}: states of width {width} are not whole heads of {HEAD_WIDTH}, as in every released GPT."
        )
    config = {
        "model_type": "openai-gpt",
        "architectures": ["OpenAIGPTLMHeadModel"],
        "n_positions": context,
        "n_embd": width,
        "n_layer": layers,
        "n_head": width // HEAD_WIDTH,
        "vocab_size": shapes[1][0],
    }
    return config, tensors, _open_tokenizer(folder)


def _read_shapes(path: Path) -> list[list[int]]:
    try:
        shapes = json.loads(path.read_text(encoding="utf-8"))
        is_valid = all(isinstance(size, int) and size > 0 for shape in shapes for size in shape) and len(shapes[0]) == 2
    except (ValueError, RecursionError, TypeError, IndexError) as error:
        raise UserError(f"{path} is not a list of shapes: {error}.") from None
    # matrices have a leading axis of size 1, so that every tensor has one axis or two
    if not is_valid or any(not 1 <= len(shape) <= 3 or (len(shape) == 3 and shape[0] != 1) for shape in shapes):
        raise UserError(f"{path} is not a list of shapes of GPT-1: the first is that of the positions, [512, 768].")
    return shapes


def _read_arrays(folder: Path) -> np.ndarray:
    """Concatenate the pieces in the order of their numbers, which must have no gap."""
    numbers = sorted(
        int(match[1]) for file in folder.iterdir() if (match := re.fullmatch(r"params_(\d+)\.npy", file.name))
    )
    if not numbers or numbers != list(range(len(numbers))):
        raise UserError(f"{folder} holds the arrays params_{numbers}.npy: they must run from 0 up without a gap.")
    pieces = [load_array(folder / f"params_{number}.npy", "Download the release again.") for number in numbers]
    if any(piece.dtype != np.float32 for piece in pieces):
        raise UserError(f"{folder}: the arrays of the release are float32, these are not.")
    return np.concatenate([piece.reshape(-1) for piece in pieces])


def _open_tokenizer(folder: Path) -> Tokenizer:
    for name in (TOKENS, MERGES):
        if not (folder / name).is_file():
            raise UserError(f"{folder} holds no {name}, which belongs to the release beside the arrays.")
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copyfile(folder / TOKENS, Path(temporary) / "vocab.json")
        shutil.copyfile(folder / MERGES, Path(temporary) / "merges.txt")
        return Tokenizer.open(temporary)
