"""A pre-trained model made ready for a task, as the settings of its transfer say."""

from __future__ import annotations

from etude.errors import UserError
from etude.models.base import Model
from etude.models.freezing import check_layers, check_shared_layers, freeze, refresh
from etude.models.layer_features import LayerFeatures
from etude.models.transfer_settings import TransferSettings


def check_settings(model: Model, settings: TransferSettings) -> None:
    """Raises UserError for settings that would have no effect; called where a transfer starts.

    Not where a run is opened: one of an older version may hold such a setting, and it is what it is.
    """
    check_frozen(settings)
    if settings.freeze is not None:
        check_layers(model, "freeze", settings.freeze)
        check_shared_layers(model, settings.freeze)
    if settings.gradual:
        check_layers(model, "gradual", 0)
    if settings.link is None and settings.linker != TransferSettings().linker:
        raise UserError(
            f"transfer.linker={settings.linker} is that of transfer.link, which names a graph: set that, too."
        )
    if settings.letters is not None and not model.letter_parts:
        raise UserError(
            "transfer.letters says whether character layers learn, and this model reads no letters: drop it."
        )
    if settings.combine == "mix" and settings.layers == "last" and not settings.frozen:
        raise UserError(
            "transfer.combine=mix mixes several layers, and transfer.layers=last reads one: set transfer.layers=all."
        )
    if settings.mix_norm != "none" and settings.combine != "mix":
        raise UserError(
            f"transfer.mix_norm={settings.mix_norm} is of a mix of layers: set transfer.combine=mix, or drop it."
        )


def check_frozen(settings: TransferSettings) -> None:
    """Raises UserError for settings that a frozen model knows nothing of; needs no model."""
    if not settings.frozen:
        return
    if settings.dropout:
        raise UserError(
            "transfer.dropout is of a model that learns, and transfer.frozen reads its states as they are: drop one "
            "(task.dropout is that of the head)."
        )
    if settings.letters:
        raise UserError(
            "transfer.letters says whether character layers learn, and transfer.frozen that nothing does: drop one."
        )


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
