"""The Transformer as it was published: an encoder, a decoder, and attention between them (Vaswani et al. 2017).

    tables      shared: one table of vectors for source and target (section 3.4); separate: one each
    norm        post: as the paper; pre, with a final norm on both stacks: the later order, which needs less warm-up
    positions   sinusoidal: section 3.5; learned: table 3, row E

Vectors are multiplied by sqrt(width) (section 3.4; `scaled` False is for published models without it) and start at a
deviation of 1/sqrt(width), so that they begin at the size of the positions; the other matrices start by Glorot's rule,
as in the released code. Biases are on every projection, as in that code; the paper states them for the feed-forward
layers alone.
"""

from __future__ import annotations

from typing import Literal, Protocol, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.chance import fold
from etude.errors import UserError
from etude.models.base import MAX_LAYERS, ModelSettings
from etude.models.framing import Framing
from etude.models.seq2seq import Decoding, Seq2Seq, StaticDecoding
from etude.nn import residual
from etude.nn.activations import Activation
from etude.nn.attention.kv_cache import KVCache, LockstepCache
from etude.nn.block import AttentionBranch, FeedForwardBranch
from etude.nn.cross_attention import CrossAttentionBranch, EncodedSource
from etude.nn.embedding import Embedding
from etude.nn.initialization import draw_key, fill_normal
from etude.nn.norm import Norm
from etude.nn.packed import Layout, Packed
from etude.nn.precision import to_autocast_dtype
from etude.nn.recompute import Recomputable
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials


class Settings(ModelSettings):
    layers: int = Field(ge=1, le=MAX_LAYERS, description="layers of the encoder")
    decoder_layers: int | None = Field(
        default=None, ge=1, le=MAX_LAYERS, description="as many as the encoder unless given"
    )
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    feedforward: int | None = Field(default=None, ge=1, description="inner width; 4 * width unless given")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    target_vocab: int | None = Field(
        default=None, ge=1, description="vocabulary of the targets, where they have a tokenizer of their own"
    )
    context: int = Field(ge=1, description="the longest source and the longest target")
    tables: Literal["shared", "separate"] = Field(
        default="shared", description="whether source and target share one table of vectors"
    )
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    scaled: bool = Field(default=True, description="token vectors are multiplied by sqrt(width)")
    norm: residual.Placement = "post"
    epsilon: float = Field(default=1e-5, gt=0)
    activation: Activation = "relu"
    bias: bool = Field(default=True, description="projections and norms have biases")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="dropout on each residual branch and on the embeddings")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    inner_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout after the activation; not in the paper")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} do not divide width={self.width}: change one of them")
        if self.target_vocab is not None and self.tables == "shared":
            raise ValueError("target_vocab: one table cannot serve two vocabularies: set tables=separate")
        return self


