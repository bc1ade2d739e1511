"""Training speed: Etude, the `transformers` Trainer, a plain loop, and the loop an expert would write, in one run.

    python benchmarks/train_speed.py                         # on a GPU: the published sizes
    python benchmarks/train_speed.py --small                 # on a CPU: BERT 4 x 256, vocabulary 8k, length 128
    python benchmarks/train_speed.py --only bert-128 --dropout 0.1 --out results.json

Tokens are real ones (padding does not count; at full length there is none). Share of peak is FLOPs, counted as
the objective counts them (heads only where they run, attention in full), over seconds and over the rate of the
best large matrix product measured in the same run. The peers' share uses the same FLOPs a token: it says how
fast the same learning goes, not how busy the device is.

Peers: `trainer` (its defaults, bf16), `loop` (autocast, SDPA, compile, fused AdamW; the model class as it is) and
`expert` (the same, with no attention mask, the output layer only where something is predicted, and a vocabulary padded
to a multiple of 64). With --rounds the sides take turns on a GPU too, each in its process, and every round is told.

A CPU's speed moves with what its neighbours do, within seconds and by a factor of two. So there each side is a process
of its own (ours also changes how a process keeps its memory), the sides take turns for a few rounds, ours between the
two peers, and a ratio is the median of those of the rounds. Every round is told.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from etude.pretraining.bench import word_level_tokenizer
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
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
    Work("electra-128", "electra-small", "electra", 30_522, 128, 512),
    Work("albert-512", "albert-base", "albert", 30_000, 512, 64),
)
SMALL = (Work("bert-small-128", "bert-mini", "bert", 8_000, 128, 32, small=True),)


# --- Etude ------------------------------------------------------------------------------------------


def random_corpus(vocab: int, tokens: int, documents: int = 1) -> Corpus:
    """Random words; in one long document: full-length sequences (but its last), nothing to learn, all to compute."""
    ids = np.random.default_rng(0).integers(6, vocab, (documents, max(2, tokens // documents // 100), 100))
    return Corpus.from_documents(ids.tolist(), word_level_tokenizer(vocab))


def etude_loop(
    work: Work, dropout: float, device: torch.device, precision: str, folder: Path, corpus: Corpus | None = None
) -> Loop:
    """Our loop on this work. Without a corpus, on sequences of full length; with one, on its natural lengths."""
    full, corpus = corpus is None, corpus or random_corpus(work.vocab, 40 * work.tokens)
    vocab = corpus.tokenizer.vocab
    settings: dict[str, Any] = {
        "model.vocab": vocab,
        "model.dropout": dropout,
        "model.embedding_dropout": dropout,
        "model.attention_dropout": dropout,
        "objective.length": work.length,
        "train.batch_tokens": work.tokens,
        "train.steps": 10**6,
        "train.precision": precision,
        "train.device": device.type,
        "train.log_every": 10**6,
        "train.workers": None if device.type == "cuda" else 0,
    }
    if work.peer in ("bert", "albert"):  # what the peers train: the masked language model alone
        settings |= {"objective.sentence": "none", "model.pooler": False}
    if work.peer == "bert":  # and with its GELU, the exact one: the recipe has that of BERT's own code
        settings |= {"model.activation": "gelu"}
    if work.peer != "gpt2" and full:
        settings |= {"objective.short_rate": 0.0}
    if work.small:
        settings |= {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.context": 128}
    recipe = Recipe.load(work.recipe, settings).resolve(vocab=vocab)
    model, objective = build_learner(recipe, corpus.tokenizer)
    return Loop(folder, model, objective, objective.rows(corpus, 0), recipe.train, total=10**6, device=device)


def etude_speed(
    work: Work,
    dropout: float,
    steps: int,
    device: torch.device,
    precision: str,
    corpus: Corpus | None = None,
    profile: bool = False,
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        loop = etude_loop(work, dropout, device, precision, Path(folder), corpus)
        batches, waited = loop.loader.steps(0, 10**6), [0.0]

        def step() -> None:
            begun = time.perf_counter()
            batch = next(batches)
            waited[0] += time.perf_counter() - begun
            loop.advance(batch)

        timed(step, 1, device)  # compiles
        waited[0] = 0.0
        seconds, memory = timed(step, steps, device)
        per_token = loop.state.flops / loop.state.tokens
        if profile:
            profiled(step)
    return {
        "tokens_per_second": work.tokens / seconds,
        "memory": memory,
        "flops_per_token": per_token,
        "waited": waited[0] / (steps + WARM) / seconds,  # the share of a step spent on waiting for the loader
    }


def profiled(step: Callable[[], None]) -> None:
    """Where the time of three steps goes: by kernel, and where none was at work."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    kernels = sorted(
        (e.time_range.start, e.time_range.end, e.name[:60])
        for e in found.events()
        if e.device_type.name == "CUDA" and not e.name.startswith("##")  # those are what a compiled graph did in all
    )
    taken, waited = defaultdict(list), defaultdict(list)
    last, before = kernels[0][0], ""
    for start, end, name in kernels:
        taken[name].append(max(0.0, end - max(start, last)))
        waited[f"{before} -> {name}"].append(max(0.0, start - last))
        last, before = max(last, end), name
    for title, found_times, most in (("kernels", taken, 45), ("nothing at work", waited, 15)):
        total = sum(sum(times) for times in found_times.values())
        print(f"{title}: {total / 3e3:.2f} ms a step, {sum(map(len, found_times.values())) / 3:.0f} times")
        for name, times in sorted(found_times.items(), key=lambda item: -sum(item[1]))[:most]:
            print(f"  {sum(times) / 3e3:8.3f} ms {len(times) / 3:6.1f} x  {name}")


