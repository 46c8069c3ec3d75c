import numpy as np
import pytest
import torch
from torch import nn

from curate.encoders.student.config import MoeConfig
from curate.encoders.student.network.moe import Moe
from distill.context import StageContext
from distill.evaluation.tasks.alignment import Recorder, align, layers_of, on_grid, routed_inputs
from distill.evaluation.tasks.cka import cka, table
from distill.parallel import World
from distill.recipe import EvaluateRecipe, parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.images.reader import ImageReader
from distill.samples.sources.mixture import open_mixture

ALONE = World(0, 1, torch.device("cpu"))
VIT = "timm:vit_tiny_patch16_224?depth=3&embed_dim=32&num_heads=2&random=7"


def test_layers_of_the_image_tower_include_the_last():
    tower = nn.Sequential(nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(10)))
    model = nn.Module()
    model.visual, model.text = tower, nn.ModuleList(nn.Linear(4, 4) for _ in range(20))
    assert len(layers_of(model)) == 10
    chosen = layers_of(model, 3)
    assert list(chosen) == ["layer 4", "layer 7", "layer 10"]
    assert chosen["layer 10"] is tower[1][9]
    assert layers_of(nn.Linear(2, 2)) == {}


def test_tokens_are_resampled_to_the_students_grid_without_their_prefix():
    patches = torch.arange(24.0).view(2, 3, 4)
    tokens = torch.cat([torch.full((5, 4), -1.0), patches.flatten(0, 1)])[None]
    for prefix in (5, None):
        assert torch.equal(on_grid(tokens, prefix, (32, 48), (2, 3)), patches.flatten(0, 1))
    assert on_grid(tokens, 5, (32, 48), (1, 3)).shape == (3, 4)
    assert on_grid(tokens[:, :7], 0, (32, 32), (2, 3)) is None
    maps = patches.permute(2, 0, 1)[None]
    assert torch.equal(on_grid(maps, None, (32, 48), (2, 3)), patches.flatten(0, 1))


def test_a_recorder_leaves_no_hook_behind():
    layer = nn.Linear(2, 2)
    with Recorder({"a": layer}) as recorder:
        layer(torch.ones(1, 2))
    layer(torch.zeros(1, 2))
    assert torch.equal(recorder.inputs["a"], torch.ones(1, 2))
    assert not layer._forward_hooks


def test_an_experts_inputs_are_the_tokens_that_the_router_gives_it():
    torch.manual_seed(0)
    moe = Moe(8, MoeConfig(experts=5, active=2, hidden=8))
    moe.initialise()
    x = torch.randn(30, 8)
    chosen = moe.route(x)[1]
    for expert, (inputs, which) in enumerate(routed_inputs(moe, x)):
        assert which.tolist() == [token for token in range(30) if expert in chosen[token]]
        assert torch.equal(torch.from_numpy(inputs), x[which])


@pytest.fixture
def context(values) -> StageContext:
    values["student"]["moe"] = {"experts": 4, "active": 2, "hidden": 16}
    values["teachers"] = [{"encoder": f"{VIT}&img_size=32", "name": "vit"}]
    recipe = parse_recipe(values, "test")
    return StageContext.of(recipe, open_mixture(recipe.data), ALONE)


def test_layers_and_experts_are_compared_with_a_teachers_layers(context):
    student, teachers = context.new_student().eval(), context.teachers.with_empty_cache()
    images = ImageReader(context.dataset, patch=8, teachers=teachers)
    settings = EvaluateRecipe(cka_layers=2)
    rows, columns, values = table(align(student, teachers, images, list(range(12)), ALONE, settings))
    assert columns == ["vit: layer 2", "vit: layer 3", "vit: output"]
    assert rows[:2] == ["layer 1", "layer 2"]
    assert set(rows[2:]) <= {f"expert {layer}.{expert}" for layer in (1, 2) for expert in range(4)}
    assert len(rows) > 6
    own, teachers_own = [], []
    for row in range(12):
        batch = collate([images.get(row)])
        with torch.no_grad(), Recorder({"last": student.backbone.blocks[-1]}) as recorder:
            output = student(torch.from_numpy(batch.patches), batch.grids)
        own.append(recorder.outputs["last"][-len(batch.patches) :])
        assert torch.allclose(student.backbone.norm(own[-1]), output.patches, atol=1e-5)
        teachers_own.append(teachers.targets(batch.images)[0].patches)
    direct = cka(torch.cat(own).numpy(), torch.cat(teachers_own).numpy())
    assert values[rows.index("layer 2"), 2] == pytest.approx(direct, abs=1e-5)
    assert np.isfinite(values[:2]).all()


def test_equation_8_of_chosen_layers_and_of_clipped_teachers(context, monkeypatch):
    """Many passes over the images give the same as one; clipping at a bound above all features changes nothing."""
    student, teachers = context.new_student().eval(), context.teachers.with_empty_cache()
    images = ImageReader(context.dataset, patch=8, teachers=teachers)
    settings = EvaluateRecipe(cka_layers=None, cka_student_layers=[2], cka_clip=1e6, cka_estimate="covariance")
    found = align(student, teachers, images, list(range(6)), ALONE, settings)
    rows, columns, values = table(found)
    assert rows == ["layer 2", *(f"expert 2.{expert}" for expert in range(4))]
    assert columns[::2] == ["vit: layer 1", "vit: layer 2", "vit: layer 3", "vit: output"]
    assert columns[1] == "vit, clipped to ±1e+06: layer 1"
    assert values[:, ::2] == pytest.approx(values[:, 1::2], nan_ok=True)
    assert (values[0] > 0).all() and (values[0] <= 1 + 1e-9).all()
    monkeypatch.setattr("distill.evaluation.tasks.alignment.MOST_BYTES", 60_000)
    assert align(student, teachers, images, list(range(6)), ALONE, settings) == pytest.approx(found, nan_ok=True)
    tight = settings.model_copy(update={"cka_clip": 0.1})
    clipped = table(align(student, teachers, images, list(range(6)), ALONE, tight))[2]
    assert clipped[0, ::2] == pytest.approx(values[0, ::2])
    assert clipped[0, 1::2] != pytest.approx(values[0, ::2])