class EncoderDecoder(Seq2Seq):
    settings: Settings
    context: int

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.width, self.context = settings.width, settings.context
        self.inner = settings.feedforward or 4 * settings.width
        self.path: str | None = None  # names an attention path; None lets nn.attention decide
        depth = settings.decoder_layers or settings.layers
        self.embedding = self._build_embedding(self.vocab)
        self.target_embedding = self._build_embedding(self.target_vocab) if settings.tables == "separate" else None
        self.encoder_attention = nn.ModuleList(self._attention() for _ in range(settings.layers))
        self.encoder_feedforward = nn.ModuleList(self._feedforward() for _ in range(settings.layers))
        self.decoder_attention = nn.ModuleList(self._attention() for _ in range(depth))
        self.cross_attention = nn.ModuleList(self._cross_attention() for _ in range(depth))
        self.decoder_feedforward = nn.ModuleList(self._feedforward() for _ in range(depth))
        self.encoder_norm = self._norm() if settings.norm == "pre" else None
        self.decoder_norm = self._norm() if settings.norm == "pre" else None
        self.reset()

    def _build_embedding(self, vocab: int) -> Embedding:
        settings = self.settings
        return Embedding(
            vocab, settings.width, context=settings.context, positions=settings.positions,
            dropout=settings.dropout, scale=settings.width**0.5 if settings.scaled else 1.0,
        )  # fmt: skip

    def _norm(self) -> Norm:
        return Norm(self.settings.width, self.settings.epsilon, self.settings.bias)

    def _attention(self) -> AttentionBranch:
        settings = self.settings
        return AttentionBranch(
            settings.width, settings.heads, placement=settings.norm, norm=self._norm(), bias=settings.bias,
            dropout=settings.dropout, attention_dropout=settings.attention_dropout,
        )  # fmt: skip

    def _cross_attention(self) -> CrossAttentionBranch:
        settings = self.settings
        return CrossAttentionBranch(
            settings.width, settings.heads, placement=settings.norm, norm=self._norm(), bias=settings.bias,
            dropout=settings.dropout, attention_dropout=settings.attention_dropout,
        )  # fmt: skip

    def _feedforward(self) -> FeedForwardBranch:
        settings = self.settings
        return FeedForwardBranch(
            settings.width, self.inner, placement=settings.norm, norm=self._norm(), activation=settings.activation,
            bias=settings.bias, dropout=settings.dropout, inner_dropout=settings.inner_dropout,
        )  # fmt: skip

    def reset(self) -> None:
        """Draws all weights anew, from `torch.manual_seed`."""
        key, width = draw_key(), self.settings.width
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                is_table = "embedding." in name
                # a fused projection is several square matrices, each drawn for itself
                outputs = width if "qkv" in name or "key_value" in name else parameter.shape[0]
                deviation = width**-0.5 if is_table else (2 / (parameter.shape[1] + outputs)) ** 0.5
                fill_normal(parameter, fold(key, name), deviation, truncated=False)
            elif not parameter.is_meta:
                nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)

    # --- states -------------------------------------------------------------------------------------

    def forward(
        self, packed: Packed, layers: bool = False, source: Packed | None = None, weights: bool = False
    ) -> States:
        if source is None:
            return self.encode(packed, layers, weights)
        encoded = self.encode(source).last
        return self.decode(packed, EncodedSource(encoded, source.layout), layers=layers, weights=weights)

    def encode(self, packed: Packed, layers: bool = False, weights: bool = False) -> States:
        """The encoder's states of packed sources."""
        self.check_length(packed.layout)
        x = to_autocast_dtype(self.embedding(packed.tokens, packed.positions, None)[0])  # (M, D)
        hidden: list[Tensor] = [x]
        maps: list[list[Tensor]] = []
        for attention, feedforward in zip(self.encoder_attention, self.encoder_feedforward, strict=True):
            x = attention(x, packed.layout, causal=False, path=self.path, record_weights=maps if weights else None)
            x = feedforward(x)
            hidden.append(x)
        hidden[-1] = x if self.encoder_norm is None else self.encoder_norm(x)
        return States(last=hidden[-1], layers=hidden if layers else None, weights=maps if weights else None)

    def decode(
        self,
        packed: Packed,
        source: EncodedSource,
        *,
        layers: bool = False,
        weights: bool = False,
        cache: KVCache | None = None,
    ) -> States:
        """The decoder's states of packed targets; with `cache`, of the next token of each hypothesis."""
        self.check_length(packed.layout, 0 if cache is None else cache.longest)
        if cache is not None:
            cache.start_step(packed.layout, self.path)
        words = self.embedding if self.target_embedding is None else self.target_embedding
        embedded, table = words(packed.tokens, packed.positions, None)  # (N, D)
        first = to_autocast_dtype(embedded)
        hidden: list[Tensor] = [first]
        maps: list[list[Tensor]] = []
        x = first if layers or cache is None else residual.start_step(first, self.settings.norm)
        for layer in range(len(self.decoder_attention)):
            x = self.decoder_attention[layer](x, packed.layout, causal=True, path=self.path, cache=cache, layer=layer)
            x = self.cross_attention[layer](
                x, packed.layout, source.states, source.layout, path=self.path,
                record_weights=maps if weights else None, decoding=None if cache is None else source, layer=layer,
            )  # fmt: skip
            x = self.decoder_feedforward[layer](x)
            if layers:
                assert isinstance(x, Tensor)
                hidden.append(x)
        if cache is not None:
            cache.finish_step()
        hidden[-1] = residual.final_state(x, self.decoder_norm)
        return States(
            last=hidden[-1], layers=hidden if layers else None, table=table, weights=maps if weights else None
        )

    def start_decoding(self, source: Packed, beams: int = 1, weights: bool = False) -> Decoding:
        return TransformerDecoding(self, EncodedSource(self.encode(source).last, source.layout, beams), weights)

    def attention_weights(self, packed: Packed) -> list[list[Tensor]]:
        weights = self.encode(packed, weights=True).weights
        assert weights is not None
        return weights

    # --- layers and their cost ----------------------------------------------------------------------

    def layer_modules(self) -> list[list[Recomputable]]:
        encoder = zip(self.encoder_attention, self.encoder_feedforward, strict=True)
        decoder = zip(self.decoder_attention, self.cross_attention, self.decoder_feedforward, strict=True)
        return [[part for part in parts if isinstance(part, Recomputable)] for parts in (*encoder, *decoder)]

    def flops(self, lengths: np.ndarray) -> int:
        """Of the encoder."""
        lengths = np.asarray(lengths).astype(np.int64)
        tokens, width = int(lengths.sum()), self.width
        layer = 2 * tokens * (4 * width * width + 2 * width * self.inner) + 4 * int((lengths**2).sum()) * width
        return self.settings.layers * layer

    def pair_flops(self, source: np.ndarray, target: np.ndarray) -> int:
        """Self-attention of the target is counted in full, as everywhere."""
        source, target = np.asarray(source).astype(np.int64), np.asarray(target).astype(np.int64)
        sources, targets, width = int(source.sum()), int(target.sum()), self.width
        within = 2 * targets * (4 * width * width + 2 * width * self.inner) + 4 * int((target**2).sum()) * width
        between = 4 * (targets + sources) * width * width + 4 * int((source * target).sum()) * width
        return self.flops(source) + len(self.decoder_attention) * (within + between)

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return self.settings.layers

    @property
    def target_vocab(self) -> int:
        return self.settings.target_vocab or self.vocab

    @property
    def target_table(self) -> Tensor:
        words = self.embedding if self.target_embedding is None else self.target_embedding
        table: Tensor = words.tokens.weight
        return table

    @property
    def has_attention_weights(self) -> bool:
        return True

    def frame(self, special: Specials) -> Framing:
        """A text as a source of translation: its tokens and an end; pooled by their mean, since no state is special."""
        if special.end is None:
            raise UserError("A source ends with an end token, and this tokenizer has none.")
        return Framing([], [special.end], [special.end], pooling="mean", separate=True).limit(self.context)

    def parameter_depth(self, name: str) -> int:
        """Of the encoder as in every model; the decoder stands above it."""
        part, *words = name.split(".")
        if part in ("embedding", "target_embedding"):
            return 0
        return int(words[0]) + 1 if part in ("encoder_attention", "encoder_feedforward") else self.layers + 1

    def finetuning_defaults(self) -> dict[str, object]:
        return {"epochs": 3, "lr": min(1e-3, 5e-5 * 768 / self.width), "warmup": 0.1}


