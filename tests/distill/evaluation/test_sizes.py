"""Evaluation at chosen resolutions."""

import numpy as np
import pytest

from distill.evaluation.extraction import reader_of
from distill.evaluation.runs import evaluate_run
from distill.recipe import parse_recipe
from tests.distill.datasets import drawn_items, write_dataset
from tests.distill.evaluation.toys import context, held_out_set


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
