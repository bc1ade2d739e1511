"""Files of ELMo's release (allenai/bilm-tf), options.json and weights.hdf5, read and written.

    char_embed                                     (261, 16); here a row of zeros comes first
    CNN/W_cnn_i, b_cnn_i                           (1, width, 16, channels)
    CNN_high_i/W_carry, b_carry, W_transform, ...  (in, out); "carry" is the gate of the new value [code]
    CNN_proj/W_proj, b_proj                        (in, out)
    RNN_d/RNN/MultiRNNCell/Celln/LSTMCell/W_0      (inputs + width, 4 cells), gates i, g, f, o; here i, f, g, o
                                          B        (4 cells); TensorFlow adds 1 to f at run time, here it is included
                                          W_P_0    (cells, width)

RNN_0 reads forward. The files hold neither the output layer nor its vocabulary: an imported model gives hidden states
only. Text is split at spaces alone, as the training text was; a vocab.txt in the folder, one word a line, becomes the
vocabulary for further training.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import h5py

OPTIONS, WEIGHTS, VOCABULARY = "options.json", "weights.hdf5", "vocab.txt"
RELEASE_SPECIALS = {"<S>", "</S>", "<UNK>"}  # of the release's vocabulary files; ours replace them
MOST_HIGHWAYS = 64  # ELMo has 2
FORGET = 2  # index of the forget gate in TensorFlow's order i, g, f, o
SYSTEM = "ELMo"


def is_release(folder: Path) -> bool:
    """Whether a folder holds ELMo's two files."""
    return _find(folder, OPTIONS) is not None and _find(folder, WEIGHTS) is not None


def _find(folder: Path, name: str) -> Path | None:
    """Find a file, also under a longer name: elmo_2x4096_512_2048cnn_2xhighway_options.json."""
    paths = [*folder.glob(name), *sorted(folder.glob(f"*_{name}"))]
    return paths[0] if paths else None


# --- reading ----------------------------------------------------------------------------------------


def read_release(folder: Path) -> tuple[Recipe, dict[str, Tensor], Tokenizer]:
    """Return the recipe, the tensors of the model under our names (`model.*`), and a tokenizer."""
    options, weights = _find(folder, OPTIONS), _find(folder, WEIGHTS)
    assert options is not None and weights is not None  # is_release
    tokenizer = _make_tokenizer(folder)
    model = _read_settings(options).model_copy(update={"vocab": tokenizer.vocab})
    with _open(weights, "r") as file:
        tensors = dict(_read_tensors(file, model, weights))
    recipe = Recipe.from_document(
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


def _read_settings(path: Path) -> Settings:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
        lstm, cnn = options["lstm"], options["char_cnn"]
        characters = int(cnn["n_characters"])
        if characters not in (CHAR_VOCAB, CHAR_VOCAB - 1):  # the second is its number in training
            raise ValueError(f"n_characters is {characters}, and {CHAR_VOCAB} is expected")
        highways = cnn.get("n_highway") or 0
        if type(highways) is not int or not 0 <= highways <= MOST_HIGHWAYS:
            raise ValueError(f"n_highway is {str(highways)[:40]}, and 0 to {MOST_HIGHWAYS} are read")
        if lstm["projection_dim"] == lstm["dim"]:
            raise ValueError("projection_dim is dim: LSTMs with a projection to their own width are not read")
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
                highways=highways,
                activation=cnn["activation"],
                length=cnn["max_characters_per_token"],
            ),
        )
    except KeyError as error:
        raise UserError(f"{path} does not describe an ELMo: it lacks {error}.") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} does not describe an ELMo: {error}.") from None


def _read_tensors(file: h5py.File, model: Settings, path: Path) -> Iterator[tuple[str, Tensor]]:
    def read_array(name: str, *shape: int) -> np.ndarray:
        try:
            if name not in file:
                raise UserError(f"{path} has no '{name}': it is not a whole file of ELMo, or not the one of {OPTIONS}.")
            found = tuple(file[name].shape)
            if found != shape:
                raise UserError(f"{path}: '{name}' has the shape {found}, and {OPTIONS} asks for {shape}.")
            return np.asarray(file[name][...], dtype=np.float32)
        except (KeyError, RuntimeError, OSError, TypeError, ValueError, AttributeError) as problem:
            raise UserError(f"{path}: '{name}' is damaged ({problem}). Take the file from a copy.") from None

    for name, mapped in _map_arrays(model).items():
        array = mapped.to_own(read_array(mapped.name, *mapped.shape))
        yield f"model.{name}", torch.from_numpy(np.ascontiguousarray(array))
    for name, (group, shape) in _map_layers(model).items():
        matrix, bias = read_array(f"{group}/W_0", *shape), read_array(f"{group}/B", shape[1])
        gates = matrix.T.reshape(4, -1, shape[0])[[0, 2, 1, 3]].reshape(-1, shape[0])  # i, f, g, o
        bias = bias.reshape(4, -1)[[0, 2, 1, 3]]
        bias[1] += 1.0
        parts = {
            "input.weight": gates[:, : model.width],
            "recurrent.weight": gates[:, model.width :],
            "input.bias": bias.reshape(-1),
            "project.weight": read_array(f"{group}/W_P_0", model.cells, model.width).T,
        }
        for part, values in parts.items():
            yield f"model.{name}.{part}", torch.from_numpy(np.ascontiguousarray(values))