class CachedDecoder(Protocol):
    """A decoder that takes cached keys and values."""

    def decode(
        self, packed: Packed, source: EncodedSource, *, weights: bool = False, cache: KVCache | None = None
    ) -> States: ...


class TransformerDecoding(StaticDecoding):
    """Cached keys and values of the target, and of the source."""

    def __init__(
        self, model: CachedDecoder, source: EncodedSource, weights: bool, cache: LockstepCache | None = None
    ) -> None:
        self.model, self.source, self.weights = model, source, weights
        self.cache = LockstepCache() if cache is None else cache
        self.layout: Layout | None = None  # of one token a hypothesis
        self._attention: Tensor | None = None

    def step(self, tokens: Tensor) -> Tensor:
        if self.layout is None or self.layout.total != len(tokens):
            self.layout = Layout.from_bounds(np.arange(len(tokens) + 1), 1).to(tokens.device)
        place = self.cache.place
        positions = torch.full_like(tokens, self.cache.length) if place is None else place.expand(len(tokens))
        packed = Packed(tokens, positions, None, self.layout)
        states = self.model.decode(packed, self.source, weights=self.weights, cache=self.cache)
        if states.weights is not None:
            self._attention = torch.stack(states.weights[-1]).mean(1)  # over heads
        return states.last

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.cache.reorder(rows)
        if sources is not None:
            self.source.select(sources)

    def new_static(self, sources: int, source_length: int, room: int) -> TransformerDecoding | None:
        if self.weights:  # are lists of the host
            return None
        source, cache = self.source, self.cache.new_static(sources * self.source.beams, room)
        return TransformerDecoding(self.model, source.new_static(sources, source_length), False, cache)

    def load(self, decoding: Decoding, rows: Tensor, sources: Tensor, length: int) -> None:
        assert isinstance(decoding, TransformerDecoding)
        self.cache.load(decoding.cache, rows, length)
        self.source.load(decoding.source, sources)

    @property
    def attention(self) -> Tensor | None:
        """Of the last layer, the mean of its heads."""
        return self._attention


def build(settings: Settings) -> EncoderDecoder:
    return EncoderDecoder(settings)
