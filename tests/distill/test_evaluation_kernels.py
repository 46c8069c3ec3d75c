from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curate.core.errors import InputError
from distill.evaluation.knn import knn_votes, unit
from distill.evaluation.retrieval import recalls, unique_texts
from distill.evaluation.scores import accuracies, by_class, check_finite
from distill.evaluation.zero_shot import class_scores, class_vectors, names_of, read_names, read_templates


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
    monkeypatch.setattr("distill.evaluation.retrieval._CHUNK", 7)
    cut = recalls(pictures, texts, pairs, temperature=temperature)
    assert cut == {way: pytest.approx(value) for way, value in whole.items()}
