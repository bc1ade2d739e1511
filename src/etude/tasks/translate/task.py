"""Translation learnt from pairs by a pre-trained model: its states of the source, and a decoder that attends to them.

Rothe et al. 2020: encoder, decoder or both start with the weights of the run (`start`); the other side has the same
architecture and new weights, and attention between the two is new. A model that is no Transformer reads the source and
gives its states, frozen or not, to a decoder of a few new layers. For a model trained on pairs from the beginning see
the recipes of translation; what both share is the objective, the search and the scores.

The official score is sacrebleu's, from 0 to 1: of its counts of every sentence, summed, so that intervals and verdicts
of a study are those of corpus BLEU (or chrF), paired by sentence.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model
from etude.models.framing import Framing
from etude.models.joined_seq2seq import JoinedSeq2Seq, build_decoder, can_start_decoder, redraw, refuse_translator
from etude.objectives import translate as objective
from etude.objectives.base import Stat, Term, UsableObjective
from etude.objectives.rows.pairs import PairRow, RowSizes
from etude.objectives.translate import Translate, TranslationBatch
from etude.settings import Strict
from etude.tasks.base import Answer, Answers, ErrorExample, Facts, Scoring, Task
from etude.tasks.bootstrap import Score, bootstrap
from etude.tasks.data.examples import Examples, Record, gather
from etude.tasks.data.records import FILES, records
from etude.tasks.outcomes import Outcome
from etude.tasks.translate.decoding import search_sources
from etude.tasks.translate.pairs import SOURCE, TARGET, SentencePair, parse_pair
from etude.tasks.translate.scores import check_tokenizer, choose_tokenizer, make_segment_scores
from etude.tasks.translate.search import Search
from etude.text.tokenizer.special_tokens import Specials
from etude.text.tokenizer.tokenizer import Tokenizer

__all__ = [
    "COLUMNS", "FILES", "INPUTS", "PROMPT", "SCORES", "SUMMARY", "TEXTS", "Settings", "TranslateTask", "build",
    "learn", "majority", "parse", "read", "records", "scoring", "strata",
]  # fmt: skip

SUMMARY = "a text in another language, learnt from pairs (Multi30k, Tatoeba)"
SCORES = "BLEU, chrF (sacrebleu)"
COLUMNS = {"source": SOURCE, "target": TARGET}
INPUTS = ("source",)
TEXTS = ()  # another word in a source asks for another in its target
PROMPT = None
log = logging.getLogger("etude")


class Settings(Strict):
    start: Literal["encoder", "decoder", "both"] | None = Field(
        default=None,
        description="which sides start with the run's weights; both for a Transformer unless given, else the encoder",
    )
    layers: int | None = Field(default=None, ge=1, description="layers of the decoder; as many as the run's, or 2")
    width: int | None = Field(default=None, ge=1, description="width of the decoder, for a run that is no Transformer")
    heads: int | None = Field(
        default=None, ge=1, description="attention heads of the decoder, for a run that is no Transformer"
    )
    dropout: float | None = Field(default=None, ge=0, lt=1, description="dropout of the decoder; as in the run if None")
    length: int | None = Field(
        default=None,
        ge=4,
        description="tokens of a target at most, in training and in a search; the context unless given",
    )
    smoothing: float = Field(default=0.1, ge=0, lt=1, description="share of the labels spread over the vocabulary")
    beams: int = Field(default=4, ge=1, description="beams of the search; 1 is greedy")
    penalty: float = Field(default=0.6, ge=0, description="of length")
    score: Literal["bleu", "chrf"] = "bleu"
    tokenizer: str | None = Field(
        default=None, description="tokenizer of BLEU; by the language of the references unless given"
    )


def parse(record: Record, columns: Mapping[str, str], where: str, labelled: bool = True) -> SentencePair:
    return parse_pair(record, columns, where, labelled)


def read(
    path: str | Path, columns: Mapping[str, str] | None = None, skip_bad: bool = False, labelled: bool = True
) -> Examples[SentencePair]:
    return gather(records(path), lambda record, where: parse(record, columns or {}, where, labelled), path, skip_bad)


def learn(examples: Examples[SentencePair], settings: Settings) -> dict[str, Any]:
    """The tokenizer of BLEU, which is part of the score; one that cannot be used is refused before training."""
    name = choose_tokenizer([pair.reference for pair in examples]) if settings.tokenizer is None else settings.tokenizer
    return {"tokenizer": check_tokenizer(name)}


def strata(example: SentencePair) -> frozenset[str]:
    return frozenset()


def majority(train: Examples[SentencePair], test: Examples[SentencePair]) -> list[Answer]:
    """The most frequent target; of several the first."""
    [(target, _)] = Counter(pair.reference for pair in train).most_common(1)
    return [{"translation": target} for _ in test]


# --- the score ----------------------------------------------------------------------------------------


class TranslationScoring(Scoring[SentencePair]):
    def __init__(self, settings: Settings, tokenizer: str) -> None:
        self.score: str = settings.score
        self.tokenizer = tokenizer

    def check_gold(self, examples: Examples[SentencePair]) -> None:
        for pair, where in zip(examples, examples.places, strict=True):
            if not pair.reference:
                raise UserError(f"{where}: this source has no reference. Name the column that holds it.")

    def outcomes(self, examples: Examples[SentencePair], answers: Answers) -> dict[str, Outcome]:
        """By the name of the score: the counts that sacrebleu adds up."""
        written = [str(answer["translation"]) for answer in answers]
        metrics = make_segment_scores(written, [pair.reference for pair in examples], self.tokenizer)
        return {
            name: Outcome(name, metric.parts.astype(np.float64))
            for name, metric in zip(("bleu", "chrf"), metrics, strict=True)
        }

    def outcome(self, examples: Examples[SentencePair], answers: Answers) -> Outcome:
        return self.outcomes(examples, answers)[self.score]

    def scores(self, examples: Examples[SentencePair], answers: Answers, intervals: bool = True) -> dict[str, Score]:
        return {
            name: bootstrap(len(outcome.parts), partial(_score_drawn, outcome), intervals)
            for name, outcome in self.outcomes(examples, answers).items()
        }

    def judge(self, examples: Examples[SentencePair], answers: Answers) -> list[ErrorExample]:
        """Wrong by what chrF is short of 1."""
        parts = self.outcomes(examples, answers)["chrf"].parts
        values = [float(Outcome("chrf", row[None]).score()) for row in parts]
        return [
            ErrorExample(
                text=pair.source, gold=pair.reference or "-", predicted=answer["translation"] or "-",
                correct=pair.reference == answer["translation"], loss=1 - value,
            )
            for pair, answer, value in zip(examples, answers, values, strict=True)
        ]  # fmt: skip

    def lengths(self, examples: Examples[SentencePair]) -> np.ndarray:
        """Words of each source (Bahdanau et al. 2015, figure 2)."""
        return np.array([len(pair.source.split()) for pair in examples])


def _score_drawn(outcome: Outcome, drawn: np.ndarray) -> float:
    return float(outcome.score(np.bincount(drawn, minlength=len(outcome.parts))))


def scoring(settings: Settings, facts: Facts) -> TranslationScoring:
    return TranslationScoring(settings, facts["tokenizer"])


# --- the task -----------------------------------------------------------------------------------------


class FramedTranslate(Translate):
    """Translation whose sources are framed as the reader's texts are ([CLS] ... [SEP] for BERT)."""

    framing: Framing

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        return self.framing.join([ids]).tokens.astype(ids.dtype)


