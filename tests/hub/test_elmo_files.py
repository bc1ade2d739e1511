"""ELMo's released files against a plain computation in numpy, and back again without loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import etude
from etude.errors import UserError
from etude.hub import read_checkpoint
from etude.hub.bilm_pair import join_language_models
from etude.hub.importer import import_folder
from etude.hub.run_weights import save_final
from etude.nn.packed import pack
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from tests.tiny_models import tokenizer

SENTENCES = [
    ["The", "cat", "sat", "."],
    ["고양이가", "naïve", "x" * 70, "!", "3.14"],
    ["Paris"],
    ["a", "homonym", "moves", "with", "what", "stands", "around", "it", "here"],
]
SMALL = {
    "lstm": {"use_skip_connections": True, "projection_dim": 6, "cell_clip": 3, "proj_clip": 3, "dim": 10,
             "n_layers": 2},
    "char_cnn": {"activation": "relu", "filters": [[1, 4], [2, 4], [3, 8]], "n_highway": 2, "embedding": {"dim": 4},
                 "n_characters": 262, "max_characters_per_token": 50},
}  # fmt: skip
PUBLISHED = {  # elmo_2x4096_512_2048cnn_2xhighway
    "lstm": {"use_skip_connections": True, "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096,
             "n_layers": 2},
    "char_cnn": {"activation": "relu",
                 "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]], "n_highway": 2,
                 "embedding": {"dim": 16}, "n_characters": 262, "max_characters_per_token": 50},
}  # fmt: skip


def release(folder: Path, options: dict[str, Any], projection: float = 12.0, seed: int = 0) -> Path:
    """Random weights under the published names; large enough that cells and projections are clipped."""
    folder.mkdir()
    (folder / "options.json").write_text(json.dumps(options))
    lstm, cnn = options["lstm"], options["char_cnn"]
    width, cells, size = lstm["projection_dim"], lstm["dim"], sum(n for _, n in cnn["filters"])
    draw = np.random.default_rng(seed)

    with h5py.File(folder / "weights.hdf5", "w") as file:

        def put(name: str, *shape: int, spread: float = 1.0) -> None:
            values = (draw.random(shape, dtype=np.float32) - np.float32(0.5)) * np.float32(spread)
            file.create_dataset(name, data=values)

        put("char_embed", 261, cnn["embedding"]["dim"], spread=2.0)
        for number, (filter_width, channels) in enumerate(cnn["filters"]):
            put(f"CNN/W_cnn_{number}", 1, filter_width, cnn["embedding"]["dim"], channels, spread=0.3)
            put(f"CNN/b_cnn_{number}", channels)
        for number in range(cnn["n_highway"]):
            for gate in ("carry", "transform"):
                put(f"CNN_high_{number}/W_{gate}", size, size, spread=3 * size**-0.5)
                put(f"CNN_high_{number}/b_{gate}", size)
        put("CNN_proj/W_proj", size, width, spread=3 * size**-0.5)
        put("CNN_proj/b_proj", width)
        for direction in range(2):
            for layer in range(lstm["n_layers"]):
                group = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                put(f"{group}/W_0", 2 * width, 4 * cells, spread=2.5 * (2 * width) ** -0.5)
                put(f"{group}/B", 4 * cells, spread=8.0)
                put(f"{group}/W_P_0", cells, width, spread=projection * cells**-0.5)
    return folder


# --- the plain computation: one word, one step at a time, from the released code's equations ---------


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def spelled(word: str | None, start: bool = False) -> list[int]:
    """Numbers as in training, before the 1 that use adds: bytes, <S> 256, </S> 257, word 258 ... 259, filling 260."""
    letters = [256 if start else 257] if word is None else list(word.encode())[:48]
    return [258, *letters, 259, *[260] * (48 - len(letters))]


def plain_word(file: dict[str, np.ndarray], options: dict[str, Any], characters: list[int]) -> np.ndarray:
    table = file["char_embed"][characters]  # (50, E)
    found = []
    for number, (width, channels) in enumerate(options["char_cnn"]["filters"]):
        kernel, bias = file[f"CNN/W_cnn_{number}"][0], file[f"CNN/b_cnn_{number}"]  # (w, E, n)
        places = [np.tensordot(table[at : at + width], kernel, axes=2) + bias for at in range(50 - width + 1)]
        found.append(np.maximum(np.stack(places).max(0), 0))
        assert found[-1].shape == (channels,)
    x = np.concatenate(found)
    for number in range(options["char_cnn"]["n_highway"]):
        high = {
            name: file[f"CNN_high_{number}/{name}"] for name in ("W_carry", "b_carry", "W_transform", "b_transform")
        }
        carry = sigmoid(x @ high["W_carry"] + high["b_carry"])
        x = carry * np.maximum(x @ high["W_transform"] + high["b_transform"], 0) + (1 - carry) * x
    return x @ file["CNN_proj/W_proj"] + file["CNN_proj/b_proj"]


def plain_direction(file: dict[str, np.ndarray], lstm: dict[str, Any], words: list[np.ndarray], direction: int) -> list:
    """States of each layer, in the order read; also how much was clipped."""
    layers, clipped = [words], [0, 0, 0]
    for layer in range(lstm["n_layers"]):
        group = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        kernel, bias, narrow = (file[f"{group}/{name}"] for name in ("W_0", "B", "W_P_0"))
        hidden, cell, outputs = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"]), []
        for x in layers[-1]:
            enter, new, forget, leave = np.split(np.concatenate([x, hidden]) @ kernel + bias, 4)
            cell = sigmoid(forget + 1.0) * cell + sigmoid(enter) * np.tanh(new)
            clipped[0] += int((np.abs(cell) > 3).sum())
            cell = np.clip(cell, -3, 3)
            hidden = (sigmoid(leave) * np.tanh(cell)) @ narrow
            clipped[1] += int((np.abs(hidden) > 3).sum())
            hidden = np.clip(hidden, -3, 3)
            outputs.append(hidden + x if layer else hidden)  # the residual is between the layers only
            clipped[2] += 1
        layers.append(outputs)
    return [layers, clipped]


def plain(folder: Path, options: dict[str, Any], sentence: list[str]) -> tuple[np.ndarray, list[int]]:
    """(layers + 1, words, 2 width) without the marks around the sentence."""
    with h5py.File(folder / "weights.hdf5") as handle:
        names: list[str] = []
        handle.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        file = {name: handle[name][...].astype(np.float64) for name in names}
    rows = [spelled(None, start=True), *map(spelled, sentence), spelled(None)]
    words = [plain_word(file, options, row) for row in rows]
    ahead, clipped = plain_direction(file, options["lstm"], words, 0)
    back, more = plain_direction(file, options["lstm"], words[::-1], 1)
    both = [np.concatenate([np.stack(a), np.stack(b[::-1])], axis=1)[1:-1] for a, b in zip(ahead, back, strict=True)]
    return np.stack(both), [one + other for one, other in zip(clipped, more, strict=True)]


# --- tests ------------------------------------------------------------------------------------------


def test_states_equal_a_plain_computation(tmp_path: Path) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    model = etude.load(folder)
    together = model.states(SENTENCES)
    clips = np.zeros(3)
    for sentence, found in zip(SENTENCES, together, strict=True):
        wanted, clipped = plain(folder, SMALL, sentence)
        clips += clipped
        assert found.shape == wanted.shape == (3, len(sentence), 12)
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)
        np.testing.assert_allclose(model.states([sentence])[0], wanted, atol=1e-5, rtol=0)
    assert clips[0] > 0 and clips[1] > 0, "the test must reach the clips"
    np.testing.assert_allclose(model.states([SENTENCES[0]], layers="last")[0], together[0][-1], atol=1e-6)


@pytest.mark.slow
def test_the_published_shape(tmp_path: Path) -> None:
    folder = release(tmp_path / "elmo", PUBLISHED, projection=9.0)
    model = etude.load(folder)
    assert sum(one.numel() for one in model.model.parameters()) == 93_600_864
    clips = np.zeros(3)
    for sentence, found in zip(SENTENCES, model.states(SENTENCES), strict=True):
        wanted, clipped = plain(folder, PUBLISHED, sentence)
        clips += clipped
        assert found.shape == (3, len(sentence), 1024)
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)
    assert clips[0] > 0 and clips[1] > 0
    # in double precision nothing is left of the difference: what there is above is rounding
    special = model.tokenizer.special
    ids = np.concatenate([[special.start], model.tokenizer.encode_words(SENTENCES[-1]), [special.end]])
    with torch.no_grad():
        exact = torch.stack(model.model.double()(pack([ids]), layers=True).layers)[:, 1:-1].numpy()
    np.testing.assert_allclose(exact, wanted, atol=1e-11, rtol=0)


def test_import_use_and_export_lose_nothing(tmp_path: Path) -> None:
    source = release(tmp_path / "elmo", SMALL)
    run = import_folder(source, tmp_path / "run")
    model, again = etude.load(source), etude.load(run.folder)
    for one, other in zip(model.states(SENTENCES), again.states(SENTENCES), strict=True):
        assert np.array_equal(one, other)
    told = CliRunner().invoke(_app(), ["export", str(run.folder), "-o", str(tmp_path / "out")])
    assert told.exit_code == 0 and "options.json" in told.output and "etude.load" in told.output
    assert json.loads((tmp_path / "out" / "options.json").read_text()) == SMALL
    with h5py.File(source / "weights.hdf5") as old, h5py.File(tmp_path / "out" / "weights.hdf5") as new:
        names: list[str] = []
        old.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
        assert len(names) == 1 + 2 * 3 + 4 * 2 + 2 + 3 * 4
        for name in names:
            if name.endswith("/B"):  # 1 was added to one gate and taken away again: right to the last place but one
                np.testing.assert_allclose(old[name][...], new[name][...], atol=2e-7)
            else:
                assert np.array_equal(old[name][...], new[name][...]), name


def _app() -> Any:
    from etude.cli.main import app

    return app


def test_it_has_no_logits_and_says_so(tmp_path: Path) -> None:
    model = etude.load(release(tmp_path / "elmo", SMALL))
    with pytest.raises(UserError, match="without a trained language-model head"):
        model.logits([[7, 8]])


def test_a_vocabulary_beside_the_weights_is_taken(tmp_path: Path) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    (folder / "vocab.txt").write_text("</S>\n<S>\n<UNK>\nthe\ncat\n", encoding="utf-8")
    imported = read_checkpoint(folder)
    assert imported.tokenizer.vocab == 8 and imported.tokenizer.id("cat") == 7
    assert imported.recipe.model.vocab == 8 and "objective.output.weight" in imported.untrained


def test_texts_are_cut_at_spaces(tmp_path: Path) -> None:
    model = etude.load(release(tmp_path / "elmo", SMALL))
    wanted = model.states([["Don't", "stop."]])[0]
    vectors = model.encode(["Don't stop."], layer=1)
    assert vectors.shape == (1, 12)
    ids = model.tokenizer.encode("Don't stop.").ids
    framed = model.states([model.frame(ids)])[0]
    np.testing.assert_allclose(framed[:, 1:-1], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o: o["lstm"].pop("dim"), "lacks 'dim'"),
        (lambda o: o["char_cnn"].update(n_characters=60), "n_characters is 60"),
        (lambda o: o["lstm"].update(dim=11), r"W_0' has the shape \(12, 40\)"),
        (lambda o: o["lstm"].update(n_layers=3), "has no 'RNN_0/RNN/MultiRNNCell/Cell2"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path: Path, change: Any, message: str) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    options = json.loads(json.dumps(SMALL))
    change(options)
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(UserError, match=message):
        etude.load(folder)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    (folder / "weights.hdf5").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be opened as an HDF5 file"):
        etude.load(folder)


# --- two language models as one ---------------------------------------------------------------------


def single(folder: Path, direction: str, seed: int, **changes: Any) -> Path:
    """A finished run of one direction, with random weights."""
    words = tokenizer("word:60")
    overrides = {"model.direction": direction, "model.width": 6, "model.cells": 9, "train.seed": seed, **changes}
    recipe = Recipe.load("taglm-toy", overrides).resolve(vocab=words.vocab)
    folder.mkdir()
    words.save(folder)
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    run = Run.open(folder)
    save_final(run, *build_learner(recipe, words), model_card="random weights")
    return folder


@pytest.mark.parametrize("letters", [False, True])
def test_two_language_models_side_by_side(tmp_path: Path, letters: bool) -> None:
    """TagLM's pair: states and scores of the joined run are those of the two, bit for bit."""
    cnn = {"filters": [[1, 4], [3, 4]], "embedding": 4, "highways": 0}
    changes = {"model.characters": cnn, "objective.tied": False} if letters else {}
    forward = single(tmp_path / "f", "forward", 1, **changes)
    backward = single(tmp_path / "b", "backward", 2, **changes)
    both = etude.load(join_language_models(forward, backward, tmp_path / "both").folder)
    sentences = [["the", "cat", "ran"], ["zebra"]]
    parts = [etude.load(run).states(sentences) for run in (forward, backward)]
    for found, ahead, back in zip(both.states(sentences), *parts, strict=True):
        assert np.array_equal(found, np.concatenate([ahead, back], axis=-1))
    assert np.array_equal(both.logits([[7, 8]])[0], etude.load(forward).logits([[7, 8]])[0])
    with pytest.raises(UserError, match="no forward language model"):
        join_language_models(backward, forward, tmp_path / "x")
    other = single(tmp_path / "o", "backward", 3, **changes, **{"model.layers": 1})
    with pytest.raises(UserError, match=r"differ in model\.layers"):
        join_language_models(forward, other, tmp_path / "x")


def test_damaged_files_are_one_message(tmp_path: Path) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    whole, draw = (folder / "weights.hdf5").read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for place in draw.integers(0, 4000, 20).tolist():
            content[place] ^= 1 << int(draw.integers(8))
        (folder / "weights.hdf5").write_bytes(content)
        try:
            read_checkpoint(folder)
        except UserError:
            refused += 1
    assert refused > 30
    (folder / "weights.hdf5").write_bytes(whole)
    (folder / "vocab.txt").write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match=r"vocab\.txt is not UTF-8: byte 2 is invalid"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [("char_cnn", "n_highway", 10**30, "n_highway is 1000"), ("char_cnn", "embedding", 7, "does not describe an ELMo"),
     ("lstm", "projection_dim", 10, "projection_dim is dim"), ("char_cnn", "filters", 3, "does not describe an ELMo")],
)  # fmt: skip
def test_options_of_another_kind_are_one_message(
    tmp_path: Path, part: str, key: str, value: object, message: str
) -> None:
    folder = release(tmp_path / "elmo", SMALL)
    options = json.loads((folder / "options.json").read_text())
    options[part][key] = value
    (folder / "options.json").write_text(json.dumps(options))
    with pytest.raises(UserError, match=message):
        read_checkpoint(folder)
