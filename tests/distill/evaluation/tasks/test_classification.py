import numpy as np
import pytest

from curate.core.errors import InputError
from distill.evaluation.tasks.classification import accuracies, by_class, check_finite


def test_accuracy_over_images_and_over_classes():
    scores = np.array([[2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0]])
    assert accuracies(scores, np.array([0, 0, 0, 1]), top=(1, 2, 5)) == {
        "accuracy": 0.75, "per_class": 0.5, "top1": 0.75, "top2": 1.0,
    }  # fmt: skip


def test_equal_scores_predict_the_first_class():
    assert accuracies(np.ones((3, 3)), np.arange(3), top=(1, 2)) == {
        "accuracy": pytest.approx(1 / 3), "per_class": pytest.approx(1 / 3),
        "top1": pytest.approx(1 / 3), "top2": pytest.approx(2 / 3),
    }  # fmt: skip


def test_classes_are_sorted_by_accuracy():
    scores = np.eye(3)[[0, 0, 1, 2, 2]]
    rows = by_class(scores, np.array([0, 0, 1, 1, 1]), ["a", "b", "c"])
    assert rows == [
        {"name": "a", "pictures": 2, "right": 1.0, "taken_for": None},
        {"name": "b", "pictures": 3, "right": pytest.approx(1 / 3), "taken_for": "c"},
    ]


def test_vectors_that_are_not_finite_are_one_line():
    check_finite("student", np.ones((2, 3)))
    with pytest.raises(InputError, match="student: 1 of 2 vectors are not finite"):
        check_finite("student", np.array([[1.0, 2.0], [np.nan, 0.0]]))
