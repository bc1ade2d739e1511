"""A two-tower run in use: from text through every verb, and what its head says of a blank."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.cli.main import main
from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.inference.perplexity import pseudo_perplexity
from etude.models import two_tower
from etude.objectives import cloze
from tests.tiny_models import tokenizer

SMALL = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32", "train.batch_tokens=512"]


def etude(*words: str) -> None:
    sys.argv = ["etude", *words]
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code


def towers(**changes: object) -> LoadedModel:
    words = tokenizer("wordpiece:200")
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 32, "heads": 4, "vocab": words.vocab, "context": 32} | changes
    model = two_tower.build(two_tower.Settings.model_validate(sizes))
    predict = "bilm" if model.combiner is None else "cloze"
    return LoadedModel(model, cloze.build(cloze.Settings(predict=predict), model, words.special), words)  # type: ignore[arg-type]


def test_from_text_to_a_scored_task(
    tmp_path: Path,
    world_text: Path,
    short_trials: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    etude("prepare", str(world_text), "-o", "corpus", "--tokenizer", "wordpiece:300", "--valid", "0.05")
    etude("check", "two-tower-toy", "corpus", *SMALL, "train.steps=3")
    assert "loss to beat" in capsys.readouterr().out
    etude("pretrain", "two-tower-toy", "corpus", "-o", "run", *SMALL, "train.steps=3")
    card = Path("run/README.md").read_text(encoding="utf-8")
    assert "Cloze two-tower" in card and "| text |" in card and "| accuracy |" in card
    lines = [json.dumps({"text": f"a {word} town", "label": word}) for word in ("good", "bad") for _ in range(6)]
    Path("labelled.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    etude("finetune", "run", "classify", "--train", "labelled.jsonl", "-o", "tuned", "train.epochs=1")
    capsys.readouterr()
    etude("evaluate", "tuned", "labelled.jsonl")
    assert "accuracy" in capsys.readouterr().out
    etude("features", "run", "labelled.jsonl", "-o", "states.npz", "--layers", "all")
    with np.load("states.npz") as result:
        assert result["vectors"].shape == (12, 3, 64)
    etude("fill", "run", "A [MASK] town.")


def test_states_and_logits_of_ids() -> None:
    model = towers()
    ids = [[5, 9, 10, 5], [5, 11, 5]]
    states = model.states(ids)
    assert [item.shape for item in states] == [(4, 4, 64), (4, 3, 64)]  # embedding, two layers, combiner
    assert [item.shape for item in model.states(ids, layers="last")] == [(4, 32), (3, 32)]
    logits = model.logits(ids)
    assert [item.shape for item in logits] == [(4, model.model.vocab), (3, model.model.vocab)]
    changed = model.logits([[5, 9, 12, 5]])[0]
    np.testing.assert_allclose(changed[2], logits[0][2], atol=1e-6)  # the token itself says nothing
    assert np.abs(changed[1] - logits[0][1]).max() > 1e-4


def test_a_blank_is_filled_whatever_stands_in_it() -> None:
    model = towers()
    guesses = model.fill("the [MASK] sat on the mat", top=3)
    assert len(guesses) == 3 and guesses[0].probability >= guesses[1].probability  # type: ignore[union-attr]


def test_the_pseudo_perplexity_needs_no_mask() -> None:
    """Masking one token at a time gives what one pass gives at once: an output does not see its own token."""
    model = towers()
    text = "the cat sat on the mat. the dog ran to the door."
    ids = model.tokenizer.encode(text).ids
    framed = model.frame(ids)
    scores = torch.from_numpy(model.logits([framed])[0])[1:-1]
    nats = torch.nn.functional.cross_entropy(scores, torch.from_numpy(ids).long(), reduction="sum")
    result = pseudo_perplexity(model, text)
    assert result.tokens == len(ids) and math.isclose(result.nats, float(nats), rel_tol=1e-4)


def test_vectors_are_those_of_both_towers() -> None:
    """A layer is both towers side by side, wider than what combines them."""
    model = towers()
    texts = ["the cat sat", "ran"]
    vectors = model.encode(texts)
    assert vectors.shape == (2, 64)
    for text, vector in zip(texts, vectors, strict=True):
        states = model.states([model.frame(model.tokenizer.encode(text).ids)])[0][-1]  # type: ignore[list-item]
        np.testing.assert_allclose(vector, states.mean(0), rtol=1e-5, atol=1e-5)
    assert model.encode(texts, layer=0).shape[0] == 2


def test_a_bilm_speaks_of_what_follows() -> None:
    model = towers(combiner="none")
    assert model.states([[5, 9, 5]])[0].shape == (3, 3, 64)
    first, second = model.logits([[5, 9, 10], [5, 9, 11]])
    np.testing.assert_allclose(first[:2], second[:2], atol=1e-6)
    assert np.abs(first[2] - second[2]).max() > 1e-4
    with pytest.raises(UserError, match="what follows"):
        model.fill("the [MASK] sat")
