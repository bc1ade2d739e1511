"""Word vectors against gensim: speed and quality on the same text, with the same settings, in the same run.

    etude prepare text.txt -o data/words --tokenizer word:100000,lower,min=5 --sample-mb 1000
    python benchmarks/word_vectors.py speed data/words --words 3000000
    python benchmarks/word_vectors.py quality data/words --eval FOLDER --seeds 3 --out results.jsonl

On a GPU, with the text packed for a machine without a network (31 M words are 40 MB):

    python benchmarks/word_vectors.py pack data/words --words 32000000 --out carry/words
    python benchmarks/word_vectors.py speed carry/words --device cuda --no-gensim --epochs 3
    python benchmarks/word_vectors.py quality carry/words --device cuda --no-gensim --eval FOLDER --label=-cuda

The text is that of the corpus: its train part, unknown words left out, in the stretches that the rows of our objective
are, as a file of lines for gensim's fastest input (`corpus_file`). Vocabulary, width, window, noise, sub-sampling,
rates, epochs and the spread of the first values are the same on both sides; words/s are those of the text a second of
training, without loading, vocabulary and compilation. `speed` says the best of some repetitions, each side in turn.

`quality --jobs 16` has so many runs at work at a time, one process each. gensim gets the text in the order in which
our rows of the same seed are read; `--order text` has it read from front to back, which shows in the scores.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.chance import Chance, Permutation, fold
from etude.hub.word_vectors import WordVectors
from etude.objectives.word_vectors.kernels import inner_loops
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.corpus.shard import Shard
from etude.text.tokenizer.token_strings import list_token_strings
from etude.text.tokenizer.tokenizer import Tokenizer
from etude.train import schedule
from etude.train.loop import Loop
from etude.view.word_scores import Analogies, score_file

ROW = 1000  # tokens of a row: a line of the text file
SYSTEMS = {
    "skipgram": {"recipe": "word2vec-skipgram", "sg": 1, "alpha": 0.025, "sample": 1e-3, "noise": 0.75},
    "cbow": {"recipe": "word2vec-cbow", "sg": 0, "alpha": 0.05, "sample": 1e-3, "noise": 0.75},
    "fasttext": {"recipe": "fasttext", "sg": 1, "alpha": 0.05, "sample": 1e-4, "noise": 0.5},
    "hierarchical": {"recipe": "word2vec-skipgram", "sg": 1, "alpha": 0.025, "sample": 1e-3, "noise": 0.75, "hs": 1},
}
PACKED = ("low.u16.xz", "high.u8.xz", "documents.u32.xz")  # of a packed text: ids in two parts, first of documents
SETS = ("EN-WS-353-ALL.txt.gz", "EN-MEN-TR-3k.txt.gz", "questions-words.txt.gz")


class Part:
    """The first words of a corpus, in memory, as a corpus."""

    def __init__(self, folder: Path, words: int | None) -> None:
        if (folder / PACKED[0]).is_file():
            self.valid = None
            low, high, starts = (np.frombuffer(lzma.decompress((folder / name).read_bytes()), kind)
                                 for name, kind in zip(PACKED, ("<u2", "u1", "<u4"), strict=True))  # fmt: skip
            ids = low.astype(np.uint32) | (high.astype(np.uint32) << 16)
            tokenizer = Tokenizer(lzma.decompress((folder / "tokenizer.json.xz").read_bytes()).decode())
        else:
            corpus = Corpus.open(folder, verify=False)
            self.valid, tokenizer = folder, corpus.tokenizer
            ids = corpus.tokens(0, min(corpus.total, words or corpus.total)).astype(np.uint32)
            starts = corpus.documents.slice(0, corpus.documents.find(len(ids) - 1) + 1).astype(np.uint32)
        size = min(len(ids), words or len(ids)) // ROW * ROW
        ids, starts = ids[:size], starts[starts < size]
        shard = Shard(ids, starts, starts, np.zeros(0, np.uint8))
        facts = {"tokens": size, "documents": len(starts), "sentences": len(starts), "bytes": 0}
        self.corpus = Corpus([shard], [facts], tokenizer, {"parts": {"train": facts}}, "train", None)
        self.tokenizer, self.total, self.counts = tokenizer, size, self.corpus.token_counts()

    def known(self) -> int:
        """Words of the text that have a vector."""
        return int(self.counts.sum() - self.counts[self.tokenizer.special.unknown])

    def words(self) -> dict[str, int]:
        """How often each word occurs, of those that do."""
        named = enumerate(list_token_strings(self.tokenizer))
        return {word: int(self.counts[id]) for id, word in named if word is not None and self.counts[id]}

    def pack(self, folder: Path) -> None:
        ids, starts = self.corpus.tokens(0, self.total), self.corpus.documents.slice(0, len(self.corpus.documents))
        folder.mkdir(parents=True, exist_ok=True)
        arrays = (ids.astype("<u2"), (ids >> 16).astype("u1"), starts.astype("<u4"))
        for name, array in zip(PACKED, arrays, strict=True):
            (folder / name).write_bytes(lzma.compress(array.tobytes()))
        (folder / "tokenizer.json.xz").write_bytes(lzma.compress(self.tokenizer.content.encode()))
        print(f"{folder}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e6:.1f} MB, {self.known():,} words")


def recipe_of(system: str, asked: argparse.Namespace, vocab: int, seed: int) -> Recipe:
    settings: dict[str, Any] = {
        "model.width": asked.width,
        "model.init": "fasttext",  # gensim's first values for all systems: twice as wide as word2vec's
        "objective.threads": asked.threads,
        "objective.row_tokens": ROW,
        "objective.output": "hierarchical" if SYSTEMS[system].get("hs") else "negative",
        "train.epochs": asked.epochs,
        "train.final_lr": 1e-4 / SYSTEMS[system]["alpha"],  # gensim ends at 1e-4
        "train.seed": seed,
        "train.device": asked.device,
        "train.precision": "float32",
        "train.workers": 2 if asked.device == "cuda" else 1,
        "train.save_every": 0,
        "train.eval_every": 0,
        "train.log_every": 1000,
    }
    if system == "fasttext":
        settings["model.buckets"] = asked.buckets
    return Recipe.load(SYSTEMS[system]["recipe"], settings).with_settings(asked.set).resolve(vocab=vocab)


def ours(system: str, part: Part, asked: argparse.Namespace, seed: int) -> tuple[float, WordVectors]:
    """Seconds of training, and the vectors."""
    recipe = recipe_of(system, asked, part.tokenizer.vocab, seed)
    model, objective = build_learner(recipe, part.tokenizer)
    rows = objective.rows(part.corpus, seed)
    total = schedule.total_steps(recipe.train, ROW, epoch_rows=len(rows))
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), model, objective, rows, recipe.train, total=total, device=torch.device(asked.device))
        first = loop.loader.step(0)
        if asked.device == "cpu":
            warm_up(objective, model, first)
        begun = time.perf_counter()
        for step in loop.loader.steps(0, total):
            loop.advance(step)
        if asked.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    if asked.what == "quality" and part.valid is not None:
        print(f"held-out loss {held_out_loss(objective.cpu(), model.cpu(), part):.4f}", flush=True)
    every, met = WordVectors.from_model(model.cpu(), list_token_strings(part.tokenizer)), set(part.words())
    places = [place for place, word in enumerate(every.words) if word in met]  # gensim has no others
    return seconds, WordVectors([every.words[place] for place in places], every.matrix[places])


@torch.no_grad()
def held_out_loss(objective: Any, model: torch.nn.Module, part: Part) -> float:
    rows = objective.rows(Corpus.open(part.valid, "valid", verify=False), 0)
    term = objective.loss(model, objective.batch([rows[number] for number in range(min(100, len(rows)))], Chance(0, 0)))
    return float(term["loss"].sum) / term["loss"].count


def warm_up(objective: Any, model: torch.nn.Module, step: Any) -> None:
    """Compiles, and leaves no trace."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inner_loops("windows")
    objective.update(model, step.batches[0], 0.0)
    model.load_state_dict(state)


