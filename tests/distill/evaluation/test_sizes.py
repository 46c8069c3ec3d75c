"""Evaluation at chosen resolutions, to which images are brought in chosen ways."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from curate.core.errors import RecipeError
from curate.encoders.student.patches import unpatchify
from distill.evaluation.extraction import reader_of
from distill.evaluation.runs import evaluate_run
from distill.recipe import parse_recipe
from distill.samples.images.square import squared
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.evaluation.toys import coloured_items, context, context_of, encoded, held_out_set


@pytest.mark.parametrize("side", [16, 64, 128])
def test_images_have_the_pixels_of_the_resolution(recipe, side):
    """Smaller images are enlarged, with their aspect kept."""
    data = held_out_set(context(recipe))
    data.side = side
    image = reader_of(data, 8, None).get(0)
    rows, columns = image.grid
    assert len(image.patches) == rows * columns <= (side // 8) ** 2
    assert rows * columns > 0.7 * (side // 8) ** 2


def test_several_resolutions_in_one_evaluation(values, tmp_path):
    other = {"name": "other", "dataset": str(write_dataset(tmp_path / "other", drawn_items(20)))}
    values["evaluate"] = {"k": 3, "sizes": [16, 32], "tasks": ["knn"], "datasets": [other]}
    one = context(parse_recipe(values, "test"))
    result, page = evaluate_run(one, one.new_student(), one.fit_standardisers())
    assert [item["name"] for item in result["sets"]] == [
        "held-out, 16 px", "held-out, 32 px", "other, 16 px", "other, 32 px",
    ]  # fmt: skip
    for row in result["averages"]:
        own = [
            item["knn"]["models"][row["model"]]["accuracy"] for item in result["sets"] if item["side"] == row["side"]
        ]
        assert row["mean"] == pytest.approx(np.mean(own))
        assert row["sets"] == 2
    assert {row["side"] for row in result["averages"]} == {16, 32}
    assert "Averages" in page.decode()


def halves(width: int, height: int) -> Image.Image:
    """Red left of the middle, blue right of it, and a green margin of a quarter of the width at both ends."""
    image = Image.new("RGB", (width, height), "green")
    image.paste("red", (width // 4, 0, width // 2, height))
    image.paste("blue", (width // 2, 0, 3 * width // 4, height))
    return image


@pytest.mark.parametrize("side", [16, 48])
def test_squares_show_the_centre_or_the_whole_image(tmp_path, side):
    """As they are read for the student, and as its teachers that prepare images themselves see them."""
    items = drawn_items(4)
    for item in items:
        item.data, item.width, item.height = encoded(halves(64, 32)), 64, 32
    one = context_of(tmp_path, items)
    columns, shown = [slice(0, side // 2 - 2), slice(side // 2 + 2, side)], {}
    for fit in ("crop", "squash"):
        data = replace(held_out_set(one), side=side, fit=fit)
        image = reader_of(data, 8, one.teachers).get(0)
        assert image.grid == (side // 8, side // 8)
        shown[fit] = unpatchify(image.patches, side // 8, side // 8, 8)
        whole = one.teachers.encoders["descriptor"].prepare(squared(halves(64, 32), fit))
        assert np.array_equal(image.prepared["descriptor"], whole)
    left, right = (shown["crop"][:, part].mean((0, 1)) for part in columns)
    assert left == pytest.approx([255, 0, 0], abs=12) and right == pytest.approx([0, 0, 255], abs=12)
    assert shown["squash"][:, : side // 4 - 2].mean((0, 1)) == pytest.approx([0, 128, 0], abs=12)


def test_a_mask_is_cut_like_its_image(tmp_path):
    one = context_of(tmp_path, coloured_items(4))
    classes = Image.fromarray(np.repeat(np.arange(4, dtype=np.uint8), 16)[None].repeat(32, 0))
    one_set = held_out_set(one, masks="seg.png")
    one_set.members.member = lambda row, name: encoded(classes)
    for fit, expected in (("native", [0, 1, 2, 3]), ("squash", [0, 1, 2, 3]), ("crop", [1, 2])):
        one_set.fit = fit
        mask = one_set.mask(0, 16, 16)
        assert mask.shape == (16, 16) and np.unique(mask).tolist() == expected


def test_each_fit_is_a_set_and_the_best_is_an_average(values):
    values["evaluate"] = {"k": 3, "sizes": [16], "fits": ["crop", "squash"], "tasks": ["knn"]}
    one = context(parse_recipe(values, "test"))
    result, page = evaluate_run(one, one.new_student(), one.fit_standardisers())
    assert [item["name"] for item in result["sets"]] == ["held-out, 16 px, crop", "held-out, 16 px, squash"]
    for row in result["averages"]:
        own = [item["knn"]["models"][row["model"]]["accuracy"] for item in result["sets"]]
        assert row["fit"] == "best" and row["mean"] == max(own)
    assert "16 px, best" in page.decode()


def test_fits_without_a_size_are_one_line(values):
    values["evaluate"] = {"fits": ["crop", "squash"]}
    with pytest.raises(RecipeError, match="fits: crop, squash need a side in pixels; set `sizes`"):
        parse_recipe(values, "test")