def _make_tokenizer(folder: Path) -> Tokenizer:
    """Return a tokenizer that splits at spaces. Without vocab.txt the vocabulary is printable ASCII: it needs some."""
    path = _find(folder, VOCABULARY)
    words = list(string.printable.split()[0])
    if path is not None:
        try:
            words = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as problem:
            raise UserError(f"{path} is not UTF-8: byte {problem.start} is invalid. Convert the file.") from None
    names = [*TRAINED_SPECIALS, *(word for word in words if word and word not in RELEASE_SPECIALS)]
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


# --- names and shapes -------------------------------------------------------------------------------


@dataclass(frozen=True)
class MappedArray:
    """A published array, and its conversion to our tensor and back."""

    name: str
    shape: tuple[int, ...]
    to_own: Callable[[np.ndarray], np.ndarray]
    to_published: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def vector(cls, name: str, size: int) -> MappedArray:
        return cls(name, (size,), lambda array: array, lambda array: array)

    @classmethod
    def matrix(cls, name: str, inputs: int, outputs: int) -> MappedArray:
        return cls(name, (inputs, outputs), np.transpose, np.transpose)

    @classmethod
    def filter(cls, name: str, shape: tuple[int, ...]) -> MappedArray:
        return cls(name, shape, lambda array: array[0].reshape(-1, shape[-1]).T, lambda array: array.T.reshape(shape))


def _map_arrays(model: Settings) -> dict[str, MappedArray]:
    """Return all arrays but those of the LSTMs, by our names."""
    characters = model.characters
    assert characters is not None
    size, network = characters.channels, "embedding.network"
    table = MappedArray(
        "char_embed",
        (CHAR_VOCAB - 1, characters.embedding),
        lambda array: np.concatenate([np.zeros_like(array[:1]), array]),
        lambda array: array[1:],
    )
    arrays = {f"{network}.embedding.weight": table}
    for number, (width, channels) in enumerate(characters.filters):
        own, shape = f"{network}.filters.{number}", (1, width, characters.embedding, channels)
        arrays[f"{own}.weight"] = MappedArray.filter(f"CNN/W_cnn_{number}", shape)
        arrays[f"{own}.bias"] = MappedArray.vector(f"CNN/b_cnn_{number}", channels)
    for number in range(characters.highways):
        for module, published in (("gate", "carry"), ("transform", "transform")):
            own, group = f"{network}.highways.{number}.{module}", f"CNN_high_{number}"
            arrays[f"{own}.weight"] = MappedArray.matrix(f"{group}/W_{published}", size, size)
            arrays[f"{own}.bias"] = MappedArray.vector(f"{group}/b_{published}", size)
    arrays[f"{network}.project.weight"] = MappedArray.matrix("CNN_proj/W_proj", size, model.width)
    arrays[f"{network}.project.bias"] = MappedArray.vector("CNN_proj/b_proj", model.width)
    return arrays


def _map_layers(model: Settings) -> dict[str, tuple[str, tuple[int, int]]]:
    """Return our name of each LSTM -> its published group, and the shape of its matrix."""
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
    """Say why a model cannot be written in this format; empty where it can."""
    if recipe.model_kind != "recurrent":
        return f"a {recipe.model_kind} model is no ELMo"
    model = recipe.model_settings(Settings)
    if model.characters is None:
        return "ELMo reads words by their characters, and this model has a table of words (model.characters)"
    if model.characters.characters != CHAR_VOCAB:
        return f"ELMo's table has {CHAR_VOCAB} characters (model.characters.characters)"
    if model.direction != "both" or not model.shared:
        return "ELMo reads in both directions with the same words (model.direction, model.shared)"
    if model.cells == model.width:
        return "ELMo's LSTMs are projected, and here model.cells is model.width"
    return ""


def make_options(model: Settings) -> dict[str, Any]:
    """Return options.json."""
    characters = model.characters
    assert characters is not None
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
            "activation": characters.activation,
            "filters": [list(pair) for pair in characters.filters],
            "n_highway": characters.highways,
            "embedding": {"dim": characters.embedding},
            "n_characters": CHAR_VOCAB,
            "max_characters_per_token": characters.length,
        },
    }


def write_release(recipe: Recipe, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, folder: Path) -> None:
    """Write the two files and vocab.txt into an existing folder."""
    model = recipe.model_settings(Settings)
    own = {
        name.removeprefix("model."): tensor.detach().float().cpu().numpy()
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    with _open(folder / WEIGHTS, "w") as file:
        for name, mapped in _map_arrays(model).items():
            file.create_dataset(mapped.name, data=mapped.to_published(own[name]))
        for name, (group, _) in _map_layers(model).items():
            gates = np.concatenate([own[f"{name}.input.weight"], own[f"{name}.recurrent.weight"]], axis=1)
            matrix = gates.reshape(4, model.cells, -1)[[0, 2, 1, 3]].reshape(4 * model.cells, -1).T  # i, g, f, o
            bias = own[f"{name}.input.bias"].reshape(4, -1)[[0, 2, 1, 3]].copy()
            bias[FORGET] -= 1.0
            file.create_dataset(f"{group}/W_0", data=matrix)
            file.create_dataset(f"{group}/B", data=bias.reshape(-1))
            file.create_dataset(f"{group}/W_P_0", data=own[f"{name}.project.weight"].T)
    (folder / OPTIONS).write_text(json.dumps(make_options(model), indent=1) + "\n", encoding="utf-8")
    special = set(tokenizer.special.ids())
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    words = sorted((word for word, id in vocab.items() if id not in special), key=vocab.__getitem__)
    (folder / VOCABULARY).write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def _open(path: Path, mode: str) -> h5py.File:
    require("h5py", f"The ELMo file {path}")
    import h5py

    try:
        return h5py.File(path, mode)
    except OSError as error:
        raise UserError(f"{path} cannot be opened as an HDF5 file: {error}.") from None
