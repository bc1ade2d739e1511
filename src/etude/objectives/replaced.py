"""Replaced-token detection (ELECTRA: Clark, Luong, Le, Manning 2020, section 2).

A small generator fills masked places, and the model, the discriminator, says of every token whether it is the
original. One step trains both:

    x masked   chosen tokens become [MASK]; the generator predicts them              loss "generator", weight 1
    x corrupt  chosen tokens become draws from the generator's softmax; no gradient passes through them
    labels     replaced where the draw is not the true token: a drawn original counts as original
    verdict    the discriminator, at every token, markers too                        loss "discriminator", weight 50

The generator is a narrower Transformer that belongs to the objective and is not needed afterwards. Its token,
position and segment embeddings and their norm are the model's, used and never copied (section 3.2), so they learn from
both losses; it has its own projection from them, and its own head over the same token table.

The ablations of sections 3.2 and 3.5 are settings: `tie`, `generator_share`; `loss_on`, `variant` (judging.py).
`mask_share` 1 is the paper's text; the released code leaves 15 % of the chosen tokens as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from etude.chance import Chance
from etude.errors import UserError
from etude.models import transformer
from etude.models.base import MAX_LAYERS, Model, require
from etude.nn.activations import Activation
from etude.nn.losses import linear_cross_entropy_and_draws, linear_losses_and_argmax
from etude.nn.packed import Packed
from etude.nn.precision import upcast
from etude.nn.states import States
from etude.objectives.base import Places, PretrainingObjective, Stat, Term
from etude.objectives.batch_view import BatchView, view_slots
from etude.objectives.parts.discriminator import CorruptedText, Detector, Restorer
from etude.objectives.parts.heads import MaskedHead
from etude.objectives.parts.token_sampling import put, sample
from etude.objectives.rows import segments
from etude.objectives.rows.masked_rows import Corruption, Masking, SlotBatch
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

# what the generator takes from the model's embedding
TIED = {"embeddings": ("tokens", "positions", "segments", "norm"), "tokens": ("tokens",), "none": ()}
HEAD_WIDTH = 64  # of the generator's attention: it has as many heads as fit, and at least one


class Settings(Masking):
    mask_share: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="share of the chosen tokens that become [MASK]; the paper: all, its code: 0.85",
    )
    random_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the chosen tokens that become a random token; the others stay as they are",
    )
    short_rate: float = Field(
        default=0.05, ge=0, le=1, description="share of passes over a document whose sequences are made shorter"
    )
    pair_rate: float = Field(default=0.9, ge=0, le=1, description="share of sequences with two segments")
    truncation: Literal["random", "end"] = "end"

    generator_share: float = Field(
        default=0.25, gt=0, description="width of the generator as a share of the model's; 1/4 to 1/2 is best"
    )
    generator_layers: int | None = Field(
        default=None, ge=1, le=MAX_LAYERS, description="as many as the model's unless given"
    )
    generator_heads: int | None = Field(default=None, ge=1, description="one for each 64 of its width unless given")
    generator_feedforward: int | None = Field(default=None, ge=1, description="inner width; 4 * its width unless given")
    tie: Literal["embeddings", "tokens", "none"] = Field(
        default="embeddings", description="what the two have in common: all embeddings and their norm, or less"
    )
    temperature: float = Field(default=1.0, gt=0, description="temperature of the generator's draws")
    activation: Activation | None = Field(
        default=None, description="activation of the token heads; the model's unless given"
    )

    generator_weight: float = Field(default=1.0, ge=0)
    discriminator_weight: float = Field(default=50.0, ge=0, description="its loss is that of one bit, and small")
    variant: Literal["electra", "replace_mlm", "all_tokens_mlm"] = Field(
        default="electra", description="what is asked about replaced tokens: section 3.5"
    )
    loss_on: Literal["all", "chosen"] = Field(default="all", description="chosen: the ablation ELECTRA 15 %")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.loss_on == "chosen" and self.variant != "electra":
            raise ValueError(
                f"loss_on=chosen is a form of variant=electra, and variant={self.variant} says itself where it looks: "
                "leave out one of them"
            )
        return self


@dataclass(kw_only=True)
class ReplacedBatch(SlotBatch):
    keys: Tensor  # (M,) int64, of the draws of each slot

    slotted: ClassVar[tuple[str, ...]] = (*SlotBatch.slotted, "keys")


BOTH_SIDES = (
    "objective.kind=replaced judges each token from both of its sides by a Transformer: "
    "set model.kind=transformer and model.direction=both."
)


class Replaced(PretrainingObjective[transformer.Transformer, segments.SegmentRow, ReplacedBatch]):
    views_by_weights = True  # the generator draws
    token_loss = "generator"

    def __init__(self, settings: Settings, model: transformer.Transformer, special: Specials) -> None:
        super().__init__()
        if model.causal:
            raise UserError(BOTH_SIDES)
        self.settings = settings
        self.corruption = Corruption(settings, model, special, kind="replaced")
        self.row_rules, self.slots = self.corruption.row_rules, self.corruption.slots
        self.length, self.row_tokens = self.row_rules.length, self.row_rules.row_tokens
        activation = settings.activation or model.settings.activation
        self.generator = transformer.Transformer(generator_settings(settings, model.settings), tied=TIED[settings.tie])
        table_owner = self.generator if settings.tie == "none" else model
        table = table_owner.embedding.tokens.weight
        self.generator_head = MaskedHead(self.generator.settings, table, activation)
        if settings.variant == "electra":
            everywhere = settings.loss_on == "all"
            self.discriminator: Detector | Restorer = Detector(model, settings.discriminator_weight, everywhere)
        else:
            self.discriminator = Restorer(model, activation, settings.variant == "all_tokens_mlm")

    # --- from text to batches -----------------------------------------------------------------------

    def rows(self, corpus: Corpus, seed: int) -> segments.SegmentRows:
        return self.corruption.rows(corpus, seed)

    def batch(self, rows: Sequence[segments.SegmentRow], chance: Chance) -> ReplacedBatch:
        fields, places, used = self.corruption.fields(rows, chance)
        keys = places.bits("sample", fields["index"].numpy()).view(np.int64)  # the same bits; torch has no unsigned
        counts = {
            "generator": used,
            self.discriminator.name: self.discriminator.count(fields["layout"].total, used),
        }
        return ReplacedBatch(**fields, counts=counts, keys=torch.from_numpy(keys))

    @torch.no_grad()
    def view_batch(self, model: transformer.Transformer, batch: ReplacedBatch) -> BatchView:
        """The text that the discriminator reads; without weights, that of the generator."""
        asks = ("of every token, whether it was replaced", "모든 토큰이 바뀐 것인지 아닌지")
        if self.settings.variant != "electra":
            asks = ("the true token behind every replaced one", "바뀐 토큰마다 원래 토큰")
        read, marks = batch, ("masked", "kept")
        if batch.tokens.device == model.embedding.tokens.weight.device:
            read = replace(batch, tokens=self._draw_text(*self._predict(model, batch), batch).tokens)
            marks = ("replaced", "same")

        def mark(token: int, target: int) -> str:
            return marks[token == target]

        return BatchView(asks, view_slots(read, batch.index, batch.targets, mark, padding=batch.padding))

    def trunks(self) -> list[Model]:
        return [self.generator]

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        return self.corruption.frame(ids, context)

    # --- the joint step -----------------------------------------------------------------------------

    def loss(self, model: transformer.Transformer, batch: ReplacedBatch) -> dict[str, Term]:
        hidden, table = self._predict(model, batch)
        generator_loss, samples = linear_cross_entropy_and_draws(
            hidden, table, self.generator_head.bias, batch.targets, batch.keys, self.settings.temperature
        )
        text = corrupt(batch, samples)
        states = model(replace(batch, tokens=text.tokens))
        return {
            "generator": Term(generator_loss, batch.counts["generator"], self.settings.generator_weight),
            self.discriminator.name: self.discriminator.term(model, states, text),
        }

    def metrics(self, model: transformer.Transformer, batch: ReplacedBatch) -> dict[str, Stat]:
        hidden, table = self._predict(model, batch)
        losses, likeliest = linear_losses_and_argmax(hidden, table, self.generator_head.bias, batch.targets)
        text, count = self._draw_text(hidden, table, batch), batch.counts["generator"]
        states = model(replace(batch, tokens=text.tokens))
        return {
            "generator": Stat(losses.sum(), count, self.settings.generator_weight),
            "generator_accuracy": Stat((likeliest == batch.targets).sum(), count),
            **self.discriminator.stats(model, states, text),
        }

    def hidden_for_logits(self, model: transformer.Transformer, packed: Packed, only: Tensor | None = None) -> States:
        """The generator's hidden states, of all tokens or of some."""
        return self.generator(packed, tied_to=model.embedding, only=only)

    def _predict(self, model: transformer.Transformer, batch: ReplacedBatch) -> tuple[Tensor, Tensor]:
        """(M, E) and (V, E): their product, and a bias, are the generator's logits of the slots."""
        states = self.hidden_for_logits(model, batch, only=batch.index)
        assert states.table is not None
        return self.generator_head(states.last), states.table

    def _draw_text(self, hidden: Tensor, table: Tensor, batch: ReplacedBatch) -> CorruptedText:
        """The text of a step that has no loss."""
        samples = sample(hidden, table, self.generator_head.bias, batch.keys, self.settings.temperature)
        return corrupt(batch, samples)

    # --- in use, and its cost -----------------------------------------------------------------------

    def logits(self, model: transformer.Transformer, states: States) -> Tensor:
        """The generator's scores of the vocabulary, from those of `hidden_for_logits`; the discriminator has none."""
        assert states.table is not None
        return upcast(F.linear(self.generator_head(states.last), states.table)) + self.generator_head.bias

    def count_places(self, batch: ReplacedBatch) -> Places:
        slots = len(batch.index)
        return Places(read=batch.size, predicted=slots, drawn=slots)  # the discriminator's, and the generator's

    def flops(self, model: transformer.Transformer, batch: ReplacedBatch) -> int:
        lengths, slots = batch.layout.lengths, batch.counts["generator"]
        generator = self.generator.flops(lengths, only=slots) + self.generator_head.flops(slots)
        return 3 * (generator + model.flops(lengths) + self.discriminator.flops(model, batch.size, slots))


