import numpy as np
import pytest
import torch

from distill.data.dataset import open_dataset
from distill.evaluate import choose, evaluate, student_summaries
from distill.parallel import World
from distill.recipe import apply_overrides, parse_recipe
from distill.workbench import Workbench
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

ALONE = World(0, 1, torch.device("cpu"))


def bench(recipe) -> Workbench:
    return Workbench.of(recipe, open_dataset(recipe.data.sources[0].dataset), ALONE)


def test_no_duplicate_set_is_on_both_sides(recipe):
    one = bench(recipe)
    questions = choose(recipe, one.dataset, one.test)
    sets = one.dataset.strings("duplicate_set")
    assert not {sets[row] for row in questions.train} & {sets[row] for row in questions.test}
    read = {int(row) for row in one.stream().rows}
    assert not {sets[row] for row in read} & {sets[row] for row in questions.test}
    assert len(questions.test) > 5


def test_copies_count_once_and_unlabelled_samples_not_at_all(tmp_path):
    items = drawn_items(40)
    items += items[:10]
    items[20].columns = {**items[20].columns, "label": None}
    folder = write_dataset(tmp_path / "d", items)
    recipe = parse_recipe(recipe_values(str(folder), str(tmp_path / "run")), "test")
    one = bench(recipe)
    questions = choose(recipe, one.dataset, one.test)
    rows = [*questions.train, *questions.test]
    assert len(rows) + questions.left_out_images == 39
    assert len({items[row].key for row in rows}) == len(rows)


def test_classes_that_nothing_could_get_right_are_left_out_and_counted(recipe):
    one = bench(recipe)
    labels = np.array(one.dataset.strings("label"))
    few = apply_overrides(recipe, ["evaluate.min_train_images=12"], "test")
    questions = choose(few, one.dataset, one.test)
    rare = [name for name in set(labels) if (labels[~one.test] == name).sum() < 12]
    assert rare
    assert questions.left_out_images == np.isin(labels[one.test], rare).sum()
    assert questions.left_out_classes == len(set(labels[one.test]) & set(rare))
    assert not set(labels[questions.test]) & set(rare)


@pytest.mark.parametrize(
    ("override", "why"),
    [("evaluate.label=colour", "no column 'colour'"), ("evaluate.min_train_images=999", "no held-out picture has")],
)
def test_without_questions_it_says_why(recipe, override, why):
    result = evaluate(bench(apply_overrides(recipe, [override], "test")), {})
    assert result["models"] == {}
    assert why in result["why_none"]


def test_a_sample_does_not_depend_on_its_batch(recipe):
    one = bench(apply_overrides(recipe, ["train.precision=float64"], "test"))
    student = one.new_student()
    pictures = [one.pictures.get(row) for row in range(9)]
    together = student_summaries(student, pictures)
    for picture in pictures:
        assert np.allclose(together[picture.row], student_summaries(student, [picture])[picture.row], atol=1e-6)


def test_accuracies_of_every_model_and_the_baselines(recipe):
    one = bench(recipe)
    result = evaluate(one, {"student": one.new_student()})
    assert set(result["models"]) == {"student", "descriptor"}
    assert result["models"]["descriptor"]["accuracy"] > max(result["chance"], result["majority"])
    assert result["chance"] == 0.25
    assert result["train_images"] + result["test_images"] + result["left_out_images"] == 60


def test_pictures_that_cannot_be_read_are_not_asked_about(tmp_path):
    items = drawn_items(40)
    for item in items[5:10]:
        item.data = item.data[:50]
    folder = write_dataset(tmp_path / "d", items)
    one = bench(parse_recipe(recipe_values(str(folder), str(tmp_path / "run")), "test"))
    result = evaluate(one, {"student": one.new_student()})
    assert result["train_images"] + result["test_images"] + result["left_out_images"] == 35