# --- the peers --------------------------------------------------------------------------------------


def peer_model(work: Work, dropout: float, attention: str = "sdpa") -> nn.Module:
    import transformers as tf

    shape: dict[str, Any] = {"vocab_size": work.vocab, "attn_implementation": attention}
    drop = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    if work.peer == "bert":
        if work.small:
            shape |= {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        return tf.BertForMaskedLM(tf.BertConfig(**shape, **drop))
    if work.peer == "albert":
        shape |= {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
        return tf.AlbertForMaskedLM(tf.AlbertConfig(**shape, **drop))
    if work.peer == "electra":
        return electra_peer(shape, drop)
    return tf.GPT2LMHeadModel(tf.GPT2Config(**shape, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))


def electra_peer(shape: dict[str, Any], drop: dict[str, float]) -> nn.Module:
    """ELECTRA-small's joint step (Clark et al. 2020, section 2) with the model classes of transformers, as they are."""
    import transformers as tf

    small = {"embedding_size": 128, "num_hidden_layers": 12, **shape, **drop}
    narrow = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 256}
    wide = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}

    class Joint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.ElectraForMaskedLM(tf.ElectraConfig(**small, **narrow))
            self.discriminator = tf.ElectraForPreTraining(tf.ElectraConfig(**small, **wide))
            self.generator.electra.embeddings = self.discriminator.electra.embeddings
            self.generator.generator_lm_head.weight = self.discriminator.electra.embeddings.word_embeddings.weight

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
            spoken = self.generator(input_ids=input_ids, attention_mask=attention_mask, labels=labels)
            masked = labels >= 0
            with torch.no_grad():
                noise = -torch.log(-torch.log(torch.rand_like(spoken.logits, dtype=torch.float32)))
                drawn = (spoken.logits + noise).argmax(-1)
            text = torch.where(masked, drawn, input_ids)
            replaced = (masked & (drawn != labels)).long()
            judged = self.discriminator(input_ids=text, attention_mask=attention_mask, labels=replaced)
            return tf.modeling_outputs.MaskedLMOutput(loss=spoken.loss + 50 * judged.loss)

    return Joint()


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


