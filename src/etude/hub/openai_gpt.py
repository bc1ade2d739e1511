"""GPT-1 as OpenAI released it (openai/finetune-transformer-lm, folder `model`): arrays without names.

    params_0.npy ... params_9.npy   one flat float32 array, cut into pieces
    params_shapes.json              the shapes of its tensors, in order: positions, tokens, then twelve a layer
    encoder_bpe_40000.json          token -> id
    vocab_40000.bpe                 the merges

Each tensor gets the name it has in transformers, and the table of the family does the rest. Matrices are stored as
(1, in, out). The number of heads stands nowhere in the files: a head is 64 wide in every GPT (section 4.1).
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
from etude.text.tokenizer.tokenizer import Tokenizer

SHAPES, TOKENS, MERGES = "params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe"
HEAD = 64

# in the order of the file; matrices have a leading axis of size 1
LAYER = (
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
    return (folder / SHAPES).is_file()


def read_release(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], Tokenizer]:
    """config.json, tensors and tokenizer as they would lie in a folder of transformers."""
    shapes = _shapes(folder / SHAPES)
    layers, rest = divmod(len(shapes) - 2, len(LAYER))
    if layers < 1 or rest:
        raise UserError(
            f"{folder / SHAPES} lists {len(shapes)} tensors; GPT-1 has two tables and {len(LAYER)} tensors a layer."
        )
    flat = _flat(folder)
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != len(flat):
        raise UserError(f"{folder}: the arrays hold {len(flat)} numbers, and {SHAPES} asks for {sum(sizes)}.")
    names = ["positions_embed.weight", "tokens_embed.weight"]
    names += [f"h.{layer}.{name}" for layer in range(layers) for name in LAYER]
    pieces = np.split(flat, np.cumsum(sizes)[:-1])
    tensors = {
        f"transformer.{name}": torch.from_numpy(piece.reshape(shape[1:] if len(shape) == 3 else shape).copy())
        for name, piece, shape in zip(names, pieces, shapes, strict=True)
    }
    context, width = shapes[0]
    if width % HEAD:
        raise UserError(f"{folder}: states of width {width} are not whole heads of {HEAD}, as in every released GPT.")
    config = {
        "model_type": "openai-gpt",
        "architectures": ["OpenAIGPTLMHeadModel"],
        "n_positions": context,
        "n_embd": width,
        "n_layer": layers,
        "n_head": width // HEAD,
        "vocab_size": shapes[1][0],
    }
    return config, tensors, _tokenizer(folder)


def _shapes(path: Path) -> list[list[int]]:
    try:
        shapes = json.loads(path.read_text(encoding="utf-8"))
        sound = all(isinstance(size, int) and size > 0 for shape in shapes for size in shape) and len(shapes[0]) == 2
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(f"{path} is not a list of shapes: {error}.") from None
    if not sound:
        raise UserError(f"{path} is not a list of shapes of GPT-1: the first is that of the positions, [512, 768].")
    return shapes


def _flat(folder: Path) -> np.ndarray:
    """The pieces end to end; in the order of their numbers, without a gap."""
    numbers = sorted(
        int(found[1]) for file in folder.iterdir() if (found := re.fullmatch(r"params_(\d+)\.npy", file.name))
    )
    if not numbers or numbers != list(range(len(numbers))):
        raise UserError(f"{folder} holds the arrays params_{numbers}.npy: they must run from 0 up without a gap.")
    try:
        pieces = [np.load(folder / f"params_{number}.npy", allow_pickle=False) for number in numbers]
    except (ValueError, OSError) as error:
        raise UserError(f"{folder}: an array of the release cannot be read: {error}.") from None
    if any(piece.dtype != np.float32 for piece in pieces):
        raise UserError(f"{folder}: the arrays of the release are float32, these are not.")
    return np.concatenate([piece.reshape(-1) for piece in pieces])


def _tokenizer(folder: Path) -> Tokenizer:
    for name in (TOKENS, MERGES):
        if not (folder / name).is_file():
            raise UserError(f"{folder} holds no {name}, which belongs to the release beside the arrays.")
    with tempfile.TemporaryDirectory() as place:
        shutil.copyfile(folder / TOKENS, Path(place) / "vocab.json")
        shutil.copyfile(folder / MERGES, Path(place) / "merges.txt")
        return Tokenizer.open(place)
