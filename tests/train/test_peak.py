"""A measured peak is one that real products come near to and do not pass; memory as torch counts it."""

import mmap
import time

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from etude.models import transformer
from etude.nn.losses import linear_cross_entropy
from etude.nn.packed import pack
from etude.train import memory, optim, peak
from etude.train.settings import Settings
from tests.half_precision import may_lack_bf16


class SimulatedCpu:
    """Products that take their time on a clock of their own: no machine is too busy for what is said about it."""

    def __init__(self, monkeypatch, flops, waiting=0.0, overhead=0):
        self.flops, self.waiting, self.overhead = flops, waiting, overhead
        self.now, self.sizes = 0.0, []
        monkeypatch.setattr(peak, "_make_matrices", lambda size, device, dtype: (range(size),) * 3)
        monkeypatch.setattr(peak, "_time_product", self.time_product)
        monkeypatch.setattr(peak.time, "perf_counter", lambda: self.now)

    def time_product(self, left, *_):
        size = len(left)
        self.sizes.append(size)
        seconds = self.waiting + 2 * size**2 * (size + self.overhead) / self.flops
        self.now += seconds
        return seconds


def test_a_product_is_timed_on_the_gpu_that_computes_it(monkeypatch):
    """Not on the current one, which may be another: it would have taken no time at all."""
    streams = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream=None):
            streams.append(stream)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    with FakeTensorMode():  # tensors of a GPU that is not there
        matrices = [torch.empty(4, 4, device="cuda:1") for _ in range(3)]
        assert peak._time_product(*matrices) == 0.002
    assert streams == ["the stream of cuda:1"] * 2


@pytest.fixture
def _nothing_measured():
    peak._measure.cache_clear()
    yield
    peak._measure.cache_clear()


@pytest.mark.parametrize("flops", [20e9, 1e12, 1e14])
def test_the_peak_is_that_of_products_that_are_large_enough(monkeypatch, flops):
    cpu = SimulatedCpu(monkeypatch, flops, overhead=64)  # a product of 128 reaches two thirds of the peak
    measured = peak._measure.__wrapped__(torch.device("cpu"), "float32", 2, "highest")
    assert 0.9 * flops < measured <= flops
    assert cpu.now < 2 * peak.SECONDS and max(cpu.sizes) <= peak.MAX_SIZE


@pytest.mark.usefixtures("_nothing_measured")
def test_the_peak_is_measured_once_for_each_setting(monkeypatch):
    cpu = SimulatedCpu(monkeypatch, 50e9)
    measured, products = peak.measure_peak("cpu", "float32"), len(cpu.sizes)
    assert peak.measure_peak(torch.device("cpu"), "float32") == measured and len(cpu.sizes) == products
    cpu.flops = 10e9
    assert peak.measure_peak("cpu", "bf16") < measured and len(cpu.sizes) > products
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert peak.measure_peak("cpu", "float32") < measured


def test_waiting_threads_of_a_busy_cpu_are_not_the_peak(monkeypatch):
    """Each product waits 100 ms for a thread that does not run; the rest is done at 50 GFLOP/s."""
    cpu = SimulatedCpu(monkeypatch, 50e9, waiting=0.1)
    measured = peak._measure.__wrapped__(torch.device("cpu"), "float32", 2, "highest")
    assert 50e9 / 4 < measured <= 50e9 and cpu.now < 1.5


def test_a_real_product_is_timed():
    left, right, out = peak._make_matrices(32, torch.device("cpu"), torch.float32)
    assert peak._time_product(left, right, out) > 0
    torch.testing.assert_close(out, left @ right)


@pytest.mark.slow  # by a real clock: on a machine that others use it says something of them
def test_the_peak_is_near_what_real_products_reach():
    measured = peak._measure.__wrapped__(torch.device("cpu"), "float32", torch.get_num_threads(), "highest")
    matrices = peak._make_matrices(1024, torch.device("cpu"), torch.float32)
    best = 2 * 1024**3 / min(peak._time_product(*matrices) for _ in range(20))
    assert 0.25 < best / measured < 4


