"""Losses of the cosines between two sets of vectors, over all pairs of the batch: softmax (CLIP), sigmoid (SigLIP), the
divergence of a student's distributions from a teacher's, and SimCLR's loss of two views. Sums run over `tiles`.

Where groups are given, an image and the text of another sample are not negatives if the image's sample has an equal
text (clip-arts share titles), or if both are in the same duplicate set. The sums leave such pairs out; each sample's
own pair is always included. With several texts per image, the loss is the mean of the losses of the first texts, of the
second texts, …: two texts of one image are never compared with each other (Xray's siamese loss, section 4.7.1, 1:1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from distill.objectives.kernels.tiles import log_sum_exps, total

if TYPE_CHECKING:
    from distill.objectives.contrastive import Contrastive

Scaled = tuple[Tensor, Tensor]
"""Vectors (N, D), and factors (N,) that they are multiplied by, see `scaled`."""


def contrastive_loss(
    images_ND: Tensor,
    texts: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor | None,
    recipe: Contrastive,
    groups_NG: Tensor | None,
) -> Tensor:
    """Unweighted mean over the N pairs of the global batch; without pairs 0, with a gradient.

    texts: (N, D), or (N, T, D) with T texts per image; groups: numbers of each sample's texts and of its duplicate set,
    which decide what is not a negative (see `same`); None: all others are negatives. The scale is clamped after each
    update (`limit_scale`): clamped in here, it would have no gradient and stay above the limit permanently.
    """
    own = None if groups_NG is None else numbered(groups_NG)

    def loss(x: Scaled, y: Scaled, side: int) -> Tensor:
        if recipe.loss == "sigmoid":
            assert logit_bias is not None
            return sigmoid_loss(x, y, logit_bias, own, side)
        return softmax_loss(x, y, own, side, recipe.smoothing)

    return _mean_over_texts(images_ND, texts, logit_scale, loss)


def kl_loss(images_ND: Tensor, texts: Tensor, logit_scale: Tensor, teacher: tuple[Tensor, Tensor, float]) -> Tensor:
    """KL divergence of the student's distributions from the teacher's: of the texts for each image and of the images
    for each text, mean of both (Bolya et al. 2025, sections 2.4 and C.3).

    teacher: its images (N, E), its texts (N, E) or (N, T, E), and its fixed logit scale; no gradient reaches them.
    """
    others_NE, their_texts, scale = teacher
    wanted = scaled(others_NE.detach(), scale)

    def loss(x: Scaled, y: Scaled, side: int) -> Tensor:
        theirs = their_texts if their_texts.ndim == 2 else their_texts[:, side]
        return divergence(x, y, wanted, scaled(theirs.detach()))

    return _mean_over_texts(images_ND, texts, logit_scale, loss)


def _mean_over_texts(
    images_ND: Tensor, texts: Tensor, logit_scale: Tensor, loss: Callable[[Scaled, Scaled, int], Tensor]
) -> Tensor:
    """Mean of the losses over the texts of an image: of logits, which are cosines times the scale."""
    if not len(images_ND):
        return (images_ND.sum() + texts.sum()) * 0.0 + logit_scale * 0.0
    images = scaled(images_ND, logit_scale.exp())
    sides = texts.unbind(1) if texts.ndim == 3 else [texts]
    return torch.stack([loss(images, scaled(side), number) for number, side in enumerate(sides)]).mean()


def softmax_loss(x: Scaled, y: Scaled, groups: Tensor | None = None, side: int = 0, smoothing: float = 0.0) -> Tensor:
    """Mean of the cross-entropies of rows and of columns of the logits; the label of row i is column i (Radford et al.
    2021, Fig. 3).

    groups: `numbered`. Label smoothing is spread over the columns that are left (Szegedy et al. 2016, Sec. 7).
    """
    positives = _diagonal(x, y).mean()  # before the tiles: later, its gradients would be in memory beside theirs
    rows, columns = log_sum_exps(_logits(side), *_sides(x, y, groups))
    logs = (rows + columns).mean() / 2
    hard = logs - positives
    if not smoothing:
        return hard
    weights = _weights(x[1], groups, side)

    def weighted(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Tensor:
        (own, *x), (others, *y) = rows, columns
        return _product(x, y) * _left(own[:, None] + others, x[2:], y[2:], side, 0.0)

    mine, theirs = _sides(x, y, groups)
    uniform = logs - total(weighted, (weights[0], *mine), (weights[1], *theirs)) / (2 * len(x[0]))
    return (1 - smoothing) * hard + smoothing * uniform


def sigmoid_loss(x: Scaled, y: Scaled, bias: Tensor, groups: Tensor | None = None, side: int = 0) -> Tensor:
    """A binary loss per pair, of the logits + bias, summed over texts, mean over images (Zhai et al. 2023, Eq. 1).
    groups: `numbered`."""

    def losses(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...], bias: Tensor) -> Tensor:
        (i, *x), (j, *y) = rows, columns
        logits = _product(x, y) + bias
        return _left(-logsigmoid(torch.where(i[:, None] == j, logits, -logits)), x[2:], y[2:], side, 0.0)

    place = torch.arange(len(x[0]), device=x[0].device)
    own, others = _sides(x, y, groups)
    return total(losses, (place, *own), (place, *others), (bias,)) / len(place)


def divergence(x: Scaled, y: Scaled, wanted_x: Scaled, wanted_y: Scaled) -> Tensor:
    """Mean over rows and columns of the KL divergence of the softmax of the logits from that of the wanted ones, which
    get no gradient."""
    plain = _logits(0)
    rows, columns = log_sum_exps(plain, x, y)
    with torch.no_grad():
        their_rows, their_columns = log_sum_exps(plain, wanted_x, wanted_y)

    def expected(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Tensor:
        (of_rows, *x), (of_columns, *y) = rows, columns
        wanted = _product(x[2:], y[2:])
        share = (wanted - of_rows[:, None]).exp() + (wanted - of_columns).exp()
        return share * (wanted - _product(x, y))

    apart = total(expected, (their_rows, *x, *wanted_x), (their_columns, *y, *wanted_y)) / len(x[0])
    return (apart + (rows - their_rows + columns - their_columns).mean()) / 2


def simclr_loss(first_ND: Tensor, second_ND: Tensor, temperature: float) -> Tensor:
    """NT-Xent: the mean cross-entropy of each view with the other view of its image as label among all other views
    (Chen et al. 2020, Eq. 1). Without images 0, with a gradient."""
    if not len(first_ND):
        return (first_ND.sum() + second_ND.sum()) * 0.0
    views, lengths = scaled(torch.cat([first_ND, second_ND]))
    positives = _diagonal(scaled(first_ND), scaled(second_ND)).mean() / temperature
    later, earlier = log_sum_exps(_logits(0), (views, lengths / temperature), (views, lengths), upper=True)
    return torch.logaddexp(later, earlier).mean() - positives


def scaled(x_ND: Tensor, length: Tensor | float = 1.0) -> Scaled:
    """The vectors, and the factors (N,) with which they have this length. Tiles apply them, so that there is no copy of
    the vectors, and none of its gradient."""
    return x_ND, length / x_ND.norm(dim=-1).clamp_min(1e-12)


def _product(x: Sequence[Tensor], y: Sequence[Tensor]) -> Tensor:
    """Products (N, M) of scaled vectors."""
    return (x[0] * x[1][:, None]) @ (y[0] * y[1][:, None]).T


def _diagonal(x: Scaled, y: Scaled) -> Tensor:
    """Products (N,) of scaled vectors of the same rows."""
    return (x[0] * y[0]).sum(-1) * x[1] * y[1]


def numbered(groups_NG: Tensor) -> Tensor:
    """Groups as `same` compares them, with the sample's number as their last column."""
    return torch.cat([groups_NG, torch.arange(len(groups_NG), device=groups_NG.device)[:, None]], 1)


