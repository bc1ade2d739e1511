"""Training speed: Etude, the `transformers` Trainer, and the best plain `transformers` loop, in one run.

    python benchmarks/train_speed.py                         # on a GPU: the published sizes
    python benchmarks/train_speed.py --small                 # on a CPU: BERT 4 x 256, vocabulary 8k, length 128
    python benchmarks/train_speed.py --only bert-128 --dropout 0.1 --out results.json

Tokens are real ones (padding does not count; at full length there is none). Share of peak is FLOPs, counted as
the objective counts them (heads only where they run, attention in full), over seconds and over the rate of the
best large matrix product measured in the same run. The peers' share uses the same FLOPs a token: it says how
fast the same learning goes, not how busy the device is.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.recipes.schema import Recipe
from etude.run import fresh
from etude.text.corpus import Corpus
from etude.text.tokenizer import Tokenizer
from etude.train import peak
from etude.train.loop import Loop


@dataclass(frozen=True)
class Work:
    name: str
    recipe: str
    peer: str  # the transformers class to build
    vocab: int
    length: int
    batch: int  # sequences of a step
    small: bool = False  # for a CPU: 4 layers of 256

    @property
    def tokens(self) -> int:
        return self.batch * self.length


PUBLISHED = (
    Work("bert-128", "bert-base", "bert", 30_522, 128, 256),
    Work("bert-512", "bert-base", "bert", 30_522, 512, 64),
    Work("gpt2-1024", "gpt2", "gpt2", 50_257, 1024, 32),
    Work("albert-512", "albert-base", "albert", 30_000, 512, 64),
)
SMALL = (Work("bert-small-128", "bert-mini", "bert", 8_000, 128, 32, small=True),)


# --- Etude ------------------------------------------------------------------------------------------


def random_corpus(vocab: int, tokens: int) -> Corpus:
    """Random words in documents of 2,000: full-length sequences, nothing to learn, everything to compute."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOT]", *(f"w{i}" for i in range(vocab - 6))]
    content = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": i,
                "content": w,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for i, w in enumerate(words[:6])
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"},
    }
    ids = np.random.default_rng(0).integers(6, vocab, (max(2, tokens // 2000), 20, 100))
    return Corpus.from_documents(ids.tolist(), Tokenizer(json.dumps(content)))


def etude_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    settings: dict[str, Any] = {
        "model.vocab": work.vocab,
        "model.dropout": dropout,
        "model.embedding_dropout": dropout,
        "model.attention_dropout": dropout,
        "objective.length": work.length,
        "train.batch_tokens": work.tokens,
        "train.steps": 10**6,
        "train.precision": precision,
        "train.device": device.type,
        "train.log_every": 10**6,
        "train.workers": 2 if device.type == "cuda" else 0,
    }
    if work.peer == "bert":  # what the peers train: the masked language model alone
        settings |= {"objective.sentence": "none", "objective.short_rate": 0.0, "model.pooler": False}
    if work.small:
        settings |= {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.context": 128}
    recipe = Recipe.load(work.recipe, settings).resolve(vocab=work.vocab)
    corpus = random_corpus(work.vocab, 4 * work.tokens)
    model, objective = fresh(recipe, corpus.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(Path(folder), model, objective, objective.rows(corpus, 0), recipe.train, total=10**6, device=device)
        batches = loop.loader.steps(0, 10**6)
        seconds, memory = timed(lambda: loop.advance(next(batches)), steps, device)
        per_token = loop.tally.flops / loop.tally.tokens
    return {"tokens_per_second": work.tokens / seconds, "memory": memory, "flops_per_token": per_token}


# --- the peers --------------------------------------------------------------------------------------


def peer_model(work: Work, dropout: float) -> nn.Module:
    import transformers as tf

    shape: dict[str, Any] = {"vocab_size": work.vocab, "attn_implementation": "sdpa"}
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if work.peer == "bert":
        if work.small:
            shape |= {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        return tf.BertForMaskedLM(tf.BertConfig(**shape, **drop))
    if work.peer == "albert":
        shape |= {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
        return tf.AlbertForMaskedLM(tf.AlbertConfig(**shape, **drop))
    return tf.GPT2LMHeadModel(tf.GPT2Config(**shape, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))


def peer_batch(work: Work, count: int) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    ids = torch.randint(6, work.vocab, (count, work.length), generator=chance)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if work.peer != "gpt2":
        masked = torch.rand(ids.shape, generator=chance) < 0.15
        batch["labels"] = ids.masked_fill(~masked, -100)
        batch["input_ids"] = ids.masked_fill(masked, 4)
    return batch


def loop_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    """The best a careful user writes: bf16 autocast, SDPA, torch.compile on a GPU, fused AdamW."""
    torch.manual_seed(0)
    model = peer_model(work, dropout).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    call = torch.compile(model) if device.type == "cuda" else model
    batch = {name: tensor.to(device) for name, tensor in peer_batch(work, work.batch).items()}

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    seconds, memory = timed(step, steps, device)
    return {"tokens_per_second": work.tokens / seconds, "memory": memory}


def trainer_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    import transformers as tf

    data = peer_batch(work, work.batch)
    examples = [{name: tensor[i] for name, tensor in data.items()} for i in range(work.batch)]
    warm, stamps = 5, []

    class Clock(tf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step in (warm, warm + steps):
                if device.type == "cuda":
                    torch.cuda.synchronize()
                stamps.append(time.perf_counter())

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        arguments = tf.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=work.batch,
            bf16=precision == "bf16",
            max_steps=warm + steps,
            report_to=[],
            save_strategy="no",
            logging_steps=10**6,
            dataloader_num_workers=8 if device.type == "cuda" else 0,
            use_cpu=device.type == "cpu",
            disable_tqdm=True,
        )
        endless = examples * (warm + steps)
        tf.Trainer(model=peer_model(work, dropout), args=arguments, train_dataset=endless, callbacks=[Clock()]).train()
    return {"tokens_per_second": work.tokens * steps / (stamps[1] - stamps[0]), "memory": peak_memory(device)}


# --- measuring --------------------------------------------------------------------------------------


def peak_memory(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")


def timed(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds a step and the most memory held; compilation and first touches are left out."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    for _ in range(6 if cuda else 2):
        step()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps, peak_memory(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the CPU's work")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--dropout", type=float, default=0.0, help="the same on every side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peers", default="trainer,loop", help="any of trainer, loop; empty for none")
    parser.add_argument("--precision", default=None, help="bf16 or float32; bf16 on a GPU, the faster one on a CPU")
    parser.add_argument("--out", help="also write the rows as JSON")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    precision = asked.precision or peak.resolved_precision("auto", device)
    best = peak.measured_peak(device, precision)
    works = SMALL if asked.small or device.type == "cpu" else PUBLISHED
    if asked.only:
        works = tuple(work for work in works if work.name in asked.only.split(","))
    name = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    print(
        f"{name}, torch {torch.__version__}, {precision}, dropout {asked.dropout}, peak {best / 1e12:.2f} TFLOP/s",
        flush=True,
    )
    print(
        f"{'work':16} {'etude':>12} {'of peak':>8} {'GiB':>6}  "
        + "  ".join(f"{p:>10} {'ratio':>6}" for p in asked.peers.split(",") if p)
    )
    rows = []
    speeds = {"trainer": trainer_speed, "loop": loop_speed}
    for work in works:
        ours = etude_speed(work, asked.dropout, asked.steps, device, precision)
        row: dict[str, Any] = {"work": work.name, "dropout": asked.dropout, "precision": precision, "etude": ours}
        share = ours["tokens_per_second"] * ours["flops_per_token"] / best
        text = f"{work.name:16} {ours['tokens_per_second']:12,.0f} {share:8.1%} {ours['memory']:6.1f}  "
        for peer in filter(None, asked.peers.split(",")):
            torch._dynamo.reset()
            found = speeds[peer](work, asked.dropout, asked.steps, device, precision)
            row[peer] = found | {"ratio": ours["tokens_per_second"] / found["tokens_per_second"]}
            text += f"{found['tokens_per_second']:10,.0f} {row[peer]['ratio']:5.2f}x  "
        print(text, flush=True)
        rows.append(row)
        torch._dynamo.reset()
    if asked.out:
        Path(asked.out).write_text(
            json.dumps({"device": name, "torch": torch.__version__, "peak": best, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
