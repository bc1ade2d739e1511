"""Fine-tuning speed on a GPU: examples a second of our loop and of transformers' Trainer, in turns.

    python benchmarks/finetune_speed.py                       # BERT-base and 8 x 512, all four tasks
    python benchmarks/finetune_speed.py --model bert-base --texts short pairs --rounds 5
    python benchmarks/finetune_speed.py --model tiny --device cpu --steps 6 --rounds 1      # does it run?

Random words with the lengths of SST-2 (short) and MRPC (pairs), which are classified, of UD-EWT (tags), whose words
have one of 17 tags each, and of SQuAD (spans); batches of 32, dropout 0.1, random weights: speed depends on none of
that. The Trainer runs at its best: bf16, like lengths together, padded to a multiple of eight, fused AdamW, worker
processes; `compiled Trainer` is the same with torch_compile, measured again only where it is the faster one; `plain
loop` is the loop inside it, for machines without `accelerate`. Ours: `recorded`, batches padded to
few shapes and each shape's step a CUDA graph, and `ordinary`, each kernel launched by itself. Before it is timed,
`recorded` is compared with `ordinary` without dropout: losses and weights after some steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.nn.fusion import disable_fusion
from etude.pretraining.bench import word_level_tokenizer
from etude.recipes.schema import Recipe
from etude.runs.task_plan import resolve_settings, task_module
from etude.tasks.classify import LabelledText
from etude.tasks.data.examples import Examples
from etude.tasks.span.questions import Question
from etude.tasks.tag.sentences import TaggedSentence
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train.loop import Loop
from etude.train.progress import Progress

VOCAB, BATCH, EXAMPLES = 30_522, 32, 4_096
MODELS = {
    "bert-base": {"layers": 12, "width": 768, "heads": 12},
    "8x512": {"layers": 8, "width": 512, "heads": 8},
    "tiny": {"layers": 2, "width": 64, "heads": 2},
}
# task, mean and deviation of the log of tokens, and the most: SST-2 has 13 on average as phrases (25 in dev), MRPC 53
TEXTS = {
    "short": ("classify", 2.6, 0.6, 64),
    "pairs": ("classify", 3.95, 0.25, 120),
    "tags": ("tag", 2.6, 0.6, 100),
    "spans": ("span", 4.9, 0.35, 360),
}
RIVALS = ("plain loop", "Trainer", "compiled Trainer")
TAGS, QUESTION = 17, 10  # tags, and words of a question


@dataclasses.dataclass
class Limits:
    """What the command line can change."""

    device: torch.device
    warm_up: int = 60
    steps: int = 120
    compared: int = 40  # steps of both forms, without dropout

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


LIMITS = Limits(torch.device("cuda"))


class PrintingProgress(Progress):
    def print(self, text: str) -> None:
        print(f"    {text}", flush=True)


class RecordedLoop(Loop):
    records_steps = True


class OrdinaryLoop(Loop):
    records_steps = False


@dataclasses.dataclass
class Drawn:
    """A random text, and what is to be learnt about it."""

    words: np.ndarray
    label: int
    tags: np.ndarray  # of each word
    question: np.ndarray
    answer: int  # the first of its three words


def draw_texts(kind: str) -> list[Drawn]:
    _, mean, deviation, most = TEXTS[kind]
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(mean, deviation, EXAMPLES)).round().astype(int), 3, most)
    draw_words = lambda count: rng.integers(10, VOCAB - 10, count)  # noqa: E731
    return [
        Drawn(draw_words(length), int(rng.integers(0, 2)), rng.integers(0, TAGS, length), draw_words(QUESTION),
              int(rng.integers(0, length - 2)))
        for length in lengths
    ]  # fmt: skip


def make_item(kind: str, text: Drawn, number: int) -> LabelledText | TaggedSentence | Question:
    """An example of ours."""
    words = [f"w{word}" for word in text.words]
    if TEXTS[kind][0] == "tag":
        return TaggedSentence(words, [f"t{tag}" for tag in text.tags], characters=False)
    if TEXTS[kind][0] == "span":
        start = sum(len(word) + 1 for word in words[: text.answer])
        answer = " ".join(words[text.answer : text.answer + 3])
        return Question(
            str(number), " ".join(f"w{word}" for word in text.question), " ".join(words), ((answer, start),)
        )
    return LabelledText((" ".join(words),), "ab"[text.label])


# --- ours -------------------------------------------------------------------------------------------


def build_loop(folder: Path, shape: dict[str, int], kind: str, loop_class: type[Loop], dropout: float) -> Loop:
    tokenizer: Tokenizer = word_level_tokenizer(VOCAB)
    changes: dict[str, Any] = {f"model.{name}": value for name, value in shape.items()}
    changes |= {"model.feedforward": 4 * shape["width"]}
    changes |= {f"model.{name}": dropout for name in ("dropout", "attention_dropout", "embedding_dropout")}
    recipe = Recipe.load("bert-base", changes).resolve(vocab=VOCAB)
    torch.manual_seed(0)
    model = recipe.build_model()
    name = TEXTS[kind][0]
    overrides: dict[str, Any] = {"train.device": LIMITS.device.type, "train.log_every": 100}
    overrides |= {"train.precision": "bf16"} if LIMITS.device.type == "cuda" else {"train.compile": False}
    overrides |= {} if name == "span" else {"task.dropout": dropout}
    settings, _, train = resolve_settings(name, overrides, model, recipe)
    items = [make_item(kind, text, number) for number, text in enumerate(draw_texts(kind))]
    examples = Examples(items, "random words", [f"random words:{n}" for n in range(len(items))])
    module = task_module(name)
    torch.manual_seed(0)  # what was imported meanwhile may have drawn numbers
    task = module.build(settings, model, tokenizer, module.learn(examples, settings))
    progress = PrintingProgress(10**9, quiet=True)
    rows = task.rows(examples)
    return loop_class(folder, model, task, rows, train, total=10**6, device=LIMITS.device, progress=progress)


def take_steps(loop: Loop, steps: Any, count: int) -> float:
    """Return seconds a step."""
    LIMITS.synchronize()
    start = time.perf_counter()
    with disable_fusion(not loop.compiled):  # as `Loop.run` has it
        for _ in range(count):
            loop.advance(next(steps))
    LIMITS.synchronize()
    return (time.perf_counter() - start) / count


def check_same(shape: dict[str, int], kind: str) -> None:
    """Print how far recorded steps are from ordinary ones, without dropout."""
    outcomes = []
    for loop_class in (OrdinaryLoop, RecordedLoop):
        with tempfile.TemporaryDirectory() as folder:
            loop = build_loop(Path(folder), shape, kind, loop_class, dropout=0.0)
            initial = {name: p.detach().clone() for name, p in loop.named}
            take_steps(loop, loop.loader.steps(0, 10**6), LIMITS.compared)
            loss = float(loop.running["loss "]) / LIMITS.compared
            outcomes.append((loss, {name: p.detach().clone() for name, p in loop.named}))
            del loop
    (loss, expected), (recorded_loss, weights) = outcomes
    squares = lambda left, right: sum(float((left[n] - right[n]).double().square().sum()) for n in left)  # noqa: E731
    distance = (squares(weights, expected) / max(squares(expected, initial), 1e-30)) ** 0.5
    print(
        f"    {LIMITS.compared} steps without dropout: loss {loss:.5f}, recorded {recorded_loss:.5f}; "
        f"weights {distance:.2e} of the way gone apart",
        flush=True,
    )


# --- transformers -----------------------------------------------------------------------------------


class Collator:
    """Pads to the longest of a batch, a multiple of eight; labels of tokens are padded too."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        longest = -(-max(len(row["input_ids"]) for row in rows) // 8) * 8
        padding = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        batch = {}
        for name, value in rows[0].items():
            if isinstance(value, int):
                batch[name] = torch.tensor([row[name] for row in rows])
                continue
            array = np.full((len(rows), longest), padding[name], np.int64)
            for number, row in enumerate(rows):
                array[number, : len(row[name])] = row[name]
            batch[name] = torch.from_numpy(array)
        return batch


