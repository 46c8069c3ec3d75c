"""Subsets of patches, EViT and ToMe on packed images."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from curate.core.errors import InputError
from curate.encoders.student.config import StudentConfig
from curate.encoders.student.network.attention import attention_plan
from curate.encoders.student.network.student import build_student
from curate.encoders.student.network.tokens import TokenSet, keep_attended, merge_alike
from curate.encoders.student.reduction import Reduction, spread_layers
from tests.encoders.student.network.test_attention import CPU, tensors
from tests.encoders.student.network.test_student import GRIDS, drawn_images

PREFIX, WIDTH = 3, 5
SIZES = {"patch": 4, "width": 16, "depth": 3, "heads": 2, "registers": 2}
PE = {
    "norm": "layer", "mlp": "gelu", "bias": True, "qk_norm": False, "pre_norm": True, "layer_scale": 0.5,
    "positions": "absolute + axial", "position_grid": 3, "pool": "attention", "pool_heads": 2,
}  # fmt: skip
OPTIONS = [
    {"keep": 0.5},
    {"merge": 1},
    {"merge": 1, "keep": 0.7, "keep_layers": [2]},
    PE | {"merge": 1},
    PE | {"keep": 0.6, "positions": "absolute", "pool": "mean"},
]


def student_of(**options):
    return build_student(StudentConfig(**SIZES, **options), [], seed=0).double()


def a_layer(patches, sizes=False):
    """Tokens, queries, keys and what they are, of images with these numbers of patches."""
    generator = torch.Generator().manual_seed(1)
    count = sum(patches) + PREFIX * len(patches)
    x, q, k = (torch.randn(count, *shape, dtype=torch.float64, generator=generator)
               for shape in ((WIDTH,), (2, 4), (2, 4)))  # fmt: skip
    positions = torch.rand(count, 2, dtype=torch.float64, generator=generator)
    weights = torch.randint(1, 4, (count,), generator=generator).double() if sizes else None
    if weights is not None:
        weights[torch.cat([torch.arange(PREFIX) + start for start in starts_of(patches)])] = 1.0
    return x, q, k, TokenSet(list(patches), PREFIX, positions, weights)


def starts_of(patches):
    return np.cumsum([0, *(count + PREFIX for count in patches)])[:-1].tolist()


@pytest.mark.parametrize("sizes", [False, True])
def test_evit_keeps_what_cls_attends_to_and_sums_the_rest(sizes):
    patches, kept = [5, 1, 6], [3, 1, 2]
    x, q, k, tokens = a_layer(patches, sizes)
    found, left = keep_attended(x, q, k, tokens=tokens, kept=kept, left=[4, 1, 3])
    expected, positions = [], []
    for start, count, most in zip(starts_of(patches), patches, kept, strict=True):
        own = slice(start, start + PREFIX + count)
        scores = torch.einsum("hd,nhd->hn", q[start], k[own]) / 2.0
        if sizes:
            scores = scores + tokens.sizes[own].log()
        attention = scores.softmax(-1).mean(0)
        order = attention[PREFIX:].argsort(descending=True)
        stay, rest = sorted(order[:most].tolist()), order[most:].tolist()
        at = [*range(PREFIX), *(PREFIX + place for place in stay)]
        expected.append(x[own][at])
        positions.append(tokens.positions[own][at])
        if rest:
            weight = attention[PREFIX:][rest]
            expected.append((weight[:, None] * x[own][PREFIX:][rest]).sum(0, keepdim=True))
            mean = (weight[:, None] * tokens.positions[own][PREFIX:][rest]).sum(0, keepdim=True) / weight.sum()
            positions.append(mean)
    assert torch.allclose(found, torch.cat(expected), atol=1e-12)
    assert torch.allclose(left.positions, torch.cat(positions), atol=1e-12)
    assert left.patches == [4, 1, 3] and (left.sizes is not None) == sizes


@pytest.mark.parametrize("sizes", [False, True])
def test_tome_merges_the_most_similar_pairs_into_means_by_size(sizes):
    patches = [7, 1, 4]
    x, q, k, tokens = a_layer(patches, sizes)
    found, left = merge_alike(x, q, k, tokens=tokens, left=[5, 1, 2])
    expected, positions, counts = [], [], []
    for start, count, merged in zip(starts_of(patches), patches, [2, 0, 2], strict=True):
        own = slice(start, start + PREFIX + count)
        metric = normalize(k[own].mean(1), dim=-1)[PREFIX:]
        size = (tokens.sizes[own] if sizes else torch.ones(PREFIX + count, dtype=torch.float64))[PREFIX:]
        groups = {place: [place] for place in range(count)}
        pairs = []
        for a in range(0, count, 2):
            others = list(range(1, count, 2))
            if others:
                cosines = metric[others] @ metric[a]
                pairs.append((float(cosines.max()), a, others[int(cosines.argmax())]))
        for _, a, b in sorted(pairs, reverse=True)[:merged]:
            groups[b] += groups.pop(a)
        tails = [own.start + PREFIX + np.array(group) for group in groups.values()]
        heads = [np.array([own.start + place]) for place in range(PREFIX)]
        for group in [*heads, *tails]:
            weight = torch.ones(len(group), dtype=torch.float64)
            if group[0] >= own.start + PREFIX:
                weight = size[group - own.start - PREFIX]
            expected.append((weight[:, None] * x[group]).sum(0) / weight.sum())
            positions.append((weight[:, None] * tokens.positions[group]).sum(0) / weight.sum())
            counts.append(float(weight.sum()))
    assert torch.allclose(found, torch.stack(expected), atol=1e-12)
    assert torch.allclose(left.positions, torch.stack(positions), atol=1e-12)
    assert left.sizes.tolist() == counts and left.patches == [5, 1, 2]


@pytest.mark.parametrize("options", OPTIONS)
def test_packed_equals_unpacked(options):
    """Outputs and gradients, with and without the recomputation of activations."""
    student, images = student_of(**options), drawn_images()
    packed = student(torch.cat(images), GRIDS)
    alone = [student(image, [grid]) for image, grid in zip(images, GRIDS, strict=True)]
    assert packed.lengths == [count for one in alone for count in one.lengths]
    assert sum(packed.lengths) < sum(len(image) for image in images)
    for kind in ("summary", "registers", "tokens"):
        assert torch.allclose(getattr(packed, kind), torch.cat([getattr(one, kind) for one in alone]), atol=1e-12)
    sums = [sum((one.summary.sin().sum() + one.tokens.cos().sum()) for one in outputs) for outputs in ([packed], alone)]
    names = [name for name, _ in student.named_parameters() if name.startswith("backbone")]
    weights = [item for name, item in student.named_parameters() if name in names]
    together, apart = (torch.autograd.grad(total, weights, retain_graph=True) for total in sums)
    for name, one, two in zip(names, together, apart, strict=True):
        assert torch.allclose(one, two, atol=1e-10), name
    student.backbone.checkpointing = True
    again = student(torch.cat(images), GRIDS)
    assert torch.equal(again.tokens, packed.tokens)
    found = torch.autograd.grad(again.summary.sin().sum() + again.tokens.cos().sum(), weights)
    assert all(torch.equal(one, two) for one, two in zip(found, together, strict=True))


def test_without_a_reduction_the_student_is_the_plain_one():
    images, plain = torch.cat(drawn_images()), student_of()
    expected = plain(images, GRIDS)
    for options in ({"keep": 1.0, "keep_layers": [1, 2]}, {"merge": 0}):
        found = student_of(**options)(images, GRIDS)
        assert torch.equal(found.patches, expected.patches) and torch.equal(found.summary, expected.summary)
    reduced = student_of(merge=1)
    with pytest.raises(InputError, match="has no output of each patch"):
        _ = reduced(images, GRIDS).patches
    reduced.backbone.reduction = Reduction()
    assert torch.equal(reduced(images, GRIDS).summary, expected.summary)
    assert reduced(images[:0], []).summary.shape == (0, 16)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.long
def test_flex_weighs_merged_tokens_as_the_loop_does():
    student, images = student_of(merge=1), torch.cat(drawn_images())
    with torch.no_grad():
        expected = student(images, GRIDS)
        student.backbone.attention = "flex"
        assert torch.allclose(student(images, GRIDS).tokens, expected.tokens, atol=1e-12)
    with pytest.raises(InputError, match=r"^run.attention: 'varlen' cannot weigh merged tokens .* use flex$"):
        attention_plan([3], CPU, "varlen", torch.zeros(3))


def test_a_bias_counts_a_token_as_several_equal_ones():
    """ToMe, Eq. 1."""
    x = tensors([2, 3]).detach()
    repeats = torch.tensor([1, 1, 2, 1, 3])
    bias = repeats.double().log()
    found = attention_plan([2, 3], CPU, bias=bias)(*x)
    expected = attention_plan([2, 6], CPU)(*x.repeat_interleave(repeats, 1))
    assert torch.allclose(found, expected[[0, 1, 2, 4, 5]], atol=1e-12)


@pytest.mark.parametrize("options", [{}, PE, PE | {"positions": "absolute"}], ids=["amoe", "pe", "absolute"])
def test_a_subset_of_patches_is_the_image_at_their_places(options):
    """As if the others did not exist: all of them equal the whole image, and their order does not matter."""
    student, images = student_of(**options), drawn_images()
    rng = np.random.default_rng(0)
    places = [np.sort(rng.permutation(len(image))[: max(1, len(image) // 2)]) for image in images]
    packed = student(torch.cat([image[own] for image, own in zip(images, places, strict=True)]), GRIDS, places)
    alone = [student(image[own], [grid], [own]) for image, grid, own in zip(images, GRIDS, places, strict=True)]
    assert torch.allclose(packed.patches, torch.cat([one.patches for one in alone]), atol=1e-12)
    every = [np.arange(len(image)) for image in images]
    assert torch.equal(student(torch.cat(images), GRIDS, every).patches, student(torch.cat(images), GRIDS).patches)
    turned = student(images[4][[5, 0]], [GRIDS[4]], [np.array([5, 0])])
    assert torch.allclose(turned.summary, student(images[4][[0, 5]], [GRIDS[4]], [np.array([0, 5])]).summary)
    assert not torch.allclose(turned.summary, student(images[4][[0, 5]], [GRIDS[4]], [np.array([0, 1])]).summary)


def test_masked_patches_have_the_given_embedding():
    student, images = student_of(), torch.cat(drawn_images())
    mask, embedding = torch.zeros(len(images), dtype=torch.bool), torch.full((16,), 0.5, dtype=torch.float64)
    mask[4:7] = True
    student.objectives["own"] = torch.nn.Module()
    student.objectives["own"].mask = torch.nn.Parameter(embedding)
    expected = student(images, GRIDS, None, {"own": mask})
    changed = images.clone()
    changed[mask] = 255 - images[mask]
    assert torch.equal(student(changed, GRIDS, None, {"own": mask}).patches, expected.patches)
    assert not torch.allclose(student(images, GRIDS).patches, expected.patches)
    expected.patches.sum().backward()
    assert student.objectives["own"].mask.grad.any()


@pytest.mark.parametrize("pool", ["cls", "mean", "attention"])
def test_equal_patches_may_be_merged_without_a_change(pool):
    """ToMe, Eq. 1: a token counts as its patches do together, in the pool too."""
    images = torch.full((12, 48), 40, dtype=torch.uint8)
    images[6:] = 200
    like = {"pool": pool, "pool_heads": 2, "positions": "absolute", "position_grid": 1}
    plain, merged = (student_of(**like, merge=merge)(images, [(2, 3), (3, 2)]) for merge in (0, 1))
    assert plain.lengths == [6, 6] and merged.lengths == [3, 3]
    assert torch.allclose(plain.summary, merged.summary, atol=1e-12)


def test_flat_images_are_merged_alike_in_any_pack():
    """Rotated by column and row, the keys of equal patches have cosines that differ only by rounding."""
    student, grids, images = student_of(positions="axial", merge=2), [(4, 6), (4, 4), (6, 4)], list[torch.Tensor]()
    generator = torch.Generator().manual_seed(0)
    for rows, columns in grids:
        image = torch.full((rows, columns, 48), 255, dtype=torch.uint8)
        image[:, columns // 2 :] = torch.randint(0, 256, (48,), generator=generator, dtype=torch.uint8)
        images.append(image.flatten(0, 1))
    packed = student(torch.cat(images), grids)
    alone = [student(image, [grid]).summary for image, grid in zip(images, grids, strict=True)]
    assert torch.allclose(packed.summary, torch.cat(alone), atol=1e-12)


def test_evit_sums_patches_that_cls_does_not_attend_to_at_all():
    x, _, _, tokens = a_layer([3])
    q = torch.full((6, 1, 4), 200.0)
    k = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0]).view(6, 1, 1) * q
    found, left = keep_attended(x, q, k, tokens=tokens, kept=[1], left=[2])
    assert torch.equal(found[-1], torch.zeros(WIDTH, dtype=torch.float64)) and left.positions.isfinite().all()


def test_a_mean_over_merged_tokens_is_that_over_their_patches():
    images, summaries = torch.cat(drawn_images()), []
    for merge in (0, 1):
        student = student_of(pool="mean", merge=merge)
        student.backbone.norm = torch.nn.Identity()
        for block in student.backbone.blocks:  # which then change nothing but the number of tokens
            block.attention.out.weight.data.zero_()
            block.mlp.down.weight.data.zero_()
        summaries.append(student(images, GRIDS).summary)
    assert torch.allclose(*summaries, atol=1e-12)


def clips_of(student, frames):
    """Outputs of clips with these numbers of frames of 2 x 3 patches, packed, and their frames."""
    generator = torch.Generator().manual_seed(2)
    clips = [torch.randint(0, 256, (count, 6, 48), dtype=torch.uint8, generator=generator) for count in frames]
    packed = student(torch.cat([clip.flatten(0, 1) for clip in clips]), [(2, 3)] * sum(frames), frames=frames)
    return packed, clips


def test_tubelets_are_tokens_of_several_frames():
    student = student_of(tubelet=2)
    assert student.backbone.embed.in_features == 2 * 48
    packed, clips = clips_of(student, [4, 1, 3])
    assert packed.summary.shape == (3, 16) and packed.lengths == [12, 6, 12] and packed.reduced

    def alone(clip):
        return student(clip.flatten(0, 1), [(2, 3)] * len(clip), frames=[len(clip)])

    expected = torch.cat([alone(clip).tokens for clip in clips])
    assert torch.allclose(packed.tokens, expected, atol=1e-12)
    image, short = clips[1], clips[2]
    assert torch.equal(alone(image).summary, alone(image.repeat(2, 1, 1)).summary)
    assert torch.equal(alone(image).summary, student(image[0], [(2, 3)]).summary)
    assert torch.equal(alone(short).summary, alone(short[[0, 1, 2, 2]]).summary)
    assert not torch.allclose(alone(clips[0]).summary, alone(clips[0].flip(0)).summary)  # time has an order
    plain = student_of()
    assert torch.equal(clips_of(plain, [4, 1])[0].patches, plain(*flat([4, 1])).patches)


def flat(frames):
    _, clips = clips_of(student_of(), frames)
    return torch.cat([clip.flatten(0, 1) for clip in clips]), [(2, 3)] * sum(frames)


def test_numbers_of_tokens_are_those_of_the_papers():
    evit, tome = Reduction(keep=0.7, layers=spread_layers(12)), Reduction(merge=13)
    assert spread_layers(12) == (4, 7, 10) and spread_layers(2) == (1, 2)
    ends = []
    for reduction in (evit, tome):
        count = 196
        for layer in range(1, 13):
            count = reduction.after(layer, count)
        ends.append(count)
    assert ends == [71, 40] and math.ceil(0.7 * 196) == evit.kept(196)
    assert tome.after(1, 25) == 13 and Reduction(merge=13).after(1, 1) == 1
    assert tome.exhausted(196, 12) is None and tome.exhausted(168, 12) == (12, 25)
    assert not Reduction(layers=(1,)) and evit and tome