@dataclass
class PairExampleRows:
    """Source and target of one example a row."""

    sides: list[tuple[np.ndarray, np.ndarray]]
    shuffle: bool = True
    row_tokens: int | None = None

    def __post_init__(self) -> None:
        lengths = [(len(source), len(target), 1) for source, target in self.sides]
        self.sizes = RowSizes.from_rows(np.array(lengths, np.float64).reshape(-1, 3))

    def __len__(self) -> int:
        return len(self.sides)

    def __getitem__(self, index: int) -> PairRow:
        source, target = self.sides[index % len(self.sides)]
        bounds = np.array([0, len(source), len(source) + len(target)], np.int32)
        return PairRow(index, np.concatenate([source, target]).astype(np.int32), bounds, sizes=self.sizes)


class TranslateTask(Task[SentencePair, PairRow, TranslationBatch]):
    pads_batches = True

    def __init__(self, settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> None:
        super().__init__()
        refuse_translator(model)
        self.settings, self.tokenizer, self.bleu_tokenizer = settings, tokenizer, str(facts["tokenizer"])
        self.scoring: TranslationScoring = TranslationScoring(settings, self.bleu_tokenizer)
        start = settings.start or ("both" if can_start_decoder(model) else "encoder")
        self.decoder = build_decoder(
            model, copied=start != "encoder", layers=settings.layers, width=settings.width, heads=settings.heads,
            dropout=settings.dropout,
        )  # fmt: skip
        if start == "decoder":
            redraw(model)
        joined = self.join(model)
        self.framing = model.frame(tokenizer.special).limit(joined.context)
        self.translate = FramedTranslate(
            objective.Settings(smoothing=settings.smoothing, tied=joined.target_table.shape[1] == joined.target_width),
            joined,
            _with_end(tokenizer.special),
        )
        self.translate.framing = self.framing
        self.translate.target_limit = settings.length
        self.unknown, self.vocab = tokenizer.special.unknown, model.vocab
        limits = [length for length in (settings.length, joined.context) if length is not None]
        self.length = min(limits, default=None)

    def join(self, model: Model) -> JoinedSeq2Seq:
        """The reader and this task's decoder as one model."""
        return JoinedSeq2Seq(model, self.decoder)

    def as_learner(self, model: Model) -> tuple[Model, UsableObjective]:
        return self.join(model), self.translate

    def facts(self) -> dict[str, Any]:
        return {"tokenizer": self.bleu_tokenizer}

    # --- training -----------------------------------------------------------------------------------

    def rows(self, corpus: Examples[SentencePair], seed: int = 0) -> PairExampleRows:
        self.scoring.check_gold(corpus)
        sources = self._encode_sources(corpus)
        targets = self.tokenizer.encode_ids([pair.reference for pair in corpus])
        sides = [(source, self._close(ids)) for source, ids in zip(sources, targets, strict=True)]
        cut = sum(len(target) <= len(ids) for (_, target), ids in zip(sides, targets, strict=True))
        if cut:
            log.warning("%s: %d of %d targets are longer than %d tokens, and are cut", corpus.source, cut, len(corpus),
                        self.length)  # fmt: skip
        return PairExampleRows(sides)

    def _encode_sources(self, examples: Examples[SentencePair]) -> list[np.ndarray]:
        framed = [self.framing.join([ids]) for ids in self.tokenizer.encode_ids([pair.source for pair in examples])]
        cut = sum(each.cut for each in framed)
        if cut:
            log.warning("%s: %d of %d sources are longer than the model reads, and are cut", examples.source, cut,
                        len(examples))  # fmt: skip
        return [each.tokens for each in framed]

    def _close(self, ids: np.ndarray) -> np.ndarray:
        """A target with its end; words beyond the vocabulary are unknown; one that is too long has no end."""
        if self.unknown is not None:
            ids = np.where(ids >= self.vocab, self.unknown, ids)
        return np.append(ids, self.translate.end)[: self.length]

    def batch(self, rows: Sequence[PairRow], chance: Chance) -> TranslationBatch:
        return self.translate.batch(rows, chance)

    def loss(self, model: Model, batch: TranslationBatch) -> dict[str, Term]:
        return self.translate.loss(self.join(model), batch)

    @torch.no_grad()
    def metrics(self, model: Model, batch: TranslationBatch) -> dict[str, Stat]:
        return self.translate.metrics(self.join(model), batch)

    def flops(self, model: Model, batch: TranslationBatch) -> int:
        return self.translate.flops(self.join(model), batch)

    # --- use ----------------------------------------------------------------------------------------

    def predict(self, model: Model, examples: Examples[SentencePair]) -> list[Answer]:
        device = next(self.parameters()).device
        training = model.training, self.training
        model.eval()
        self.eval()
        try:
            search = Search(self.settings.beams, self.settings.penalty)
            best = search_sources(self.join(model), self.translate, self._encode_sources(examples), search, device)
        finally:
            model.train(training[0])
            self.train(training[1])
        return [{"translation": self.tokenizer.decode(each[0].ids, special=False).strip()} for each in best]


def _with_end(special: Specials) -> Specials:
    """A published tokenizer without an end token has a separator in its place (BERT)."""
    if special.end is not None:
        return special
    if special.separator is None:
        raise UserError("Translation needs an end token or a separator, and this tokenizer has neither.")
    return Specials(**{**vars(special), "end": special.separator})


def build(settings: Settings, model: Model, tokenizer: Tokenizer, facts: Facts) -> TranslateTask:
    return TranslateTask(settings, model, tokenizer, facts)