def expert_loss(work: Work, model: nn.Module) -> Callable[..., torch.Tensor]:
    """Return the loss as an expert writes it: states of the trunk, and the output layer at the places that count."""
    cross_entropy = nn.functional.cross_entropy

    def causal(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.transformer(input_ids=input_ids)[0][:, :-1]
        return cross_entropy(model.lm_head(states).flatten(0, 1).float(), labels[:, 1:].flatten())

    def bert(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.bert(input_ids=input_ids)[0].flatten(0, 1)[places]
        return cross_entropy(model.cls(states).float(), labels.flatten()[places])

    def albert(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        states = model.albert(input_ids=input_ids)[0].flatten(0, 1)[places]
        return cross_entropy(model.predictions(states).float(), labels.flatten()[places])

    def electra(input_ids: torch.Tensor, labels: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        generator, wanted = model.generator, labels.flatten()[places]
        states = generator.electra(input_ids=input_ids)[0].flatten(0, 1)[places]
        logits = generator.generator_lm_head(generator.generator_predictions(states)).float()
        with torch.no_grad():
            drawn = (logits - torch.log(-torch.log(torch.rand_like(logits)))).argmax(-1)
            text = input_ids.flatten().index_copy(0, places, drawn).view_as(input_ids)
            replaced = torch.zeros_like(text.flatten(), dtype=torch.float32)
            replaced = replaced.index_copy(0, places, (drawn != wanted).float())
        judged = model.discriminator(input_ids=text).logits.flatten().float()
        detection = nn.functional.binary_cross_entropy_with_logits(judged, replaced)
        return cross_entropy(logits, wanted) + 50 * detection

    return {"gpt2": causal, "bert": bert, "albert": albert, "electra": electra}[work.peer]


def use_no_mask() -> str:
    """Register scaled-dot-product attention for which no mask is ever built; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("sdpa_without_mask", sdpa_attention_forward)
    AttentionMaskInterface.register("sdpa_without_mask", lambda *_, **__: None)
    return "sdpa_without_mask"


def expert_speed(work: Work, dropout: float, steps: int, device: torch.device, precision: str) -> dict[str, float]:
    """What an expert writes who knows where the time goes."""
    torch.manual_seed(0)
    padded = replace(work, vocab=-(-work.vocab // 64) * 64)
    model = peer_model(padded, dropout, use_no_mask()).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    loss_of = expert_loss(work, model)
    call = torch.compile(loss_of) if device.type == "cuda" else loss_of
    batch = peer_batch(work, work.batch)
    places = (batch["labels"].flatten() >= 0).nonzero()[:, 0].to(device)
    input_ids, labels = batch["input_ids"].to(device), batch["labels"].to(device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            loss = call(input_ids, labels, places)
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


WARM = 5  # steps before the clock starts


# --- measuring --------------------------------------------------------------------------------------


def peak_memory(device: torch.device) -> float:
    """What torch has taken from the device: recorded kernels keep memory that no tensor owns."""
    return torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else float("nan")


def timed(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds a step and the most memory held; compilation and first touches are left out."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    for _ in range(WARM):
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


def natural(
    works: tuple[Work, ...], corpus: Corpus, asked: argparse.Namespace, device: torch.device, precision: str
) -> None:
    """Our speed on a real corpus as a share of our speed at full length, same vocabulary."""
    print(f"{'work':16} {'full':>12} {'natural':>12} {'share':>7} {'waits':>6}")
    for work in works:
        settings = (asked.dropout, asked.steps, device, precision)
        full = etude_speed(replace(work, vocab=corpus.tokenizer.vocab), *settings, profile=asked.profile)
        torch._dynamo.reset()
        found = etude_speed(work, *settings, corpus, asked.profile)
        torch._dynamo.reset()
        rates = [one["tokens_per_second"] for one in (full, found)]
        share = f"{rates[1] / rates[0]:7.2%} {found['waited']:6.1%}"
        print(f"{work.name:16} {rates[0]:12,.0f} {rates[1]:12,.0f} {share}", flush=True)


def in_rounds(sides: list[str], work: Work, asked: argparse.Namespace) -> dict[str, Any]:
    """Each side in a process of its own, one after the other, and again; medians over the rounds, and all of them."""
    rounds: list[dict[str, Any]] = []
    for number in range(asked.rounds):
        rounds.append({})
        for side in sides:
            command = [sys.executable, __file__, "--side", side, "--only", work.name]
            command += ["--dropout", str(asked.dropout), "--steps", str(asked.steps)]
            command += ["--precision", asked.precision] if asked.precision else []
            # what Etude tells the allocator of its process (train/malloc.py) is not for the peers
            own = {
                name: value for name, value in os.environ.items() if side == "etude" or not name.startswith("MIMALLOC")
            }
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
            rounds[-1][side] = json.loads(done.stdout.splitlines()[-1])
        told = ", ".join(f"{side} {found.get('tokens_per_second', 0):,.0f}" for side, found in rounds[-1].items())
        print(f"  round {number + 1}: {told}; peak {rounds[-1]['etude']['peak'] / 1e12:.2f} TFLOP/s", flush=True)
    row: dict[str, Any] = {"rounds": rounds}
    for side in sides:
        found = [one[side] for one in rounds]
        if any("failed" in one for one in found):
            row[side] = next(one for one in found if "failed" in one)
            continue
        row[side] = {key: float(np.median([one[key] for one in found])) for key in found[0]}
        row[side]["ratio"] = float(
            np.median([one["etude"]["tokens_per_second"] / one[side]["tokens_per_second"] for one in rounds])
        )
    return row


def one_side(side: str, work: Work, asked: argparse.Namespace, device: torch.device, precision: str) -> dict[str, Any]:
    if side == "etude":
        return etude_speed(work, asked.dropout, asked.steps, device, precision, profile=asked.profile)
    # on a CPU the Trainer stays at its default, which is float32 there
    its_own = "float32" if side == "trainer" and device.type == "cpu" else precision
    try:
        measure = {"trainer": trainer_speed, "loop": loop_speed, "expert": expert_speed}[side]
        return measure(work, asked.dropout, asked.steps, device, its_own)
    except Exception as error:  # a peer that fails is told, and the table goes on
        return {"failed": f"{error!r:.80}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="the CPU's work")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--dropout", type=float, default=0.0, help="the same on every side")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peers", default="trainer,loop,expert", help="any of trainer, loop, expert; empty for none")
    parser.add_argument("--precision", default=None, help="bf16 or float32; bf16 on a GPU, the faster one on a CPU")
    parser.add_argument("--corpus", help="a prepared corpus: its natural lengths against full ones, ours alone")
    parser.add_argument("--profile", action="store_true", help="print the kernels of three of our steps")
    parser.add_argument("--rounds", type=int, help="how often the sides take turns; 3 on a CPU, on a GPU none")
    parser.add_argument("--side", help="measure this side alone, and print it as JSON")
    parser.add_argument("--out", help="also write the rows as JSON")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    precision = asked.precision or peak.resolve_precision("auto", device)
    best = peak.measure_peak(device, precision)
    works = SMALL if asked.small or device.type == "cpu" else PUBLISHED
    if asked.only:
        unknown = sorted(set(asked.only.split(",")) - {work.name for work in works})
        if unknown:
            parser.error(f"no work {unknown[0]}: there are {', '.join(work.name for work in works)}")
        works = tuple(work for work in works if work.name in asked.only.split(","))
    if asked.side:
        if asked.side == "etude":
            asked.steps *= 3  # which are quick: what a neighbour does meanwhile should not decide
        print(json.dumps(one_side(asked.side, works[0], asked, device, precision) | {"peak": best}))
        return
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
        f"{'work':16} {'etude':>12} {'of peak':>8} {'GiB':>6} {'waits':>6}  "
        + "  ".join(f"{p:>10} {'ratio':>6} {'GiB':>5}" for p in asked.peers.split(",") if p)
    )
    if asked.corpus:
        natural(works, Corpus.open(asked.corpus), asked, device, precision)
        return
    rows = []
    peers = [peer for peer in asked.peers.split(",") if peer]
    for work in works:
        row: dict[str, Any] = {"work": work.name, "dropout": asked.dropout, "precision": precision}
        if (device.type == "cpu" or asked.rounds) and not asked.profile:
            asked.rounds = asked.rounds or 3
            row |= in_rounds([*peers[:1], "etude", *peers[1:]], work, asked)
        else:
            for side in ["etude", *peers]:
                row[side] = one_side(side, work, asked, device, precision)
                torch._dynamo.reset()
                gc.collect()
        ours = row["etude"]
        share = ours["tokens_per_second"] * ours["flops_per_token"] / ours.get("peak", best)
        rate = f"{ours['tokens_per_second']:12,.0f} {share:8.1%}"
        text = f"{work.name:16} {rate} {ours['memory']:6.1f} {ours['waited']:6.1%}  "
        for peer, found in ((peer, row[peer]) for peer in peers):
            if "failed" in found:
                text += f"{peer}: {found['failed']}  "
                continue
            found.setdefault("ratio", ours["tokens_per_second"] / found["tokens_per_second"])
            text += f"{found['tokens_per_second']:10,.0f} {found['ratio']:5.2f}x {found['memory']:5.1f}  "
        print(text, flush=True)
        rows.append(row)
    if asked.out:
        Path(asked.out).write_text(
            json.dumps({"device": name, "torch": torch.__version__, "peak": best, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