@pytest.mark.parametrize(
    ("gains", "is_faster", "widths"),
    [
        ((3.0, 3.0, 3.0, 3.0), True, 4),
        ((0.5, 0.5, 1.0, 2.0), True, 4),  # casts cost more than small products gain
        ((3.0, 3.0, 3.0, 1.2), False, 4),  # what stays in float32 dilutes that
        ((1 / 400, 1 / 400, 1 / 400, 1 / 400), False, 1),  # a chip without bf16: found out in milliseconds
        ((1.0, 1 / 5, 3.0, 3.0), False, 2),
    ],
)
def test_bf16_is_chosen_only_where_it_is_faster(monkeypatch, gains, is_faster, widths):
    timed = []

    def time_layer(width, bf16):
        timed.append(width)
        disturbed = len(timed) % 3 == 0  # by another process: the best of several counts
        return (10.0 if disturbed else 1.0) / (gains[(32, 64, 128, 256).index(width)] if bf16 else 1.0)

    monkeypatch.setattr(peak, "_time_layer", time_layer)
    assert peak.is_bf16_faster_on_cpu.__wrapped__() == is_faster
    assert len(set(timed)) == widths


@may_lack_bf16
def test_precisions_are_resolved(monkeypatch):
    assert peak._time_layer(32, bf16=True) > 0 and peak._time_layer(32, bf16=False) > 0
    for is_faster, chosen in ((True, "bf16"), (False, "float32")):
        monkeypatch.setattr(peak, "is_bf16_faster_on_cpu", lambda is_faster=is_faster: is_faster)
        assert peak.resolve_precision("auto", "cpu") == chosen
    assert peak.resolve_precision("bf16", "cpu") == "bf16" and peak.resolve_precision("float32", "cpu") == "float32"


