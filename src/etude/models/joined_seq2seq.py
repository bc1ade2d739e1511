"""An encoder-decoder joined from a model that reads the source and a Transformer that writes the target.

Rothe et al. 2020: the encoder starts from a pre-trained model, the decoder does, or both; attention between them is new
in every layer. The reader may be any model (BERT, a GPT, a biLM whose states are features of the source); the writer is
a causal Transformer, so of other models it has the size that is asked for and weights of its own.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

from etude.errors import UserError
from etude.models.base import Model, set_dropout
from etude.models.encoder_decoder import TransformerDecoding
from etude.models.framing import Framing
from etude.models.seq2seq import Decoding, Seq2Seq
from etude.models.transformer import Settings as TransformerSettings
from etude.models.transformer import Transformer
from etude.nn.attention.kv_cache import KVCache
from etude.nn.cross_attention import CrossAttentionBranch, EncodedSource
from etude.nn.initialization import draw_key, init_weights
from etude.nn.norm import Norm
from etude.nn.packed import Packed
from etude.nn.precision import to_autocast_dtype
from etude.nn.rotary import Rotation, compute_rotation
from etude.nn.states import States
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

NO_WRITER = "This model's layers cannot write a target: start the encoder with it alone, task.start=encoder."
NEW_CONTEXT = 128  # tokens of a target beyond a model that is no Transformer, and has no context of its own


class CrossDecoder(nn.Module):
    """The layers of a causal Transformer, with attention to the source between the two branches of each."""

    def __init__(self, stack: Transformer, source_width: int) -> None:
        super().__init__()
        settings = stack.settings
        self.stack = stack
        self.bridge = nn.Linear(source_width, settings.width) if source_width != settings.width else None
        self.cross_attention = nn.ModuleList(
            CrossAttentionBranch(
                settings.width, settings.heads, placement=settings.norm,
                norm=Norm(settings.width, settings.epsilon, settings.bias, settings.norm_kind), bias=settings.bias,
                dropout=settings.dropout, attention_dropout=settings.attention_dropout,
            )
            for _ in range(settings.layers)
        )  # fmt: skip
        init_weights(
            self.cross_attention, key=draw_key(), deviation=settings.init_deviation, truncated=settings.init_truncated
        )

    def encode(self, states: Tensor) -> Tensor:
        """States of a source, (M, E), at the width of the decoder, (M, D)."""
        return states if self.bridge is None else self.bridge(states)

    def forward(
        self, packed: Packed, source: EncodedSource, layers: bool, weights: bool, cache: KVCache | None
    ) -> States:
        """States of packed targets; with `cache`, of the next token of each hypothesis."""
        stack = self.stack
        stack.check_length(packed.layout, 0 if cache is None else cache.longest)
        if cache is not None:
            cache.start_step(packed.layout, stack.path)
        embedded, table = stack.embedding(packed.tokens, packed.positions, None)  # (N, D)
        x = to_autocast_dtype(embedded)
        rotation = self._rotate(packed.positions)
        hidden: list[Tensor] = [x]
        maps: list[list[Tensor]] = []
        for layer in range(stack.settings.layers):
            x = stack.attention[layer % len(stack.attention)](
                x, packed.layout, causal=True, rotation=rotation, path=stack.path, cache=cache, layer=layer
            )
            x = self.cross_attention[layer](
                x, packed.layout, source.states, source.layout, path=stack.path,
                record_weights=maps if weights else None, decoding=None if cache is None else source, layer=layer,
            )  # fmt: skip
            x = stack.feedforward[layer % len(stack.feedforward)](x)
            hidden.append(x)
        if cache is not None:
            cache.finish_step()
        hidden[-1] = x if stack.norm is None else stack.norm(x)
        return States(
            last=hidden[-1], layers=hidden if layers else None, table=table, weights=maps if weights else None
        )

    def _rotate(self, positions: Tensor) -> Rotation | None:
        settings = self.stack.settings
        if settings.positions != "rotary":
            return None
        return compute_rotation(positions, settings.width // settings.heads, settings.rotary_base)

    def flops(self, source: np.ndarray, target: np.ndarray) -> int:
        """Of one pass over targets, given encoded sources; self-attention is counted in full, as everywhere."""
        source, target = np.asarray(source).astype(np.int64), np.asarray(target).astype(np.int64)
        sources, targets, width = int(source.sum()), int(target.sum()), self.stack.width
        between = 4 * (targets + sources) * width * width + 4 * int((source * target).sum()) * width
        bridge = 0 if self.bridge is None else 2 * sources * self.bridge.weight.numel()
        return self.stack.flops(target) + len(self.cross_attention) * between + bridge


class JoinedSeq2Seq(Seq2Seq):
    """A reader and a writer as one model; it owns neither of them."""

    def __init__(self, encoder: Model, decoder: CrossDecoder) -> None:
        super().__init__(encoder.settings)
        self.encoder, self.decoder = encoder, decoder
        self.width, self.context = encoder.width, decoder.stack.context

    def forward(
        self, packed: Packed, layers: bool = False, source: Packed | None = None, weights: bool = False
    ) -> States:
        if source is None:
            states: States = self.encoder(packed, layers=layers)
            return states
        return self.decode(packed, EncodedSource(self.encode(source).last, source.layout), layers, weights)

    def encode(self, packed: Packed) -> States:
        """States of packed sources, at the width of the decoder."""
        return States(last=self.decoder.encode(self.encoder(packed).last))

    def decode(
        self,
        packed: Packed,
        source: EncodedSource,
        layers: bool = False,
        weights: bool = False,
        cache: KVCache | None = None,
    ) -> States:
        """The decoder's states of packed targets; with `cache`, of the next token of each hypothesis."""
        states: States = self.decoder(packed, source, layers, weights, cache)
        return states

    def start_decoding(self, source: Packed, beams: int = 1, weights: bool = False) -> Decoding:
        return TransformerDecoding(self, EncodedSource(self.encode(source).last, source.layout, beams), weights)

    def flops(self, lengths: np.ndarray) -> int:
        return self.encoder.flops(lengths)

    def pair_flops(self, source: np.ndarray, target: np.ndarray) -> int:
        return self.encoder.flops(source) + self.decoder.flops(source, target)

    @property
    def target_table(self) -> Tensor:
        table: Tensor = self.decoder.stack.embedding.tokens.weight
        return table

    @property
    def target_width(self) -> int:
        return self.decoder.stack.width

    @property
    def base(self) -> Model:
        return self.encoder.base

    @property
    def layers(self) -> int:
        return self.encoder.layers

    def frame(self, special: Specials) -> Framing:
        return self.encoder.frame(special)

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        return self.encoder.attach_tokenizer(tokenizer)

    def parameter_depth(self, name: str) -> int | None:
        part, _, inside = name.partition(".")
        return self.encoder.parameter_depth(inside) if part == "encoder" else self.layers + 1


