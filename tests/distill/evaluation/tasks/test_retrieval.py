from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.evaluation.tasks.ensemble import fused
from distill.evaluation.tasks.knn import unit
from distill.evaluation.tasks.retrieval import recalls, recalls_of_heads, unique_texts


def brute(similarity, own, k):
    """Share of the queries with a hit among the first k, ties broken at random, by trying all orders."""
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
    images, texts = directions[rng.integers(0, 4, 4)], directions[rng.integers(0, 4, 5)]
    own = rng.random((4, 5)) < 0.3
    own[0, 0] = True
    found = recalls(images, texts, np.argwhere(own), ks=(k,))
    assert found["image_to_text"][f"R@{k}"] == pytest.approx(brute(images @ texts.T, own, k))
    assert found["text_to_image"][f"R@{k}"] == pytest.approx(brute(texts @ images.T, own.T, k))


def test_constant_vectors_do_no_better_than_chance():
    pairs = np.stack([np.arange(50)] * 2, axis=1)
    found = recalls(np.ones((50, 4)), np.ones((50, 4)), pairs, ks=(1, 5))
    assert found["image_to_text"] == {"R@1": pytest.approx(0.02), "R@5": pytest.approx(0.1)}


def test_several_texts_of_an_image_and_several_images_of_a_text():
    texts, pairs = unique_texts([["a", "b", "a"], [], ["b"]])
    assert texts == ["a", "b"]
    assert pairs.tolist() == [[0, 0], [0, 1], [2, 1]]
    found = recalls(np.eye(3), np.array([[1, 0, 0], [0, 0, 1]]), pairs, ks=(1,))
    assert found == {"image_to_text": {"R@1": 1.0}, "text_to_image": {"R@1": 1.0}}


def test_reweighting_ranks_a_text_near_to_all_images_lower():
    """Text 0 is nearest to both images; re-weighting lets image 1 find its text."""
    images = np.array([[1.0, 0.0], [0.8, 0.6]])
    texts = np.array([[0.96, 0.28], [0.3, 0.95]])
    pairs = np.array([[0, 0], [1, 1]])
    plain = recalls(images, texts, pairs, ks=(1,))["image_to_text"]["R@1"]
    reweighted = recalls(images, texts, pairs, ks=(1,), temperature=0.1)["image_to_text"]["R@1"]
    assert (plain, reweighted) == (0.5, 1.0)


@pytest.mark.parametrize("temperature", [None, 0.05])
def test_chunks_do_not_change_the_result(monkeypatch, temperature):
    rng = np.random.default_rng(1)
    images, texts = rng.normal(size=(40, 6)), rng.normal(size=(60, 6))
    pairs = np.stack([np.arange(60) % 40, np.arange(60)], axis=1)
    whole = recalls(images, texts, pairs, temperature=temperature)
    monkeypatch.setattr("distill.evaluation.tasks.retrieval._CHUNK", 7)
    cut = recalls(images, texts, pairs, temperature=temperature)
    assert cut == {way: pytest.approx(value) for way, value in whole.items()}


@given(st.integers(0, 1000))
def test_heads_together_are_ranked_by_their_fused_similarity(seed):
    """Each image weighs the heads by its similarities to all texts, each text by its similarities to all images."""
    rng = np.random.default_rng(seed)
    heads = [(unit(rng.normal(size=(5, 3))), unit(rng.normal(size=(6, 3)))) for _ in range(2)]
    own = rng.random((5, 6)) < 0.3
    own[0, 0] = True
    found = recalls_of_heads(heads, np.argwhere(own), lambda both: fused(both, 0.1, 5.0), ks=(2,))
    similarities = [images @ texts.T for images, texts in heads]
    ranked = fused(similarities, 0.1, 5.0), fused([one.T for one in similarities], 0.1, 5.0)
    for way, one, mine in zip(("image_to_text", "text_to_image"), ranked, (own, own.T), strict=True):
        hits = [hit[order[:2]].any() for order, hit in zip(np.argsort(-one, axis=1), mine, strict=True) if hit.any()]
        assert found[way]["R@2"] == pytest.approx(np.mean(hits))
