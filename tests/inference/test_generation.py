"""Written text: the cache, the batch and the order change nothing; every choice is the one that is described."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.chance import fold
from etude.errors import UserError
from etude.inference import generation
from etude.inference.generation import Continuation, Sampling, generate
from etude.inference.model import LoadedModel
from etude.inference.reader import window_start
from tests.tiny_models import TEXTS, decoder, encoder

AXES: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "gpt-1": {"norm": "post"},
    "gpt-3": {"window": 3, "dense_every": 2},
    "rotary": {"positions": "rotary", "gated": True},
    "factorised": {"share": "all", "embedding_width": 16},
}
SAMPLINGS = {
    "greedy": Sampling(tokens=14, temperature=0),
    "sampled": Sampling(tokens=14, seed=3),
    "narrow": Sampling(tokens=14, temperature=0.8, top_k=40, top_p=0.9, seed=1),
    "gpt2": Sampling(tokens=14, temperature=1.3, top_p=0.7, top_p_rule="gpt2"),
}


def prompts_of(count: int) -> list[str]:
    """Of 1 to 30 letters, in two scripts."""
    letters = " ".join(TEXTS)
    return [letters[7 * number % 90 :][: 1 + 11 * number % 30] for number in range(count)]


def ids_of(found: list[Continuation]) -> list[tuple[int, ...]]:
    return [item.ids for item in found]


# --- the cache and the batch ------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_the_cache_changes_nothing(axes: dict[str, Any], sampling: Sampling) -> None:
    """Token by token, also where a text fills its context and slides."""
    model = decoder(context=16, **axes)
    prompts = prompts_of(6)
    result = generate(model, prompts, sampling, samples=2)
    assert result == generate(model, prompts, sampling, samples=2, cached=False)
    assert any(item.slides for item in result) and len(set(ids_of(result))) > 3


@pytest.mark.parametrize("name", ["greedy", "narrow"])
def test_a_hundred_prompts_together_are_one_by_one(name: str) -> None:
    model, prompts, sampling = decoder(), prompts_of(100), replace(SAMPLINGS[name], tokens=4)
    together = generate(model, prompts, sampling)
    assert together == [generate(model, [prompt], sampling)[0] for prompt in prompts]
    assert len({len(model.tokenizer.encode(prompt)) for prompt in prompts}) > 10
    assert generate(model, prompts[::-1], sampling) == together[::-1]


def test_turns_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More prompts than memory holds are continued in turn."""
    model, sampling = decoder(), SAMPLINGS["sampled"]
    together = generate(model, prompts_of(12), sampling)
    sizes: list[int] = []
    reader = generation.Reader

    def counted(loaded: LoadedModel, sequences: Any, cached: bool) -> Any:
        sizes.append(len(sequences))
        return reader(loaded, sequences, cached)

    monkeypatch.setattr(generation, "Reader", counted)
    monkeypatch.setattr(generation, "CACHE_BYTES", 40_000)
    assert generate(model, prompts_of(12), sampling) == together
    assert len(sizes) > 3 and sum(sizes) == 12


def test_samples_differ_and_begin_alike_however_long() -> None:
    model = decoder()
    three = ids_of(generate(model, ["the cat"], Sampling(tokens=12), samples=3))
    assert len(set(three)) == 3
    assert [ids[:5] for ids in three] == ids_of(generate(model, ["the cat"], Sampling(tokens=5), samples=3))
    assert ids_of(generate(model, ["the cat"], Sampling(tokens=12, seed=1))) != three[:1]
    assert ids_of(generate(model, ["the cat", "the dog"], Sampling(tokens=12), samples=3))[:3] == three


# --- the choice of a token --------------------------------------------------------------------------


def slow_kept(scores: np.ndarray, sampling: Sampling) -> set[int]:
    """The description, word for word, for one row without equal scores."""
    share = np.exp((scores - scores.max()) / sampling.temperature)
    order = np.argsort(-scores)[: sampling.top_k]
    share = share[order] / share[order].sum()
    if sampling.top_p is None:
        return set(order.tolist())
    kept: list[int] = []
    reached = 0.0
    for token, part in zip(order.tolist(), share, strict=True):
        if kept and (reached + part > sampling.top_p if sampling.top_p_rule == "gpt2" else reached >= sampling.top_p):
            break
        kept.append(token)
        reached += part
    return set(kept)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_kept_is_what_is_described(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 12))
    draw = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    scores = draw.normal(size=(3, vocab)) * 3
    sampling = Sampling(
        temperature=data.draw(st.sampled_from([0.3, 1.0, 2.0])),
        top_k=data.draw(st.one_of(st.none(), st.integers(1, 14))),
        top_p=data.draw(st.one_of(st.none(), st.floats(0.01, 0.999))),
        top_p_rule=data.draw(st.sampled_from(["usual", "gpt2"])),
    )
    kept = torch.isfinite(sampling.filter_logits(torch.from_numpy(scores)))
    assert [set(row.nonzero()[:, 0].tolist()) for row in kept] == [slow_kept(row, sampling) for row in scores]


