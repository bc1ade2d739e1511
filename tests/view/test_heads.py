"""Heads beside arcs: weights between words, answers and pruning equal to what plain loops compute."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from etude.cli.main import app
from etude.errors import UserError
from etude.hub.run_weights import save_final
from etude.inference.model import LoadedModel
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.view import heads
from etude.view.attention import compute_attention
from etude.view.heads import Sentence, answer_heads, answer_sentence, count_correct, measure_heads, word_weights
from etude.view.heads_page import render_heads_page

WORDS = ["the", "small", "cat", "sat", "on", "a", "mat", "and", "slept"]
TREE = [3, 3, 4, 0, 7, 7, 4, 9, 4]
NAMES = ["det", "amod", "nsubj", "root", "case", "det", "obl", "cc", "conj"]


def sentence(count: int = 9) -> Sentence:
    tree = np.array([head if head <= count else 0 for head in TREE[:count]]) - 1
    return Sentence(WORDS[:count], tree, NAMES[:count])


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    tokenizer = Tokenizer.train("wordpiece:34", [" ".join(WORDS)] * 5)  # some words are several pieces
    torch.manual_seed(0)
    recipe = Recipe.load("bert-toy", {"objective.sentence": "none", "model.init_deviation": 0.3})
    return LoadedModel(*build_learner(recipe.resolve(vocab=tokenizer.vocab), tokenizer), tokenizer)


def test_weights_between_words_are_summed_to_and_averaged_from() -> None:
    weights = np.random.default_rng(0).random((2, 3, 6, 6))
    words = np.array([-1, 0, 0, 1, 2, -1])
    between = word_weights(weights, words, 3)
    for looking in range(3):
        for target in range(3):
            rows, columns = np.flatnonzero(words == looking), np.flatnonzero(words == target)
            expected = sum(weights[:, :, row, column] for row in rows for column in columns) / len(rows)
            np.testing.assert_allclose(between[:, :, looking, target], expected)


def test_answers_are_the_heaviest_other_word_in_both_directions() -> None:
    weights = np.random.default_rng(1).random((4, 4)) + 5 * np.eye(4)  # every word looks at itself most
    up, down = answer_heads(weights)
    for word in range(4):
        others = [other for other in range(4) if other != word]
        assert up[word] == max(others, key=lambda other: weights[word, other])
        assert down[word] == max(others, key=lambda other: weights[other, word])


def test_arcs_are_counted_as_by_hand(model: LoadedModel) -> None:
    """Words of several pieces stay one word, and counts equal loops over heads, directions, words and offsets."""
    tree = sentence()
    answers = answer_sentence(model, tree)
    assert answers is not None
    attention = compute_attention(model, " ".join(WORDS))
    assert len(attention.tokens) > len(WORDS) + 2, "the test needs words of several pieces"
    pieces: list[list[int]] = [[] for _ in WORDS]
    word, letters = 0, ""
    for place, token in enumerate(attention.tokens):
        if attention.markers[place]:
            continue
        pieces[word].append(place)
        letters += token
        if letters == WORDS[word]:
            word, letters = word + 1, ""
    counted = count_correct(tree, answers)
    assert "root" not in counted
    for relation, (arcs, by_head, by_offset) in counted.items():
        places = [place for place, name in enumerate(NAMES) if name == relation]
        assert arcs == len(places)
        for layer, head in np.ndindex(answers.shape[1:3]):
            right = {"up": 0, "down": 0}
            for place in places:
                others = [other for other in range(9) if other != place]
                table = attention.weights[layer, head]

                def weight(a: int, b: int, table: np.ndarray = table) -> float:
                    return float(np.mean([sum(table[row, column] for column in pieces[b]) for row in pieces[a]]))

                right["up"] += max(others, key=lambda other: weight(place, other)) == tree.heads[place]
                right["down"] += max(others, key=lambda other: weight(other, place)) == tree.heads[place]
            assert by_head[:, layer, head].tolist() == [right["up"], right["down"]]
        for number, offset in enumerate(heads.OFFSETS):
            assert by_offset[number] == sum(place + offset == tree.heads[place] for place in places)


@pytest.mark.parametrize("kind", ["bytebpe:290", "unigram:40", "bpe:40"])
def test_tokens_that_begin_with_a_space_belong_to_the_word_behind_it(kind: str) -> None:
    words = ["the", "고양이", "sat", "on", "a", "mat"]
    tokenizer = Tokenizer.train(kind, [" ".join(words)] * 5)
    recipe = Recipe.load("gpt2-toy").resolve(vocab=tokenizer.vocab)
    model = LoadedModel(*build_learner(recipe, tokenizer), tokenizer)
    seen: list[np.ndarray] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "word_weights", lambda weights, words, count: seen.append(words) or np.eye(count))
        answer_sentence(model, Sentence(words, np.array([2, 2, -1, 5, 5, 2]), ["x"] * 6))
    encoding, text = tokenizer.encode(" ".join(words)), " ".join(words)
    bounds = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
    expected = []
    for begin, end in encoding.offsets.tolist():
        letters = [place for place in range(begin, end) if text[place] != " "] or [end]  # a space alone: the next word
        expected.append(max(number for number, start in enumerate(bounds) if start <= letters[0]))
    assert [number for number in seen[0].tolist() if number >= 0] == expected
    assert set(expected) == set(range(6))


def test_heads_and_offsets_are_chosen_on_other_sentences() -> None:
    """The best head of the choosing half is scored on the other half, however good another one is there."""
    shape = (2, 1, 2)
    first, second = np.zeros(shape, int), np.zeros(shape, int)
    first[0, 0, 1], second[0, 0, 0] = 10, 10  # head 1 is right on the first half, head 0 on the second
    offsets = np.zeros(len(heads.OFFSETS), int)
    offsets[heads.OFFSETS.index(1)] = 4
    counted = [{"det": (10, first, offsets)}, {"det": (10, second, offsets)}] * 3
    (score,) = heads.score_relations(counted, min_arcs=5)
    assert (score.head, score.accuracy, score.offset, score.offset_accuracy) == (1, 0.0, 1, 0.4)
    assert not score.beats_offset and heads.score_relations(counted, min_arcs=31) == []


def test_a_removed_head_contributes_nothing(model: LoadedModel) -> None:
    """The loss without a head is that of a model whose attention has zero there; weights come back unchanged."""
    texts = [" ".join(WORDS), " ".join(reversed(WORDS))]
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    branches = heads.list_branches(model)
    size = branches[0].size

    def zero_head(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        changed = inputs[0].clone()
        changed[..., size : 2 * size] = 0
        return (changed,)

    with heads.without_heads(branches, [(0, 1)]):
        removed = heads.measure_loss(model, texts)
        states = model.states([model.frame(model.tokenizer.encode(texts[0]).ids)])[0]
    hook = branches[0].out.register_forward_pre_hook(zero_head)
    expected = model.states([model.frame(model.tokenizer.encode(texts[0]).ids)])[0]
    hook.remove()
    np.testing.assert_allclose(states, expected, atol=1e-5)
    assert removed != pytest.approx(heads.measure_loss(model, texts), abs=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.model.state_dict().items())


def test_all_heads_removed_is_the_end_of_the_curve(model: LoadedModel) -> None:
    report = measure_heads(model, [sentence(), sentence(7)] * 4, min_arcs=1, pruning_texts=4)
    assert report.pruning is not None and report.importance is not None
    assert [share for share, _ in report.pruning] == list(heads.PRUNED_SHARES)
    branches = heads.list_branches(model)
    everything = [(number, head) for number, branch in enumerate(branches) for head in range(branch.heads)]
    texts = [" ".join(WORDS[:7])] * 2
    with heads.without_heads(branches, everything):
        assert report.pruning[-1][1] == pytest.approx(heads.measure_loss(model, texts), abs=1e-9)
    page = render_heads_page(report, "a <run>", "a & b.jsonl")
    assert "a &lt;run&gt;" in page and "of a &amp; b.jsonl" in page and "nsubj" in page and "{{" not in page
    assert f"{report.layers} layers of {report.heads} attention heads" in page and "어텐션 헤드가" in page
    assert "navigator.language" in page, "begins in the reader's own language"


def test_the_command_reads_a_treebank(model: LoadedModel, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", Recipe.load("bert-toy", {"objective.sentence": "none"}).resolve(
        vocab=model.tokenizer.vocab), model.tokenizer, {})  # fmt: skip
    save_final(run, model.model, model.objective, "# a run\n")
    record = {"tokens": WORDS, "head": TREE, "deprel": NAMES}
    bank = tmp_path / "bank.jsonl"
    bank.write_text((json.dumps(record) + "\n") * 6)
    page = tmp_path / "heads.html"
    command = ["show", "heads", str(run.folder), str(bank), "--least", "1", "--out", str(page), "--device", "cpu"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "det" in result.output and "heads removed" in result.output and page.is_file()
    for head in (99, -1, "x", "", None, 1.5, [3], 10**30, "9" * 5000):
        bank.write_text(json.dumps({**record, "head": [head, *TREE[1:]]}) + "\n")
        with pytest.raises(UserError, match=r"bank.jsonl:1: a head is no number of a token \(1 to 9"):
            heads.read_sentences(bank)
    bank.write_text((json.dumps({**record, "head": [str(head) for head in TREE]}) + "\n") * 2)
    assert heads.read_sentences(bank)[0].heads.tolist() == [head - 1 for head in TREE]


def test_a_loss_over_no_token_is_refused(model: LoadedModel) -> None:
    """Half of the sentences choose heads and half score them: of one sentence nothing is left to score."""
    with pytest.raises(UserError, match=r"None of the 0 sentences .* --pruning 0"):
        measure_heads(model, [sentence()] * 4, min_arcs=1, pruning_texts=1)
    with pytest.raises(UserError, match="None of the 1 sentences"):
        heads.measure_loss(model, ["가나 다라"])  # unknown tokens alone
