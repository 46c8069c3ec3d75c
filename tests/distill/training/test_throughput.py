import pytest
import torch

from distill.context import StageContext
from distill.parallel import World
from distill.recipe import apply_overrides, parse_recipe
from distill.samples.sources.dataset import Dataset
from distill.training.throughput import Cost, measured_peak, size_of

ALONE = World(0, 1, torch.device("cpu"))


def test_flops_agree_with_torchs_count(values, dataset: Dataset):
    """For a dense student. Only torch leaves out the embedding's gradient of its input, hence the tolerance."""
    from torch.utils.flop_counter import FlopCounterMode

    from distill.objectives.outputs import Outputs
    from distill.objectives.terms import terms_of

    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=24&num_heads=2&img_size=32&random=7"
    values["teachers"] = [{"encoder": "descriptor"}, {"encoder": spec, "name": "patches"}]
    context = StageContext.of(parse_recipe(values, "test"), dataset, ALONE)
    student, standardisers = context.new_student(), context.fit_standardisers()
    cost = Cost.of(student, context.recipe)
    micro = context.micro_batch([context.reader.get(row) for row in range(6)])
    with FlopCounterMode(display=False) as counter:
        outputs = Outputs.of(student, micro, context.spaces(standardisers))
        terms_of(context.recipe.every_objective, outputs).additive.backward()
    assert cost.flops(outputs.lengths, 3) == pytest.approx(counter.get_total_flops(), rel=0.15)


def test_only_visited_experts_are_counted(values, dataset: Dataset):
    values["student"]["moe"] = {"experts": 6, "active": 2, "hidden": 8}
    recipe = parse_recipe(values, "test")
    few = StageContext.of(recipe, dataset, ALONE)
    dense = StageContext.of(apply_overrides(recipe, ["student.moe.active=6"], "test"), dataset, ALONE)
    one, two = size_of(few.new_student(), few.recipe), size_of(dense.new_student(), dense.recipe)
    assert one.parameters == two.parameters == two.active
    experts = recipe.student.depth * 6 * 3 * 16 * 8
    assert two.active - one.active == experts * 4 // 6
    assert Cost.of(few.new_student(), few.recipe).token < Cost.of(dense.new_student(), dense.recipe).token


def test_the_peak_is_measured_once():
    peak = measured_peak(torch.device("cpu"), "float32", 1)
    assert peak > 1e8
    assert measured_peak(torch.device("cpu"), "float32", 1) == peak
