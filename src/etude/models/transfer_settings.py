"""What a transfer does to a model (the group `transfer` of its settings): which layers are read, and which learn."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from etude.nn.combiner import MaskKind
from etude.nn.layer_mix import MixNorm
from etude.settings import Strict

Layers = Literal["last", "last4", "all"] | list[int]
Combine = Literal["concat", "mix"]
Markers = Literal["own", "new"]


class TransferSettings(Strict):
    frozen: bool = Field(default=False, description="features: the model is read, not trained")
    probe: bool = Field(
        default=False,
        description="a linear probe: frozen, and the head solved for, its layers and penalty by cross-validation",
    )
    layers: Layers = Field(default="last", description="which layers the task reads: last, last4, all or [numbers]")
    combine: Combine = Field(default="concat", description="of several layers: side by side, or a learned mix")
    mix_norm: MixNorm = Field(
        default="none", description="each layer to deviation 1 before the mix: by token, or by batch as released"
    )
    freeze: int | None = Field(default=None, ge=0, description="layers from below that stay, the embedding with them")
    gradual: float = Field(default=0.0, ge=0, description="epochs until one layer more thaws, from above; 0: all learn")
    fresh: int = Field(default=0, ge=0, description="layers from above that start from new values, for small data")
    cache_mb: int = Field(default=2048, ge=0, description="memory for frozen states")
    mask: MaskKind | None = Field(
        default=None, description="of a two-tower model's combiner; if None, none in fine-tuning and full when frozen"
    )
    dropout: float | None = Field(
        default=None, ge=0, lt=1, description="inside the model; as in pre-training if None, 0 in a two-tower model"
    )
    link: str | None = Field(
        default=None, description="a graph whose entities are found in the texts, for a model that reads entities"
    )
    linker: str = Field(default="trie", description="of transfer.link, with its settings: trie,plurals")
    markers: Markers | None = Field(
        default=None,
        description="of a causal model: start, delimiter and extract tokens with new rows (GPT-1), or those that its "
        "tokenizer has; as its recipe says if None",
    )
    letters: bool | None = Field(
        default=None, description="whether character layers learn; if None, not in a two-tower model"
    )

    @model_validator(mode="before")
    @classmethod
    def _freeze_probe(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("probe") is True:
            return {"frozen": True} | values
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.probe and not self.frozen:
            raise ValueError("transfer.probe solves for the head of a frozen model: drop transfer.frozen=false")
        if self.frozen and self.markers == "new":
            raise ValueError(
                "transfer.markers=new adds tokens whose vectors learn, and transfer.frozen lets none learn: drop one"
            )
        for name in ("gradual", "fresh", "freeze"):
            if self.frozen and getattr(self, name):
                raise ValueError(
                    f"transfer.{name} says which layers learn, and transfer.frozen that none does: drop one"
                )
        return self
