"""The train: group: one budget, readable numbers, refusals with a remedy."""

import pytest
from pydantic import ValidationError

from etude.train.settings import BatchRamp, Settings, override


def test_exactly_one_budget():
    for name in ("steps", "tokens", "flops", "minutes", "epochs"):
        assert getattr(Settings(**{name: 5}), name) == 5
    with pytest.raises(ValidationError, match="exactly one budget, but none is set"):
        Settings()
    with pytest.raises(ValidationError, match=r"train\.steps and train\.tokens"):
        Settings(steps=1, tokens=1)


def test_a_new_budget_takes_the_place_of_the_old_one():
    recipe = {"steps": 1_000_000, "lr": 1e-4}
    assert override(recipe, {"tokens": 10, "lr": 2e-4}) == {"tokens": 10, "lr": 2e-4}
    assert override(recipe, {"lr": 2e-4}) == {"steps": 1_000_000, "lr": 2e-4}
    assert override(recipe, {"steps": 7})["steps"] == 7


@pytest.mark.parametrize("written", ["1e9", "1.0e+9", 1e9, "1_000_000_000", 1_000_000_000])
def test_whole_numbers_as_yaml_reads_them(written):
    settings = Settings(tokens=written)
    assert settings.tokens == 10**9 and isinstance(settings.tokens, int)


@pytest.mark.parametrize("name", ["flops", "minutes", "epochs", "lr", "weight_decay"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_no_setting_is_infinite(name, value):
    with pytest.raises(ValidationError, match="finite"):
        Settings(**{"steps": 1} | {name: value})


@pytest.mark.parametrize("written", ["1.5", 1.5, "many", 0, -3])
def test_not_a_number_of_tokens(written):
    with pytest.raises(ValidationError):
        Settings(tokens=written)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup": 10.5}, "must be whole"),
        ({"device": "tpu"}, "set cpu, cuda or cuda:N"),
        ({"device": "cuda:"}, "set cpu, cuda or cuda:N"),
        ({"lr_schedule": "constant", "final_lr": 0.1}, "remove train.final_lr"),
        ({"lr_schedule": "inverse_sqrt", "warmup": 0}, "contains its own warm-up"),
        ({"lr_schedule": "inverse_sqrt", "warmup_shape": "switch"}, "contains its own warm-up"),
        ({"betas": (0.9, 1.0)}, "both must be below 1"),
        ({"optimizer": "adam", "betas": (0.9, 0.99999)}, "use adamw"),
        ({"optimizer": "sgd", "momentum": 0}, "train.nesterov=false"),
        ({"batch_examples": 8, "batch_ramp": BatchRamp(from_tokens=1, over_tokens=1)}, "remove one"),
        ({"batch_ramp": BatchRamp(from_tokens=10**6, over_tokens=10**6)}, "a ramp grows"),
        ({"lr": 0}, "greater than 0"),
        ({"optimizer": "adamax"}, "adamw"),
        ({"learning_rate": 1}, "learning_rate"),
    ],
)
def test_impossible_values_are_refused_with_the_reason(values, message):
    with pytest.raises(ValidationError, match=message):
        Settings(steps=10, **values)


def test_settings_survive_the_way_through_json():
    settings = Settings(steps=10, batch_ramp=BatchRamp(from_tokens=512, over_tokens=10_000), betas=(0.8, 0.95))
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
