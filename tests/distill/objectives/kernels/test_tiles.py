"""Losses by tiles against the same losses with whole matrices, in float64, alone and divided over ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import kl_div, logsigmoid, normalize
from torch.utils._python_dispatch import TorchDispatchMode

from distill.objectives.contrastive import Contrastive
from distill.objectives.kernels import tiles
from distill.objectives.kernels.contrastive import contrastive_loss, kl_loss, simclr_loss
from distill.objectives.kernels.relations import arkd, distance, mean_and_median, rkd
from distill.parallel import World

CPU = torch.device("cpu")
TEMPERATURE = 0.3


def batch(count: int, *, texts: int = 0, seed: int = 0) -> dict[str, Tensor]:
    """Vectors of `count` samples of the student and of a teacher, a scale, a bias, and groups of few numbers."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    many = (count, texts, 4) if texts else (count, 4)
    made = {"x": randn(count, 4), "y": randn(*many), "wanted_x": randn(count, 3), "wanted_y": randn(*many[:-1], 3)}
    numbers = torch.randint(-1, max(1, 2 * count), (count, max(1, texts) + 1), generator=generator)
    return made | {"scale": randn(), "bias": randn(), "groups": numbers}


def sides(y: Tensor) -> list[Tensor]:
    return list(y.unbind(1)) if y.ndim == 3 else [y]


def alike(groups: Tensor, side: int) -> Tensor:
    """Pairs of image i and text `side` of sample j that are not negatives, in a loop."""
    rows = groups.tolist()
    pairs = [[a[-1] == b[-1] >= 0 or any(own == b[side] >= 0 for own in a[:-1]) for b in rows] for a in rows]
    mask = torch.tensor(pairs, dtype=torch.bool).view(len(rows), len(rows))
    return mask.fill_diagonal_(False)


def dense_softmax(b: dict[str, Tensor], smoothing: float = 0.0, groups: Tensor | None = None) -> Tensor:
    found = []
    for side, y in enumerate(sides(b["y"])):
        logits = normalize(b["x"], dim=-1) @ normalize(y, dim=-1).T * b["scale"].exp()
        mask = torch.zeros_like(logits, dtype=torch.bool) if groups is None else alike(groups, side)
        for scores, out in ((logits, mask), (logits.T, mask.T)):
            logs = scores.masked_fill(out, float("-inf")).log_softmax(1)
            uniform = logs.masked_fill(out, 0.0).sum(1) / (~out).sum(1)
            found.append(-((1 - smoothing) * logs.diagonal() + smoothing * uniform).mean())
    return torch.stack(found).mean()


def dense_sigmoid(b: dict[str, Tensor], groups: Tensor | None = None) -> Tensor:
    found = []
    for side, y in enumerate(sides(b["y"])):
        logits = normalize(b["x"], dim=-1) @ normalize(y, dim=-1).T * b["scale"].exp() + b["bias"]
        losses = -logsigmoid((2 * torch.eye(len(logits), dtype=torch.float64) - 1) * logits)
        found.append((losses if groups is None else losses.masked_fill(alike(groups, side), 0.0)).sum() / len(logits))
    return torch.stack(found).mean()


def dense_kl(b: dict[str, Tensor]) -> Tensor:
    found = []
    for y, wanted_y in zip(sides(b["y"]), sides(b["wanted_y"]), strict=True):
        logits = normalize(b["x"], dim=-1) @ normalize(y, dim=-1).T * b["scale"].exp()
        wanted = normalize(b["wanted_x"], dim=-1) @ normalize(wanted_y, dim=-1).T * 20.0
        for own, other in ((logits, wanted), (logits.T, wanted.T)):
            found.append(kl_div(own.log_softmax(1), other.softmax(1), reduction="batchmean"))
    return torch.stack(found).mean()


def dense_simclr(b: dict[str, Tensor]) -> Tensor:
    views, count = normalize(torch.cat([b["x"], b["y"]]), dim=-1), len(b["x"])
    logits = (views @ views.T / TEMPERATURE).masked_fill(torch.eye(2 * count, dtype=torch.bool), float("-inf"))
    return torch.nn.functional.cross_entropy(logits, torch.arange(2 * count).roll(count))


