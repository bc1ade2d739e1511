"""Likelihoods of answers beside those of lm-evaluation-harness, for one model: the same numbers, and in what time.

    pip install lm_eval
    python benchmarks/prompt_parity.py runs/gpt2 [--examples 200]

The model must have a shape that transformers knows (GPT-2's or Llama's) and a byte-level tokenizer; it is exported to a
folder for the peer. Texts are beginnings of the run's own words with answers of one to several tokens, as in a
classification (the same few answers for all) and as in a choice (each its own). Both read in float32 on this device.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import etude
from etude.hub.exporter import export_run
from etude.inference.likelihood import encode_answers, score_answers

LABELS = [" good", " very bad", " neither good nor bad"]


def texts_of(loaded: Any, count: int) -> list[str]:
    """Sentences that the model writes itself."""
    found = loaded.generate("The", 60, samples=count, seed=0, stop=["\n"])
    return [str(one) for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--examples", type=int, default=200)
    asked = parser.parse_args()
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = etude.load(asked.run)
    texts = texts_of(loaded, asked.examples)
    endings = [" " + text.split(" ", 3)[-1][:40].strip() for text in texts]
    works = {
        "three labels": [(text, LABELS) for text in texts],
        "four choices": [(text, [endings[(n + k) % len(endings)] for k in range(4)]) for n, text in enumerate(texts)],
    }
    with tempfile.TemporaryDirectory() as folder:
        export_run(asked.run, Path(folder) / "model")
        tokenizer = AutoTokenizer.from_pretrained(Path(folder) / "model")
        model = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=torch.float32).to(loaded.device)
        peer: Any = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=64, device=loaded.device)
    print(f"{'work':14} {'answers':>8} {'etude':>9} {'harness':>9} {'ratio':>6} {'apart by':>10} {'likeliest':>10}")
    for name, work in works.items():
        begun = time.perf_counter()
        found = score_answers(loaded, [encode_answers(loaded, text, answers) for text, answers in work])
        ours = time.perf_counter() - begun
        requests = [
            Instance("loglikelihood", {}, (text, answer), number)
            for number, (text, answers) in enumerate(work)
            for answer in answers
        ]
        begun = time.perf_counter()
        told = peer.loglikelihood(requests, disable_tqdm=True)
        its = time.perf_counter() - begun
        mine = np.concatenate([-one.nats for one in found])
        same = np.concatenate([one.likeliest for one in found]) == [likeliest for _, likeliest in told]
        apart = np.abs(mine - [value for value, _ in told]).max()
        print(f"{name:14} {len(mine):8} {ours:8.2f}s {its:8.2f}s {its / ours:5.2f}x {apart:10.2e} {same.mean():10.1%}")


if __name__ == "__main__":
    main()
