"""Ranks share the images, and an error ends all of them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from curate.core.errors import InputError
from distill.context import StageContext
from distill.evaluation.extraction import FeatureExtractor
from distill.evaluation.runs import evaluate_run
from distill.evaluation.show import AFTER
from distill.evaluation.tasks.segmentation import ProbeTrainer
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_mixture
from tests.distill.conftest import recipe_values
from tests.distill.datasets import write_dataset
from tests.distill.evaluation.toys import (
    VIT,
    ColourModel,
    Threads,
    coloured_items,
    context,
    disc_image,
    encoded,
    held_out_set,
)


@pytest.mark.long
def test_ranks_share_the_images_and_have_the_same_result(values, tmp_path):
    values["teachers"] = [VIT]
    values["student"]["moe"] = {"experts": 2, "active": 1, "hidden": 8}
    values["evaluate"] = {"k": 3, "masks": "alpha", "map_images": 3, "segmentation_epochs": 2}
    values["evaluate"] |= {"probes": ["ridge", "linear", "attention"], "probe_optimizer": "sgd"}
    values["data"]["sources"][0]["dataset"] = str(write_dataset(tmp_path / "d", coloured_items(40, alpha=True)))
    recipe = parse_recipe(values, "test")
    alone = context(recipe)
    expected, _ = evaluate_run(alone, alone.new_student(), alone.fit_standardisers())
    ranks, standardisers = Threads(2), alone.fit_standardisers()
    contexts = [StageContext.of(recipe, open_mixture(recipe.data), ranks.world(number)) for number in range(2)]
    for one in contexts:  # weights are drawn here: threads share the generator
        drawn = one.new_student(), one.new_student()
        one.new_student = iter(drawn).__next__
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: evaluate_run(one, one.new_student(), standardisers)[0], contexts)
    assert first == second
    (one,), (two,) = expected["sets"], first["sets"]
    for task in ("knn", "maps"):
        assert two[task] == one[task]
    for task in ("probe", "segmentation", "fidelity"):
        assert flat(two[task]["models"]) == pytest.approx(flat(one[task]["models"]), abs=1e-6)
    assert two["cka"]["models"][AFTER]["columns"] == one["cka"]["models"][AFTER]["columns"]
    assert set(two["cka"]["models"][AFTER]["rows"]) == set(one["cka"]["models"][AFTER]["rows"])


def flat(value):
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in flat(value[key])]
    return [value]


@pytest.mark.parametrize("what", ["a mask", "a teacher"])
def test_an_error_of_one_rank_is_raised_on_all(tmp_path, what):
    """Only the second rank reads row 3."""
    items = coloured_items(8)
    values = recipe_values(str(write_dataset(tmp_path / "d", items)), str(tmp_path / "run"))
    recipe, ranks = parse_recipe(values, "test"), Threads(2)

    def evaluate(number):
        one = StageContext.of(recipe, open_mixture(recipe.data), ranks.world(number))
        own = held_out_set(one, masks="seg.png")
        compute = one.teachers.compute

        def broken(teacher, images):
            if what == "a teacher" and any(image.row == 3 for image in images):
                raise InputError("teachers: 'descriptor' gives features that are not finite")
            return compute(teacher, images)

        one.teachers.compute = broken
        mask = encoded(disc_image("red", 0)[0].convert("L"))
        coloured = encoded(disc_image("red", 0)[0]) if what == "a mask" else mask
        own.members.member = lambda row, name: coloured if row == 3 else mask
        with pytest.raises(InputError, match="mode 'RGB'" if what == "a mask" else "not finite"):
            FeatureExtractor([ColourModel()], one.teachers, one.reader, one.world).run(
                np.arange(8), [ProbeTrainer(own, 8)]
            )
        return number

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(evaluate, range(2))) == [0, 1]
