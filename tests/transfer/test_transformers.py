"""Beside transformers: fine-tuned heads open there and say the same, and a plain loop there takes the same steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.errors import UserError
from etude.hub.exporter import export_run
from etude.hub.run_weights import save_final
from etude.hub.tokenizer_files import describe_word_cuts
from etude.inference.opening import open_pretrained
from etude.inference.task_model import TaskModel
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import schedule
from etude.train.loader import Loader
from etude.transfer.finetune import finetune
from tests.tasks.labelled_records import records
from tests.transfer_fixtures import WORDS

hf = pytest.importorskip("transformers")

RECIPES = {
    "distilbert": "bert-toy",
    "one-segment": "bert-toy",
    "modernbert": "encoder-modern-toy",
    "replaced": "encoder-modern-toy",
}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Small runs of the families that have classes with heads there."""
    made: dict[str, Path] = {}
    shape = ["model.layers=2", "model.width=32", "model.heads=2", "model.context=64", "model.feedforward=64"]
    more: dict[str, list[str]] = {
        "bert": [],
        "albert": [],
        "electra": [],
        "modernbert": [],
        "replaced": ["objective.kind=replaced", "objective.generator_share=0.5", "objective.tie=embeddings"],
        "distilbert": ["model.segments=0", "model.pooler=false", "objective.sentence=none", "model.epsilon=1e-12"],
        "one-segment": ["model.segments=1", "objective.sentence=none", "objective.pair_rate=0"],
    }

    def make(kind: str) -> Path:
        if kind not in made:
            recipe = RECIPES.get(kind, f"{kind}-toy")
            tokenizer = Tokenizer.train("word:60", [" ".join(WORDS), "who where what is in the town ? . ,"] * 3)
            settled = Recipe.load(recipe, [*shape, *more[kind]]).resolve(vocab=tokenizer.vocab)
            folder = tmp_path_factory.mktemp("families") / kind
            folder.mkdir()
            (folder / "recipe.yaml").write_text(settled.dump(), encoding="utf-8")
            tokenizer.save(folder)
            save_final(Run(folder), *build_learner(settled, tokenizer), model_card="random weights, for tests")
            made[kind] = folder
        return made[kind]

    return make


def tuned_run(base: Path, task: str, folder: Path, **changes: Any) -> Run:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(item) + "\n" for item in records(task, 32, 0)), encoding="utf-8")
    settings = {"train.steps": 2, "train.lr": 5e-3, "train.batch_examples": 8, **changes}
    return finetune(base, task, file, folder / "run", overrides=settings, quiet=True)


CASES = [
    ("bert", "classify", "BertForSequenceClassification"),
    ("bert", "pair", "BertForSequenceClassification"),
    ("bert", "relation", "BertForSequenceClassification"),
    ("bert", "similarity", "BertForSequenceClassification"),
    ("bert", "rank", "BertForSequenceClassification"),
    ("bert", "choice", "BertForMultipleChoice"),
    ("bert", "tag", "BertForTokenClassification"),
    ("bert", "span", "BertForQuestionAnswering"),
    ("albert", "pair", "AlbertForSequenceClassification"),
    ("electra", "classify", "ElectraForSequenceClassification"),
    ("electra", "similarity", "ElectraForSequenceClassification"),
    ("electra", "choice", "ElectraForMultipleChoice"),
    ("electra", "tag", "ElectraForTokenClassification"),
    ("electra", "span", "ElectraForQuestionAnswering"),
    ("distilbert", "classify", "DistilBertForSequenceClassification"),
    ("distilbert", "span", "DistilBertForQuestionAnswering"),
    ("modernbert", "classify", "ModernBertForSequenceClassification"),
    ("modernbert", "rank", "ModernBertForSequenceClassification"),
    ("modernbert", "choice", "ModernBertForMultipleChoice"),
    ("modernbert", "tag", "ModernBertForTokenClassification"),
    ("modernbert", "span", "ModernBertForQuestionAnswering"),
    ("replaced", "pair", "ModernBertForSequenceClassification"),  # whatever objective trained its layers
]


QUICK = (  # one of each head; the others are slow
    "bert-classify", "bert-span", "electra-classify", "electra-tag", "distilbert-classify", "modernbert-classify",
    "modernbert-span", "replaced-pair",
)  # fmt: skip


