"""One tag a word: named entities and parts of speech, over any model.

Words become pieces, one piece represents each word (tag/word_pieces.py), a head scores the tags of all words of a
sentence (tasks/tag/heads.py). Which layers of the model are read, and whether it is trained with the head or only
read, are settings of the transfer (`transfer.layers`, `combine`, `frozen`); another rate for the head is
`train.head_lr` (Baevski et al. 2019: 1e-5 and 1e-3).

Tags that write chunks (IOB1, IOB2, IOBES: tasks/tag/encodings.py) are scored as entities: the micro F1 of conlleval,
or for text tagged by character KLUE's macro F1 under strict IOB2, spaces left out. Other tags are scored by accuracy.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError, suggest_name
from etude.models.base import Model
from etude.models.depth import training_flops
from etude.nn.packed import Layout
from etude.nn.states import States
from etude.objectives.base import Stat, Term, join
from etude.settings import Strict
from etude.tasks.base import Answer, Facts
from etude.tasks.data.conll import sentences as records
from etude.tasks.data.examples import Examples, label_names
from etude.tasks.linear_task import LinearTask, PartialRows, Targets
from etude.tasks.published_head import EncoderFamily, PublishedHead, Readout, label_config
from etude.tasks.tag import network as tag_network
from etude.tasks.tag import network_inputs
from etude.tasks.tag.encodings import Scheme, all_tags, allowed, convert, detect, parse_tag, spans
from etude.tasks.tag.heads import Constraints, Head, HeadKind
from etude.tasks.tag.network_inputs import WordNetwork
from etude.tasks.tag.rows import TagBatch, TagRow, TagRows
from etude.tasks.tag.scores import ScoreName, TagScoring, majority
from etude.tasks.tag.sentences import COLUMNS, INPUTS, TaggedSentence, check_shape, parse, read, strata
from etude.tasks.tag.text_words import add_offsets
from etude.tasks.tag.word_pieces import (
    PieceChoice,
    Pieces,
    expand,
    frame_sentence,
    split_characters,
    split_words,
)
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "TaggedSentence", "Tagger",
    "build", "learn", "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "one tag a word: entities, parts of speech (CoNLL-2003, WNUT-17, KLUE-NER, Universal Dependencies)"
SCORES = "entity F1 (conlleval) and macro F1 (strict, KLUE), accuracy, macro F1 of tags"
FILES = (".conll", ".conllu", ".tsv", ".txt", ".jsonl", ".json")
TEXTS: tuple[str, ...] = ()  # every word has its tag
PROMPT = None
log = logging.getLogger("etude")


class Settings(Strict):
    head: HeadKind = "linear"
    scheme: Literal["auto", "none", "iob1", "iob2", "iobes"] = Field(
        default="auto",
        description="how the files write chunks; none: tags are no chunks. The rules of a named scheme must hold",
    )
    encoding: Scheme | None = Field(
        default=None, description="the scheme to learn chunks in; that of the files if None"
    )
    constraints: Constraints | None = Field(
        default=None, description="rules of the scheme; None: at decoding with a CRF, else none"
    )
    piece: PieceChoice = Field(default="first", description="the sub-word token whose state represents a word")
    length: int | None = Field(default=None, ge=3, description="tokens of a sequence at most; the context if None")
    long: Literal["window", "cut"] = Field(
        default="window",
        description="what happens to sentences beyond length: cut into windows that overlap, or cut off",
    )
    stride: int | None = Field(default=None, ge=1, description="pieces from window to window; half a window if None")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="dropout on the states and on those of the biLSTM")
    deviation: float = Field(default=0.02, gt=0, description="standard deviation of the last layer's initial weights")
    cells: int = Field(default=256, ge=1, description="cells of the biLSTM in each direction")
    lstm_layers: int = Field(default=1, ge=1)
    projection: int = Field(default=256, ge=1, description="width under the biLSTM of projection_bilstm_crf")
    network: tag_network.Settings | None = Field(
        default=None, description="layers of the tagger's own between the model and the head: window, TagLM, ELMo"
    )
    score: ScoreName | None = Field(
        default=None, description="the score that chooses the best checkpoint; the official one of the tags if None"
    )

    def refuse_unused(self) -> None:
        """Raise UserError for a setting without effect; where a transfer starts, not where an older run is opened."""
        needed = {"cells": "bilstm", "lstm_layers": "bilstm", "projection": "projection_bilstm_crf"}
        for name, head in needed.items():
            value = getattr(self, name)
            if head not in self.head and value != type(self).model_fields[name].default:
                raise UserError(
                    f"task.{name}={value} is of task.head={head}, and task.head={self.head} has none: set it, or "
                    f"drop task.{name}."
                )


# --- facts ------------------------------------------------------------------------------------------


def learn(examples: Examples[TaggedSentence], settings: Settings) -> dict[str, Any]:
    """The tags, how they write chunks, and the tag of a word that was not read."""
    counts = Counter(tag for item in examples for tag in item.tags or ())
    if not counts:
        raise UserError(f"{examples.source} has no tags to learn. Name the column that holds them.")
    scheme = _scheme(examples, settings)
    if scheme is None and settings.encoding is not None:
        raise UserError(f"task.encoding={settings.encoding} writes chunks, and these tags are none: leave it out.")
    names, usual = label_names(counts), "O"
    encoding = None if scheme is None else settings.encoding or scheme
    if encoding is not None:  # all tags of every type: that a type was never seen inside a chunk is chance
        names = all_tags((parse_tag(tag).kind for tag in counts if tag != "O"), encoding)
    else:
        usual = min(counts, key=lambda tag: (-counts[tag], tag))
    characters = all(item.characters for item in examples)
    facts = {"labels": names, "scheme": scheme, "encoding": encoding, "usual": usual, "characters": characters}
    own = settings.network
    return facts if own is None else {**facts, "tables": network_inputs.learn(own, examples.items)}


def _scheme(examples: Examples[TaggedSentence], settings: Settings) -> Scheme | None:
    if settings.scheme == "none":
        return None
    declared: Scheme | None = None if settings.scheme == "auto" else settings.scheme
    if declared is None and all(tag.isdecimal() for item in examples for tag in item.tags or ()):
        log.warning(
            "%s: the tags are numbers, which are learnt as plain tags and scored by accuracy. Where they stand for "
            "chunks, as ner_tags of Hugging Face's files do, put the names of their classes (O, B-PER, ...) into the "
            "column; else task.scheme=none says that they are none.",
            examples.source,
        )
    chunks = declared is not None or any(tag[:2] in ("B-", "I-") for item in examples for tag in item.tags or ())
    for number, item in enumerate(examples):
        check_shape(item, examples.places[number], chunks, rules_of=declared)
    return declared or detect(item.tags or () for item in examples)


# --- the task ---------------------------------------------------------------------------------------


class Tagger(LinearTask[TaggedSentence, TagRow, TagBatch]):
    scoring: TagScoring

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> None:
        super().__init__()
        self.settings, self.tokenizer = settings, tokenizer
        self.labels: list[str] = list(facts["labels"])
        self.scheme: Scheme | None = facts["scheme"]
        self.encoding: Scheme | None = facts["encoding"]
        self.usual: str = facts["usual"]
        self.characters: bool = facts["characters"]
        if len(self.labels) < 2:
            raise UserError(f"A tagger tells tags apart, and there is only {self.labels}. Give two or more.")
        if self.characters and self.scheme is None:
            raise UserError("Text tagged by character must have tags that write chunks (B-x, I-x, O).")
        self._declared: Scheme | None = self.scheme if settings.scheme == self.scheme else None
        self.numbers = {name: number for number, name in enumerate(self.labels)}
        self.scoring = TagScoring(settings.score, self.labels, self.scheme, self.characters)
        self.framing = model.frame(tokenizer.special).limit(settings.length)
        constraints: Constraints = settings.constraints or ("decoding" if settings.head.endswith("crf") else "none")
        if constraints != "none" and self.encoding is None:
            constraints = self._free(settings)
        if constraints == "training" and not settings.head.endswith("crf"):
            raise UserError(f"task.constraints=training needs a CRF, and task.head={settings.head} has none.")
        own = settings.network
        self.own = None if own is None else WordNetwork(own, model, facts["tables"])
        self.head = Head(
            settings.head, model.width if self.own is None else self.own.width, len(self.labels),
            allowed=None if self.encoding is None else allowed(self.labels, self.encoding), constraints=constraints,
            dropout=settings.dropout, deviation=settings.deviation, cells=settings.cells,
            layers=settings.lstm_layers, projection=settings.projection,
        )  # fmt: skip
        self.pads_batches = settings.head == "linear" and own is None  # others read sentences one word after the other

    @staticmethod
    def _free(settings: Settings) -> Constraints:
        if settings.constraints not in (None, "none"):
            raise UserError(f"task.constraints={settings.constraints} are rules of chunks, and these tags write none.")
        return "none"

    def facts(self) -> dict[str, Any]:
        return {
            "labels": self.labels, "scheme": self.scheme, "encoding": self.encoding,
            "usual": self.usual, "characters": self.characters,
        } | ({} if self.own is None else {"tables": self.own.tables.facts()})  # fmt: skip

    # --- rows ---------------------------------------------------------------------------------------

    def rows(self, corpus: Examples[TaggedSentence], seed: int = 0) -> TagRows:
        rows = self.unlabelled_rows(corpus)
        rows.tags = self._gold_tags(corpus, rows)
        return rows

    def _gold_tags(self, examples: Examples[TaggedSentence], rows: TagRows) -> list[np.ndarray]:
        """(units,) of each sentence, the numbers of the tags of the units that are read."""
        sentences = zip(examples, examples.places, rows.pieces, rows.framed, strict=True)
        return [self._gold(item, where, pieces)[: len(framed.units)] for item, where, pieces, framed in sentences]

    def unlabelled_rows(self, examples: Examples[TaggedSentence]) -> TagRows:
        """Sentences as a model reads them, without their tags."""
        pieces: list[Pieces] = []
        for start in range(0, len(examples), 1000):  # encodings are large: not all at once
            words = [self._words(item) for item in examples.items[start : start + 1000]]
            places = examples.places[start : start + 1000]
            if self.characters:
                pieces += split_characters(words, self.tokenizer, places)
            else:
                pieces += split_words(words, self.tokenizer, self.settings.piece, places)
        parts = [frame_sentence(part, self.framing, self.settings.long, self.settings.stride) for part in pieces]
        for what, count in (
            ("were cut, their last words not looked at", sum(part.cut for part in parts)),
            ("are read in windows", sum(len(part.bounds) > 2 for part in parts)),
        ):
            if count:
                log.warning(
                    "%s: %d of %d sentences are longer than %d tokens and %s.",
                    examples.source, count, len(parts), self.framing.length, what,
                )  # fmt: skip
        inputs = None
        if self.own is not None:
            own = self.own
            three = zip(examples, pieces, parts, strict=True)
            inputs = [own.inputs(self._words(item), sentence, framed) for item, sentence, framed in three]
        return TagRows(pieces, parts, None, self.framing.segments, inputs)

    def _words(self, item: TaggedSentence) -> list[str]:
        """The words, or the characters, as the tagger was trained to see them."""
        if item.text is not None and self.characters:
            return list(item.text)
        if item.characters == self.characters:
            return item.words
        text = "".join(item.words) if item.characters else " ".join(item.words)
        return list(text) if self.characters else text.split()

    def _gold(self, item: TaggedSentence, where: str, pieces: Pieces) -> np.ndarray:
        """(units,) the numbers of the tags."""
        if item.tags is None:
            raise UserError(f"{where}: this sentence has no tags. Name the column that holds them.")
        self.scoring.check_units(item, where)
        tags = item.tags
        check_shape(item, where, self.scheme is not None, rules_of=self._declared)
        if self.encoding is not None and self.encoding != self.scheme:
            tags = convert(tags, self.encoding)
        wrong = next((number for number, tag in enumerate(tags) if tag not in self.numbers), None)
        if wrong is not None:
            raise UserError(
                f"{item.place(where, wrong)}: the tag '{tags[wrong]}' is not one the model knows."
                f"{suggest_name(tags[wrong], self.labels)} Correct it, or leave the sentence out."
            )
        return np.array([self.numbers[tags[head]] for head in pieces.heads], dtype=np.int64)

    def batch(self, rows: Sequence[TagRow], chance: Chance) -> TagBatch:
        starts = np.concatenate([[0], np.cumsum([len(row.tokens) for row in rows])])
        counts = [len(row.units) for row in rows]
        units = np.concatenate([row.units + start for row, start in zip(rows, starts, strict=False)])
        tags = [row.tags for row in rows if row.tags is not None]
        longest = self.framing.length or max(int(np.diff(row.bounds).max()) for row in rows)
        sentences_or_units = sum(map(bool, counts)) if self.head.trains_crf else sum(counts)
        batch = TagBatch(
            **join(rows, 0, longest),
            counts={"loss": sentences_or_units},
            units=torch.from_numpy(units.astype(np.int64)),
            words=Layout.from_bounds(np.concatenate([[0], np.cumsum(counts)]), max(counts)),
            tags=torch.from_numpy(np.concatenate(tags)) if tags else None,
        )
        if self.own is not None:
            self.own.fill(batch, [row.inputs for row in rows if row.inputs is not None])
        return batch

    # --- training -----------------------------------------------------------------------------------

    def scores(self, model: Model, batch: TagBatch) -> Tensor:
        """(W, K) of every unit and tag."""
        assert batch.units is not None and batch.words is not None
        states = model(batch).last[batch.units] if self.own is None else self.own(model, batch)
        logits: Tensor = self.head(states, batch.words)
        return logits

    def loss(self, model: Model, batch: TagBatch) -> dict[str, Term]:
        assert batch.tags is not None and batch.words is not None
        total = self.head.loss(self.scores(model, batch), batch.tags, batch.words)
        terms = {"loss": Term(total, batch.counts["loss"])}
        return terms if self.own is None else terms | self.own.terms(batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: TagBatch) -> dict[str, Stat]:
        assert batch.tags is not None and batch.words is not None
        units = batch.words.total  # without those of padding, which stand behind them
        scores, tags = self.scores(model, batch)[:units], batch.tags[:units]
        right = (self.head.decode(scores, batch.words)[0] == tags).sum()
        loss = self.head.loss(scores, tags, batch.words)
        return {"loss": Stat(loss, batch.counts["loss"], weight=1.0), "accuracy": Stat(right, units)}

    def flops(self, model: Model, batch: TagBatch) -> int:
        assert batch.words is not None
        below = training_flops(model, batch.lengths) if self.own is None else self.own.flops(model, batch)
        return below + 3 * self.head.flops(batch.words.total)

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[TaggedSentence]) -> list[Answer]:
        """A tag for each word, with its probability, and the entities they write."""
        return self._answers(examples, self._tags(model, examples))

    def _answers(
        self, examples: Examples[TaggedSentence], tagged: Iterable[tuple[list[str], list[float]]]
    ) -> list[Answer]:
        answers = []
        for item, (tags, probs) in zip(examples, tagged, strict=True):
            words = self._words(item)
            answer: Answer = {"tokens": words, "tags": tags, "scores": probs}
            if self.scheme is not None:
                between = "" if self.characters else " "
                answer["entities"] = [
                    {"type": kind, "start": start, "end": stop, "text": between.join(words[start:stop])}
                    for kind, start, stop in spans(tags)
                ]
            if item.text is not None and not self.characters:
                add_offsets(answer, item.text)
            answers.append(answer)
        return answers

    def _tags(self, model: Model, examples: Examples[TaggedSentence]) -> Iterator[tuple[list[str], list[float]]]:
        """Tags of words, as the files write them, and their probabilities; in the order of the examples."""
        rows = self.unlabelled_rows(examples)
        decoded: list[tuple[np.ndarray, np.ndarray]] = [(np.zeros(0, np.int64), np.zeros(0))] * len(rows)
        for group, batch in self.batches(model, rows):
            assert batch.words is not None
            best, probs = (tensor.cpu().numpy() for tensor in self.head.decode(self.scores(model, batch), batch.words))
            for number, start, stop in zip(group, batch.words.host[:-1], batch.words.host[1:], strict=True):
                decoded[number] = best[start:stop], probs[start:stop]
        return self._as_written(decoded, rows.pieces)

    def _as_written(
        self, decoded: Sequence[tuple[np.ndarray, np.ndarray]], sentences: Sequence[Pieces]
    ) -> Iterator[tuple[list[str], list[float]]]:
        """Tags of units by number as tags of words in the scheme of the files."""
        for (numbers, probs), pieces in zip(decoded, sentences, strict=True):
            tags = [self.labels[number] for number in numbers]
            if self.encoding is not None and "iobes" in (self.encoding, self.scheme):
                tags = convert(tags, "iob2")  # units become characters in IOB only
            tags = expand(tags, pieces, self.usual)
            if self.scheme is not None and (self.encoding != self.scheme or self.scheme == "iobes"):
                tags = convert(tags, self.scheme)
            # what nobody looked at (spaces, words behind a cut) is certain to nobody: 0
            unit_probs = [
                *np.round(probs.astype(np.float64), 6).tolist(),
                *[0.0] * (len(pieces.units) - len(probs)),
                0.0,
            ]
            yield tags, [unit_probs[owner] for owner in pieces.owners]

    # --- the head alone -----------------------------------------------------------------------------

    @property
    def output_layer(self) -> nn.Linear:
        return self.head.output

    @property
    def nonlinear_part(self) -> str | None:
        if self.own is not None:
            return "task.network"
        return None if self.settings.head == "linear" else f"task.head={self.settings.head}"

    def features(self, model: Model, states: States, batch: TagBatch) -> Tensor:
        assert batch.units is not None
        return states.last[batch.units]

    def unit_counts(self, batch: TagBatch) -> np.ndarray:
        assert batch.words is not None
        return batch.words.lengths

    def targets(self, examples: Examples[TaggedSentence], rows: PartialRows[TagRow]) -> Targets:
        assert isinstance(rows, TagRows)
        return Targets("softmax", self._gold_tags(examples, rows))

    def answers(
        self, examples: Examples[TaggedSentence], rows: PartialRows[TagRow], logits: Sequence[np.ndarray]
    ) -> list[Answer]:
        assert isinstance(rows, TagRows)
        decoded, device = [], self.output_layer.weight.device
        for scores in logits:
            words = Layout.from_bounds(np.array([0, len(scores)]), len(scores)).to(device)
            best, probs = self.head.decode(torch.from_numpy(scores).to(device), words)
            decoded.append((best.cpu().numpy(), probs.cpu().numpy()))
        return self._answers(examples, self._as_written(decoded, rows.pieces))

    def scale_logits(self, temperature: float) -> None:
        """Of a CRF, the scores of transitions too: marginals are then those of all scores divided by it."""
        super().scale_logits(temperature)
        if self.head.crf is not None and self.head.trains_crf:
            self.head.crf.scale(temperature)

    def published_head(self, model: Model, family: EncoderFamily) -> PublishedHead:
        # a head without a CRF has one for its rules of decoding, where there are any: they are no weights
        weights = {name: value for name, value in self.state_dict().items() if not name.startswith("head.crf")}
        misfits = [] if self.settings.head == "linear" else [f"task.head={self.settings.head}"]
        misfits += [] if self.own is None else ["task.network (layers of the tagger's own)"]
        notes = []
        if self.settings.piece != "first":
            notes.append(f"the tag of a word is that of its {self.settings.piece} piece (task.piece), not of its first")
        return PublishedHead(
            "ForTokenClassification", {"classifier": "head.output"}, weights, label_config(self.labels),
            misfits=tuple(misfits), notes=tuple(notes),
        )  # fmt: skip

    def readout(self, model: Model) -> Readout:
        head = self.published_head(model, EncoderFamily("any", None))
        return Readout(
            "ForTokenClassification", head.layers, head.weights, head.config, misfits=head.misfits, notes=head.notes
        )


def scoring(settings: Settings, facts: Facts) -> TagScoring:
    return TagScoring(settings.score, facts["labels"], facts["scheme"], facts["characters"])


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> Tagger:
    return Tagger(settings, model, tokenizer, facts)
