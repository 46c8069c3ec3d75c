"""Views of images, and the objectives that learn from them: masked autoencoding, masking, denoising, two crops."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn.functional import cosine_similarity

import distill
from curate.core.errors import RecipeError
from curate.encoders import load as load_encoder
from distill.commands.evaluate import evaluate
from distill.commands.train import train
from distill.context import StageContext
from distill.export import export
from distill.objectives.kernels.decoder import normalised
from distill.objectives.outputs import Outputs
from distill.objectives.terms import terms_of
from distill.objectives.views import SECOND, WHOLE, View, draw
from distill.parallel import World
from distill.recipe import Recipe, parse_recipe
from distill.samples.batches.loader import collate
from distill.samples.sources.mixture import open_mixture
from distill.training.checkpoint import last_checkpoint
from distill.training.run_folder import RunFolder
from tests.distill.clips import clip, write_clips
from tests.distill.conftest import recipe_values

ALONE, QUIET = World(0, 1, torch.device("cpu")), Console(quiet=True)
MAE = {"objective": "distill.objectives.mae:Mae", "decoder": {"depth": 1, "width": 8, "heads": 1}}
MASKING = {"objective": "distill.objectives.masking:Masking", "share": 0.5}
DENOISING = {"objective": "distill.objectives.denoising:Denoising"}
SLIP = {"objective": "distill.objectives.slip:Slip", "hidden": 8, "embed": 4}


def context_of(values: dict[str, Any], *entries: dict[str, Any], **source: Any) -> StageContext:
    """All of the recipe's objectives are the entries."""
    values["data"]["sources"][0] |= source
    values["data"]["augment"] = {"crop": [0.3, 1.0], "flip": True}
    values["train"]["precision"] = "float64"
    recipe = parse_recipe(values | {"teachers": [], "objectives": list(entries)}, "test")
    return StageContext.of(recipe, open_mixture(recipe.data), ALONE)


