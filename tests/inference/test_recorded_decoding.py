"""Generation by recorded steps writes what it writes without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from etude.inference import generation, reader, recorded_decoding
from etude.inference.beam_search import search
from etude.inference.generation import Sampling, generate
from etude.inference.reader import Reader, Writing
from tests.inference.test_generation import AXES, SAMPLINGS, ids_of, prompts_of
from tests.recordings import Recorder, Unrecordable
from tests.tiny_models import decoder


def record_on_cpu(monkeypatch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    monkeypatch.setattr(Reader, "_records", lambda self: True)
    monkeypatch.setattr(recorded_decoding, "ROOM", 16)
    monkeypatch.setattr(reader, "CudaGraphs", lambda device, frees_memory: recorder)


@pytest.mark.parametrize("name", ["greedy", "narrow"])
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_recorded_steps_write_the_same(axes: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where texts end one by one, and where a context slides."""
    model, prompts, recorder = decoder(context=32, **axes), prompts_of(7), Recorder()
    sampling = SAMPLINGS[name]
    for tokens in (6, 24):  # the second slides
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


def test_later_texts_find_the_stages_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the earlier ones is seen; numbers of texts are rounded up, and lengths by doubling."""
    model, recorder = decoder(context=64), Recorder()
    asked = Sampling(tokens=20, temperature=0, past_end=True)
    groups = [prompts_of(7), prompts_of(8)[::-1], prompts_of(5)]
    expected = [generate(model, prompts, asked, cached=False) for prompts in groups]
    record_on_cpu(monkeypatch, recorder)
    counts = []
    for prompts, texts in zip(groups, expected, strict=True):
        assert generate(model, prompts, asked) == texts
        counts.append(len(recorder.graphs))
    assert counts[1] == counts[0] < counts[2]  # 8 rows twice, then 6
    assert model.step_recorder is not None
    stages = model.step_recorder.unused
    assert {len(stage.step.tokens) for stage in stages} == {6, 8} and len(stages) == len(recorder.graphs)
    monkeypatch.setattr(model.step_recorder, "kept_bytes", stages[-1].bytes)
    generate(model, groups[2], asked)
    assert len(model.step_recorder.unused) == 1


def test_two_readers_never_share_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch, Recorder())
    model, prompts = decoder(context=64), [[3, 4], [5]]
    with Reader(model, prompts) as first, Reader(model, prompts) as second, Reader(model, prompts, False) as plain:
        for tokens in ([1, 2], [3, 4], [5, 6], [7, 8], [9, 10]):
            logits = [each.next_logits().clone() for each in (first, second, plain)]
            for each in (first, second, plain):
                each.extend(tokens)
            torch.testing.assert_close(logits[0], logits[2], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits[1], logits[2], atol=1e-5, rtol=1e-5)
    assert model.step_recorder is not None and len(model.step_recorder.unused) == 2


def test_a_later_search_finds_the_stages_of_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, model, prompt = Recorder(), decoder(context=64), prompts_of(1)[0]
    expected = search(model, prompt, 12, beams=3, cached=False)
    record_on_cpu(monkeypatch, recorder)
    assert [text.ids for text in search(model, prompt, 12, beams=3)] == [text.ids for text in expected]
    graphs = len(recorder.graphs)
    search(model, prompt, 12, beams=3)
    assert graphs and len(recorder.graphs) == graphs


def test_weights_that_moved_are_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch, Recorder())
    model = decoder(context=64)
    before = generate(model, prompts_of(2), SAMPLINGS["greedy"])
    recorder = model.step_recorder
    for weight in model.model.parameters():
        weight.data = -weight.data
    after = generate(model, prompts_of(2), SAMPLINGS["greedy"])
    assert model.step_recorder is not recorder and after != before
    assert after == generate(model, prompts_of(2), SAMPLINGS["greedy"], cached=False)


def test_a_stage_made_in_inference_mode_serves_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch, Recorder())
    model, asked = decoder(context=64), Sampling(tokens=20, temperature=0, past_end=True)
    with torch.inference_mode():
        texts = generate(model, prompts_of(3), asked)
    assert generate(model, prompts_of(3), asked) == texts


def test_no_step_keeps_what_gradients_need(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch, Recorder())
    draw, modes = Sampling.draw, list[bool]()

    def watch(self: Sampling, logits: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        modes.append(logits.requires_grad or torch.is_grad_enabled())
        return draw(self, logits, keys)

    monkeypatch.setattr(Sampling, "draw", watch)
    generate(decoder(context=64), prompts_of(2), Sampling(tokens=20, temperature=0, past_end=True))
    assert len(modes) == 20 and not any(modes)


def test_a_host_waits_once_for_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps of a room are not recorded yet, but nobody waits for these either."""
    record_on_cpu(monkeypatch, Recorder())
    steps: list[int] = []
    wait = Writing.wait

    def count(self: Writing) -> list[list[int]]:
        tokens = wait(self)
        steps.append(len(tokens))
        return tokens

    monkeypatch.setattr(Writing, "wait", count)
    texts = generate(decoder(context=128), prompts_of(3), Sampling(tokens=100, temperature=0, past_end=True))
    assert sum(steps) == 100 and all(len(text.ids) == 100 for text in texts)
    assert max(steps) == generation.AHEAD and len(steps) < 24


