"""Every optimiser against its formula written out in numpy; groups; state that comes back bit for bit."""

import copy
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from etude.errors import UserError
from etude.models import transformer
from etude.recipes.schema import Recipe
from etude.train import optim
from etude.train.optimizers import Adam, MuonAdamW
from etude.train.settings import Settings

OPTIMIZERS = ["adamw", "adam", "lamb", "sgd", "adagrad", "muon"]
STEPS = 6


class Small(nn.Module):
    """The loop's shape of things: a model with embeddings, a hidden matrix, a norm; a head."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.model = nn.ModuleDict(
            {
                "embedding": nn.ModuleDict({"tokens": nn.Embedding(11, 6)}),
                "attention": nn.ModuleList([nn.Linear(6, 8)]),
                "norm": nn.LayerNorm(8),
            }
        )
        self.objective = nn.ModuleDict({"output": nn.Linear(8, 3)})


def gradients(small, step):
    torch.manual_seed(1000 + step)
    for parameter in small.parameters():
        drawn = torch.randn(parameter.shape) * (0.1 + 0.3 * step)  # on the host, so that a GPU gets the same
        parameter.grad = drawn.to(parameter.device)


def rate_at(step):
    return 0.01 * (step + 1) / STEPS


def train(small, optimizer, steps):
    for step in steps:
        gradients(small, step)
        optim.set_lr(optimizer, rate_at(step))
        optimizer.step()


def build(small, **values):
    return optim.build(Settings(steps=10, **values), small.named_parameters())


def reference(update, decays, parameters):
    """Runs `update(p, g, state, lr, decay, t)` in float64 numpy over the same gradients and rates."""
    small = Small()
    values = {name: p.detach().double().numpy().copy() for name, p in small.named_parameters()}
    states = {name: {} for name in values}
    for step in range(STEPS):
        gradients(small, step)
        for name, parameter in small.named_parameters():
            gradient = parameter.grad.double().numpy()
            values[name] = update(values[name], gradient, states[name], rate_at(step), decays(name), step + 1)
    for name, parameter in parameters:
        np.testing.assert_allclose(parameter.detach().numpy(), values[name], rtol=1e-6, atol=1e-6, err_msg=name)


def matrices(name):
    """BERT's rule: all but norms and biases."""
    return 0.1 if name.endswith("weight") and "norm" not in name else 0.0


def moments(g, state, b1, b2):
    state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
    return state["m"], state["v"]


def test_adamw_is_its_formula():
    def update(p, g, state, lr, decay, t):
        m, v = moments(g, state, 0.9, 0.98)
        m, v = m / (1 - 0.9**t), v / (1 - 0.98**t)
        return p - lr * (m / (np.sqrt(v) + 1e-6) + decay * p)

    small = Small()
    train(small, build(small, weight_decay=0.1, betas=(0.9, 0.98), epsilon=1e-6), range(STEPS))
    reference(update, matrices, small.named_parameters())


def test_adam_has_no_bias_correction():
    def update(p, g, state, lr, decay, t):
        m, v = moments(g, state, 0.9, 0.999)
        return p - lr * (m / (np.sqrt(v) + 1e-6) + decay * p)

    small = Small()
    train(small, build(small, optimizer="adam", weight_decay=0.1, epsilon=1e-6), range(STEPS))
    reference(update, matrices, small.named_parameters())


@pytest.mark.parametrize("fused", [True, False])
def test_the_first_step_of_berts_adam_is_three_times_as_long(fused):
    # m / sqrt(v) = 0.1 g / sqrt(0.001 g^2) = sqrt(10): a corrected Adam moves by 1
    weight = nn.Parameter(torch.zeros(5))
    weight.grad = torch.tensor([1.0, -2.0, 0.5, 10.0, -0.01])
    optimizer = Adam([{"params": [weight]}], lr=1.0, betas=(0.9, 0.999), eps=1e-12, fused=fused)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    torch.testing.assert_close(weight.detach(), -math.sqrt(10) * weight.grad.sign())


