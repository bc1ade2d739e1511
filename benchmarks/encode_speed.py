"""Vectors and labels of many texts: Etude beside sentence-transformers and the pipeline of transformers, in turns.

    python benchmarks/encode_speed.py --texts 1000000 --out encode.json              # on a GPU, bfloat16
    python benchmarks/encode_speed.py --texts 60000 --seconds 250                    # the same in a few minutes
    python benchmarks/encode_speed.py --shapes mini --texts 2000 --rounds 3          # on a CPU, float32

A BERT of random weights, of the shape of MiniLM-L6 or BERT-base, is exported and opened by the others, so all compute
the same. Texts are sentences of the built-in world, some short, some joined to be longer; all sides take texts in the
same order and return vectors, or labels (of a quarter of the texts: the pipeline takes several times as long), of all
of them: tokenizing is part of the time. The others are at their best: sentence-transformers (where it is not
installed: a loop that does the same, batches padded to a multiple of eight) and the pipeline with the fastest of some
batch sizes, texts of the pipeline sorted by length, as it does not sort them itself, and read by processes of its own
where that is faster. The first call of each side, on a part of the texts, is not counted; it finds the batch size.
Printed: texts a second of every round, the ratio of the medians, and how far the results of the two sides are apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etude
from etude.hub.exporter import export_run
from etude.hub.run_weights import save_final
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.model_card import describe_hardware, describe_versions
from etude.runs.run import Run
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.world import World

SHAPES = {
    "mini": {"layers": 4, "width": 256, "heads": 4, "feedforward": 1024},
    "minilm": {"layers": 6, "width": 384, "heads": 12, "feedforward": 1536},
    "base": {"layers": 12, "width": 768, "heads": 12, "feedforward": 3072},
}
BATCH_SIZES = (32, 128, 512, 2048)  # of the others
WORKERS = 8  # processes that may read texts for the pipeline, on a machine with as many cores
CONTEXT = 256


def draw_texts(count: int) -> list[str]:
    """Texts of one to six sentences; the world repeats itself, and that changes no speed."""
    sentences = [
        f"{sentence.strip()}."
        for document in islice(World(seed=0).documents(), 2000)
        for sentence in document.text.split(".")
        if sentence.strip()
    ]
    rng = np.random.default_rng(0)
    joined = rng.choice([1, 1, 1, 2, 3, 6], count)
    starts = rng.integers(0, len(sentences) - 6, count)
    return [" ".join(sentences[start : start + n]) for start, n in zip(starts, joined, strict=True)]


def make_run(folder: Path, shape: dict[str, int], texts: Sequence[str]) -> Run:
    """A masked model of random weights over a tokenizer of these texts."""
    folder.mkdir()
    tokenizer = Tokenizer.train("wordpiece:8000,lower", texts)
    tokenizer.save(folder)
    changes = {f"model.{name}": value for name, value in shape.items()} | {"model.init_deviation": 0.1}
    recipe = Recipe.load("bert-mini", {**changes, "model.context": CONTEXT}).resolve(vocab=tokenizer.vocab)
    (folder / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
    run = Run.open(folder)
    torch.manual_seed(0)
    save_final(run, *build_learner(run.recipe, run.tokenizer), model_card="# random weights\n")
    return run


def make_classifier(run: Run, folder: Path, texts: Sequence[str]) -> Run:
    """The same with a head for four labels, after one step of training."""
    examples = [{"text": text, "label": "abcd"[number % 4]} for number, text in enumerate(texts[:64])]
    file = folder.with_suffix(".jsonl")
    file.write_text("".join(json.dumps(example) + "\n" for example in examples), encoding="utf-8")
    settings = {"train.steps": 1, "train.compile": False, "task.length": CONTEXT}
    return etude.finetune(run.folder, "classify", train=file, out=folder, settings=settings, quiet=True)


# --- the others -------------------------------------------------------------------------------------


class Embedder:
    """sentence-transformers, or what it does, over an exported model: mean of the tokens of each text."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.batch_size = device, BATCH_SIZES[0]
        try:
            from sentence_transformers import SentenceTransformer

            self.name = "sentence-transformers"
            self.library = SentenceTransformer(str(folder), device=str(device), model_kwargs={"dtype": dtype})
            self.library.max_seq_length = CONTEXT
        except Exception as error:  # not installed, or for another version of transformers
            import transformers

            print(f"no sentence-transformers: {error!r:.300}", flush=True)
            self.name = "loop like sentence-transformers"
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            self.model = transformers.AutoModel.from_pretrained(folder, dtype=dtype).eval().to(device)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        if self.name == "sentence-transformers":
            vectors: np.ndarray = self.library.encode(
                list(texts), batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            )
            return vectors
        order = np.argsort([-len(text) for text in texts])
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), self.batch_size):
                batch = [texts[number] for number in order[start : start + self.batch_size]]
                read = self.tokenizer(
                    batch, padding=True, truncation=True, max_length=CONTEXT, pad_to_multiple_of=8, return_tensors="pt"
                ).to(self.device)
                states = self.model(**read).last_hidden_state
                mask = read["attention_mask"][:, :, None].to(states.dtype)
                parts.append(((states * mask).sum(1) / mask.sum(1)).float())
            stacked = torch.cat(parts).cpu().numpy()
        return np.asarray(stacked[np.argsort(order)])