@pytest.mark.parametrize(
    ("family", "task", "architecture"),
    [pytest.param(*case, marks=[] if "-".join(case[:2]) in QUICK else [pytest.mark.slow]) for case in CASES],
)
def test_heads_say_the_same_there(
    families: Callable[[str], Path], tmp_path: Path, family: str, task: str, architecture: str
) -> None:
    changes: dict[str, Any] = {"task.length": 32, "task.answer": 3} if task == "span" else {}
    if family == "distilbert" and task == "classify":
        changes = {"task.head": "mlp"}
    run = tuned_run(families(family), task, tmp_path, **changes)
    published = export_run(run, tmp_path / "out")
    assert published.architecture == architecture
    model = getattr(hf, published.auto_class).from_pretrained(tmp_path / "out").eval()
    assert type(model).__name__ == architecture
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    tuned = TaskModel.open(run.folder)
    given = records(task, 6, 1)
    with torch.no_grad():
        compare(task, tuned, model, tokenizer, given)


OTHER_SETTINGS = [
    ("bert", "classify", {"task.scale": 8.0}),
    ("bert", "similarity", {"task.scale": 8.0}),
    ("distilbert", "classify", {"task.scale": 8.0, "task.head": "mlp"}),
    ("one-segment", "pair", {}),
]


@pytest.mark.parametrize(("family", "task", "changes"), OTHER_SETTINGS)
def test_settings_without_a_key_there_are_in_the_weights(
    families: Callable[[str], Path], tmp_path: Path, family: str, task: str, changes: dict[str, Any]
) -> None:
    """A factor before the head goes into its first layer; one kind of segment, which a pair has there too."""
    run = tuned_run(families(family), task, tmp_path, **changes)
    published = export_run(run, tmp_path / "out")
    assert published.architecture.endswith("BertForSequenceClassification")
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        compare(task, TaskModel.open(run.folder), model, tokenizer, records(task, 6, 1))


def test_a_long_text_is_cut_there_as_here(families: Callable[[str], Path], tmp_path: Path) -> None:
    run = tuned_run(families("bert"), "classify", tmp_path, **{"task.length": 6})
    export_run(run, tmp_path / "out")
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.model_max_length == 6
    text = " ".join(record["text"] for record in records("classify", 6, 1))
    [answer] = TaskModel.open(run.folder).predict([{"text": text}])
    with torch.no_grad():
        probs = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits.softmax(-1)[0]
    np.testing.assert_allclose(
        probs, [answer["scores"][model.config.id2label[n]] for n in range(len(probs))], atol=1e-5
    )


def test_the_piece_that_carries_a_tag_is_told(families: Callable[[str], Path], tmp_path: Path) -> None:
    run = tuned_run(families("bert"), "tag", tmp_path, **{"task.piece": "last"})
    assert "its last piece (task.piece)" in " ".join(export_run(run, tmp_path / "out").notes)


@pytest.mark.parametrize(("spec", "is_told"), [("bytebpe:300", True), ("unigram:60", True), ("word:60", False)])
def test_a_tagger_whose_tokens_hold_spaces_says_how_words_are_given(spec: str, is_told: bool) -> None:
    tokenizer = Tokenizer.train(spec, ["a film in a town", " ".join(WORDS)] * 3)
    assert bool(describe_word_cuts(tokenizer, "ForTokenClassification")) == is_told
    assert not describe_word_cuts(tokenizer, "ForSequenceClassification")