def corrupt(batch: ReplacedBatch, samples: Tensor) -> CorruptedText:
    """The text with the generator's draws (M,) at the chosen places."""
    targets = batch.targets
    return CorruptedText(
        tokens=put(batch.tokens, batch.index, targets, samples),
        truth=put(batch.tokens, batch.index, targets, targets.clamp(min=0)),
        index=batch.index,
        targets=targets,
        slots=batch.counts["generator"],
    )


# --- the generator's size ---------------------------------------------------------------------------


def generator_settings(settings: Settings, model: transformer.Settings) -> transformer.Settings:
    """The generator of an objective: the model's axes, narrower. Untied, its table is as wide as itself."""
    width = max(1, round(settings.generator_share * model.width))
    heads = settings.generator_heads or max(1, width // HEAD_WIDTH)
    sizes = {
        "width": width,
        "layers": settings.generator_layers or model.layers,
        "heads": heads,
        "feedforward": settings.generator_feedforward or 4 * width,
        "embedding_width": width if settings.tie == "none" else model.embedding_width or model.width,
        "pooler": False,
    }
    try:
        return transformer.Settings(**{**model.model_dump(), **sizes})
    except ValidationError as error:
        raise UserError(
            f"objective.generator_share={settings.generator_share:g} of model.width={model.width} makes a generator "
            f"that cannot be built ({error.errors()[0]['msg'].removeprefix('Value error, ')}). Choose "
            "objective.generator_share so that its width is a multiple of 64, or set objective.generator_heads."
        ) from None


def objective_for(model: transformer.Settings, generator: transformer.Settings | None) -> dict[str, Any]:
    """The settings of this objective that ask for a given generator; used where both parts are read from elsewhere."""
    settings: dict[str, Any] = {} if model.segments != 1 else {"pair_rate": 0.0}
    if generator is None:
        return settings
    width, inner = generator.width, generator.feedforward or 4 * generator.width
    settings |= {"generator_share": width / model.width, "activation": "gelu"}  # the one that published heads have
    settings |= {"generator_layers": generator.layers} if generator.layers != model.layers else {}
    settings |= {"generator_heads": generator.heads} if generator.heads != max(1, width // HEAD_WIDTH) else {}
    settings |= {"generator_feedforward": inner} if inner != 4 * width else {}
    expected = generator_settings(Settings(**settings), model)
    actual = generator.model_copy(update={"feedforward": inner, "embedding_width": generator.embedding_width or width})
    free = {"pooler", *(name for name in type(model).model_fields if "dropout" in name or "init" in name)}
    differing = [
        name
        for name in type(model).model_fields
        if name not in free and getattr(expected, name) != getattr(actual, name)
    ]
    if differing:
        raise UserError(
            "The generator and the discriminator do not share one embedding or one kind of layer: they differ in "
            f"{', '.join(differing)}. Import each of them alone."
        )
    return settings


def build(settings: Settings, model: Model, special: Specials) -> Replaced:
    return Replaced(settings, require(model, transformer.Transformer, BOTH_SIDES), special)
