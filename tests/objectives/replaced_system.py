"""A small ELECTRA, its rows and its batches: what the tests of replaced-token detection share."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from etude.chance import Chance
from etude.models import transformer
from etude.objectives import replaced
from etude.objectives.base import Term
from etude.objectives.rows import segments
from etude.text.corpus.corpus import Corpus
from tests.objectives.small_corpus import SPECIAL, tokenizer

VOCAB = 120
MASK = SPECIAL.mask
BERT = {"norm": "post", "embedding_norm": True, "segments": 2, "embedding_width": 16}
NARROW = {"generator_share": 0.5}


def model(context: int = 32, vocab: int = VOCAB, **changes: Any) -> transformer.Transformer:
    wanted = {"layers": 2, "width": 32, "heads": 2, "context": context, "vocab": vocab, **BERT}
    torch.manual_seed(0)
    return transformer.build(transformer.Settings(**{**wanted, **changes}))


def both(net: transformer.Transformer | None = None, **wanted: Any) -> tuple[transformer.Transformer, Any]:
    net = net or model()
    return net, replaced.build(replaced.Settings(**{**NARROW, **wanted}), net, SPECIAL)


def corpus_of(documents: int = 40, seed: int = 0) -> Corpus:
    draw = random.Random(seed)
    sizes = [[draw.randint(1, 16) for _ in range(draw.randint(2, 12))] for _ in range(documents)]
    made = [[[draw.randint(6, VOCAB - 1) for _ in range(size)] for size in document] for document in sizes]
    return Corpus.from_documents(made, tokenizer(VOCAB))


CORPUS = corpus_of()
VARIANTS: dict[str, dict[str, Any]] = {
    "electra": {},
    "electra 15 %": {"loss_on": "chosen"},
    "replace mlm": {"variant": "replace_mlm"},
    "all-tokens mlm": {"variant": "all_tokens_mlm"},
}


@cache
def rows_under(rules: segments.Rules) -> segments.SegmentRows:
    return segments.SegmentRows(CORPUS, 1, rules)


def batch_of(made: Any, rows: list[int], step: int = 0) -> Any:
    given = rows_under(made.row_rules)
    return made.batch([given[index] for index in rows], Chance(3, step))


def truth_of(made: Any, rows: list[int]) -> Tensor:
    given = rows_under(made.row_rules)
    return torch.from_numpy(np.concatenate([given[index].tokens for index in rows])).long()


def text_of(net: Any, made: Any, batch: Any) -> Any:
    with torch.no_grad():
        return made._draw_text(*made._predict(net, batch), batch)


def total(terms: dict[str, Term]) -> Tensor:
    return sum((term.weight * term.sum / term.count for term in terms.values()), torch.zeros(()))
