"""Looking at heads: weights are the softmax, habits are what they say, and the page holds all of it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.inference.model import LoadedModel
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.view import attention_page
from etude.view.attention import Attention, compute_attention, describe_head, dominant_habit, format_habits
from etude.view.attention_page import render_page

TEXT = "the cat sat on the mat"


def model(recipe: str = "bert-toy", spelling: str = "wordpiece:80", **changes: Any) -> LoadedModel:
    tokenizer = Tokenizer.train(spelling, [TEXT, "고양이가 매트 위에 앉았다", "a dog ran"] * 5)
    torch.manual_seed(0)
    return LoadedModel(
        *build_learner(Recipe.load(recipe, changes).resolve(vocab=tokenizer.vocab), tokenizer), tokenizer
    )


def test_weights_are_the_softmax_of_each_layer() -> None:
    opened = model()
    result = compute_attention(opened, TEXT)
    assert result.tokens[0] == "[CLS]" and result.tokens[-1] == "[SEP]"
    assert "".join(result.tokens[1:-1]) == TEXT.replace(" ", "")
    assert result.markers.tolist() == [True, *[False] * (len(result.tokens) - 2), True]
    settings, count = opened.model.settings, len(result.tokens)
    assert result.weights.shape == (settings.layers, settings.heads, count, count)
    np.testing.assert_allclose(result.weights.sum(-1), 1, atol=1e-5)
    ids = opened.frame(opened.tokenizer.encode(TEXT).ids)
    states = opened.states([ids])[0]  # (layers + 1, L, D)
    for layer, branch in enumerate(opened.model.attention):
        with torch.no_grad():
            query, key, _ = (
                branch.qkv(torch.from_numpy(states[layer])).view(count, 3, branch.heads, -1).permute(1, 2, 0, 3)
            )
            wanted = (query @ key.transpose(1, 2) / query.shape[-1] ** 0.5).softmax(-1)
        np.testing.assert_allclose(result.weights[layer], wanted.numpy(), atol=1e-5)


def test_a_causal_model_never_looks_ahead() -> None:
    result = compute_attention(model("gpt2-toy", "bpe:300"), TEXT)
    assert np.triu(result.weights, 1).max() == 0
    assert not result.markers.all()


def test_a_pair_is_read_as_tasks_read_it() -> None:
    opened = model()
    result = compute_attention(opened, "the cat", "a dog")
    assert [token for token, marker in zip(result.tokens, result.markers, strict=True) if marker] == [
        "[CLS]",
        "[SEP]",
        "[SEP]",
    ]
    assert (
        "".join(token for token, marker in zip(result.tokens, result.markers, strict=True) if not marker)
        == "thecatadog"
    )
    alone = compute_attention(opened, "the cat")
    assert not np.allclose(result.weights[:, :, :2, :2].sum(), alone.weights[:, :, :2, :2].sum())


def test_korean_and_what_is_too_long() -> None:
    result = compute_attention(model(), "고양이가 앉았다")
    assert "".join(result.tokens[1:-1]) == "고양이가앉았다" and not result.cut
    for second in (None, "a dog ran " * 9):
        long = compute_attention(model(), "the cat sat " * 30, second)
        assert long.cut and len(long.tokens) == 32


def known() -> Attention:
    """One layer of three heads over four tokens: itself, the one before, all alike."""
    eye, before = np.eye(4), np.eye(4, k=-1)
    before[0, 0] = 1
    weights = np.stack([eye, before, np.full((4, 4), 0.25)])[None].astype(np.float32)
    return Attention(["[CLS]", "a", "b", "[SEP]"], np.array([True, False, False, True]), weights, False)


def test_habits() -> None:
    habits = known().habits()
    np.testing.assert_allclose(habits["entropy"][0], [0, 0, np.log(4)], atol=1e-6)
    np.testing.assert_allclose(habits["distance"][0], [0, 0.75, 1.25])
    np.testing.assert_allclose(habits["markers"][0], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(habits["itself"][0], [1, 0.25, 0.25])
    np.testing.assert_allclose(habits["before"][0], [0, 0.75, 3 / 16])
    np.testing.assert_allclose(habits["after"][0], [0, 0, 3 / 16])
    assert [dominant_habit(habits, 0, head) for head in range(3)] == ["itself", "before", None]
    assert known().top_keys(0, 1, top=1) == [[("[CLS]", 1.0)], [("[CLS]", 1.0)], [("a", 1.0)], [("b", 1.0)]]


def test_in_words() -> None:
    lines = format_habits(known()).splitlines()
    assert len(lines) == 4 and lines[1].endswith("itself") and lines[2].endswith("before")
    assert describe_head(known(), 0, 1, 1).splitlines()[2].split() == ["b", "a", "100%"]
    for layer, head in ((1, 0), (0, 3), (-1, 0)):
        with pytest.raises(UserError, match="this model has"):
            describe_head(known(), layer, head, 1)


def test_the_page_holds_the_weights_and_fetches_nothing() -> None:
    text = render_page(known(), 'a <script> & "b" {{data}}', "my-bert")
    assert "<h1>a &lt;script&gt; &amp; &quot;b&quot; {{data}}</h1>" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    weights = np.frombuffer(base64.b64decode(data["weights"]), np.uint8).reshape(1, 3, 4, 4) / 255
    np.testing.assert_allclose(weights, known().weights, atol=1 / 255)
    assert data["tokens"] == known().tokens and data["start"] == [0, 0]
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert text.count('lang="ko"') >= 2


def test_one_layer_where_all_would_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    result = compute_attention(model(), TEXT)
    data = json.loads(re.search(r'id="data">(.*?)</script>', render_page(result, TEXT, "x", layer=1), re.S)[1])  # type: ignore[index]
    assert (data["layers"], data["first"], len(data["habits"]["entropy"])) == (1, 1, 1)
    monkeypatch.setattr(attention_page, "LARGEST", result.weights[0].size)
    assert render_page(result, TEXT, "x", layer=0)
    with pytest.raises(UserError, match="or one layer with --layer"):
        render_page(result, TEXT, "x")


def test_the_command_line(tmp_path: Path) -> None:
    opened = model()
    recipe = Recipe.load("bert-toy").resolve(vocab=opened.tokenizer.vocab)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    opened.tokenizer.save(folder)
    save_final(Run(folder), opened.model, opened.objective, model_card="random weights")

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["show", "attention", str(folder), TEXT, *words])

    assert "mostly" in call().output
    assert len(call("--layer", "0", "--head", "1").output.splitlines()) == len(compute_attention(opened, TEXT).tokens)
    assert set(json.loads(call("--json").output)) >= {"tokens", "weights", "entropy"}
    everything, second = json.loads(call("--json").stdout), json.loads(call("--json", "--layer", "1").stdout)
    assert second["weights"] == everything["weights"][1:] and second["entropy"] == everything["entropy"][1:]
    assert call("-o", str(tmp_path / "maps.html")).exit_code == 0
    assert TEXT in (tmp_path / "maps.html").read_text(encoding="utf-8")
    for words, message in (
        (("--head", "1"), "say which with --layer"),
        (("-o", str(tmp_path / "maps.png")), "ends with .html"),
        (("--layer", "9"), "this model has 2"),
        (("--layer", "9", "--json"), "this model has 2"),
        (("--layer", "0", "--head", "1", "--json"), "leave out --head"),
        (("--layer", "0", "--head", "1", "-o", str(tmp_path / "maps.html")), "leave out --head"),
        (("--json", "-o", str(tmp_path / "maps.html")), "leave out one of them"),
    ):
        done = call(*words)
        assert done.exit_code != 0 and message in str(done.exception)


def test_a_model_without_heads_is_refused() -> None:
    with pytest.raises(UserError, match="no attention heads"):
        compute_attention(model("skipgram-toy", "word:30"), TEXT)
    with pytest.raises(UserError, match="leaves nothing"):
        compute_attention(model(), "  ")


def test_korean_tokens_stand_under_one_another() -> None:
    weights = np.full((1, 1, 3, 3), 1 / 3, np.float32)
    attention = Attention(["[CLS]", "고양이", "sat"], np.array([True, False, False]), weights, cut=False)
    lines = describe_head(attention, 0, 0, top=1).splitlines()
    assert [cell_len(line.removesuffix("  [CLS] 33%")) for line in lines] == [6, 6, 6]
