"""`etude finetune RUN TASK transfer.probe=true`: a linear probe in place of training (transfer/probe.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from etude.errors import UserError
from etude.inference.opening import Pretrained
from etude.recipes.document import Overrides, parse_overrides
from etude.runs import task_plan as plans
from etude.runs.run import Run
from etude.tasks.data.decoding import decoding
from etude.tasks.data.single_labels import warn_of_single_labels
from etude.tasks.example_filter import admit_examples, warn_bad
from etude.transfer.probe import Probe


def solve_probe(
    start: Pretrained,
    kind: str,
    train: str | Path,
    out: str | Path,
    dev: str | Path | None,
    columns: Mapping[str, str] | None,
    overrides: Overrides,
    skip_bad: bool,
    encoding: str | None = None,
) -> Run:
    """Solve for the head on all examples of `train` and write its run; `dev` is scored, and chooses nothing."""
    values = parse_overrides(overrides).values
    if values.get("distill"):
        raise UserError("A linear probe learns from labels, not from a teacher: drop --teacher or transfer.probe.")
    settings, transfer, train_settings = plans.resolve_settings(kind, overrides, start.model, start.recipe)
    module, column_names = plans.task_module(kind), plans.check_columns(kind, columns)
    with decoding(encoding):
        examples = module.read(train, column_names, skip_bad)
    warn_of_single_labels(examples.source, [module.strata(example) for example in examples])
    facts = module.learn(examples, settings)
    probe = Probe(start, kind, settings, facts, train_settings.device, transfer)
    task = next(iter(probe.readers.values()))[1]
    examples, _ = admit_examples(task, examples, skip_bad, train_settings.seed)
    warn_bad(examples)
    features = probe.features(examples)
    # a text that stands twice must not be held out from itself where the penalty is chosen
    numbers: dict[bytes, int] = {}
    groups = [numbers.setdefault(features.rows[row].tokens.tobytes(), len(numbers)) for row in range(len(examples))]
    head = probe.fit(features, range(len(examples)), train_settings.seed, groups)
    return probe.write(
        head, out, train, dev=dev, columns=column_names, skip_bad=skip_bad, seed=train_settings.seed, encoding=encoding
    )