# --- the writer ---------------------------------------------------------------------------------------


def can_start_decoder(model: Model) -> bool:
    """Whether the layers of a model can be those of a decoder."""
    base = model.base
    return type(base) is Transformer and base.settings.window is None


def refuse_translator(model: Model) -> None:
    """Raise UserError where a model has a decoder of its own."""
    if isinstance(model.base, Seq2Seq):
        raise UserError(
            "This run translates already: prepare your pairs with its tokenizer, and go on with "
            "'etude pretrain RUN PAIRS train.epochs=3'."
        )


def build_decoder(
    encoder: Model, *, copied: bool, layers: int | None, width: int | None, heads: int | None, dropout: float | None
) -> CrossDecoder:
    """A decoder over the states of `encoder`: of its architecture where it is a Transformer.

    With `copied` it starts with the weights of `encoder`; its lowest layers, where fewer are asked for. New weights are
    drawn from torch's generator.
    """
    base = encoder.base
    if type(base) is Transformer and base.settings.window is None:
        if (width, heads) != (None, None):
            raise UserError(
                "The decoder has the width and heads of the Transformer that it starts with: leave them out."
            )
        if layers is not None and layers > base.settings.layers:
            raise UserError(f"task.layers={layers}: the run has {base.settings.layers} layers to start a decoder with.")
        changes = {"layers": layers or base.settings.layers, "direction": "causal", "pooler": False}
        stack = Transformer(base.settings.model_copy(update=changes))
        if copied:
            own = base.state_dict()
            stack.load_state_dict({name: own[name] for name in stack.state_dict()})
    elif copied:
        raise UserError(
            "The layers of this model cannot write a target: start the encoder with it, task.start=encoder."
        )
    else:
        width = width or encoder.width
        settings = TransformerSettings(
            layers=layers or 2, width=width, heads=heads or math.gcd(width, 4), vocab=encoder.vocab,
            context=encoder.context or NEW_CONTEXT, direction="causal", positions="sinusoidal",
            init_deviation=width**-0.5, dropout=0.1,
        )  # fmt: skip
        stack = Transformer(settings)
    decoder = CrossDecoder(stack, encoder.width)
    if dropout is not None:
        set_dropout(decoder, dropout)
    return decoder


def redraw(encoder: Model) -> None:
    """Give a Transformer new weights: where the decoder alone starts with those of a run."""
    base = encoder.base
    if type(base) is not Transformer:
        raise UserError(
            "The layers of this model cannot write a target: start the encoder with it, task.start=encoder."
        )
    base.reset()
