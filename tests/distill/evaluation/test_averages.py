import pytest

from distill.evaluation.averages import averages


def one(side, **models):
    return {"side": side, "knn": {"models": {name: {"accuracy": value} for name, value in models.items()}}}


def test_each_set_counts_once_and_resolutions_are_apart():
    found = averages([one(16, a=0.2, b=0.5), one(16, a=0.6), one(32, a=1.0), {"side": 16, "knn": {"models": {}}}])
    assert found == [
        {"side": 16, "task": "knn", "figure": "accuracy", "model": "a", "mean": pytest.approx(0.4), "sets": 2}
    ]
