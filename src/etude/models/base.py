"""The contract of a model: tokens in, hidden states out, and an answer to everything that others ask of one.

A model knows nothing of losses. Whatever an objective, a task, a transfer or a generation needs to know of it (does
it see the future, how is a text framed for it, how deep does a parameter lie) is a method or a property here, so that
nobody outside asks for its class, and a new family is one file: a module of this package with `Settings`, a class
that derives from `Model`, and `build(settings)`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from etude.errors import UserError
from etude.graph.entity_links import Alignment, EntityLinks
from etude.models.framing import Framing
from etude.models.transfer_settings import TransferSettings
from etude.nn.block import pool_first
from etude.nn.char_embedding import CharEmbedding
from etude.nn.layer_mix import LayerMix
from etude.nn.packed import Layout, Packed
from etude.nn.recompute import Recomputable, RecomputePolicy
from etude.nn.states import States
from etude.settings import Strict
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

MAX_LAYERS = 4096  # four times the deepest published model: a larger number in a file is no model
DROPOUT_RATES = ("dropout", "attention_dropout", "inner_dropout")  # what the layers of nn/ call theirs


class ModelSettings(Strict):
    """The base of every model's `Settings`.

    Each declares `vocab: int | None` itself, at the place where its recipes write it: the order of fields is the order
    in a saved recipe. None stands for the size of the corpus's tokenizer.
    """

    if TYPE_CHECKING:
        vocab: int | None

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        super().__pydantic_init_subclass__(**options)
        if "vocab" not in cls.model_fields:
            raise TypeError(f"{cls.__module__}.{cls.__name__} has no field `vocab`, which settings of a model need")


class Model(nn.Module, ABC):
    settings: ModelSettings
    vocab: int
    width: int  # of `States.last`
    context: int | None  # tokens of the longest sequence; None: any length
    pooler: nn.Linear | None  # BERT's layer over the first state, where the model has one
    links: EntityLinks | None  # what finds the entities of a text, where it reads them and something was attached
    __call__: Callable[..., States]

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        if settings.vocab is None:
            raise UserError("the model has no vocabulary size: set model.vocab, or give a corpus to take it from")
        self.settings, self.vocab, self.pooler, self.links = settings, settings.vocab, None, None

    @property
    def kind(self) -> str:
        """What a recipe calls it: the name of the file of its settings, or of a whole module of another package."""
        return type(self.settings).__module__.removeprefix("etude.models.")

    @property
    def target_vocab(self) -> int:
        """The tokens of its output layer: those it reads, unless targets of pairs have a tokenizer of their own."""
        return self.vocab

    @property
    def table_width(self) -> int:
        """The width of its table of tokens, and of what is multiplied with it to score the vocabulary."""
        return self.width

    # --- tokens in, states out ----------------------------------------------------------------------

    @abstractmethod
    def forward(self, packed: Packed, layers: bool = False) -> States:
        """Hidden states of all tokens; with `layers`, those of `state_count` layers too, the embedding's first."""

    @abstractmethod
    def flops(self, lengths: np.ndarray) -> int:
        """Of one forward pass over sequences of these lengths: matrix products times 2, attention over real lengths."""

    def layer_states(self, packed: Packed) -> list[Tensor]:
        """The hidden states of all layers, (N, D) each, the embedding's first."""
        states = self(packed, layers=True).layers
        assert states is not None
        return states

    def attention_weights(self, packed: Packed) -> list[list[Tensor]]:
        """For each layer, for each sequence, the softmax weights (H, L, L); only where `has_attention_weights`."""
        raise UserError("This model has no attention weights to show: take a run of a Transformer.")

    def pool(self, last: Tensor, layout: Layout) -> Tensor:
        """BERT's pooler on the states of all tokens, (N, D) -> (S, D)."""
        return self.pool_of(pool_first(last, layout))

    def pool_of(self, first: Tensor) -> Tensor:
        """BERT's pooler: tanh of a projection of each sequence's first state, (S, D)."""
        if self.pooler is None:
            raise UserError("this model has no pooler: set model.pooler=true")
        return torch.tanh(self.pooler(first))

    def check_length(self, layout: Layout, cached: np.ndarray | int = 0) -> None:
        """Raises UserError where a sequence, behind `cached` tokens of it, is longer than the context."""
        if self.context is None or torch.compiler.is_compiling():
            return
        if isinstance(cached, int) and layout.longest + cached <= self.context:
            return  # by the bound: a recorded step must not read lengths on the host
        if len(layout.host) < 2:
            return
        longest = (layout.lengths + cached).max()
        if longest > self.context:
            raise UserError(
                f"a sequence of {longest} tokens is longer than the model's context of {self.context}: "
                "cut the text, or build the model with a larger model.context"
            )

    # --- what kind of model it is -------------------------------------------------------------------

    # goes token by token: too many kernels to compile; on a GPU batches are rectangles, and whole steps are recorded
    is_stepwise = False

    @property
    @abstractmethod
    def layers(self) -> int:
        """Layers above the embedding; 0 for word vectors, which see no other token."""

    @property
    def max_length(self) -> int:
        """`context` as a number: larger than any sequence where the model reads any length."""
        return sys.maxsize if self.context is None else self.context

    @property
    def causal(self) -> bool:
        """Whether it is a left-to-right language model: no state sees a later token.

        Such a model can go on from a KV cache (`forward` takes `cache`), so that text can be generated.
        """
        return False

    @property
    def state_count(self) -> int:
        """How many states a token has with `layers`, the embedding's among them."""
        return 1 + self.layers

    @property
    def state_width(self) -> int:
        """The width of those states; `width` unless `last` is narrower than they are."""
        return self.width

    @property
    def shares_layers(self) -> bool:
        """Whether layers have weights in common, so that none can be drawn anew or frozen alone."""
        return False

    @property
    def has_learned_positions(self) -> bool:
        """Whether each position has a vector of its own, which learns where a sequence reaches it."""
        return False

    @property
    def has_attention_weights(self) -> bool:
        """Whether `attention_weights` can be asked for."""
        return False

    @property
    def base(self) -> Model:
        """The pre-trained model: itself, or the model that a wrapper such as LayerFeatures reads."""
        return self

    @property
    def mix(self) -> LayerMix | None:
        """The learned mix of its layers that a task trains as part of its head, where there is one."""
        return None

    def layer_modules(self) -> list[list[Recomputable]]:
        """The modules of each layer in the order of their use; a shared one stands in every layer that uses it.

        Their weights may be gathered for one layer at a time and their activations computed again, so each is used by
        calling it alone. [] where a model does not divide into such layers.
        """
        return []

    def activation_bytes(
        self,
        tokens: int,
        element_size: int,
        device: str,
        recompute: RecomputePolicy = "none",
        *,
        only: int | None = None,
        length: int | None = None,
    ) -> int | None:
        """What a backward pass keeps of so many tokens in a precision of 2 or 4 bytes; None: not known.

        `only`: at so many of them the last layer is read (`flops`). `length`: of the sequences; the context if None.
        """
        return None

    def finish_training(self) -> None:
        """Called once, behind the last step and before the final weights are written."""

    # --- entities -----------------------------------------------------------------------------------

    @property
    def reads_entities(self) -> bool:
        """Whether it reads the entities of a text beside its tokens (`Packed.entities`)."""
        return False

    @property
    def entity_alignment(self) -> Alignment:
        """Which pieces of a mention carry its entity, where it reads entities."""
        return "first"

    def attach_links(self, links: EntityLinks) -> None:
        """Called before use, with what knows the entities of its table by name and finds them in a text."""
        raise UserError("This model reads no entities of a text: take one that does, such as a run of ernie.")

    def set_entity_vectors(self, vectors: np.ndarray) -> None:
        """Fills its table of entity vectors, (entities, width), where it has one."""
        raise UserError("This model has no table of entity vectors: leave them out, or take a recipe such as ernie.")

    # --- texts --------------------------------------------------------------------------------------

    @abstractmethod
    def frame(self, special: Specials) -> Framing:
        """How one text or two become a sequence, by the markers of a tokenizer, of at most `context` tokens."""

    def renew_tokens(self, first: int, count: int) -> None:
        """Draws `count` rows of the token table from `first` on, as the table was drawn; it grows where it must."""
        raise UserError("The vocabulary of this kind of model cannot grow: set transfer.markers=own.")

    def attach_tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Called before use; returns the tokenizer to use, an open-vocabulary one where the model reads letters."""
        return tokenizer

    # --- transfer -----------------------------------------------------------------------------------

    @abstractmethod
    def parameter_depth(self, name: str) -> int | None:
        """How deep a parameter of `named_parameters` lies: 0 in the embedding, i + 1 in layer i, then `layers` + 1.

        For layer-wise learning rates, freezing and gradual unfreezing. None: the model has no layers.
        """

    def transfer_defaults(self, frozen: bool) -> dict[str, object]:
        """Settings of `train` in a transfer where nobody gives others."""
        shared: dict[str, object] = {
            "batch_examples": 32,
            "compile": False,  # examples have lengths of their own: every step would compile anew
            "keep": 1,  # beside the best
            "eval_every": 0,
            "save_every": 0,
            "workers": 0,
        }
        if frozen:
            return shared | {"epochs": 20, "lr": 1e-3, "warmup": 0.0, "weight_decay": 0.0}
        return shared | self.finetuning_defaults()

    def finetuning_defaults(self) -> dict[str, object]:
        """Of these, those of the family where the whole model is trained; here for word vectors and LSTMs."""
        return {"epochs": 10, "lr": 1e-3, "warmup": 0.05}

    @property
    def letter_parts(self) -> list[CharEmbedding]:
        """The parts that read words by their letters, where there are any."""
        return []

    def prepare_transfer(self, settings: TransferSettings) -> None:
        """Changes the model in place for a transfer: dropout, masks, which parts of the embedding learn."""
        if settings.mask is not None:
            raise UserError("transfer.mask is that of a two-tower model's combiner, and this model has none: drop it.")
        if settings.letters is False:
            self.freeze_letters()
        if settings.dropout is not None:
            set_dropout(self, settings.dropout)

    def freeze_letters(self) -> None:
        """Excludes character layers from training, where there are any."""
        for part in self.letter_parts:
            part.freeze_letters()


def set_dropout(model: nn.Module, rate: float) -> None:
    """Sets one dropout rate wherever the model drops anything."""
    places = [
        (part, name)
        for part in model.modules()
        for name in DROPOUT_RATES
        if isinstance(getattr(part, name, None), float)
    ]
    if not places:
        raise UserError("transfer.dropout: the dropout of this kind of model cannot be changed here. Leave it out.")
    for part, name in places:
        setattr(part, name, rate)


Family = TypeVar("Family", bound=Model)


def require(model: nn.Module, family: type[Family], message: str) -> Family:
    """The model, typed as the one family that an objective is made for; raises UserError where it is another."""
    if not isinstance(model, family):
        raise UserError(message)
    return model