def dense_relations(b: dict[str, Tensor], loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """AMoE, Eq. 7, or Park et al., Eqs. 5 and 6, from differences."""
    i, j = torch.triu_indices(len(b["x"]), len(b["x"]), 1)
    own, wanted = ((x[i] - x[j]).norm(dim=1) for x in (b["x"], b["wanted_x"]))
    if loss is rkd:
        error = own / own.mean() - wanted / wanted.mean()
    else:
        near = wanted < wanted.median()
        error = (torch.where(near, own - wanted, wanted - own) / wanted.mean()).clamp(min=0)
    return torch.where(error.abs() < 1, error.square() / 2, error.abs() - 0.5).mean()


def contrastive(b: dict[str, Tensor], **values: Any) -> Tensor:
    recipe, own = Contrastive(**values), b["groups"] if values.get("negatives") != "all" else None
    return contrastive_loss(b["x"], b["y"], b["scale"], b["bias"], recipe, own)


Loss = Callable[[dict[str, Tensor]], Tensor]
LOSSES: dict[str, tuple[int, Loss, Loss]] = {
    "softmax": (0, lambda b: contrastive(b, negatives="all"), dense_softmax),
    "softmax of texts": (2, lambda b: contrastive(b, negatives="all"), dense_softmax),
    "softmax, groups": (2, contrastive, lambda b: dense_softmax(b, groups=b["groups"])),
    "smoothing": (0, lambda b: contrastive(b, smoothing=0.2, negatives="all"), lambda b: dense_softmax(b, 0.2)),
    "smoothing, groups": (2, lambda b: contrastive(b, smoothing=0.2), lambda b: dense_softmax(b, 0.2, b["groups"])),
    "sigmoid": (0, lambda b: contrastive(b, loss="sigmoid", negatives="all"), dense_sigmoid),
    "sigmoid, groups": (2, lambda b: contrastive(b, loss="sigmoid"), lambda b: dense_sigmoid(b, b["groups"])),
    "kl": (0, lambda b: kl_loss(b["x"], b["y"], b["scale"], (b["wanted_x"], b["wanted_y"], 20.0)), dense_kl),
    "kl of texts": (3, lambda b: kl_loss(b["x"], b["y"], b["scale"], (b["wanted_x"], b["wanted_y"], 20.0)), dense_kl),
    "simclr": (0, lambda b: simclr_loss(b["x"], b["y"], TEMPERATURE), dense_simclr),
    "arkd": (0, lambda b: arkd(b["x"], b["wanted_x"]), lambda b: dense_relations(b, arkd)),
    "rkd": (0, lambda b: rkd(b["x"], b["wanted_x"]), lambda b: dense_relations(b, rkd)),
}  # fmt: skip
TRAINED = ("x", "y", "scale", "bias")


def gradients(loss: Loss, given: dict[str, Tensor]) -> list[Tensor]:
    """The loss, and its gradients of all that has one."""
    leaves = {name: value.clone().requires_grad_(name in TRAINED) for name, value in given.items()}
    value = loss(leaves)
    value.backward()
    found = [leaves[name].grad for name in TRAINED]
    return [value.detach().double(), *(item for item in found if item is not None)]


def assert_equal(found: list[Tensor], expected: list[Tensor], limit: float = 1e-12) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one - other).abs().max() <= limit * max(1.0, float(other.abs().max()))


@pytest.fixture(autouse=True, scope="module")
def counting():
    """Medians of few rows by counting too, in 9 passes of 128 bins instead of 3 of 2 million, which take time to add
    up."""
    with mock.patch.multiple("distill.objectives.kernels.relations", _BITS=7, _FEW=0):
        yield


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=20)
@given(count=st.integers(2, 12), side=st.integers(1, 7), seed=st.integers(0, 99))
@example(count=5, side=4, seed=84)  # logits above 20, from which on softplus is not exact
def test_tiles_equal_whole_matrices(name, count, side, seed):
    """Sizes that do not divide the batch are among them."""
    texts, tiled, dense = LOSSES[name]
    given = batch(count, texts=texts, seed=seed)
    with mock.patch.dict(tiles.SIDE, cpu=side):
        found = gradients(tiled, given)
    assert_equal(found, gradients(dense, given))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("count", [0, 1])
