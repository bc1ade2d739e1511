"""ELMo as it was released (allenai/bilm-tf): options.json and weights.hdf5, read and written.

    char_embed                                     (261, 16); here a row of zeros stands before them
    CNN/W_cnn_i, b_cnn_i                           (1, width, 16, channels)
    CNN_high_i/W_carry, b_carry, W_transform, ...  (in, out); "carry" is the gate that lets the new in [code]
    CNN_proj/W_proj, b_proj                        (in, out)
    RNN_d/RNN/MultiRNNCell/Celln/LSTMCell/W_0      (inputs + width, 4 cells), gates i, g, f, o; here i, f, g, o
                                          B        (4 cells), to whose f TensorFlow adds 1 at run time; here it is in
                                          W_P_0    (cells, width)

RNN_0 reads forward. The output layer is not in the files, nor is a vocabulary, which ELMo needs for nothing else: a
model that is read from them gives states. Words of a text are cut at spaces alone, as the text of its training was;
a vocab.txt in the folder, one word a line, becomes the vocabulary for training it further.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.errors import UserError
from etude.extras import require
from etude.models.recurrent import Settings
from etude.nn import char_cnn
from etude.recipes.document import Document
from etude.recipes.schema import Recipe
from etude.text.tokenizer.char_ids import CHAR_VOCAB
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS
from etude.text.tokenizer.tokenizer import Tokenizer

OPTIONS, WEIGHTS, VOCABULARY = "options.json", "weights.hdf5", "vocab.txt"
MARKS = {"<S>", "</S>", "<UNK>"}  # in the vocabulary files of the release; we have our own
FORGET = 2  # place of the forget gate in TensorFlow's order i, g, f, o
SYSTEM = "ELMo"


def is_release(folder: Path) -> bool:
    return _find(folder, OPTIONS) is not None and _find(folder, WEIGHTS) is not None


def _find(folder: Path, name: str) -> Path | None:
    """The file, also under a longer name: elmo_2x4096_512_2048cnn_2xhighway_options.json."""
    found = [*folder.glob(name), *sorted(folder.glob(f"*_{name}"))]
    return found[0] if found else None


# --- reading ----------------------------------------------------------------------------------------


def read_release(folder: Path) -> tuple[Recipe, dict[str, Tensor], Tokenizer]:
    """The recipe, the tensors of the model under our names (`model.*`), and a tokenizer."""
    options, weights = _find(folder, OPTIONS), _find(folder, WEIGHTS)
    assert options is not None and weights is not None  # is_release
    tokenizer = _tokenizer(folder)
    model = _settings(options).model_copy(update={"vocab": tokenizer.vocab})
    with _open(weights, "r") as file:
        tensors = dict(_read(file, model, weights))
    recipe = Recipe.of(
        Document(
            {
                "name": folder.resolve().name,
                "system": SYSTEM,
                "note": "Imported. Its weights were trained elsewhere: the group train says nothing of how.",
                "tokenizer": f"word:{tokenizer.vocab}",
                "model": {"kind": "recurrent", **model.model_dump(mode="json")},
                "objective": {"kind": "bilm"},
                "train": {"steps": 1},
            }
        )
    )
    return recipe, tensors, tokenizer


def _settings(path: Path) -> Settings:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
        lstm, cnn = options["lstm"], options["char_cnn"]
        characters = int(cnn["n_characters"])
        if characters not in (CHAR_VOCAB, CHAR_VOCAB - 1):  # the second is what it was in training
            raise ValueError(f"n_characters is {characters}, and bytes with their marks are {CHAR_VOCAB}")
        return Settings(
            layers=lstm["n_layers"],
            width=lstm["projection_dim"],
            cells=lstm["dim"],
            residual=lstm.get("use_skip_connections", False),
            cell_clip=lstm.get("cell_clip") or None,
            projection_clip=lstm.get("proj_clip") or None,
            dropout=float(options.get("dropout", 0.1)),
            characters=char_cnn.Settings(
                filters=cnn["filters"],
                embedding=cnn["embedding"]["dim"],
                highways=cnn.get("n_highway") or 0,
                activation=cnn["activation"],
                length=cnn["max_characters_per_token"],
            ),
        )
    except KeyError as problem:
        raise UserError(f"{path} is no description of an ELMo: it lacks {problem}.") from None
    except (ValueError, TypeError) as problem:
        raise UserError(f"{path} is no description of an ELMo: {problem}.") from None


def _read(file: Any, model: Settings, path: Path) -> Iterator[tuple[str, Tensor]]:
    def array(name: str, *shape: int) -> np.ndarray:
        if name not in file:
            raise UserError(f"{path} has no '{name}': it is not a whole file of ELMo, or not the one of {OPTIONS}.")
        found = np.asarray(file[name][...], dtype=np.float32)
        if found.shape != shape:
            raise UserError(f"{path}: '{name}' is {found.shape}, and {OPTIONS} asks for {shape}.")
        return found

    for name, place in _places(model).items():
        yield f"model.{name}", torch.from_numpy(np.ascontiguousarray(place.ours(array(place.name, *place.shape))))
    for name, (theirs, shape) in _layers(model).items():
        whole, bias = array(f"{theirs}/W_0", *shape), array(f"{theirs}/B", shape[1])
        gates = whole.T.reshape(4, -1, shape[0])[[0, 2, 1, 3]].reshape(-1, shape[0])  # i, f, g, o
        bias = bias.reshape(4, -1)[[0, 2, 1, 3]]
        bias[1] += 1.0
        parts = {
            "input.weight": gates[:, : model.width],
            "recurrent.weight": gates[:, model.width :],
            "input.bias": bias.reshape(-1),
            "project.weight": array(f"{theirs}/W_P_0", model.cells, model.width).T,
        }
        for part, values in parts.items():
            yield f"model.{name}.{part}", torch.from_numpy(np.ascontiguousarray(values))


def _tokenizer(folder: Path) -> Tokenizer:
    """Words between spaces. Without a list of words the vocabulary is the printable ASCII signs: it must have some."""
    path = _find(folder, VOCABULARY)
    words = list(string.printable.split()[0]) if path is None else path.read_text(encoding="utf-8").splitlines()
    names = [*TRAINED_SPECIALS, *(word for word in words if word and word not in MARKS)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(names))}
    return Tokenizer(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [
                    {"id": number, "content": name, "special": True, "single_word": False, "lstrip": False,
                     "rstrip": False, "normalized": False}
                    for number, name in enumerate(TRAINED_SPECIALS)
                ],
                "normalizer": {"type": "NFC"},
                "pre_tokenizer": {"type": "WhitespaceSplit"},
                "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
            },
            ensure_ascii=False,
        ),
        str(path or folder),
    )  # fmt: skip


# --- where everything lies --------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """An array of theirs, and what turns it into ours and back."""

    name: str
    shape: tuple[int, ...]
    ours: Callable[[np.ndarray], np.ndarray]
    theirs: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def vector(cls, name: str, size: int) -> Place:
        return cls(name, (size,), lambda one: one, lambda one: one)

    @classmethod
    def matrix(cls, name: str, inputs: int, outputs: int) -> Place:
        return cls(name, (inputs, outputs), np.transpose, np.transpose)

    @classmethod
    def filter(cls, name: str, shape: tuple[int, ...]) -> Place:
        return cls(name, shape, lambda one: one[0].reshape(-1, shape[-1]).T, lambda one: one.T.reshape(shape))


def _places(model: Settings) -> dict[str, Place]:
    """By our names, all but the LSTMs."""
    letters = model.characters
    assert letters is not None
    size, network = letters.channels, "embedding.network"
    table = Place(
        "char_embed",
        (CHAR_VOCAB - 1, letters.embedding),
        lambda one: np.concatenate([np.zeros_like(one[:1]), one]),
        lambda one: one[1:],
    )
    found = {f"{network}.embedding.weight": table}
    for number, (width, channels) in enumerate(letters.filters):
        here, shape = f"{network}.filters.{number}", (1, width, letters.embedding, channels)
        found[f"{here}.weight"] = Place.filter(f"CNN/W_cnn_{number}", shape)
        found[f"{here}.bias"] = Place.vector(f"CNN/b_cnn_{number}", channels)
    for number in range(letters.highways):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            here, there = f"{network}.highways.{number}.{ours}", f"CNN_high_{number}"
            found[f"{here}.weight"] = Place.matrix(f"{there}/W_{theirs}", size, size)
            found[f"{here}.bias"] = Place.vector(f"{there}/b_{theirs}", size)
    found[f"{network}.project.weight"] = Place.matrix("CNN_proj/W_proj", size, model.width)
    found[f"{network}.project.bias"] = Place.vector("CNN_proj/b_proj", model.width)
    return found


def _layers(model: Settings) -> dict[str, tuple[str, tuple[int, int]]]:
    """Our name of each LSTM -> their group, and the shape of its matrix."""
    return {
        f"{stack}.{layer}": (
            f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell",
            (2 * model.width, 4 * model.cells),
        )
        for number, stack in enumerate(("forwards", "backwards"))
        for layer in range(model.layers)
    }


# --- writing ----------------------------------------------------------------------------------------


def describe_mismatch(recipe: Recipe) -> str:
    """Why a model has no place in these files; empty where it has."""
    if recipe.model_kind != "recurrent":
        return f"a {recipe.model_kind} model is no ELMo"
    model = recipe.model_settings(Settings)
    if model.characters is None:
        return "ELMo reads words by their letters, and this model has a table of words (model.characters)"
    if model.direction != "both" or not model.shared:
        return "ELMo reads in both directions with the same words (model.direction, model.shared)"
    if model.cells == model.width:
        return "ELMo's LSTMs are projected, and here model.cells is model.width"
    return ""


def make_options(model: Settings) -> dict[str, Any]:
    letters = model.characters
    assert letters is not None
    return {
        "lstm": {
            "use_skip_connections": model.residual,
            "projection_dim": model.width,
            "cell_clip": model.cell_clip,
            "proj_clip": model.projection_clip,
            "dim": model.cells,
            "n_layers": model.layers,
        },
        "char_cnn": {
            "activation": letters.activation,
            "filters": [list(one) for one in letters.filters],
            "n_highway": letters.highways,
            "embedding": {"dim": letters.embedding},
            "n_characters": CHAR_VOCAB,
            "max_characters_per_token": letters.length,
        },
    }


def write_release(recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """The two files and the words, into an existing folder."""
    model = recipe.model_settings(Settings)
    own = {
        name.removeprefix("model."): one.detach().float().cpu().numpy()
        for name, one in tensors.items()
        if name.startswith("model.")
    }
    with _open(folder / WEIGHTS, "w") as file:
        for name, place in _places(model).items():
            file.create_dataset(place.name, data=place.theirs(own[name]))
        for name, (theirs, _) in _layers(model).items():
            gates = np.concatenate([own[f"{name}.input.weight"], own[f"{name}.recurrent.weight"]], axis=1)
            whole = gates.reshape(4, model.cells, -1)[[0, 2, 1, 3]].reshape(4 * model.cells, -1).T  # i, g, f, o
            bias = own[f"{name}.input.bias"].reshape(4, -1)[[0, 2, 1, 3]].copy()
            bias[FORGET] -= 1.0
            file.create_dataset(f"{theirs}/W_0", data=whole)
            file.create_dataset(f"{theirs}/B", data=bias.reshape(-1))
            file.create_dataset(f"{theirs}/W_P_0", data=own[f"{name}.project.weight"].T)
    (folder / OPTIONS).write_text(json.dumps(make_options(model), indent=1) + "\n", encoding="utf-8")
    special = set(tokenizer.special.ids())
    known = tokenizer.backend.get_vocab(with_added_tokens=True)
    words = sorted((word for word, id in known.items() if id not in special), key=known.__getitem__)
    (folder / VOCABULARY).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def _open(path: Path, mode: str) -> Any:
    require("h5py", f"The ELMo file {path}")
    import h5py

    try:
        return h5py.File(path, mode)
    except OSError as problem:
        raise UserError(f"{path} is not an HDF5 file that can be opened: {problem}.") from None
