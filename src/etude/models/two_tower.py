"""The two-tower model: every token predicted from both sides, with no mask symbol.

Baevski, Edunov, Liu, Zettlemoyer, Auli 2019, "Cloze-driven Pretraining of Self-attention Networks", section 3. A
forward and a backward Transformer read the same inputs, each its own way, pre-LN as the code insists; they meet once,
in the combiner on top (nn/combiner.py), whose output at a token depends on every other token and not on itself.

    input      sqrt(width) * vector + sinusoids, dropout; both towers start from it. Vectors are those of a table of
               sub-words, or of words by their letters (nn/char_cnn.py)
    towers     key j <= i forward, j >= i backward; every query also sees a slot, a key and value learned or zero [code]
    combiner   attention (the paper), linear (the code's other way), or none: two language models side by side (bilm)

The backward tower runs on the tokens in reversed order, where it is causal as well: both take the same fast paths.
States of a layer are [forward ; backward], twice `width`; those of the embedding and the combiner are there twice, as
the paper mixes layers for a frozen tagger [code]. `last` is the combiner's output, of `width`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from etude.chance import fold
from etude.errors import UserError
from etude.models.base import MAX_LAYERS, Model, ModelSettings, set_dropout
from etude.models.depth import numbered_depth
from etude.models.framing import Framing
from etude.models.transfer_settings import TransferSettings
from etude.nn import char_cnn
from etude.nn.activations import Activation, apply_dropout
from etude.nn.attention.multi_set import KeySet, NullSlot, SlotKind, allow_in_graph, attend_multi_set
from etude.nn.block import AttentionBranch, FeedForwardBranch
from etude.nn.char_embedding import CharEmbedding, share_speller
from etude.nn.combiner import Combiner, LinearCombiner, MaskKind, QueryKind
from etude.nn.embedding import Embedding, sinusoidal_positions
from etude.nn.initialization import draw_key, init_weights
from etude.nn.norm import Norm
from etude.nn.packed import Layout, Packed
from etude.nn.precision import to_autocast_dtype
from etude.nn.recompute import Recomputable
from etude.nn.rotary import Rotation
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = ["Settings", "TowerStates", "TwoTower", "build"]


class Settings(ModelSettings):
    layers: int = Field(ge=1, le=MAX_LAYERS, description="number of blocks of each tower")
    width: int = Field(ge=1)
    heads: int = Field(ge=1, description="attention heads of the towers")
    feedforward: int | None = Field(default=None, ge=1, description="inner width; 4 * width unless given")
    vocab: int | None = Field(default=None, ge=1, description="filled from the corpus")
    context: int = Field(ge=1, description="the longest sequence")

    characters: char_cnn.Settings | None = Field(
        default=None, description="vectors of words are computed from their letters; from a table if None"
    )
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    segments: int = Field(default=0, ge=0, description="number of segment embeddings; 0 = none")
    activation: Activation = "relu"
    epsilon: float = Field(default=1e-5, gt=0)
    slot: SlotKind = Field(default="learned", description="a key every query of a tower sees beside those of the text")
    share_towers: bool = Field(default=False, description="one set of weights reads both ways")

    combiner: Literal["attention", "linear", "none"] = "attention"
    combiner_heads: int | None = Field(default=None, ge=1, description="as many as the towers have if None")
    combiner_query: QueryKind = Field(default="sum", description="sum in base, concat in large")
    combiner_scaled: bool = Field(default=True, description="scores over sqrt(head size); the released code never does")
    combiner_slot: SlotKind = "none"

    dropout: float = Field(default=0.0, ge=0, lt=1, description="on the input and on the output of each branch")
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    inner_dropout: float = Field(default=0.0, ge=0, lt=1, description="behind the activation of each feed-forward")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for name, heads in (("heads", self.heads), ("combiner_heads", self.combiner_heads)):
            if heads is not None and self.width % heads:
                raise ValueError(f"{name}={heads} do not divide width={self.width}: change one of them")
        if self.characters is not None and self.characters.project not in (None, self.width):
            raise ValueError(
                f"characters.project={self.characters.project} is not width={self.width}, which the towers read: "
                "leave it out"
            )
        if self.characters is not None and (self.positions == "learned" or self.segments):
            raise ValueError("with characters there are sinusoidal positions or none, and segments=0: drop the others")
        return self


@dataclass
class TowerStates(States):
    forward_top: Tensor | None = None  # (N, D) the top of the forward tower, which has read up to each token
    backward_top: Tensor | None = None  # (N, D) the top of the backward tower


class WordEmbedding(nn.Module):
    """The embedding of words by their letters: scaled vectors, sinusoidal positions, dropout."""

    def __init__(self, characters: char_cnn.Settings, settings: Settings) -> None:
        super().__init__()
        self.words = CharEmbedding(characters, settings.width)
        self.scale, self.waves, self.dropout = settings.width**0.5, settings.positions != "none", settings.dropout

    def forward(self, tokens: Tensor, positions: Tensor, vectors: Tensor | None) -> Tensor:
        """(N,) -> (N, D); `vectors` (N, D) are those of the words where they are known already."""
        x = self.scale * (self.words(tokens) if vectors is None else vectors)
        if self.waves:
            x = x + sinusoidal_positions(positions, x.shape[-1]).to(x.dtype)
        return apply_dropout(x, self.dropout, self.training)


class TowerAttention(AttentionBranch):
    """Causal self-attention whose queries also see a slot."""

    def __init__(self, settings: Settings, norm: Norm) -> None:
        super().__init__(
            settings.width,
            settings.heads,
            placement="pre",
            norm=norm,
            dropout=settings.dropout,
            attention_dropout=settings.attention_dropout,
        )
        self.slot = None if settings.slot == "none" else NullSlot(self.heads, self.size, settings.slot)

    def mix(
        self,
        qkv: Tensor,
        layout: Layout,
        *,
        causal: bool,
        window: int | None,
        dropout: float,
        path: str | None,
        rotation: Rotation | None,
    ) -> Tensor:
        if self.slot is None:
            return super().mix(qkv, layout, causal=causal, window=window, dropout=dropout, path=path, rotation=rotation)
        assert rotation is None  # towers have sinusoidal or learned positions
        query, key, value = qkv.unbind(1)
        parts = [KeySet(key, value, "past")]
        return attend_multi_set(query, parts, layout, slot=self.slot(), dropout=dropout, path=path)


class Tower(nn.Module):
    """Pre-LN blocks; the norm over its top belongs to the combiner."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.attention = nn.ModuleList(
            TowerAttention(settings, Norm(settings.width, settings.epsilon)) for _ in range(settings.layers)
        )
        self.feedforward = nn.ModuleList(
            FeedForwardBranch(
                settings.width,
                settings.feedforward or 4 * settings.width,
                placement="pre",
                norm=Norm(settings.width, settings.epsilon),
                activation=settings.activation,
                dropout=settings.dropout,
                inner_dropout=settings.inner_dropout,
            )
            for _ in range(settings.layers)
        )

    def layer_modules(self) -> list[list[Recomputable]]:
        return [
            [part for part in parts if isinstance(part, Recomputable)]
            for parts in zip(self.attention, self.feedforward, strict=True)
        ]

    def forward(self, x: Tensor, layout: Layout, path: str | None) -> list[Tensor]:
        """The states of every layer, (N, D) each."""
        states = []
        for attention, feedforward in zip(self.attention, self.feedforward, strict=True):
            x = feedforward(attention(x, layout, causal=True, path=path))
            states.append(x)
        return states


