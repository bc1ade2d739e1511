"""What a system's paper says of fine-tuning it: the group `finetune` of a recipe.

    finetune: {markers: new, language_model: 0.5}     # GPT-1, sections 3.2 and 3.3

These are defaults of a transfer that starts from such a run (`transfer.markers`, `task.language_model`); whoever
fine-tunes may give others. Most systems have none, and their saved recipes lack the group.
"""

from __future__ import annotations

from pydantic import Field

from etude.models.transfer_settings import Markers
from etude.settings import Strict


class FinetuningDefaults(Strict):
    markers: Markers = Field(default="own", description="tokens around and between the texts of a task")
    language_model: float = Field(default=0.0, ge=0, description="weight of the auxiliary language-model loss")
