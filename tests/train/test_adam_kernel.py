"""Our AdamW step against torch's: on a GPU by name, elsewhere in Triton's interpreter if it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from etude.train import optim, optimizers, tensor_lists
from etude.train.optimizers import Adam, AdamW, init_adam_state
from etude.train.settings import Settings

SIZES = [(1,), (5,), (4096,), (4097,), (100, 100), (0,)]
STEPS = 5
# As float32 has them: torch's float64, against which all is compared, must average with the same numbers
BETAS = (float(np.float32(0.9)), float(np.float32(0.98)))


def test_in_the_interpreter(in_the_interpreter: Callable[[str], None]) -> None:
    in_the_interpreter(__file__)


def parameters(seed: int = 0, dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(size, generator=generator) for size in SIZES]
    return [nn.Parameter(values.to(device, dtype)) for values in drawn]


def groups(learnt: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Three, of different rates and decays."""
    return [
        {"params": [(str(n), learnt[n]) for n in members], "scale": scale, "weight_decay": decay}
        for members, scale, decay in (([0, 3], 1.0, 0.1), ([1, 5], 1.0, 0.0), ([2, 4], 0.3, 0.2))
    ]


def named(learnt: list[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    return [(str(n), parameter) for n, parameter in enumerate(learnt)]


def give(learnt: list[nn.Parameter], step: int, divisor: float = 1.0) -> None:
    """Gradients of very different sizes; in step 2 one parameter has none."""
    generator = torch.Generator().manual_seed(100 + step)
    for number, parameter in enumerate(learnt):
        gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (number - 4)
        gradient = gradient.to(parameter.device, parameter.dtype) / divisor
        parameter.grad = None if (step, number) == (2, 3) else gradient


def walk(optimizer: torch.optim.Optimizer, learnt: list[nn.Parameter], steps: range, divisor: float = 1.0) -> None:
    for step in steps:
        give(learnt, step, divisor)
        optim.set_lr(optimizer, 0.01 * (step + 1))
        optimizer.step()


def exact(kind: type[AdamW], epsilon: float) -> tuple[torch.optim.AdamW, list[nn.Parameter]]:
    """torch's plainest AdamW, in float64."""
    learnt = parameters(dtype=torch.float64)
    optimizer = torch.optim.AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=epsilon, foreach=False)
    init_adam_state(optimizer, kind.initial_step)
    return optimizer, learnt


def close(found: Tensor, should: Tensor) -> None:
    """To the last bits of the largest element: an average may be the small difference of two large numbers."""
    largest = max(should.abs().flatten().tolist(), default=0.0)
    torch.testing.assert_close(found.double(), should.double(), rtol=2e-6, atol=1e-6 * largest)


def agree(
    ours: list[nn.Parameter], mine: torch.optim.Optimizer, theirs: list[nn.Parameter], other: torch.optim.Optimizer
) -> None:
    for number, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(
            one.double(), two.double(), rtol=1e-6, atol=1e-6, msg=lambda t, n=number: f"{n}: {t}"
        )
        for key in ("exp_avg", "exp_avg_sq", "step"):
            close(mine.state[one][key], other.state[two][key])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Our kernel on a CPU, in the interpreter, which takes its time for each block; what it was called with."""
    from etude.train import adam_kernel

    monkeypatch.setattr(adam_kernel, "BLOCK", 4096)  # of the largest three, one of them not full
    seen: list[dict[str, Any]] = []
    plain = adam_kernel.step

    def step(*given: Any, **more: Any) -> None:
        seen.append(more)
        plain(*given, **more)

    monkeypatch.setattr(adam_kernel, "step", step)
    monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: adam_kernel)
    yield seen
    tensor_lists._split_into_chunks.cache_clear()


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", [AdamW, Adam])
@pytest.mark.parametrize(("block", "epsilon"), [(1024, 1e-6), (4096, 1e-12)])
def test_steps_are_adamws(
    kind: type[AdamW], block: int, epsilon: float, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from etude.train import adam_kernel

    monkeypatch.setattr(adam_kernel, "BLOCK", block)
    learnt = parameters()
    optimizer = kind(groups(learnt), lr=0.01, betas=BETAS, eps=epsilon, fused=True)
    walk(optimizer, learnt, range(STEPS))
    reference, theirs = exact(kind, epsilon)
    walk(reference, theirs, range(STEPS))
    agree(learnt, optimizer, theirs, reference)
    assert len(calls) == STEPS
    counts = [optimizer.state[parameter]["step"].item() - kind.initial_step for parameter in learnt]
    assert counts == ([5, 5, 5, 4, 5, 5] if kind is AdamW else [0] * 6)  # BERT's stands still


@pytest.mark.interpreted
def test_lrs_on_the_device_take_the_same_steps(calls: list[Any]) -> None:
    ours, theirs = parameters(), parameters()
    plain = AdamW(groups(ours), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    recorded = AdamW(groups(theirs), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    for group, lr in zip(recorded.param_groups, torch.zeros(3, dtype=torch.float64).unbind(), strict=True):
        group["lr"] = lr
    walk(plain, ours, range(STEPS))
    walk(recorded, theirs, range(STEPS))
    assert len(calls) == 2 * STEPS
    assert all(torch.equal(own, twin) for own, twin in zip(ours, theirs, strict=True))


@pytest.mark.interpreted
def test_tables_of_a_recording_are_filled_when_it_is_over(calls: list[Any]) -> None:
    """As a CUDA graph does it: addresses are not final in the step that allocates the tables."""
    learnt = parameters()
    optimizer = AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    tables = tensor_lists.StaticTables()
    give(learnt, 0)
    with tables.allocate():
        optimizer.step()
    first = [table.clone() for table in tables.tables]
    grads = [parameter.grad for parameter in learnt]  # alive: the tables still name their addresses
    give(learnt, 1)  # gradients in other places
    before = [parameter.detach().clone() for parameter in learnt]
    with tables.record():
        optimizer.step()  # here it runs, with the tables of the step before it
    del grads
    assert len(tables.tables) == len(first) and tables.constants
    expected = tensor_lists.copy_to_device(tables.contents[0], torch.device("cpu"))
    assert torch.equal(tables.tables[0], expected) and not torch.equal(first[0], expected)
    assert not all(torch.equal(p, old) for p, old in zip(learnt, before, strict=True))
    with pytest.raises(RuntimeError, match="another size"), tables.record():
        tensor_lists.copy_to_device(np.zeros(3, np.int64), torch.device("cpu"))


@pytest.mark.interpreted
def test_gradients_are_divided_and_left_alone(calls: list[Any]) -> None:
    learnt = parameters()
    optimizer = AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    optimizer.grad_scale = torch.tensor(3.0)  # type: ignore[attr-defined]
    walk(optimizer, learnt, range(STEPS))
    given = [parameter.grad.clone() for parameter in learnt if parameter.grad is not None]
    give(learnt, STEPS - 1)
    assert all(torch.equal(p.grad, g) for p, g in zip(learnt, given, strict=True) if p.grad is not None)
    reference, theirs = exact(AdamW, 1e-8)
    walk(reference, theirs, range(STEPS), divisor=3.0)
    agree(learnt, optimizer, theirs, reference)
    assert len(calls) == STEPS


@pytest.mark.interpreted
def test_clipping_rides_along(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optim, "supports_grad_scale", lambda *_: True)
    one, other = parameters(), parameters()
    for learnt, own in ((one, True), (other, False)):
        optimizer = AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
        for step in range(STEPS):
            give(learnt, step)
            optim.clip_gradients(learnt, 0.5, optimizer if own else None)
            optimizer.step()
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert [bool(call["grad_scale"] is not None) for call in calls] == [True] * STEPS + [False] * STEPS


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", [AdamW, Adam])
def test_a_step_with_bad_gradients_is_none(kind: type[AdamW], calls: list[Any]) -> None:
    learnt = parameters()
    optimizer = kind(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    walk(optimizer, learnt, range(2))
    before = [t.clone() for p in learnt for t in (p.detach(), *optimizer.state[p].values())]
    optimizer.found_inf = torch.tensor(1.0)  # type: ignore[attr-defined]
    for parameter in learnt:
        parameter.grad = torch.full_like(parameter, torch.nan)
    optimizer.step()
    after = [t for p in learnt for t in (p.detach(), *optimizer.state[p].values())]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    walk(optimizer, learnt, range(2, STEPS))
    reference, theirs = exact(kind, 1e-8)
    walk(reference, theirs, range(STEPS))
    agree(learnt, optimizer, theirs, reference)
    assert len(calls) == STEPS + 1


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", [AdamW, Adam])
def test_loaded_state_goes_on_bit_for_bit(
    kind: type[AdamW], calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an optimiser that has taken steps before, too: its counts are those of the file from then on."""
    straight = parameters()
    optimizer = kind(groups(straight), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    walk(optimizer, straight, range(3))
    state = optim.state_tensors(optimizer, named(straight))
    save_file(state | {f"weight/{n}": p.detach() for n, p in named(straight)}, tmp_path / "state.safetensors")
    walk(optimizer, straight, range(3, STEPS))
    for warm in (False, True):
        resumed = parameters(seed=7)
        other = kind(groups(resumed), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
        if warm:
            walk(other, resumed, range(1))
        saved = load_file(tmp_path / "state.safetensors")
        with torch.no_grad():
            for name, parameter in named(resumed):
                parameter.copy_(saved.pop(f"weight/{name}"))
        optim.load_state_tensors(other, named(resumed), saved)
        walk(other, resumed, range(3, STEPS))
        for mine, theirs in zip(resumed, straight, strict=True):
            assert torch.equal(mine, theirs)
            for key, value in optimizer.state[theirs].items():
                assert torch.equal(other.state[mine][key], value), key
    # and torch's own steps leave, and take, a state of the same names and forms
    monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: None)
    plain = parameters()
    theirs_alone = kind(groups(plain), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    walk(theirs_alone, plain, range(3))
    left = optim.state_tensors(theirs_alone, named(plain))
    assert {k: (t.shape, t.dtype) for k, t in left.items()} == {k: (t.shape, t.dtype) for k, t in state.items()}
    for key, value in load_file(tmp_path / "state.safetensors").items():
        if key in left:
            close(left[key], value)


@pytest.mark.interpreted
def test_addresses_need_not_be_round(calls: list[Any]) -> None:
    learnt, rounder = parameters(), parameters()
    for own, values in ((True, learnt), (False, rounder)):
        optimizer = AdamW(groups(values), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
        for step in range(2):
            give(values, step)
            if own:
                for parameter in values:
                    assert parameter.grad is not None
                    shifted = torch.empty(parameter.numel() + 1)[1:].view(parameter.shape)
                    parameter.grad = shifted.copy_(parameter.grad)
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(learnt, rounder, strict=True))
    assert len(calls) == 4


class Recorder:
    """In the kernel's place: counts what would go to it."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, *_: Any, **__: Any) -> None:
        self.steps += 1


def turned(learnt: list[nn.Parameter], optimizer: AdamW) -> None:
    learnt[4].grad = torch.randn(100, 100).t()


def narrow(learnt: list[nn.Parameter], optimizer: AdamW) -> None:
    learnt[4].data = learnt[4].data.bfloat16()
    learnt[4].grad = torch.randn(100, 100).bfloat16()
    init_adam_state(optimizer)


def betas(learnt: list[nn.Parameter], optimizer: AdamW) -> None:
    optimizer.param_groups[1]["betas"] = (0.8, 0.9)


def unfused(learnt: list[nn.Parameter], optimizer: AdamW) -> None:
    for group in optimizer.param_groups:
        group["fused"] = None


def newcomer(learnt: list[nn.Parameter], optimizer: AdamW) -> None:
    extra = nn.Parameter(torch.ones(3))
    extra.grad = torch.ones(3)
    optimizer.add_param_group({"params": [("new", extra)], "scale": 1.0})


@pytest.mark.parametrize("change", [None, turned, narrow, betas, unfused, newcomer])
def test_what_is_not_plain_goes_to_torch(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: recorder)
    learnt = parameters()
    optimizer = AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
    give(learnt, 0)
    if change is not None:
        change(learnt, optimizer)
    before = learnt[0].detach().clone()
    optimizer.step()
    assert recorder.steps == (change is None)
    assert torch.equal(learnt[0], before) == (change is None)  # the recorder moves nothing, torch does
    if change is newcomer:
        optimizer.step()
        assert recorder.steps == 1  # its state is there now


def test_a_cpu_has_torchs_step() -> None:
    assert optimizers.load_adam_kernel(torch.device("cpu")) is None


# On a GPU

SHAPES = [(50257, 64), (768,), (3072, 768), (1,), (5,), (4097,), (768, 768)]


def large(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 0.1 for shape in SHAPES]


def descend(optimizer: torch.optim.Optimizer, learnt: list[nn.Parameter]) -> list[Tensor]:
    """A few steps as the loop takes them, clipped, one of them left out; returns all there is afterwards."""
    for step in range(6):
        for parameter, drawn in zip(learnt, large(100 + step), strict=True):
            parameter.grad = drawn.cuda()
        scale, found = torch.tensor(1.7 + step).cuda(), torch.tensor(float(step == 3)).cuda()
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.grad_scale, optimizer.found_inf = scale, found  # type: ignore[attr-defined]
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * (step + 1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return [t.clone() for p in learnt for t in (p.detach(), *optimizer.state[p].values())]


def test_torch_takes_a_step_with_an_lr_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our kernel does not run (a GPU before Ampere, no Triton): torch's reads float32, and refuses float64."""
    lrs: list[Tensor] = []
    monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: None)
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *_, lr, **__: lrs.append(lr))
    with FakeTensorMode():  # tensors of a GPU that is not there
        learnt = [nn.Parameter(torch.zeros(size, device="cuda")) for size in SIZES]
        optimizer = AdamW(groups(learnt), lr=0.01, betas=BETAS, eps=1e-8, fused=True)
        on_device = torch.zeros(3, dtype=torch.float64, device="cuda").unbind()
        for group, lr in zip(optimizer.param_groups, on_device, strict=True):
            group["lr"] = lr
        for parameter in learnt:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert [(lr.dtype, lr.device.type) for lr in lrs] == [(torch.float32, "cuda")] * 3
    # what a recorded step fills in, and reads, stays in its place
    assert all(group["lr"] is lr for group, lr in zip(optimizer.param_groups, on_device, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "muon"])
def test_torch_takes_a_step_with_an_lr_on_a_gpu(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same step as with a number of the host, to the rounding of the lr."""
    monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: None)
    ends = []
    for is_on_device in (False, True):
        learnt = parameters(device="cuda")
        built = optim.build(Settings(steps=10, optimizer=optimizer), named(learnt))
        if is_on_device:
            for group in built.param_groups:
                group["lr"] = torch.zeros((), dtype=torch.float64, device="cuda")
        walk(built, learnt, range(STEPS))
        ends.append(learnt)
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [AdamW, Adam])
def test_a_gpu_takes_torchs_step_and_the_same_one_each_time(kind: type[AdamW], monkeypatch: pytest.MonkeyPatch) -> None:
    from etude.train import adam_kernel

    taken: list[int] = []
    plain = adam_kernel.step

    def counted(*given: Any, **more: Any) -> None:
        taken.append(1)
        plain(*given, **more)

    monkeypatch.setattr(adam_kernel, "step", counted)
    ends = []
    for own in (True, True, False):
        if not own:
            monkeypatch.setattr(optimizers, "load_adam_kernel", lambda device: None)
        learnt = [nn.Parameter(drawn.cuda()) for drawn in large(0)]
        split = [{"params": learnt[:3], "weight_decay": 0.1}, {"params": learnt[3:], "weight_decay": 0.0}]
        ends.append(descend(kind(split, lr=1e-3, betas=(0.9, 0.98), eps=1e-6, fused=True), learnt))
    assert len(taken) == 12
    assert all(torch.equal(a, b) for a, b in zip(ends[0], ends[1], strict=True))
    for mine, theirs in zip(ends[0], ends[2], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
