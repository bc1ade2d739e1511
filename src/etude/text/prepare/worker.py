"""What a worker does with a block: scan it, or turn it into tokens. Run as `python -m etude.text.prepare.worker`.

A worker is a plain process that reads messages and answers them (text/prepare/messages.py): it imports no torch, needs no
`if __name__ == "__main__"` in the user's script, and ends when the process that started it does. The same class
answers within the process where the text is too small to share out.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np

from etude.chance import fold, random_bits
from etude.errors import UserError
from etude.text.corpus.bounds import BOUND
from etude.text.corpus.manifest import SPLITS
from etude.text.prepare import documents
from etude.text.prepare import messages as frames
from etude.text.prepare import record_filter as where
from etude.text.prepare.readers import Block, Part, Reading
from etude.text.prepare.sentences import ends
from etude.text.tokenizer import characters
from etude.text.tokenizer.batch_encoder import BatchEncoder
from etude.text.tokenizer.tokenizer import Tokenizer

MOST_EXAMPLES = 3


def request(
    task: str, block: Block, extra: dict[str, Any], arrays: dict[str, np.ndarray] | None = None
) -> frames.Message:
    """The message that asks for a block to be worked on."""
    head = {"task": task, "parts": [asdict(part) for part in block.parts], **extra}
    return head, {"payload": frames.as_array(block.payload), **(arrays or {})}


def below(key: str, seed: int, hashes: np.ndarray, limit: int) -> np.ndarray:
    """Which documents a draw by their own hash picks: equal texts are always drawn alike. `limit` is out of 2^64."""
    if limit >= 1 << 64:
        return np.ones(len(hashes), bool)
    return random_bits(fold(seed, key), hashes) < np.uint64(limit)


class Handler:
    """Answers messages. The first must be `setup`."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.where: where.Where | None = None
        self.encoder: BatchEncoder | None = None

    def handle(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> frames.Message:
        tasks: dict[str, Callable[..., frames.Message]] = {
            "setup": self.setup, "scan": self.scan, "train": self.train, "encode": self.encode,
        }  # fmt: skip
        try:
            return tasks[head["task"]](head, arrays)
        except UserError as problem:
            return {"problem": str(problem)}, {}

    def setup(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> frames.Message:
        self.reading = Reading(**head["reading"])
        self.where = where.parse(head["where"]) if head["where"] else None
        self.seed: int = head["seed"]
        if "tokenizer" in arrays:
            self.tokenizer = Tokenizer(arrays["tokenizer"].tobytes().decode())
            self.encoder = BatchEncoder(self.tokenizer, head["memory"])
            self.valid: int = int(head["valid"])
            self.token_type = np.dtype(head["token_type"])
        return {}, {}

    def _documents(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> documents.Documents:
        parts = [Part(**part) for part in head["parts"]]
        return documents.parse(parts, arrays["payload"].tobytes(), self.reading, self.where)

    def scan(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> frames.Message:
        """Hashes and sizes of the documents, and the texts of those that may be in the tokenizer's sample."""
        found = self._documents(head, arrays)
        hashes = found.hashes
        sampled = np.flatnonzero(below("sample", self.seed, hashes, int(head["sample"])))
        texts = [found.encoded[number] for number in sampled.tolist()]
        facts = {"filtered": found.filtered, "empty": found.empty, "cut": found.cut, "seen": sorted(found.seen)}
        sizes = np.fromiter(map(len, found.encoded), np.uint32, len(found.encoded))
        return facts, {"hashes": hashes, "sizes": sizes, "sampled": sampled, "texts": frames.as_array(b"".join(texts))}

    def encode(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> frames.Message:
        """The tokens of the documents, train and valid apart, and what the report counts."""
        assert self.encoder is not None
        found = self._documents(head, arrays)
        hashes = found.hashes
        if not np.array_equal(hashes, arrays["hashes"]):
            return {"changed": head["parts"][0]["file"]}, {}
        kept = below("weight", self.seed, hashes, int(head["share"]))
        if "duplicates" in arrays:
            kept &= arrays["duplicates"] == 0
        held_out = below("valid", self.seed, hashes, self.valid)
        facts: dict[str, Any] = {}
        results: dict[str, np.ndarray] = {}
        for part, members in zip(SPLITS, (kept & ~held_out, kept & held_out), strict=True):
            if part == "valid" and head["copy"]:
                continue  # a source that counts twice is trained on twice, but held out once
            numbers = np.flatnonzero(members).tolist()
            if numbers:
                facts[part] = self._encode_part(part, [found.texts[n] for n in numbers], results)
                encoded = np.array([len(found.encoded[n]) for n in numbers])
                facts[part]["bytes"] = int(encoded[results.pop("nonempty")].sum())
        texts = [text for text, is_kept in zip(found.texts, kept, strict=True) if is_kept]
        places = [place for place, is_kept in zip(found.places, kept, strict=True) if is_kept]
        facts |= _looks(texts, places)
        return facts, results

    def train(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> frames.Message:
        """A tokenizer from a sample of documents: here, so that what training takes is given back with the process."""
        ends = np.cumsum(arrays["sizes"], dtype=np.int64).tolist()
        data = arrays["texts"].tobytes()
        texts = (data[start:end].decode() for start, end in pairwise([0, *ends]))
        content = Tokenizer.train(head["spec"], texts).content
        return {}, {"tokenizer": frames.as_array(content.encode())}

    def _encode_part(self, part: str, texts: list[str], results: dict[str, np.ndarray]) -> dict[str, Any]:
        assert self.encoder is not None
        encoded = self.encoder.encode(texts, [ends(text) for text in texts])
        results["nonempty"] = encoded.nonempty
        results[f"{part}.tokens"] = encoded.ids.astype(self.token_type)
        results[f"{part}.words"] = encoded.word_starts.view(np.uint8)
        results[f"{part}.documents"] = encoded.documents.astype(BOUND)
        results[f"{part}.sentences"] = encoded.sentences.astype(BOUND)
        if self.tokenizer.word_level:
            results[f"{part}.surfaces"] = frames.as_array(encoded.surfaces)
            results[f"{part}.letters"] = encoded.letters.astype(BOUND)
        return {"without_tokens": encoded.count - len(encoded.nonempty)}


def _looks(texts: list[str], places: list[tuple[str, int]]) -> dict[str, Any]:
    """Classes of characters, words between white space, and documents that do not look like text."""
    if not texts:
        return {"classes": [0] * characters.CLASSES, "words": 0, "non_text": 0, "examples": []}
    classes = characters.classify(" ".join(texts))
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
    solid = classes != characters.SPACE
    first = solid.copy()
    first[1:] &= ~solid[:-1]
    sums = [np.add.reduceat(mask.astype(np.int64), starts) for mask in (solid, classes >= characters.MARK)]
    control = np.add.reduceat((classes == characters.CONTROL).astype(np.int64), starts)
    # tables of numbers, code dumps, encoded data: under half letters; twenty characters are too few to judge
    odd = (sums[0] >= 20) & ((2 * sums[1] < sums[0]) | (20 * control > sums[0]))
    examples = [list(places[number]) for number in np.flatnonzero(odd)[:MOST_EXAMPLES].tolist()]
    counts = np.bincount(classes, minlength=characters.CLASSES)
    counts[characters.SPACE] -= len(texts) - 1  # those put between texts here
    return {"classes": counts.tolist(), "words": int(first.sum()), "non_text": int(odd.sum()), "examples": examples}


def main() -> None:
    gc.disable()  # nothing here makes cycles, and looking for them in millions of words takes a twentieth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    source = sys.stdin.buffer
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the messages
    handler = Handler()
    while (message := frames.receive(source)) is not None:
        try:
            answer = handler.handle(*message)
        except Exception:
            answer = {"crash": traceback.format_exc()}, {}
        frames.send(target, *answer)


if __name__ == "__main__":
    main()
