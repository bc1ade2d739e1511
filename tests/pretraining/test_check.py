"""What is wrong with the text is said before the run: unknown tokens, duplicates that were kept, tables of numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.pretraining import check as checking
from etude.pretraining.check import check, find_text_problems
from etude.pretraining.trial import Speed
from etude.recipes.schema import Recipe
from etude.text.corpus.manifest import Report
from etude.text.prepare.prepare import prepare

pytestmark = pytest.mark.usefixtures("short_trials")

SENTENCES = [f"The {animal} number {number} sleeps near the old mill.\n\n"
             for number in range(10) for animal in ("cat", "dog", "hen", "owl")]  # fmt: skip


def report_of(folder: Path, text: str, unique: bool = False) -> Report:
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus = prepare(str(folder / "text.txt"), folder / "corpus", tokenizer="bpe:300", unique=unique, workers=0)
    return corpus.manifest["report"]


def test_clean_text_has_no_problems(tmp_path: Path) -> None:
    assert find_text_problems(report_of(tmp_path, "".join(SENTENCES))) == []


def test_duplicates_are_a_problem_unless_they_were_dropped(tmp_path: Path) -> None:
    text = "".join(SENTENCES + SENTENCES[:10])
    (tmp_path / "all").mkdir()
    (tmp_path / "unique").mkdir()
    assert find_text_problems(report_of(tmp_path / "all", text)) == [
        "20.0% of the documents are exact duplicates: prepare with --unique."
    ]
    assert find_text_problems(report_of(tmp_path / "unique", text, unique=True)) == []


def test_documents_that_are_no_text_are_named(tmp_path: Path) -> None:
    problems = find_text_problems(report_of(tmp_path, "".join([*SENTENCES, "0 1 2 3 4 5 6 7 8 9 " * 3, "\n\n"])))
    assert len(problems) == 1 and "2.4% of the documents do not look like text, the first at" in problems[0]
    assert "text.txt:81" in problems[0]


def test_a_held_out_part_that_cannot_be_asked_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(f"{s.strip()} The dog too.\n\n" for s in SENTENCES), encoding="utf-8")
    corpus = prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="wordpiece:100", workers=0)
    assert corpus.manifest["parts"]["valid"]["documents"] == 1
    told = r"held-out part of .*objective\.sentence=next takes sentences from another document.*--valid 0\.1"
    with pytest.raises(UserError, match=told):
        check(Recipe.load("bert-toy"), corpus)


def test_a_held_out_part_shorter_than_a_row_is_not_taken_for_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(SENTENCES * 20), encoding="utf-8")
    corpus = prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="word:100", valid=0.03, workers=0)
    assert corpus.total > 5_000 and 0 < corpus.manifest["parts"]["valid"]["tokens"] < 500
    told = r"held-out part of .*: \d{2,3} tokens are fewer than one row of objective\.unroll=500\..*--valid 0\.1"
    changes = {"objective.unroll": 500, "train.batch_tokens": 500}
    with pytest.raises(UserError, match=told):
        check(Recipe.load("bilm-toy"), corpus, changes)


@pytest.mark.parametrize(
    ("name", "term"),
    [
        ("gpt2-toy", "loss"),
        ("bert-toy", "mlm"),
        ("two-tower-toy", "cloze"),
        ("electra-toy", "generator"),
        ("glove-toy", None),
    ],
)
def test_the_entropy_of_tokens_is_a_loss_to_beat_of_tokens_only(name: str, term: str | None, tmp_path: Path) -> None:
    """A discriminator's loss, or GloVe's of counts, has nothing to do with it, and may start below."""
    (tmp_path / "text.txt").write_text("".join(f"{s.strip()} The dog too.\n\n" for s in SENTENCES), encoding="utf-8")
    spec = "word:100" if name == "glove-toy" else "wordpiece:100"
    corpus = prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer=spec, valid=0.2, workers=0)
    checked = check(Recipe.load(name), corpus, {"train.steps": 2})
    assert checked.token_loss == term and (checked.unigram_nats is None) == (term is None)


def test_the_tokens_of_sources_are_no_loss_to_beat_of_targets(tmp_path: Path) -> None:
    """A corpus of pairs counts both sides, under two tokenizers even as if their ids were the same tokens."""
    lines = "".join(f"the cat {number % 7} sat\tdie Katze {number % 7} sass\n" for number in range(60))
    (tmp_path / "pairs.tsv").write_text(f"en\tde\n{lines}", encoding="utf-8")
    corpus = prepare(
        str(tmp_path / "pairs.tsv"), tmp_path / "corpus", tokenizer="bpe:60", pairs="en,de", valid=0.2, workers=0
    )
    assert check(Recipe.load("transformer-toy"), corpus, {"train.steps": 2}).unigram_nats is None


def test_a_share_to_hold_out_is_one_that_holds_something(tmp_path: Path) -> None:
    """Of forty documents the usual hundredth may hold none, and to ask for it again would change nothing."""
    (tmp_path / "text.txt").write_text("".join(SENTENCES), encoding="utf-8")
    corpus = prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="wordpiece:100", valid=0, workers=0)
    problems = check(Recipe.load("gpt2-toy"), corpus, {"train.steps": 2}).problems
    assert "There is no held-out part, so no evaluation: prepare with --valid 0.25." in problems


def test_a_budget_without_time_for_a_step_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said "No problems found" and steps of 11 minutes, most of which was the optimiser's for many small steps."""
    (tmp_path / "text.txt").write_text("".join(f"{s.strip()} The dog too.\n\n" for s in SENTENCES), encoding="utf-8")
    corpus = prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="wordpiece:100", valid=0.2, workers=0)
    speed = Speed(512.0, 2.0, 1e6, 256, 256.0, 9, 4.0, 0.0, 0.0, update_seconds=1.0)  # of a trial of 1,024 tokens
    monkeypatch.setattr(checking, "measure_speed", lambda *_, **__: speed)
    changes = {"train.minutes": 0.5, "train.batch_tokens": 65_536, "train.device": "cpu"}
    checked = check(Recipe.load("bert-toy"), corpus, changes)
    assert checked.steps == 1 and checked.seconds == pytest.approx(65)
    assert checked.problems[0].startswith("One step of 65,536 tokens takes about 65 s here, longer than")
    short = check(Recipe.load("bert-toy"), corpus, changes | {"train.minutes": 60})
    assert not any("train.minutes" in problem for problem in short.problems)


