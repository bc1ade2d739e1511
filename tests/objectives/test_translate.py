"""Translation as an objective: shifted targets, label smoothing as torch has it, counts, cost, and bit-exact resume."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import etude
from etude.chance import Chance
from etude.errors import UserError
from etude.models import encoder_decoder, transformer
from etude.objectives.rows.pairs import PairRow
from etude.objectives.translate import Settings, Translate, build
from etude.pretraining.pretrain import resume
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials
from etude.train.loop import Loop
from etude.train.padding import pad_batch
from etude.train.static_batch import signature
from etude.world import World
from tests.objectives.small_corpus import small_corpus, tokenizer

SPECIAL = Specials(0, 1, 2, 3, 4, 5)
ROWS = [
    PairRow(0, np.array([7, 8, 5, 9, 10, 11, 5], np.int32), np.array([0, 3, 7], np.int32)),
    PairRow(1, np.array([12, 5, 13, 5, 14, 15, 16, 5, 17, 5], np.int32), np.array([0, 2, 4, 8, 10], np.int32)),
]


def learner(**settings: object) -> tuple[encoder_decoder.EncoderDecoder, Translate]:
    torch.manual_seed(0)
    shape = {"layers": 1, "width": 8, "heads": 2, "vocab": 20, "context": 10, "dropout": 0.0}
    model = encoder_decoder.build(encoder_decoder.Settings(**shape))
    return model, build(Settings(**settings), model, SPECIAL)


def test_targets_are_the_inputs_one_further() -> None:
    _, objective = learner()
    batch = objective.batch(ROWS, Chance(0, 0))
    assert batch.source.tokens.tolist() == [7, 8, 5, 12, 5, 14, 15, 16, 5]
    assert batch.source.layout.host.tolist() == [0, 3, 5, 9]
    assert batch.tokens.tolist() == [2, 9, 10, 11, 2, 13, 2, 17]
    assert batch.targets.tolist() == [9, 10, 11, 5, 13, 5, 17, 5]
    assert batch.layout.host.tolist() == [0, 4, 6, 8] and batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 0, 1]
    assert batch.counts == {"loss": 8} and batch.size == 17
    moved = batch.clone()
    assert moved.source.tokens.tolist() == batch.source.tokens.tolist() and moved.source is not batch.source


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padding_to_static_shapes_changes_no_loss_and_no_gradient(smoothing: float) -> None:
    model, objective = learner(smoothing=smoothing, tied=False, bias=True)
    batch = objective.batch(ROWS, Chance(0, 0))
    padded = pad_batch(batch)
    assert padded.layout.total % 32 == 0 and padded.source.layout.total % 32 == 0
    assert len(padded.layout.host) == len(padded.source.layout.host) and (len(padded.layout.host) - 1) % 8 == 0
    assert padded.layout.lengths.max() <= 10 and padded.source.layout.lengths.max() <= 10
    assert (padded.size, padded.lengths.tolist(), padded.source_lengths.tolist()) == (17, [4, 2, 2], [3, 2, 4])
    assert objective.flops(model, padded) == objective.flops(model, batch)
    parameters = [*model.parameters(), *objective.parameters()]
    results = []
    for each in (batch, padded):
        term = objective.loss(model, each)["loss"]
        assert term.count == 8
        results.append((term.sum, *torch.autograd.grad(term.sum, parameters)))
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
    metrics = [objective.metrics(model, each) for each in (batch, padded)]
    assert metrics[0]["accuracy"].sum == metrics[1]["accuracy"].sum


def test_batches_of_an_epoch_have_one_static_shape() -> None:
    """One compiled step and one recording serve them all; padding takes an eighth at most."""
    draw = np.random.default_rng(0)
    sides = [[draw.integers(10, 100, size).tolist() for size in draw.integers(3, 20, 2)] for _ in range(4000)]
    model = encoder_decoder.build(encoder_decoder.Settings(layers=1, width=8, heads=2, vocab=200, context=24))
    objective = build(Settings(row_tokens=512), model, SPECIAL)
    rows = objective.rows(Corpus.from_documents(sides, tokenizer(200)), seed=0)
    shapes, real, padded = Counter(), 0, 0
    for first in range(0, 3 * (len(rows) // 8) * 8, 8):
        batch = objective.batch([rows[number] for number in range(first, first + 8)], Chance(0, 0))
        static = pad_batch(batch)
        shapes[signature(static)] += 1
        real += batch.size
        padded += static.layout.total + static.source.layout.total
        assert static.size == batch.size and static.lengths.tolist() == batch.lengths.tolist()
        sizes = np.stack([static.layout.lengths, static.source.layout.lengths])
        assert sizes.max() <= 24 and ((sizes[0] == 0) | (sizes[1] > 0)).all()  # a target has a source to attend to
    assert shapes.most_common()[0][1] >= 0.97 * sum(shapes.values()) and len(shapes) <= 3
    assert padded < 1.15 * real


def test_a_batch_beyond_the_static_shape_takes_a_larger_one() -> None:
    model, objective = learner()
    batch = replace(objective.batch(ROWS, Chance(0, 0)), room=(8, 8, 2))
    static = pad_batch(batch)
    assert static.layout.total == 32 and static.source.layout.total == 32 and len(static.layout.bounds) == 9
    losses = [objective.loss(model, each)["loss"].sum for each in (batch, static)]
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("tied", [True, False])
def test_smoothed_loss_and_gradients_equal_torch(smoothing: float, tied: bool) -> None:
    model, objective = learner(smoothing=smoothing, tied=tied, bias=not tied)
    if objective.bias is not None:
        torch.nn.init.normal_(objective.bias)
    batch = objective.batch(ROWS, Chance(0, 0))
    term = objective.loss(model, batch)["loss"]
    logits = objective.decoder_logits(model, model(batch, source=batch.source).last)
    expected = F.cross_entropy(logits, batch.targets, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(term.sum, expected, atol=1e-4, rtol=1e-5)
    assert term.count == 8
    named = {**dict(model.named_parameters()), **dict(objective.named_parameters())}
    ours, theirs = (torch.autograd.grad(total, list(named.values())) for total in (term.sum, expected))
    for name, left, right in zip(named, ours, theirs, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4, msg=name)


def test_held_out_loss_is_the_likelihood() -> None:
    model, objective = learner(smoothing=0.3)
    batch = objective.batch(ROWS, Chance(0, 0))
    logits = objective.decoder_logits(model, model(batch, source=batch.source).last)
    stats = objective.metrics(model, batch)
    torch.testing.assert_close(stats["loss"].sum, F.cross_entropy(logits, batch.targets, reduction="sum"))
    assert stats["accuracy"].mean == float((logits.argmax(-1) == batch.targets).float().mean())


def test_a_batch_is_the_sum_of_its_rows() -> None:
    model, objective = learner()
    both = objective.loss(model, objective.batch(ROWS, Chance(0, 0)))["loss"]
    apart = [objective.loss(model, objective.batch([row], Chance(0, 0)))["loss"] for row in ROWS]
    torch.testing.assert_close(both.sum, apart[0].sum + apart[1].sum)
    assert both.count == apart[0].count + apart[1].count


def test_flops_are_three_times_those_that_torch_counts() -> None:
    model, objective = learner(smoothing=0.0)
    model.path = "reference"
    batch = objective.batch(ROWS, Chance(0, 0))
    with FlopCounterMode(display=False) as counter:
        objective.decoder_logits(model, model(batch, source=batch.source).last)
    assert objective.flops(model, batch) == 3 * counter.get_total_flops()


def test_other_models_and_tokenizers_are_refused() -> None:
    model = transformer.build(transformer.Settings(layers=1, width=8, heads=2, vocab=20, context=10))
    with pytest.raises(UserError, match="trains an encoder-decoder, not transformer"):
        build(Settings(), model, SPECIAL)
    with pytest.raises(UserError, match="needs an end token"):
        build(Settings(), learner()[0], Specials())
    _, objective = learner()
    assert build(Settings(), learner()[0], Specials(end=5)).start_token == 5
    assert objective.frame(np.array([7, 8, 9]), 3).tolist() == [7, 8, 5]


def test_pairs_that_are_left_out_are_told() -> None:
    _, objective = learner(length=4)
    corpus = small_corpus([[[6, 7], [8]], [[6, 7, 8, 9], [8]], [[6], [7]], [[8], [9, 9, 9]]])
    assert objective.find_problems(corpus) == [
        "1 pairs (25.0%) have a side of more than 4 tokens and are left out: raise objective.length (and "
        "model.context), or split them."
    ]
    assert learner(length=5)[1].find_problems(corpus) == []


def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    """In the middle of an epoch, with dropout."""
    World(0).write_pairs(tmp_path / "pairs.tsv", 300)
    etude.prepare(tmp_path / "pairs.tsv", out=tmp_path / "c", tokenizer="bpe:400", pairs="en,ko", valid=0.1)
    shape = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.dropout": 0.1, "model.feedforward": 32}
    train = {"train.batch_tokens": 512, "train.save_every": 4, "train.eval_every": 0, "train.warmup": 3}
    whole = etude.pretrain(
        "transformer-toy", tmp_path / "c", out=tmp_path / "a", settings=shape | train | {"train.steps": 9}, quiet=True
    )
    part = etude.pretrain(
        "transformer-toy", tmp_path / "c", out=tmp_path / "b", settings=shape | train | {"train.steps": 9}, quiet=True
    )
    for folder in (part.folder / "checkpoints").iterdir():
        if not folder.name.endswith("4"):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
    (part.folder / "model.safetensors").unlink()
    resumed = resume(part.folder, quiet=True)
    left, right = ((run.folder / "model.safetensors").read_bytes() for run in (whole, resumed))
    assert left == right


# --- on a GPU ---------------------------------------------------------------------------------------


class UnrecordedLoop(Loop):
    records_steps = False


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["transformer-toy", "rnn-search-toy", "luong-toy"])
def test_recorded_steps_of_static_shapes_learn_what_packed_pairs_do(tmp_path: Path, name: str) -> None:
    draw = np.random.default_rng(0)
    sides = [[draw.integers(10, 100, size).tolist() for size in draw.integers(3, 20, 2)] for _ in range(600)]
    corpus = Corpus.from_documents(sides, tokenizer(200))
    losses = {}
    # in float32, attention groups sequences by their lengths, on the host
    precision, tolerance = ("bf16", 1e-2) if name == "transformer-toy" else ("float32", 2e-3)
    for kind, compiled in ((UnrecordedLoop, False), (Loop, None)):
        changes = {"train.precision": precision, "train.batch_tokens": 1024, "objective.row_tokens": 1024}
        changes |= {"model.dropout": 0.0, "train.compile": compiled, "train.lr": 1e-3, "train.workers": 0}
        changes |= {"objective.length": 24, "train.log_every": 1}
        recipe = Recipe.load(name, changes).resolve(vocab=200)
        torch.manual_seed(0)
        model, objective = build_learner(recipe, corpus.tokenizer)
        folder = tmp_path / kind.__name__
        folder.mkdir()
        loop = kind(
            folder, model, objective, objective.rows(corpus, 0), recipe.train, total=10**6, device=torch.device("cuda")
        )
        for step in loop.loader.steps(0, 80):
            loop.advance(step)
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        losses[kind] = [line["loss"] for line in lines]
    assert loop.recorder is not None and not loop.recorder.has_obstacle(), loop.recorder and loop.recorder.obstacle
    assert sum(recording.is_recorded for recording in loop.recorder.recordings.values()) >= 1
    assert len(losses[Loop]) == 80 and losses[Loop] == pytest.approx(losses[UnrecordedLoop], rel=tolerance)
