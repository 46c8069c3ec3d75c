import copy

import pytest
import torch
from torch import nn

from curate.encoders.student.config import HeadConfig
from distill.context import new_student
from distill.recipe import Recipe, apply_overrides, parse_recipe
from distill.training.optim import (
    Ema,
    build_optimizer,
    configure_optimizer,
    learning_rate,
    parameter_groups,
    rate_factors,
)


def with_sets(recipe: Recipe, *overrides: str) -> Recipe:
    return apply_overrides(recipe, overrides, "test")


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("linear", [0.25, 0.5, 0.75, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]),
        ("constant", [0.25, 0.5, 0.75, *[1.0] * 8]),
        ("cosine", [0.25, 0.5, 0.75, 1.0, 1.0, 0.959808, 0.85, 0.7, 0.55, 0.440192, 0.4]),
    ],
)
def test_the_learning_rate_rises_and_then_follows_the_schedule(recipe, schedule, rates):
    sets = ["steps=11", "warmup_steps=4", "learning_rate=1", "final_learning_rate=0.4", f"schedule={schedule}"]
    recipe = with_sets(recipe, *(f"train.{item}" for item in sets))
    assert [learning_rate(recipe.train, step, 11) for step in range(11)] == pytest.approx(rates, abs=1e-6)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.prefix = nn.Parameter(torch.ones(2, 3))
        self.body = nn.Linear(3, 3)
        self.again = self.body
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("bias", torch.zeros(4))


def test_only_matrices_decay_and_frozen_weights_are_in_no_group():
    model = Model()
    groups = parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0, 0.0]
    assert [{id(item) for item in group["params"]} for group in groups] == [
        {id(model.body.weight)}, {id(model.prefix), id(model.body.bias)}, {id(model.temperature)},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["adamw", "lion", "lamb"])
def test_each_optimiser_lowers_the_loss_and_takes_a_stages_settings(recipe, name):
    recipe = with_sets(recipe, f"train.optimizer={name}", "train.learning_rate=0.05")
    torch.manual_seed(0)
    model, x = nn.Linear(4, 1), torch.randn(32, 4)
    optimizer = build_optimizer(model, recipe.train)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    configure_optimizer(optimizer, with_sets(recipe, "train.weight_decay=0.5", "train.betas=[0.5, 0.6]").train)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)


def test_rates_by_part_and_by_layer_scale_the_learning_rate(values):
    """With two blocks: 1 above them, decay for the last, its square for the first, its cube for what comes before."""
    values["train"] |= {"rates": {"heads": 0.1, "backbone.blocks.1": 2.0}, "layer_decay": 0.5}
    values["student"] |= {"pre_norm": True}
    recipe = parse_recipe(values, "test")
    student = new_student(recipe, [HeadConfig(summary=4, patches=None, hidden=4)])
    factors = rate_factors(student, recipe.train)
    expected = {"backbone.embed": 0.125, "backbone.pre": 0.125, "backbone.blocks.0": 0.25, "backbone.blocks.1": 1.0,
                "backbone.norm": 1.0, "heads": 0.1}  # fmt: skip
    assert factors == {name: next(own for part, own in expected.items() if name.startswith(part)) for name in factors}
    groups = parameter_groups(student, 0.1, factors)
    assert {(group["factor"], group["decays"]) for group in groups} >= {(0.1, True), (0.125, False)}
    assert sum(len(group["params"]) for group in groups) == len(factors)


def test_betas_are_those_of_the_optimisers_authors(values):
    found = {}
    for name in ("adamw", "lamb", "lion"):
        recipe = parse_recipe(values | {"train": values["train"] | {"optimizer": name}}, "test")
        found[name] = recipe.train.betas
        assert parse_recipe(recipe.model_dump(mode="json"), "test").train.betas == recipe.train.betas
    assert found == {"adamw": (0.9, 0.999), "lamb": (0.9, 0.999), "lion": (0.9, 0.99)}


def test_lamb_is_that_of_you_et_al_as_a_loop_and_as_lists_of_weights(recipe):
    """timm's loop, which runs on a CPU, its lists, which run on a GPU, and the update written out, in float64."""
    train = with_sets(recipe, "train.optimizer=lamb", "train.learning_rate=0.1", "train.epsilon=1e-6").train
    models = [Model().double() for _ in range(2)]
    optimizers = [build_optimizer(model, train) for model in models]
    for group in optimizers[1].param_groups:
        group["foreach"] = True
    weight, first, second = models[0].body.weight.detach().clone(), torch.zeros(3, 3), torch.zeros(3, 3)
    models[1].load_state_dict(models[0].state_dict())
    random = torch.Generator().manual_seed(0)
    for step in range(1, 5):
        for items in zip(*(model.parameters() for model in models), strict=True):
            for item in items:
                item.grad = torch.zeros_like(item)
            items[0].grad.normal_(generator=random)
            items[1].grad.copy_(items[0].grad)
        grad = models[0].body.weight.grad
        first, second = 0.9 * first + 0.1 * grad, 0.999 * second + 0.001 * grad.square()
        update = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-6) + 0.02 * weight
        weight = weight - 0.1 * weight.norm() / update.norm() * update
        for optimizer in optimizers:
            optimizer.step()
        for one, two in zip(*(model.parameters() for model in models), strict=True):
            assert torch.allclose(one, two, rtol=1e-12, atol=1e-14)
        assert torch.allclose(models[0].body.weight, weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_adamw_is_that_of_loshchilov_and_hutter(recipe, dtype, rtol):
    """The fused kernel against the update written out, with weight decay for the matrix only."""
    train = with_sets(recipe, "train.epsilon=1e-15", "train.weight_decay=0.02", "train.learning_rate=1e-2").train
    model = Model().to(dtype)
    optimizer = build_optimizer(model, train)
    assert optimizer.defaults["fused"]
    names = [name for name, item in model.named_parameters() if item.requires_grad]
    weights = {name: model.get_parameter(name).detach().clone().double() for name in names}
    first, second = ({name: torch.zeros_like(value) for name, value in weights.items()} for _ in range(2))
    random = torch.Generator().manual_seed(0)
    for step in range(1, 8):
        for name in names:
            item = model.get_parameter(name)
            item.grad = torch.randn(item.shape, generator=random, dtype=dtype)
            grad = item.grad.double()
            first[name] = 0.9 * first[name] + 0.1 * grad
            second[name] = 0.999 * second[name] + 0.001 * grad.square()
            scaled = (first[name] / (1 - 0.9**step)) / ((second[name] / (1 - 0.999**step)).sqrt() + 1e-15)
            decay = 0.02 if name == "body.weight" else 0.0
            weights[name] = weights[name] * (1 - 1e-2 * decay) - 1e-2 * scaled
        optimizer.step()
    for name, expected in weights.items():
        assert torch.allclose(model.get_parameter(name).double(), expected, rtol=rtol, atol=rtol)


def test_the_moving_average_updates_shared_weights_once():
    model = Model().double()
    ema = Ema(model)
    start = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for item in [*model.parameters(), *model.buffers()]:
            item.add_(1.0)
    ema.update(model, 0.75)
    held = ema.state(model)
    assert held.keys() == start.keys()
    for name in ("prefix", "body.weight", "again.weight", "temperature"):
        assert torch.allclose(held[name], start[name] + 0.25, rtol=0, atol=1e-12)
    for name in ("bias", "frozen.weight"):
        assert torch.equal(held[name], start[name] + 1.0)
