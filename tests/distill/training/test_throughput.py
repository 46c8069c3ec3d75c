import pytest
import torch

from distill.recipe import apply_overrides, parse_recipe
from distill.samples.sources.dataset import Dataset
from distill.training.parallel import World
from distill.training.throughput import Cost, measured_peak, size_of
from distill.workbench import Workbench

ALONE = World(0, 1, torch.device("cpu"))


def test_flops_are_those_that_torch_counts(values, dataset: Dataset):
    """Of a dense student; the embedding needs no gradient of its input, which is left out of the sum by torch only."""
    from torch.utils.flop_counter import FlopCounterMode

    from distill.objectives.objective import student_terms
    from distill.samples.batches.loader import collate

    spec = "timm:vit_tiny_patch16_224?depth=1&embed_dim=24&num_heads=2&img_size=32&random=7"
    values["teachers"] = [{"encoder": "descriptor"}, {"encoder": spec, "name": "patches"}]
    bench = Workbench.of(parse_recipe(values, "test"), dataset, ALONE)
    student, standards = bench.new_student(), bench.standards()
    cost = Cost.of(student, bench.recipe)
    batch = collate([bench.pictures.get(row) for row in range(6)])
    targets = bench.teachers.targets(batch)
    with FlopCounterMode(display=False) as counter:
        terms = student_terms(student, batch, targets, standards, bench.recipe)
        terms.additive.backward()
    patches = [rows * columns for rows, columns in batch.grids]
    assert cost.flops(patches, 3) == pytest.approx(counter.get_total_flops(), rel=0.15)


def test_a_token_visits_some_of_the_experts(values, dataset: Dataset):
    values["student"]["moe"] = {"experts": 6, "active": 2, "hidden": 8}
    recipe = parse_recipe(values, "test")
    few = Workbench.of(recipe, dataset, ALONE)
    all_of_them = Workbench.of(apply_overrides(recipe, ["student.moe.active=6"], "test"), dataset, ALONE)
    one, two = size_of(few.new_student(), few.recipe), size_of(all_of_them.new_student(), all_of_them.recipe)
    assert one.parameters == two.parameters == two.active
    experts = recipe.student.depth * 6 * 3 * 16 * 8
    assert two.active - one.active == experts * 4 // 6
    assert Cost.of(few.new_student(), few.recipe).token < Cost.of(all_of_them.new_student(), all_of_them.recipe).token


def test_the_peak_is_measured_once():
    peak = measured_peak(torch.device("cpu"), "float32", 1)
    assert peak > 1e8
    assert measured_peak(torch.device("cpu"), "float32", 1) == peak
