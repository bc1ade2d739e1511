"""Recurrent encoder-decoders: one context vector, and attention in the place of it.

    attention: none                     the encoder's last state starts the decoder (Sutskever et al. 2014); with
                                        `reverse` the source is read from its end, so that its beginning is near; with
                                        `context_feeding` it is an input of every step too (Cho et al. 2014); of a
                                        bidirectional encoder it is made of both last states
    attention: additive                 Bahdanau et al. 2015: the state before a step attends to the states of a
                                        bidirectional encoder, and what it sees is an input of the step; the output is a
                                        maxout of state, input and context (appendix A.2)
    attention: dot, general, concat     Luong et al. 2015: the state after a step attends, and a layer joins both,
                                        h~ = tanh(W [context ; state]); with `input_feeding` h~ is part of the next
                                        input, with `window` attention is local (local-p)

Sources and targets are packed. A decoder has to go step by step; targets are sorted, longest first, so that those with
a token left are the first rows, and only the attention of a step sees sources side by side.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.base import MAX_LAYERS, ModelSettings
from etude.models.depth import numbered_depth
from etude.models.framing import Framing
from etude.models.seq2seq import Decoding, Seq2Seq
from etude.nn.alignment import Alignment, SourceKeys
from etude.nn.packed import Packed
from etude.nn.rectangle import Rectangle
from etude.nn.recurrent_cell import CellKind, RecurrentCell, State
from etude.nn.schedule import Schedule
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials


class Settings(ModelSettings):
    layers: int = Field(default=1, ge=1, le=MAX_LAYERS, description="layers of the encoder and of the decoder")
    width: int = Field(ge=1, description="width of the states of each layer and direction")
    embedding_width: int | None = Field(
        default=None, ge=1, description="width of token vectors; that of the states unless given"
    )
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    target_vocab: int | None = Field(
        default=None, ge=1, description="vocabulary of the targets, where they have a tokenizer of their own"
    )
    cell: CellKind = "lstm"
    bidirectional: bool = Field(default=False, description="the encoder reads both ways")
    reverse: bool = Field(default=False, description="the encoder reads from the end of the source")
    attention: Literal["none", "additive", "dot", "general", "concat"] = "none"
    align: int | None = Field(
        default=None, ge=1, description="inner width of additive and concat scores; width if None"
    )
    window: int | None = Field(
        default=None, ge=1, description="local attention over this many tokens to each side of the predicted place"
    )
    input_feeding: bool = False
    context_feeding: bool = Field(default=False, description="without attention: the context vector at every step")
    maxout: int | None = Field(default=None, ge=1, description="width of the maxout output of additive attention")
    tables: Literal["shared", "separate"] = Field(
        default="shared", description="whether source and target share one table of vectors"
    )
    scaled: bool = Field(default=False, description="vectors times sqrt(embedding_width): they start at deviation 1")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the input of each layer and on the output")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        is_luong = self.attention in ("dot", "general", "concat")
        if self.target_vocab is not None and self.tables == "shared":
            raise ValueError("target_vocab: one table cannot serve two vocabularies: set tables=separate")
        if self.bidirectional and self.reverse:
            raise ValueError("bidirectional=true reads both ways already: leave out reverse")
        if (self.input_feeding or self.window is not None) and not is_luong:
            raise ValueError(
                f"input_feeding and window belong to attention dot, general or concat, not {self.attention}: "
                "leave them out"
            )
        if self.context_feeding and self.attention != "none":
            raise ValueError(f"context_feeding is for attention=none, not {self.attention}: leave it out")
        if self.maxout is not None and self.attention != "additive":
            raise ValueError(f"maxout is the output of attention=additive, not of {self.attention}: leave it out")
        if self.attention == "dot" and self.bidirectional:
            raise ValueError("attention=dot needs states of one width, and bidirectional=true doubles the source's")
        if (self.embedding_width or 0) > self.width * (2 if self.bidirectional else 1):
            raise ValueError("embedding_width is larger than the states of the encoder: lower it, or raise width")
        return self


class DecoderState(NamedTuple):
    """What a decoder carries from token to token."""

    layers: tuple[State, ...]  # of each layer
    fed: Tensor | None  # (S, W) the last h~, with input feeding; the context vector, with context feeding

    def select(self, rows: Tensor | slice) -> DecoderState:
        """Those of some hypotheses, in this order."""
        layers = tuple(tuple(part[rows] for part in state) for state in self.layers)
        return DecoderState(layers, None if self.fed is None else self.fed[rows])


class RecurrentSeq2Seq(Seq2Seq):
    settings: Settings
    context = None  # any length
    is_stepwise = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        hidden, words = settings.width, settings.embedding_width or settings.width
        directions = 2 if settings.bidirectional else 1
        self.width = directions * hidden
        # tables start at a deviation of 1 / sqrt(width), as an output layer has to; what a cell reads should be larger
        self.scale = words**0.5 if settings.scaled else 1.0
        self.embedding = self._build_table(self.vocab, words)
        self.target_embedding = self._build_table(self.target_vocab, words) if settings.tables == "separate" else None
        self.forwards, self.backwards = (
            nn.ModuleList(
                RecurrentCell(self.width if layer else words, hidden, settings.cell)
                for layer in range(settings.layers if is_used else 0)
            )
            for is_used in (settings.bidirectional or not settings.reverse, settings.bidirectional or settings.reverse)
        )
        # the backward state at the first token starts the decoder (Bahdanau et al. 2015, appendix A.2.2); where nothing
        # else is seen of the source, both ends do
        ends = 2 * hidden if settings.attention == "none" else hidden
        self.start = nn.ModuleList(nn.Linear(ends, hidden) for _ in range(settings.layers if directions == 2 else 0))
        self.is_additive, self.is_luong = (
            settings.attention == "additive",
            settings.attention not in ("none", "additive"),
        )
        is_fed = settings.input_feeding or settings.context_feeding
        inputs = words + (self.width if self.is_additive else 0) + (hidden if is_fed else 0)
        self.decoder = nn.ModuleList(
            RecurrentCell(hidden if layer else inputs, hidden, settings.cell) for layer in range(settings.layers)
        )
        self.alignment: Alignment | None = None
        if settings.attention != "none":
            score: Literal["additive", "dot", "general"] = "additive"
            if settings.attention in ("dot", "general"):
                score = settings.attention
            self.alignment = Alignment(hidden, self.width, score, settings.align or hidden, settings.window)
        self.join = nn.Linear(self.width + hidden, hidden, bias=False) if self.is_luong else None
        outputs = 2 * (settings.maxout or hidden)
        self.readout = nn.Linear(hidden + words + self.width, outputs) if self.is_additive else None

    def _build_table(self, vocab: int, width: int) -> nn.Embedding:
        table = nn.Embedding(vocab, width)
        nn.init.normal_(table.weight, std=width**-0.5)
        return table

    # --- the encoder --------------------------------------------------------------------------------

    def forward(
        self, packed: Packed, layers: bool = False, source: Packed | None = None, weights: bool = False
    ) -> States:
        if source is not None:
            return self._decode(packed, source, layers, weights)
        if weights:
            self.attention_weights(packed)  # says that an encoder has none
        states, _ = self.encode(packed)
        return States(last=states[-1], layers=states if layers else None)

    def encode(self, packed: Packed) -> tuple[list[Tensor], DecoderState]:
        """States of every layer, (M, width), token vectors first, and the state that the decoder starts from."""
        settings = self.settings
        x = self.embedding(packed.tokens) * self.scale
        states = [F.pad(x, (0, self.width - x.shape[1]))]
        starts: list[State] = []
        for layer in range(settings.layers):
            x = F.dropout(x, settings.dropout, self.training)
            sides, ends = [], []
            for cells, reverse in ((self.forwards, False), (self.backwards, True)):
                if len(cells):
                    cell = cells[layer]
                    assert isinstance(cell, RecurrentCell)
                    side, end = cell.scan(x, packed.layout, reverse)
                    sides.append(side)
                    ends.append(end)
            x = torch.cat(sides, -1)
            states.append(x)
            if settings.bidirectional:
                read = ends[1][0] if self.alignment is not None else torch.cat([end[0] for end in ends], -1)
                hidden = torch.tanh(self.start[layer](read))
                starts.append((hidden,) if settings.cell == "gru" else (hidden, torch.zeros_like(hidden)))
            else:
                starts.append(ends[0])
        fed = x.new_zeros(len(starts[0][0]), settings.width) if settings.input_feeding else None
        if settings.context_feeding:
            fed = starts[-1][0]
        return states, DecoderState(tuple(starts), fed)

    def read_source(self, source: Packed) -> tuple[SourceKeys | None, DecoderState]:
        """What a decoder attends to, and where it starts."""
        states, state = self.encode(source)
        return (None if self.alignment is None else self.alignment.project(states[-1], source.layout)), state

    # --- the decoder --------------------------------------------------------------------------------

    def step(
        self, words: Tensor, state: DecoderState, keys: SourceKeys | None
    ) -> tuple[Tensor, DecoderState, Tensor | None]:
        """Read one token each, (S, E): outputs (S, target_width), the new state, and the attention (S, L)."""
        inputs, seen, weights = [words], None, None
        if self.is_additive and self.alignment is not None and keys is not None:
            seen, weights = self.alignment(state.layers[-1][0], keys)
            inputs.append(seen)
        if state.fed is not None:
            inputs.append(state.fed)
        x = torch.cat(inputs, -1)
        layers: list[State] = []
        for cell, before in zip(self.decoder, state.layers, strict=True):
            x = F.dropout(x, self.settings.dropout, self.training)
            assert isinstance(cell, RecurrentCell)
            layers.append(cell.step(cell.input(x), before))
            x = layers[-1][0]
        if self.readout is not None and seen is not None:
            x = self.readout(torch.cat([x, words, seen], -1)).unflatten(-1, (-1, 2)).amax(-1)  # maxout
        elif self.join is not None and self.alignment is not None and keys is not None:
            seen, weights = self.alignment(x, keys)
            x = torch.tanh(self.join(torch.cat([seen, x], -1)))
        fed = state.fed if self.settings.context_feeding or state.fed is None else x
        return F.dropout(x, self.settings.dropout, self.training), DecoderState(tuple(layers), fed), weights

    def _decode(self, packed: Packed, source: Packed, layers: bool, weights: bool) -> States:
        """The decoder over whole targets, with the right token as the next input (teacher forcing)."""
        if layers:
            raise UserError("A recurrent decoder has no states of single layers to give: leave out layers.")
        keys, state = self.read_source(source)
        if packed.layout.rectangular:
            return States(last=self._decode_rectangle(packed, keys, state), table=self.target_table)
        schedule = Schedule.from_layout(packed.layout, reverse=False)
        order = schedule.sorted_sequences
        keys, state = None if keys is None else keys.select(order), state.select(order)
        words = self.word_table(packed.tokens[schedule.sorted_tokens])
        outputs: list[Tensor] = []
        maps: list[Tensor] = []
        for vectors in words.split(schedule.batch_sizes):
            rows = slice(0, len(vectors))
            keys = None if keys is None else keys.select(rows)
            output, state, attention = self.step(vectors, state.select(rows), keys)
            outputs.append(output)
            if weights and attention is not None:
                maps.append(attention)
        last = torch.cat(outputs)[schedule.unsorted_tokens] if outputs else words.new_zeros(0, self.target_width)
        recorded = None
        if weights:
            recorded = [] if self.alignment is None else [_split_maps(maps, packed, source, schedule)]
        return States(last=last, table=self.target_table, weights=recorded)

    def _decode_rectangle(self, packed: Packed, keys: SourceKeys | None, state: DecoderState) -> Tensor:
        """The same with a static number of steps; what comes behind the end of a target is not read."""
        rectangle = Rectangle.from_layout(packed.layout, len(packed.tokens))
        outputs: list[Tensor] = []
        for words in self.word_table(rectangle.spread(packed.tokens)).unbind():
            output, state, _ = self.step(words, state, keys)
            outputs.append(output)
        return rectangle.pack(torch.stack(outputs))  # (N, target_width)

    def word_table(self, tokens: Tensor) -> Tensor:
        """Vectors of target tokens."""
        return F.embedding(tokens, self.target_table) * self.scale

    def start_decoding(self, source: Packed, beams: int = 1, weights: bool = False) -> Decoding:
        return RecurrentDecoding(self, source, beams)

    # --- cost ---------------------------------------------------------------------------------------

    def flops(self, lengths: np.ndarray) -> int:
        """Of the encoder."""
        cells = [cell for cell in (*self.forwards, *self.backwards) if isinstance(cell, RecurrentCell)]
        return sum(cell.flops(int(np.asarray(lengths).sum())) for cell in cells)

    def pair_flops(self, source: np.ndarray, target: np.ndarray) -> int:
        source, target = np.asarray(source).astype(np.int64), np.asarray(target).astype(np.int64)
        targets = int(target.sum())
        layers = [part for part in (*self.start,) if isinstance(part, nn.Linear)]
        total = self.flops(source) + 2 * len(source) * sum(part.weight.numel() for part in layers)
        total += sum(cell.flops(targets) for cell in self.decoder if isinstance(cell, RecurrentCell))
        total += sum(2 * targets * part.weight.numel() for part in (self.join, self.readout) if part is not None)
        return total + (0 if self.alignment is None else self.alignment.flops(source, target))

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return self.settings.layers

    @property
    def target_vocab(self) -> int:
        return self.settings.target_vocab or self.vocab

    @property
    def target_table(self) -> Tensor:
        return (self.embedding if self.target_embedding is None else self.target_embedding).weight

    @property
    def target_width(self) -> int:
        return self.settings.maxout or self.settings.width

    def frame(self, special: Specials) -> Framing:
        if special.end is None:
            raise UserError("A source ends with an end token, and this tokenizer has none.")
        return Framing([], [special.end], [special.end], pooling="mean", separate=True)

    def parameter_depth(self, name: str) -> int:
        part = name.split(".")[0]
        return numbered_depth(name, self.layers) if part in ("embedding", "forwards", "backwards") else self.layers + 1


def _split_maps(maps: list[Tensor], packed: Packed, source: Packed, schedule: Schedule) -> list[Tensor]:
    """Attention of all steps as a map of each pair, (1, T, S)."""
    flat = torch.cat(maps)[schedule.unsorted_tokens]  # (N, longest)
    sizes = zip(packed.layout.host[:-1], packed.layout.host[1:], source.layout.lengths, strict=True)
    return [flat[start:stop, :length][None] for start, stop, length in sizes]


class RecurrentDecoding(Decoding):
    """The states of all hypotheses, and the sources they attend to."""

    def __init__(self, model: RecurrentSeq2Seq, source: Packed, beams: int) -> None:
        self.model, self.beams = model, beams
        keys, state = model.read_source(source)
        rows = torch.arange(beams * (len(source.layout.host) - 1), device=source.tokens.device) // beams
        self.keys, self.state = None if keys is None else keys.select(rows), state.select(rows)
        self._attention: Tensor | None = None

    def step(self, tokens: Tensor) -> Tensor:
        output, self.state, self._attention = self.model.step(self.model.word_table(tokens), self.state, self.keys)
        return output

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.state = self.state.select(rows)
        if sources is not None and self.keys is not None:
            beams = torch.arange(self.beams, device=rows.device)
            self.keys = self.keys.select((sources[:, None] * self.beams + beams).flatten())

    @property
    def attention(self) -> Tensor | None:
        return self._attention


def build(settings: Settings) -> RecurrentSeq2Seq:
    return RecurrentSeq2Seq(settings)
