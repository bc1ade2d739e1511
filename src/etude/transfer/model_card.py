"""The model card of a fine-tuned run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from etude.recipes.schema import Recipe
from etude.runs.model_card import USE, describe_hardware, describe_versions
from etude.runs.run import Run
from etude.runs.task_plan import Plan
from etude.train.run_state import TrainResult


def format_model_card(run: Run, recipe: Recipe, plan: Plan, result: TrainResult | None) -> str:
    """Return the model card in Markdown; `result` is None where nothing was trained (a linear probe)."""
    transfer = plan.transfer
    reads = transfer.layers if isinstance(transfer.layers, str) else ", ".join(map(str, transfer.layers))
    manner = "features: the model is frozen" if transfer.frozen else "fine-tuned"
    if transfer.probe:
        manner = "linear probe: the model is frozen, its head solved for"
    if plan.distill is not None:
        distill_settings = plan.distill.model_dump(mode="json", exclude={"teacher"})
        distill_text = ", ".join(f"{name} {value}" for name, value in distill_settings.items() if value)
        manner = f"learnt from {Path(plan.distill.teacher).name} (`{plan.teacher[:16]}`): {distill_text}"
    if plan.temperature != 1.0:
        manner += f"; logits divided by {plan.temperature:.3g}, so that probabilities are calibrated"
    if transfer.freeze is not None:
        manner += f", the embedding and {transfer.freeze} layers frozen"
    scores = "\n".join(
        f"| {name.replace('_', ' ')} | {score['value']:.4f} | {score['low']:.4f} – {score['high']:.4f} "
        f"| {score['count']:,} |"
        for name, score in plan.scores.items()
    )
    settings = ", ".join(f"{name} {value}" for name, value in plan.settings.model_dump(mode="json").items() if value)
    labels = plan.facts.get("labels")
    dev = Path(plan.dev.path).name if plan.dev else "none"
    training = f"| seed | {plan.train.seed} |"
    origin = "They chose nothing."
    if result is not None:
        state = result.state
        best = f"step {state.best_step:,}" if state.best_step is not None else "not chosen"
        cost = f"{state.step:,} steps, {state.tokens:,} tokens, {state.flops:.3e} FLOPs, {state.seconds:,.0f} s"
        training = f"""| trained | {cost} |
| best | {best} |
| rate, seed | {plan.train.lr:g}, {plan.train.seed} |"""
        dev = dev if plan.dev else "none: the last weights were taken"
        origin = "The best weights were chosen on the same examples, so these are optimistic."
    return f"""# {run.folder.name}

{recipe.system or recipe.name}, transferred to the task `{plan.kind}` with Etude.

| | |
|---|---|
| starts from | {Path(plan.base).name} ({recipe.name}) |
| manner | {manner}; reads layer {reads} |
| task | {plan.kind}: {settings} |
| labels | {", ".join(map(str, labels)) if labels else "none"} |
| examples | {Path(plan.examples.path).name} (`{plan.examples.fingerprint}`) |
| dev | {dev} |
{training}
| hardware | {describe_hardware(plan.train.device)} |
| versions | {describe_versions()} |
| date | {datetime.now(UTC).date().isoformat()} |

{_format_scores(scores, origin)}{USE}
{_format_use(plan)}
"""


def _format_use(plan: Plan) -> str:
    """The commands for the folder of the run; where its head has learnt nothing yet, the one that goes on."""
    if plan.distill is not None and not plan.distill.answers:
        return f"""It has learnt what is inside its teacher, and its head nothing yet. To go on, in this folder:

    etude finetune . {plan.kind} --teacher TEACHER --train FILE --dev FILE -o ANOTHER"""
    return """In this folder:

    etude evaluate . FILE
    etude predict . < lines.txt"""


def _format_scores(rows: str, origin: str) -> str:
    """The section of scores; nothing where there was no dev set to score."""
    if not rows:
        return ""
    return f"""## Scores on dev
{origin} Intervals are 95 % bootstrap intervals.

| | value | interval | examples |
|---|---|---|---|
{rows}

"""