def lines(part: Part, order: np.ndarray | None = None) -> Iterator[str]:
    """The text for gensim, row after row or in an order of rows."""
    words, unknown = list_token_strings(part.tokenizer), part.tokenizer.special.unknown
    named = [word or "" for word in words]
    for start in range(0, part.total, ROW) if order is None else (order * ROW).tolist():
        ids, documents = part.corpus.tokens(start, start + ROW), part.corpus.documents
        first, last = documents.find(start), documents.find(start + ROW - 1)
        cuts = [0, *(documents.slice(first + 1, last + 1) - start).tolist(), ROW]
        for one, other in pairwise(cuts):
            yield " ".join(named[id] for id in ids[one:other].tolist() if id != unknown)


def gensims(system: str, part: Part, text: Path, asked: argparse.Namespace, seed: int) -> tuple[float, WordVectors]:
    from gensim.models import FastText, Word2Vec

    facts = SYSTEMS[system]
    frequencies = part.words()
    shared = {
        "vector_size": asked.width, "window": 5, "negative": 0 if facts.get("hs") else 5, "hs": facts.get("hs", 0),
        "sg": facts["sg"], "alpha": facts["alpha"], "min_alpha": 1e-4, "sample": facts["sample"],
        "ns_exponent": facts["noise"], "min_count": 1, "workers": asked.threads, "seed": seed + 1,
        "epochs": asked.epochs,
    }  # fmt: skip
    if system == "fasttext":
        model: Any = FastText(**shared, bucket=asked.buckets, min_n=3, max_n=6)
    else:
        model = Word2Vec(**shared)
    model.build_vocab_from_freq(frequencies)
    if asked.order == "rows":
        order = Permutation(part.total // ROW, fold(seed, 0, "order"))(np.arange(part.total // ROW))
        text = text.with_name(f"{system}-{seed}.txt")
        text.write_text("".join(line + "\n" for line in lines(part, order)), encoding="utf-8")
    with open(text, encoding="utf-8") as file:
        count, examples = part.known(), sum(1 for _ in file)
    begun = time.perf_counter()
    model.train(corpus_file=str(text), total_words=count, total_examples=examples, epochs=asked.epochs)
    seconds = time.perf_counter() - begun
    if asked.order == "rows":
        text.unlink()  # one a seed: they add up
    return seconds, WordVectors(list(frequencies), np.stack([model.wv[word] for word in frequencies]))


def scores(vectors: WordVectors, folder: Path) -> dict[str, float]:
    found = {}
    for name in SETS:
        score = score_file(vectors, folder / name)
        if isinstance(score, Analogies):
            found |= {"analogy": score.accuracy, "semantic": score.semantic, "syntactic": score.syntactic}
        else:
            found[score.name] = score.correlation
    return found


def speed(asked: argparse.Namespace, part: Part, text: Path) -> None:
    count = part.known() * asked.epochs
    print(f"{count:,} words, {asked.threads} threads, width {asked.width}, {asked.device}; {machine()}")
    print(f"{'system':14} {'etude words/s':>14} {'gensim words/s':>15} {'ratio':>6}")
    for system in asked.systems.split(","):
        best = {"etude": 0.0, "gensim": 0.0}
        for repeat in range(asked.repeats):
            best["etude"] = max(best["etude"], count / ours(system, part, asked, repeat)[0])
            if not asked.no_gensim:
                best["gensim"] = max(best["gensim"], count / gensims(system, part, text, asked, repeat)[0])
        ratio = best["etude"] / best["gensim"] if best["gensim"] else float("nan")
        print(f"{system:14} {best['etude']:14,.0f} {best['gensim']:15,.0f} {ratio:6.2f}", flush=True)


def quality(asked: argparse.Namespace, part: Part, text: Path) -> None:
    """Runs what the results file does not hold yet, and prints means and differences."""
    path = Path(asked.out)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    known = {(row["who"], row["system"], row["seed"]) for row in done}
    names = {"etude": f"etude{asked.label}", "gensim": "gensim-text" if asked.order == "text" else "gensim"}
    whos = [who for who in ("gensim", "etude") if not getattr(asked, f"no_{who}")]
    # the longest first, so that no core is left with it at the end
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    todo = [(who, system, seed) for seed in seeds for system in asked.systems.split(",") for who in whos]
    todo = [one for one in todo if (names[one[0]], *one[1:]) not in known]

    def run(who: str, system: str, seed: int) -> None:
        arguments = (system, part, asked, seed) if who == "etude" else (system, part, text, asked, seed)
        seconds, vectors = (ours if who == "etude" else gensims)(*arguments)  # type: ignore[operator]
        row = {"who": names[who], "system": system, "seed": seed, "device": asked.device if who == "etude" else "cpu"}
        row |= {"words_per_second": part.known() * asked.epochs / seconds, "threads": asked.threads}
        row |= {"width": asked.width, "words": part.known(), "epochs": asked.epochs, "set": asked.set}
        row |= scores(vectors, Path(asked.eval))
        with open(path, "a") as file:  # a line is one write, also beside other processes
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    if asked.jobs == 1:
        for one in todo:
            run(*one)
    else:
        together(run, todo, asked, part)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    if rows:
        table(rows)


def together(run: Any, todo: list[tuple[str, str, int]], asked: argparse.Namespace, part: Part) -> None:
    """Runs in processes of their own, `asked.jobs` at a time: forks, so that the text is there once, and compiled."""
    torch.set_num_threads(1)  # a pool of threads would not outlive a fork
    for system in dict.fromkeys(system for who, system, _ in todo if who == "etude"):
        recipe = recipe_of(system, asked, part.tokenizer.vocab, 0).with_settings(
            ["model.buckets=10"] * (system == "fasttext")
        )
        model, objective = build_learner(recipe, part.tokenizer)
        rows = objective.rows(part.corpus, 0)
        inner_loops("windows")
        objective.update(model, objective.batch([rows[0]], Chance(0, 0)), 0.0)
    context = multiprocessing.get_context("fork")
    working: list[Any] = []
    for one in todo:
        while len(working) >= asked.jobs:
            time.sleep(0.2)
            working = [process for process in working if process.is_alive()]
        working.append(context.Process(target=run, args=one))
        working[-1].start()
    for process in working:
        process.join()


def table(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name.startswith("EN-") or name in ("analogy", "semantic", "syntactic")]
    print(f"{'system':14} {'who':16} {'seeds':>5} " + " ".join(f"{name:>16}" for name in names))
    for system, who in dict.fromkeys((row["system"], row["who"]) for row in rows):
        chosen = [row for row in rows if (row["system"], row["who"]) == (system, who)]
        cells = []
        for name in names:
            values = [row[name] for row in chosen]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):8.4f} ±{spread:.4f}")
        print(f"{system:14} {who:16} {len(chosen):5} " + " ".join(f"{cell:>16}" for cell in cells))


