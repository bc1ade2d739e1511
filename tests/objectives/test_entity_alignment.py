"""Denoising entity alignment: right targets, right shares, static shapes, and it learns; beside BERT's two terms."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from etude.chance import Chance
from etude.errors import UserError
from etude.models import ernie, transformer
from etude.objectives import entity_alignment, masked
from etude.objectives.base import IGNORE, rows_of
from etude.objectives.entity_alignment import EntityAlignment, EntityBatch
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.entities import mention_entities
from tests.half_precision import may_lack_bf16
from tests.objectives.small_corpus import SPECIAL, tokenizer

VOCAB, ENTITIES, GRAPH = 200, 30, "f" * 64


def make_model(seed: int = 0, vectors: np.ndarray | None = None, **changes: Any) -> ernie.Ernie:
    settings: dict[str, Any] = {
        "layers": 3, "width": 32, "heads": 2, "context": 32, "vocab": VOCAB, "segments": 2, "pooler": True,
        "norm": "post", "embedding_norm": True, "layer_kinds": ("sim", "mix", "norm"), "entity_width": 16,
        "entity_heads": 2, "entities": ENTITIES, "graph": GRAPH, "init_deviation": 0.1,
    }  # fmt: skip
    torch.manual_seed(seed)
    model = ernie.build(ernie.Settings(**{**settings, **changes}))
    if model.settings.entities:
        drawn = np.random.default_rng(0).normal(size=(ENTITIES, 16)).astype(np.float32)
        model.set_entity_vectors(drawn if vectors is None else vectors)
    return model


def make_objective(model: ernie.Ernie | None = None, **settings: Any) -> EntityAlignment:
    return entity_alignment.build(
        entity_alignment.Settings(**{"sentence": "next", **settings}), model or make_model(), SPECIAL
    )


def make_corpus(graph: str | None = GRAPH, documents: int = 60, share: float = 0.3) -> Corpus:
    """Words at random; a mention is one to three tokens, and its entity follows from its first token."""
    draw = random.Random(0)
    texts, columns = [], []
    for _ in range(documents):
        sizes = [draw.randint(3, 16) for _ in range(draw.randint(2, 9))]
        sentences = [[draw.randint(6, VOCAB - 1) for _ in range(size)] for size in sizes]
        column = []
        for sentence in sentences:
            entities, place = [-1] * len(sentence), 0
            while place < len(sentence):
                size = draw.randint(1, 3) if draw.random() < share else 0
                entity = sentence[place] % ENTITIES
                for number in range(place, min(place + size, len(sentence))):
                    entities[number] = entity if number == place else -2 - entity
                place += size or 1
            column.append(entities)
        texts.append(sentences)
        columns.append(column)
    return Corpus.from_documents(texts, tokenizer(VOCAB), None, columns if graph else None, graph)


CORPUS = make_corpus()


def make_batch(objective: EntityAlignment, step: int = 0, rows: int = 4, corpus: Corpus = CORPUS) -> EntityBatch:
    source = objective.rows(corpus, 1)
    return objective.batch(rows_of(source, np.arange(rows * step, rows * step + rows)), Chance(1, step))


@pytest.mark.parametrize("alignment", ["first", "all"])
def test_targets_are_the_true_entities(alignment: str) -> None:
    objective = make_objective(make_model(alignment=alignment))
    rows = rows_of(objective.rows(CORPUS, 1), np.arange(4))
    batch = objective.batch(rows, Chance(1, 0))
    tokens = np.concatenate([row.tokens for row in rows])
    used = batch.entity_targets.numpy() != IGNORE
    at = batch.aligned.numpy()[used]
    entities = batch.candidates.numpy()[batch.entity_targets.numpy()[used]] - 1
    if alignment == "first":
        assert np.array_equal(entities, tokens[at] % ENTITIES)
    assert len(at) == batch.counts["alignment"] == len(np.unique(at))
    known = batch.candidates.numpy()[batch.candidates.numpy() > 0] - 1
    assert np.array_equal(known, np.unique(entities)) and np.array_equal(known, batch.distinct)
    plain = masked.build(masked.Settings(sentence="next"), make_model(), SPECIAL)
    assert torch.equal(plain.batch(rows, Chance(1, 0)).targets, batch.targets)  # BERT's part is BERT's
    assert torch.equal(plain.batch(rows, Chance(1, 0)).tokens, batch.tokens)


def test_all_pieces_are_those_of_the_corpus() -> None:
    first, every = (
        make_objective(make_model(alignment=name)).rows(CORPUS, 1).many(np.arange(8)) for name in ("first", "all")
    )
    for one, all_ in zip(first, every, strict=True):
        assert np.array_equal(one.tokens, all_.tokens) and one.entities is not None and all_.entities is not None
        carries = one.entities >= 0
        assert np.array_equal(one.entities[carries], all_.entities[carries])
        assert (all_.entities >= 0).sum() > carries.sum()
    column = CORPUS.entities(0, CORPUS.total)
    assert np.array_equal(CORPUS.entities_at(np.arange(CORPUS.total)[::-1]), column[::-1])
    assert set(np.unique(mention_entities(column))) <= set(range(-1, ENTITIES))


def test_noise_has_its_shares_over_100k_positions() -> None:
    objective = make_objective(make_model(alignment="all"))
    rows = objective.rows(CORPUS, 1)
    kept = dropped = replaced = total = own = 0
    others: list[np.ndarray] = []
    step = 0
    while total < 100_000:
        batch = objective.batch(rows_of(rows, np.arange(16 * step, 16 * step + 16)), Chance(7, step))
        assert batch.entities is not None
        used = batch.entity_targets.numpy() != IGNORE
        at = batch.aligned.numpy()[used]
        true = batch.candidates.numpy()[batch.entity_targets.numpy()[used]]
        place = batch.entities.index.numpy()[at]
        read = np.where(place < 0, 0, batch.entities.tokens.numpy()[np.maximum(place, 0)])
        assert np.isin(read[read > 0], batch.candidates.numpy()).all()
        kept += int((read == true).sum())
        dropped += int((read == 0).sum())
        changed = (read != true) & (read > 0)
        replaced += int(changed.sum())
        others.append(read[changed])
        total, step = total + len(at), step + 1
    spread = lambda share: 4 * np.sqrt(share * (1 - share) / total)  # noqa: E731
    assert abs(kept / total - 0.80) < spread(0.8)
    assert abs(dropped / total - 0.15) < spread(0.15)
    assert abs(replaced / total - 0.05) < spread(0.05)
    assert own == 0
    counts = np.bincount(np.concatenate(others), minlength=ENTITIES + 1)[1:]
    assert counts.min() > 0.5 * counts.mean() and counts.max() < 1.5 * counts.mean()  # every entity replaces others


def test_draws_depend_on_nothing_but_seed_step_row_and_place() -> None:
    """The kept and dropped places of a row are the same in any company; only what replaces an entity is not."""
    objective = make_objective()
    rows = objective.rows(CORPUS, 1)
    alone = objective.batch([rows[2]], Chance(1, 5))
    together = objective.batch([rows[1], rows[2]], Chance(1, 5))
    assert alone.entities is not None and together.entities is not None
    size = len(alone.tokens)
    assert torch.equal(alone.entities.index >= 0, together.entities.index[size:] >= 0)
    assert objective.couples_rows


def test_shapes_are_static_and_padding_changes_nothing() -> None:
    objective, shapes = make_objective(row_tokens=64), set()
    model = make_model()
    for step in range(6):
        batch = make_batch(objective, step)
        assert batch.entities is not None
        shapes.add(
            (len(batch.aligned), len(batch.candidates), len(batch.entities.tokens), len(batch.entities.layout.bounds))
        )
        small = batch.compact()
        assert small.entities is not None and len(small.entities.tokens) < len(batch.entities.tokens)
        for name, term in objective.loss(model, batch).items():
            torch.testing.assert_close(objective.loss(model, small)[name].sum, term.sum, rtol=2e-5, atol=1e-4)
    assert len(shapes) == 1


def test_a_row_never_has_more_entities_than_slots() -> None:
    objective = make_objective()
    rows = rows_of(objective.rows(CORPUS, 1), np.arange(3))
    for row in rows:
        assert isinstance(row, entity_alignment.EntityRow)
        row.entity_slots = 5
    batch = objective.batch(rows, Chance(1, 0))
    assert batch.counts["alignment"] == 15 and len(batch.aligned) == 15


def test_poor_sequences_have_no_targets() -> None:
    objective = make_objective(min_entities=6)
    rows = rows_of(objective.rows(CORPUS, 1), np.arange(6))
    batch = objective.batch(rows, Chance(1, 0))
    entities = np.concatenate([row.entities for row in rows if row.entities is not None])
    bounds = batch.layout.host
    rich = [int((entities[start:stop] >= 0).sum()) >= 6 for start, stop in pairwise(bounds)]
    assert 0 < sum(rich) < (np.diff(bounds) > 0).sum()
    owner = np.repeat(np.arange(len(rich)), np.diff(bounds))
    for index, targets in ((batch.index, batch.targets), (batch.aligned, batch.entity_targets)):
        assert all(rich[sequence] for sequence in owner[index.numpy()[targets.numpy() != IGNORE]])
    assert all(rich[sequence] for sequence in np.flatnonzero(batch.labels.numpy() != IGNORE))
    assert batch.counts["mlm"] == int((batch.targets != IGNORE).sum()) > 0
    assert batch.counts["sentence"] == int((batch.labels != IGNORE).sum()) > 0


def test_flops_are_those_that_torch_counts() -> None:
    # every sequence of one length, so that grouped attention pads nothing
    model, objective = make_model(), make_objective(short_rate=0.0, row_tokens=64)
    model.path = "reference"
    batch = make_batch(objective).compact()
    with FlopCounterMode(display=False) as counter:
        terms = objective.loss(model, batch)
        sum(term.sum for term in terms.values()).backward()  # type: ignore[union-attr]
    assert abs(counter.get_total_flops() / objective.flops(model, batch) - 1) < 0.1  # unused slots are computed, too


def test_it_learns_one_batch_and_the_table_stays() -> None:
    model = make_model(1)
    objective = make_objective(model, row_tokens=64)
    table = model.entity_table.clone()
    batch = make_batch(objective, rows=2)
    parameters = [*model.parameters(), *objective.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=6e-3)
    for _ in range(120):
        optimizer.zero_grad()
        terms = objective.loss(model, batch)
        loss = torch.stack([term.sum / term.count for term in terms.values()]).sum()
        if float(loss) < 0.1:
            break
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        stats = objective.metrics(model, batch)
    assert stats["alignment_accuracy"].mean > 0.95 and stats["accuracy"].mean > 0.9
    assert torch.equal(model.entity_table, table)


def test_wrong_inputs_have_one_message() -> None:
    with pytest.raises(UserError, match="another graph"):
        make_objective().rows(make_corpus("a" * 64), 1)
    with pytest.raises(UserError, match="no entities"):
        make_objective().rows(make_corpus(None), 1)
    with pytest.raises(UserError, match="--entities"):
        make_objective(make_model(entities=None, graph=None)).rows(CORPUS, 1)
    plain = transformer.build(transformer.Settings(layers=1, width=8, heads=1, vocab=VOCAB, context=32, pooler=True))
    with pytest.raises(UserError, match="kind: ernie"):
        entity_alignment.build(entity_alignment.Settings(), plain, SPECIAL)
    with pytest.raises(ValueError, match="more than 1"):
        entity_alignment.Settings(replace_share=0.6, drop_share=0.6)


# --- half precision and compiling -----------------------------------------------------------------------------------

WIDE: dict[str, Any] = {
    "width": 128,
    "heads": 2,
    "feedforward": 512,
    "entity_width": 100,
    "entity_heads": 4,
    "init_deviation": 0.05,
}  # widths that our kernels take


def compute_gradients(
    device: str, half: bool, compiled: str = "", backend: str = "inductor", wide: bool = False
) -> dict[str, torch.Tensor]:
    """Gradients of all terms by every parameter; `compiled` is "model", as in training, or "loss", all of it."""
    vectors = np.random.default_rng(0).normal(size=(ENTITIES, 100)).astype(np.float32)
    model = make_model(**WIDE, vectors=vectors) if wide else make_model()
    objective = make_objective(model)
    batch = make_batch(objective).to(device)
    learner = torch.nn.ModuleDict({"model": model, "objective": objective}).to(device)

    def loss() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            terms = objective.loss(model, batch)
        return torch.stack([term.sum.float() / term.count for term in terms.values()]).sum()

    if compiled:
        torch._dynamo.reset()
    if compiled == "model":
        model.compile(dynamic=False, backend=backend)
    compute = torch.compile(loss, dynamic=False, backend=backend) if compiled == "loss" else loss
    compute().backward()
    return {name: p.grad.float().cpu() for name, p in learner.named_parameters() if p.grad is not None}


def check_gradients(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Directions and lengths agree within what bf16 rounds away: gradients of zero do not."""
    assert ours.keys() == expected.keys()
    for name, gradient in expected.items():
        cosine = torch.nn.functional.cosine_similarity(ours[name].flatten(), gradient.flatten(), dim=0)
        assert cosine > 0.98, f"{name}: {cosine:.4f}"
        ratio = float(ours[name].norm() / gradient.norm())
        assert 0.9 < ratio < 1.1, f"{name}: {ratio:.3f} of the norm"


@may_lack_bf16
def test_half_precision_gives_the_gradients_of_float32() -> None:
    check_gradients(compute_gradients("cpu", True), compute_gradients("cpu", False))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["model", "loss"])
def test_a_compiled_step_in_half_precision_has_gradients(compiled: str) -> None:
    """Everything but the kernels of the compiler: its traces and its derivative of them."""
    ours = compute_gradients("cpu", True, compiled, backend="aot_eager")
    check_gradients(ours, compute_gradients("cpu", False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", ["model", "loss"])
def test_a_compiled_step_on_a_gpu_is_that_of_a_cpu(compiled: str) -> None:
    """Half precision, our kernels, static shapes."""
    check_gradients(compute_gradients("cuda", True, compiled, wide=True), compute_gradients("cpu", False, wide=True))
