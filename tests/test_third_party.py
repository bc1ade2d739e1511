"""A package of somebody else's, installed: its model, objective, task and recipe work like ours, by their names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent / "third_party"
SOURCE = Path(__file__).parents[1] / "src"
STUDY = """\
name: third-party
title: A study of somebody else's kinds
question: Does it run?
text: {world: 0.05, valid: 0.1}
budget: {flops: 4e7}
epochs: 50
contenders:
  theirs: {recipe: prefix-mean-toy}
tasks:
  verdict: {kind: verdict, world: topic, labels: [16], dev_size: 16, test_size: 20}
transfer: {train.epochs: 1, train.batch_examples: 8}
control: {epochs: 1}
seeds: {pretrain: 1, transfer: 1}
curve: 1
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the plug-in alone."""
    folder = tmp_path_factory.mktemp("third-party")
    shutil.copytree(PLUGIN, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    install += ["--disable-pip-version-check", "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(install, check=True, timeout=120)
    return folder / "site"


# several command lines in one process: loading torch takes longer than any of them; of the shipped recipes one is
# listed beside theirs: measuring all takes long, and tests/recipes/test_shipped.py does it
RUN = """
import gc, json, sys
from etude.cli.main import main
from etude.recipes import document
document.shipped_recipes = lambda: ["bert-base"]
for words in json.loads(sys.argv[1]):
    sys.argv = ["etude", *words]
    gc.freeze()  # a study looks for garbage after each cell, which among all of torch takes longer than a cell
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def python(site: Path, code: str, *arguments: str) -> str:
    """What a program prints with the plug-in installed."""
    paths = os.pathsep.join([str(site), str(SOURCE)])
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=300, env=os.environ | {"PYTHONPATH": paths, "COLUMNS": "160"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def etude(site: Path, *commands: list[str | Path]) -> str:
    """What some command lines print."""
    return python(site, RUN, json.dumps([list(map(str, words)) for words in commands]))


@pytest.fixture(scope="module")
def output(site: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a pre-training, a fine-tuning and a study of the plug-in, and what they printed; in one process."""
    folder = tmp_path_factory.mktemp("work")
    text, corpus, base, tuned = (folder / name for name in ("text.txt", "corpus", "base", "tuned"))
    text.write_text("\n\n".join(f"the cat number {i} sat on the mat . it was warm ." for i in range(300)))
    examples = folder / "examples.jsonl"
    rows = [{"statement": f"the cat sat {i}", "verdict": "yes" if i % 2 else "no"} for i in range(16)]
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "study.yaml").write_text(STUDY)
    return folder, etude(
        site,
        ["prepare", text, "-o", corpus, "--tokenizer", "wordpiece:200,lower", "--valid", "0.05"],
        ["pretrain", "prefix-mean-toy", corpus, "-o", base, "train.steps=4", "train.workers=0", "-q"],
        # a kind by the name of its module
        ["finetune", base, "example_plugin.verdict", "--train", examples, "--dev", examples, "-o", tuned,
         "train.steps=2", "-q"],
        ["evaluate", tuned, examples],
        ["tasks"],
        ["recipes"],
        ["recipes", "prefix-mean-toy"],
        ["study", folder / "study.yaml", "-o", folder / "out", "-q"],
    )  # fmt: skip


def test_it_goes_through_pretraining_and_finetuning_and_is_listed(output: tuple[Path, str]) -> None:
    folder, printed = output
    assert json.loads((folder / "base" / "config.json").read_text())["model_type"] == "etude-prefix_mean"
    assert "accuracy" in printed
    assert "a verdict on a text" in printed
    assert "kind: prefix_mean" in printed
    assert {"prefix-mean-toy", "bert-base"} <= set(printed.split())


def test_it_goes_through_a_study(output: tuple[Path, str]) -> None:
    folder, printed = output
    assert (folder / "out" / "results.json").is_file()
    assert "theirs" in printed and "Failed" not in printed


# of the package as it is, edited, and as it was: three studies, one start of Python
EDIT = """
import pathlib, sys
from etude.study.code_hash import fingerprint, forget_sources
model = pathlib.Path(sys.argv[1])
original = model.read_text()
for text in (original, original.replace("torch.tanh", "torch.sigmoid"), original):
    model.write_text(text)
    forget_sources()
    print(fingerprint("example_plugin.prefix_mean"))
"""


def test_an_edit_of_the_package_makes_its_cells_anew(site: Path) -> None:
    before, edited, after = python(site, EDIT, str(site / "example_plugin" / "prefix_mean.py")).split()
    assert before == after != edited
