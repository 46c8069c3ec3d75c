"""Kernels that turn vectors into answers and answers into figures."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import InputError
from distill.evaluation.tasks.ensemble import entropy, probabilities, shares, together, weights
from distill.evaluation.tasks.knn import knn_votes, unit
from distill.evaluation.tasks.probe import STRENGTHS, Sums, confusion, fit, mean_iou, one_hot
from distill.evaluation.tasks.retrieval import recalls, unique_texts
from distill.evaluation.tasks.scores import accuracies, by_class, check_finite
from distill.evaluation.tasks.zero_shot import class_scores, class_vectors, names_of, read_names, read_templates


@given(st.integers(2, 40), st.integers(1, 30), st.integers(0, 1000))
def test_votes_equal_the_definition(count, k, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.normal(size=(count, 6)), rng.normal(size=(7, 6))
    labels = rng.integers(0, 3, count)
    votes = knn_votes(train, labels, test, classes=3, k=k, temperature=0.07)
    for row in range(7):
        cos = train @ test[row] / np.linalg.norm(train, axis=1) / np.linalg.norm(test[row])
        nearest = np.argsort(-cos)[:k]
        expected = np.bincount(labels[nearest], np.exp((cos[nearest] - 1) / 0.07), minlength=3)
        assert votes[row] == pytest.approx(expected, rel=1e-3, abs=1e-12)


def test_many_rows_are_cut_without_loss():
    rng = np.random.default_rng(0)
    train = rng.normal(size=(30, 4))
    test = np.concatenate([train] * 80)
    votes = knn_votes(train, np.arange(30), test, classes=30, k=1, temperature=0.07)
    assert np.array_equal(votes.argmax(1), np.tile(np.arange(30), 80))


def test_a_zero_row_stays_zero():
    assert unit(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_accuracy_over_pictures_and_over_classes():
    scores = np.array([[2, 1, 0], [2, 1, 0], [2, 1, 0], [2, 1, 0]])
    assert accuracies(scores, np.array([0, 0, 0, 1]), top=(1, 2, 5)) == {
        "accuracy": 0.75, "per_class": 0.5, "top1": 0.75, "top2": 1.0,
    }  # fmt: skip


def test_scores_that_are_all_equal_are_right_once():
    assert accuracies(np.ones((3, 3)), np.arange(3), top=(1, 2)) == {
        "accuracy": pytest.approx(1 / 3), "per_class": pytest.approx(1 / 3),
        "top1": pytest.approx(1 / 3), "top2": pytest.approx(2 / 3),
    }  # fmt: skip


def test_classes_from_the_most_right_to_the_least():
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


def letters(texts):
    """A text encoder that counts letters."""
    return np.array([[text.count(letter) for letter in "abcdefgh"] for text in texts], dtype=np.float32) + 0.01


def test_a_class_is_the_mean_direction_of_its_names_in_all_sentences():
    found = class_vectors(letters, [["aa", "b"], ["h"]], ["{}", "c {}"])
    own = unit(unit(letters(["aa", "c aa", "b", "c b"])).mean(0, keepdims=True))
    assert found[0] == pytest.approx(own[0], abs=1e-6)
    assert np.linalg.norm(found, axis=1) == pytest.approx(1.0, abs=1e-6)
    assert class_scores(letters(["aaaa", "hhhh"]), found).argmax(1).tolist() == [0, 1]


def test_names_come_from_the_label_or_from_a_file(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("# comment\nn01440764\ttench, a big fish\n")
    assert names_of(["n01440764", "bell_pepper", "tench, Tinca tinca", "_"], read_names(path)) == [
        ["tench", "a big fish"], ["bell pepper"], ["tench", "Tinca tinca"], ["_"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (read_names, "cat\n", "'cat' is not 'label<TAB>name"),
        (read_templates, "a photo\n", "'a photo' has not exactly one {}"),
        (read_templates, "# nothing\n", "no template in it"),
        (read_names, None, "cannot be read"),
    ],
)
def test_bad_text_files_are_one_line(tmp_path, read, text, said):
    path = tmp_path / "file.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as error:
        read(path)
    assert said in str(error.value)


def test_our_own_sentences_are_read():
    templates = read_templates()
    assert len(templates) == len(set(templates)) >= 20


def brute(similarity, own, k):
    """Share of the asking rows that have an own candidate among the first k, ties broken at random: by trying all."""
    hits = []
    for row, mine in zip(similarity, own, strict=True):
        if mine.any():
            orders = (sorted(order, key=lambda place, row=row: -row[place]) for order in permutations(range(len(row))))
            hits.append(np.mean([mine[order[:k]].any() for order in orders]))
    return np.mean(hits)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 3))
def test_recall_equals_trying_all_orders(seed, k):
    rng = np.random.default_rng(seed)
    directions = np.concatenate([np.eye(2), -np.eye(2)])  # cosines are exact, and many are equal
    pictures, texts = directions[rng.integers(0, 4, 4)], directions[rng.integers(0, 4, 5)]
    own = rng.random((4, 5)) < 0.3
    own[0, 0] = True
    found = recalls(pictures, texts, np.argwhere(own), ks=(k,))
    assert found["image_to_text"][f"R@{k}"] == pytest.approx(brute(pictures @ texts.T, own, k))
    assert found["text_to_image"][f"R@{k}"] == pytest.approx(brute(texts @ pictures.T, own.T, k))


def test_vectors_that_are_all_the_same_do_no_better_than_chance():
    pairs = np.stack([np.arange(50)] * 2, axis=1)
    found = recalls(np.ones((50, 4)), np.ones((50, 4)), pairs, ks=(1, 5))
    assert found["image_to_text"] == {"R@1": pytest.approx(0.02), "R@5": pytest.approx(0.1)}


def test_several_texts_of_a_picture_and_one_text_of_several():
    texts, pairs = unique_texts([["a", "b", "a"], [], ["b"]])
    assert texts == ["a", "b"]
    assert pairs.tolist() == [[0, 0], [0, 1], [2, 1]]
    found = recalls(np.eye(3), np.array([[1, 0, 0], [0, 0, 1]]), pairs, ks=(1,))
    assert found == {"image_to_text": {"R@1": 1.0}, "text_to_image": {"R@1": 1.0}}


def test_reweighting_puts_a_text_that_suits_everyone_behind():
    """Text 0 is nearest to both pictures; divided by how near it is to all, picture 1 finds its own."""
    pictures = np.array([[1.0, 0.0], [0.8, 0.6]])
    texts = np.array([[0.96, 0.28], [0.3, 0.95]])
    pairs = np.array([[0, 0], [1, 1]])
    plain = recalls(pictures, texts, pairs, ks=(1,))["image_to_text"]["R@1"]
    again = recalls(pictures, texts, pairs, ks=(1,), temperature=0.1)["image_to_text"]["R@1"]
    assert (plain, again) == (0.5, 1.0)


@pytest.mark.parametrize("temperature", [None, 0.05])
def test_chunks_change_nothing(monkeypatch, temperature):
    rng = np.random.default_rng(1)
    pictures, texts = rng.normal(size=(40, 6)), rng.normal(size=(60, 6))
    pairs = np.stack([np.arange(60) % 40, np.arange(60)], axis=1)
    whole = recalls(pictures, texts, pairs, temperature=temperature)
    monkeypatch.setattr("distill.evaluation.tasks.retrieval._CHUNK", 7)
    cut = recalls(pictures, texts, pairs, temperature=temperature)
    assert cut == {way: pytest.approx(value) for way, value in whole.items()}


def closed_form(x, y, penalty):
    mean_x, mean_y = x.mean(0), y.mean(0)
    x, y = x - mean_x, y - mean_y
    weight = np.linalg.solve(x.T @ x / len(x) + penalty * np.eye(x.shape[1]), x.T @ y / len(x))
    return weight, mean_y - mean_x @ weight


def test_a_probe_is_ridge_regression_of_the_best_left_out_error():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8)) + 3
    labels = (x[:, 0] + 0.5 * rng.normal(size=60) > 3).astype(int) + (x[:, 1] > 4)
    y = one_hot(labels, 3)
    sums = Sums.empty(8, 3)
    for start in range(0, 60, 7):
        sums.add(x[start : start + 7], y[start : start + 7])
    linear = fit(sums)
    variance = np.var(x, axis=0).mean()
    weight, bias = closed_form(x, y, linear.strength * variance)
    assert linear.weight == pytest.approx(weight)
    assert linear.bias == pytest.approx(bias)

    def left_out(strength):
        """Generalised cross-validation by its definition, with the hat matrix."""
        z = x - x.mean(0)
        hat = z @ np.linalg.solve(z.T @ z + 60 * strength * variance * np.eye(8), z.T) + 1 / 60
        return np.square(y - hat @ y).mean() / (1 - np.trace(hat) / 60) ** 2

    assert linear.strength == STRENGTHS[np.argmin([left_out(strength) for strength in STRENGTHS])]


def test_a_probe_of_fewer_rows_than_features_or_of_constant_features_is_finite():
    rng = np.random.default_rng(1)
    sums = Sums.empty(30, 2)
    x = np.concatenate([rng.normal(size=(12, 20)), np.ones((12, 10))], axis=1)
    x[6:, 0] += 20
    sums.add(x, one_hot(np.arange(12) // 6, 2))
    scores = fit(sums)(x)
    assert np.isfinite(scores).all()
    assert scores.argmax(1).tolist() == [0] * 6 + [1] * 6


def test_a_probe_of_one_class_is_one_line():
    sums = Sums.empty(2, 3)
    sums.add(np.ones((4, 2)), one_hot(np.zeros(4, dtype=int), 3))
    with pytest.raises(InputError, match="needs 2 classes and 2 rows; it was given 1 and 4"):
        fit(sums)


def test_mean_iou_by_hand():
    true, said = np.array([0, 0, 1, 1, 1, -1, 9]), np.array([0, 1, 1, 1, 0, 1, 0])
    mean, each = mean_iou(confusion(said, true, 3))
    assert each[:2] == pytest.approx([1 / 3, 1 / 2])
    assert np.isnan(each[2])
    assert mean == pytest.approx((1 / 3 + 1 / 2) / 2)


def test_heads_count_by_how_sure_they_are():
    sure, unsure = np.array([[0.98, 0.01, 0.01]]), np.array([[0.2, 0.5, 0.3]])
    alpha = weights([sure, unsure], 5.0)
    expected = np.exp(-5 * np.array([entropy(sure)[0], entropy(unsure)[0]]))
    assert alpha[:, 0] == pytest.approx(expected / expected.sum())
    assert together([sure, unsure], 5.0).argmax() == 0
    assert together([sure, unsure], 0.0)[0] == pytest.approx((sure[0] + unsure[0]) / 2)


def test_a_very_unsure_set_of_heads_does_not_underflow():
    even = np.full((1, 20_000), 1 / 20_000)
    assert weights([even, even], 200.0)[:, 0] == pytest.approx([0.5, 0.5])


def test_votes_as_probabilities():
    assert shares(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist() == [[0.25, 0.75], [0.5, 0.5]]
    assert probabilities(np.array([[0.1, 0.1]]), 0.01)[0] == pytest.approx([0.5, 0.5])
    assert entropy(np.array([[1.0, 0.0]])) == pytest.approx([0.0])
