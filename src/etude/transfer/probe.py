"""Linear probes: a frozen model, whose features are computed once, under a linear layer that is solved for.

Alain & Bengio 2017; as a reader of sentence encoders: Conneau & Kiela 2018. With some hundred labels it costs seconds
where fine-tuning costs minutes, and on a good sentence encoder it is hard to beat. Which hidden states are read is a
column of the same pass, and chosen with the penalty by inner cross-validation (transfer/linear_solver.py):

    texts    the mean over tokens of the last layer, of the one before it, of the mean of the last four; and what the
             family reads by itself ([CLS], the last token)
    pairs    as the family reads them, and both texts apart as [u; v; |u - v|; u * v], which suits sentence encoders
    words    the first piece of each word, from the same layers

What is written is a run of the task with `transfer.frozen`, like any other.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.chance import Chance
from etude.errors import UserError
from etude.inference.opening import Pretrained
from etude.models.base import Model
from etude.models.framing import Pooling
from etude.models.layer_features import LayerFeatures, chosen_layers
from etude.models.transfer import prepare_frozen
from etude.models.transfer_settings import Combine, Layers, TransferSettings
from etude.nn.states import States
from etude.runs import task_plan
from etude.runs.run import TASK, Run, write_run_files
from etude.runs.staging import staged_folder
from etude.runs.task_plan import ExampleFile, Plan
from etude.settings import Strict
from etude.tasks import pooled_head
from etude.tasks.base import Answer, Facts, Task, by_length
from etude.tasks.data.decoding import decoding
from etude.tasks.data.examples import Examples
from etude.tasks.example_filter import admit_examples
from etude.tasks.linear_task import LinearTask, PartialRows, Targets
from etude.tasks.pooled_head import PairReading
from etude.text.tokenizer.special_tokens import Specials
from etude.train.device import default_device
from etude.transfer.linear_solver import LinearLayer, choose_and_fit
from etude.transfer.model_card import format_model_card
from etude.transfer.task_weights import write_task_run

MOST_BYTES = 4 * 2**30  # of the features of all tokens
OnBatch = Callable[[int, int], None]  # rows that are done, of so many


@dataclass(frozen=True)
class Representation:
    """Which hidden states a head reads, and how they become one vector a unit."""

    layers: tuple[int, ...] | None = None  # None: the last
    combine: Combine = "mix"  # of several layers: a mix that nobody trains is their mean
    pooling: Pooling | None = None  # None: the task has none, or what the family does by itself
    reading: PairReading | None = None

    def of_transfer(self, transfer: TransferSettings) -> TransferSettings:
        """The settings of the transfer that reads so."""
        layers: Layers = "last" if self.layers is None else list(self.layers)
        combine: Combine = self.combine if self.layers is not None and len(self.layers) > 1 else "concat"
        return transfer.model_copy(update={"frozen": True, "probe": True, "layers": layers, "combine": combine})

    def of_task(self, settings: Strict) -> Strict:
        """The settings of the task that reads so."""
        changes: dict[str, object] = {"pooling": self.pooling, "reading": self.reading}
        return settings.model_copy(update={name: value for name, value in changes.items() if value is not None})


@dataclass
class Features:
    """What a probe computed of some examples: one vector a unit and representation."""

    examples: Examples[Any]
    counts: np.ndarray  # (examples,) units of each
    arrays: dict[Representation, np.ndarray]  # (U, D) float32, of the units in order
    rows: PartialRows[Any]  # of the first representation: what answers are put together from
    targets: Targets | None = None  # of all examples, once a head was fitted to some

    def units(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of the units of some examples, in their order."""
        starts = np.concatenate([[0], np.cumsum(self.counts)])
        return np.concatenate([np.arange(starts[n], starts[n + 1]) for n in indices]).astype(np.int64)


@dataclass(frozen=True)
class ProbeHead:
    """A solved head."""

    representation: Representation
    layer: LinearLayer
    penalty: float
    loss: float  # the held-out loss by which it was chosen

    def scale_logits(self, temperature: float) -> ProbeHead:
        """The head whose probabilities are softmax(logits / temperature)."""
        layer = LinearLayer(self.layer.weight / temperature, self.layer.bias / temperature)
        return replace(self, layer=layer)


