import pytest
import torch

from distill.models.attention import runs, sdpa_loop
from distill.models.student import HeadConfig, Student, build_student, decay_groups
from distill.models.vit import VitConfig

CONFIG = VitConfig(patch=4, width=16, depth=2, heads=2, registers=3)
HEADS = [HeadConfig(summary=6, patches=None, hidden=8), HeadConfig(summary=5, patches=7, hidden=8)]
GRIDS = [(1, 2), (2, 1), (2, 2), (1, 4), (3, 2), (2, 3)]


@pytest.fixture
def student() -> Student:
    return build_student(CONFIG, HEADS, seed=0).double()


def pictures(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (r * c, 48), dtype=torch.uint8, generator=generator) for r, c in GRIDS]


def loss(student: Student, output) -> torch.Tensor:
    """Something that every output enters, with another weight for each value."""
    parts = [output.summary, output.registers, output.patches, student.heads[1].patches(output.patches)]
    return sum(
        (part * torch.linspace(1, 2, part[0].numel()).view(part[0].shape).double()).sin().sum() for part in parts
    )


def test_packed_equals_unpacked(student):
    """Outputs and gradients: an image sees itself only, whatever it is packed with."""
    images = pictures()
    packed = student(torch.cat(images), GRIDS)
    loss(student, packed).backward()
    together = {name: item.grad.clone() for name, item in student.named_parameters() if item.grad is not None}
    student.zero_grad()
    alone = [student(image, [grid]) for image, grid in zip(images, GRIDS, strict=True)]
    for output in alone:
        loss(student, output).backward()
    assert torch.allclose(packed.summary, torch.cat([item.summary for item in alone]), atol=1e-12)
    assert torch.allclose(packed.registers, torch.cat([item.registers for item in alone]), atol=1e-12)
    assert torch.allclose(packed.patches, torch.cat([item.patches for item in alone]), atol=1e-12)
    assert len(together) > 20
    for name, item in student.named_parameters():
        if item.grad is not None:
            assert torch.allclose(together[name], item.grad, atol=1e-10), name


def test_order_in_a_pack_changes_nothing(student):
    images, order = pictures(), [3, 0, 5, 1, 4, 2]
    first = student(torch.cat(images), GRIDS).summary
    second = student(torch.cat([images[i] for i in order]), [GRIDS[i] for i in order]).summary
    assert torch.allclose(first[order], second, atol=1e-12)


def test_height_by_width_is_not_width_by_height(student):
    image = pictures()[4]
    assert not torch.allclose(student(image, [(3, 2)]).summary, student(image, [(2, 3)]).summary)
    again = student(image, [(3, 2)]).summary  # positions of both grids are now kept; neither may serve the other
    assert torch.equal(again, build_student(CONFIG, HEADS, seed=0).double()(image, [(3, 2)]).summary)


def test_attention_equals_one_call_per_image():
    lengths = [3, 3, 5, 2, 2, 2]
    q, k, v = torch.randn(3, sum(lengths), 2, 4, dtype=torch.float64)
    whole = sdpa_loop(q, k, v, lengths)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        weights = (torch.einsum("nhd,mhd->hnm", q[part], k[part]) / 2).softmax(-1)
        assert torch.allclose(whole[part], torch.einsum("hnm,mhd->nhd", weights, v[part]))
        start += length
    assert runs(lengths) == [(2, 3), (1, 5), (3, 2)]


def test_a_seed_gives_the_same_student_and_leaves_the_generator_alone():
    state = torch.random.get_rng_state()
    first, second, other = (build_student(CONFIG, HEADS, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.backbone.embed.weight, other.backbone.embed.weight)


def test_heads_share_summary_and_patches_unless_the_teacher_has_two_widths(student):
    x = torch.randn(2, 16, dtype=torch.float64)
    assert student.heads[1](x).shape == (2, 5)
    assert student.heads[1].patches(x).shape == (2, 7)
    same = build_student(CONFIG, [HeadConfig(5, 5, 8)], 0).heads[0]
    assert torch.equal(same(x.float()), same.patches(x.float()))


def test_vectors_and_prefix_tokens_do_not_decay(student):
    decayed, rest = (group["params"] for group in decay_groups(student, 0.1))
    assert all(item.ndim > 1 for item in decayed)
    assert any(item is student.backbone.prefix for item in rest)
    assert len(decayed) + len(rest) == len(list(student.parameters()))
