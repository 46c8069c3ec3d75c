from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from curate.core.errors import InputError
from distill.evaluation.tasks.trained import AttentionLayer, LinearLayer, Schedule, Trained, train
from tests.distill.evaluation.toys import ALONE, Threads

AS_PRINTED = Schedule(epochs=10, batch=32, learning_rate=1e-3)


def separable(seed, count=40, scale=1.0):
    """Images of 6 patches of 3 classes, each around its own corner; the last channel is constant."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, (count, 6))
    corners = np.concatenate([4 * np.eye(3), np.zeros((3, 1))], axis=1)
    noise = np.concatenate([rng.normal(scale=0.3, size=(count, 6, 3)), np.zeros((count, 6, 1))], axis=2)
    features = scale * (corners[labels] + noise + 7)
    return {row: (one, np.eye(3)[own]) for row, (one, own) in enumerate(zip(features, labels, strict=True))}, labels


def linear(images, schedule, seed):
    (features, targets), *_ = images.values()
    return train(LinearLayer(features.shape[1], targets.shape[1]), images, schedule, world=ALONE, seed=seed)


@settings(max_examples=5)
@given(st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 1e3]))
def test_the_papers_schedule_learns_separable_classes_at_any_scale(seed, scale):
    images, labels = separable(seed, scale=scale)
    layer = linear(images, AS_PRINTED, seed)
    folded = layer.folded()
    for (features, _), own in zip(images.values(), labels, strict=True):
        assert layer([features]).argmax(1).tolist() == own.tolist()
        assert folded(features) == pytest.approx(layer([features]), rel=1e-3, abs=1e-3)


def test_a_layer_that_is_not_finite_is_one_line_and_never_right():
    """NaN scores would rank every class first."""
    images = {row: (features, targets[:1]) for row, (features, targets) in separable(0)[0].items()}
    with pytest.raises(InputError, match=r"after 20 steps at a learning rate of 1e\+25; lower evaluate.probe"):
        train(AttentionLayer(4, 3, 0), images, Schedule(10, 32, 1e25, "sgd"), world=ALONE, seed=0)
    with np.errstate(over="ignore"):
        images[0] = (1e5 * images[0][0]).astype(np.float16), images[0][1]
    with np.errstate(invalid="ignore"), pytest.raises(InputError, match="not finite in half precision"):
        train(AttentionLayer(4, 3, 0), images, AS_PRINTED, world=ALONE, seed=0)


def test_the_same_seed_gives_the_same_layer_and_the_constant_channel_is_not_used():
    images, _ = separable(0)
    one, two = linear(images, AS_PRINTED, 3).folded(), linear(images, AS_PRINTED, 3).folded()
    assert np.array_equal(one.weight, two.weight) and np.array_equal(one.bias, two.bias)
    assert (one.weight[3] == 0).all()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_shares_of_classes_become_probabilities(optimizer):
    """Patches without any difference: the layer learns how often each class occurs."""
    images = {row: (np.ones((4, 2)), np.tile([0.5, 0.25, 0.25], (4, 1))) for row in range(8)}
    scores = linear(images, Schedule(200, 4, 0.05, optimizer), 0).folded()(np.ones((1, 2)))[0]
    assert np.exp(scores) / np.exp(scores).sum() == pytest.approx([0.5, 0.25, 0.25], abs=1e-3)


def marked(count, seed=0):
    """Images of 3 to 9 patches of noise, one of which is large in the channel of the image's class."""
    rng, images = np.random.default_rng(seed), {}
    for row in range(count):
        patches, label = rng.normal(size=(rng.integers(3, 10), 8)), row % 2
        patches[rng.integers(len(patches))] += 6 * np.eye(8)[label] + 6 * np.eye(8)[7]
        images[row] = patches, np.eye(2)[[label]]
    return images


def test_attention_finds_the_patch_that_tells_the_class():
    schedule = Schedule(60, 32, 1e-2, decays=True)
    layer = train(AttentionLayer(8, 2, seed=0), marked(128), schedule, world=ALONE, seed=0)
    test = marked(100, seed=1)
    right = layer([patches for patches, _ in test.values()]).argmax(1) == [y.argmax() for _, y in test.values()]
    assert right.mean() > 0.95


def test_attention_is_that_of_torch_on_each_image_alone():
    """Padding changes nothing, and 128 channels make two heads."""
    layer, rng = AttentionLayer(128, 3, seed=0), np.random.default_rng(0)
    torch.nn.init.normal_(layer.linear.layer.weight)
    images = [rng.normal(size=(count, 128)).astype(np.float32) for count in (4, 9, 1)]
    found = Trained(layer, torch.zeros(128), torch.ones(128))(images)
    weights, biases = layer.attention.in_proj_weight.chunk(3), layer.attention.in_proj_bias.chunk(3)
    for scores, image in zip(found, images, strict=True):
        inputs = layer.query[0], *[torch.from_numpy(image)] * 2
        q, k, v = (
            (x @ weight.T + bias).view(len(x), 2, 64).transpose(0, 1)
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        seen = layer.attention.out_proj(scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(1, 128))
        assert scores == pytest.approx(layer.linear([seen])[0].detach().numpy(), abs=1e-5)


@pytest.mark.parametrize("kind", ["linear", "attention"])
def test_ranks_that_share_the_images_train_the_same_layer(kind):
    """Also a rank that holds few images, and none of some steps."""
    images, ranks, schedule = marked(20), Threads(2), Schedule(2, 4, 1e-2, "sgd", decays=True)
    if kind == "linear":
        images = {row: (patches[:1], label) for row, (patches, label) in images.items()}
    made = [LinearLayer(8, 2) if kind == "linear" else AttentionLayer(8, 2, seed=5) for _ in range(3)]
    alone = train(made[0], images, schedule, world=ALONE, seed=1)
    shares = [{row: images[row] for row in rows} for rows in (range(17), range(17, 20))]

    def of_rank(rank):
        return train(made[1 + rank], shares[rank], schedule, world=ranks.world(rank), seed=1)

    with ThreadPoolExecutor(2) as pool:
        for layer in pool.map(of_rank, range(2)):
            for name, value in layer.layer.state_dict().items():
                assert value.numpy() == pytest.approx(alone.layer.state_dict()[name].numpy(), abs=1e-5)