def test_the_rule_of_gpt2_leaves_out_the_token_that_crosses() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    counts = {}
    for rule in ("usual", "gpt2"):
        filtered = Sampling(top_p=0.7, top_p_rule=rule).filter_logits(scores)  # type: ignore[arg-type]
        counts[rule] = torch.isfinite(filtered).sum()
    assert counts == {"usual": 2, "gpt2": 1}
    assert torch.isfinite(Sampling(top_p=0.1, top_p_rule="gpt2").filter_logits(scores)).sum() == 1  # never none
    equal = torch.zeros(1, 4)
    assert torch.isfinite(Sampling(top_k=2).filter_logits(equal)).all()  # equals of the last one kept


def test_draws_have_the_probabilities_of_the_model() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    sampling, count = Sampling(temperature=0.7), 20_000
    drawn = sampling.choose(scores.expand(count, -1), [fold(5, number) for number in range(count)])
    share = (scores / 0.7).softmax(-1).numpy()
    error = np.sqrt(share * (1 - share) / count)
    result = np.bincount(drawn, minlength=5) / count
    assert (np.abs(result - share) <= 4 * error).all()


def test_ids_without_a_token_are_never_written() -> None:
    model = decoder(vocab=320)  # the tokenizer has 300
    result = generate(model, prompts_of(5), Sampling(tokens=30, temperature=3.0))
    written = [token for item in result for token in item.ids]
    assert len(written) > 50
    assert max(written) < model.tokenizer.vocab


# --- beginnings and ends ----------------------------------------------------------------------------


def leaning(token: int, **changes: Any) -> LoadedModel:
    """A model that likes one token best."""
    model = decoder(bias=True, **changes)
    with torch.no_grad():
        model.objective.head.bias[token] = 1000.0
    return model


def test_end_of_text_ends_and_may_be_passed() -> None:
    end = decoder().tokenizer.special.end
    assert end is not None
    model = leaning(end)
    assert generate(model, ["the"], Sampling(tokens=5))[0] == Continuation("the", "", (), "end")
    beyond = generate(model, ["the"], Sampling(tokens=5, past_end=True))[0]
    assert beyond.ids == (end,) * 5 and beyond.ended == "tokens" and beyond.text == "[EOT]" * 5


def test_an_empty_prompt_begins_as_a_document() -> None:
    model = decoder()
    end = model.tokenizer.special.end
    alone = generate(model, [""], Sampling(tokens=6, temperature=0))[0]
    scores = torch.from_numpy(model.logits([[end, *alone.ids]])[0])  # type: ignore[list-item]
    assert alone.ids == tuple(scores[:-1].argmax(-1).tolist())
    assert str(alone) == alone.text


def test_documents_that_were_split_begin_behind_end_of_text() -> None:
    joined, split = decoder(), decoder(documents="split")
    ids = joined.tokenizer.encode("the cat").ids
    assert joined.frame(ids).tolist() == ids.tolist()
    assert split.frame(ids).tolist() == [joined.tokenizer.special.end, *ids]
    assert split.frame(ids[:0]).tolist() == joined.frame(ids[:0]).tolist() == [joined.tokenizer.special.end]


def test_a_full_context_slides_or_stops() -> None:
    model = decoder(context=16)
    prompt = model.tokenizer.decode(list(range(20, 30)))
    size = len(model.tokenizer.encode(prompt))
    stopped = generate(model, [prompt], Sampling(tokens=40, temperature=0, overflow="stop", past_end=True))[0]
    assert stopped.ended == "context" and len(stopped.ids) == 16 - size + 1 and stopped.slides == 0
    slid = generate(model, [prompt], Sampling(tokens=40, temperature=0, past_end=True))[0]
    assert slid.ended == "tokens" and slid.ids[: len(stopped.ids)] == stopped.ids
    assert slid.slides == window_start(size + 39, 16, 8) // 8 > 1
    with pytest.raises(UserError, match=r"The prompt has \d+ tokens, and the model sees at most 16"):
        generate(model, [prompt * 3], Sampling(overflow="stop"))