def machine() -> str:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.machine()}, {platform.python_version()}, torch {torch.__version__}{gpu}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "quality", "pack"])
    parser.add_argument("corpus", help="the folder of a corpus, or of a packed text")
    parser.add_argument("--systems", default="skipgram,cbow,fasttext")
    parser.add_argument("--words", type=int, default=None, help="of the corpus, from its start; all if not given")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=2_000_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="quality: the seeds from this one on")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--eval", default="wordvec_eval", help="the folder of the evaluation sets")
    parser.add_argument("--out", default="word_vectors.jsonl", help="the results, or the folder of the packed text")
    parser.add_argument("--label", default="", help="behind our name in the results, for runs with other settings")
    parser.add_argument("--no-gensim", action="store_true")
    parser.add_argument("--no-etude", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="quality: processes at a time")
    parser.add_argument("--order", choices=["text", "rows"], default="rows", help="in which gensim reads the text")
    parser.add_argument("--set", nargs="*", default=[], help="more settings of the recipe: objective.block=1024 ...")
    asked = parser.parse_args()
    part = Part(Path(asked.corpus), asked.words)
    if asked.what == "pack":
        part.pack(Path(asked.out))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        if not asked.no_gensim and asked.order == "text":
            text.write_text("".join(line + "\n" for line in lines(part)), encoding="utf-8")
        (speed if asked.what == "speed" else quality)(asked, part, text)


if __name__ == "__main__":
    main()