def same(own_NG: Tensor, others_MG: Tensor, side: int = 0) -> Tensor:
    """Mask (N, M) of the pairs of image i and text `side` of another sample j that are not negatives: sample i has the
    same text, or the same duplicate set.

    groups: `numbered`, a column for each text of a sample, and one for its duplicate set; negative numbers equal
    nothing.
    """
    alike = own_NG[:, None, -1] != others_MG[:, -1]
    compared = [(a[:, None] == b) & (a[:, None] >= 0) for a, b in _compared(own_NG, others_MG, side)]
    return alike & torch.stack(compared).any(0)


def _compared(own_NG: Tensor, others_MG: Tensor, side: int) -> list[tuple[Tensor, Tensor]]:
    """The columns (N,) and (M,) that are compared: the duplicate sets, and each text of an image with text `side`."""
    (*texts, sets, _), (*their_texts, their_sets, _) = own_NG.unbind(1), others_MG.unbind(1)
    return [(sets, their_sets), *((own, their_texts[side]) for own in texts)]


def _logits(side: int) -> Callable[..., Tensor]:
    """The tile of logits, -inf for pairs that `same` leaves out."""

    def logits(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Tensor:
        return _left(_product(rows, columns), rows[2:], columns[2:], side, float("-inf"))

    return logits


def _left(values_NM: Tensor, own: Sequence[Tensor], others: Sequence[Tensor], side: int, instead: float) -> Tensor:
    """The values with another for the pairs that are left out. own, others: groups, or nothing."""
    if not own:
        return values_NM
    (own_NG,), (others_MG,) = own, others
    shared_N = torch.stack([torch.isin(mine, theirs) for mine, theirs in _compared(own_NG, others_MG, side)]).any(0)
    rows = shared_N.nonzero().squeeze(1)  # few, except on the diagonal
    if len(rows):
        values_NM[rows] = values_NM[rows].masked_fill(same(own_NG[rows], others_MG, side), instead)
    return values_NM


def _sides(x: Scaled, y: Scaled, groups: Tensor | None) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return (x, y) if groups is None else ((*x, groups), (*y, groups))


def _weights(like_N: Tensor, groups: Tensor | None, side: int) -> tuple[Tensor, Tensor]:
    """1 over the number of pairs that are left in each row (N,) and in each column (N,)."""
    if groups is None:
        return (torch.full_like(like_N, 1 / len(like_N)),) * 2

    def left(rows: tuple[Tensor, ...], columns: tuple[Tensor, ...]) -> Tensor:
        (x, own), (y, others) = rows, columns
        return _left(x.new_zeros(len(x), len(y)), [own], [others], side, float("-inf"))

    with torch.no_grad():
        rows, columns = log_sum_exps(left, (like_N, groups), (like_N, groups))
    return (-rows).exp(), (-columns).exp()
