"""What every model answers (models/base.py), checked the same way for every family, and for chosen layers of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import etude.models
from etude.errors import UserError
from etude.kinds import list_kinds
from etude.models.base import Model, ModelSettings, require
from etude.models.depth import learner_depths, learning_share, training_flops
from etude.models.framing import Framing, pool
from etude.models.freezing import freeze
from etude.models.layer_features import LayerFeatures
from etude.models.static import Static
from etude.models.transfer import check_settings, prepare
from etude.models.transfer_settings import TransferSettings
from etude.models.transformer import Transformer
from etude.nn.packed import Packed, pack
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.settings import Settings as Train

TEXTS = ["the cat sat on the mat", "a dog ran to the door of the house"]
LETTERS = {"filters": [(1, 8), (2, 8)], "embedding": 8, "highways": 1}
TOWERS = {"layers": 2, "width": 16, "heads": 2, "context": 24}
READ_NO_TEXT = {"graph_embedding"}  # tested in tests/objectives/test_triples.py and tests/inference/test_graph_model.py
# kind -> the settings that are tried; every kind of etude.models has at least one
SHAPES: dict[str, dict[str, dict[str, object]]] = {
    "static": {"words": {"width": 16}, "n-grams": {"width": 16, "buckets": 20, "unknown": "subwords"}},
    "recurrent": {
        "both": {"width": 16, "cells": 20},
        "forward": {"width": 16, "cells": 20, "direction": "forward"},
        "letters": {"width": 16, "cells": 20, "characters": LETTERS},
    },
    "transformer": {
        "both": TOWERS | {"segments": 2, "pooler": True},
        "causal": TOWERS | {"direction": "causal"},
        "shared": TOWERS | {"share": "all", "norm": "post", "embedding_width": 8},
    },
    "ernie": {
        "fused": TOWERS
        | {"norm": "post", "pooler": True, "layer_kinds": ["mix", "norm"], "entity_width": 8, "entity_heads": 2},
    },
    "encoder_decoder": {
        "post": TOWERS,
        "separate": TOWERS | {"norm": "pre", "tables": "separate", "positions": "learned"},
    },
    "recurrent_seq2seq": {
        "one context": {"layers": 2, "width": 16, "reverse": True},
        "bahdanau": {
            "layers": 2,
            "width": 16,
            "embedding_width": 12,
            "cell": "gru",
            "bidirectional": True,
            "attention": "additive",
        },
    },
    "two_tower": {
        "attention": TOWERS,
        "none": TOWERS | {"combiner": "none"},
        "letters": TOWERS | {"characters": LETTERS},
    },
}
CASES = [f"{kind}: {name}" for kind, shapes in SHAPES.items() for name in shapes]
FIRST = [f"{kind}: {next(iter(shapes))}" for kind, shapes in SHAPES.items()]
WRAPPED = [f"{case} | {layers}" for case in [*FIRST, "transformer: causal"] for layers in ("last", "concat", "mix")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:40", TEXTS * 4)


def build(case: str, tokenizer: Tokenizer) -> Model:
    """A model with the tokenizer attached; `| concat` and the like read layers of it."""
    kind, _, rest = case.partition(": ")
    shape, _, layers = rest.partition(" | ")
    torch.manual_seed(0)
    module = list_kinds("models")[kind]
    model = module.build(module.Settings(vocab=tokenizer.vocab, **SHAPES[kind][shape]))
    if layers == "last":
        model = LayerFeatures(model, "last", frozen=False)
    elif layers:
        model = LayerFeatures(model, "all", layers, frozen=False)  # type: ignore[arg-type]
    model.attach_tokenizer(tokenizer)
    return model.eval()


@pytest.fixture(params=[*CASES, *WRAPPED])
def model(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[Model]:
    yield build(request.param, tokenizer)


def framed(model: Model, tokenizer: Tokenizer) -> Packed:
    framing = model.frame(tokenizer.special)
    return pack([framing.join([tokenizer.encode(text).ids]).tokens for text in TEXTS])


def test_every_kind_is_tried() -> None:
    assert set(SHAPES) == set(list_kinds("models")) - READ_NO_TEXT


def test_nobody_outside_asks_for_a_family() -> None:
    """Where one family is needed, `require` says so once; nothing else is probed from outside the package."""
    root = Path(etude.models.__file__).parents[1]
    probe = re.compile(
        r"isinstance\(.*\b(Transformer|TwoTower|Recurrent|Static|LayerFeatures)\b"
        r"|(get|has)attr\(((self|loaded|tuned|recipe|teacher)\.)?model\b"
    )
    outside = (file for file in root.rglob("*.py") if file.parent != root / "models")
    probes = [f"{file}: {match[0]}" for file in outside for match in probe.finditer(file.read_text(encoding="utf-8"))]
    assert not probes
    assert probe.search("if isinstance(inner(model), Static):") and probe.search('getattr(model, "causal", False)')


# --- states -----------------------------------------------------------------------------------------


def test_states_have_the_widths_that_the_model_names(model: Model, tokenizer: Tokenizer) -> None:
    packed = framed(model, tokenizer)
    states = model(packed, layers=True)
    assert states.last.shape == (len(packed.tokens), model.width)
    assert states.layers is not None and len(states.layers) == model.state_count
    assert {layer.shape for layer in states.layers} == {(len(packed.tokens), model.state_width)}
    assert torch.equal(model(packed).last, states.last) and model(packed).layers is None
    if not isinstance(model, LayerFeatures) and model.state_width == model.width:
        assert torch.equal(states.layers[-1], states.last)  # as `encode` has it
    assert model.vocab == model.settings.vocab == tokenizer.vocab
    assert isinstance(model.settings, ModelSettings)


def test_a_sequence_is_alone_in_its_batch(model: Model, tokenizer: Tokenizer) -> None:
    packed = framed(model, tokenizer)
    length = int(packed.layout.lengths[0])
    alone = model(pack([packed.tokens[:length].numpy()])).last
    torch.testing.assert_close(model(packed).last[:length], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_may_have_no_token(case: str, tokenizer: Tokenizer) -> None:
    """Also one of a frozen model, and in training: what has no states has their widths all the same."""
    trained = build(case, tokenizer).train()
    frozen = LayerFeatures(build(case, tokenizer), "all")
    for sequences in ([], [[]], [[], []]):
        for model in (trained, frozen):
            states = model(pack(sequences), layers=True)
            assert states.last.shape == (0, model.width)
            assert states.layers is not None and len(states.layers) == model.state_count


def influences(model: Model, ids: np.ndarray, place: int) -> Tensor:
    """(L,) bool: which states move when the token at a place is exchanged."""
    changed = ids.copy()
    changed[place] = ids[0] if ids[place] != ids[0] else ids[1]
    before, after = (model(pack([sequence])).last for sequence in (ids, changed))
    return (before - after).abs().amax(-1) > 1e-6


def test_a_causal_model_sees_no_later_token_and_others_do(model: Model, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXTS[1]).ids.astype(np.int64)
    middle = len(ids) // 2
    moved = influences(model, ids, middle)
    if model.layers:
        assert moved[middle + 1 :].any() or moved[:middle].any()
    else:
        assert moved.nonzero().flatten().tolist() == [middle]
    if model.causal:
        assert not moved[:middle].any() and moved[middle:].all()
    elif model.layers and getattr(model.settings, "direction", "both") == "both":
        assert moved[:middle].any()


def test_no_sequence_is_longer_than_the_context(model: Model, tokenizer: Tokenizer) -> None:
    ids = np.resize(tokenizer.encode(TEXTS[1]).ids, 30)
    if model.context is None:
        assert len(model(pack([ids])).last) == 30
    else:
        assert len(model(pack([ids[: model.context]])).last) == model.context
        with pytest.raises(UserError, match="longer than the model's context"):
            model(pack([ids]))


def test_attention_weights_are_given_where_they_are_promised(model: Model, tokenizer: Tokenizer) -> None:
    packed = framed(model, tokenizer)
    if not model.has_attention_weights:
        with pytest.raises(UserError, match="no attention weights"):
            model.attention_weights(packed)
        return
    weights = model.attention_weights(packed)
    assert len(weights) == model.layers and all(len(layer) == len(TEXTS) for layer in weights)
    assert {sequence.shape[1:] for layer in weights for sequence in layer} == {
        (length, length) for length in packed.layout.lengths.tolist()
    }


# --- cost -------------------------------------------------------------------------------------------


def test_cost_grows_with_tokens_and_only_a_look_up_is_free(model: Model) -> None:
    short, long = (model.flops(np.array(lengths)) for lengths in ([4, 5], [8, 10]))
    assert 0 < 2 * short <= long if model.layers else short == long == 0
    assert training_flops(model, np.array([4, 5])) == 3 * short
    held = [model.activation_bytes(tokens, 4, "cpu") for tokens in (16, 32)]
    assert held == [None, None] or (held[0] and held[1] == 2 * held[0])


# --- texts ------------------------------------------------------------------------------------------


def test_a_framed_text_holds_the_text_between_its_markers(model: Model, tokenizer: Tokenizer) -> None:
    framing = model.frame(tokenizer.special)
    assert isinstance(framing, Framing) and framing.length == model.context
    first, second = (tokenizer.encode(text).ids for text in TEXTS)
    single, both = framing.join([first]), framing.join([first, second])
    assert single.tokens.tolist() == [*framing.before, *first, *framing.after] and not single.cut
    assert both.tokens.tolist() == [*framing.before, *first, *framing.between, *second, *framing.after]
    assert (both.segments is not None) == framing.segments
    if both.segments is not None:
        assert both.segments.tolist().index(1) == len(framing.before) + len(first) + len(framing.between)
    short = framing.limit(12).join([first, second])
    assert short.cut and len(short.tokens) == 12 and short.tokens.tolist()[: len(framing.before)] == framing.before
    assert framing.limit(None) is framing and framing.fit([3, 4]) == [3, 4]
    if framing.before:
        with pytest.raises(UserError, match="no room for text"):
            framing.limit(len(framing.before) + len(framing.between) + len(framing.after) + 1)


def test_the_natural_pooling_gives_a_vector_a_text(model: Model, tokenizer: Tokenizer) -> None:
    packed, pooling = framed(model, tokenizer), model.frame(tokenizer.special).pooling
    vectors = pool(model(packed).last, packed.layout, pooling)
    assert vectors.shape == (len(TEXTS), (2 if pooling == "ends" else 1) * model.width)
    if model.pooler is not None:
        assert model.pool(model(packed).last, packed.layout).shape == vectors.shape
    else:
        with pytest.raises(UserError, match="no pooler"):
            model.pool(model(packed).last, packed.layout)


def test_a_tokenizer_is_attached_once(model: Model, tokenizer: Tokenizer) -> None:
    attached = model.attach_tokenizer(tokenizer)
    assert model.attach_tokenizer(tokenizer) is attached and model.attach_tokenizer(attached) is attached
    assert attached.encode(TEXTS[0]).ids.tolist() == tokenizer.encode(TEXTS[0]).ids.tolist()


# --- transfer ---------------------------------------------------------------------------------------


def test_every_parameter_has_its_depth(model: Model) -> None:
    depths = {name: model.parameter_depth(name) for name, _ in model.named_parameters()}
    if not model.layers:
        assert set(depths.values()) == {None} and learner_depths(model) is None
        return
    distinct = set(depths.values())
    assert {0, model.layers} <= distinct <= set(range(model.layers + 2))
    assert model.shares_layers or set(range(model.layers + 1)) <= distinct
    depth_of = learner_depths(model)
    assert depth_of is not None and depth_of("objective.head.weight") == model.layers + 1
    assert {f"model.{name}": depth_of(f"model.{name}") for name in depths} == {
        f"model.{name}": depth for name, depth in depths.items()
    }


def test_frozen_layers_are_the_lowest(model: Model) -> None:
    if not model.layers:
        with pytest.raises(UserError, match="this model has none"):
            freeze(model, 0)
        return
    freeze(model, 1)
    for name, parameter in model.named_parameters():
        depth = model.parameter_depth(name)
        assert depth is not None and parameter.requires_grad == (depth > 1)
    assert learning_share(model) == (1 if model.shares_layers else 0.5)


@pytest.mark.parametrize("frozen", [False, True])
def test_defaults_of_a_transfer_are_training_settings(model: Model, frozen: bool) -> None:
    defaults = model.transfer_defaults(frozen)
    settings = Train.model_validate(defaults)
    assert settings.lr and settings.epochs and not settings.compile and settings.batch_examples
    assert defaults == model.base.transfer_defaults(frozen)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("changes", [{}, {"frozen": True}, {"layers": "all", "combine": "mix"}])
def test_a_prepared_model_answers_all_of_it_still(case: str, changes: dict[str, object], tokenizer: Tokenizer) -> None:
    model = build(case, tokenizer)
    prepared = prepare(model, TransferSettings.model_validate(changes))
    assert prepared.base is model.base is model
    packed = framed(prepared, tokenizer)
    assert prepared(packed).last.shape == (len(packed.tokens), prepared.width)
    learning = any(parameter.requires_grad for parameter in prepared.parameters())
    assert learning == ("frozen" not in changes)
    assert prepared.causal == model.causal and prepared.layers == model.layers
    weights = chain(prepared.parameters(), prepared.buffers())
    assert all(bool(torch.isfinite(weight).all()) for weight in weights)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("letters", [False, True])
def test_character_layers_learn_as_they_are_told_to(case: str, letters: bool, tokenizer: Tokenizer) -> None:
    """`transfer.letters` had an effect on two towers alone; elsewhere it was read, and nothing came of it."""
    model, settings = build(case, tokenizer), TransferSettings(letters=letters)
    model.prepare_transfer(settings)
    if "letters" not in case:
        with pytest.raises(UserError, match="this model reads no letters: drop it"):
            check_settings(model, settings)
        return
    check_settings(model, settings)
    learning = {name: parameter.requires_grad for name, parameter in model.named_parameters() if "network" in name}
    assert learning and learning == {name: letters or ".project." in name for name in learning}
    assert all(parameter.requires_grad for name, parameter in model.named_parameters() if name not in learning)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("transformer: shared", {"freeze": 1}, "same weights.* Set it to 0 .*, or to 2 for all layers"),
        ("transformer: both", {"freeze": 3}, "the model has 2 layers"),
        ("transformer: both", {"combine": "mix"}, "mixes several layers.* set transfer.layers=all"),
        ("transformer: both", {"layers": "all", "mix_norm": "token"}, "transfer.mix_norm=token is of a mix"),
        ("transformer: both", {"linker": "trie,plurals"}, "transfer.linker=trie,plurals is that of transfer.link"),
        ("transformer: both", {"frozen": True, "dropout": 0.2}, "transfer.dropout.* transfer.frozen.*: drop one"),
        ("transformer: both", {"probe": True, "dropout": 0.2}, "transfer.dropout.* transfer.frozen.*: drop one"),
        ("transformer: both", {"frozen": True, "letters": True}, "transfer.letters.* transfer.frozen.*: drop one"),
    ],
)
def test_settings_without_an_effect_are_refused_at_the_start(
    case: str, changes: dict[str, object], message: str, tokenizer: Tokenizer
) -> None:
    """Half an ALBERT stayed as it was by the model card, and learnt; a run that says so is opened all the same."""
    with pytest.raises(UserError, match=message):
        check_settings(build(case, tokenizer), TransferSettings.model_validate(changes))
    for allowed in (
        {"freeze": 0},
        {"freeze": 2},
        {"frozen": True, "combine": "mix"},
        {"layers": "all"},
        {"dropout": 0.2},
    ):
        check_settings(build(case, tokenizer), TransferSettings.model_validate(allowed))


def test_one_family_can_be_required(tokenizer: Tokenizer) -> None:
    model = build("static: words", tokenizer)
    assert require(model, Static, "word vectors are wanted") is model
    with pytest.raises(UserError, match="a Transformer is wanted"):
        require(model, Transformer, "a Transformer is wanted")


def test_settings_of_a_model_have_a_vocabulary() -> None:
    with pytest.raises(TypeError, match="has no field `vocab`"):

        class Incomplete(ModelSettings):
            width: int = 8

    with pytest.raises(UserError, match="no vocabulary size"):
        list_kinds("models")["static"].build(list_kinds("models")["static"].Settings(width=8))
