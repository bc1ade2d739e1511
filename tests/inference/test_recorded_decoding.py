"""Generation by recorded steps writes what it writes without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.inference import generation
from etude.inference.generation import Reader, Sampling, generate
from tests.inference.test_generation import AXES, SAMPLINGS, ids_of, prompts_of
from tests.recordings import Recorder, Unrecordable
from tests.tiny_models import decoder


def record_on_cpu(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    monkeypatch.setattr(Reader, "_records", lambda self: self.cache is not None)
    monkeypatch.setattr(generation, "CudaGraphs", lambda device, frees_memory: recorder)


@pytest.mark.parametrize("name", ["greedy", "narrow"])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_recorded_steps_write_the_same(axes: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where texts end one by one, and where a context slides."""
    model, prompts, recorder = decoder(context=32, **axes), prompts_of(7), Recorder()
    sampling = SAMPLINGS[name]
    for tokens in (14, 30):  # the second slides
        asked = Sampling(**{**vars(sampling), "tokens": tokens})
        expected = generate(model, prompts, asked, samples=2, cached=False)
        with monkeypatch.context() as patch:
            record_on_cpu(patch, recorder)
            assert generate(model, prompts, asked, samples=2) == expected
    assert recorder.replays > 10 and any(item.slides for item in expected)


def test_rows_of_ended_texts_stay_until_half_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    record_on_cpu(monkeypatch, recorder)
    model = decoder(context=64)
    reader, plain = Reader(model, [[3, 4], [5], [6, 7, 8], [9]]), Reader(model, [[3, 4], [5], [6, 7, 8], [9]], False)

    def compare(tokens: list[int]) -> None:
        for each in (reader, plain):
            each.extend(tokens)
        torch.testing.assert_close(reader.next_logits(), plain.next_logits(), atol=1e-5, rtol=1e-5)

    torch.testing.assert_close(reader.next_logits(), plain.next_logits(), atol=1e-5, rtol=1e-5)
    for step in range(4):
        compare([step, step + 1, step + 2, step + 3])
    reader.keep([0, 2, 3])
    plain.keep([0, 2, 3])
    assert len(reader.rows) == 4 and len(reader.sequences) == 3
    for step in range(3):
        compare([step, 7, 8])
    graphs = len(recorder.graphs)
    for each in (reader, plain):  # a server adds texts while others go on
        each.extend([1, 2, 3])
        each.add([[11, 12]])
    assert len(reader.rows) == 4 and reader.sequences == plain.sequences
    torch.testing.assert_close(reader.next_logits(), plain.next_logits(), atol=1e-5, rtol=1e-5)
    for step in range(4):
        compare([step, 7, 8, 9])
    reader.keep([3, 1])  # another order
    plain.keep([3, 1])
    assert len(reader.rows) == 2
    compare([1, 2])
    assert len(recorder.graphs) > graphs


def test_steps_that_cannot_be_recorded_are_taken_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = decoder(context=64), prompts_of(3)
    expected = generate(model, prompts, SAMPLINGS["greedy"], cached=False)
    record_on_cpu(monkeypatch, Recorder(Unrecordable))
    with pytest.warns(UserWarning, match="not recorded as CUDA graphs: operation not permitted") as warnings:
        assert generate(model, prompts, SAMPLINGS["greedy"]) == expected
    assert len(warnings) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_a_gpu_writes_what_a_cpu_does(axes: dict[str, Any]) -> None:
    asked, prompts = Sampling(tokens=40, temperature=0), prompts_of(9)
    written = {}
    for device in ("cpu", "cuda"):
        model = decoder(context=64, **axes)
        model.model.to(device)
        model.objective.to(device)
        model.device = device
        written[device] = ids_of(generate(model, prompts, asked))
    assert written["cpu"] == written["cuda"]
