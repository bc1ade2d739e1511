"""A tagger's own network: windows by hand, places where states come in, features of words, vectors to start from."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import etude
from etude.chance import Chance
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.models import recurrent
from etude.models.layer_features import LayerFeatures
from etude.nn.packed import Layout
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.task_plan import check_settings
from etude.tasks.data.examples import Examples
from etude.tasks.tag.network import Network
from etude.tasks.tag.network import Settings as NetworkSettings
from etude.tasks.tag.task import Settings, TaggedSentence, Tagger, build, learn
from etude.tasks.tag.word_features import CAPITALS, UNKNOWN, Tables, capitals, read_gazetteer
from etude.tasks.tag.word_features import Settings as FeatureSettings
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.transfer import vector_init

NAMES = {"PER": ["Kim", "Ada"], "LOC": ["Seoul", "York"]}
OTHERS = ["the", "went", "to", "of", "saw", "갔다"]
LETTERS = {"filters": [(3, 8)], "embedding": 6, "highways": 0}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train("word:40", [" ".join([*OTHERS, "Kim", "Seoul"])] * 4)


def examples(count: int = 16, seed: int = 0) -> Examples[TaggedSentence]:
    chance = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        words, tags = [], []
        for _ in range(chance.integers(1, 4)):
            kind = str(chance.choice(list(NAMES)))
            words += [str(chance.choice(OTHERS)), str(chance.choice(NAMES[kind]))]
            tags += ["O", f"B-{kind}"]
        items.append(TaggedSentence(words, tags, False))
    return Examples(items, "made.conll", [f"made.conll:{number + 1}" for number in range(count)])


def biLM(tokenizer: Tokenizer, **changes: Any) -> recurrent.Recurrent:
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 6, "cells": 9, "vocab": tokenizer.vocab, "dropout": 0.0} | changes
    return recurrent.build(recurrent.Settings(**shape))


def made(tokenizer: Tokenizer, model: Any, network: dict[str, Any], **changes: Any) -> Tagger:
    settings = Settings(dropout=0.0, network={"dropout": 0.0, "cells": 8, "hidden": 16, **network}, **changes)
    tokenizer = model.attach_tokenizer(tokenizer)
    return build(settings, model, tokenizer, json.loads(json.dumps(learn(examples(), settings))))


def whole(task: Tagger, data: Examples[TaggedSentence]) -> Any:
    rows = task.rows(data, seed=0)
    return task.batch([rows[number] for number in range(len(rows))], Chance(0, 0))


# --- windows ----------------------------------------------------------------------------------------


def test_windows_by_hand() -> None:
    """Neighbours side by side, the edge beyond the ends of each sentence, then hidden layer and HardTanh."""
    settings = NetworkSettings(kind="window", window=3, hidden=7, words=4, states=["input"], dropout=0.0)
    network = Network(settings, Tables(settings.features, ["a", "b"]), state_width=2, layers=1)
    torch.nn.init.normal_(network.window.edge)
    layout = Layout.from_bounds(np.array([0, 3, 3, 4]), 3)
    words, states = torch.tensor([1, 2, 0, 1]), torch.randn(4, 2)
    found = network([states], words, torch.zeros(4, 0, dtype=torch.long), None, layout)
    x = torch.cat([network.words(words), states], dim=1)
    edge = network.window.edge
    rows = [[edge, x[0], x[1]], [x[0], x[1], x[2]], [x[1], x[2], edge], [edge, x[3], edge]]
    wanted = torch.stack([network.window.layer(torch.cat(row)).clamp(-1, 1) for row in rows])
    torch.testing.assert_close(found, wanted)
    assert network.flops(4, 0) == 2 * 4 * (3 * 6) * 7


# --- places -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [["input"], ["first"], ["last"], ["input", "last"], []])
def test_states_come_in_where_they_are_asked(places: list[str]) -> None:
    """Against the layers called one after the other, as TagLM writes them down."""
    settings = NetworkSettings(kind="rnn", cells=5, words=4, states=places, dropout=0.0)
    network = Network(settings, Tables(settings.features, ["a", "b"]), state_width=3, layers=1)
    layout, words, states = Layout.from_bounds(np.array([0, 3, 4]), 3), torch.tensor([1, 2, 0, 1]), torch.randn(4, 3)
    found = network([states], words, torch.zeros(4, 0, dtype=torch.long), None, layout)
    x = network.words(words)
    x = torch.cat([x, states], 1) if "input" in places else x
    for number, name in enumerate(("first", "last")):
        ahead, back = network.forwards[number], network.backwards[number]
        x = torch.cat([ahead(x, layout)[0], back(x, layout, reverse=True)[0]], 1)
        x = torch.cat([x, states], 1) if name in places else x
    torch.testing.assert_close(found, x)
    assert found.shape[1] == network.width


def test_each_place_has_a_mix_of_its_own_and_a_penalty(tokenizer: Tokenizer) -> None:
    model = LayerFeatures(biLM(tokenizer), "all")
    network = {"kind": "rnn", "states": ["input", "last"], "mix": True, "mix_penalty": 0.5}
    task = made(tokenizer, model, network, head="crf")
    mixes = task.own.network.mixes
    assert list(mixes) == ["input", "last"] and all(len(mix.weights) == 3 for mix in mixes.values())
    assert task.own.network.forwards[0].inputs == 12  # a mix, not three layers side by side
    with torch.no_grad():
        mixes["input"].weights.copy_(torch.tensor([1.0, 0.0, -2.0]))
    batch = whole(task, examples())
    terms = task.loss(model, batch)
    assert float(terms["mix"].sum.detach()) == 0.5 * 5.0 and batch.counts["mix"] == 1
    sum(term.sum for term in terms.values()).backward()
    assert mixes["last"].weights.grad is not None and mixes["input"].gamma.grad is not None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_settings_of_a_mix_without_one_are_refused_where_a_transfer_starts() -> None:
    for name, value in (("mix_norm", "token"), ("mix_penalty", 0.5)):
        for others in ({}, {"task.network.mix": True, "task.network.states": [], "task.network.words": 4}):
            with pytest.raises(UserError, match=f"task.network.{name}={value} is of a mix"):
                check_settings("tag", {f"task.network.{name}": value, **others})
        check_settings("tag", {f"task.network.{name}": value, "task.network.mix": True})


WINDOW = {"network.kind": "window"}
STATELESS = {"network.characters": LETTERS, "network.states": []}


@pytest.mark.parametrize(
    ("setting", "value", "unfit", "fit"),
    [
        ("network.window", 7, {}, WINDOW), ("network.hidden", 9, {}, WINDOW),
        ("network.cells", 9, WINDOW, {}), ("network.layers", 3, WINDOW, {}),
        ("network.known", 9, {}, {"network.words": 4, "network.vectors": "runs/vectors"}),
        ("network.singletons", 0.1, {}, {"network.words": 4}), ("network.state_dropout", 0.5, STATELESS, {}),
        ("cells", 9, {}, {"head": "bilstm"}), ("lstm_layers", 2, {"head": "crf"}, {"head": "bilstm_crf"}),
        ("projection", 9, {"head": "bilstm_crf"}, {"head": "projection_bilstm_crf"}),
    ],
)  # fmt: skip
def test_settings_without_effect_are_refused_where_a_transfer_starts(
    setting: str, value: Any, unfit: dict[str, Any], fit: dict[str, Any]
) -> None:
    def check(others: dict[str, Any]) -> None:
        check_settings("tag", {f"task.{name}": each for name, each in {**others, setting: value}.items()})

    check(fit)
    with pytest.raises(UserError, match=f"task.{setting}={value} is of .* or drop task.{setting}"):
        check(unfit)


def test_a_supervised_network_never_asks_the_model(tokenizer: Tokenizer) -> None:
    class Silent(torch.nn.Module):
        context, width, vocab = None, 12, tokenizer.vocab
        settings = biLM(tokenizer).settings

        def forward(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked")

    model = biLM(tokenizer)
    task = made(tokenizer, model, {"kind": "window", "words": 6, "states": []})
    batch = whole(task, examples())
    assert task.scores(Silent(), batch).shape == (batch.words.total, 5)
    units = batch.words.total
    assert task.flops(model, batch) == 3 * (task.own.network.flops(units, 0) + task.head.flops(units))


# --- learning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "head"),
    [
        ({"kind": "window", "words": 8, "states": []}, "linear"),
        ({"kind": "window", "words": 8, "states": [], "features": {"capitals": True, "suffix": 2}}, "crf"),
        ({"kind": "rnn", "words": 8, "characters": LETTERS, "states": ["first"]}, "crf"),
        ({"kind": "rnn", "states": ["input", "last"], "mix": True, "mix_norm": "token"}, "crf"),
    ],
    ids=["window-words", "window-features", "taglm", "elmo"],
)
def test_it_learns_by_heart_and_answers_alone_as_together(
    tokenizer: Tokenizer, network: dict[str, Any], head: str
) -> None:
    characters = LETTERS | {"highways": 1} if head == "crf" else None
    model = LayerFeatures(biLM(tokenizer, characters=characters), "all" if network.get("mix") else "last")
    task = made(tokenizer, model, network, head=head)
    data = examples()
    batch = whole(task, data)
    optimizer = torch.optim.Adam(task.parameters(), lr=0.02)
    for _ in range(90):
        term = task.loss(model, batch)["loss"]
        optimizer.zero_grad()
        (term.sum / term.count).backward()
        optimizer.step()
    together = task.predict(model, data)
    assert [one["tags"] for one in together] == [item.tags for item in data]
    for number in (0, 5):
        alone = task.predict(model, Examples([data.items[number]], "one", ["one:1"]))[0]
        assert alone["tags"] == together[number]["tags"]
        np.testing.assert_allclose(alone["scores"], together[number]["scores"], atol=1e-5)
    jamo = [replace(item, words=[unicodedata.normalize("NFD", word) for word in item.words]) for item in data]
    for apart, composed in zip(task.predict(model, replace(data, items=jamo)), together, strict=True):
        np.testing.assert_allclose(apart["scores"], composed["scores"], atol=1e-5)
    again = build(task.settings, model, model.attach_tokenizer(tokenizer), json.loads(json.dumps(task.facts())))
    again.load_state_dict(task.state_dict())
    assert [one["tags"] for one in again.predict(model, data)] == [one["tags"] for one in together]


# --- features ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind"),
    [("word", "none"), ("Word", "first"), ("WORD", "all"), ("A", "first"), ("iPhone", "some"), ("McKay", "some"),
     ("3.14", "no letter"), ("한국", "none"), ("U.S.", "all"), ("Été", "first")],
)  # fmt: skip
def test_capitals(word: str, kind: str) -> None:
    assert CAPITALS[capitals(word)] == kind


def test_values_of_features(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_text("LOC New York\nLOC York\nPER\tAda\n\nLOC New York City\n", encoding="utf-8")
    settings = FeatureSettings(capitals=True, suffix=2, gazetteer=str(file))
    tables = Tables.learn(settings, [["Going", "to", "New", "York"], ["going"]], own_words=True)
    assert tables.words == ["going", "new", "to", "york"] and tables.suffixes == ["ng", "ew", "rk", "to"]
    assert tables.sizes == [5, 5, 2, 2]
    words = ["Ada", "saw", "NEW", "york", "City", "new", "to"]
    assert tables.values(words).tolist() == [
        [1, 0, 0, 1], [0, 0, 0, 0], [2, 2, 1, 0], [0, 3, 1, 0], [1, 0, 1, 0], [0, 2, 0, 0], [0, 4, 0, 0],
    ]  # fmt: skip
    assert tables.numbers(words).tolist() == [0, 0, 2, 4, 0, 2, 3]
    again = Tables.of(settings, json.loads(json.dumps(tables.facts())))
    assert again == tables and again.values(words).tolist() == tables.values(words).tolist()
    longer = tables.with_words(["york", "seoul", "two words"])
    assert longer.words == [*tables.words, "seoul"]
    file.write_text(unicodedata.normalize("NFD", "LOC 서울"), encoding="utf-8")
    assert read_gazetteer(file) == {"LOC": ["서울"]}, "as words are read"


def test_gazetteers_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no gazetteer"):
        read_gazetteer(tmp_path / "none")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        read_gazetteer(tmp_path)
    (tmp_path / "marked.txt").write_text("LOC Seoul\n", encoding="utf-8-sig")
    assert read_gazetteer(tmp_path / "marked.txt") == {"LOC": ["seoul"]}
    for content, message in (("LOC\n", ":1: a line is a kind and a name"), ("\n", "holds no names")):
        (tmp_path / "names.txt").write_text(content)
        with pytest.raises(UserError, match=message):
            read_gazetteer(tmp_path / "names.txt")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 4, "words": 5}, "no middle"),
        ({"kind": "window", "states": ["first"], "words": 5}, "come in at the input"),
        ({"states": []}, "nothing to read"),
        ({"states": ["input", "input"]}, "twice"),
        ({"vectors": "x"}, "vectors needs words"),
        ({"layers": 1, "states": ["first", "last"], "words": 5}, "name one of them"),
    ],
)
def test_settings_that_contradict_themselves(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NetworkSettings(**values)


# --- words outside the training examples ------------------------------------------------------------


def test_the_unknown_word_is_learnt_from_words_that_occur_once(tokenizer: Tokenizer) -> None:
    items = [TaggedSentence(["the", "Zorn", "of", "the", "of"], ["O", "B-PER", "O", "O", "O"], False)]
    data = Examples(items, "made.conll", ["made.conll:1"])
    model = biLM(tokenizer)
    for share, moved in ((0.0, "Zorn"), (1.0, "a word nobody knows")):
        settings = Settings(dropout=0.0, network={"dropout": 0.0, "words": 5, "states": [], "singletons": share})
        used = model.attach_tokenizer(tokenizer)
        facts = json.loads(json.dumps(learn(data, settings)))
        facts["tables"] = Tables.of(FeatureSettings(), facts["tables"]).with_words(["never", "met"]).facts()
        task = build(settings, model, used, facts)
        batch = whole(task, data)
        for training, names in ((True, ["the", "of", moved]), (False, ["the", "of", "Zorn"])):
            task.train(training)
            task.zero_grad()
            task.loss(model, batch)["loss"].sum.backward()
            rows = torch.nonzero(task.own.network.words.weight.grad.abs().sum(1))[:, 0].tolist()
            assert rows == sorted(task.own.tables.numbers(names).tolist())


def test_singletons_are_hidden_as_often_as_told(tokenizer: Tokenizer) -> None:
    tables = Tables(FeatureSettings(), ["twice", *(f"once{number}" for number in range(1000))], repeated=1)
    network = Network(NetworkSettings(words=4, states=[], singletons=0.5), tables, 0, 0)
    ids = torch.arange(1002)
    hidden = network.hide_singletons(ids) == UNKNOWN
    assert not hidden[1] and 420 < int(hidden.sum()) < 580
    network.eval()
    assert torch.equal(network.hide_singletons(ids), ids)


# --- vectors to start from --------------------------------------------------------------------------


def run_of(folder: Path, name: str, tokenizer: Tokenizer, *overrides: str) -> Path:
    recipe = Recipe.load(name, overrides).resolve(vocab=tokenizer.vocab)
    folder.mkdir()
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    tokenizer.save(folder)
    save_final(Run(folder), *build_learner(recipe, tokenizer), model_card="random weights, for tests")
    return folder


def test_vectors_are_taken_over_when_training_begins(tmp_path: Path, tokenizer: Tokenizer) -> None:
    base = run_of(tmp_path / "bilm", "bilm-toy", tokenizer, "model.width=6", "model.cells=9")
    vectors = run_of(tmp_path / "words", "skipgram-toy", tokenizer, "model.width=8")
    train = tmp_path / "train.jsonl"
    items = [{"tokens": item.words, "ner": item.tags} for item in examples()]
    train.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items), encoding="utf-8")
    overrides = {
        "task.head": "crf", "task.network.kind": "window", "task.network.words": 8,
        "task.network.states": [], "task.network.vectors": str(vectors), "train.epochs": 1, "train.lr": 1e-9,
    }  # fmt: skip
    tuned = etude.finetune(base, "tag", train=train, out=tmp_path / "tuned", settings=overrides)
    own = tuned.model.task.own
    loaded = etude.load(vectors)
    for word, written in (("the", "the"), ("seoul", "Seoul"), ("갔다", "갔다")):  # the network reads lower case
        assert loaded.tokenizer.id(written) is not None
        row = own.network.words.weight[own.tables.numbers([word])[0]].detach().numpy()
        np.testing.assert_allclose(row, loaded.states([[written]])[0][-1, 0], atol=1e-6)
    row = own.network.words.weight[own.tables.numbers(["york"])[0]].detach().numpy()
    unknown = loaded.states([["York"]])[0][-1, 0]
    assert loaded.tokenizer.id("York") is None
    assert np.abs(row - unknown).max() > 1e-3, "a word without a vector is drawn, not that of unknown words"
    assert etude.load(vectors).tokenizer.vocab - 6 <= len(own.tables.words)
    with pytest.raises(UserError, match="8 wide"):
        etude.finetune(base, "tag", train=train, out=tmp_path / "x", settings=overrides | {"task.network.words": 9})
    with pytest.raises(UserError, match=r"are 8 wide\. Set task\.network\.words=8"):
        vector_init.add_vector_words({}, Settings(network={"words": 12, "vectors": str(vectors)}))
    with pytest.raises(UserError, match="no run of word vectors"):
        vector_init.add_vector_words({}, Settings(network={"words": 12, "vectors": str(base)}))
