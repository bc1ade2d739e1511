"""The worker process: scans blocks or encodes them. Run as `python -m etude.text.prepare.worker`.

A worker is a plain process that reads requests and sends results (messages.py): it imports no torch, needs no
`if __name__ == "__main__"` in the user's script, and ends when the process that started it does. The same class
handles requests within the process where the text is too small for several.
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
from etude.text.corpus.entities import mark_mentions, restart_mentions
from etude.text.corpus.manifest import SPLITS
from etude.text.prepare import documents, messages
from etude.text.prepare.anchors import count_wiki_links
from etude.text.prepare.linking import TextLinker, open_text_linker
from etude.text.prepare.pairs import BETWEEN, encode_pairs
from etude.text.prepare.readers import Block, BlockPart, ReadSettings
from etude.text.prepare.record_filter import RecordFilter, parse_filter
from etude.text.prepare.sentence_starts import find_sentence_starts
from etude.text.prepare.text_measure import TextMeasure, summarize
from etude.text.tokenizer.batch_encoder import BatchEncoder
from etude.text.tokenizer.text_batch import TextBatch
from etude.text.tokenizer.tokenizer import Tokenizer


def build_request(
    task: str, block: Block, extra: dict[str, Any], arrays: dict[str, np.ndarray] | None = None
) -> messages.Message:
    """Build the message that asks a worker to process a block."""
    head = {"task": task, "parts": [asdict(part) for part in block.parts], **extra}
    return head, {"payload": messages.bytes_to_array(block.payload), **(arrays or {})}


def select_by_hash(purpose: str, seed: int, hashes: np.ndarray, limit: int) -> np.ndarray:
    """Select documents at random by their own hash; `limit` is out of 2^64.

    Equal texts are selected alike.
    """
    if limit >= 1 << 64:
        return np.ones(len(hashes), bool)
    return random_bits(fold(seed, purpose), hashes) < np.uint64(limit)


class RequestHandler:
    """Handles the requests of one preparation. The first must be `setup`."""

    def __init__(self) -> None:
        self.settings = ReadSettings()
        self.record_filter: RecordFilter | None = None
        self.encoder: BatchEncoder | None = None
        self.target_encoder: BatchEncoder | None = None  # of pairs whose sides have a tokenizer each
        self.linker: TextLinker | None = None

    def handle(self, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
        tasks: dict[str, Callable[..., messages.Message]] = {
            "setup": self.setup, "scan": self.scan, "train": self.train, "encode": self.encode,
        }  # fmt: skip
        try:
            return tasks[head["task"]](head, arrays)
        except UserError as problem:
            return {"problem": str(problem)}, {}

    def setup(self, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
        self.settings = ReadSettings(**head["reading"])
        self.record_filter = parse_filter(head["where"]) if head["where"] else None
        self.seed: int = head["seed"]
        if "tokenizer" in arrays:
            self.tokenizer = Tokenizer(arrays["tokenizer"].tobytes().decode())
            target = Tokenizer(arrays["target"].tobytes().decode()) if "target" in arrays else None
            memory = int(head["memory"]) // (1 if target is None else 2)
            self.encoder = BatchEncoder(self.tokenizer, memory)
            self.target_encoder = None if target is None else BatchEncoder(target, memory)
            self.valid: int = int(head["valid"])
            self.id_dtype = np.dtype(head["token_type"])
            self.linker = open_text_linker(*head["linking"]) if "linking" in head else None
        return {}, {}

    def _parse_block(self, head: messages.Head, arrays: messages.Arrays) -> documents.Documents:
        parts = [BlockPart(**part) for part in head["parts"]]
        return documents.parse_documents(parts, arrays["payload"].tobytes(), self.settings, self.record_filter)

    def scan(self, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
        """Return hashes and sizes of the documents, and the texts that may be in the tokenizer's sample."""
        block = self._parse_block(head, arrays)
        hashes = block.hashes
        sampled = np.flatnonzero(select_by_hash("sample", self.seed, hashes, int(head["sample"])))
        texts = [block.encoded[number] for number in sampled.tolist()]
        facts = {"filtered": block.filtered, "empty": block.empty, "cut": block.cut, "seen": sorted(block.seen)}
        sizes = np.fromiter(map(len, block.encoded), np.uint32, len(block.encoded))
        return facts, {
            "hashes": hashes,
            "sizes": sizes,
            "sampled": sampled,
            "texts": messages.bytes_to_array(b"".join(texts)),
        }

    def encode(self, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
        """Return the tokens of the documents of each split, and the counts of the report."""
        assert self.encoder is not None
        block = self._parse_block(head, arrays)
        hashes = block.hashes
        if not np.array_equal(hashes, arrays["hashes"]):
            return {"changed": head["parts"][0]["file"]}, {}
        is_used = select_by_hash("weight", self.seed, hashes, int(head["share"]))
        if "duplicates" in arrays:
            is_used &= arrays["duplicates"] == 0
        is_valid = select_by_hash("valid", self.seed, hashes, self.valid)
        facts: dict[str, Any] = {}
        results: dict[str, np.ndarray] = {}
        measures = []
        for split, members in zip(SPLITS, (is_used & ~is_valid, is_used & is_valid), strict=True):
            numbers = np.flatnonzero(members)
            if not len(numbers) or (split == "valid" and head["copy"]):
                continue  # a source of weight 2 is trained on twice, but held out once
            batch = TextBatch([block.texts[number] for number in numbers.tolist()])
            measures.append((numbers, TextMeasure.of(batch, self.settings.pairs is not None)))
            facts[split] = self._encode_split(split, batch, block, numbers, results)
            facts[split]["bytes"] = int(np.diff(batch.bounds)[results.pop("nonempty")].sum())
        return facts | summarize(measures, block), results

    def train(self, head: messages.Head, arrays: messages.Arrays) -> messages.Message:
        """Train a tokenizer from a sample: in a worker, so that its memory is freed with the process."""
        ends = np.cumsum(arrays["sizes"], dtype=np.int64).tolist()
        data = arrays["texts"].tobytes()
        texts = (data[start:end].decode() for start, end in pairwise([0, *ends]))
        if head["side"] is not None:
            texts = (text.split(BETWEEN)[head["side"]] for text in texts)
        content = Tokenizer.train(head["spec"], texts).content
        return {}, {"tokenizer": messages.bytes_to_array(content.encode())}

    def _encode_split(
        self, split: str, batch: TextBatch, block: documents.Documents, numbers: np.ndarray,
        results: dict[str, np.ndarray],
    ) -> dict[str, Any]:  # fmt: skip
        """Encode the documents of the block with these numbers."""
        assert self.encoder is not None
        anchors = [block.anchors[number] for number in numbers.tolist()] if block.anchors else []
        if self.settings.pairs is not None:

            def find_place(pair: int) -> tuple[str, int]:
                return block.find_place(int(numbers[pair]))

            encoded = encode_pairs(self.encoder, batch.texts, find_place, self.target_encoder)
        else:
            mentions = None
            if self.linker is not None:
                mentions = self.linker.link(batch.texts, anchors or [[] for _ in batch.texts])
            spans = mentions[:3] if mentions is not None else None
            encoded = self.encoder.encode(batch, find_sentence_starts(batch), spans)
            if mentions is not None:
                column = mark_mentions(len(encoded.ids), encoded.spans, mentions.entities)
                results[f"{split}.entities"] = restart_mentions(column, encoded.sentences)
        results["nonempty"] = encoded.nonempty
        results[f"{split}.tokens"] = encoded.ids.astype(self.id_dtype)
        results[f"{split}.words"] = encoded.word_starts.view(np.uint8)
        results[f"{split}.documents"] = encoded.documents.astype(BOUND)
        results[f"{split}.sentences"] = encoded.sentences.astype(BOUND)
        if self.tokenizer.word_level and self.target_encoder is None:
            results[f"{split}.surfaces"] = messages.bytes_to_array(encoded.surfaces)
            results[f"{split}.letters"] = encoded.letters.astype(BOUND)
        is_unread = self.linker is not None and self.settings.anchors is None
        return {
            "without_tokens": encoded.count - len(encoded.nonempty), "anchors": sum(map(len, anchors)),
            "unread_links": count_wiki_links(batch.texts) if is_unread else 0,
        }  # fmt: skip


def main() -> None:
    gc.disable()  # nothing here creates cycles, and a search in millions of words takes a twentieth of the time
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    source = sys.stdin.buffer
    target = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not land among the messages
    handler = RequestHandler()
    while (message := messages.receive(source)) is not None:
        try:
            answer = handler.handle(*message)
        except Exception:
            answer = {"crash": traceback.format_exc()}, {}
        messages.send(target, *answer)


if __name__ == "__main__":
    main()
