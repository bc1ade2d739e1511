"""New start, delimiter and extract tokens for a task, as GPT-1's fine-tuning adds them (section 3.3).

The tokenizer gets three special tokens, the model three rows, drawn as its table was; both are those of the fine-tuned
run. A tokenizer without an end token, such as OpenAI's own, can be read out in no other way.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from etude.chance import fold
from etude.errors import UserError
from etude.inference.opening import Pretrained
from etude.models.transfer_settings import Markers, TransferSettings
from etude.tasks.distilled_task import TaskDistillSettings
from etude.text.tokenizer.task_markers import add_task_markers
from etude.text.tokenizer.tokenizer import TOKENIZER_FILE, Tokenizer


def choose_markers(start: Pretrained, transfer: TransferSettings, distill: TaskDistillSettings | None) -> Markers:
    """As the settings say, else as the recipe does where the vectors of new tokens can learn.

    A student reads what its teacher reads.
    """
    if transfer.markers == "new" and not start.model.causal:
        raise UserError("transfer.markers=new is of a causal model, and this one reads both sides: leave it out.")
    if transfer.markers is not None:
        return transfer.markers
    if not start.model.causal or transfer.frozen:
        return "own"
    if start.tokenizer.special.end is None:
        return "new"
    if distill is not None:
        teacher = Path(distill.teacher)
        is_extended = (teacher / TOKENIZER_FILE).is_file() and Tokenizer.open(teacher).special.extract is not None
        return "new" if is_extended else "own"
    return start.recipe.finetune.markers if transfer.freeze is None else "own"


def add_markers(start: Pretrained, markers: Markers, seed: int) -> Pretrained:
    """The start of a transfer with the new tokens in its tokenizer, its model and its recipe; as it is with its own."""
    if markers == "own" or start.tokenizer.special.extract is not None:
        return start
    model, first = start.model, start.tokenizer.vocab
    tokenizer = Tokenizer(add_task_markers(start.tokenizer.content, first), start.folder)
    torch.manual_seed(fold(seed, "markers") >> 1)
    model.renew_tokens(first, tokenizer.vocab - first)  # a table may have had rows without a token there
    recipe = start.recipe.with_settings({"model.vocab": model.vocab})
    return replace(start, tokenizer=tokenizer, recipe=recipe)