class Labeller:
    """`pipeline("text-classification")` over an exported classifier, texts sorted by length."""

    name = "pipeline"

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        import transformers

        model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=CONTEXT)
        self.pipeline = transformers.pipeline("text-classification", model, tokenizer=tokenizer, device=device)
        self.batch_size, self.workers = BATCH_SIZES[0], 0

    def predict(self, texts: Sequence[str]) -> list[str]:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        answers = self.pipeline(
            [texts[number] for number in order], batch_size=self.batch_size, num_workers=self.workers, truncation=True
        )
        labels = [""] * len(texts)
        for number, answer in zip(order, answers, strict=True):
            labels[number] = answer["label"]
        return labels


# --- in turns ---------------------------------------------------------------------------------------


def measure(call: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds, and the result."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = call()  # ends on the host
    return time.perf_counter() - started, result


def find_batch_size(other: Embedder | Labeller, call: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> None:
    """Let the other side have the batch size at which it is fastest, each tried twice; and processes if they help."""

    def measure_twice() -> float:
        return min(measure(lambda: call(texts), torch.device("cpu"))[0] for _ in range(2))

    seconds = {}
    for size in BATCH_SIZES:
        other.batch_size = size
        seconds[size] = measure_twice()
    other.batch_size = min(seconds, key=lambda size: seconds[size])
    if isinstance(other, Labeller) and len(os.sched_getaffinity(0)) >= WORKERS:
        other.workers = WORKERS
        if measure_twice() > seconds[other.batch_size]:
            other.workers = 0


def compare(
    title: str, texts: Sequence[str], ours: Callable[[Sequence[str]], Any], other: Embedder | Labeller,
    theirs: Callable[[Sequence[str]], Any], rounds: int, device: torch.device, until: float = float("inf"),
) -> dict[str, Any]:  # fmt: skip
    """Both sides in turns; no round after the first is begun after `until`, a time of `time.perf_counter`."""
    part = texts[: max(64, len(texts) // 20)]
    ours(part)
    find_batch_size(other, theirs, part)
    rates: dict[str, list[float]] = {"etude": [], other.name: []}
    results: dict[str, Any] = {}
    for number in range(rounds):
        if number and time.perf_counter() > until:
            print(f"{title}: {number} rounds, the time is over", flush=True)
            break
        for side, call in (("etude", ours), (other.name, theirs)):
            seconds, results[side] = measure(lambda call=call: call(texts), device)
            rates[side].append(len(texts) / seconds)
            print(f"{title}, round {number + 1}: {side} {rates[side][-1]:,.0f} texts a second", flush=True)
    ratios = [mine / its for mine, its in zip(rates["etude"], rates[other.name], strict=True)]
    left, right = results["etude"], results[other.name]
    if isinstance(left, np.ndarray):
        apart = float(np.abs(left - right).max() / np.abs(right).max())
        agreement = f"vectors {apart:.1e} of the largest value apart"
    else:
        apart = float(np.mean([mine["label"] != label for mine, label in zip(left, right, strict=True)]))
        agreement = f"{apart:.2%} of the labels differ"
    way = f"batches of {other.batch_size}{f', {WORKERS} processes' if getattr(other, 'workers', 0) else ''}"
    print(
        f"{title}: ours {statistics.median(rates['etude']):,.0f}, {other.name} ({way}) "
        f"{statistics.median(rates[other.name]):,.0f} texts a second: {statistics.median(ratios):.2f} x "
        f"({min(ratios):.2f} - {max(ratios):.2f}); {agreement}",
        flush=True,
    )
    return {"rates": rates, "ratios": ratios, "batch_size": other.batch_size, "apart": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["minilm", "base"])
    parser.add_argument("--only", choices=("vectors", "labels"))
    parser.add_argument("--seconds", type=float, default=1e9, help="of all comparisons; each has one round at least")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    started, parts = time.perf_counter(), 2 if options.only is None else 1
    comparisons = parts * len(options.shapes)
    ends = [started + options.seconds * number / comparisons for number in range(1, comparisons + 1)]
    device = torch.device(options.device)
    name, dtype = ("bfloat16", torch.bfloat16) if device.type == "cuda" else ("float32", torch.float32)
    texts = draw_texts(options.texts)
    found: dict[str, Any] = {"hardware": describe_hardware(), "versions": describe_versions(), "texts": len(texts)}
    for shape in options.shapes:
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder) / "run", SHAPES[shape], texts[:5000])
            if options.only != "labels":
                export_run(run, Path(folder) / "exported")
                loaded = etude.load(run.folder, device=str(device), dtype=name)
                embedder = Embedder(Path(folder) / "exported", device, dtype)
                title = f"{shape}, vectors"
                found[title] = compare(
                    title, texts, loaded.encode, embedder, embedder.encode, options.rounds, device, ends.pop(0)
                )
            if options.only != "vectors":
                tuned = make_classifier(run, Path(folder) / "tuned", texts)
                export_run(tuned, Path(folder) / "exported-tuned")
                labeller = Labeller(Path(folder) / "exported-tuned", device, dtype)
                predictor = etude.load(tuned.folder, device=str(device), dtype=name)
                title = f"{shape}, labels"
                found[title] = compare(
                    title, texts[: -(-len(texts) // 4)], predictor.predict, labeller, labeller.predict, options.rounds,
                    device, ends.pop(0),
                )  # fmt: skip
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
