"""Ranks share the pictures, and end together."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from curate.core.errors import InputError
from distill.evaluation.runs import evaluate_run
from distill.evaluation.show import AFTER
from distill.evaluation.tasks.segmentation import Learner
from distill.evaluation.watchers import Models
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_blend
from distill.workbench import Workbench
from tests.distill.conftest import recipe_values
from tests.distill.datasets import write_dataset
from tests.distill.judging import VIT, Threads, Words, bench, coloured_items, encoded, judged, plain


def test_ranks_share_the_pictures_and_find_the_same(values, tmp_path):
    values["teachers"] = [VIT]
    values["student"]["moe"] = {"experts": 2, "active": 1, "hidden": 8}
    values["evaluate"] = {"k": 3, "masks": "alpha", "map_images": 3}
    values["data"]["sources"][0]["dataset"] = str(write_dataset(tmp_path / "d", coloured_items(40, alpha=True)))
    recipe = parse_recipe(values, "test")
    alone = bench(recipe)
    expected, _ = evaluate_run(alone, alone.new_student(), alone.standards())
    ranks, standards = Threads(2), alone.standards()
    benches = [Workbench.of(recipe, open_blend(recipe.data), ranks.world(number)) for number in range(2)]
    for one in benches:  # weights are drawn here: threads share the generator
        drawn = one.new_student(), one.new_student()
        one.new_student = iter(drawn).__next__
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda one: evaluate_run(one, one.new_student(), standards)[0], benches)
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
def test_what_one_rank_meets_ends_all_of_them(tmp_path, what):
    """Row 3 is only the second rank's."""
    items = coloured_items(8)
    values = recipe_values(str(write_dataset(tmp_path / "d", items)), str(tmp_path / "run"))
    recipe, ranks = parse_recipe(values, "test"), Threads(2)

    def watch(number):
        one = Workbench.of(recipe, open_blend(recipe.data), ranks.world(number))
        own = judged(one, masks="seg.png")
        answer = one.teachers.ask

        def broken(teacher, pictures):
            if what == "a teacher" and any(picture.row == 3 for picture in pictures):
                raise InputError("teachers: 'descriptor' gives features that are not finite")
            return answer(teacher, pictures)

        one.teachers.ask = broken
        mask = encoded(plain("red", 0)[0].convert("L"))
        coloured = encoded(plain("red", 0)[0]) if what == "a mask" else mask
        own.members.member = lambda row, name: coloured if row == 3 else mask
        with pytest.raises(InputError, match="mode 'RGB'" if what == "a mask" else "not finite"):
            Models([Words()], one.teachers, one.pictures, one.world).watch(np.arange(8), [Learner(own, 8)])
        return number

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(watch, range(2))) == [0, 1]
