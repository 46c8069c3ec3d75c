"""The plan of a recipe: image tokens before training."""

import pytest
from rich.console import Console

from curate.core.errors import RecipeError
from distill.commands.plan import plan
from distill.context import StageContext
from distill.recipe import Recipe, load_recipe, parse_recipe
from distill.samples.batches.stream import StepPlan
from distill.samples.sources.mixture import open_mixture
from distill.training.plan import plan_stages
from distill.training.progress import short
from tests.distill.training.test_stages import ALONE


def test_amoe_plans_the_tokens_of_the_paper():
    """Sections 3.4, 4 and 4.1: 768 x (50k x 2,048 + 90k x about 2,190) = 230 billion image tokens."""
    console = Console(record=True, width=120)
    first, second = plan(load_recipe("amoe"), console)
    assert (first.steps, first.sequences, first.images, first.tokens) == (50_000, 768, 8, 2048)
    assert (second.steps, second.sequences) == (90_000, 768)
    assert second.tokens == pytest.approx(2190, rel=0.02)
    assert first.total + second.total == pytest.approx(230e9, rel=0.001)
    assert "140,000 steps, 229.9B image tokens if each image fills its max_tokens" in console.export_text()


def test_the_plan_of_a_mixture_is_what_training_reads(values, monkeypatch):
    monkeypatch.setattr("distill.training.plan._BLOCK", 7)
    source = values["data"]["sources"][0]
    values["data"] |= {"sequence_tokens": 90, "test_fraction": 0.0}
    values["data"]["sources"] = [
        source | {"weight": 2, "max_tokens": {4: 1, 16: 1}},
        source | {"weight": 1, "max_tokens": 64, "natural_side": [None, 47]},
    ]
    recipe = parse_recipe(values, "test")
    found = plan_stages([recipe], [mixture := open_mixture(recipe.data)])[0]
    context = StageContext.of(recipe, mixture, ALONE)
    steps = [step for step, _ in zip(context.stream().steps(), range(200), strict=False)]
    sequences = sum(len(step.sequences) for step in steps)
    assert found.images == pytest.approx(sum(map(images, steps)) / sequences, rel=0.05)
    assert found.tokens == pytest.approx(sum(tokens(step, context) for step in steps) / sequences, rel=0.05)


def images(step: StepPlan) -> int:
    return sum(map(len, step.sequences))


def tokens(step: StepPlan, context: StageContext) -> int:
    pairs = zip(step.sequences, step.epochs, strict=True)
    return sum(int(context.reader.tokens(rows, epochs).sum()) for rows, epochs in pairs)


def test_modalities_take_steps_in_proportion_to_their_images(values):
    source = values["data"]["sources"][0]
    values["data"]["sources"] = [
        source | {"weight": 3, "max_tokens": 13},  # 4 images of 16 tokens in a sequence
        source | {"weight": 1, "max_tokens": 29, "modality": "video"},  # 2 of 32
    ]
    values["train"]["sequences"] = {"image": 3, "video": 2}
    found = plan_of(values)
    images, videos = 3 / 12, 1 / 4  # steps per image of the mixture: equally many
    assert found.sequences == pytest.approx((3 * images + 2 * videos) / (images + videos))
    assert found.sequences * found.tokens == pytest.approx((3 * 52 + 2 * 58) / 2)


def plan_of(values) -> object:
    recipe: Recipe = parse_recipe(values, "test")
    return plan_stages([recipe], [None])[0]


def test_a_recipe_without_weights_cannot_be_planned_without_its_data(values):
    values["data"]["sources"] *= 2
    with pytest.raises(RecipeError, match=r"^data\.sources: without weights .*; give each source a weight") as caught:
        plan_of(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"), [(12, "12"), (99_999, "99999"), (100_000, "0.1M"), (172.3e6, "172.3M"), (227.8e9, "227.8B")]
)
def test_large_numbers_are_short(count, text):
    assert short(count) == text