class Probe:
    """Reads a pre-trained model for a task; the model is frozen in place, and moved to `device`."""

    def __init__(
        self,
        start: Pretrained,
        kind: str,
        settings: Strict,
        facts: Facts,
        device: str | None = None,
        transfer: TransferSettings | None = None,
    ) -> None:
        """`facts` are what the kind's `learn` says of all examples; what settings name is not varied."""
        self.transfer = transfer or TransferSettings(probe=True)
        self.start, self.kind, self.settings, self.facts = start, kind, settings, facts
        self.device = torch.device(device or default_device())
        self.module = task_plan.task_module(kind)
        representations = choose_representations(start.model, start.tokenizer.special, settings, self.transfer)
        start.model.to(self.device)
        self.readers: dict[Representation, tuple[LayerFeatures, LinearTask[Any, Any, Any]]] = {}
        for representation in representations:
            model, task = self._build(representation)
            self.readers[representation] = model, require_linear(task, kind)

    def _build(self, representation: Representation) -> tuple[LayerFeatures, Task]:
        model = prepare_frozen(self.start.model, representation.of_transfer(self.transfer))
        tokenizer = model.attach_tokenizer(self.start.tokenizer)
        task = self.module.build(representation.of_task(self.settings), model, tokenizer, self.facts)
        if model.mix is not None:
            task.mix = model.mix
        return model, task.to(self.device)

    # --- features -----------------------------------------------------------------------------------

    @torch.no_grad()
    def features(
        self, examples: Examples[Any], deadline: float | None = None, on_batch: OnBatch | None = None
    ) -> Features:
        """Compute the features of all examples; they need no labels.

        Raises TimeoutError where `deadline` (of time.monotonic) passes first. `on_batch` hears after each batch how
        many rows are done, and may raise to stop.
        """
        readings: dict[PairReading | None, list[Representation]] = {}
        for representation in self.readers:
            readings.setdefault(representation.reading, []).append(representation)
        arrays: dict[Representation, np.ndarray] = {}
        counts, done, total = np.zeros(len(examples), dtype=np.int64), 0, len(examples) * len(readings)
        first: PartialRows[Any] | None = None
        for representations in readings.values():
            _, task = self.readers[representations[0]]
            rows = task.unlabelled_rows(examples)
            if task.has_token_units:
                self._check_memory(rows, len(representations))
            first = first or rows
            parts: dict[Representation, list[np.ndarray]] = {
                each: [np.zeros(0)] * len(rows) for each in representations
            }
            for group, states, batch in self._states(task, rows):
                sizes = task.unit_counts(batch)
                counts[group] = sizes
                for representation in representations:
                    model, reader = self.readers[representation]
                    vectors = reader.features(model, model.read(states), batch).float().cpu().numpy()
                    for number, piece in zip(group, np.split(vectors, np.cumsum(sizes)[:-1]), strict=True):
                        parts[representation][number] = piece
                done += len(group)
                if on_batch is not None:
                    on_batch(done, total)
                if deadline is not None and time.monotonic() > deadline and done < total:
                    raise TimeoutError(f"the features of {done} of {total} rows were computed when time was up")
            arrays |= {representation: np.concatenate(pieces) for representation, pieces in parts.items()}
        assert first is not None
        return Features(examples, counts, arrays, first)

    def _check_memory(self, rows: PartialRows[Any], representations: int) -> None:
        """Refuse features of tokens that would not fit into memory."""
        tokens = sum(len(rows[number].tokens) for number in range(len(rows)))
        size = 4 * tokens * self.model.width * representations
        if size > MOST_BYTES:
            raise UserError(
                f"The features of {tokens:,} tokens would take {size / 2**30:.0f} GiB of memory, more than "
                f"{MOST_BYTES / 2**30:.0f}: give fewer examples, or fine-tune."
            )

    def _states(
        self, task: LinearTask[Any, Any, Any], rows: PartialRows[Any]
    ) -> Iterator[tuple[list[int], States, Any]]:
        """(row numbers, states of all layers, batch) of all rows, like lengths together."""
        model = self.start.model.eval()
        task.eval()
        for group in by_length([len(rows[number].tokens) for number in range(len(rows))]):
            batch = task.batch([rows[number] for number in group], Chance(0, 0)).to(self.device)
            with torch.autocast(self.device.type, enabled=False):
                yield group, model(batch, layers=True), batch

    # --- the head -----------------------------------------------------------------------------------

    def fit(
        self,
        features: Features,
        indices: Sequence[int] | np.ndarray,
        seed: int = 0,
        groups: Sequence[int] | None = None,
    ) -> ProbeHead:
        """Solve for the head on some of the examples; representation and penalty are chosen among them.

        All examples of `features` must have labels. `groups` of all of them are equal where inputs are equal.
        """
        _, task = next(iter(self.readers.values()))
        if features.targets is None:
            features.targets = task.targets(features.examples, features.rows)
        targets = Targets(features.targets.loss, [features.targets.values[int(n)] for n in indices])
        units = features.units(indices)
        arrays = {representation: array[units] for representation, array in features.arrays.items()}
        numbers: dict[int, int] = {}  # small ones: a group may be any hash
        own = None if groups is None else np.array([numbers.setdefault(groups[int(n)], len(numbers)) for n in indices])
        fit = choose_and_fit(arrays, targets, task.output_layer.out_features, seed, own)
        return ProbeHead(fit.name, fit.layer, fit.penalty, fit.loss)

    def logits(self, head: ProbeHead, features: Features, indices: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """(units, outputs) of each example, in their order."""
        logits = head.layer.logits(features.arrays[head.representation][features.units(indices)])
        return np.split(logits, np.cumsum(features.counts[np.asarray(indices, dtype=np.int64)])[:-1])

    def predict(self, head: ProbeHead, features: Features, indices: Sequence[int] | np.ndarray) -> list[Answer]:
        """One answer an example, in their order, as the written run gives them."""
        _, task = self.readers[head.representation]
        numbers = [int(n) for n in indices]
        logits = self.logits(head, features, numbers)
        return task.answers(features.examples.part(numbers), features.rows.part(numbers), logits)

    # --- the run ------------------------------------------------------------------------------------

    def write(
        self,
        head: ProbeHead,
        out: str | Path,
        train: str | Path,
        *,
        dev: str | Path | None = None,
        columns: Mapping[str, str] | None = None,
        skip_bad: bool = False,
        seed: int = 0,
        encoding: str | None = None,
    ) -> Run:
        """Write the run of a solved head; `train` is the file of examples it was solved on. `dev` is scored."""
        representation = head.representation
        train_settings = task_plan.resolve_settings(
            self.kind, {"transfer.probe": True, "train.seed": seed}, self.model, self.start.recipe
        )[2]
        plan = Plan(
            kind=self.kind,
            settings=representation.of_task(self.settings),
            transfer=representation.of_transfer(self.transfer),
            train=train_settings,
            facts=dict(self.facts),
            columns=dict(columns or {}),
            base=self.start.folder,
            examples=ExampleFile.from_path(train, encoding),
            dev=None if dev is None else ExampleFile.from_path(dev, encoding),
            skip_bad=skip_bad,
        )
        model, task = plan.build(self.model, self.start.tokenizer)
        layer = require_linear(task, self.kind).output_layer
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(head.layer.weight))
            layer.bias.copy_(torch.from_numpy(head.layer.bias))
        scores = {}
        if dev is not None:
            with decoding(encoding):
                examples = self.module.read(dev, plan.columns, skip_bad)
            examples, _ = admit_examples(task, examples, skip_bad, seed)
            scores = {name: score.json() for name, score in task.to(self.device).evaluate(model, examples).items()}
        plan = replace(plan, facts=task.facts(), score=task.score, scores=scores)
        with staged_folder(Path(out)) as staging:
            write_run_files(
                staging, self.start.recipe, self.start.tokenizer, {TASK: plan.dump()}, self.start.model.links
            )
            card = format_model_card(Run(Path(out)), self.start.recipe, plan, None)
            write_task_run(staging, self.start.recipe, plan, model, task, card)
        return Run(Path(out))

    @property
    def model(self) -> Model:
        return self.start.model


