"""Terms of a micro-batch; the teacher is a tiny random DINOv3 on the student's patches."""

import pytest
import torch
from torch import nn

from curate.encoders.student.network.vit import VitOutput
from distill.context import StageContext
from distill.objectives.kernels.relations import arkd, rkd
from distill.objectives.outputs import MicroBatch, Outputs, spaces_of
from distill.objectives.terms import Terms, relational, terms_of
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.sources.dataset import open_dataset
from distill.teachers import Standardiser, Target, TargetStandardiser
from distill.training.gradients import Gradients
from tests.distill.conftest import recipe_values

DINO = "timm:vit_small_patch16_dinov3?depth=1&embed_dim=16&num_heads=2&patch_size=8&img_size=32&random=7"
ALONE = World(0, 1, torch.device("cpu"))


def values_of(folder, **teacher):
    values = recipe_values(str(folder), "/none")
    values["student"]["registers"] = 4
    values["train"] |= {"precision": "float64"}
    values["teachers"] = [{"encoder": DINO, "name": "dino", "pictures": "student", **teacher}]
    return values


@pytest.fixture(scope="module")
def stage(folder):
    """A context, its student, its standardisers, and ten images."""
    context = StageContext.of(parse_recipe(values_of(folder), "test"), open_dataset(str(folder)), ALONE)
    images = [context.reader.get(row) for row in range(10)]
    student = context.new_student()
    for item in student.parameters():
        nn.init.normal_(item, std=0.2)
    return context, student, context.fit_standardisers(), images


def found(stage, images=None, **teacher) -> Terms:
    """Terms of images (None: all ten) for a recipe with these values of the teacher."""
    context, student, standardisers, all_images = stage
    recipe = parse_recipe(values_of("/none", **teacher), "test")
    micro = context.micro_batch(all_images if images is None else images)
    return terms_of(recipe.every_objective, Outputs.of(student, micro, spaces_of(recipe, standardisers, {})))


def of_relations(**relations):
    """The objective of the teacher that relates images."""
    recipe = parse_recipe(values_of("/none", relations=relations), "test")
    return [item for item in recipe.every_objective if item.relates]


def test_the_total_is_the_weighted_sum_of_its_parts(stage):
    terms = found(stage, summary={"weight": 2.0, "loss": "cosine"}, patches={"weight": 0.5}, registers={"weight": 3.0})
    weights = {"dino/summary": 2.0, "dino/patches": 0.5, "dino/registers": 3.0}
    assert list(terms.parts) == list(weights)
    expected = sum(weights[name] * part.item() for name, part in terms.parts.items())
    assert terms.additive.item() == pytest.approx(expected, rel=1e-12)
    assert terms.additive.requires_grad
    assert not any(part.requires_grad for part in terms.parts.values())


def test_terms_add_up_over_shares(stage):
    whole, parts = found(stage), [found(stage, stage[3][:3]), found(stage, stage[3][3:])]
    assert whole.additive.item() == pytest.approx(sum(part.additive.item() for part in parts), rel=1e-10)
    for name in whole.parts:
        assert whole.parts[name].item() == pytest.approx(sum(part.parts[name].item() for part in parts), rel=1e-10)


def test_losses_by_hand(stage):
    """Per image: the mean over its tokens, over channels and over registers; then the sum over images."""
    context, student, standardisers, images = stage
    batch = collate(images)
    output = student(torch.from_numpy(batch.patches), batch.grids)
    target = standardisers[0](context.teachers.targets(batch)[0].to(torch.device("cpu"), torch.float64))
    head = student.heads[0]
    lengths = [rows * columns for rows, columns in batch.grids]
    squared = (head.patches(output.patches) - target.patches).square().split(lengths)
    parts = found(stage).parts
    assert parts["dino/patches"].item() == pytest.approx(sum(part.mean().item() for part in squared), rel=1e-10)
    squared = (head.registers(output.registers) - target.registers).square()
    assert parts["dino/registers"].item() == pytest.approx(squared.mean((1, 2)).sum().item(), rel=1e-10)
    cosine = torch.cosine_similarity(head.summary(output.summary), target.summary)
    assert parts["dino/summary"].item() == pytest.approx((1 - cosine).sum().item(), rel=1e-10)
    summed = found(stage, patches={"error": "sum"}).parts["dino/patches"]
    assert summed.item() == pytest.approx(16 * parts["dino/patches"].item(), rel=1e-10)


def test_terms_without_weight_are_not_computed(stage):
    terms = found(stage, patches={"weight": 0}, registers={"weight": 0})
    assert list(terms.parts) == ["dino/summary"]


@pytest.mark.parametrize("teacher", [{}, {"patches": {"weight": 0}}, {"relations": {"kind": "arkd"}}])
def test_a_batch_without_images_has_the_same_terms(stage, teacher):
    """They are 0 and reach the same weights, for a rank without images."""
    some, none = found(stage, **teacher), found(stage, [], **teacher)
    assert list(none.parts) == list(some.parts) and not any(none.parts.values())
    shapes = {label: [side.shape[1:] for side in sides] for label, sides in some.vectors.items()}
    assert {label: [side.shape[1:] for side in sides] for label, sides in none.vectors.items()} == shapes
    assert none.additive == 0 and none.additive.requires_grad