def test_a_prompt_longer_than_the_context_is_seen_from_its_end() -> None:
    model = decoder(context=16)
    ids = model.tokenizer.encode(TEXTS[0]).ids
    start = window_start(len(ids), 16, 8)
    assert len(ids) - 16 <= start <= len(ids) - 8
    first = generate(model, [TEXTS[0]], Sampling(tokens=1, temperature=0))[0]
    assert first.ids[0] == int(model.logits([ids[start:]])[0][-1].argmax()) and first.slides == 1


def test_stop_strings_end_the_text_before_them() -> None:
    model, prompts = decoder(), prompts_of(20)
    free = generate(model, prompts, Sampling(tokens=30, seed=2))
    stops = [free[4].text[3:6], free[9].text[1:3], "never there"]
    stopped = generate(model, prompts, Sampling(tokens=30, seed=2, stop=stops))
    for whole, cut in zip(free, stopped, strict=True):
        # letter by letter: the shortest beginning that ends with a stop string
        ends = [n for n in range(len(whole.text) + 1) if any(whole.text[:n].endswith(stop) for stop in stops)]
        if ends:
            longest = max(len(stop) for stop in stops if whole.text[: ends[0]].endswith(stop))
            assert cut.text == whole.text[: ends[0] - longest] and cut.ended == "stop"
        else:
            assert cut == whole
    assert {item.ended for item in stopped} >= {"stop", "tokens"}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tokens_taken_together_are_those_taken_one_by_one(data: st.DataObject) -> None:
    """Whatever ends the text among them: an end-of-text, a stop string, the number of tokens, the context."""
    model = decoder(context=16)
    tokens = data.draw(st.lists(st.integers(0, model.tokenizer.vocab - 1), min_size=1, max_size=24))
    stop = data.draw(st.sampled_from([(), ("e",), ("a", "the")]))
    limit, overflow = data.draw(st.integers(1, 24)), data.draw(st.sampled_from(["slide", "stop"]))
    sampling = Sampling(tokens=limit, stop=stop, past_end=data.draw(st.booleans()), overflow=overflow)
    single, several = (generation.Sample(model, TEXTS[0][:9], sampling) for _ in range(2))
    for token in tokens:
        if single.ended is None:
            single.take(token)
    while tokens and several.ended is None:
        count = data.draw(st.integers(1, len(tokens)))
        several.take_all(tokens[:count])
        tokens = tokens[count:]
    assert (several.ids, several.ended, "".join(several.pieces)) == (single.ids, single.ended, "".join(single.pieces))


def test_a_stream_is_the_text_in_whole_characters() -> None:
    model = decoder()
    result = model.generate("고양이가", tokens=60, seed=4, stop=["앉"])
    pieces = list(model.stream("고양이가", tokens=60, seed=4, stop=["앉"]))
    assert isinstance(result, Continuation)
    assert "".join(pieces) == result.text and len(pieces) > 10
    second = model.generate("고양이가", tokens=60, seed=4, samples=2)
    assert isinstance(second, list)
    assert "".join(model.stream("고양이가", tokens=60, seed=4, sample=1)) == second[1].text


def test_korean_is_streamed_by_the_syllable() -> None:
    """One byte a token, three a syllable: a piece comes with the third."""
    model = decoder("bytebpe:262")
    syllables = model.tokenizer.encode("고양이").ids.tolist()
    assert len(syllables) == 9
    sample = generation.Sample(model, "", Sampling(tokens=20))
    assert [sample.take(token) for token in syllables] == ["", "", "고", "", "", "양", "", "", "이"]


def test_what_cannot_be_asked_is_said() -> None:
    with pytest.raises(UserError, match="use fill"):
        encoder().generate("the cat")
    wrong = {
        "temperature=-1": {"temperature": -1},
        "temperature=inf": {"temperature": float("inf")},  # ids without a token became the likeliest
        "temperature=nan": {"temperature": float("nan")},
        "top_k=0": {"top_k": 0},
        "top_p=0": {"top_p": 0.0},
        "tokens=0": {"tokens": 0},
        "samples=0": {"samples": 0},
        "overflow is": {"overflow": "wrap"},
        "top_p_rule is": {"top_p_rule": "gpt3"},
        "list of strings": {"stop": "x"},
        "stop string is empty": {"stop": [""]},
    }
    for word, asked in wrong.items():
        with pytest.raises(UserError, match=word):
            decoder().generate("the", **asked)  # type: ignore[arg-type]
