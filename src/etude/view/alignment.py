"""Alignments of a translation model: what each token of a target looks at in its source.

A row is the token that is predicted, so a map shows which source tokens a target token was written from (Bahdanau et
al. 2015, figure 3). A recurrent model has one map, a Transformer one for each head of each layer of its decoder.
"""

from __future__ import annotations

import numpy as np
import torch

from etude.errors import UserError
from etude.inference.model import LoadedModel
from etude.inference.translation import is_translator, require_translator
from etude.nn.packed import pack
from etude.view.attention import Attention, compute_attention


@torch.no_grad()
def compute_alignment(model: LoadedModel, source: str, target: str) -> Attention:
    """Compute the attention of a target, with its end, to a source, with its end."""
    translator, objective = require_translator(model)
    sides, words = [], []
    for text, tokenizer in ((source, model.tokenizer), (target, model.tokenizer.target)):
        text = tokenizer.normalise(text)
        [encoding] = tokenizer.encode_batch([text])
        if not len(encoding):
            raise UserError("The tokenizer leaves nothing of this text: write another.")
        sides.append(encoding.ids.astype(np.int64))
        spelled = [text[begin:end].strip() for begin, end in encoding.offsets.tolist()]
        words.append([word or tokenizer.token(int(id)) for word, id in zip(spelled, encoding.ids, strict=True)])
    longest = max(map(len, sides)) + 1
    if longest > translator.max_length:
        raise UserError(f"A side has {longest} tokens, and the model sees at most {translator.max_length}: cut it.")
    inputs = np.concatenate([[objective.start_token], sides[1]])
    packed = pack([inputs]).to(model.device), pack([objective.frame(sides[0], None)]).to(model.device)
    layers = translator.alignments(*packed)
    if not layers:
        raise UserError("This model has one context vector and no attention to its source: there is nothing to show.")
    end = model.tokenizer.token(objective.end)
    marked = [np.arange(len(side) + 1) == len(side) for side in sides]
    weights = torch.stack([layer[0] for layer in layers]).float().cpu().numpy()
    return Attention([*words[1], end], marked[1], weights, False, keys=[*words[0], end], key_markers=marked[0])


def compute_maps(model: LoadedModel, text: str, second: str | None = None) -> Attention:
    """The alignment of a source and its target where the model translates; else the attention of a text or pair."""
    if second is not None and is_translator(model):
        return compute_alignment(model, text, second)
    return compute_attention(model, text, second)
