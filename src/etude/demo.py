"""`etude demo`: from nothing to a model that fills blanks, on the built-in world, in about two minutes on a CPU.

Text is generated, a corpus prepared, a toy BERT pre-trained, and sentences it has never seen are completed. Every
step leaves what it made in one folder; a second call shows the same again at once, and an interrupted one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude import pretraining
from etude.check import unigram_entropy
from etude.loaded import MASK, Guess, load
from etude.recipes.schema import Recipe
from etude.run import Run
from etude.text.corpus import Corpus
from etude.text.prepare import prepare
from etude.world import World

RECIPE = "bert-toy"
MEGABYTES = 4.0  # a toy reads about this much in its minute
SHOWN = 6  # sentences with a blank


@dataclass(frozen=True)
class Blank:
    text: str
    answer: str
    guesses: list[Guess]


@dataclass(frozen=True)
class Demo:
    run: Run
    corpus: Corpus
    blanks: list[Blank]
    loss: float  # held-out, at the masked tokens
    unigram: float  # what knowing only the frequencies would give


def demo(
    folder: Path, language: str, minutes: float | None, seed: int, say: Callable[[str], None], quiet: bool = False
) -> Demo:
    """Does what is not done yet, and shows the result."""
    text = folder / f"town.{language}.txt"
    if not text.is_file():
        say(f"Writing {MEGABYTES:g} MB of text about an invented town to {text}")
        folder.mkdir(parents=True, exist_ok=True)
        aside = text.with_suffix(".writing")
        aside.write_text("\n\n".join(World(seed, language).text(MEGABYTES)) + "\n", encoding="utf-8")
        aside.rename(text)
    place = folder / f"corpus.{language}"
    if not (place / "manifest.json").is_file():
        tokenizer = Recipe.load(RECIPE).tokenizer
        say(f"Preparing the corpus {place}: etude prepare {text} -o {place} --tokenizer {tokenizer}")
        prepare(str(text), place, tokenizer=tokenizer, valid=0.02, seed=seed)
    corpus = Corpus.open(place)
    run = _trained(folder / f"bert.{language}", corpus, minutes, seed, say, quiet)
    if not run.finished:
        return Demo(run, corpus, [], float("nan"), float("nan"))
    valid = run.metrics("valid")[-1]
    unigram = unigram_entropy(corpus.token_counts())
    return Demo(run, corpus, list(_blanks(run, corpus)), valid["mlm"], unigram)


def _trained(
    folder: Path, corpus: Corpus, minutes: float | None, seed: int, say: Callable[[str], None], quiet: bool
) -> Run:
    if folder.exists():
        run = Run.open(folder)
        if run.finished:
            say(f"{folder} is trained already; remove it to train again")
            return run
        say(f"Going on with {folder}")
        return pretraining.resume(run, quiet=quiet)
    say(f"Pre-training a toy BERT: etude pretrain {RECIPE} {corpus.folder} -o {folder}")
    settings: dict[str, Any] = {"train.seed": seed} | ({"train.minutes": minutes} if minutes else {})
    return pretraining.pretrain(RECIPE, corpus, folder, quiet=quiet, overrides=settings)


def _blanks(run: Run, corpus: Corpus) -> Iterator[Blank]:
    """Held-out sentences, each with one whole word taken out: the longest, since it is rarely a function word."""
    model, valid = load(run.folder), pretraining.held_out(corpus)
    assert valid is not None  # prepared above with a held-out part
    shown = 0
    for number in range(len(valid.documents)):
        text = valid.tokenizer.decode(valid.tokens(valid.documents[number], valid.documents[number + 1]))
        words = text.split()
        place = max(range(len(words)), key=lambda at: len(words[at].strip(".,?!")))
        word = words[place].strip(".,?!")
        single = len(valid.tokenizer.encode(word).ids) == 1
        if not single or not 8 <= len(words) <= 40:
            continue
        words[place] = words[place].replace(word, MASK)
        guesses = model.fill(" ".join(words), top=5)
        yield Blank(" ".join(words), word, [guess for guess in guesses if isinstance(guess, Guess)])
        shown += 1
        if shown == SHOWN:
            return