def test_berts_first_step_at_rate_zero_moves_the_averages_only():
    small = Small()
    before = {name: p.detach().clone() for name, p in small.named_parameters()}
    optimizer = build(small, optimizer="adam")
    gradients(small, 0)
    optim.set_lr(optimizer, 0.0)
    optimizer.step()
    state = optim.state_tensors(optimizer, small.named_parameters())
    for name, parameter in small.named_parameters():
        assert torch.equal(parameter, before[name])
        torch.testing.assert_close(state[f"exp_avg/{name}"], 0.1 * parameter.grad)


def test_lamb_is_its_formula():
    def update(p, g, state, lr, decay, t):
        m, v = moments(g, state, 0.9, 0.999)
        step = m / (np.sqrt(v) + 1e-6) + decay * p
        ratio = np.linalg.norm(p) / np.linalg.norm(step) if decay else 1.0
        return p - lr * ratio * step

    small = Small()
    train(small, build(small, optimizer="lamb", weight_decay=0.1, epsilon=1e-6), range(STEPS))
    reference(update, matrices, small.named_parameters())


def test_lamb_moves_a_tensor_of_zeros():
    weight = nn.Parameter(torch.zeros(4, 4))
    optimizer = optim.build(Settings(steps=1, optimizer="lamb"), [("model.weight", weight)])
    weight.grad = torch.ones(4, 4)
    optimizer.step()
    assert torch.isfinite(weight).all() and (weight < 0).all()