def test_the_device_writes_on_while_the_host_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_cpu(monkeypatch, Recorder())
    monkeypatch.setattr(recorded_decoding, "ROOM", 256)
    under_way: list[int] = []
    under_way_before: list[int] = []
    take_all, wait = generation.Sample.take_all, Writing.wait
    readers: list[Reader] = []
    start = Reader.__init__

    def open_reader(self: Reader, *arguments: Any) -> None:
        start(self, *arguments)
        readers.append(self)

    def look(self: generation.Sample, tokens: Any) -> str:
        under_way.append(len(readers[0].steps_under_way))
        return take_all(self, tokens)

    def watch(self: Writing) -> list[list[int]]:
        under_way_before.append(len(readers[0].steps_under_way))
        return wait(self)

    monkeypatch.setattr(Reader, "__init__", open_reader)
    monkeypatch.setattr(generation.Sample, "take_all", look)
    monkeypatch.setattr(Writing, "wait", watch)
    texts = generate(decoder(context=256), prompts_of(1), Sampling(tokens=100, temperature=0, past_end=True))
    assert len(texts[0].ids) == 100
    # the prompt's own token is the host's; of the last tokens none follow
    assert under_way[0] == 0 and under_way[-2:] == [1, 0] and set(under_way[1:-2]) == {2} and len(under_way) > 9
    # and when the host waits for the older lot, the next one is launched already
    assert set(under_way_before[2:-1]) == {1}


def test_texts_that_end_while_others_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens written ahead for a text that has ended are dropped, and the others lose none."""
    model, prompts, recorder = decoder(context=64), prompts_of(9), Recorder()
    asked = Sampling(tokens=40, seed=3, stop=("e",))
    expected = generate(model, prompts, asked, cached=False)
    assert len({len(text.ids) for text in expected}) > 2
    record_on_cpu(monkeypatch, recorder)
    monkeypatch.setattr(recorded_decoding, "ROOM", 64)
    assert generate(model, prompts, asked) == expected


class Greedy:
    """The likeliest tokens, up to eight of each text at a time."""

    steps = 8

    def __call__(self, logits: torch.Tensor, step: int) -> torch.Tensor:
        return logits.argmax(-1)


def test_the_row_of_a_text_that_ended_stays_inside_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on beside shorter texts, from where it stood: a table of positions has no row behind the context."""
    record_on_cpu(monkeypatch, Recorder())
    monkeypatch.setattr(recorded_decoding, "ROOM", 64)  # of a buffer: more than the context
    model = decoder(context=32)
    with Reader(model, [list(range(3, 23)), [5], [6]]) as reader, Reader(model, [[5], [6]], False) as plain:
        for _ in range(2):
            reader.write(Greedy())
        reader.keep([1, 2])
        while len(reader.sequences[0]) < 32:
            if reader.write_ahead(Greedy()):
                reader.collect()
            else:
                reader.write(Greedy())
        while len(plain.sequences[0]) < len(reader.sequences[0]):
            plain.write(Greedy())
        assert len(reader.rows) == 3 and reader.sequences == plain.sequences


def test_steps_that_cannot_be_recorded_are_taken_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = decoder(context=64), prompts_of(3)
    expected = generate(model, prompts, SAMPLINGS["greedy"], cached=False)
    record_on_cpu(monkeypatch, Recorder(Unrecordable))
    with pytest.warns(UserWarning, match="not recorded as CUDA graphs: operation not permitted") as warnings:
        assert generate(model, prompts, SAMPLINGS["greedy"]) == expected
    assert len(warnings) == 1


def test_the_host_waits_for_the_gpu_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the current one, which may be another: tokens would be read before they have arrived."""
    streams: list[object] = []

    class Event:
        def record(self, stream: object = None) -> None:
            streams.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    with FakeTensorMode():  # tensors of a GPU that is not there
        Writing([torch.zeros(3, dtype=torch.int64, device="cuda:1")] * 2, 2)
    assert streams == ["the stream of cuda:1"]


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


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_next_tokens_are_launched_without_waiting(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent to a GPU by a copy that waits, such as random keys, waits for all tokens under way."""
    model, asked = decoder(context=64), Sampling(tokens=40, temperature=temperature, past_end=True)
    model.model.to("cuda")
    model.objective.to("cuda")
    model.device = "cuda"
    expected = generate(model, prompts_of(1), asked)  # compiles and records
    launch = generation._write_ahead

    def launch_strictly(*arguments: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(generation, "_write_ahead", launch_strictly)
    assert generate(model, prompts_of(1), asked) == expected
