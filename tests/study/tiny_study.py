"""A study so small that it runs in seconds."""

from __future__ import annotations

from etude.recipes.document import parse
from etude.study.settings import Study

# a budget that whole steps of both contenders come within 1 % of
TINY = """
name: tiny
title: {en: A tiny study, ko: 아주 작은 연구}
question: Does it run?
text: {world: 0.05, valid: 0.1}
budget: {flops: 4.6e8}
epochs: 50
contenders:
  bert: {recipe: bert-toy, set: {model.layers: 1, model.width: 16, model.heads: 2, train.batch_tokens: 256}}
  gpt:
    recipe: gpt1-toy
    label: {en: GPT, ko: 지피티}
    set:
      {model.layers: 1, model.width: 16, model.heads: 2, model.context: 32, objective.row_tokens: 128,
       train.batch_tokens: 256}
tasks:
  topic: {kind: classify, world: topic, labels: [16], columns: {text: text}, dev_size: 16, test_size: 40}
transfer: {train.epochs: 1, train.batch_examples: 8}
control: {epochs: 2}
seeds: {pretrain: 1, transfer: 2}

curve: 2
claims:
  - {claim: "BERT beats GPT <here>", better: bert, than: gpt}
  - {claim: Pre-training pays, better: gpt, than: no pre-training, on: topic@16}
"""


def tiny(**changes: object) -> Study:
    return Study.from_document(parse(TINY, "tiny.yaml"), changes=changes)
