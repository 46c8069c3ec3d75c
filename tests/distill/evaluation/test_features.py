"""Kernels that look at features themselves: likeness of layers, maps of colours, agreement with a teacher."""

import io

import numpy as np
import pytest
from PIL import Image

from distill.evaluation.tasks.cka import Alignment, Centred, cka, hsic
from distill.evaluation.tasks.fidelity import Agreement
from distill.evaluation.tasks.maps import colours, png


def unbiased(k, m):
    """HSIC_1 of Song et al. 2012, Eq. 5, with the whole matrices."""
    n = len(k)
    k, m, one = k - np.diag(np.diag(k)), m - np.diag(np.diag(m)), np.ones(n)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (np.trace(k @ m) + middle - 2 / (n - 2) * one @ k @ m @ one) / (n * (n - 3))


def test_hsic_equals_the_definition():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(9, 5)), rng.normal(size=(9, 12)) + 4
    assert hsic(Centred.of(a), Centred.of(b)) == pytest.approx(unbiased(a @ a.T, b @ b.T))


def test_cka_is_blind_to_rotation_scale_and_shift_and_knows_strangers():
    rng = np.random.default_rng(3)
    a = rng.normal(size=(40, 10))
    rotation = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    assert cka(a, 7 * a @ rotation + 3) == pytest.approx(1.0)
    strangers = [cka(rng.normal(size=(30, 200)), rng.normal(size=(30, 200))) for _ in range(20)]
    assert abs(np.mean(strangers)) < 0.05
    assert np.isnan(cka(a, np.ones((40, 2))))


@pytest.mark.parametrize("scale", [1e-8, 1e8])
def test_cka_does_not_see_the_size_of_numbers(scale):
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(40, 6)), rng.normal(size=(40, 9))
    b[:, :6] += a
    assert cka(scale * a, b) == pytest.approx(cka(a, b), rel=1e-9)
    assert cka(scale * a, scale * b) == pytest.approx(cka(a, b), rel=1e-9)
    assert np.isnan(cka(scale * a, np.full((40, 2), scale / 3)))


def test_alignment_over_batches():
    rng = np.random.default_rng(4)
    one, two = Alignment(), Alignment()
    for part in (one, two):
        for _ in range(3):
            a = rng.normal(size=(50, 6))
            part.add(
                "expert 0", a, {"same": a, "noisy": a + rng.normal(size=a.shape), "other": rng.normal(size=(50, 3))}
            )
        part.add("expert 1", a[:3], {"same": a[:3]})
    one.merge(two)
    rows, columns, values = one.table()
    assert (rows, columns) == (["expert 0"], ["same", "noisy", "other"])
    assert values[0, 0] == pytest.approx(1.0)
    assert values[0, 0] > values[0, 1] > 0.3 > values[0, 2]
    assert one.sums["expert 0", "same"][3] == 6


def test_maps_show_what_differs_in_the_same_colours_everywhere():
    left, right = np.array([5.0, 0, 0, 1]), np.array([0, 5.0, 0, 1])
    picture = np.stack([np.stack([left, left, right])] * 2)
    rng = np.random.default_rng(5)
    noise = 0.01 * rng.normal(size=(2, *picture.shape))
    one, two = colours([picture + noise[0], (picture + noise[1])[:, ::-1]])
    assert one.shape == (2, 3, 3)
    assert np.abs(one[0, 0, 0].astype(int) - one[0, 2, 0]) > 200
    assert np.abs(one[:, 0, 0].astype(int) - two[:, 2, 0]).max() < 60


def test_maps_of_the_foreground_leave_the_ground_white():
    picture = np.zeros((4, 4, 5))
    picture[1:3, 1:3] = np.random.default_rng(6).normal(size=(2, 2, 5)) + 9
    (shown,) = colours([picture], foreground=True)
    assert (shown[0] == 255).all()
    assert (shown[1:3, 1:3] != 255).any(-1).sum() >= 3


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_maps_of_constant_or_narrow_features_are_plain(channels):
    (shown,) = colours([np.ones((2, 2, channels))])
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) == 1
    assert Image.open(io.BytesIO(png(shown))).size == (160, 160)


def test_agreement_by_hand():
    true = np.random.default_rng(7).normal(size=(50, 4)) + 2
    parts = []
    for said in (true, np.broadcast_to(true.mean(0), true.shape), -true):
        agreement = Agreement.empty(4)
        agreement.add(said[:20], true[:20])
        agreement.add(said[20:], true[20:])
        parts.append(agreement.found())
    assert parts[0] == {"cosine": pytest.approx(1.0), "explained": pytest.approx(1.0)}
    assert parts[1]["explained"] == pytest.approx(0.0, abs=1e-12)
    assert parts[2]["cosine"] == pytest.approx(-1.0)
    assert parts[2]["explained"] < 0
    assert Agreement.empty(4).found() == {}
    one = Agreement.empty(4)
    one.add(true[:1] + 1, true[:1])
    assert one.found()["explained"] is None and one.found()["cosine"] < 1