def make_features(kind: str, text: Drawn) -> dict[str, Any]:
    """An example of the others: [CLS] text [SEP], or [CLS] question [SEP] text [SEP]."""
    ids, labels = [2, *text.words.tolist(), 3], {"labels": text.label}
    if TEXTS[kind][0] == "tag":
        labels = {"labels": [-100, *text.tags.tolist(), -100]}  # type: ignore[dict-item]
    elif TEXTS[kind][0] == "span":
        start = QUESTION + 2 + text.answer
        ids, labels = [2, *text.question.tolist(), 3, *ids[1:]], {"start_positions": start, "end_positions": start + 2}
    return {"input_ids": ids, "attention_mask": [1] * len(ids), **labels}


def build_transformers(shape: dict[str, int], kind: str) -> tuple[list[dict[str, Any]], Any]:
    """Return the examples and the model of transformers."""
    import transformers

    rows = [make_features(kind, text) for text in draw_texts(kind)]
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=shape["width"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        intermediate_size=4 * shape["width"],
        num_labels=TAGS if TEXTS[kind][0] == "tag" else 2,
    )
    torch.manual_seed(0)
    classes = {
        "classify": transformers.BertForSequenceClassification,
        "tag": transformers.BertForTokenClassification,
        "span": transformers.BertForQuestionAnswering,
    }
    return rows, classes[TEXTS[kind][0]](config)


