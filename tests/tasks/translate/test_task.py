"""Translation learnt by a pre-trained model: what starts with the run, learning, and use as a translator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import etude
from etude.cli.main import app
from etude.errors import UserError
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.runs.task_plan import Plan
from etude.transfer.finetune import plan_transfer

sacrebleu = pytest.importorskip("sacrebleu")
WORDS = ["one", "two", "three", "four", "five", "six"]
NUMBERS = ["하나", "둘", "셋", "넷", "다섯", "여섯"]
FAST = {"train.steps": 2, "train.eval_every": 2, "train.batch_examples": 8, "task.beams": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, a text of both languages, and runs of a BERT, a GPT and a biLM."""
    folder = tmp_path_factory.mktemp("translate")
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(240):
        numbers = torch.randint(6, (int(torch.randint(1, 5, (), generator=generator)),), generator=generator).tolist()
        pairs.append({"en": " ".join(WORDS[n] for n in numbers), "ko": " ".join(NUMBERS[n] for n in numbers)})
    for name, part in (("train", pairs[:200]), ("dev", pairs[200:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in part))
    text = "\n\n".join(f"{pair['en']}.\n{pair['ko']}." for pair in pairs)
    (folder / "text.txt").write_text(text)
    etude.prepare(folder / "text.txt", out=folder / "corpus", tokenizer="word:60", valid=0.1)
    small = {"model.width": 16, "train.steps": 4, "train.warmup": 1, "train.eval_every": 0}
    for recipe in ("bert-toy", "gpt2-toy", "bilm-toy"):
        heads = {} if recipe == "bilm-toy" else {"model.heads": 2}
        etude.pretrain(recipe, folder / "corpus", out=folder / recipe, settings=small | heads, quiet=True)
    return folder


def start(folder: Path, recipe: str, files: Path | None = None, **settings: object) -> tuple[object, object]:
    """Model and task as they are before the first step."""
    overrides = {**FAST, **{name.replace("__", "."): value for name, value in settings.items()}}
    columns = {"source": "en", "target": "ko"}
    examples = [(files or folder) / name for name in ("train.jsonl", "dev.jsonl")]
    transfer = plan_transfer(open_pretrained(folder / recipe), "translate", *examples, columns, overrides, False)
    return transfer.model, transfer.task


def test_encoder_decoder_or_both_start_with_the_weights_of_the_run(folder: Path) -> None:
    run = open_pretrained(folder / "gpt2-toy").model.embedding.tokens.weight
    for side, expected in (("encoder", (True, False)), ("decoder", (False, True)), ("both", (True, True))):
        model, task = start(folder, "gpt2-toy", task__start=side)
        tables = model.embedding.tokens.weight, task.decoder.stack.embedding.tokens.weight
        assert tuple(torch.equal(table, run) for table in tables) == expected, side


def tune(folder: Path, out: Path, steps: int, **changes: object) -> dict[str, dict[str, float]]:
    """Fine-tune the BERT; return its scores on dev."""
    settings = {"train.steps": steps, "train.lr": 3e-3, "task.beams": 2, "train.batch_examples": 16}
    etude.finetune(
        folder / "bert-toy", "translate", train=folder / "train.jsonl", dev=folder / "dev.jsonl", out=out, quiet=True,
        columns={"source": "en", "target": "ko"}, settings={**settings, "train.eval_every": steps, **changes},
    )  # fmt: skip
    return Plan.read(out).scores


@pytest.mark.parametrize("steps", [3, pytest.param(300, marks=pytest.mark.slow)])
def test_every_use_of_a_run_gives_the_same_translations_and_scores(folder: Path, tmp_path: Path, steps: int) -> None:
    scores = tune(folder, tmp_path / "run", steps)
    dev = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    sources = [pair["en"] for pair in dev]
    answers = [answer["translation"] for answer in TaskModel.open(tmp_path / "run").predict(sources)]
    if steps == 300:  # it has learnt the words and their order
        assert scores["bleu"]["value"] > 0.95 and scores["chrf"]["value"] > 0.95, scores
    loaded = etude.load(tmp_path / "run").translate(sources, beams=2)
    assert [each[0].text for each in loaded] == answers
    references = [[pair["ko"] for pair in dev]]
    evaluated = etude.evaluate(tmp_path / "run", folder / "dev.jsonl")
    expected = sacrebleu.corpus_bleu(answers, references, tokenize=Plan.read(tmp_path / "run").facts["tokenizer"])
    assert evaluated["bleu"].value == pytest.approx(expected.score / 100)
    assert evaluated["chrf"].value == pytest.approx(sacrebleu.corpus_chrf(answers, references).score / 100)
    assert scores["bleu"]["value"] == pytest.approx(evaluated["bleu"].value)
    (tmp_path / "lines.en").write_text("\n".join(sources))
    result = CliRunner().invoke(app, ["translate", str(tmp_path / "run"), str(tmp_path / "lines.en"), "--beams", "2"])
    assert result.exit_code == 0 and result.stdout.splitlines() == answers
    again = open_pretrained(tmp_path / "run").model  # a start for other tasks: the reader alone
    assert type(again) is type(open_pretrained(folder / "bert-toy").model)


def test_no_use_of_a_run_writes_more_than_its_length(folder: Path, tmp_path: Path) -> None:
    """An untrained decoder hardly ever ends: what it writes is as long as it may be."""
    whole = tune(folder, tmp_path / "whole", 1)
    short = tune(folder, tmp_path / "short", 1, **{"task.length": 4})
    assert whole.keys() == short.keys()
    sources = ["one two three four", "five"]
    count = etude.load(tmp_path / "short").tokenizer.encode

    def lengths(name: str) -> list[int]:
        """Of targets by beam search, by greedy search and drawn, and of predictions, in tokens."""
        loaded = etude.load(tmp_path / name)
        ways = {"beams": 2}, {"beams": 1}, {"temperature": 2.0, "seed": 1}
        ids = [each.ids for way in ways for targets in loaded.translate(sources, **way) for each in targets]
        answers = TaskModel.open(tmp_path / name).predict(sources)
        return [len(each) for each in ids] + [len(count(answer["translation"])) for answer in answers]

    assert max(lengths("whole")) > 4 and max(lengths("short")) <= 4


def test_a_run_that_translates_already_is_refused(folder: Path, tmp_path: Path) -> None:
    etude.prepare(folder / "train.jsonl", out=tmp_path / "c", tokenizer="word:60", pairs="en,ko", valid=0.1)
    settings = {"train.steps": 1, "train.warmup": 0, "train.eval_every": 0, "model.width": 16, "model.heads": 2}
    etude.pretrain("transformer-toy", tmp_path / "c", out=tmp_path / "run", settings=settings, quiet=True)
    with pytest.raises(UserError, match="translates already"):
        start(tmp_path, "run", files=folder)


def test_states_of_a_bilm_are_features_of_the_source(folder: Path) -> None:
    mixed = {"transfer__frozen": True, "transfer__layers": "all", "transfer__combine": "mix"}
    model, task = start(folder, "bilm-toy", **mixed)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert task.mix is not None and task.decoder.stack.settings.layers == 2
    assert task.decoder.bridge is None and task.decoder.stack.width == model.width
    rows = task.rows(task_examples(folder))
    task.loss(model, task.batch([rows[0], rows[1]], None))["loss"].sum.backward()
    assert task.mix.weights.grad is not None or any(part.grad is not None for part in task.mix.parameters())
    with pytest.raises(UserError, match="cannot write a target"):
        start(folder, "bilm-toy", task__start="both")


def task_examples(folder: Path) -> object:
    from etude.tasks import translate

    return translate.read(folder / "train.jsonl", {"source": "en", "target": "ko"})


def test_the_tokenizer_of_bleu_is_a_fact_and_long_targets_are_cut_with_a_warning(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, task = start(folder, "gpt2-toy", task__length=4)
    assert task.facts()["tokenizer"] in ("char", "ko-mecab")
    with caplog.at_level("WARNING", logger="etude"):
        rows = task.rows(task_examples(folder))
    assert "targets are longer than 4 tokens" in caplog.text
    lengths = [int(rows[n].bounds[2] - rows[n].bounds[1]) for n in range(len(rows))]
    assert max(lengths) == 4
    with pytest.raises(UserError, match="'14a' is not a tokenizer of BLEU"):
        start(folder, "gpt2-toy", task__tokenizer="14a")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"en": "one", "ko": ""}\n')
    with pytest.raises(UserError, match=r"bare.jsonl:1: the text in the column 'ko' is empty"):
        etude.finetune(folder / "gpt2-toy", "translate", train=bare, out=tmp_path / "r",
                       columns={"source": "en", "target": "ko"})  # fmt: skip
