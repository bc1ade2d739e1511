"""Records of every kind of task, whose answers hang on the words good and bad."""

from __future__ import annotations

from typing import Any

import numpy as np

WORDS = ["film", "plot", "actor", "very", "really", "not"]


def records(task: str, count: int, seed: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(seed)
    return [record(task, number, draw) for number in range(count)]


def record(task: str, number: int, draw: np.random.Generator) -> dict[str, Any]:
    """One example whose answer hangs on the words good and bad; of several lengths."""
    filler = [str(word) for word in draw.choice(WORDS, draw.integers(1, 6))]
    word = ("good", "bad")[draw.integers(2)]
    text = " ".join([*filler[:1], word, *filler[1:]])
    if task == "classify":
        return {"text": text, "label": word}
    if task == "translate":
        return {"source": text, "target": " ".join(reversed(text.split()))}
    if task == "pair":
        return {"text_a": text, "text_b": "film", "label": word}
    if task == "similarity":
        return {"text_a": text, "text_b": "film", "score": 4.0 if word == "good" else 1.0}
    if task in ("choice", "graph_choice"):
        answer = int(draw.integers(2))
        return {"question": "plot", "choices": ["bad", "good"][:: 1 if answer else -1], "answer": answer}
    if task == "rank":
        relevant = int(draw.integers(3))
        texts = [f"{draw.choice(WORDS)} {'good' if place == relevant else 'bad'}" for place in range(3)]
        return {"query": "plot", "candidates": texts, "labels": [int(place == relevant) for place in range(3)]}
    if task == "relation":
        entities = [{"word": filler[0], "start": 0, "end": len(filler[0])}]
        entities.append({"word": word, "start": len(filler[0]) + 1, "end": len(filler[0]) + 1 + len(word)})
        label = "no_relation" if word == "bad" else "likes"
        return {"sentence": text, "subject_entity": entities[0], "object_entity": entities[1], "label": label}
    if task == "entity_typing":
        start = text.index(word)
        types = ["thing", "good"] if word == "good" else ["thing"]
        entities = [[f"Q-{word}", start, start + len(word), 0.9]]
        return {"text": text, "start": start, "end": start + len(word), "labels": types, "ents": entities}
    if task == "tag":
        words = text.split()
        return {"tokens": words, "ner": ["B-X" if one == "good" else "B-Y" if one == "bad" else "O" for one in words]}
    places = [] if number % 4 == 3 else [{"text": word, "answer_start": text.index(word)}]
    asked = "who" if places else "where"
    return {"id": str(number), "context": text, "question": asked, "answers": places, "is_impossible": not places}