def time_plain_loop(shape: dict[str, int], kind: str) -> float:
    """Return seconds a step of the loop that the Trainer runs, without what it does around it."""
    rows, model = build_transformers(shape, kind)
    device = LIMITS.device
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / (LIMITS.warm_up + LIMITS.steps))
    order = np.random.default_rng(0).permutation(len(rows))
    pools = [
        sorted(order[start : start + 50 * BATCH], key=lambda n: -len(rows[n]["input_ids"]))
        for start in range(0, len(rows), 50 * BATCH)
    ]  # the Trainer's rule: like lengths within fifty batches
    flat = [number for pool in pools for number in pool]
    batches = [flat[start : start + BATCH] for start in range(0, len(flat) - BATCH + 1, BATCH)]
    np.random.default_rng(1).shuffle(batches)
    sampler = [batches[number % len(batches)] for number in range(LIMITS.warm_up + LIMITS.steps)]
    loader = torch.utils.data.DataLoader(
        rows, batch_sampler=sampler, collate_fn=Collator(), num_workers=4, pin_memory=device.type == "cuda"
    )
    start = 0.0
    for number, batch in enumerate(loader):
        if number == LIMITS.warm_up:
            LIMITS.synchronize()
            start = time.perf_counter()
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    LIMITS.synchronize()
    return (time.perf_counter() - start) / LIMITS.steps


def time_compiled_trainer(shape: dict[str, int], kind: str) -> float:
    return time_trainer(shape, kind, torch_compile=True)


def time_trainer(shape: dict[str, int], kind: str, **more: Any) -> float:
    """Return seconds a step of the Trainer, its first steps left out."""
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Clock(TrainerCallback):
        start = stop = 0.0

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == LIMITS.warm_up:
                LIMITS.synchronize()
                self.start = time.perf_counter()
            elif state.global_step == LIMITS.warm_up + LIMITS.steps:
                LIMITS.synchronize()
                self.stop = time.perf_counter()

    rows, model = build_transformers(shape, kind)
    wanted: dict[str, Any] = {
        "per_device_train_batch_size": BATCH,
        "max_steps": LIMITS.warm_up + LIMITS.steps,
        "bf16": LIMITS.device.type == "cuda",
        "optim": "adamw_torch_fused" if LIMITS.device.type == "cuda" else "adamw_torch",
        "use_cpu": LIMITS.device.type == "cpu",
        "dataloader_num_workers": 4,
        "dataloader_persistent_workers": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "learning_rate": 2e-5,
        "remove_unused_columns": False,
    }
    names = {entry.name for entry in dataclasses.fields(TrainingArguments)}
    grouping = (
        {"group_by_length": True} if "group_by_length" in names else {"train_sampling_strategy": "group_by_length"}
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, **wanted, **grouping, **more)
        trainer = Trainer(model, arguments, data_collator=Collator(), train_dataset=rows, callbacks=[clock])
        trainer.train()
    return (clock.stop - clock.start) / LIMITS.steps