def compare(task: str, tuned: TaskModel, model: Any, tokenizer: Any, given: list[dict[str, Any]]) -> None:
    result = tuned.predict(given)
    if task in ("classify", "pair", "relation", "similarity"):
        item = [tuned.plan.module.parse(one, {}, "x") for one in given]
        texts = [item.texts if task == "similarity" else tuned.task.scoring.texts(item) for item in item]
        logits = model(**tokenizer(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt")).logits
        if task == "similarity":
            np.testing.assert_allclose(logits[:, 0], [one["score"] for one in result], atol=1e-4)
            return
        chances = [[one["scores"][model.config.id2label[n]] for n in range(logits.shape[1])] for one in result]
        np.testing.assert_allclose(logits.softmax(-1), chances, atol=1e-5)
    elif task in ("rank", "choice"):
        asked, several = ("query", "candidates") if task == "rank" else ("question", "choices")
        for one, answer in zip(given, result, strict=True):
            both = tokenizer([one[asked]] * len(one[several]), one[several], padding=True, return_tensors="pt")
            if task == "rank":
                np.testing.assert_allclose(model(**both).logits[:, 0], answer["scores"], atol=1e-5)
            else:
                logits = model(**{name: value[None] for name, value in both.items()}).logits[0]
                np.testing.assert_allclose(logits.softmax(-1), answer["scores"], atol=1e-5)
    elif task == "tag":
        for one, answer in zip(given, result, strict=True):
            logits = model(**tokenizer(one["tokens"], is_split_into_words=True, return_tensors="pt")).logits[0, 1:-1]
            assert [model.config.id2label[int(n)] for n in logits.argmax(-1)] == answer["tags"]
            np.testing.assert_allclose(logits.softmax(-1).amax(-1), answer["scores"], atol=1e-5)
    else:
        for one, answer in zip(given, result, strict=True):
            out = model(**tokenizer(one["question"], one["context"], return_tensors="pt"))
            asked = len(one["question"].split()) + 2
            starts, ends = out.start_logits[0, asked:-1], out.end_logits[0, asked:-1]
            best = max(
                float(starts[i] + ends[j]) for i in range(len(starts)) for j in range(i, min(i + 3, len(starts)))
            )
            assert answer["nbest"][0]["score"] == pytest.approx(best, abs=1e-4)
            null = float(out.start_logits[0, 0] + out.end_logits[0, 0])
            assert answer["null"] == pytest.approx(null - best, abs=1e-4)


def test_what_has_no_class_there(families: Callable[[str], Path], tmp_path: Path) -> None:
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("bert", "classify", {"task.head": "mlp"}, r"task\.head=mlp"),  # over a pooler
        ("bert", "similarity", {"task.reading": "both"}, "both orders"),
        ("bert", "tag", {"task.head": "crf"}, r"task\.head=crf"),
        ("bert", "span", {"task.null": "head", "task.length": 32}, r"task\.null=head"),
    ]
    for number, (family, task, changes, message) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        run = tuned_run(families(family), task, tmp_path / str(number), **changes)
        with pytest.raises(UserError, match=f"cannot be exported to transformers: it has no class for .*{message}"):
            export_run(run, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["classify", "tag"])
def test_a_plain_loop_takes_the_same_steps(families: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    """Same weights, head, order, rate, schedule, decay and clipping, without dropout: the same losses, step by step."""
    changes = {
        "train.steps": 20, "train.lr": 6e-3, "train.batch_examples": 8, "train.log_every": 1, "train.warmup": 0.25,
        "transfer.dropout": 0.0, "task.dropout": 0.0, "train.precision": "float32",
    }  # fmt: skip
    run = tuned_run(families("bert"), kind, tmp_path, **changes)
    ours = [line["loss"] for line in run.metrics("train")]

    plan = Plan.read(run.folder)
    start = open_pretrained(families("bert"))
    _, task = plan.build(start.model, start.tokenizer)
    examples = plan.module.read(plan.examples.check(), {})
    rows = task.rows(examples, 0)
    export_run(families("bert"), tmp_path / "published")
    form = hf.BertForTokenClassification if kind == "tag" else hf.BertForSequenceClassification
    model = form.from_pretrained(
        tmp_path / "published", num_labels=len(task.labels), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    model.classifier.load_state_dict((task.head.output if kind == "tag" else task.pooled.head).state_dict())
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "published")
    loader = Loader(
        task, rows, seed=plan.train.seed, batch_rows=lambda step: 8, rows_before=lambda step: 8 * step,
        micro_tokens=None, workers=0,
    )  # fmt: skip
    plain = [one for name, one in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    others = [one for one in model.parameters() if not any(one is other for other in plain)]
    groups = [{"params": others, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=6e-3)
    theirs = []
    for step in range(20):
        chosen = [examples[int(number) % len(examples)] for number in loader.row_numbers(step)]
        if kind == "tag":
            batch = tokenizer([i.words for i in chosen], is_split_into_words=True, padding=True, return_tensors="pt")
            labels = torch.full_like(batch["input_ids"], -100)
            for row, item in enumerate(chosen):  # every word is one piece here, behind the first marker
                labels[row, 1 : 1 + len(item.words)] = torch.tensor([task.labels.index(tag) for tag in item.tags])
        else:
            batch = tokenizer([item.texts[0] for item in chosen], padding=True, return_tensors="pt")
            labels = torch.tensor([task.labels.index(item.label) for item in chosen])
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = schedule.compute_lr(plan.train, step, 20)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(float(loss.detach()))
    assert max(theirs) - min(theirs) > 0.05, "something was learnt"
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
