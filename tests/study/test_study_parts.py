"""The parts of a plan: budgets, drawn labels, code that matters, pairs of sentences."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from etude.errors import UserError
from etude.recipes.schema import Recipe
from etude.study import plan_cells, planner
from etude.study.budget import Cost, compute_cost, compute_length, stretch_schedule
from etude.study.label_splits import draw_examples, split_by_hash, split_files
from etude.study.plan import format_scientific
from etude.study.sections import Task
from etude.study.text_source import make_sentence_pairs
from etude.text.corpus.corpus import Corpus
from etude.world import World
from tests.study.tiny_study import tiny
from tests.tasks.labelled_records import records

TOY = {"model.layers": 1, "model.width": 16, "model.heads": 2, "train.batch_tokens": 512}


def costing(**values: float) -> Cost:
    facts = {
        "flops_per_token": 1000.0,
        "row_tokens": 128,
        "epoch_tokens": 128_000,
        "parameters": 1,
        "head_parameters": 0,
    }
    return Cost(**{**facts, "updates_itself": False, **values})  # type: ignore[arg-type]


# --- budgets ----------------------------------------------------------------------------------------


def test_a_budget_becomes_steps(prepared: Callable[[str], Path]) -> None:
    corpus = Corpus.open(prepared("wordpiece:600"))
    recipe = Recipe.load("bert-toy", TOY).resolve(vocab=corpus.tokenizer.vocab)
    found = compute_cost(recipe, corpus)
    assert found == compute_cost(recipe, corpus), "a pure function"
    by_flops = compute_length(recipe, found, "flops", 1e9, 100, None)
    step = by_flops.flops / by_flops.steps
    assert abs(by_flops.flops - 1e9) <= step / 2 and not by_flops.capped
    by_tokens = compute_length(recipe, found, "tokens", by_flops.tokens, 100, None)
    assert by_tokens.steps == by_flops.steps
    by_clock = compute_length(recipe, found, "minutes", 0.5, 100, speed=by_flops.tokens / 30)
    assert by_clock.steps == by_flops.steps
    capped = compute_length(recipe, found, "flops", 1e15, 2, None)
    assert capped.capped and capped.epochs <= 2 and capped.epochs > 1.9


def test_word_vectors_alone_keep_to_the_budget(tmp_path: Path) -> None:
    """Without others to share a clock with, an amount of FLOPs or tokens is no number of minutes."""
    words = {"words": {"recipe": "skipgram-toy", "set": {"model.width": 16}}}
    for kind, amount in (("flops", 1e7), ("tokens", 20_000)):
        row = planner.make_plan(tiny(contenders=words, claims=[], budget={kind: amount}), tmp_path, device="cpu").rows[
            0
        ]
        assert row.length is not None and not row.length.capped and not row.length.by_clock
        assert getattr(row.length, kind) == pytest.approx(amount, rel=0.25)


@pytest.mark.parametrize("kind", ["flops", "tokens"])
def test_a_budget_of_less_than_a_step_is_refused(kind: str, tmp_path: Path) -> None:
    """Everybody took one step, of 5e8 FLOPs and of 3e8, and the plan said that both had the budget of ten."""
    with pytest.raises(UserError, match=r"^tiny: budget: 10 .* less than one step of bert costs") as refused:
        planner.make_plan(tiny(budget={kind: 10}), tmp_path, device="cpu", dry=True)
    least = float(re.search(rf"at least {{{kind}: (.*?)}}", str(refused.value))[1])
    rows = planner.make_plan(tiny(budget={kind: least}), tmp_path, device="cpu", dry=True).rows
    assert min(row.length.steps for row in rows if row.length is not None) == 10


def test_schedules_stretch() -> None:
    recipe = Recipe.load("bert-base").resolve(vocab=1000)  # about a million steps, 10,000 of them warm-up
    assert recipe.train.steps is not None and recipe.train.warmup > 1
    found = compute_length(recipe, costing(row_tokens=512), "tokens", 512 * 256 * 500, 10_000, None)
    short = stretch_schedule(recipe, costing(row_tokens=512), found, curve=10)
    assert short.train.steps == found.steps and short.train.warmup == recipe.train.warmup / recipe.train.steps
    assert short.train.eval_every == -(-found.steps // 10)
    growing = Recipe.load("gpt3-toy").resolve(vocab=1000)
    own = growing.train.batch_ramp
    assert own is not None and growing.train.tokens is not None
    twice = compute_length(growing, costing(row_tokens=512), "tokens", 2 * growing.train.tokens, 1000, None)
    ramp = stretch_schedule(growing, costing(row_tokens=512), twice, 4).train.batch_ramp
    assert ramp is not None and ramp.over_tokens == pytest.approx(2 * own.over_tokens, rel=0.02)


def test_numbers_as_people_write_them() -> None:
    assert [format_scientific(value) for value in (0, 12.5, 1e11, 2.34e11, 1.5e-7)] == [
        "0",
        "12.5",
        "10¹¹",
        "2.34 × 10¹¹",
        "1.5 × 10⁻⁷",
    ]


# --- labels -----------------------------------------------------------------------------------------


def test_labels_are_drawn_evenly_and_by_the_seed() -> None:
    pool = [{"text": str(n), "label": "abc"[n % 3]} for n in range(90)]
    labels = [frozenset([str(one["label"])]) for one in pool]
    first, again, other = (draw_examples(labels, pool, 12, key) for key in (1, 1, 2))
    assert first == again and first != other
    assert Counter(one["label"] for one in first) == {"a": 4, "b": 4, "c": 4}
    with pytest.raises(UserError, match="fewer than the 3 classes"):
        draw_examples(labels, pool, 2, 1)


def test_every_tag_is_among_the_drawn() -> None:
    pool = [{"tags": ["O", "B-X" if n == 57 else "O"]} for n in range(60)]
    drawn = draw_examples([frozenset(one["tags"]) for one in pool], pool, 5, key=0)
    assert len(drawn) == 5 and {"O", "B-X"} == {tag for one in drawn for tag in one["tags"]}
    free = draw_examples([frozenset()] * 60, pool, 5, key=0)
    assert len(free) == 5


def test_no_more_labels_are_drawn_than_are_asked_for() -> None:
    """A report says how many were learnt from: where so few cannot show every tag, the study says so."""
    pool = [{"tags": ["O", f"B-{n % 8}"]} for n in range(40)]
    labels = [frozenset(one["tags"]) for one in pool]
    assert len(draw_examples(labels, pool, 8, key=0)) == 8
    with pytest.raises(UserError, match=r"5 labels are fewer than the 8 examples .* each of the 9 classes"):
        draw_examples(labels, pool, 5, key=0)


def test_equal_examples_fall_on_the_same_side() -> None:
    examples = [{"id": n, "text": f"t{n % 50}"} for n in range(200)]
    one, other = split_by_hash(examples, lambda tenth: tenth < 7)
    assert not {e["text"] for e in one} & {e["text"] for e in other} and len(one) > 2 * len(other) > 0


def test_a_rare_label_stays_in_training(tmp_path: Path) -> None:
    examples = [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(200)]
    rare = [{"text": f"odd {n}", "label": f"rare{n}"} for n in range(20)]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(example) + "\n" for example in [*examples, *rare]))
    task = Task(kind="classify", train=str(path))
    train, held = split_by_hash([*examples, *rare], lambda tenth: tenth >= 2)
    assert any(example in held for example in rare), "by the hash alone some are lost"
    parts = split_files(task, None)
    assert all(example in parts["train"] for example in rare)
    assert parts["train"][: len(train)] == train, "and nothing else has moved"
    assert sorted(map(str, parts["dev"] + parts["test"])) == sorted(str(e) for e in held if e not in rare)


def test_pairs_of_sentences_of_unseen_documents() -> None:
    documents = [document.sentences for document, _ in zip(World().documents(10**6), range(300), strict=False)]
    order = make_sentence_pairs(iter(documents), "order", 100)
    assert Counter(one["label"] for one in order) == {"yes": 50, "no": 50}
    following = {(a, b) for sentences in documents for a, b in pairwise(sentences)}
    assert all(((one["text_a"], one["text_b"]) in following) == (one["label"] == "yes") for one in order)
    assert all(((one["text_b"], one["text_a"]) in following) == (one["label"] == "no") for one in order)
    after = make_sentence_pairs(iter(documents), "next", 100)
    assert all((one["text_a"], one["text_b"]) in following for one in after if one["label"] == "yes")
    assert sum((one["text_a"], one["text_b"]) in following for one in after if one["label"] == "no") <= 1
    with pytest.raises(UserError, match="only"):
        make_sentence_pairs(iter(documents), "next", 10_000)


def test_what_a_setting_names_counts_by_its_content(tmp_path: Path) -> None:
    """A graph that is prepared again in the same place is another graph, and its cells run again."""
    manifest = tmp_path / "graph" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text("{}")
    assert plan_cells._named_files({"task.graph": str(manifest.parent), "train.lr": 0.1, "task.scheme": "bio"}) == [
        manifest
    ]
    assert plan_cells._named_files({"task.graph": str(tmp_path / "absent"), "task.sign": "x" * 1000}) == []
    names, run = tmp_path / "names.txt", tmp_path / "words" / "checksums.json"
    run.parent.mkdir()
    for file in (names, run):
        file.write_text("LOC Seoul\n")
    assert plan_cells._named_files({"task.network.features.gazetteer": str(names)}) == [names], "a file is one too"
    grouped = {"task.network": {"vectors": str(run.parent), "features": {"gazetteer": str(names)}}}
    assert plan_cells._named_files(grouped) == [names, run], "and what a group of settings names"


def test_a_gazetteer_with_other_names_makes_other_cells(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    network = {"words": 4, "states": [], "features": {"gazetteer": str(names)}}
    task = {"kind": "tag", "world": "tags", "labels": 16, "columns": {"tags": "ner"}, "set": {"task.network": network}}
    study = tiny(tasks={"names": task}, claims=[])
    keys = []
    for content in ("PER Ann\n", "PER Ann\n", "PER Bob\n"):
        names.write_text(content)
        plan = planner.make_plan(study, tmp_path / "study", device="cpu", dry=True)
        keys.append({key for key, cell in plan.cells.items() if cell.kind == "transfer"})
    assert keys[0] == keys[1] and not keys[0] & keys[2]


def test_the_majority_is_scored_like_everybody(tmp_path: Path) -> None:
    """A score that the study sets for all transfers is the majority's and the baselines' too, or nothing compares."""
    changes = {"transfer.task.score": "macro_f1", "control.baselines": ["tfidf"]}
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    settings = {cell.kind: cell.arguments["settings"] for cell in plan.cells.values() if "settings" in cell.arguments}
    assert {kind: each.get("task.score") for kind, each in settings.items()} == {
        "transfer": "macro_f1", "baseline": "macro_f1", "majority": "macro_f1",
    }  # fmt: skip
    assert "train.batch_examples" in settings["transfer"] and "train.batch_examples" not in settings["majority"]


def test_the_majority_reads_chunks_by_the_scheme_of_the_study(tmp_path: Path) -> None:
    """Another scheme is other chunks, and another F1."""
    task = {"kind": "tag", "world": "tags", "labels": 16, "columns": {"tags": "ner"}}
    changes = {
        "tasks": {"entities": task},
        "claims": [],
        "transfer.task.scheme": "iob2",
        "control.baselines": ["tfidf"],
    }
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    settings = {cell.kind: cell.arguments["settings"] for cell in plan.cells.values() if "settings" in cell.arguments}
    assert {kind: each.get("task.scheme") for kind, each in settings.items()} == {
        "transfer": "iob2", "baseline": "iob2", "majority": "iob2",
    }  # fmt: skip


def test_dropout_for_everybody_is_not_of_a_frozen_model(tmp_path: Path) -> None:
    """It has no effect there, and a transfer of its own refuses it."""
    changes = {
        "transfer.transfer.dropout": 0.2, "contenders.gpt.transfer.transfer.frozen": True, "control.of": ["gpt"],
    }  # fmt: skip
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    rates = {
        cell.position["row"]: cell.arguments["settings"].get("transfer.dropout")
        for cell in plan.cells.values()
        if cell.kind == "transfer"
    }
    assert rates == {"bert": 0.2, "gpt": None, "no pre-training": 0.2, "random frozen": None}
    with pytest.raises(UserError, match=r"transfer\.dropout is of a model"):
        tiny(**changes, **{"contenders.gpt.transfer.transfer.dropout": 0.2})


def test_a_baseline_reads_relations_as_the_models_do(tmp_path: Path) -> None:
    lines = [json.dumps(record) + "\n" for record in records("relation", 60, 0)]
    (tmp_path / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    changes = {
        "tasks": {"relation": {"kind": "relation", "train": str(tmp_path / "train.jsonl")}}, "claims": [],
        "control.baselines": ["tfidf"], "transfer.task.signs": "ernie", "transfer.task.typed": True,
    }  # fmt: skip
    plan = planner.make_plan(tiny(**changes), tmp_path, device="cpu", dry=True)
    settings = {cell.kind: cell.arguments["settings"] for cell in plan.cells.values() if "settings" in cell.arguments}
    for kind in ("transfer", "baseline"):
        assert settings[kind]["task.signs"] == "ernie" and settings[kind]["task.typed"] is True
    assert "task.signs" not in settings["majority"], "it reads no text"


def test_files_of_many_cells_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"{}\n" * 1_000_000)
    facts = plan_cells._read_file(path)
    assert facts.lines == 1_000_000 and facts is plan_cells._read_file(path)
    path.write_bytes(b"{}\n")
    assert plan_cells._read_file(path).lines == 1, "another content is read again"