def outputs_of(context: StageContext, rows: list[int], epoch: int = 1) -> tuple[Outputs, Any]:
    student = context.new_student()
    images = [context.reader.get(row, epoch) for row in rows]
    return Outputs.of(student, context.micro_batch(images), {}), student


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Recipe of clips of 1 to 4 frames."""
    place = tmp_path_factory.mktemp("clips")
    folder = write_clips(place / "d", [clip(number, 1 + number % 4) for number in range(12)])
    values = recipe_values(str(folder), str(place / "run"))
    values["data"] |= {"sequence_tokens": 200}
    values["data"]["sources"][0] |= {"modality": "video", "max_tokens": 12}
    return values


@pytest.mark.parametrize("masked", [None, "masking"])
def test_a_view_hides_the_same_patches_of_an_image_in_every_batch(clips, masked):
    context = context_of(clips, DENOISING)
    view = View(share=0.6, hidden=0.75, hidden_of_clips=0.9, masked=masked)
    images = [context.reader.get(row, 3) for row in range(12)]
    batch = collate(images)
    drawn = draw(view, batch, context.reader.draws(batch.images))
    assert 3 <= len(drawn.samples) < 12
    start = 0
    for sample in drawn.samples.tolist():
        image = batch.images[sample]
        one = collate([image])
        alone = draw(view, one, context.reader.draws(one.images))
        stop = start + image.frames
        assert all(np.array_equal(a, b) for a, b in zip(alone.places, drawn.places[start:stop], strict=True))
        visible = 1 if image.frames > 1 else 3
        hidden = alone.hidden.reshape(image.frames, 12)
        assert (hidden.sum(1) == 12 - visible).all()
        if image.frames > 2:
            assert len({tuple(row) for row in hidden.tolist()}) > 1
        frames = image.patches.reshape(image.frames, 12, -1)
        if masked is None:
            assert all(own.tolist() == np.flatnonzero(~row).tolist()
                       for own, row in zip(alone.places, hidden, strict=True))  # fmt: skip
            assert np.array_equal(alone.patches, frames[~hidden])
        else:
            assert np.array_equal(alone.patches, image.patches) and alone.places[0].tolist() == list(range(12))
        start = stop
    later = [context.reader.get(row, 4) for row in range(12)]
    again = draw(view, collate(later), context.reader.draws(collate(later).images))
    assert again.samples.tolist() != drawn.samples.tolist() or not np.array_equal(again.hidden, drawn.hidden)


def test_mae_is_the_mean_squared_error_of_hidden_patches(values, clips):
    for recipe, source, counts in ((values, {}, {16: 4, 12: 3}), (clips, {}, {12: 3})):
        context = context_of(recipe, MAE, **source)
        assert context.recipe.needs.views == (View(hidden=0.75, hidden_of_clips=0.9),)
        outputs, student = outputs_of(context, [0, 1, 2, 3])
        [mae] = context.recipe.objectives
        seen = outputs.view(mae.view)
        predicted = mae.own(student)(seen.output.patches, seen.drawn.grids, seen.drawn.places)
        expected, start = [], 0
        places = iter(seen.drawn.places)
        for image in outputs.batch.images:
            pixels = torch.from_numpy(image.patches).double()
            wanted = (pixels - pixels.mean(1, keepdim=True)) / (
                pixels.var(1, keepdim=True, correction=0) + 1e-6 * 255**2
            ).sqrt()
            assert torch.allclose(normalised(pixels), wanted, atol=1e-9)
            hidden = torch.ones(image.frames, len(pixels) // image.frames, dtype=torch.bool)
            for own in hidden:
                own[next(places)] = False
            if image.frames == 1:
                assert int((~hidden).sum()) == counts.get(len(pixels), round(len(pixels) / 4))
            error = (predicted[start : start + len(pixels)] - wanted).square().mean(1)
            expected.append(error[hidden.flatten()].mean())
            start += len(pixels)
        term = mae.terms(outputs)["mae"]
        assert torch.allclose(term.losses, torch.stack(expected), rtol=1e-9)
        assert len(seen.output.tokens) < start / 2


def test_masking_pulls_masked_patches_to_their_unmasked_twins_only(values):
    context = context_of(values, MASKING, DENOISING)
    outputs, student = outputs_of(context, list(range(8)))
    masking = context.recipe.objectives[0]
    seen = outputs.view(masking.view)
    assert 0 < len(seen.samples) < 8
    whole, own = outputs.pictures.patches.split(outputs.lengths), seen.output.patches.split(seen.drawn.lengths)
    hidden = seen.hidden.split(seen.drawn.lengths)
    expected = torch.zeros(8, dtype=torch.float64)
    for sample, mine, mask in zip(seen.samples.tolist(), own, hidden, strict=True):
        assert int(mask.sum()) == len(mask) - round(0.6 * len(mask))
        expected[sample] = (1 - cosine_similarity(mine[mask], whole[sample][mask], dim=-1)).mean() / 0.5
    losses = masking.terms(outputs)["masking"].losses
    assert torch.allclose(losses, expected, atol=1e-12)
    whole_gradient, own_gradient = torch.autograd.grad(
        losses.sum(), [outputs.pictures.tokens, seen.output.tokens], allow_unused=True, retain_graph=True
    )
    assert whole_gradient is None and own_gradient.any()
    others = outputs.image.summary.sum() + outputs.pictures.patches.sum()
    assert torch.autograd.grad(others, student.objectives["masking"].mask, allow_unused=True)[0].abs().sum() == 0
    plain = student(outputs.batch.tensor(torch.device("cpu")), outputs.batch.grids)
    assert torch.allclose(plain.patches, outputs.pictures.patches, atol=1e-12)


def test_denoising_restores_a_summary_without_a_gradient_into_the_target(values):
    context = context_of(values, DENOISING)
    outputs, student = outputs_of(context, [0, 1, 2])
    [denoising] = context.recipe.objectives
    down, up = denoising.own(student).children()
    assert down[-1].out_features == 2  # 0.1 x 16
    noise = outputs.noise(2)
    single, _ = outputs_of(context, [outputs.batch.images[1].row])
    assert torch.equal(single.noise(2), noise[1:2]) and not torch.equal(noise[0], noise[1])
    summary = outputs.image.summary
    expected = (up(down(summary) + 0.1 * noise) - summary.detach()).square().mean(1)
    losses = denoising.terms(outputs)["denoising"].losses
    assert torch.allclose(losses, expected, atol=1e-12)
    for own in up.parameters():
        own.data.zero_()  # what is restored no longer depends on the summary
    flat = denoising.terms(outputs)["denoising"].losses.sum()
    assert not torch.autograd.grad(flat, summary, retain_graph=True)[0].any()


def test_two_views_are_two_crops_of_images_and_two_frames_of_clips(values, clips):
    context = context_of(values, SLIP)
    outputs, student = outputs_of(context, [0, 1, 2])
    first, second = outputs.two_views
    assert torch.equal(first, outputs.image.summary) and not torch.allclose(first, second, atol=1e-3)
    for place, image in enumerate(outputs.batch.images):
        assert image.second is not None and not np.array_equal(image.second.patches[:1], image.patches[:1])
        alone = student(torch.from_numpy(image.second.patches), [image.second.grid])
        assert torch.allclose(alone.summary[0], second[place], atol=1e-12)
        plain = context_of(values, DENOISING).reader.get(image.row, 1)
        assert plain.second is None and np.array_equal(plain.patches, image.patches)
    context = context_of(clips, SLIP)
    outputs, _ = outputs_of(context, [1, 2, 3])
    first, second = outputs.two_views
    starts = np.cumsum([0, *outputs.batch.frames])
    each = outputs.pictures.summary
    for place, (one, two) in enumerate(zip(first, second, strict=True)):
        own = each[starts[place] : starts[place + 1]]
        assert (own == one).all(1).any() and (own == two).all(1).any() and not torch.equal(one, two)
    assert len(outputs.view(SECOND).samples) == 0


def test_a_view_that_several_objectives_need_passes_once(values):
    context = context_of(values, MASKING, DENOISING, SLIP, MAE)
    views = context.recipe.needs.views
    assert views == (WHOLE, context.recipe.objectives[0].view, SECOND, context.recipe.objectives[3].view)
    calls = []
    student = context.new_student()
    student.backbone.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[1])))
    images = [context.reader.get(row, 0) for row in range(4)]
    outputs = Outputs.of(student, context.micro_batch(images), {})
    terms = terms_of(context.recipe.objectives, outputs)
    assert len(calls) == 1 and calls[0] == 3 * 4 + len(outputs.view(views[1]).samples)
    assert set(terms.parts) == {"masking", "denoising", "mae"} and set(terms.vectors) == {"slip"}


RUNS: dict[str, dict[str, Any]] = {
    "views": {"objectives": [MAE, MASKING, DENOISING, SLIP]},
    "fewer tokens": {"objectives": [DENOISING, SLIP], "student": {"keep": 0.7, "merge": 2, "keep_layers": [1]}},
}


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumes_to_the_bit_and_can_be_evaluated(values, tmp_path, name):
    values["student"] |= RUNS[name].get("student", {})
    values |= {"teachers": [], "objectives": RUNS[name]["objectives"], "evaluate": {"tasks": ["knn", "cka"]}}
    values["data"]["augment"] = {"crop": [0.5, 1.0]}
    recipe = parse_recipe(values, "test")
    run = train(recipe, QUIET)
    broken = RunFolder(tmp_path / "broken")
    shutil.copytree(run.path, broken.path)
    shutil.rmtree(broken.checkpoints / "step-00000004")
    for file in ("finished.json", "evaluation.json"):
        (broken.path / file).unlink()
    values["run"] |= {"folder": str(broken.path)}
    train(parse_recipe(values, "test"), QUIET)
    one, two = (last_checkpoint(item, item.fingerprint()).weights() for item in (run, broken))
    assert all(torch.equal(value, two[weight]) for weight, value in one.items())
    lines = [[json.loads(line) for line in item.metrics.read_text().splitlines()] for item in (run, broken)]
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
    scores = [evaluate(str(run.path), sets, QUIET)["sets"][0]["knn"] for sets in ([], ["evaluate.merge=3"])]
    assert scores[0]["models"].keys() == scores[1]["models"].keys()
    folder = export(run.path, tmp_path / "model")
    output = distill.load(folder)([np.full((24, 32, 3), 9, np.uint8)])
    features = load_encoder(f"distill:{folder}").encode([np.full((24, 32, 3), 9, np.uint8)])
    assert output.summary.shape == (1, 16) and np.allclose(features.summary, output.summary.detach(), atol=1e-5)
    assert bool(output.patches) == (features.patches is not None) == (name == "views")


def test_a_student_of_tubelets_trains_on_clips_and_images(clips, tmp_path):
    values = json.loads(json.dumps(clips))
    values["student"] |= {"tubelet": 2, "merge": 1}
    values |= {"objectives": [DENOISING], "run": values["run"] | {"folder": str(tmp_path / "run")}}
    values["teachers"] = [{"encoder": "descriptor", "standardise": "scale", "patches": {"weight": 0}}]
    values["data"].pop("augment", None)
    run = train(parse_recipe(values, "test"), QUIET)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert len(lines) == 4 and all(np.isfinite(line["loss"]) for line in lines)
    assert run.read("evaluation.json")["sets"]


def test_what_passes_the_student_counts_as_flops(values):
    recipe = context_of(values, MAE).recipe
    [view] = recipe.needs.views
    images = [context_of(values, MAE).reader.get(0, 0)]
    count = images[0].grid[0] * images[0].grid[1]
    assert view.lengths(images) == [round(0.25 * count)] and WHOLE.lengths(images) == [count]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teachers": [], "objectives": [MAE], "student": {"keep": 0.5}}, "mae needs the output of each patch, which"),
        ({"teachers": [], "objectives": [MASKING], "student": {"merge": 1}}, "masking needs the output of each patch"),
        ({"student": {"merge": 1}}, "descriptor/features needs the output of each patch"),
        (
            {"teachers": [], "objectives": [DENOISING], "student": {"merge": 6}},
            r"student\.merge 6: of the 16 patches of the largest image, 10 are left at layer 2, which",
        ),
        (
            {"teachers": [], "objectives": [DENOISING], "evaluate": {"merge": 9}},
            r"evaluate\.merge 9: of the 16 patches .* are left at layer 1",
        ),
        (
            {"teachers": [], "objectives": [DENOISING], "student": {"merge": 1}, "run": {"attention": "varlen"}},
            r"run\.attention: 'varlen' cannot weigh merged tokens",
        ),
        ({"student": {"keep": 0.0}}, r"student\.keep: 0\.0: input should be greater than 0"),
        ({"student": {"keep": 0.5, "keep_layers": [3]}}, "keep_layers: 3 is beyond the last layer, 2"),
        ({"objectives": [SLIP]}, r"slip needs data\.augment, for a second crop of each image; set it"),
        ({"student": {"tubelet": 2}}, "features needs the output of each patch, which student.keep, merge and tub"),
        (
            {"teachers": [], "objectives": [SLIP], "student": {"tubelet": 2}},
            r"slip compares frames, of which student\.tubelet makes one clip; remove one",
        ),
        ({"objectives": [MAE | {"hidden": 1.0}]}, r"objectives\.0\.hidden: 1\.0: input should be less than 1"),
        (
            {"objectives": [MAE | {"decoder": {"width": 9}}]},
            r"objectives\.0\.decoder: width 9 is not a multiple of 4 x heads \(3\)",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(values, changes, message):
    for section, own in changes.items():
        values[section] = values.get(section, {}) | own if isinstance(own, dict) else own
    with pytest.raises(RecipeError, match=message) as caught:
        parse_recipe(values, "r")
    assert "\n" not in str(caught.value)


def test_a_default_student_has_the_fingerprint_of_before(values):
    recipe: Recipe = parse_recipe(values, "test")
    assert not {"keep", "keep_layers", "merge"} & recipe.semantic()["student"].keys()
    assert Path(recipe.run.folder).name == "run"
