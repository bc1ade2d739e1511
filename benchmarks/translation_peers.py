"""The sides of the translation benchmarks: Etude, JoeyNMT, and a plain loop over MarianMT of `transformers`.

All learn from the same pairs of token ids, with the same sizes, dropout, smoothing and tokens a step, and are measured
in real target tokens, their ends among them. JoeyNMT takes pairs in random order, as its own sampler does (it has no
bucketing), in float16 with a scaler on a GPU, as its `fp16: True`; its loss, model and beam search are called as its
trainer calls them, without its logging; of a recurrent model the first state is made under autocast, without which its
own search in float16 stops with an error. The plain loop takes batches of pairs of like lengths, padded to multiples of
8, in bfloat16, compiled on a GPU, with a fused AdamW.

Wheels for JoeyNMT 2.3: joeynmt, subword_nmt, importlib_metadata 8.5, zipp, sentencepiece (the only one with code of the
machine). `pip install --no-deps --target FOLDER` and PYTHONPATH=FOLDER suffice; the installed torch stays as it is.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from etude.hub import translator_files
from etude.inference.model import LoadedModel
from etude.inference.translation import translate_tokens
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.tasks.translate.search import Search
from etude.text.corpus.corpus import Corpus
from etude.train.loop import Loop

PAD, UNK, START, END = 0, 1, 2, 5  # ids of our trained tokenizers
BEAMS = 4
SEARCH = Search(BEAMS, penalty=1.0, convention="generate")  # as the others: `generate` of transformers has 1, too
LR = 5e-4


@dataclass(frozen=True)
class Size:
    """Of a model and of a step."""

    kind: str  # transformer or rnn
    layers: int
    width: int
    heads: int
    inner: int
    dropout: float
    context: int
    batch_tokens: int  # of both sides, a step
    smoothing: float = 0.1


@dataclass
class Pairs:
    """Sources and targets as ids, their ends among them."""

    sources: list[np.ndarray]
    targets: list[np.ndarray]

    @classmethod
    def from_corpus(cls, corpus: Corpus, longest: int) -> Pairs:
        count = len(corpus.sentences) // 2
        bounds = corpus.sentences.slice(0, 2 * count + 1).tolist()
        sides = [np.append(corpus.tokens(start, stop), END).astype(np.int64) for start, stop in pairwise(bounds)]
        both = [(a, b) for a, b in zip(sides[::2], sides[1::2], strict=True) if max(len(a), len(b)) <= longest]
        return cls([a for a, _ in both], [b for _, b in both])

    @property
    def costs(self) -> np.ndarray:
        """Tokens of both sides of each pair."""
        return np.array([len(a) + len(b) for a, b in zip(self.sources, self.targets, strict=True)])


class Side(ABC):
    """A toolkit under test."""

    name: str
    per_batch: int = 256  # sentences that are decoded at once

    @property
    def is_warm(self) -> bool:
        """Whether nothing is left to be compiled or recorded, as far as that can be known."""
        return True

    @abstractmethod
    def step(self) -> int:
        """Take a training step; return the real target tokens that it learnt from."""

    @abstractmethod
    def decode(self, sources: list[np.ndarray]) -> list[list[int]]:
        """Translate by beam search; return ids without their ends, in the order of the sources."""


# --- Etude --------------------------------------------------------------------------------------------


def recipe_settings(size: Size) -> dict[str, Any]:
    """The changes of a shipped recipe that give this size."""
    settings: dict[str, Any] = {
        "model.width": size.width, "model.dropout": size.dropout, "objective.smoothing": size.smoothing,
        "objective.length": size.context, "objective.row_tokens": max(6 * size.context, size.batch_tokens // 8),
        "train.batch_tokens": size.batch_tokens, "train.steps": 10**6, "train.lr": LR, "train.warmup": 100,
        "train.lr_schedule": "constant", "train.clip": 1.0, "train.average": 1, "train.eval_every": 0,
    }  # fmt: skip
    if size.kind == "transformer":
        return settings | {
            "model.layers": size.layers, "model.heads": size.heads, "model.feedforward": size.inner,
            "model.context": size.context, "model.norm": "post",
        }  # fmt: skip
    return settings | {
        "model.layers": 1, "model.embedding_width": size.width, "model.align": size.width, "model.maxout": size.width,
        "objective.row_tokens": max(6 * size.context, size.batch_tokens),
    }  # fmt: skip


def for_decoding(module: Any, device: torch.device) -> Any:
    """A copy with weights in bfloat16 on a GPU, as both libraries offer: autocast would convert them at every step."""
    return copy.deepcopy(module).to(torch.bfloat16) if device.type == "cuda" else module


class Etude(Side):
    """Packed on both sides."""

    name = "etude"

    def __init__(self, corpus: Corpus, size: Size, device: torch.device, seed: int = 0, **changes: Any) -> None:
        base = "transformer-small" if size.kind == "transformer" else "rnn-search"
        settings = {**recipe_settings(size), "train.seed": seed, **changes}
        self.recipe = Recipe.load(base, settings).resolve(vocab=corpus.tokenizer.vocab)
        torch.manual_seed(seed)
        self.model, self.objective = build_learner(self.recipe, corpus.tokenizer)
        self.folder = tempfile.TemporaryDirectory()
        rows = self.objective.rows(corpus, seed)
        self.loop = Loop(Path(self.folder.name), self.model, self.objective, rows, self.recipe.train, total=10**6,
                         device=device)  # fmt: skip
        self.batches = self.loop.loader.steps(0, 10**6)
        self.tokenizer, self.device = corpus.tokenizer, device
        self.loaded: LoadedModel | None = None
        self.recorded, self.steps_since = 0, 0  # shapes of steps, and steps since the last one

    def step(self) -> int:
        step = next(self.batches)
        self.loop.advance(step)
        self.loaded = None
        if self.loop.recorder is not None:
            recorded = sum(recording.is_recorded for recording in self.loop.recorder.recordings.values())
            self.steps_since = self.steps_since + 1 if recorded == self.recorded else 0
            self.recorded = recorded
        return int(step.counts["loss"])

    @property
    def is_warm(self) -> bool:
        recorder = self.loop.recorder
        return recorder is None or recorder.has_obstacle() or self.steps_since >= 60

    def decode(self, sources: list[np.ndarray]) -> list[list[int]]:
        self.model.eval()
        self.objective.eval()
        if self.loaded is None:  # keeps what it recorded, as a server does
            model, objective = (for_decoding(part, self.device) for part in (self.model, self.objective))
            self.loaded = LoadedModel(model, objective, self.tokenizer, str(self.device))
        return [list(best[0].ids) for best in translate_tokens(self.loaded, sources, SEARCH)]

    def weights(self) -> dict[str, Tensor]:
        """Under our names."""
        modules = {"model": self.model, "objective": self.objective}
        return {
            f"{name}.{key}": value.detach().float().cpu()
            for name, module in modules.items()
            for key, value in module.state_dict().items()
        }


# --- the plain loop -----------------------------------------------------------------------------------


def pad_to(sequences: list[np.ndarray], length: int, pad: int) -> Tensor:
    """(S, length)."""
    ids = np.full((len(sequences), length), pad, np.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return torch.from_numpy(ids)


def round_up(value: int, grain: int = 8) -> int:
    return -(-value // grain) * grain


def bucketed_batches(pairs: Pairs, batch_tokens: int, seed: int) -> Iterator[np.ndarray]:
    """Numbers of pairs whose sides have the same multiples of 8 above them, shuffled, without end."""
    shapes = [(round_up(len(a)), round_up(len(b))) for a, b in zip(pairs.sources, pairs.targets, strict=True)]
    chance = np.random.default_rng(seed)
    while True:
        groups: dict[tuple[int, int], list[int]] = {}
        batches = []
        for number in chance.permutation(len(shapes)).tolist():
            shape = shapes[number]
            group = groups.setdefault(shape, [])
            group.append(number)
            if len(group) == max(1, batch_tokens // sum(shape)):
                batches.append(np.array(groups.pop(shape)))
        for place in chance.permutation(len(batches)):
            yield batches[place]


class Marian(Side):
    """MarianMTModel in a loop of a few lines."""

    name = "transformers loop"

    def __init__(
        self, pairs: Pairs, size: Size, vocab: int, device: torch.device, compiled: bool, seed: int = 0
    ) -> None:
        import transformers

        torch.manual_seed(seed)
        config = transformers.MarianConfig(
            vocab_size=vocab, d_model=size.width, encoder_layers=size.layers, decoder_layers=size.layers,
            encoder_attention_heads=size.heads, decoder_attention_heads=size.heads, encoder_ffn_dim=size.inner,
            decoder_ffn_dim=size.inner, max_position_embeddings=size.context, activation_function="relu",
            dropout=size.dropout, scale_embedding=True, pad_token_id=PAD, eos_token_id=END,
            decoder_start_token_id=START, forced_eos_token_id=None, attn_implementation="sdpa",
        )  # fmt: skip
        self.model = transformers.MarianMTModel(config).to(device)
        if compiled:
            torch._dynamo.config.recompile_limit = 64  # beyond it the loop would go on uncompiled
        self.forward = torch.compile(self.model) if compiled else self.model
        self.pairs, self.size, self.device = pairs, size, device
        self.batches = bucketed_batches(pairs, size.batch_tokens, seed)
        fused = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, betas=(0.9, 0.98), eps=1e-9,
                                           weight_decay=0.0, fused=fused)  # fmt: skip
        self.loss = nn.CrossEntropyLoss(ignore_index=-100, label_smoothing=size.smoothing)
        self.decoder: Any = None

    def step(self) -> int:
        numbers, self.decoder = next(self.batches), None
        sources, targets = ([side[n] for n in numbers] for side in (self.pairs.sources, self.pairs.targets))
        longest = round_up(max(map(len, sources))), round_up(max(map(len, targets)))
        ids, labels = pad_to(sources, longest[0], PAD), pad_to(targets, longest[1], -100)
        inputs = pad_to([np.append(START, target[:-1]) for target in targets], longest[1], PAD)
        count = int((labels != -100).sum())
        ids, labels, inputs = (part.to(self.device, non_blocking=True) for part in (ids, labels, inputs))
        self.model.train()
        with self._autocast():
            logits = self.forward(
                input_ids=ids, attention_mask=(ids != PAD).long(), decoder_input_ids=inputs, use_cache=False
            ).logits
        self.loss(logits.float().flatten(0, 1), labels.flatten()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return count

    def _autocast(self) -> Any:
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    @torch.no_grad()
    def decode(self, sources: list[np.ndarray]) -> list[list[int]]:
        per_batch = self.per_batch
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        results: list[list[int]] = [[] for _ in sources]
        if self.decoder is None:
            self.decoder = for_decoding(self.model.eval(), self.device)
        for first in range(0, len(order), per_batch):
            numbers = order[first : first + per_batch]
            batch = [sources[number] for number in numbers]
            ids = pad_to(batch, max(map(len, batch)), PAD).to(self.device)
            limit = min(self.size.context, ids.shape[1] + 50)
            found = self.decoder.generate(
                ids, attention_mask=(ids != PAD).long(), num_beams=BEAMS, max_new_tokens=limit - 1, do_sample=False
            )
            for number, row in zip(numbers, found.tolist(), strict=True):
                results[number] = [token for token in row[1:] if token not in (PAD, END)]
        return results

    def load(self, ours: Etude) -> None:
        """Take our weights."""
        published = translator_files.to_published(ours.recipe, ours.weights(), ours.tokenizer)
        state = self.model.state_dict()
        state |= {name: value for name, value in published.tensors.items() if name in state}
        shared = published.tensors["model.shared.weight"]
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
            state[name] = shared
        self.model.load_state_dict(state)
        self.decoder = None


# --- JoeyNMT ------------------------------------------------------------------------------------------

# our ids of special tokens -> JoeyNMT's, whose order is fixed; the places of the others change with them
SWAPS = {PAD: 1, UNK: 0, START: 2, END: 3, 3: END, 4: 4}


class Joey(Side):
    """JoeyNMT's model, loss and beam search."""

    name = "joeynmt"

    def __init__(self, pairs: Pairs, size: Size, vocab: int, device: torch.device, seed: int = 0) -> None:
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary

        special = SimpleNamespace(
            unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, lang_tags=[],
            unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None,
        )  # fmt: skip
        torch.manual_seed(seed)
        words = Vocabulary([f"token {number}" for number in range(4, vocab)], special)
        self.model = build_model(joey_config(size), src_vocab=words, trg_vocab=words).to(device)
        self.model.loss_function = ("crossentropy", size.smoothing)
        self.swap = np.arange(vocab)
        self.swap[list(SWAPS)] = list(SWAPS.values())
        self.back = np.argsort(self.swap)
        self.pairs, self.size, self.device = pairs, size, device
        self.chance, self.costs, self.waiting = np.random.default_rng(seed), pairs.costs, np.zeros(0, np.int64)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LR, betas=(0.9, 0.98), eps=1e-9)
        half = device.type == "cuda"
        self.autocast = {"device_type": device.type, "enabled": half} | ({"dtype": torch.float16} if half else {})
        self.scaler = torch.amp.GradScaler("cuda", enabled=half)
        if half and size.kind == "rnn":
            # its beam search makes the decoder's first state outside of autocast: half states, full weights
            decoder = self.model.decoder
            decoder._init_hidden = torch.autocast(**self.autocast)(decoder._init_hidden)

    def _batch(self, sources: list[np.ndarray], targets: list[np.ndarray] | None) -> Any:
        from joeynmt.batch import Batch

        lengths = torch.tensor([len(source) for source in sources])
        src = pad_to([self.swap[source] for source in sources], int(lengths.max()), 1)
        trg = None
        if targets is not None:
            framed = [np.concatenate([[2], self.swap[target]]) for target in targets]
            trg = pad_to(framed, max(map(len, framed)), 1)
        return Batch(src, lengths, None, trg, None, torch.arange(len(sources)), self.device, 1, 3, targets is not None)

    def step(self) -> int:
        while self.costs[self.waiting].sum() < self.size.batch_tokens:
            self.waiting = np.append(self.waiting, self.chance.permutation(len(self.costs)))
        count = int(np.searchsorted(np.cumsum(self.costs[self.waiting]), self.size.batch_tokens))
        numbers, self.waiting = self.waiting[:count], self.waiting[count:]
        batch = self._batch([self.pairs.sources[n] for n in numbers], [self.pairs.targets[n] for n in numbers])
        batch.sort_by_src_length()
        self.model.train()
        with torch.autocast(**self.autocast):
            loss, *_ = self.model(return_type="loss", **vars(batch))
        self.scaler.scale(batch.normalize(loss, "tokens")).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return int(batch.ntokens)

    @torch.no_grad()
    def decode(self, sources: list[np.ndarray]) -> list[list[int]]:
        from joeynmt.search import search

        per_batch = self.per_batch
        order = sorted(range(len(sources)), key=lambda number: len(sources[number]))
        results: list[list[int]] = [[] for _ in sources]
        self.model.eval()
        for first in range(0, len(order), per_batch):
            numbers = order[first : first + per_batch]
            numbers = numbers[::-1]  # recurrent encoders want the longest first
            batch = self._batch([sources[number] for number in numbers], None)
            limit = min(self.size.context, int(batch.src_length.max()) + 50) - 1
            found, _, _ = search(
                self.model, batch, max_output_length=limit, beam_size=BEAMS, beam_alpha=1.0, autocast=self.autocast
            )
            for number, row in zip(numbers, found.tolist(), strict=True):
                stop = row.index(3) if 3 in row else len(row)
                results[number] = self.back[np.array(row[:stop], np.int64)].tolist()
        return results

    def load(self, ours: Etude) -> None:
        """Take our weights (Transformer, norms behind branches)."""
        weights, order = ours.weights(), torch.from_numpy(self.back)
        state = self.model.state_dict()
        table = weights["model.embedding.tokens.weight"][order]
        for name in ("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"):
            state[name] = table
        for side, norms in (("encoder", ("layer_norm",)), ("decoder", ("x_layer_norm", "dec_layer_norm"))):
            for layer in range(self.size.layers):
                there = f"{side}.layers.{layer}."
                attention = {"encoder": "src_src_att", "decoder": "trg_trg_att"}[side]
                _copy_linear(state, weights, [f"{there}{attention}.{p}_layer" for p in "qkv"],
                             f"model.{side}_attention.{layer}.qkv")  # fmt: skip
                _copy_linear(
                    state, weights, [f"{there}{attention}.output_layer"], f"model.{side}_attention.{layer}.out"
                )
                _copy_linear(state, weights, [f"{there}{norms[0]}"], f"model.{side}_attention.{layer}.norm")
                feed = f"model.{side}_feedforward.{layer}."
                _copy_linear(state, weights, [f"{there}feed_forward.pwff_layer.0"], f"{feed}up")
                _copy_linear(state, weights, [f"{there}feed_forward.pwff_layer.3"], f"{feed}down")
                _copy_linear(state, weights, [f"{there}feed_forward.layer_norm"], f"{feed}norm")
                if side == "decoder":
                    cross = f"model.cross_attention.{layer}."
                    _copy_linear(state, weights, [f"{there}src_trg_att.q_layer"], f"{cross}query")
                    _copy_linear(state, weights, [f"{there}src_trg_att.{p}_layer" for p in "kv"], f"{cross}key_value")
                    _copy_linear(state, weights, [f"{there}src_trg_att.output_layer"], f"{cross}out")
                    _copy_linear(state, weights, [f"{there}{norms[1]}"], f"{cross}norm")
        self.model.load_state_dict(state)


