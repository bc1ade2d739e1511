"""A pre-trained model made ready for a task, as the settings of its transfer say."""

from __future__ import annotations

from etude.models.base import Model
from etude.models.freezing import check_layers, freeze, refresh
from etude.models.layer_features import LayerFeatures
from etude.models.transfer_settings import TransferSettings


def prepare(model: Model, settings: TransferSettings) -> Model:
    """Changes a model in place for its transfer, and wraps it where the task reads chosen layers.

    Layers that start anew are drawn from torch's generator.
    """
    if settings.fresh:
        refresh(model, settings.fresh)
    model.prepare_transfer(settings)
    if settings.frozen or settings.layers != "last":
        model = _read_layers(model, settings)
    if settings.freeze is not None:
        freeze(model, settings.freeze)
    if settings.gradual:
        check_layers(model, "gradual", 0)
    return model


def prepare_frozen(model: Model, settings: TransferSettings) -> LayerFeatures:
    """`prepare` for settings with `frozen`, of which nothing is trained: always a reader of chosen layers."""
    model.prepare_transfer(settings)
    return _read_layers(model, settings)


def _read_layers(model: Model, settings: TransferSettings) -> LayerFeatures:
    return LayerFeatures(
        model, settings.layers, settings.combine, settings.frozen, settings.cache_mb << 20, settings.mix_norm
    )
