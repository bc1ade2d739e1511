"""One Transformer with a few axes: GPT-1, BERT, GPT-2, GPT-3, ALBERT, ELECTRA and their modern forms.

Vaswani et al. 2017 is the frame; what each system changes is a setting:

    direction   both: BERT, ALBERT, ELECTRA; causal: the GPTs
    norm        post: GPT-1, BERT; pre, with a final norm: GPT-2 and later
    share       which residual branches all layers have in common (ALBERT, table 4)
    embedding_width   narrower than width: factorised (ALBERT, section 3.1)
    window, dense_every   banded layers between dense ones (GPT-3, section 2.1)
    init        how residual branches start (nn/initialization.py)

Tokens in, states out; it knows nothing of losses.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.base import MAX_LAYERS, Model, ModelSettings
from etude.models.framing import Framing
from etude.nn import residual
from etude.nn.activations import Activation
from etude.nn.attention.kv_cache import KVCache
from etude.nn.block import AttentionBranch, FeedForwardBranch
from etude.nn.embedding import Embedding, Positions
from etude.nn.initialization import Scaling, draw_key, fill_normal, init_weights, residual_scale
from etude.nn.norm import Norm, NormKind
from etude.nn.packed import Layout, Packed
from etude.nn.precision import to_autocast_dtype
from etude.nn.recompute import Recomputable, RecomputePolicy
from etude.nn.rotary import Rotation, compute_rotation
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials

__all__ = ["Settings", "States", "Transformer", "build"]

MAX_HEADS = 4096  # up to which a number that divides a width is looked for


class Settings(ModelSettings):
    layers: int = Field(ge=1, le=MAX_LAYERS)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    feedforward: int | None = Field(default=None, ge=1, description="inner width; 4 * width unless given")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    context: int = Field(ge=1, description="the longest sequence")
    direction: Literal["both", "causal"] = "both"

    embedding_width: int | None = Field(
        default=None, ge=1, description="width of the token table; below the model's width it is factorised (ALBERT)"
    )
    positions: Positions = "learned"
    rotary_base: float = Field(default=10_000.0, gt=1)
    rotary_window_base: float | None = Field(
        default=None, gt=1, description="rotary_base of the banded layers; that of the others if None"
    )
    segments: int = Field(default=0, ge=0, description="number of segment embeddings; 0 = none")
    embedding_norm: bool = False

    norm: residual.Placement = "pre"
    norm_kind: NormKind = "layer"
    first_norm: bool = Field(default=True, description="False: no norm before the first attention (ModernBERT)")
    epsilon: float = Field(default=1e-5, gt=0)
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = Field(default=True, description="projections and norms have biases")
    share: Literal["none", "attention", "feedforward", "all"] = "none"
    window: int | None = Field(default=None, ge=1, description="banded layers see keys at most this far away")
    dense_every: int = Field(default=2, ge=1, description="with a window: layers 0, n, 2n ... stay dense")
    pooler: bool = False

    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout on the output of each residual branch")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    embedding_dropout_on: Literal["states", "table"] = Field(
        default="states", description="where embedding_dropout acts: on the looked-up states, or on the tables (GPT-1)"
    )

    init: Scaling = "none"
    init_deviation: float = Field(default=0.02, gt=0)
    init_truncated: bool = Field(
        default=False, description="initial weights are cut at two standard deviations, as in BERT"
    )
    position_deviation: float | None = Field(
        default=None, gt=0, description="standard deviation of the initial position vectors; 0.01 in GPT-2"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.width % self.heads:
            fitting = [heads for heads in range(1, min(self.width, MAX_HEADS) + 1) if self.width % heads == 0]
            close = min(fitting, key=lambda heads: abs(heads - self.heads))
            raise ValueError(
                f"heads={self.heads} do not divide width={self.width}: "
                f"set heads to {close}, or width to {self.heads * max(1, (self.width + self.heads // 2) // self.heads)}"
            )
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions turn pairs, and a head of width {self.width} / heads {self.heads} = "
                f"{self.width // self.heads} is odd: change heads or width so that the quotient is even"
            )
        if self.embedding_dropout_on == "table" and self.embedding_norm:
            raise ValueError("embedding_dropout_on='table' goes without embedding_norm: set one of them otherwise")
        if not self.first_norm and (self.norm == "post" or self.share in ("attention", "all")):
            raise ValueError("first_norm=false needs norm='pre' and attention that is not shared: set first_norm=true")
        if self.window is not None and self.dense_every == 1:
            raise ValueError(
                "with dense_every=1 every layer is dense and window has no effect: raise it, or drop window"
            )
        return self


class Transformer(Model):
    settings: Settings
    context: int

    def __init__(self, settings: Settings, tied: Collection[str] = ()) -> None:
        """`tied` names parts of the embedding that belong to another model (nn/embedding.py)."""
        super().__init__(settings)
        self.width, self.context = settings.width, settings.context
        self.inner = settings.feedforward or 4 * settings.width
        self.path: str | None = None  # names an attention path; None lets nn.attention.choose_path decide
        table_width = settings.embedding_width or settings.width
        self.embedding = Embedding(
            self.vocab,
            settings.width,
            table_width=table_width,
            context=settings.context,
            positions=settings.positions,
            segments=settings.segments,
            norm=self._norm(table_width) if settings.embedding_norm else None,
            dropout=settings.embedding_dropout,
            drop_table=settings.embedding_dropout_on == "table",
            bias=settings.bias,
            tied=tied,
        )
        own_attention = 1 if settings.share in ("attention", "all") else settings.layers
        own_feedforward = 1 if settings.share in ("feedforward", "all") else settings.layers
        self.attention = nn.ModuleList(
            AttentionBranch(
                settings.width,
                settings.heads,
                placement=settings.norm,
                norm=self._norm(settings.width) if layer or settings.first_norm else nn.Identity(),
                bias=settings.bias,
                dropout=settings.dropout,
                attention_dropout=settings.attention_dropout,
            )
            for layer in range(own_attention)
        )
        self.feedforward = nn.ModuleList(
            FeedForwardBranch(
                settings.width,
                self.inner,
                placement=settings.norm,
                norm=self._norm(settings.width),
                activation=settings.activation,
                gated=settings.gated,
                bias=settings.bias,
                dropout=settings.dropout,
            )
            for _ in range(own_feedforward)
        )
        self.norm = self._norm(settings.width) if settings.norm == "pre" else None
        self.pooler = nn.Linear(settings.width, settings.width) if settings.pooler else None
        self.reset()

    def _norm(self, width: int) -> Norm:
        return Norm(width, self.settings.epsilon, self.settings.bias, self.settings.norm_kind)

    def reset(self, key: int | None = None) -> None:
        """Draws all weights anew; from `torch.manual_seed`, or from a key."""
        settings = self.settings
        factors: dict[str, float] = {}
        for kind, last, branches in (("attention", "out", self.attention), ("feedforward", "down", self.feedforward)):
            for layer in range(len(branches)):
                scale = residual_scale(settings.init, layer, settings.layers)
                factors[f"{kind}.{layer}.{last}.weight"] = scale
        if self.embedding.positions is not None and settings.position_deviation is not None:
            factors["embedding.positions.weight"] = settings.position_deviation / settings.init_deviation
        init_weights(
            self,
            key=draw_key() if key is None else key,
            deviation=settings.init_deviation,
            truncated=settings.init_truncated,
            factors=factors,
        )

    def window_of(self, layer: int) -> int | None:
        """The band of a layer, None where it is dense."""
        return None if layer % self.settings.dense_every == 0 else self.settings.window

    def forward(
        self,
        packed: Packed,
        layers: bool = False,
        weights: bool = False,
        tied_to: Embedding | None = None,
        cache: KVCache | None = None,
        only: Tensor | None = None,
        queries: bool = False,
    ) -> States:
        """States of all tokens; of all layers, queries and keys, and attention weights by the slow path, on request.

        `tied_to` is the embedding of another model, for the parts that are tied. With `cache`, the tokens go
        on where its sequences stopped (`cache.pack` makes such a batch). With `only` (M,), `last` are the states at
        these places alone, (M, D), and the last layer computes no others: a masked model needs one in seven.
        """
        if only is not None and (layers or queries):
            raise ValueError("`only` leaves out states of the last layer, and `layers` or `queries` ask for all")
        self._check(packed.layout, cache)
        if cache is not None:
            cache.start_step(packed.layout, self.path)
        settings, layout = self.settings, packed.layout
        x, table = self.embedding(packed.tokens, packed.positions, packed.segments, tied_to)  # (N, D)
        x = to_autocast_dtype(x)
        rotations = self._rotations(packed.positions)
        hidden: list[Tensor] = [x]
        attention_weights: list[list[Tensor]] | None = [] if weights else None
        query_keys: list[Tensor] | None = [] if queries else None
        stream: residual.Stream = x
        if not layers and cache is not None:
            stream = residual.start_step(x, settings.norm)
        elif not layers:
            stream = residual.start_stream(x, self.feedforward[0].norm)  # type: ignore[arg-type]
        for layer in range(settings.layers):
            window = self.window_of(layer)
            attention = self.attention[layer % len(self.attention)]
            feedforward = self.feedforward[layer % len(self.feedforward)]
            stream = attention(
                stream,
                layout,
                causal=self.causal,
                window=window,
                rotation=rotations[0 if window is None else 1],
                path=self.path,
                record_weights=attention_weights,
                cache=cache,
                layer=layer,
                only=only if layer == settings.layers - 1 else None,
                record_query_key=query_keys,
            )
            stream = feedforward(stream)
            if layers:
                assert isinstance(stream, Tensor)
                hidden.append(stream)
        if cache is not None:
            cache.finish_step()
        last = hidden[-1] = residual.final_state(stream, self.norm)
        return States(
            last=last,
            layers=hidden if layers else None,
            table=table,
            weights=attention_weights,
            queries=query_keys,
        )

    def _rotations(self, positions: Tensor) -> tuple[Rotation | None, Rotation | None]:
        """The rotations of dense and of banded layers."""
        settings = self.settings
        if settings.positions != "rotary":
            return None, None
        size = settings.width // settings.heads
        dense = compute_rotation(positions, size, settings.rotary_base)
        if settings.window is None or settings.rotary_window_base is None:
            return dense, dense
        return dense, compute_rotation(positions, size, settings.rotary_window_base)

    def _check(self, layout: Layout, cache: KVCache | None) -> None:
        if cache is not None and not self.causal:
            raise UserError("a model that looks both ways cannot go on from a cache: build it with direction='causal'")
        self.check_length(layout, cache.lengths if cache is not None and cache.keys else 0)

    def attention_weights(self, packed: Packed) -> list[list[Tensor]]:
        weights = self(packed, weights=True).weights
        assert weights is not None
        return weights

    def flops(self, lengths: np.ndarray, pooled: bool = False, only: int | None = None) -> int:
        """Of one forward pass: matrix products times 2; attention over real lengths, full where it is causal.

        A banded layer counts the keys of its band. `pooled` adds the pooler. `only` is how many states of the last
        layer are asked for, where those are not all.
        """
        settings = self.settings
        lengths = np.asarray(lengths).astype(np.int64)
        tokens, width = int(lengths.sum()), settings.width
        total = 2 * tokens * self.table_width * width if self.table_width != width else 0
        projections = 4 * width * width + (3 if settings.gated else 2) * width * self.inner
        for layer in range(settings.layers):
            window = self.window_of(layer)
            if window is None:
                pairs = int((lengths * lengths).sum())
            else:
                band = window + 1 if self.causal else 2 * window + 1
                pairs = int((lengths * np.minimum(lengths, band)).sum())
            total += 2 * tokens * projections + 4 * pairs * width  # scores, and the sum of values
        if only is not None and settings.layers:
            # queries, keys and values are of all tokens, as on a GPU; a CPU has fewer queries
            # (nn/attention/query_subset.py), and a budget is one number everywhere
            total -= 2 * (tokens - only) * (projections - 3 * width * width)
        if pooled:
            total += 2 * int((lengths > 0).sum()) * width * width
        return total

    def activation_bytes(
        self,
        tokens: int,
        element_size: int,
        device: str,
        recompute: RecomputePolicy = "none",
        *,
        only: int | None = None,
        length: int | None = None,
    ) -> int:
        """Of each token and layer (D width, F feedforward; b the element size):

        4 * 2D             the residual stream at both norms, which work in float32
        b * 6D             input of the projections, query, key, value, mixed values, input of the feedforward
        b * 2D             query and key once more where positions are rotary, unless kernels of a GPU rotate them
        b * 2F             before and after the activation; F for relu, 4F gated
        dropout masks; on a CPU also attention weights where they are dropped out, as no fused kernel there does that

        Where the last layer is read at some tokens, what follows its attention is kept of these alone. What is computed
        again keeps its input alone, b * D, and exists in one layer at a time.
        """
        settings, width = self.settings, self.width
        mask = 1 if device == "cuda" else 4  # of a dropout mask's element; on a CPU torch keeps a scaled float
        dropped = width * mask if settings.dropout else 0  # the mask of a branch
        inner = (4 if settings.gated else 1 if settings.activation == "relu" else 2) * self.inner
        rotates_apart = settings.positions == "rotary" and (device != "cuda" or element_size != 2)
        attention = 4 * width + element_size * (7 if rotates_apart else 5) * width + dropped
        feedforward = 4 * width + element_size * (width + inner) + dropped
        pairs = 0
        if device == "cpu" and (settings.attention_dropout or element_size == 2):
            # a weight for each pair, and whether it is dropped (nn/attention/dense.py)
            seen = min(length or settings.context, settings.context)
            pairs = (element_size + (1 if settings.attention_dropout else 0)) * settings.heads * seen
        attention += pairs
        layer = attention + feedforward
        embedding = self.table_width * (4 + (mask if settings.embedding_dropout else 0))
        again = {"none": 0, "attention": attention, "all": layer}[recompute]
        inputs = {"none": 0, "attention": 1, "all": 2}[recompute] * element_size * width
        unread = 0 if only is None or recompute == "all" or not settings.layers else max(0, tokens - only)
        kept = tokens * (settings.layers * (layer - again + inputs) + again + embedding)
        return kept - unread * (feedforward + dropped)

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def table_width(self) -> int:
        return self.settings.embedding_width or self.width

    @property
    def layers(self) -> int:
        return self.settings.layers

    @property
    def causal(self) -> bool:
        return self.settings.direction == "causal"

    def layer_modules(self) -> list[list[Recomputable]]:
        attention, feedforward = list(self.attention), list(self.feedforward)
        return [
            [part for part in parts if isinstance(part, Recomputable)]
            for parts in (
                (attention[layer % len(attention)], feedforward[layer % len(feedforward)])
                for layer in range(self.layers)
            )
        ]

    @property
    def shares_layers(self) -> bool:
        return self.settings.share != "none"

    @property
    def has_learned_positions(self) -> bool:
        return self.settings.positions == "learned"

    @property
    def has_attention_weights(self) -> bool:
        return True

    def frame(self, special: Specials) -> Framing:
        start = [] if special.start is None else [special.start]
        if self.causal:
            if special.task_start is not None and special.task_delimiter is not None and special.extract is not None:
                markers = [special.task_start], [special.task_delimiter], [special.extract]
                return Framing(*markers, pooling="last").limit(self.context)
            if special.end is None:
                raise UserError(
                    "A causal model is read out at an end token, and this tokenizer has none. Fine-tuning adds one "
                    "whose vector learns (transfer.markers=new): do so, without transfer.frozen and transfer.probe."
                )
            # GPT-2's tokenizer has neither a start token (the text itself starts) nor a delimiter (the end serves)
            between = special.end if special.separator is None else special.separator
            return Framing(start, [between], [special.end], pooling="last").limit(self.context)
        if special.start is None or special.separator is None:
            raise UserError("An encoder reads [CLS] text [SEP], and this tokenizer lacks a start token or a separator.")
        separator = [special.separator]
        segments = self.settings.segments > 1
        return Framing(start, separator, separator, pooling="start", segments=segments).limit(self.context)

    def renew_tokens(self, first: int, count: int) -> None:
        old = self.embedding.tokens.weight.detach()
        rows = old.new_empty(count, old.shape[1])
        fill_normal(rows, draw_key(), self.settings.init_deviation, self.settings.init_truncated)
        table = torch.cat([old[:first], rows, old[first + count :]])
        self.embedding.tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.vocab = len(table)
        self.settings = self.settings.model_copy(update={"vocab": self.vocab})

    def parameter_depth(self, name: str) -> int:
        """A final norm and a pooler lie above the last layer; what layers share lies where its last use is."""
        part, *words = name.split(".")
        if part == "embedding":
            return 0
        if part in ("attention", "feedforward"):
            return self.layers if self.settings.share in (part, "all") else int(words[0]) + 1
        return self.layers + 1

    def finetuning_defaults(self) -> dict[str, object]:
        """5e-5 at BERT's width of 768 (BERT, appendix A.3), more for narrower models in proportion, 1e-3 at most.

        The small BERTs of Turc et al. 2019 took 3e-4 at a width of 128.
        """
        lr = min(1e-3, 5e-5 * 768 / self.width)
        if self.causal:  # GPT-1's code: 6.25e-5, a short warm-up times a linear decay
            return {"epochs": 3, "lr": 1.25 * lr, "warmup": 0.002, "warmup_shape": "multiply"}
        return {"epochs": 3, "lr": lr, "warmup": 0.1}


def build(settings: Settings) -> Transformer:
    return Transformer(settings)
