"""The bidirectional language model of ELMo: forward predicts the next token, backward the one before.

Peters et al. 2018, section 3.1, trained as the released biLM is [code]: truncated back-propagation with a
state carried over in fixed lanes (objectives/rows/lanes.py). The two directions are two streams, one of
them the text reversed, each with a lane of its own: so both directions carry a true state, and the backward
model of a step stands elsewhere in the text than the forward one. They meet in the words they read and in the
output layer, which they share; in TagLM (`model.shared: false`) they meet nowhere.

The loss is the mean of both directions, as in the paper; `forward` is a true likelihood. The output layer is a full
softmax, a sampled or an adaptive one (nn/softmax.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from etude.chance import Chance
from etude.errors import UserError
from etude.models.base import Model, require
from etude.models.recurrent import Carry, Direction, Recurrent
from etude.nn.char_embedding import CharEmbedding, WordCharacters
from etude.nn.packed import Packed
from etude.nn.softmax import (
    AdaptiveSoftmax,
    Candidates,
    FrequencyOrder,
    FullSoftmax,
    SampledSoftmax,
    SoftmaxKind,
)
from etude.nn.states import States
from etude.objectives.base import Batch, PretrainingObjective, Term, join
from etude.objectives.batch_view import BatchView, SequenceView, view_aligned
from etude.objectives.parts.adaptive_output import make_adaptive_softmax, refuse_unused_cutoffs
from etude.objectives.rows.lanes import LaneRow, LaneRows, Lanes, Stream
from etude.settings import Strict
from etude.text.corpus.bounds import Bounds
from etude.text.corpus.corpus import Corpus
from etude.text.tokenizer.special_tokens import Specials

STREAMS: tuple[Direction, Direction] = ("forward", "backward")  # the order of the streams of a row


class Settings(Strict):
    unroll: int = Field(
        default=20, ge=1, description="tokens of each sequence in one step, which gradients go back through"
    )
    marker: Literal["sentence", "document"] = Field(default="sentence", description="what the end token stands between")
    tied: bool = Field(default=False, description="the output layer is the token table")
    softmax: SoftmaxKind = Field(default="full", description="the output layer; sampled and adaptive for many words")
    candidates: int = Field(default=8192, ge=1, description="words of the sampled softmax in each step")
    cutoffs: list[int] | None = Field(default=None, description="first ids of the adaptive softmax's clusters")
    division: float = Field(default=4.0, gt=1, description="how much narrower each further cluster is")


@dataclass(kw_only=True)
class LaneBatch(Batch):
    """The packed part is the forward stream; `size` therefore counts each token of the text once."""

    backward: Packed
    targets: Tensor  # (2, N) int64, forward and backward
    host_targets: np.ndarray  # the same on the host, for counting
    rows_of_letters: Tensor | None = None  # (U, length) the different words that are read
    words: Tensor | None = None  # (2, N) which of them each token is
    candidates: Tensor | None = None  # (K,) words of the sampled softmax
    expected: Tensor | None = None  # (K,)
    expected_targets: Tensor | None = None  # (2, N)


class BiLM(PretrainingObjective[Recurrent, LaneRow, LaneBatch]):
    def __init__(self, settings: Settings, model: Recurrent, special: Specials) -> None:
        super().__init__()
        marker = special.end if special.end is not None else special.separator
        if marker is None:
            raise UserError(
                "The biLM marks the ends of sentences, and this tokenizer has neither an end token nor a separator. "
                "Train a tokenizer here, or add such a token to it."
            )
        self.settings, self.shape, self.marker = settings, model.settings, marker
        self.sentence_start: int | None = None
        if self.shape.characters is not None:
            if special.start is None:
                raise UserError("A biLM of letters marks where sentences start, and this tokenizer has no such token.")
            self.sentence_start = special.start
        self.nats_per_token = "forward" if "forward" in self.shape.directions else None
        self.token_loss = self.shape.directions[0]
        self.output = self._layer(model)
        separate = not self.shape.shared and len(self.shape.directions) == 2
        self.backward_output = self._layer(model) if separate else None
        self.lanes = Lanes(0, self.shape)

    def _layer(self, model: Recurrent) -> FullSoftmax | SampledSoftmax | AdaptiveSoftmax:
        settings, width, vocab = self.settings, self.shape.width, model.vocab
        if settings.tied and (self.shape.characters is not None or settings.softmax == "adaptive"):
            raise UserError(
                "objective.tied takes the token table as output layer: a model that reads letters has none, and the "
                "adaptive softmax brings its own. Set objective.tied=false."
            )
        refuse_unused_cutoffs(settings)
        if settings.softmax == "adaptive":
            return make_adaptive_softmax(settings, width, vocab)
        if settings.softmax == "sampled":
            if 2 * settings.candidates > vocab:
                raise UserError(
                    f"objective.candidates={settings.candidates} are more than half of the {vocab} words: "
                    "lower it, or set objective.softmax=full."
                )
            return SampledSoftmax(width, vocab, settings.tied)
        return FullSoftmax(width, vocab, settings.tied)

    def _output(self, direction: Direction) -> FullSoftmax | SampledSoftmax | AdaptiveSoftmax:
        if direction == "backward" and self.backward_output is not None:
            return self.backward_output
        return self.output

    # --- rows and batches ---------------------------------------------------------------------------

    def rows(self, corpus: Corpus, seed: int) -> LaneRows:
        stream, order = Stream(corpus, self._parts(corpus), self.marker, self.sentence_start), None
        if self.settings.softmax == "sampled":
            order = FrequencyOrder(stream.token_counts(self.output.vocab))
        return LaneRows(stream, self.settings.unroll, self.shape.characters is not None, order)

    def _parts(self, corpus: Corpus) -> Bounds:
        return corpus.sentences if self.settings.marker == "sentence" else corpus.documents

    def view_batch(self, model: Recurrent, batch: LaneBatch) -> BatchView:
        """Both streams; each lane goes on where the step before ended."""
        asks = ("forward the next token, backward the one before", "순방향은 다음 토큰, 역방향은 앞 토큰")
        sequences: list[SequenceView] = []
        for direction in self.shape.directions:
            stream = STREAMS.index(direction)
            packed = batch.backward if stream else batch
            sequences += view_aligned(packed, [batch.targets[stream]], name=direction)
        lanes = len(sequences) // len(self.shape.directions)  # the streams of a lane under one another
        return BatchView(
            asks, [sequences[part] for lane in range(lanes) for part in range(lane, len(sequences), lanes)]
        )

    def batch(self, rows: Sequence[LaneRow], chance: Chance) -> LaneBatch:
        both = np.stack([[*row.streams] for row in rows], axis=1)  # (2, R, unroll + 1)
        fields = join(rows, sequences=1, longest=self.settings.unroll)
        inputs, targets = both[..., :-1].reshape(2, -1), both[..., 1:].reshape(2, -1).astype(np.int64)  # (2, N)
        backward = Packed(torch.from_numpy(inputs[1].astype(np.int64)), fields["positions"], None, fields["layout"])
        batch = LaneBatch(
            **fields,
            counts=dict.fromkeys(self.shape.directions, targets.shape[1]),
            backward=backward,
            targets=torch.from_numpy(targets),
            host_targets=targets,
        )
        if self.shape.characters is not None:
            words = [word for stream in (0, 1) for row in rows if row.words is not None for word in row.words[stream]]
            letters = WordCharacters.from_words(words, self.shape.characters)
            batch.rows_of_letters, batch.words = letters.rows, letters.words.view(2, -1)
        if self.settings.softmax == "sampled":
            assert rows[0].order is not None
            # one set a step, whatever its micro-batches and ranks
            key = chance.key("candidates")
            candidates = Candidates.draw(rows[0].order, key, self.settings.candidates, targets)
            batch.candidates, batch.expected, batch.expected_targets = candidates
        return batch

    # --- the loss -----------------------------------------------------------------------------------

    def loss(self, model: Recurrent, batch: LaneBatch) -> dict[str, Term]:
        if len(self.lanes) <= batch.slots.max():  # nobody told how many: as many as are used
            self.lanes = self.lanes.extended(int(batch.slots.max()) + 1, self.shape)
        self.lanes.to(batch.tokens.device)
        hidden, cell = self.lanes.enter(batch.slots, batch.rows)
        vectors = self._vectors(model, batch)
        terms: dict[str, Term] = {}
        ends: list[Carry] = []
        for number, direction in enumerate(self.shape.directions):
            stream = STREAMS.index(direction)
            carry = Carry(hidden[:, number], cell[:, number])
            packed = batch.backward if stream else batch
            states, end = model.read(packed, direction, carry, vectors=vectors[stream])
            ends.append(end)
            last = F.dropout(states[-1], self.shape.dropout, self.training)
            candidates = self._candidates(batch, stream)
            total = self._output(direction).loss(last, batch.targets[stream], model.token_table(direction), candidates)
            terms[direction] = Term(total, batch.counts[direction], weight=1 / len(self.shape.directions))
        end_states = (torch.stack([end.hidden for end in ends], 1), torch.stack([end.cell for end in ends], 1))
        self.lanes.leave(batch.slots, batch.rows, end_states)
        return terms

    def _vectors(self, model: Recurrent, batch: LaneBatch) -> list[Tensor | None]:
        """Of the words of both streams, each different one read once by each network; None where words have a table."""
        if batch.rows_of_letters is None or batch.words is None:
            return [None, None]
        embedded: dict[nn.Module, Tensor] = {}
        vectors: list[Tensor | None] = [None, None]
        for direction in self.shape.directions:
            words, stream = model.word_embedding(direction), STREAMS.index(direction)
            assert isinstance(words, CharEmbedding)
            if words not in embedded:
                embedded[words] = words.network(batch.rows_of_letters)  # (U, D)
            vectors[stream] = embedded[words][batch.words[stream]]
        return vectors

    def _candidates(self, batch: LaneBatch, stream: int) -> Candidates | None:
        if batch.candidates is None or batch.expected is None or batch.expected_targets is None:
            return None
        return Candidates(batch.candidates, batch.expected, batch.expected_targets[stream])

    def logits(self, model: Recurrent, states: States) -> Tensor:
        """Of the forward model: what follows each token."""
        if self.nats_per_token is None:
            raise UserError("This model reads backwards only: it has no scores for what follows.")
        return self.output.logits(states.last[:, : self.shape.width], model.token_table("forward"))

    def frame(self, ids: np.ndarray, context: int | None) -> np.ndarray:
        """A marker on each side, where the text of pre-training has one too."""
        return np.concatenate(
            [[self.marker if self.sentence_start is None else self.sentence_start], ids, [self.marker]]
        )

    def tokens_per_byte(self, corpus: Corpus) -> float:
        """Markers are predicted too: that before a sentence, where there is one, as well as that after it."""
        markers = 1 if self.sentence_start is None else 2
        return (corpus.total + markers * len(self._parts(corpus))) / max(1, corpus.bytes)

    def flops(self, model: Recurrent, batch: LaneBatch) -> int:
        """Forward and twice that backward: words, the LSTMs and the output layer of each direction."""
        total = model.flops(batch.layout.lengths, None if batch.rows_of_letters is None else len(batch.rows_of_letters))
        for direction in self.shape.directions:
            layer, targets = self._output(direction), batch.host_targets[STREAMS.index(direction)]
            if isinstance(layer, SampledSoftmax) and self.training:
                total += layer.sampled_flops(targets, self.settings.candidates)
            else:
                total += layer.flops(targets)
        return 3 * total

    # --- what is carried ----------------------------------------------------------------------------

    def set_lanes(self, lanes: int) -> None:
        """So many lanes, all at the start of a text."""
        self.lanes = Lanes(lanes, self.shape)

    def state(self) -> dict[str, Tensor]:
        return self.lanes.state()

    def restore(self, state: dict[str, Tensor]) -> None:
        self.lanes = Lanes.from_state(state, self.shape)


def build(settings: Settings, model: Model, special: Specials) -> BiLM:
    message = f"objective bilm carries the states of a recurrent model, not of {model.kind}. Set model.kind: recurrent."
    return BiLM(settings, require(model, Recurrent, message), special)
