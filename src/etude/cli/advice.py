"""What to do next with a corpus: a recipe that fits the text and the machine, and minutes, so that its cost is known.

A published recipe takes days of many GPUs as it stands; with `train.minutes` a run lasts as long as it is given. The
schedule of a short run is short too: a warm-up of ten thousand steps would outlast it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.errors import UserError, quote_path

SHORT = "train.batch_tokens=8192 train.lr=5e-4 train.warmup=0.1"  # of a published recipe in some minutes


@dataclass(frozen=True)
class Advice:
    """A recipe with its settings, for so many minutes, and the reason."""

    recipe: str
    minutes: int
    settings: str
    reason: str
    ernie: Ernie | None = None  # of a corpus that is linked to a graph

    def commands(self, corpus: str | Path) -> list[str]:
        """The two lines to type: what the run will be, and the run, in a folder that is free."""
        words = " ".join(part for part in (f"train.minutes={self.minutes}", self.settings) if part)
        place = quote_path(corpus)
        return [
            f"etude check {self.recipe} {place} {words}",
            f"etude pretrain {self.recipe} {place} -o {_choose_out(self.recipe)} {words}",
        ]

    def continuing_command(self, corpus: str | Path, run: Path) -> str:
        """The line that goes on with the run whose tokenizer the corpus has, for as many minutes."""
        out = find_free_folder(Path("runs") / run.resolve().name)
        return (
            f"etude pretrain {quote_path(run)} {quote_path(corpus)} -o {quote_path(out)} train.minutes={self.minutes}"
        )

    def ernie_commands(self, corpus: str | Path, graph: str | Path) -> list[str]:
        """The two lines that make an ERNIE of the masked model: vectors of the graph, and the run that reads both."""
        assert self.ernie is not None
        vectors, recipe = self.ernie.vectors, self.ernie.recipe
        table, start = _choose_out(vectors), _choose_out(self.recipe)
        minutes = f"train.minutes={self.minutes}"
        words = " ".join(part for part in (minutes, self.settings, self.ernie.settings) if part)
        width = f" {self.ernie.vector_settings}" if self.ernie.vector_settings else ""
        return [
            f"etude pretrain {vectors} {quote_path(graph)} -o {table} {minutes}{width}",
            f"etude pretrain {recipe} {quote_path(corpus)} -o {_choose_out(recipe)} --start {start} "
            f"--entities {table} {words}",
        ]


@dataclass(frozen=True)
class Ernie:
    """The recipes of an ERNIE with the sizes of a BERT that it starts from."""

    vectors: str
    vector_settings: str
    recipe: str
    settings: str


def _choose_out(recipe: str) -> Path:
    return find_free_folder(Path("runs") / recipe.partition("-")[0])


def find_free_folder(folder: Path) -> Path:
    """Return the folder, or the first of folder-2, folder-3, ... that nothing is at."""
    names = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], names) if not path.exists())


def _size_ernie(*, layers: int, width: int, heads: int, kinds: str) -> Ernie:
    sizes = f"model.layers={layers} model.width={width} model.heads={heads} 'model.layer_kinds=[{kinds}]'"
    return Ernie("transe", "model.width=100", "ernie", sizes)


# (tokens of the corpus below which it fits, recipe, minutes, settings); the last of each list fits any text
CPU = [
    (300_000, "bert-toy", 2, ""),
    (5_000_000, "bert-tiny", 15, SHORT),
    (10**18, "bert-mini", 60, SHORT),
]
GPU = [
    (300_000, "bert-toy", 1, ""),
    (5_000_000, "bert-mini", 5, SHORT),
    (50_000_000, "bert-small", 20, "train.batch_tokens=65536 train.lr=5e-4 train.warmup=0.1"),
    (10**18, "encoder-modern", 60, "train.batch_tokens=131072 train.batch_ramp=null"),
]
# of byte-level BPE, GPT-2's tokenizer, and of any without the tokens of a masked model
CAUSAL_CPU = [(5_000_000, "gpt2-toy", 5, ""), (10**18, "gpt2-toy", 30, "")]
CAUSAL_GPU = [(300_000, "gpt2-toy", 1, ""), (10**18, "gpt2", 60, SHORT)]
PAIRS = [(500_000, "transformer-toy", 5, ""), (10**18, "transformer-small", 60, "train.warmup=0.1")]
# of text that is linked to a graph: the BERT that ERNIE starts from, and ERNIE in its sizes
LINKED_GPU = [*GPU[:-1], (10**18, "bert-base", 60, "train.batch_tokens=131072 train.lr=5e-4 train.warmup=0.1")]
ERNIE = {
    "bert-toy": Ernie("transe-toy", "", "ernie-toy", ""),
    "bert-tiny": _size_ernie(layers=2, width=128, heads=2, kinds="mix,norm"),
    "bert-mini": _size_ernie(layers=4, width=256, heads=4, kinds="sim,sim,mix,norm"),
    "bert-small": _size_ernie(layers=4, width=512, heads=8, kinds="sim,sim,mix,norm"),
    "bert-base": Ernie("transe", "model.width=100", "ernie", ""),
}
WORDS = [(500_000, "skipgram-toy", 1, ""), (10**18, "word2vec-skipgram", 10, "")]


def advise(manifest: Mapping[str, Any], has_gpu: bool, can_mask: bool = True) -> Advice:
    """Return a recipe for a corpus by its manifest: its tokenizer, whether it holds pairs, and how much text it has.

    `can_mask`: the tokenizer has the tokens of a masked model; those that are trained here do.
    """
    tokens = int(manifest["parts"]["train"]["tokens"])
    reading = manifest.get("settings", {}).get("reading", {})
    is_linked = "entities" in manifest
    masked = (LINKED_GPU if is_linked else GPU) if has_gpu else CPU
    table, kind = masked, "a masked model"
    if reading.get("pairs"):
        table, kind = PAIRS, "a translation model"
    elif manifest["tokenizer"]["kind"] == "word":
        table, kind = WORDS, "vectors of whole words"
    elif not can_mask or manifest["tokenizer"]["kind"] == "bytebpe":
        table, kind = CAUSAL_GPU if has_gpu else CAUSAL_CPU, "a causal model"
    _, recipe, minutes, settings = next(row for row in table if tokens < row[0])
    if table is masked and any(_has_no_next_sentence(part) for part in manifest["parts"].values()):
        settings = f"{settings} objective.sentence=none".strip()
    if "target_tokenizer" in manifest:
        settings = f"{settings} model.tables=separate".strip()
    machine = "a GPU" if has_gpu else "this CPU"
    ernie = ERNIE[recipe] if is_linked and table is masked else None
    return Advice(recipe, minutes, settings, f"{kind} for {format_tokens(tokens)} tokens on {machine}", ernie)


def find_continuable(tokenizer: str | Path, are_pairs: bool) -> Path | None:
    """Return the run whose tokenizer a corpus was given, where it is one that plain text or pairs train on."""
    run = Path(tokenizer)
    recipe = run / "recipe.yaml"
    if not recipe.is_file() or not (run / "model.safetensors").is_file() or (run / "task.yaml").is_file():
        return None  # a spec, a folder of another kind, a run that is not finished or does a task
    from etude.recipes.document import parse_file

    try:
        objective = parse_file(recipe, str(recipe), f"{recipe} is missing.").values.get("objective")
    except UserError:
        return None  # the corpus is whole; what is wrong with that run is told by the command that opens it
    kind = objective.get("kind") if isinstance(objective, dict) else None
    return run if kind in (("translate",) if are_pairs else ("masked", "causal")) else None


def _has_no_next_sentence(part: Mapping[str, Any]) -> bool:
    """Whether a part of a corpus cannot teach the next sentence: it needs another document, and two in one."""
    documents = int(part["documents"])
    return documents == 1 or (documents > 0 and documents == part.get("sentences"))


def format_tokens(tokens: int) -> str:
    """Format a number of tokens briefly: 97 thousand, 2.4 million."""
    for limit, word in ((10**9, "billion"), (10**6, "million"), (10**3, "thousand")):
        if tokens >= limit:
            return f"{tokens / limit:.3g} {word}"
    return str(tokens)


def has_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU, without loading torch, which takes seconds."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Path("/proc/driver/nvidia/version").exists() and hidden not in ("", "-1")


def format_duration(seconds: float) -> str:
    """Format a time as a person says it: minutes, hours, days or years."""
    for size, word in ((365.25 * 86_400, "years"), (86_400, "days"), (3_600, "hours")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {word}"
    return f"{seconds / 60:,.1f} min"


LONG = 2 * 86_400.0  # seconds of a run that nobody starts by accident


def advise_on_time(recipe: str, corpus: str, seconds: float) -> str | None:
    """Return advice where a run would take days; None where it is short."""
    if seconds < LONG:
        return None
    return (
        f"As published it takes {format_duration(seconds)} on this machine. Give it the time you have: "
        f"etude check {quote_path(recipe)} {quote_path(corpus)} train.minutes=60 {SHORT}"
    )
