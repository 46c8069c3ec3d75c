import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distill.evaluation.tasks.linear import Schedule, train

AS_PRINTED = Schedule(epochs=10, batch=32, learning_rate=1e-3)


def separable(seed, count=40, scale=1.0):
    """Images of 6 patches of 3 classes, each around its own corner; the last channel is constant."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, (count, 6))
    corners = np.concatenate([4 * np.eye(3), np.zeros((3, 1))], axis=1)
    noise = np.concatenate([rng.normal(scale=0.3, size=(count, 6, 3)), np.zeros((count, 6, 1))], axis=2)
    features = scale * (corners[labels] + noise + 7)
    return [(one, np.eye(3)[own]) for one, own in zip(features, labels, strict=True)], labels


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_papers_schedule_learns_separable_classes_at_any_scale(seed, scale):
    images, labels = separable(seed, scale=scale)
    layer = train(images, AS_PRINTED, seed=seed)
    for (features, _), own in zip(images, labels, strict=True):
        assert layer(features).argmax(1).tolist() == own.tolist()


def test_the_same_seed_gives_the_same_layer_and_the_constant_channel_is_not_used():
    images, _ = separable(0)
    one, two = train(images, AS_PRINTED, seed=3), train(images, AS_PRINTED, seed=3)
    assert np.array_equal(one.weight, two.weight) and np.array_equal(one.bias, two.bias)
    assert (one.weight[3] == 0).all()


def test_shares_of_classes_become_probabilities():
    """Patches without any difference: the layer learns how often each class occurs."""
    images = [(np.ones((4, 2)), np.tile([0.5, 0.25, 0.25], (4, 1)))] * 8
    scores = train(images, Schedule(200, 4, 0.05), seed=0)(np.ones((1, 2)))[0]
    assert np.exp(scores) / np.exp(scores).sum() == pytest.approx([0.5, 0.25, 0.25], abs=1e-3)
