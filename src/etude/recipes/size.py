"""What a recipe costs, without a corpus and without memory: its parameters, and FLOPs a token.

Model and objective are built on the meta device; the vocabulary is the one a recipe's tokenizer asks for, and a graph
has as many entities and relations as FB15k-237. FLOPs are what the objective itself counts (forward and
backward, by the stated convention) on rows of a made-up text: long documents of sentences of 20 tokens,
whose words are as uneven as those of a language (Zipf 1935), so that sequences are full and subsampling bites.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from etude.chance import Chance, uniform
from etude.graph.graph import Graph
from etude.graph.graph_split import GraphSplit
from etude.models.base import Model
from etude.objectives.base import PretrainingObjective
from etude.recipes.model_memory import shapes_only
from etude.recipes.schema import Recipe
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import TRAINED_SPECIALS, Specials
from etude.text.tokenizer.tokenizer import Tokenizer

SENTENCE = 20  # tokens: about that of written English
DOCUMENTS = 8  # of one row each and a bit: a sequence is rarely cut short by the end of a document
GRAPH_ENTITIES, GRAPH_RELATIONS = 14_541, 237  # of FB15k-237
MENTION_EVERY = 8  # tokens: with 5 million entities, Wikipedia's text has one link in 30, and is linked more densely
MADE_UP = "made up"  # in the place of a graph's fingerprint
WORDS = 4_000  # of the made-up text, unless the recipe's vocabulary is smaller


@dataclass(frozen=True)
class Size:
    parameters: int  # of the model, as papers count them
    head_parameters: int  # of the objective, thrown away after pre-training
    flops_per_token: float


def measure_recipe(recipe: Recipe) -> Size:
    """The size of a recipe; its vocabulary is the one its tokenizer asks for."""
    if recipe.reads_graph:
        return _measure_graph_recipe(recipe)
    if recipe.reads_entities:
        recipe = recipe.with_settings({"model.entities": WORDS, "model.graph": MADE_UP})
    recipe = recipe.resolve()
    tokens = max(2 * (getattr(recipe.objective, "row_tokens", None) or 0), 2_000)
    words = min(WORDS, (recipe.model.vocab or WORDS) - len(TRAINED_SPECIALS))
    corpus = synthetic_corpus(tokens, words, recipe.reads_entities)
    with shapes_only():
        model = recipe.build_model()
        objective = recipe.build_objective(model, corpus.tokenizer.special)
    return _measure(model, objective, corpus)


def _measure_graph_recipe(recipe: Recipe) -> Size:
    """The size of a recipe on a graph as large as FB15k-237."""
    recipe = recipe.resolve(vocab=GRAPH_ENTITIES, relations=GRAPH_RELATIONS)
    with shapes_only():
        model = recipe.build_model()
        objective = recipe.build_objective(model, Specials())
    return _measure(model, objective, synthetic_graph())


def _measure(model: Model, objective: PretrainingObjective, source: Corpus | GraphSplit) -> Size:
    rows = objective.rows(source, seed=0)
    batch = objective.batch([rows[index] for index in range(min(len(rows), DOCUMENTS))], Chance(seed=0, step=0))
    return Size(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        head_parameters=sum(parameter.numel() for parameter in objective.parameters()),
        flops_per_token=objective.flops(model, batch) / batch.size,
    )


@lru_cache(maxsize=4)
def synthetic_corpus(tokens: int, words: int, entities: bool = False) -> Corpus:
    """Documents of so many tokens each, over so many words; with `entities`, every eighth token mentions one."""
    names = [*TRAINED_SPECIALS, *(f"w{number}" for number in range(words))]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(json.dumps({"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}}))
    draws = uniform(0, np.arange(DOCUMENTS * tokens))
    ranks = np.floor(np.exp(draws * np.log(words + 1))).astype(np.int64) - 1  # probability about 1 / rank
    ids = ranks + len(TRAINED_SPECIALS)
    documents = [
        [part[start : start + SENTENCE].tolist() for start in range(0, tokens, SENTENCE)]
        for part in ids.reshape(DOCUMENTS, tokens)
    ]
    if not entities:
        return Corpus.from_documents(documents, tokenizer)
    column = np.where(np.arange(len(ids)) % MENTION_EVERY == 0, ranks, -1).reshape(DOCUMENTS, tokens)
    mentions = [[part[at : at + SENTENCE].tolist() for at in range(0, tokens, SENTENCE)] for part in column]
    return Corpus.from_documents(documents, tokenizer, None, mentions, MADE_UP)


@lru_cache(maxsize=1)
def synthetic_graph() -> GraphSplit:
    """A few triples between the first entities: FLOPs a triple do not depend on the others."""
    triples = [[head, 0, head + 1] for head in range(1_000)]
    names = [f"e{number}" for number in range(len(triples) + 1)]
    return GraphSplit(Graph.from_triples(triples, names, ["r"]))


def format_count(number: float, letters: str) -> str:
    """Three digits and a letter of thousands: 110M; `letters` such as "KMBT"."""
    power = 0
    while number >= 999.5 and power < len(letters):
        number, power = number / 1000, power + 1
    digits = 0 if number >= 99.5 else 1 if number >= 9.95 else 2
    return f"{number:.{digits}f}{letters[power - 1] if power else ''}"
