"""Alignments: the weights from target to source, drawn on the page of attention."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import etude
from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.inference.translation import require_translator
from etude.nn.packed import pack
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.view.alignment import compute_alignment, compute_maps
from etude.view.attention import describe_head, format_habits
from etude.view.attention_page import render_page

SOURCE, TARGET = "the cat sat on the mat", "고양이가 매트 위에 앉았다"


def model(recipe: str) -> LoadedModel:
    tokenizer = Tokenizer.train("wordpiece:120", [SOURCE, TARGET, "a dog ran"] * 5)
    torch.manual_seed(0)
    return LoadedModel(*build_learner(Recipe.load(recipe).resolve(vocab=tokenizer.vocab), tokenizer), tokenizer)


@pytest.mark.parametrize(("recipe", "layers", "heads"), [("transformer-toy", 2, 4), ("rnn-search-toy", 1, 1)])
def test_rows_are_predicted_tokens_and_columns_those_of_the_source(recipe: str, layers: int, heads: int) -> None:
    opened = model(recipe)
    maps = compute_alignment(opened, SOURCE, TARGET)
    translator, objective = require_translator(opened)
    source, target = (opened.tokenizer.encode(text).ids.tolist() for text in (SOURCE, TARGET))
    assert maps.weights.shape == (layers, heads, len(target) + 1, len(source) + 1)
    assert "".join(maps.tokens[:-1]) == TARGET.replace(" ", "") and maps.tokens[-1] == maps.columns[-1] == "[EOT]"
    np.testing.assert_allclose(maps.weights.sum(-1), 1.0, atol=1e-5)
    packed = pack([[objective.start_token, *target]]), pack([[*source, objective.end]])
    expected = translator.alignments(*packed)[-1][0].detach().numpy()
    np.testing.assert_allclose(maps.weights[-1], expected, atol=1e-6)
    assert compute_maps(opened, SOURCE, TARGET).tokens == maps.tokens


def test_habits_and_page_of_an_alignment() -> None:
    maps = compute_alignment(model("transformer-toy"), SOURCE, TARGET)
    assert set(maps.habits()) == {"entropy", "markers"}
    assert "distance" not in format_habits(maps) and "entropy" in format_habits(maps)
    assert len(describe_head(maps, 0, 1, 2).split("\n")) == len(maps.tokens)
    page = render_page(maps, SOURCE, "toy")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data = json.loads(found[1])
    assert data["keys"] == maps.columns and data["tokens"] == maps.tokens and data["key_markers"][-1]
    assert len(base64.b64decode(data["weights"])) == maps.weights.size


def test_a_plain_text_shows_the_encoder_and_one_context_shows_nothing(tmp_path: Path) -> None:
    assert compute_maps(model("transformer-toy"), SOURCE).keys is None
    with pytest.raises(UserError, match="one context vector"):
        compute_maps(model("seq2seq-rnn-toy"), SOURCE, TARGET)
    with pytest.raises(UserError, match="no attention heads"):
        compute_maps(model("rnn-search-toy"), SOURCE)
    etude.show.attention(model("luong-toy"), SOURCE, second=TARGET, out=tmp_path / "map.html")
    assert TARGET in (tmp_path / "map.html").read_text(encoding="utf-8")