@pytest.mark.parametrize(("kind", "loss"), [("arkd", arkd), ("rkd", rkd)])
def test_relations_use_the_standardised_summaries(stage, kind, loss):
    relations = {"kind": kind, "weight": 3.0}
    terms = found(stage, relations=relations)
    own, target = terms.vectors["dino/relations"]
    assert own.requires_grad and not target.requires_grad
    total, parts = relational(of_relations(**relations), terms.vectors, stage[1])
    assert parts["dino/relations"].item() == pytest.approx(loss(own, target).item())
    assert total.item() == pytest.approx(3.0 * parts["dino/relations"].item())
    total.backward()
    assert relational([], {}, stage[1])[0] == 0


@pytest.mark.parametrize(
    ("relations", "kind"),
    [({}, "arkd"), ({"kind": "rkd", "weight": 0.0}, "rkd"), ({"kind": "arkd", "weight": 0}, "arkd")],
)
def test_relations_that_are_not_trained_on_are_observed_unweighted(stage, relations, kind, monkeypatch):
    """The value is that of a student trained on them; it has no part in the loss (AMoE, Fig. 5)."""
    context, student, standardisers, images = stage
    recipe = parse_recipe(values_of("/none", relations=relations), "test")
    [observed], [trained] = of_relations(**relations), of_relations(kind=kind, weight=3.0)
    assert type(observed) is type(trained) and (observed.trains, trained.trains) == (False, True)
    spaces, micro = spaces_of(recipe, standardisers, {}), context.micro_batch(images)
    gradients = Gradients(student, recipe.every_objective, spaces, context.micro_batch([]), ALONE)
    sums = gradients.add([micro], len(images))
    parts = {name: value for name, value in sums.items() if name not in ("loss", "dino/relations")}
    assert sums["loss"] == pytest.approx(sum(parts.values()))
    vectors = found(stage, relations=relations).vectors
    _, expected = relational([trained], vectors, student)
    assert sums["dino/relations"] == pytest.approx(len(images) * expected["dino/relations"].item())
    monkeypatch.setattr("distill.training.gradients.OBSERVED", 4)
    few = {label: tuple(side[:4] for side in sides) for label, sides in vectors.items()}
    _, expected = relational([trained], few, student)
    sums = gradients.add([micro], len(images))
    assert sums["dino/relations"] == pytest.approx(len(images) * expected["dino/relations"].item())


class Head(nn.Module):
    """Returns the teacher's patches."""

    def __init__(self, patches):
        super().__init__()
        self.predicted = nn.Parameter(patches)

    def patches(self, x):
        return self.predicted

    def summary(self, x):
        raise AssertionError("the pooler computes the summary")


def test_a_pooler_computes_the_summary_from_raw_patches(stage):
    """Its input is not standardised, so perfect predictions of all patches give a perfect summary."""
    batch = collate(stage[3])
    lengths = [rows * columns for rows, columns in batch.grids]
    raw = torch.randn(sum(lengths), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def pooler(patches, lengths):
        return torch.stack([part.square().mean(0) for part in patches.split(list(lengths))])

    one, zero = torch.tensor(3.0, dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rotation = torch.linalg.qr(raw[:4]).Q
    standardisers = TargetStandardiser(Standardiser(zero, one), Standardiser(zero, one, rotation))
    student = nn.Module()
    student.backbone = nn.Module()
    student.backbone.prefix = nn.Parameter(torch.zeros(1, 4, dtype=torch.float64))
    student.heads = nn.ModuleList([Head(standardisers.patches(raw))])
    empty = torch.zeros(10, 4, dtype=torch.float64)
    student.forward = lambda patches, grids, frames, draws: VitOutput(empty, empty[:, None], raw, lengths)
    recipe = parse_recipe(values_of("/none", pooler=True, patches={"weight": 0}), "test")
    spaces = spaces_of(recipe, [standardisers], {"dino": pooler})

    def terms(target: Target) -> Terms:
        return terms_of(recipe.every_objective, Outputs.of(student, MicroBatch(batch, {"dino": target}), spaces))

    target = Target(pooler(raw, lengths), raw)
    assert terms(target).additive.item() == pytest.approx(0.0, abs=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        assert terms(target).additive.item() == pytest.approx(0.0, abs=1e-12)
    terms(Target(target.summary.flip(0), raw)).additive.backward()
    assert student.heads[0].predicted.grad.abs().max() > 1e-6


def test_images_and_texts(folder):
    values = values_of(folder)
    values["teachers"] = []
    values["data"]["sources"][0]["texts"] = {"txt": 1}
    values["student"] |= {"text": {"vocabulary": 300, "context": 8, "width": 16, "depth": 1, "heads": 2}, "embed": 8}
    values["contrastive"] = {"weight": 2.0}
    recipe = parse_recipe(values, "test")
    context = StageContext.of(recipe, open_dataset(str(folder)), ALONE)
    student = context.new_student()
    plain = StageContext.of(parse_recipe(values_of(folder), "test"), open_dataset(str(folder)), context.world).reader
    batch = collate([plain.get(row) for row in range(5)])
    tokens = torch.randint(1, 300, (5, 8), generator=torch.Generator().manual_seed(0))
    micro = MicroBatch(batch, {}, tokens, torch.arange(5)[:, None])
    terms = terms_of([recipe.contrastive], Outputs.of(student, micro, {}))
    assert list(terms.vectors) == ["contrastive"]
    assert terms.additive == 0
    assert all(side.shape == (5, 8) and side.requires_grad for side in terms.vectors["contrastive"][:2])
    total, parts = relational([recipe.contrastive], terms.vectors, student)
    assert total.item() == pytest.approx(2.0 * parts["contrastive"].item())
    total.backward()
    assert student.logit_scale.grad is not None
