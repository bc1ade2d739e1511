"""Search in recorded stages writes what search step by step does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.inference.translation import require_translator, translate_tokens
from etude.models import encoder_decoder, recurrent_seq2seq
from etude.models.seq2seq import Seq2Seq
from etude.nn.packed import pack
from etude.objectives import translate as objective_kind
from etude.objectives.translate import Translate
from etude.tasks.translate import recorded_search
from etude.tasks.translate.decoding import make_scorer
from etude.tasks.translate.search import Beams, Hypothesis, Search, search_targets
from tests.inference.test_translation import make
from tests.objectives.small_corpus import tokenizer
from tests.recordings import Recorder, Unrecordable

VOCAB, CONTEXT = 30, 40
DRAW = np.random.default_rng(0)
SOURCES = [DRAW.integers(6, VOCAB, length).tolist() for length in (3, 9, 1, 5, 17, 2, 7)]


@torch.no_grad()
def run(
    model: Seq2Seq,
    objective: Translate,
    search: Search,
    recorder: Recorder | recorded_search.SearchRecorder | None,
    extra: int = 20,
    sources: list[list[int]] = SOURCES,
) -> dict[int, list[Hypothesis]]:
    packed = pack([[*source, objective.end] for source in sources])
    decoding = model.start_decoding(packed, search.beams)
    lengths = torch.from_numpy(packed.layout.lengths.astype(np.int64))
    beams = Beams(search, objective.start_token, objective.end, lengths, (lengths + extra).clamp(max=CONTEXT))
    score = make_scorer(model, objective, torch.device("cpu"), None)
    if recorder is None:
        return dict(search_targets(decoding, score, beams))
    if isinstance(recorder, Recorder):
        recorder = recorded_search.SearchRecorder(model, score, recorder)
    return recorder.search(decoding, beams)


@pytest.mark.parametrize("convention", ["wu", "generate"])
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_stages_write_what_single_steps_do(
    convention: str, beams: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_search, "ROOM", 4)
    model, objective = require_translator(make(seed, context=CONTEXT, vocab=VOCAB))
    for extra in (0, 20):
        search = Search(beams=beams, best=beams, convention=convention, penalty=0.8)  # type: ignore[arg-type]
        recorder = Recorder()
        expected, results = run(model, objective, search, None, extra), run(model, objective, search, recorder, extra)
        assert results.keys() == expected.keys() == set(range(len(SOURCES)))
        for number, hypotheses in expected.items():
            assert [each.ids for each in results[number]] == [each.ids for each in hypotheses]
            assert [each.is_finished for each in results[number]] == [each.is_finished for each in hypotheses]
            for mine, other in zip(results[number], hypotheses, strict=True):
                assert (mine.score, mine.log_prob) == pytest.approx((other.score, other.log_prob), abs=1e-4)
    longest = max(len(each.ids) for hypotheses in expected.values() for each in hypotheses)
    assert recorder.replays > 0 or longest < 4


def test_sources_of_one_token_and_targets_of_one() -> None:
    """The first step is the last one: nothing is left to record."""
    model, objective = require_translator(make(0, context=CONTEXT, vocab=VOCAB))
    search, recorder = Search(beams=2), Recorder()
    packed = pack([[7, objective.end]])
    lengths = torch.tensor([2])
    with torch.no_grad():
        beams = Beams(search, objective.start_token, objective.end, lengths, torch.tensor([1]))
        score = make_scorer(model, objective, torch.device("cpu"), None)
        decoding = model.start_decoding(packed, search.beams)
        searcher = recorded_search.SearchRecorder(model, score, recorder)
        [(number, hypotheses)] = searcher.search(decoding, beams).items()
    assert number == 0 and len(hypotheses) == 1 and len(hypotheses[0].ids) <= 1 and not recorder.graphs


def test_a_search_that_cannot_be_recorded_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_search, "ROOM", 4)
    model, objective = require_translator(make(0, context=CONTEXT, vocab=VOCAB))
    expected, recorder = run(model, objective, Search(), None), Recorder(Unrecordable)
    with pytest.warns(UserWarning, match="not recorded as CUDA graphs: operation not permitted") as warnings:
        results = run(model, objective, Search(), recorder)
    assert len(warnings) == 1 and recorder.replays == 0
    assert [results[number][0].ids for number in expected] == [expected[number][0].ids for number in expected]


def make_searcher(seed: int = 0) -> tuple[Seq2Seq, Translate, recorded_search.SearchRecorder, Recorder]:
    model, objective = require_translator(make(seed, context=CONTEXT, vocab=VOCAB))
    recorder, score = Recorder(), make_scorer(model, objective, torch.device("cpu"), None)
    return model, objective, recorded_search.SearchRecorder(model, score, recorder), recorder


def ids_of(results: dict[int, list[Hypothesis]]) -> dict[int, list[tuple[int, ...]]]:
    return {number: [each.ids for each in hypotheses] for number, hypotheses in results.items()}


def test_later_sources_find_what_earlier_ones_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the earlier ones is seen, whether the later are fewer, more, shorter or longer."""
    monkeypatch.setattr(recorded_search, "ROOM", 16)
    model, objective, searcher, recorder = make_searcher()
    search = Search(beams=3, best=2)
    for sources in (SOURCES, SOURCES[3:], [source[:3] for source in SOURCES], SOURCES[::-1]):
        results = run(model, objective, search, searcher, sources=sources)
        assert ids_of(results) == ids_of(run(model, objective, search, None, sources=sources))
    count = len(recorder.graphs)
    run(model, objective, search, searcher, sources=SOURCES[1:])
    assert len(recorder.graphs) == count == len(searcher.stages) and recorder.replays > 3 * count