def _copy_linear(state: dict[str, Tensor], weights: dict[str, Tensor], theirs: list[str], ours: str) -> None:
    for kind in ("weight", "bias"):
        parts = weights[f"{ours}.{kind}"].chunk(len(theirs))
        state |= {f"{name}.{kind}": part for name, part in zip(theirs, parts, strict=True)}


def joey_config(size: Size) -> dict[str, Any]:
    """JoeyNMT's description of a model of this size."""
    embeddings = {"embedding_dim": size.width, "dropout": size.dropout, "scale": size.kind == "transformer"}
    if size.kind == "transformer":
        stack = {
            "type": "transformer", "num_layers": size.layers, "num_heads": size.heads, "embeddings": embeddings,
            "hidden_size": size.width, "ff_size": size.inner, "dropout": size.dropout, "layer_norm": "post",
            "activation": "relu",
        }  # fmt: skip
        return {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True,
                "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform"}  # fmt: skip
    common = {
        "type": "recurrent", "rnn_type": "gru", "embeddings": embeddings, "hidden_size": size.width, "num_layers": 1,
        "dropout": size.dropout,
    }  # fmt: skip
    decoder = {**common, "attention": "bahdanau", "init_hidden": "bridge", "input_feeding": True}
    return {"encoder": {**common, "bidirectional": True}, "decoder": decoder, "tied_embeddings": False,
            "tied_softmax": False, "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform"}  # fmt: skip
