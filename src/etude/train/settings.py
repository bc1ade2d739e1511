"""The `train:` group of a recipe: budget, batch size, learning rate, optimiser, logging and machine.

A run has exactly one budget (steps, tokens, FLOPs, minutes or, for labelled tasks, epochs); the others follow from it
(`schedule.total_steps`). The formulas of optimisers and schedules, with their papers, are in `optim.py`,
`optimizers.py` and `schedule.py`; their numbers are here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from etude.settings import Strict

BUDGETS = ("steps", "tokens", "flops", "minutes", "epochs")


def _parse_whole(value: object) -> object:
    """Convert to int: YAML reads 1e9 as a string and 1.0e+9 as a float, and both mean a whole number here."""
    if isinstance(value, str):
        try:
            value = float(value) if any(letter in value for letter in ".eE") else int(value)
        except ValueError:
            return value  # pydantic's check for an integer, which follows, reports it
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_parse_whole)]
Positive = Annotated[int, BeforeValidator(_parse_whole), Field(gt=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class BatchRamp(Strict):
    """A batch that grows to `batch_tokens` (GPT-3, appendix B; ModernBERT, section 3.2)."""

    from_tokens: Positive  # the first step's size: 32k in GPT-3
    over_tokens: Positive  # training tokens until the full size: 4-12 billion in GPT-3
    stages: Positive = 16  # equal shares of over_tokens; stages instead of a line keep every sum a short formula


class Settings(Strict):
    """Settings of training."""

    # The budget: exactly one.
    steps: Positive | None = None
    tokens: Positive | None = None
    flops: Annotated[float, Field(gt=0)] | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None  # passes over labelled examples

    # The batch of a step and its micro-batches, in tokens; both are rounded down to whole rows.
    batch_tokens: Positive = 32_768
    micro_tokens: Positive | None = None  # tokens in memory at once; None: the whole batch. Does not change the result
    batch_examples: Positive | None = None  # labelled tasks, whose rows have no fixed length: examples a step
    batch_ramp: BatchRamp | None = None

    # The learning rate.
    lr: Annotated[float, Field(gt=0)] = 5e-4
    head_lr: Annotated[float, Field(gt=0)] | None = None  # another peak for the heads (Baevski 2019: 100 times lr)
    lr_schedule: Literal["linear", "cosine", "inverse_sqrt", "constant", "stable_decay"] = "linear"
    warmup: Annotated[float, Field(ge=0)] = 0.05  # steps; below 1, a share of the run
    lr_progress: Literal["steps", "tokens"] = "steps"  # what the schedule counts: they differ under a batch ramp
    warmup_shape: Literal["shift", "switch", "multiply"] = "shift"  # see schedule.py: usual, BERT, ELECTRA and GPT-1
    final_lr: Share = 0.0  # share of lr at the end of the decay: 0.1 in GPT-3
    decay_end: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the run at which it ends: 260 of 300 B in GPT-3
    decay_share: Share = 0.2  # stable_decay: the last part of the run that decays
    decay_shape: Literal["sqrt", "linear"] = "sqrt"  # stable_decay: 1 - sqrt beat linear and cosine in ModernBERT

    # The optimiser. "adam" is BERT's: no bias correction; "adamw" has it.
    optimizer: Literal["adamw", "adam", "lamb", "sgd", "adagrad", "muon"] = "adamw"
    betas: tuple[Share, Share] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-8  # Kingma & Ba; BERT, ALBERT and ELECTRA have 1e-6
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95  # sgd and muon; 0.95 is Muon's own, plain sgd is 0
    nesterov: bool = True  # sgd and muon
    initial_accumulator: Annotated[float, Field(ge=0)] = 1.0  # adagrad; ELMo and GloVe start at 1, torch at 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    decay_exclude: Literal["norms and biases", "norms, biases and embeddings", "vectors", "nothing"] = (
        "norms and biases"  # BERT's rule, which does decay embeddings; "vectors" is GPT-1's, which decays rank > 1
    )
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = (
        None  # multiplies the lr of each layer further down (ELECTRA .8)
    )
    clip: Annotated[float, Field(gt=0)] | None = 1.0  # global norm of the gradient

    # Checkpoints, evaluation and logging, in steps; 0 turns it off.
    save_every: Annotated[Whole, Field(ge=0)] = 1_000  # a transfer with 0 saves by the clock (train/saver.py)
    eval_every: Annotated[Whole, Field(ge=0)] = 1_000
    log_every: Positive = 10
    eval_tokens: Positive = 262_144  # of the held-out part: gives the loss to about 0.005 nats, in seconds
    keep: Positive = 2  # checkpoints beside the best: two, so that one is left whatever happens to the other
    average: Positive = 1  # the final weights are the mean of the last so many checkpoints, or of all there are
    patience: Positive | None = None  # early stopping after so many evaluations without a better one
    tensorboard: bool = False

    # The machine. None of these is meant to change a result beyond rounding.
    seed: Whole = 0
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 where the device is faster in it
    deterministic: bool = False  # only algorithms that repeat bit for bit on a GPU; slower
    # that build batches ahead; 0 builds each when it is needed, None: one thread on a CPU, some processes for a GPU
    workers: Annotated[int, Field(ge=0)] | None = None
    compile: bool | None = None  # None: on a GPU yes, on a CPU no (no compiler is assumed there)
    device: str | None = None  # None: a GPU if there is one
    # Several processes (torchrun). ddp: each holds everything; fsdp: weights, gradients and optimiser state in shards
    # over all; hybrid: shards over `shard_ranks` of them, copies between; auto: the first of these that fits
    parallel: Literal["auto", "ddp", "fsdp", "hybrid"] = "auto"
    shard_ranks: Positive | None = None  # hybrid: processes that share one copy; None: those of a machine
    # What a process in shards holds whole at a time: the weights of a layer, or once a step those of the model; auto:
    # the latter where that is at most a tenth of a device's memory and shards lie within a machine (train/strategy.py)
    gather: Literal["auto", "layer", "model"] = "auto"
    recompute: Literal["none", "attention", "all"] = "none"  # activations that the backward pass computes again

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            names = " and ".join(f"train.{name}" for name in given)
            raise ValueError(
                f"a run has exactly one budget, but {f'{names} are' if given else 'none is'} set: "
                f"set one of {', '.join('train.' + name for name in BUDGETS)}"
            )
        if self.average > self.keep:
            raise ValueError(
                f"train.average={self.average} checkpoints, and only train.keep={self.keep} are kept: raise train.keep"
            )
        if self.device is not None and not re.fullmatch(r"(cpu|cuda|mps|xpu)(:\d+)?", self.device):
            raise ValueError(f"train.device={self.device} is no device: set cpu, cuda or cuda:N")
        if self.warmup >= 1 and not self.warmup.is_integer():
            raise ValueError(
                f"train.warmup={self.warmup}: from 1 on it counts steps and must be whole; below 1 it is a share"
            )
        if self.lr_schedule in ("constant", "inverse_sqrt") and (self.final_lr or self.decay_end < 1):
            raise ValueError(
                f"train.lr_schedule={self.lr_schedule} has no end to reach: remove train.final_lr and train.decay_end"
            )
        if self.lr_schedule == "inverse_sqrt" and (not self.warmup or self.warmup_shape != "shift"):
            raise ValueError(
                "train.lr_schedule=inverse_sqrt contains its own warm-up (Vaswani et al., section 5.3): "
                "set train.warmup above 0 and leave train.warmup_shape at shift"
            )
        if not all(beta < 1 for beta in self.betas):
            raise ValueError(f"train.betas={self.betas}: both must be below 1")
        if self.optimizer == "adam" and not all(beta <= 0.9999 for beta in self.betas):
            raise ValueError(
                f"train.betas={self.betas}: adam goes without bias correction, and an average over more than 10,000 "
                "steps would start near 0 and stay there; use adamw, which corrects it, or betas up to 0.9999"
            )
        if self.optimizer == "sgd" and self.nesterov and not self.momentum:
            raise ValueError("train.nesterov=true looks ahead along the momentum, which is 0: set train.nesterov=false")
        if self.shard_ranks is not None and self.parallel != "hybrid":
            raise ValueError(
                f"train.shard_ranks={self.shard_ranks} is a setting of train.parallel=hybrid: set both, or neither"
            )
        if self.batch_ramp and self.batch_examples:
            raise ValueError("train.batch_ramp counts tokens and does not go with train.batch_examples: remove one")
        if self.batch_ramp and self.batch_ramp.from_tokens > self.batch_tokens:
            raise ValueError(
                f"train.batch_ramp starts at {self.batch_ramp.from_tokens} tokens, above train.batch_tokens="
                f"{self.batch_tokens}: a ramp grows"
            )
        return self


def override(values: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return raw values of the group with some replaced; a budget among the changes replaces the one there was."""
    has_budget = any(changes.get(budget) is not None for budget in BUDGETS)
    remaining = {key: value for key, value in values.items() if not (has_budget and key in BUDGETS)}
    return remaining | dict(changes)
