"""Runs with random weights for the tests of the server, and a client that needs nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import etude
from etude.hub.run_weights import save_final
from etude.recipes.learner import build_learner
from etude.recipes.schema import Recipe
from etude.runs.run import Run
from etude.serve.app import Service
from etude.serve.limits import Limits
from etude.serve.served_model import ServedModel
from etude.serve.server import Server
from etude.text.tokenizer.tokenizer import Tokenizer

TEXT = "the cat sat on the mat"
JSON = {"Content-Type": "application/json"}


class ToyRuns:
    """A function from the name of a recipe to the folder of a run: random weights, or fine-tuned on two labels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open = cache(lambda name: ServedModel.open(self(name), "cpu"))

    def __call__(self, name: str) -> Path:
        place = self.folder / name
        if not place.exists():
            self._make(name, place)
        return place

    def _make(self, name: str, place: Path) -> None:
        if name == "tuned":
            examples = place.with_suffix(".jsonl")
            rows = [{"text": text, "label": label} for text, label in ((TEXT, "cat"), ("a dog ran", "dog"))]
            examples.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            steps = {"train.steps": 2}
            etude.finetune(self("bert-toy"), "classify", train=examples, out=place, quiet=True, settings=steps)
            return
        kind = "word" if name.startswith(("elmo", "fasttext")) else "wordpiece"  # they read words by their letters
        tokenizer = Tokenizer.train(f"{kind}:60", [TEXT, "a dog ran"] * 5)
        recipe = Recipe.load(name).resolve(vocab=tokenizer.vocab)
        place.mkdir()
        (place / "recipe.yaml").write_text(recipe.dump(), encoding="utf-8")
        tokenizer.save(place)
        torch.manual_seed(0)
        save_final(Run(place), *build_learner(recipe, tokenizer), model_card="random weights")


@contextmanager
def serving(*models: ServedModel, limits: Limits | None = None, token: str | None = None) -> Iterator[Server]:
    """A server of loaded runs at a free port."""
    service = Service.create(models, limits or Limits(), token is not None)
    with Server(service, port=0, token=token) as server:
        yield server


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    text: str
    headers: http.client.HTTPMessage

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own; `body` is bytes, or made JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    sent = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
    connection.request(method, path, sent, (JSON if body is not None else {}) if headers is None else headers)
    response = connection.getresponse()
    answer = Answer(response.status, response.read().decode(), response.headers)
    connection.close()
    return answer


def post(server: Server, kind: str, **values: Any) -> Any:
    """The results of a request that is answered 200."""
    answer = ask(server, "POST", f"/{kind}", values)
    assert answer.status == 200, answer.text
    return answer.json["results"]
