import pytest

from distill.evaluation.averages import averages


def one(name, side, fit="native", **models):
    values = {model: {"accuracy": value} for model, value in models.items()}
    return {"set": name, "side": side, "fit": fit, "knn": {"models": values}}


def mean(side, fit, model, value, sets):
    row = {"side": side, "fit": fit, "task": "knn", "figure": "accuracy", "model": model}
    return row | {"mean": pytest.approx(value), "sets": sets}


def test_each_set_counts_once_and_resolutions_are_apart():
    sets = [one("x", 16, a=0.2, b=0.5), one("y", 16, a=0.6), one("x", 32, a=1.0), one("z", 16)]
    assert averages(sets) == [mean(16, "native", "a", 0.4, 2)]


def test_the_best_fit_is_that_of_each_set_and_model():
    sets = [one("x", 16, "crop", a=0.2, b=0.9), one("x", 16, "squash", a=0.4, b=0.1)]
    assert averages(sets) == [mean(16, "best", "a", 0.4, 1), mean(16, "best", "b", 0.9, 1)]
    sets += [one("y", 16, "crop", a=0.8), one("y", 16, "squash", a=0.6)]
    assert averages(sets) == [
        mean(16, "crop", "a", 0.5, 2), mean(16, "squash", "a", 0.5, 2), mean(16, "best", "a", 0.6, 2),
    ]  # fmt: skip


def test_reweighted_recalls_have_averages_too():
    both = {"R@1": 0.5}
    plain = {"image_to_text": both, "text_to_image": both}
    sets = [{"set": name, "side": 16, "fit": "native", "retrieval": {"models": {
        "a": plain | {"reweighted": {"image_to_text": {"R@1": value}, "text_to_image": both}}, "b": plain,
    }}} for name, value in (("x", 0.6), ("y", 1.0))]  # fmt: skip
    found = {(row["figure"], row["model"]): row["mean"] for row in averages(sets)}
    assert found["R@1, image to text, re-weighted", "a"] == pytest.approx(0.8)
    assert ("R@1, image to text, re-weighted", "b") not in found and ("R@1, image to text", "b") in found