# --- what is read -----------------------------------------------------------------------------------


def choose_representations(
    model: Model, special: Specials, settings: Strict, transfer: TransferSettings
) -> list[Representation]:
    """Those worth comparing of a model: what settings name is not varied."""
    framing, count = model.frame(special), model.state_count
    layers: list[tuple[int, ...] | None] = [None]
    if transfer.layers != "last":
        layers = [tuple(chosen_layers(transfer.layers, count))]
    elif model.layers >= 2:
        layers += [(count - 2,), tuple(range(max(0, count - 4), count))]
    combine: Combine = "mix" if transfer.layers == "last" else transfer.combine
    pooled = [Representation(each, combine) for each in layers]
    if isinstance(settings, pooled_head.Settings) and settings.pooling is None:
        pooled = [Representation(each, combine, "mean") for each in layers]
        if framing.pooling != "mean":
            pooled.append(replace(pooled[0], pooling=framing.pooling))
    if "reading" not in type(settings).model_fields or settings.model_dump()["reading"] is not None or framing.separate:
        return pooled
    return pooled + [replace(each, reading="apart") for each in pooled]


def require_linear(task: Task, kind: str) -> LinearTask[Any, Any, Any]:
    """The task, where its head is one linear layer over hidden states; else UserError."""
    if not isinstance(task, LinearTask):
        raise UserError(
            f"A linear probe cannot do the task {kind}: its head is more than one linear layer. Fine-tune it."
        )
    if task.nonlinear_part is not None:
        raise UserError(f"A linear probe has one linear layer, and {task.nonlinear_part} adds others: leave it out.")
    return task


def supports(kind: str) -> bool:
    """Whether a linear probe can do a kind of task, with its settings as they are by default."""
    build = typing.get_type_hints(task_plan.task_module(kind).build)
    return isinstance(build.get("return"), type) and issubclass(build["return"], LinearTask)
