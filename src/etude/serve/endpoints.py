"""The endpoints of a run: each answers a list of requests in packed forward passes.

    fill        a masked model            {"input": "The [MASK] sat.", "top": 5}
    generate    a causal model            {"input": "Once upon", "tokens": 40, "seed": 0, "stream": false}
    translate   a translation model       {"input": ["The cat sat."], "beams": 4}, or "temperature": 0.8, "seed": 0
    predict     a fine-tuned run          {"input": ["a text", {"text_a": "...", "text_b": "..."}]}
    attention   a Transformer             {"input": "The cat sat.", "second": null}
    paths       a run of graph_choice     {"input": {"question": "Where is a cat?", "choices": ["sofa", "sea"]}}
    encode      any                       {"input": ["one vector", "for each"], "pool": "mean"}
    similarity  any                       {"input": ["one cosine", "for each"], "reference": "compared with this"}
    neighbours  word vectors              {"input": "king", "top": 10}
    analogy     word vectors              {"input": ["man", "king", "woman"]}

Requests of one group are answered together. Sequences are packed and never see each other, so an answer is the one that
the request gets alone. `generate` is not here: its requests join and leave between two tokens (generation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from pydantic import BaseModel

from etude.hub.word_vectors import WordVectors
from etude.inference.fill import MASK, fill_texts
from etude.inference.model import LoadedModel
from etude.inference.predictor import Predictor
from etude.inference.task_model import TaskModel
from etude.inference.translation import is_translator
from etude.nn.packed import pack
from etude.serve.problems import Problem
from etude.serve.requests import (
    AnalogyRequest,
    AttentionRequest,
    AttentionResult,
    EncodeRequest,
    EncodeResult,
    FillRequest,
    FillResult,
    GenerateRequest,
    GenerateResult,
    NeighboursRequest,
    NeighboursResult,
    PathsRequest,
    PathsResult,
    PredictRequest,
    PredictResult,
    Request,
    SimilarityRequest,
    SimilarityResult,
    TranslateRequest,
    TranslateResult,
)
from etude.view.alignment import compute_maps
from etude.view.neighbours import analogy, neighbours
from etude.view.paths import explain_paths

R = TypeVar("R", bound=Request)
Results = list[dict[str, Any]]  # of one request, one an input: JSON-ready
LARGEST_MAPS = 2**21  # attention weights in one answer: about 16 MB of JSON
LARGEST_FILLED = 2**24  # letters of all filled texts in one answer: every guess for every blank has its whole text


@dataclass(frozen=True)
class Kind:
    """What an endpoint takes and gives, whichever run answers."""

    name: str
    request: type[Request]
    result: type[BaseModel]
    summary: str


KINDS = {
    kind.name: kind
    for kind in (
        Kind("fill", FillRequest, FillResult, "Fill each [MASK] of a text by the likeliest tokens"),
        Kind("generate", GenerateRequest, GenerateResult, "Continue a text; with stream, piece by piece"),
        Kind("translate", TranslateRequest, TranslateResult, "Translate a text"),
        Kind("predict", PredictRequest, PredictResult, "Answer an input of the task: label, tags, answer, ranking"),
        Kind("attention", AttentionRequest, AttentionResult, "The attention of all heads to a text"),
        Kind("paths", PathsRequest, PathsResult, "The paths of a graph between a question and its choices"),
        Kind("encode", EncodeRequest, EncodeResult, "One vector a text"),
        Kind(
            "similarity",
            SimilarityRequest,
            SimilarityResult,
            "The cosine of each text with a reference, or with the first",
        ),
        Kind("neighbours", NeighboursRequest, NeighboursResult, "The words nearest to a word"),
        Kind("analogy", AnalogyRequest, NeighboursResult, "The words that are to c as b is to a"),
    )
}


@dataclass(frozen=True)
class Endpoint(Generic[R]):
    """An ability of one run: the function that answers requests, and which of them it takes together."""

    answer: Callable[[Sequence[R]], list[Results]]
    group: Callable[[R], Hashable] | None = None  # None: each request is answered alone


def fill_endpoint(model: LoadedModel) -> Endpoint[FillRequest]:
    def answer(requests: Sequence[FillRequest]) -> list[Results]:
        for request in requests:
            _check_filled(model, request)
        texts = [text for request in requests for text in request.texts()]
        tops = [request.top for request in requests for _ in request.texts()]
        results = [
            {"blanks": [[vars(guess) for guess in row] for row in rows]} for rows in fill_texts(model, texts, tops)
        ]
        return _split(results, [len(request.texts()) for request in requests])

    return Endpoint(answer, lambda request: None)


def _check_filled(model: LoadedModel, request: FillRequest) -> None:
    """Raise 413 where the filled texts would be too long: they grow with the square of the number of blanks."""
    mask = model.tokenizer.special.mask
    symbol = MASK if mask is None else model.tokenizer.token(mask)
    blanks = [text.count(MASK) + (text.count(symbol) if symbol != MASK else 0) for text in request.texts()]
    guesses = min(request.top, model.model.vocab)
    size = guesses * sum(count * len(text) for count, text in zip(blanks, request.texts(), strict=True))
    if size > LARGEST_FILLED:
        raise Problem(
            413,
            f"The filled texts would have {size:,} letters, and {LARGEST_FILLED:,} are written at most: send shorter "
            "texts, with fewer blanks, or ask for fewer guesses.",
        )


def translate_endpoint(model: LoadedModel) -> Endpoint[TranslateRequest]:
    def answer(requests: Sequence[TranslateRequest]) -> list[Results]:
        texts = [text for request in requests for text in request.texts()]
        first = requests[0]
        translations = model.translate(
            texts, beams=first.beams, best=first.best, penalty=first.penalty, temperature=first.temperature,
            top_k=first.top_k, top_p=first.top_p, seed=first.seed,
        )  # fmt: skip
        lists = [[{"text": row.text, "score": row.score} for row in rows] for rows in translations]
        results = [{**rows[0], "nbest": rows} for rows in lists]
        return _split(results, [len(request.texts()) for request in requests])

    return Endpoint(answer, _search_settings)


def _search_settings(request: TranslateRequest) -> Hashable:
    """What requests that are translated together have in common; a draw does not depend on the others."""
    drawing = request.temperature, request.top_k, request.top_p
    if drawing != (None, None, None):
        return request.best, *drawing, request.seed
    return request.best, request.beams, request.penalty


def predict_endpoint(predictor: Predictor) -> Endpoint[PredictRequest]:
    def answer(requests: Sequence[PredictRequest]) -> list[Results]:
        inputs = [item for request in requests for item in request.items()]
        return _split(predictor.predict(inputs), [len(request.items()) for request in requests])

    return Endpoint(answer, lambda request: None)


def encode_endpoint(model: LoadedModel) -> Endpoint[EncodeRequest]:
    def answer(requests: Sequence[EncodeRequest]) -> list[Results]:
        texts = [text for request in requests for text in request.texts()]
        results = [{"vector": vector} for vector in model.encode(texts, pool=requests[0].pool).tolist()]
        return _split(results, [len(request.texts()) for request in requests])

    return Endpoint(answer, lambda request: request.pool)


def similarity_endpoint(model: LoadedModel) -> Endpoint[SimilarityRequest]:
    def answer(requests: Sequence[SimilarityRequest]) -> list[Results]:
        vectors = model.encode([text for request in requests for text in request.texts()], pool=requests[0].pool)
        results: list[Results] = []
        start = 0
        for request in requests:
            part = vectors[start : start + len(request.texts())].astype(np.float64)
            start += len(part)
            norms = np.linalg.norm(part, axis=1)
            cosines = part @ part[0] / np.maximum(norms * norms[0], 1e-30)
            inputs = cosines if request.reference is None else cosines[1:]
            results.append([{"cosine": float(cosine)} for cosine in inputs])
        return results

    return Endpoint(answer, lambda request: request.pool)


def attention_endpoint(model: LoadedModel) -> Endpoint[AttentionRequest]:
    with torch.no_grad():
        layers = model.model.attention_weights(pack([[0]]).to(model.device))
    heads = sum(len(layer[0]) for layer in layers)  # of all layers

    def explain(request: AttentionRequest) -> Results:
        results, size = [], 0
        for text, second in request.pairs():
            # before there are any: those of a long text may not fit into memory
            _check_maps(size + _count_weights(model, heads, text, second))
            attention = compute_maps(model, text, second)
            size += attention.weights.size
            _check_maps(size)
            results.append(
                {
                    "tokens": attention.tokens,
                    "keys": attention.columns,
                    "weights": attention.weights.astype(float).round(4).tolist(),
                    "cut": attention.cut,
                    "habits": {name: values.tolist() for name, values in attention.habits().items()},
                }
            )
        return results

    return Endpoint(lambda requests: [explain(request) for request in requests])


def _count_weights(model: LoadedModel, heads: int, text: str, second: str | None) -> int:
    """How many attention weights a text or a pair has at least: markers come to its tokens."""
    length = len(model.tokenizer.encode(text))
    if second is None:
        return heads * min(length, model.model.max_length) ** 2
    if is_translator(model):  # a map for each head of its decoder, which may have fewer of them
        return length * len(model.tokenizer.target.encode(second))
    return heads * min(length + len(model.tokenizer.encode(second)), model.model.max_length) ** 2


def _check_maps(size: int) -> None:
    if size > LARGEST_MAPS:
        raise Problem(413, f"The maps of all layers and heads would be {size:,} numbers or more: send shorter texts.")


def paths_endpoint(tuned: TaskModel) -> Endpoint[PathsRequest]:
    # whatever the run calls the columns of its files
    renamed = tuned.with_columns({"question": "question", "choices": "choices"})

    def explain(request: PathsRequest) -> Results:
        return [explain_paths(renamed, question.model_dump()).json() for question in request.questions()]

    return Endpoint(lambda requests: [explain(request) for request in requests])


def neighbours_endpoint(vectors: WordVectors) -> Endpoint[NeighboursRequest]:
    def explain(request: NeighboursRequest) -> Results:
        return [_list_neighbours(neighbours(vectors, word, request.top)) for word in request.texts()]

    return Endpoint(lambda requests: [explain(request) for request in requests])


def analogy_endpoint(vectors: WordVectors) -> Endpoint[AnalogyRequest]:
    def explain(request: AnalogyRequest) -> Results:
        return [_list_neighbours(analogy(vectors, a, b, c, request.top)) for a, b, c in request.triples()]

    return Endpoint(lambda requests: [explain(request) for request in requests])


def _list_neighbours(words: Sequence[tuple[str, float]]) -> dict[str, Any]:
    return {"neighbours": [{"word": word, "cosine": cosine} for word, cosine in words]}


def _split(results: Sequence[dict[str, Any]], counts: Sequence[int]) -> list[Results]:
    """The results of each request."""
    rest: Iterator[dict[str, Any]] = iter(results)
    return [[next(rest) for _ in range(count)] for count in counts]