class TwoTower(Model):
    settings: Settings
    context: int
    __call__: Callable[..., TowerStates]

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.context = settings.context
        self.width = settings.width if settings.combiner != "none" else 2 * settings.width
        self.path: str | None = None  # names an attention path; None lets nn.attention.choose_path decide
        self.mask: MaskKind = "full"  # of the combiner: what a token sees of itself
        inner = settings.feedforward or 4 * settings.width
        self.embedding: Embedding | WordEmbedding
        if settings.characters is not None:
            self.embedding = WordEmbedding(settings.characters, settings)
        else:
            self.embedding = Embedding(
                self.vocab,
                settings.width,
                context=settings.context,
                positions=settings.positions,
                segments=settings.segments,
                dropout=settings.dropout,
                scale=settings.width**0.5,
            )
        self.forwards = Tower(settings)
        self.backwards = None if settings.share_towers else Tower(settings)
        self.combiner: Combiner | LinearCombiner | None = None
        if settings.combiner == "attention":
            self.combiner = Combiner(
                settings.width,
                settings.combiner_heads or settings.heads,
                inner,
                query=settings.combiner_query,
                scaled=settings.combiner_scaled,
                slot=settings.combiner_slot,
                activation=settings.activation,
                epsilon=settings.epsilon,
                dropout=settings.dropout,
                attention_dropout=settings.attention_dropout,
                inner_dropout=settings.inner_dropout,
            )
        elif settings.combiner == "linear":
            self.combiner = LinearCombiner(settings.width)
        self.reset()

    def reset(self, key: int | None = None) -> None:
        """Draws all weights anew, from `torch.manual_seed` or from a key: as the released code does.

        Matrices by Glorot and Bengio 2010, a slot's key and value as one row of `width` numbers; tables so that, times
        sqrt(width), they are about as large as the sinusoids. A network of letters keeps the values it began with.
        """
        key = draw_key() if key is None else key
        for name, part in self.named_children():
            if isinstance(part, WordEmbedding):
                continue
            factors = {
                inside: self._first_deviation(part, inside, parameter)
                for inside, parameter in part.named_parameters()
                if parameter.dim() > 1
            }
            init_weights(part, key=fold(key, name), deviation=1.0, factors=factors)

    def _first_deviation(self, part: nn.Module, name: str, parameter: Tensor) -> float:
        """Return the standard deviation of a matrix's first values."""
        width, (rows, columns) = self.settings.width, parameter.shape
        if part is self.embedding or "slot" in name.split("."):  # heads of a slot are no rows
            return float(width**-0.5)
        if self.settings.combiner_query == "sum" and part is self.combiner and name in ("query.weight", "keys.weight"):
            rows = 3 * width  # the code holds queries, keys and values in one matrix, as in the towers
        return float((2 / (rows + columns)) ** 0.5)

    def compile(self, *args: object, **options: object) -> None:
        allow_in_graph()
        super().compile(*args, **options)

    def forward(self, packed: Packed, layers: bool = False, vectors: Tensor | None = None) -> TowerStates:
        """`vectors` (N, D) are those of the words, where the model reads letters and they are known already."""
        layout, reversed_layout = packed.layout, _reverse_outside_graph(packed.layout)
        self.check_length(layout)
        if isinstance(self.embedding, WordEmbedding):
            x, table = self.embedding(packed.tokens, packed.positions, vectors), None
        else:
            x, table = self.embedding(packed.tokens, packed.positions, packed.segments)
        x = to_autocast_dtype(x)  # (N, D)
        forward_states = self.forwards(x, layout, self.path)
        tower = self.forwards if self.backwards is None else self.backwards
        backward_states = tower(x.flip(0), reversed_layout, self.path)
        backward_top = backward_states[-1].flip(0)
        states = [torch.cat([x, x], dim=-1)] if layers else None
        if states is not None:
            states += [
                torch.cat([left, right.flip(0)], dim=-1)
                for left, right in zip(forward_states, backward_states, strict=True)
            ]
        if self.combiner is None:
            last = torch.cat([forward_states[-1], backward_top], dim=-1)
        else:
            last = self.combiner(forward_states[-1], backward_top, layout, self.mask, self.path)
            if states is not None:
                states.append(torch.cat([last, last], dim=-1))
        return TowerStates(
            last=last, layers=states, table=table, forward_top=forward_states[-1], backward_top=backward_top
        )

    def flops(self, lengths: np.ndarray, words: int | None = None) -> int:
        """Of one forward pass: both towers and the combiner; attention over real lengths, full where it is causal.

        `words`: how many different ones are spelled, where the model reads letters; as many as tokens if None.
        """
        settings = self.settings
        lengths = np.asarray(lengths).astype(np.int64)
        tokens, pairs, width = int(lengths.sum()), int((lengths * lengths).sum()), settings.width
        seen = pairs if settings.slot == "none" else pairs + tokens
        weights = 4 * width * width + 2 * width * (settings.feedforward or 4 * width)
        towers = 2 * settings.layers * (2 * tokens * weights + 4 * seen * width)
        if isinstance(self.embedding, WordEmbedding):
            towers += self.embedding.words.network.flops(tokens if words is None else words)
        return towers + (0 if self.combiner is None else self.combiner.flops(tokens, pairs))

    # --- what kind of model it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        return self.settings.layers

    def layer_modules(self) -> list[list[Recomputable]]:
        first = self.forwards.layer_modules()
        return first + (first if self.backwards is None else self.backwards.layer_modules())

    @property
    def state_count(self) -> int:
        return 1 + self.layers + (self.combiner is not None)

    @property
    def state_width(self) -> int:
        return 2 * self.settings.width

    def frame(self, special: Specials) -> Framing:
        """The symbol of pre-training on both sides; another between two texts, which is new to the model.

        The vector of a text is that of its boundaries, 16 times, and the head starts at 0 (Baevski et al., section 5).
        """
        boundary = special.end if special.end is not None else special.separator
        if boundary is None:
            raise UserError("A two-tower model reads text between two boundary symbols, and this tokenizer has none.")
        # by letters, separator and end are the same mark (text/tokenizer/char_ids.py); that of a start is another
        between = special.separator if self.settings.characters is None else special.start
        return Framing(
            [boundary],
            [boundary if between is None else between],
            [boundary],
            pooling="ends",
            segments=self.settings.segments > 1,
            head_scale=16.0,
            head_std=0.0,
        ).limit(self.context)

    @property
    def letter_parts(self) -> list[CharEmbedding]:
        return [self.embedding.words] if isinstance(self.embedding, WordEmbedding) else []

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return share_speller(self.letter_parts, tokenizer)

    def parameter_depth(self, name: str) -> int:
        return numbered_depth(name, self.layers)

    def finetuning_defaults(self) -> dict[str, object]:
        """The paper's: 3e-5 to 1e-4 at a width of 1024, down to 1e-6 on a cosine."""
        lr = min(1e-3, 5e-5 * 1024 / self.settings.width)
        return {
            "epochs": 3, "batch_examples": 16, "lr": lr, "warmup": 0.1, "lr_schedule": "cosine", "final_lr": 0.02,
        }  # fmt: skip

    def prepare_transfer(self, settings: TransferSettings) -> None:
        """As Baevski et al. 2019 fine-tune, sections 5 and 6 [code].

        mask      the combiner's is taken off: at every token it sees all states of both towers, whose own masks stay.
                  A frozen model keeps it, since nothing would adapt to the change
        dropout   inside the model it is off; the task has its own before its head
        letters   vectors, convolutions and highways stay as they are; only the projection to the model's width learns
        """
        if settings.mask is not None and not isinstance(self.combiner, Combiner):
            raise UserError(
                f"transfer.mask={settings.mask}, and this model has no attention to mask in its combiner: drop it."
            )
        self.mask = settings.mask or ("full" if settings.frozen else "none")
        set_dropout(self, settings.dropout or 0.0)
        if not settings.letters:
            self.freeze_letters()


def reverse(layout: Layout) -> Layout:
    """The layout of the same sequences with all tokens in reversed order; worked out once a batch."""
    if "reversed" not in layout.cache:
        host = layout.host
        if isinstance(host, np.ndarray):  # a step that is recorded has none, and needs none
            host = np.ascontiguousarray(host[-1] - host[::-1])
        layout.cache["reversed"] = Layout(layout.bounds[-1] - layout.bounds.flip(0), host, layout.longest, layout.equal)
    cached: Layout = layout.cache["reversed"]
    return cached


_reverse_outside_graph = _disable_dynamo(reverse)  # host work, done before a compiled graph begins


def build(settings: Settings) -> TwoTower:
    return TwoTower(settings)