def test_unknown_tokens_are_a_problem(tmp_path: Path) -> None:
    report = report_of(tmp_path, "".join(SENTENCES))
    report["unknown_share"] = 0.03
    assert find_text_problems(report) == [
        "3.0% of the tokens are unknown: train a larger tokenizer, or a byte-level one."
    ]


def test_memory_is_estimated_once_and_nothing_slow_is_imported(tmp_path: Path) -> None:
    """Drawing on the meta device imports torch's compiler, a rank correlation scipy.stats: seconds each."""
    (tmp_path / "text.txt").write_text("".join(f"{s.strip()} The dog too.\n\n" for s in SENTENCES), encoding="utf-8")
    prepare(str(tmp_path / "text.txt"), tmp_path / "corpus", tokenizer="wordpiece:100", valid=0.2, workers=0)
    code = """
import sys
from etude.pretraining import check as checking
from etude.pretraining.trial import Speed
from etude.recipes.schema import Recipe
from etude.train import memory

calls, estimate = [], memory.estimate
memory.estimate = lambda *given, **named: calls.append(named["length"]) or estimate(*given, **named)
checking.measure_speed = lambda *_, **__: Speed(1e3, 0.1, 1e6, 128, 100.0, 9, 4.0, 0.0, 0.0)
result = checking.check(Recipe.load("bert-toy"), sys.argv[1])
assert len(calls) == 1 and calls[0] > 1, calls
assert result.needs.activations > 0 and result.needs.parameters == 4 * result.parameters
assert "torch._dynamo.callback" not in sys.modules and "sympy" not in sys.modules
assert "scipy.stats" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "corpus")], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
