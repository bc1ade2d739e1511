"""Beside exactness: the loop learns, stops with a name, says what to change, and keeps the best."""

from __future__ import annotations

import json
import math
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.models import recurrent, transformer
from etude.objectives import bilm, causal
from etude.objectives.base import Term
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import checkpoint, evaluation, schedule
from etude.train.averaging import average_checkpoints
from etude.train.loop import Loop
from etude.train.parallel import Ranks
from etude.train.saver import SaveTimer
from etude.train.settings import Settings


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Sentences that count upwards from a random start: learnable at a glance."""
    words = {
        word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOT]", *map(str, range(24))])
    }
    special = [
        {
            "id": i,
            "content": word,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for word, i in list(words.items())[:6]
    ]
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    content = {"version": "1.0", "added_tokens": special, "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    draw = np.random.default_rng(0)
    documents = [[((np.arange(12) + start) % 24 + 6).tolist()] for start in draw.integers(0, 24, 300)]
    return Corpus.from_documents(documents, Tokenizer(json.dumps(content)))


def loop(folder: Path, corpus: Corpus, *, valid: bool = False, dropout: float = 0.0, **settings: object) -> Loop:
    torch.manual_seed(0)
    shape = transformer.Settings(layers=1, width=32, heads=2, context=16, vocab=30, direction="causal", dropout=dropout)
    model = transformer.build(shape)
    objective = causal.build(causal.Settings(row_tokens=64), model, corpus.tokenizer.special)
    usual = {"steps": 20, "batch_tokens": 256, "lr": 1e-2, "precision": "float32", "log_every": 5, "workers": 0}
    train = Settings(**(usual | settings))  # type: ignore[arg-type]
    rows = objective.rows(corpus, 0)
    held = objective.rows(corpus, 0) if valid else None
    return Loop(folder, model, objective, rows, train, total=train.steps or 0, valid_rows=held, tokens_per_byte=0.5)


def test_it_learns_and_counts(tmp_path: Path, corpus: Corpus) -> None:
    run = loop(tmp_path, corpus, valid=True, steps=60, eval_every=30)
    result = run.run()
    assert result.finished and result.state.step == 60
    assert result.state.tokens == 60 * 256
    assert result.valid["loss"] < 0.7 < math.log(24)  # a random start every 13 tokens is all that is left
    assert result.valid["bits_per_byte"] == pytest.approx(result.valid["loss"] * 0.5 / math.log(2))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "valid"] == [30, 60]
    assert all({"step", "tokens", "flops", "seconds", "loss"} <= line.keys() for line in lines)
    per_step = sum(run.objective.flops(run.model, batch) for batch in run.loader.step(0).batches)
    assert lines[-1]["flops"] == pytest.approx(60 * per_step, rel=0.02)


def test_an_evaluation_leaves_no_trace(tmp_path: Path, corpus: Corpus) -> None:
    with_it = loop(tmp_path / "a", corpus, valid=True, dropout=0.2, steps=6, eval_every=1)
    without = loop(tmp_path / "b", corpus, valid=True, dropout=0.2, steps=6, eval_every=0)
    first, second = with_it.run(), without.run()
    assert first.valid == second.valid  # the last step is always evaluated
    for one, two in zip(with_it.learner.parameters(), without.learner.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("where", ["forward", "backward", "parameter"])
def test_a_non_finite_tensor_is_named_and_the_weights_are_safe(tmp_path: Path, corpus: Corpus, where: str) -> None:
    run = loop(tmp_path, corpus, steps=4)
    branch = run.model.feedforward[0]  # type: ignore[index, union-attr]
    if where == "forward":
        branch.up.register_forward_hook(lambda _module, _inputs, output: output * float("nan"))
        expected = r"the output of model\.feedforward\.0\.up"
    elif where == "backward":
        branch.up.weight.register_hook(lambda gradient: gradient * float("inf"))
        expected = r"the gradient of model\.feedforward\.0\.up\.weight"
    else:
        with torch.no_grad():
            branch.up.weight[0, 0] = float("nan")
        expected = r"the parameter model\.feedforward\.0\.up\.weight"
    before = {name: value.clone() for name, value in run.learner.state_dict().items()}
    with pytest.raises(UserError, match=rf"step 1: {expected}.*is not finite.*train\.lr"):
        run.run()
    for name, value in run.learner.state_dict().items():
        assert torch.equal(value.nan_to_num(), before[name].nan_to_num())
    assert checkpoint.list_steps(tmp_path / "checkpoints") == []


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_names_three_settings(tmp_path: Path, corpus: Corpus, error: Exception) -> None:
    run = loop(tmp_path, corpus, steps=4)

    def full(*_: object) -> dict[str, Term]:
        raise error

    run.objective.loss = full  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"train\.micro_tokens=128.*objective\.row_tokens=32"):
        run.run()


def test_what_to_do_without_memory_is_what_the_objective_takes(tmp_path: Path, corpus: Corpus) -> None:
    """A row of one sequence cannot be halved, and the rows of a biLM have no setting of that name."""
    shape = recurrent.Settings(layers=1, width=8, cells=12, vocab=30)
    model = recurrent.build(shape)
    lanes = bilm.build(bilm.Settings(unroll=8), model, corpus.tokenizer.special)
    gpt = transformer.build(transformer.Settings(layers=1, width=32, heads=2, context=16, vocab=30, direction="causal"))
    joined = causal.build(causal.Settings(), gpt, corpus.tokenizer.special)
    advice = {}
    for name, trained, objective in (("bilm", model, lanes), ("causal", gpt, joined)):
        train = Settings(steps=1, batch_tokens=64, precision="float32", workers=0)
        (tmp_path / name).mkdir()
        run = Loop(tmp_path / name, trained, objective, objective.rows(corpus, 0), train, total=1)
        run.objective.loss = Mock(side_effect=MemoryError)  # type: ignore[method-assign]
        with pytest.raises(UserError) as raised:
            run.run()
        advice[name] = str(raised.value)
    assert "row_tokens" not in advice["bilm"]
    assert "objective.length=8 objective.row_tokens=8" in advice["causal"]


def test_another_runtime_error_is_not_mistaken_for_it(tmp_path: Path, corpus: Corpus) -> None:
    run = loop(tmp_path, corpus, steps=4)

    def broken(*_: object) -> dict[str, Term]:
        raise RuntimeError("shapes differ")

    run.objective.loss = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shapes differ"):
        run.run()


def test_the_best_checkpoint_stays(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    run = loop(tmp_path, corpus, valid=True, steps=30, eval_every=5, save_every=5, keep=1)
    losses = iter([3.0, 1.0, 2.0, 2.5, 4.0, 5.0])
    means = evaluation.average
    monkeypatch.setattr(evaluation, "average", lambda *given: means(*given) | {"loss": next(losses)})
    result = run.run()
    assert result.state.best_step == 10
    assert checkpoint.list_steps(tmp_path / "checkpoints") == [10, 30]


def test_an_interruption_leaves_the_checkpoints_that_are_averaged(tmp_path: Path, corpus: Corpus) -> None:
    settings: dict[str, object] = {"steps": 9, "save_every": 3, "keep": 2, "average": 2}
    loop(tmp_path / "whole", corpus, **settings).run()
    for stop in (4, 5, 7):  # twice between the same two checkpoints
        run = loop(tmp_path / "stopped", corpus, **settings)
        run.progress.update = lambda step, *_, run=run, stop=stop: run._interrupt() if step == stop else None  # type: ignore[method-assign, misc]
        assert not run.run().finished
        assert checkpoint.list_steps(tmp_path / "stopped" / "checkpoints")[-1] == stop
    assert loop(tmp_path / "stopped", corpus, **settings).run().finished
    (whole, steps), (stopped, others) = (
        average_checkpoints(tmp_path / name / "checkpoints", 2) for name in ("whole", "stopped")
    )
    assert steps == others == [6, 9]
    assert all(torch.equal(stopped[name], tensor) for name, tensor in whole.items())


def test_a_batch_ramp_reads_every_row_once(tmp_path: Path, corpus: Corpus) -> None:
    ramp = {"from_tokens": 64, "over_tokens": 512, "stages": 4}
    run = loop(tmp_path, corpus, steps=10, batch_tokens=256, batch_ramp=ramp)
    sizes = [len(run.loader.row_numbers(step)) for step in range(10)]
    assert sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] == 4
    epoch = len(run.rows)
    seen = np.concatenate([run.loader.row_numbers(step) for step in range(200)])[:epoch]
    assert sorted(seen) == list(range(epoch))
    assert run.run().state.tokens == 64 * schedule.rows_before(run.settings, 64, 10)
    assert run.progress.total_tokens == run.state.tokens  # the time left is that of steps that grow


def test_a_bf16_product_before_it_changes_no_bit_of_a_float32_run(tmp_path: Path, corpus: Corpus) -> None:
    undisturbed = loop(tmp_path / "a", corpus, steps=4)
    undisturbed.run()
    torch.backends.mkldnn.enabled = False  # what torch does itself after a bf16 product on a CPU without it
    after = loop(tmp_path / "b", corpus, steps=4)
    after.run()
    assert not torch.backends.mkldnn.enabled
    for one, two in zip(undisturbed.learner.parameters(), after.learner.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_clock_that_only_the_first_rank_starts_again_saves_once(tmp_path: Path, corpus: Corpus) -> None:
    """The other ranks write nothing, so their clocks stay due: they must not ask for a checkpoint at every step."""
    run = loop(tmp_path, corpus, save_every=0)
    run.saver.timer = SaveTimer(seconds=-1)  # due at once and for ever
    for rank, is_saved in ((0, True), (1, False)):
        run.ranks = Ranks(rank)
        assert run._must_save(finished=False) is is_saved