def test_zero_or_one_image_has_a_finite_loss_and_gradient(name, count):
    texts, tiled, _ = LOSSES[name]
    found = gradients(tiled, batch(count, texts=texts))
    assert len(found) > 1 and all(value.isfinite().all() for value in found)
    assert count or not any(value.any() for value in found)


class Threads:
    """Ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.given = size, threading.Barrier(size), list[Any]([None] * size)

    def run(self, work: Callable[[World], Any]) -> list[Any]:
        ranks = [Rank(rank, self.size, CPU) for rank in range(self.size)]
        for rank in ranks:
            object.__setattr__(rank, "threads", self)
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, ranks))


class Rank(World):
    def sum(self, values: Tensor) -> Tensor:
        return self.together(values, lambda every: every.sum(0))

    def max(self, values: Tensor) -> Tensor:
        return self.together(values, lambda every: every.amax(0))

    def together(self, values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        threads: Threads = vars(self)["threads"]
        threads.given[self.rank] = values.clone()
        threads.barrier.wait(60)
        every = torch.stack(threads.given)
        threads.barrier.wait(60)
        return values.copy_(reduce(every))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("ranks", "count"), [(2, 11), (3, 8), (3, 2)])
def test_ranks_together_equal_one(name, ranks, count):
    texts, tiled, _ = LOSSES[name]
    given = batch(count, texts=texts)

    def work(world: World) -> list[Tensor]:
        with tiles.divided(world):
            return gradients(tiled, given)

    with mock.patch.dict(tiles.SIDE, cpu=2):
        for found in Threads(ranks).run(work):
            assert_equal(found, gradients(tiled, given))


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_each_pair_is_in_one_tile_of_one_rank_and_ranks_have_equal_shares(count, side, size, upper):
    seen, pairs = torch.zeros(count, count, dtype=torch.int64), []
    with mock.patch.dict(tiles.SIDE, cpu=side):
        for rank in range(size):
            before = int(seen.sum())
            with tiles.divided(World(rank, size, CPU)):
                for row, column in tiles.tiles(count, count, CPU, upper=upper):
                    part = torch.ones_like(seen[row, column])
                    seen[row, column] += part.triu(1) if upper and row.start == column.start else part
            pairs.append(int(seen.sum()) - before)
    assert torch.equal(seen, torch.ones_like(seen).triu(1) if upper else torch.ones_like(seen))
    assert max(pairs) <= sum(pairs) / size + 2 * count


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that an operation gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for item in found if isinstance(found, tuple | list) else [found]:
            if isinstance(item, Tensor):
                self.elements = max(self.elements, item.untyped_storage().nbytes() // item.element_size())
        return found


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.long
def test_no_matrix_of_all_pairs_is_in_memory(name):
    """In the forward and in the backward pass."""
    texts, tiled, _ = LOSSES[name]
    given = batch(96, texts=texts)
    with mock.patch.dict(tiles.SIDE, cpu=16), Largest() as largest:
        gradients(tiled, given)
    assert 96 < largest.elements <= 96 * 4 * max(2, texts)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=14), st.integers(1, 6), st.booleans(), st.booleans())
def test_the_median_is_torchs(places, side, ties, counted):
    """The lower one if two values are in the middle, and also among equal distances."""
    x = torch.tensor(places, dtype=torch.float64)[:, None]
    x = x if ties else x + torch.linspace(0.1, 0.4, len(x), dtype=torch.float64)[:, None] ** 2
    of = distance(x)
    i, j = torch.triu_indices(len(x), len(x), 1)
    few = mock.patch("distill.objectives.kernels.relations._FEW", 0 if counted else len(x))
    with mock.patch.dict(tiles.SIDE, cpu=2 * side), few:
        mean, median = mean_and_median(of, x)
    assert median == of(x, x)[i, j].median()
    assert mean.item() == pytest.approx(of(x, x)[i, j].mean().item(), rel=1e-12)