def test_only_the_stages_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_search, "STAGES", 2)
    monkeypatch.setattr(recorded_search, "ROOM", 4)
    model, objective, searcher, _ = make_searcher()
    for search in (Search(beams=2), Search(beams=3)):
        results = run(model, objective, search, searcher)
        assert ids_of(results) == ids_of(run(model, objective, search, None))
        assert len(searcher.stages) == 2 and {shape.search for shape in searcher.stages} == {search}


def test_weights_that_moved_are_told() -> None:
    model, _, searcher, _ = make_searcher()
    assert searcher.fits(model)
    weight = next(model.parameters())
    weight.data = weight.data.clone()
    assert not searcher.fits(model)


def test_a_recurrent_decoder_goes_step_by_step() -> None:
    torch.manual_seed(0)
    settings = recurrent_seq2seq.Settings(layers=1, width=16, embedding_width=16, vocab=VOCAB)
    model = recurrent_seq2seq.build(settings)
    objective = objective_kind.build(
        objective_kind.Settings(tied=False, length=CONTEXT), model, tokenizer(VOCAB).special
    )
    recorder = Recorder()
    results, expected = (run(model, objective, Search(), each) for each in (recorder, None))
    assert {number: best[0].ids for number, best in results.items()} == {
        number: best[0].ids for number, best in expected.items()
    }
    assert not recorder.graphs


@pytest.mark.gpu
@pytest.mark.filterwarnings("error:.*are not recorded as CUDA graphs")
@pytest.mark.parametrize("convention", ["wu", "generate"])
def test_a_gpu_writes_what_a_cpu_does(convention: str) -> None:
    texts = [np.array([*source, 5]) for source in SOURCES * 20]
    search = Search(beams=4, best=2, convention=convention)  # type: ignore[arg-type]
    written = {}
    for device in ("cpu", "cuda"):
        loaded = make(1, context=CONTEXT, vocab=VOCAB)
        loaded.model.to(device)
        loaded.objective.to(device)
        loaded.device = device
        written[device] = [
            [[each.ids for each in best] for best in translate_tokens(loaded, part, search)]
            for part in (texts, texts[30:], texts[:70])  # the later ones by recordings of the first
        ]
    assert written["cpu"] == written["cuda"]
    assert isinstance(loaded.model, encoder_decoder.EncoderDecoder)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_penalty_is_a_number_from_0_on(value: float) -> None:
    for name in ("penalty", "coverage"):
        with pytest.raises(UserError, match=f"{name}={value} is below 0 or not finite"):
            Search(**{name: value})