def test_lamb_gives_queries_keys_and_values_a_ratio_each():
    torch.manual_seed(0)
    parts = [scale * torch.randn(4, 6) for scale in (0.1, 1.0, 3.0)]  # ALBERT's code has a variable for each
    grads = [scale * torch.randn(4, 6) for scale in (1.0, 1e-7, 1e-6)]
    together, apart = nn.Parameter(torch.cat(parts)), [nn.Parameter(part.clone()) for part in parts]
    settings = Settings(steps=10, optimizer="lamb", weight_decay=0.1, epsilon=1e-6)
    names = ["query", "key", "value"]
    optimizers = [
        optim.build(settings, [("model.attention.0.qkv.weight", together)]),
        optim.build(settings, [(f"model.{name}.weight", part) for name, part in zip(names, apart, strict=True)]),
    ]
    for _ in range(STEPS):
        together.grad = torch.cat(grads)
        for part, grad in zip(apart, grads, strict=True):
            part.grad = grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(together.detach(), torch.cat([part.detach() for part in apart]))


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_is_its_formula(nesterov):
    def update(p, g, state, lr, decay, t):
        g = g + decay * p
        state["b"] = 0.9 * state.get("b", 0.0) + g
        return p - lr * (g + 0.9 * state["b"] if nesterov else state["b"])

    small = Small()
    train(small, build(small, optimizer="sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.1), range(STEPS))
    reference(update, matrices, small.named_parameters())


def test_plain_sgd_keeps_nothing():
    small = Small()
    optimizer = build(small, optimizer="sgd", momentum=0, nesterov=False, weight_decay=0)
    train(small, optimizer, range(STEPS))
    reference(lambda p, g, state, lr, decay, t: p - lr * g, lambda name: 0.0, small.named_parameters())
    assert optim.state_tensors(optimizer, small.named_parameters()) == {}


def test_adagrad_is_its_formula():
    def update(p, g, state, lr, decay, t):
        g = g + decay * p
        state["s"] = state.get("s", 0.5) + g * g
        return p - lr * g / (np.sqrt(state["s"]) + 1e-8)

    small = Small()
    train(small, build(small, optimizer="adagrad", initial_accumulator=0.5, weight_decay=0.1), range(STEPS))
    reference(update, matrices, small.named_parameters())


def newton_schulz(matrix):
    """Jordan's quintic iteration, in float64: what Muon approximates in bfloat16."""
    flip = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if flip else matrix
    x = x / max(1e-7, np.linalg.norm(x))
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if flip else x


def test_muon_is_its_formula_on_hidden_matrices_and_adamw_elsewhere():
    def muon(p, g, state, lr, decay, t):
        state["b"] = 0.95 * state.get("b", 0.0) + 0.05 * g
        direction = newton_schulz(0.05 * g + 0.95 * state["b"])
        return p * (1 - lr * decay) - lr * 0.2 * math.sqrt(max(p.shape)) * direction

    def adamw(p, g, state, lr, decay, t):
        m, v = moments(g, state, 0.9, 0.999)
        return p - lr * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + decay * p)

    small = Small()
    optimizer = build(small, optimizer="muon", weight_decay=0.1)
    hidden = "model.attention.0.weight"
    kinds = {key.split("/")[0] for key in optim.state_tensors(optimizer, small.named_parameters()) if hidden in key}
    assert kinds == {"momentum_buffer"}  # and it alone: tokens and output have two moments
    others = [(name, p) for name, p in small.named_parameters() if name != hidden]
    assert all(f"exp_avg_sq/{n}" in optim.state_tensors(optimizer, others) for n, _ in others)

    def step_of(p, g, state, lr, decay, t):
        return adamw(p, g, state, lr, decay, t) if p.shape != (8, 6) else muon(p, g, state, lr, decay, t)

    before = dict(Small().named_parameters())[hidden].detach().numpy()
    train(small, optimizer, range(STEPS))
    reference(step_of, matrices, others)
    # the matrix goes through bfloat16, which has 8 bits: compared by the way it has gone
    values, state, twin = before.astype(np.float64), {}, Small()
    for step in range(STEPS):
        gradients(twin, step)
        gradient = dict(twin.named_parameters())[hidden].grad.double().numpy()
        values = muon(values, gradient, state, rate_at(step), 0.1, step + 1)
    went, should = dict(small.named_parameters())[hidden].detach().numpy() - before, values - before
    assert np.linalg.norm(went - should) < 0.03 * np.linalg.norm(should)


def test_muon_knows_which_weights_are_several_matrices():
    recipe = Recipe.load("encoder-modern-toy").resolve(vocab=300)
    model = transformer.build(recipe.model)
    named = [(f"model.{name}", parameter) for name, parameter in model.named_parameters()]
    optimizer = optim.build(Settings(steps=10, optimizer="muon"), named)
    matrices = [group for group in optimizer.param_groups if "stacked" in group]
    stacked = {id(p): group["stacked"] for group in matrices for p in group["params"]}
    found = {name: stacked[id(p)] for name, p in named if id(p) in stacked}
    width = recipe.model.width
    fused = {name for name, p in named if name in found and len(p) == 3 * width and p.shape[1] == width}
    assert fused and {name for name, count in found.items() if count == 3} == fused
    assert {count for name, count in found.items() if name not in fused} == {1}
    assert optim.count_stacked("model.layers.0.cross.key_value.weight") == 2
    assert optim.count_stacked("model.layers.0.attention.qkv.bias") == 1


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_comes_back_and_goes_on_bit_for_bit(kind, tmp_path):
    straight = Small()
    train(straight, build(straight, optimizer=kind), range(STEPS))

    first = Small()
    optimizer = build(first, optimizer=kind)
    train(first, optimizer, range(3))
    saved = optim.state_tensors(optimizer, first.named_parameters())
    save_file(saved, tmp_path / "state.safetensors")

    second = Small(seed=5)
    second.load_state_dict(first.state_dict())
    resumed = build(second, optimizer=kind)
    optim.load_state_tensors(resumed, second.named_parameters(), load_file(tmp_path / "state.safetensors"))
    again = optim.state_tensors(resumed, second.named_parameters())
    assert again.keys() == saved.keys() and all(torch.equal(again[key], saved[key]) for key in saved)
    train(second, resumed, range(3, STEPS))
    for (name, mine), (_, theirs) in zip(second.named_parameters(), straight.named_parameters(), strict=True):
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_names_do_not_change_from_step_0_on(kind):
    small = Small()
    optimizer = build(small, optimizer=kind)
    before = set(optim.state_tensors(optimizer, small.named_parameters()))
    train(small, optimizer, range(1))
    assert set(optim.state_tensors(optimizer, small.named_parameters())) == before


def test_adamw_counts_its_steps():
    small = Small()
    optimizer = build(small)
    train(small, optimizer, range(3))
    state = optim.state_tensors(optimizer, small.named_parameters())
    assert state["step/model.attention.0.weight"].item() == 3.0


def test_foreign_state_is_refused_by_name():
    small = Small()
    optimizer = build(small)
    state = {key: t.clone() for key, t in optim.state_tensors(optimizer, small.named_parameters()).items()}
    key = "exp_avg/model.attention.0.weight"
    for altered, message in [
        ({k: t for k, t in state.items() if k != key}, f"{key} is missing"),
        (state | {"exp_avg/other": torch.zeros(1)}, "exp_avg/other is unexpected"),
        (state | {key: torch.zeros(8, 7)}, rf"{key} is float32\[8, 7\] where float32\[8, 6\]"),
        (state | {key: state[key].bfloat16()}, "bfloat16"),
    ]:
        with pytest.raises(UserError, match=message):
            optim.load_state_tensors(optimizer, small.named_parameters(), altered)
    adam = build(small, optimizer="adam")
    with pytest.raises(UserError, match=r"run: step/model\.attention\.0\.bias is unexpected"):
        optim.load_state_tensors(adam, small.named_parameters(), state)


def test_muon_is_honest_in_its_state_dict():
    small, other = Small(), Small(seed=3)
    optimizer, fresh = build(small, optimizer="muon"), build(other, optimizer="muon")
    assert isinstance(fresh, MuonAdamW)
    train(small, optimizer, range(3))
    other.load_state_dict(small.state_dict())
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the tensors
    train(small, optimizer, range(3, STEPS))
    train(other, fresh, range(3, STEPS))
    for mine, theirs in zip(small.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


# Groups


def decayed(rule):
    small = Small()
    optimizer = build(small, decay_exclude=rule, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in small.named_parameters()}
    return {names[id(p)] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}


def test_what_decays():
    tokens, hidden, output = "model.embedding.tokens.weight", "model.attention.0.weight", "objective.output.weight"
    everything = {name for name, _ in Small().named_parameters()}
    assert decayed("norms and biases") == decayed("vectors") == {tokens, hidden, output}
    assert decayed("norms, biases and embeddings") == {hidden, output}
    assert decayed("nothing") == everything
    # they differ where a vector is neither norm nor bias, and where a bias is a matrix
    mix, table = ("model.mix", nn.Parameter(torch.ones(3))), ("objective.pair_bias", nn.Parameter(torch.ones(3, 3)))
    for rule, expected in [("norms and biases", "model.mix"), ("vectors", "objective.pair_bias")]:
        optimizer = optim.build(Settings(steps=1, decay_exclude=rule), [mix, table])
        assert [g["param_names"] for g in optimizer.param_groups if g["weight_decay"]] == [[expected]]


def test_layer_decay_is_electras():
    # 2 layers, heads at n + 2 as in ELECTRA's code: embeddings .8^4, layers .8^3 and .8^2
    named = [
        ("model.embedding.tokens.weight", nn.Parameter(torch.ones(2, 2))),
        ("model.attention.0.qkv.weight", nn.Parameter(torch.ones(2, 2))),
        ("model.attention.1.qkv.weight", nn.Parameter(torch.ones(2, 2))),
        ("objective.output.weight", nn.Parameter(torch.ones(2, 2))),
    ]
    depths = dict(zip([name for name, _ in named], [0, 1, 2, 4], strict=True))
    optimizer = optim.build(Settings(steps=1, layer_decay=0.8, lr=1.0), named, depths.get)
    optim.set_lr(optimizer, 10.0)
    found = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert list(found.values()) == pytest.approx([10 * 0.8**4, 10 * 0.8**3, 10 * 0.8**2, 10.0])
    with pytest.raises(UserError, match="layer_decay"):
        optim.build(Settings(steps=1, layer_decay=0.8), named)


def test_heads_can_have_a_rate_of_their_own():
    small = Small()
    optimizer = build(small, lr=1e-5, head_lr=1e-3)
    optim.set_lr(optimizer, 0.5e-5)  # half way down the schedule
    rates = {name: group["lr"] for group in optimizer.param_groups for name in group["param_names"]}
    assert rates["objective.output.bias"] == pytest.approx(0.5e-3)
    assert rates["model.attention.0.bias"] == pytest.approx(0.5e-5)


def test_frozen_and_doubled_parameters():
    small = Small()
    for parameter in small.model.parameters():
        parameter.requires_grad_(False)
    optimizer = build(small)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2
    small.requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        build(small)
    twice = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="one parameter"):
        optim.build(Settings(steps=1), [("a", twice), ("b", twice)])


# Gradients


def test_clipping_scales_the_common_norm():
    small = Small()
    gradients(small, 2)
    flat = torch.cat([p.grad.flatten() for p in small.parameters()])
    norm = optim.clip_gradients(small.parameters(), 0.5)
    torch.testing.assert_close(norm, flat.norm())
    clipped = torch.cat([p.grad.flatten() for p in small.parameters()])
    torch.testing.assert_close(clipped, flat * (0.5 / flat.norm()))
    torch.testing.assert_close(optim.clip_gradients(small.parameters(), 10.0), clipped.norm())
    again = torch.cat([p.grad.flatten() for p in small.parameters()])
    assert torch.equal(again, clipped)  # below the limit not one bit changes
    assert optim.clip_gradients(small.parameters(), None) == pytest.approx(0.5)
    assert optim.clip_gradients(Small().parameters(), 1.0).item() == 0.0


def test_a_step_that_divides_by_itself_is_the_step_of_clipped_gradients(monkeypatch):
    """As on a GPU: torch's fused AdamW has the same division on a CPU."""
    one, other = Small(), Small()
    other.load_state_dict(one.state_dict())
    for small, own in ((one, False), (other, True)):
        optimizer = optim.build(Settings(steps=10, optimizer="adamw", lr=0.1), small.named_parameters())
        assert not optim.supports_grad_scale(optimizer, torch.device("cpu"))
        assert optim.supports_grad_scale(optimizer, torch.device("cuda"))
        for step in range(3):
            gradients(small, step)
            before = [p.grad.clone() for p in small.parameters()]
            with monkeypatch.context() as patch:
                patch.setattr(optim, "supports_grad_scale", lambda *_: True)
                optim.clip_gradients(small.parameters(), 0.5, optimizer if own else None)
            assert all(torch.equal(p.grad, b) for p, b in zip(small.parameters(), before, strict=True)) == own
            optimizer.step()
    torch.testing.assert_close(list(one.parameters()), list(other.parameters()), rtol=1e-6, atol=1e-7)


def test_the_first_tensor_that_is_not_finite():
    good, bad = torch.ones(3), torch.tensor([1.0, math.nan])
    assert optim.first_nonfinite([("a", good), ("ids", torch.arange(3)), ("b", bad), ("c", bad)]) == "b"
    assert optim.first_nonfinite([("a", good), ("c", torch.tensor(math.inf))]) == "c"
    assert optim.first_nonfinite([("a", good)]) is None and optim.first_nonfinite([]) is None


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_gpu_does_the_same_and_nothing_waits_for_it(kind):
    here, there = Small(), Small().cuda()
    for small in (here, there):
        optimizer = build(small, optimizer=kind)
        for step in range(STEPS):
            gradients(small, step)
            torch.cuda.set_sync_debug_mode("error")
            try:
                optim.clip_gradients(small.parameters(), 0.5, optimizer)  # within the step, where that can do it
                optim.set_lr(optimizer, rate_at(step))
                optimizer.step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    loose = 0.01 if kind == "muon" else 1e-5  # Muon's products round in bfloat16, in another order
    for (name, mine), theirs in zip(here.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=loose, atol=loose, msg=lambda text, n=name: f"{n}: {text}")
