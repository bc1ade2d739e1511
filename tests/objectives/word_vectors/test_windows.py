"""Windows as word2vec lays them: what is kept, how far they reach, what never crosses; the same in any company."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from etude.chance import Chance
from etude.errors import UserError
from etude.models import recurrent, static
from etude.objectives import cbow, skipgram
from etude.objectives.word_vectors.batched_update import make_pairs
from etude.objectives.word_vectors.windows import CorpusTables
from etude.text.corpus.corpus import Corpus
from etude.train.loader import Loader
from tests.objectives.small_corpus import SPECIAL, VOCAB, small_corpus
from tests.objectives.word_vectors.word_windows import UNKNOWN, batch_of, corpus_of, slow_windows, system


def test_windows_are_those_of_the_slow_way() -> None:
    _, objective = system(skipgram, window=3, subsample=0.02, row_tokens=50)
    rows = objective.rows(corpus_of(), seed=0)
    numbers = [2, 0, 3, 1]
    batch = batch_of(objective, rows, numbers)
    wanted = [
        w for number in numbers for w in slow_windows(rows[number], objective.settings, objective.text, Chance(11, 3))
    ]
    assert len(wanted) > 50
    words, low, high = batch.words.numpy(), batch.low.numpy(), batch.high.numpy()
    found = [(place - low[place], words[low[place] : high[place]].tolist()) for place in range(len(words))]
    assert found == [(place, around) for place, around, _ in wanted]
    assert batch.counts == {"loss": sum(len(around) - 1 for _, around, _ in wanted)} and batch.size == 180
    assert batch.pairs.tolist() == [0, batch.counts["loss"]]


def test_rows_cover_the_corpus_and_end_sequences_at_documents() -> None:
    _, objective = system(skipgram, row_tokens=50)
    corpus = corpus_of(documents=4, size=30)  # bounds at 30, 60, 90; rows 0-50, 50-100, 100-120
    rows = objective.rows(corpus, seed=0)
    assert len(rows) == 3 and rows.shuffle and rows.row_tokens == 50
    assert [rows[i].bounds.tolist() for i in range(3)] == [[0, 30, 50], [0, 10, 40, 50], [0, 20]]
    assert np.concatenate([rows[i].tokens for i in range(3)]).tolist() == corpus.tokens(0, corpus.total).tolist()
    later = rows[5]
    assert later.index == 5 and later.tokens.tolist() == rows[2].tokens.tolist()


def test_no_window_crosses_a_document_or_a_row() -> None:
    """Each document has tokens of its own."""
    corpus = small_corpus([[[6 + number] * 9] for number in range(8)])
    _, objective = system(skipgram, window=5, subsample=None, row_tokens=20)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0, 1, 2, 3])
    pairs = make_pairs(batch, 0, len(batch.words), batch.counts["loss"])
    assert len(pairs.centres) == batch.counts["loss"] > 200
    assert batch.words[pairs.centres].equal(batch.words[pairs.contexts])
    assert (pairs.centres != pairs.contexts).all()


def test_windows_of_a_row_do_not_depend_on_its_company() -> None:
    _, objective = system(skipgram, window=4, subsample=0.05, row_tokens=40)
    rows = objective.rows(corpus_of(), seed=0)
    whole = batch_of(objective, rows, [4, 1, 0, 3])
    for place, number in enumerate([4, 1, 0, 3]):
        alone = batch_of(objective, rows, [number])
        first = whole.starts[place]
        part = slice(first, whole.starts[place + 1])
        assert whole.words[part].equal(alone.words) and whole.keys[part].equal(alone.keys)
        assert (whole.low[part] - first).equal(alone.low) and (whole.high[part] - first).equal(alone.high)
    assert whole.starts[-1] == len(whole.words)


def test_other_steps_and_epochs_draw_otherwise() -> None:
    _, objective = system(skipgram, row_tokens=40)
    rows = objective.rows(corpus_of(), seed=0)
    first, again = batch_of(objective, rows, [0], step=1), batch_of(objective, rows, [0], step=1)
    assert first.keys.equal(again.keys) and first.words.equal(again.words) and first.low.equal(again.low)
    for other in (batch_of(objective, rows, [0], step=2), batch_of(objective, rows, [len(rows)], step=1)):
        assert not set(first.keys.tolist()) & set(other.keys.tolist())


@pytest.mark.parametrize("keep", ["code", "paper"])
def test_sub_sampling_rate(keep: str) -> None:
    counts = np.zeros(VOCAB, np.int64)
    counts[6:10] = [9000, 900, 90, 10]
    threshold = 0.01
    options = skipgram.Settings(subsample=threshold, keep=keep)
    text = CorpusTables.from_counts(counts, options, UNKNOWN, static.build(static.Settings(width=2, vocab=VOCAB)))
    for token, count in zip(range(6, 10), [9000, 900, 90, 10], strict=True):
        ratio = threshold / (count / 10_000)
        wanted = min(1.0, math.sqrt(ratio) + (ratio if keep == "code" else 0))
        assert int(text.keep_probs[token]) / 2**32 == pytest.approx(wanted, rel=1e-6)
    corpus = small_corpus([[[6] * 9000 + [7] * 900 + [8] * 90 + [9] * 10]])
    _, objective = system(skipgram, window=1, subsample=threshold, keep=keep, row_tokens=10_000)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    share = float((batch.words == 6).sum()) / 9000
    expected = int(text.keep_probs[6]) / 2**32
    assert abs(share - expected) < 4 * math.sqrt(expected / 9000)


def test_unknown_words_are_neither_text_nor_noise() -> None:
    _, objective = system(skipgram, subsample=None, row_tokens=60)
    corpus = corpus_of()
    assert (corpus.tokens(0, corpus.total) == UNKNOWN).any()
    rows = objective.rows(corpus, seed=0)
    batch = batch_of(objective, rows, [0, 1, 2])
    assert (batch.words >= 6).all(), "special tokens are no words"
    own = objective.text.noise.accept > 0
    assert not own[:6].any() and (objective.text.noise.alias[:6] >= 6).all()


def test_windows_are_uniform() -> None:
    """With a fixed text of distinct places, distances 1..w appear in the ratio w : w-1 : ... : 1."""
    size, window = 4000, 4
    corpus = small_corpus([[[6 + place % 34 for place in range(size)]]])
    _, objective = system(skipgram, window=window, subsample=None, row_tokens=size)
    batch = batch_of(objective, objective.rows(corpus, seed=0), [0])
    reach = (batch.high - batch.low).numpy()[window:-window] // 2
    found = np.bincount(reach, minlength=window + 1)[1:] / len(reach)
    assert np.abs(found - 1 / window).max() < 4 * 0.5 / math.sqrt(size)


def test_a_held_out_part_has_the_chance_of_the_training_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, objective = system(skipgram)
    train, valid = corpus_of(seed=0), small_corpus([[[6, 7, 39]]])
    valid.split, valid._folder = "valid", tmp_path
    monkeypatch.setattr(Corpus, "open", lambda folder, *_: {str(tmp_path): train}[str(folder)])
    rows = objective.rows(valid, seed=0)
    assert rows[0].tokens.tolist() == [6, 7, 39]
    found = objective.text
    objective.rows(train, seed=0)
    np.testing.assert_array_equal(found.keep_probs, objective.text.keep_probs)
    np.testing.assert_array_equal(found.noise.accept, objective.text.noise.accept)


@pytest.mark.parametrize("module", [skipgram, cbow])
def test_a_single_word_gives_no_prediction_and_no_error(module) -> None:
    for output in ("negative", "hierarchical"):
        model, objective = system(module, output=output)
        batch = batch_of(objective, objective.rows(small_corpus([[[6]]]), seed=0), [0])
        assert batch.counts == {"loss": 0}
        assert float(objective.loss(model, batch)["loss"].sum.detach()) == 0.0
        assert float(objective.update(model, batch, 0.1)["loss"].sum) == 0.0


@pytest.mark.parametrize("module", [skipgram, cbow])
def test_what_is_refused(module) -> None:
    _, objective = system(module)
    with pytest.raises(UserError, match="no known words"):
        objective.rows(small_corpus([[[UNKNOWN, UNKNOWN]]]), seed=0)
    other = recurrent.build(recurrent.Settings(width=4, cells=4, vocab=VOCAB))
    with pytest.raises(UserError, match="static"):
        module.build(module.Settings(), other, SPECIAL)
    both = static.build(static.Settings(width=4, vocab=VOCAB, result="sum"))
    with pytest.raises(UserError, match=r"model\.result=sum"):
        module.build(module.Settings(), both, SPECIAL)


def test_batches_come_from_another_process_and_are_light() -> None:
    """For a GPU batches are built in processes: what they share with all others stays behind."""
    _, objective = system(skipgram, row_tokens=50)
    rows = objective.rows(corpus_of(), seed=0)
    there, here = (
        next(
            Loader(objective, rows, seed=1, batch_rows=lambda _: 3, rows_before=lambda step: 3 * step,
                   micro_tokens=None, workers=workers, processes=True).steps(0, 1)
        ).batches[0]
        for workers in (1, 0)
    )  # fmt: skip
    assert there.words.equal(here.words) and there.keys.equal(here.keys) and there.pairs.tolist() == here.pairs.tolist()
    hosted = [value for value in vars(there).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in hosted) < 1000