def test_published_peaks_are_found_by_whole_words():
    assert peak.published_peak("NVIDIA H200") == peak.published_peak("NVIDIA H100 80GB HBM3") == 989.5e12
    assert peak.published_peak("NVIDIA H100 PCIe") == 756e12
    assert peak.published_peak("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak.published_peak("NVIDIA L40") != peak.published_peak("NVIDIA L4") != peak.published_peak("NVIDIA L40S")
    assert peak.published_peak("NVIDIA RTX A4000") is None  # no A40


# Memory


def tiny(**values):
    defaults = {"layers": 3, "width": 32, "heads": 4, "vocab": 100, "context": 32}
    return transformer.Settings(**(defaults | values))


@pytest.mark.parametrize("kind", ["adamw", "adam", "lamb", "sgd", "adagrad", "muon"])
def test_weights_and_optimiser_state_are_exact(kind):
    model = transformer.build(tiny())
    settings = Settings(steps=1, optimizer=kind)
    named = [(f"model.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = optim.build(settings, named)
    estimate = memory.estimate(settings, named, micro_tokens=64, precision="float32", model=model)
    held = [value for state in optimizer.state.values() for value in state.values()]
    assert estimate.parameters == estimate.gradients == sum(p.numel() * 4 for p in model.parameters())
    assert estimate.optimizer == sum(value.nbytes for value in held)


@pytest.mark.parametrize(
    ("values", "precision"),
    [
        ({}, "float32"),
        ({"norm": "post", "embedding_norm": True}, "float32"),
        ({"dropout": 0.1, "embedding_dropout": 0.1}, "float32"),
        ({"attention_dropout": 0.1}, "float32"),
        ({"gated": True}, "float32"),
        ({"positions": "rotary"}, "float32"),
        ({"activation": "relu"}, "float32"),
        ({"share": "all"}, "float32"),
        ({}, "bf16"),
        ({"norm": "post", "dropout": 0.1, "attention_dropout": 0.1}, "bf16"),
    ],
)
@may_lack_bf16
def test_activations_are_what_autograd_keeps(values, precision):
    settings = tiny(**values)
    model = transformer.build(settings).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor too: its address must stay taken
        return tensor

    bf16 = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")
    with bf16, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(pack([np.arange(32)] * 16))
    measured = sum(size for size, _ in kept.values())
    if precision == "bf16":  # weights of projections in bf16 are counted apart, as casts
        measured -= sum(2 * p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    estimated = model.activation_bytes(16 * 32, 2 if precision == "bf16" else 4, "cpu")
    assert 0.8 < estimated / measured < 1.25


def test_a_model_without_a_count_says_so():
    named = [("model.weight", torch.nn.Parameter(torch.ones(1000)))]
    estimate = memory.estimate(Settings(steps=1), named, micro_tokens=64, precision="float32")
    assert estimate.activations is None and "activations unknown" in str(estimate)
    assert estimate.total == 4000 + 4000 + 8004


def test_advice_names_three_settings_with_values():
    settings = Settings(steps=1, batch_tokens=8192, micro_tokens=3000, precision="float32")
    text = memory.suggest_settings(settings, 512, "cuda")
    assert "5 rows of 512 tokens" in text and "train.micro_tokens=1024 " in text  # 2 of 5 rows
    assert "train.precision=bf16" in text and "objective.row_tokens=256 " in text and text.count(";") == 2

    last = Settings(
        steps=1, batch_tokens=512, precision="bf16"
    )  # nothing left to split, nothing to shorten but the row
    text = memory.suggest_settings(last, 512, "cuda", layers=12)
    assert "micro_tokens" not in text and "precision" not in text
    assert "objective.row_tokens=256" in text and "model.layers=6" in text and text.count(";") == 2

    task = memory.suggest_settings(Settings(epochs=3, batch_examples=32, precision="float32"), None, "cpu")
    assert "train.micro_tokens=2048" in task and "train.batch_examples=16" in task and task.count(";") == 2
    halved = memory.suggest_settings(Settings(epochs=3, batch_examples=32, micro_tokens=1000), None, "cpu")
    assert "train.micro_tokens=500 " in halved


def test_memory_in_use_grows_with_what_is_held():
    before = memory.bytes_in_use("cpu")
    if before is None:
        pytest.skip("this system does not say how much memory a process holds")
    size = 80_000_000
    with mmap.mmap(-1, size) as held:  # a tensor may lie where another one was, which costs nothing
        held.write(b"\1" * size)
        assert memory.bytes_in_use("cpu") - before > 0.5 * size


# On a GPU


@pytest.mark.gpu
def test_a_gpu_reaches_a_good_part_of_its_published_peak():
    published = peak.published_peak(torch.cuda.get_device_name())
    started = time.perf_counter()
    measured = peak.measure_peak("cuda", "bf16")
    print(f"{measured / 1e12:.0f} TFLOP/s in {time.perf_counter() - started:.2f} s")
    if published is None:
        pytest.skip("no published figure for this GPU")
    assert 0.5 < measured / published < 1.05


@pytest.mark.gpu
@pytest.mark.parametrize("values", [{}, {"norm": "post", "dropout": 0.1}, {"gated": True, "positions": "rotary"}])
def test_the_estimate_is_near_what_a_gpu_holds_at_its_height(values):
    settings = tiny(layers=12, width=768, heads=12, vocab=30_000, context=512, **values)
    train = Settings(steps=1, precision="bf16")
    model = transformer.build(settings).cuda().train()
    named = [(f"model.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = optim.build(train, named)
    tokens = 64 * 512
    packed = pack([np.arange(512) % 30_000] * 64).to("cuda")
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        states = model(packed)
        loss = linear_cross_entropy(states.last, model.embedding.tokens.weight, None, packed.tokens)
    loss.backward()
    optimizer.step()
    height = torch.cuda.max_memory_allocated()
    estimate = memory.estimate(train, named, micro_tokens=tokens, precision="bf16", model=model, device="cuda")
    print(f"{values}: held {height / 1e9:.2f} GB, estimated {estimate}")
    assert 0.85 < estimate.total / height < 1.15