# --- in turns ---------------------------------------------------------------------------------------


def compare(name: str, kind: str, rounds: int) -> None:
    shape = MODELS[name]
    rivals = {"plain loop": time_plain_loop, "Trainer": time_trainer}
    if LIMITS.device.type == "cuda":
        rivals["compiled Trainer"] = time_compiled_trainer
    seconds: dict[str, list[float]] = {form: [] for form in ("recorded", "ordinary", *rivals)}
    check_same(shape, kind)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        loops = {
            "recorded": build_loop(Path(first), shape, kind, RecordedLoop, dropout=0.1),
            "ordinary": build_loop(Path(second), shape, kind, OrdinaryLoop, dropout=0.1),
        }
        streams = {form: loop.loader.steps(0, 10**6) for form, loop in loops.items()}
        for form, loop in loops.items():
            started = time.perf_counter()
            take_steps(loop, streams[form], LIMITS.warm_up)
            print(f"    {form}: first {LIMITS.warm_up} steps {time.perf_counter() - started:.1f} s", flush=True)
        for _ in range(rounds):
            for form, loop in loops.items():
                seconds[form].append(take_steps(loop, streams[form], LIMITS.steps))
            for form in list(rivals):
                try:
                    seconds[form].append(rivals[form](shape, kind))
                except Exception as error:  # of a rival: the others are measured
                    print(f"    {form} is not measured: {error!r:.300}", flush=True)
                    del rivals[form]
            if "compiled Trainer" in rivals and seconds["compiled Trainer"][-1] > min(seconds["Trainer"] or [0.0]):
                del rivals["compiled Trainer"]  # compiled anew in each round, which takes longest of all
        recorder = loops["recorded"].recorder
        if recorder is not None:
            recorded = sum(recording.is_recorded for recording in recorder.recordings.values())
            print(f"    {recorded} shapes recorded, {len(recorder.seen)} seen once or waiting")
    for form, values in seconds.items():
        if values:
            rates = " ".join(f"{BATCH / value:.0f}" for value in values)
            median = float(np.median(values))
            speed = f"{1e3 * median:7.2f} ms a step, {BATCH / median:8.0f} examples/s ({rates})"
            print(f"{name:10} {kind:6} {form:16} {speed}", flush=True)
    for form in (form for form in RIVALS if seconds.get(form)):
        ratio = np.median(seconds[form]) / np.median(seconds["recorded"])
        print(f"{name:10} {kind:6} recorded is {ratio:.2f} times the {form}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=tuple(MODELS))
    parser.add_argument("--texts", nargs="+", choices=tuple(TEXTS), default=["pairs", "short", "tags", "spans"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=LIMITS.steps, help="that are timed")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further comparison after so long")
    arguments = parser.parse_args()
    LIMITS.device, LIMITS.steps = torch.device(arguments.device), arguments.steps
    LIMITS.warm_up, LIMITS.compared = min(60, arguments.steps), min(40, arguments.steps)
    started = time.perf_counter()
    device_name = torch.cuda.get_device_name() if LIMITS.device.type == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {device_name}", flush=True)
    for kind in arguments.texts:  # where the time is short, some tasks have both models
        for name in ("8x512", "bert-base") if arguments.model is None else [arguments.model]:
            if time.perf_counter() - started > arguments.seconds:
                print(f"{name} {kind}: not started, the time is over")
                continue
            try:
                compare(name, kind, arguments.rounds)
            except Exception:
                print(f"{name} {kind} FAILED")
                traceback.print_exc()
            print(f"    [{time.perf_counter() - started:.0f} s]", flush=True)


if __name__ == "__main__":
    main()
