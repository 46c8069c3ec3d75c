import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from curate.core.errors import InputError
from curate.encoders.student.config import HeadConfig, MoeConfig, StudentConfig
from curate.encoders.student.network.student import Student, build_student, compile_blocks
from curate.encoders.student.network.text import set_temperature
from curate.encoders.student.network.vit import VitOutput
from curate.encoders.student.reduction import Reduction
from distill.training.optim import parameter_groups
from tests.distill.routing import record_routing, replay_routing

MOE = MoeConfig(experts=5, active=2, hidden=8, balance_rate=0.01)
DENSE = StudentConfig(patch=4, width=16, depth=2, heads=2, registers=3)
SPARSE = StudentConfig(patch=4, width=16, depth=2, heads=2, registers=3, head_dim=12, moe=MOE)
SHARED = MoeConfig(experts=4, active=2, hidden=8, shared=3, shared_active=1)
PE = StudentConfig(
    patch=4, width=16, depth=2, heads=2, registers=1, norm="layer", mlp="gelu", bias=True, qk_norm=False, pre_norm=True,
    positions="absolute + axial", position_grid=3, pool="attention", pool_heads=2, layer_scale=0.1, drop_path=0.5,
)  # fmt: skip
CLIP = PE.model_copy(update={"positions": "absolute", "pool": "cls", "mlp": "quick_gelu", "layer_scale": None})
MEAN = PE.model_copy(
    update={"positions": "axial", "position_grid": None, "pool": "mean", "class_token": False, "registers": 3}
)
MIXED = SPARSE.model_copy(update={"moe": SHARED, "pixel_mean": (0.4, 0.5, 0.6), "drop_path": 0.3})
HEADS = [HeadConfig(summary=6, patches=None, hidden=8), HeadConfig(summary=5, patches=7, hidden=8)]
GRIDS = [(1, 2), (2, 1), (2, 2), (1, 4), (3, 2), (2, 3)]


@pytest.fixture(params=[DENSE, SPARSE, PE, CLIP, MEAN, MIXED], ids=["dense", "moe", "pe", "clip", "mean", "shared"])
def config(request) -> StudentConfig:
    return request.param


@pytest.fixture
def student(config: StudentConfig) -> Student:
    return build_student(config, HEADS, seed=0).double()


def drawn_images(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 256, (r * c, 48), dtype=torch.uint8, generator=generator) for r, c in GRIDS]


def draws() -> NDArray[np.uint64]:
    """Numbers of the images from which stochastic depth follows."""
    return np.random.default_rng(1).integers(0, 2**64, len(GRIDS), dtype=np.uint64)


def loss(student: Student, output: VitOutput) -> Tensor:
    """A loss of all outputs, with a different weight for each value."""
    parts = [output.summary, output.registers, output.patches, student.heads[1].patches(output.patches)]
    return sum(
        (part * torch.linspace(1, 2, part[0].numel()).view(part[0].shape).double()).sin().sum() for part in parts
    )


def gradients(student: Student, outputs: list[VitOutput]) -> dict[str, Tensor]:
    student.zero_grad()
    for output in outputs:
        loss(student, output).backward()
    return {name: item.grad.clone() for name, item in student.named_parameters() if item.grad is not None}


def test_packed_equals_unpacked(student):
    """Outputs and gradients: an image attends only to itself, and its number decides what it skips."""
    images, numbers = drawn_images(), draws()
    packed = student(torch.cat(images), GRIDS, draws=numbers)
    alone = [student(image, [GRIDS[n]], draws=numbers[n : n + 1]) for n, image in enumerate(images)]
    for kind in ("summary", "registers", "patches"):
        assert torch.allclose(getattr(packed, kind), torch.cat([getattr(one, kind) for one in alone]), atol=1e-12)
    together, apart = gradients(student, [packed]), gradients(student, alone)
    assert len(together) > 20
    for name, grad in together.items():
        assert torch.allclose(grad, apart[name], atol=1e-10), name


def test_the_order_in_a_pack_does_not_matter(student):
    images, order = drawn_images(), [3, 0, 5, 1, 4, 2]
    first = student(torch.cat(images), GRIDS)
    second = student(torch.cat([images[i] for i in order]), [GRIDS[i] for i in order])
    assert torch.allclose(first.summary[order], second.summary, atol=1e-12)
    assert torch.allclose(first.registers[order], second.registers, atol=1e-12)


def test_a_grid_differs_from_its_transpose(student, config):
    image = drawn_images()[4]
    assert not torch.allclose(student(image, [(3, 2)]).summary, student(image, [(2, 3)]).summary)
    again = student(image, [(3, 2)]).summary  # positions of both grids are cached now
    assert torch.equal(again, build_student(config, HEADS, seed=0).double()(image, [(3, 2)]).summary)


def test_no_image_gives_no_output_and_zero_gradients(student):
    """A rank without images forwards none, so that all ranks take part in every collective."""
    output = student(torch.zeros(0, 48, dtype=torch.uint8), [])
    registers = student.backbone.config.registers
    assert (output.summary.shape, output.patches.shape, output.registers.shape) == (
        (0, 16),
        (0, 16),
        (0, registers, 16),
    )
    (output.summary.sum() + output.registers.sum() + output.patches.sum()).backward()
    assert all(item.grad is not None and not item.grad.any() for item in student.backbone.parameters())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_gives_the_same_outputs():
    """Without gradients, which flex does not support on a CPU."""
    student, images = build_student(SPARSE, HEADS, seed=0).double(), torch.cat(drawn_images())
    with torch.no_grad():
        expected = student(images, GRIDS)
        student.backbone.attention = "flex"
        found = student(images, GRIDS)
    assert torch.allclose(found.summary, expected.summary, atol=1e-12)
    assert torch.allclose(found.patches, expected.patches, atol=1e-12)
    with pytest.raises(InputError, match="no backward pass on a CPU; use sdpa_loop"):
        student(images, GRIDS)


def test_checkpointing_gives_the_same_gradients_and_token_counts(student):
    images = torch.cat(drawn_images())
    kept = gradients(student, [student(images, GRIDS, draws=draws())])
    counts = student.backbone.expert_counts()
    student.backbone.checkpointing = True
    if counts is not None:
        student.backbone.balance(torch.zeros_like(counts))
    again = gradients(student, [student(images, GRIDS, draws=draws())])
    assert kept.keys() == again.keys()
    assert all(torch.equal(grad, again[name]) for name, grad in kept.items())
    assert counts is None or torch.equal(student.backbone.expert_counts(), counts)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.long
def test_compiled_blocks_give_the_same_gradients_and_names():
    """Through the compiler's front end, which our code can break; the rest of the compiler takes minutes."""
    config = PE.model_copy(update={"depth": 1, "mlp": "swiglu", "moe": SHARED, "qk_norm": True})
    student, images = build_student(config, HEADS, seed=0).double(), torch.cat(drawn_images())
    weights = list(student.backbone.blocks.parameters())

    def gradients_of(reduction: Reduction) -> tuple[Tensor, ...]:
        student.backbone.reduction = reduction
        return torch.autograd.grad(student(images, GRIDS, draws=draws()).summary.sin().sum(), weights)

    reductions = (Reduction(), Reduction(merge=1))
    names, expected = set(student.state_dict()), [gradients_of(reduction) for reduction in reductions]
    compile_blocks(student, backend="eager")
    for reduction, kept in zip(reductions, expected, strict=True):
        found = gradients_of(reduction)
        assert all(torch.allclose(one, two, atol=1e-12) for one, two in zip(kept, found, strict=True))
    assert set(student.state_dict()) == names
    torch._dynamo.reset()


def test_a_seed_gives_the_same_student_and_leaves_the_generator_alone(config):
    state = torch.random.get_rng_state()
    first, second, other = (build_student(config, HEADS, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.backbone.embed.weight, other.backbone.embed.weight)


def test_values_keep_their_size_through_the_blocks(config):
    """At initialisation, experts add about as much to the residual stream as a dense MLP."""
    block = build_student(config, HEADS, seed=0).backbone.blocks[0]
    x = torch.randn(400, 16, generator=torch.Generator().manual_seed(0))
    assert 0.2 < block.mlp(x).std() < 1.0


def test_heads_share_summary_and_patches_unless_the_teacher_has_two_widths(student):
    x = torch.randn(2, 16, dtype=torch.float64)
    assert student.heads[1].summary(x).shape == (2, 5)
    assert student.heads[1].patches(x).shape == (2, 7)
    assert student.heads[1].registers(x.view(1, 2, 16)).shape == (1, 2, 5)
    same = build_student(DENSE, [HeadConfig(summary=5, patches=5, hidden=8)], 0).heads[0]
    assert torch.equal(same.summary(x.float()), same.patches(x.float()))


def test_vectors_and_prefix_tokens_do_not_decay(student):
    decayed, rest = (group["params"] for group in parameter_groups(student, 0.1))
    assert all(item.ndim > 1 for item in decayed)
    assert any(item is student.backbone.prefix for item in rest)
    assert len(decayed) + len(rest) == len(list(student.parameters()))


def test_the_configuration_sets_every_size():
    values = {"patch": 8, "width": 24, "depth": 3, "heads": 2, "head_dim": 16, "registers": 1, "mlp_ratio": 2.0}
    moe = {"experts": 4, "active": 3, "hidden": 16, "balance_rate": 0.5}
    config = StudentConfig(**values, moe=moe)
    block = build_student(config, [], 0).backbone.blocks[0]
    assert block.attention.qkv.weight.shape == (3 * 2 * 16, 24)
    assert block.mlp.gate_up.shape == (4, 2 * 16, 24)
    text = {"vocabulary": 300, "context": 5, "width": 8, "depth": 1, "heads": 2}
    student = build_student(StudentConfig(**values, text=text, embed=16), [], 0)
    assert student.text.positions.shape == (5, 8)
    assert student.text.project.out_features == student.project.out_features == 16
    set_temperature(student.logit_scale, 0.05)
    assert student.logit_scale.exp().item() == pytest.approx(20)


@pytest.fixture
def routed() -> Student:
    return build_student(SPARSE, HEADS, seed=0).double()


def test_replayed_routing_follows_images_through_other_packs(routed):
    images, order = drawn_images(), [3, 0, 5, 1, 4, 2]
    with record_routing(routed) as routing:
        expected = gradients(routed, [routed(torch.cat(images), GRIDS)])
    for moe in routed.backbone.moes():
        moe.bias += torch.randn(5, generator=torch.Generator().manual_seed(1)).double()  # would route elsewhere
    moved = gradients(routed, [routed(torch.cat(images), GRIDS)])
    assert any(not torch.allclose(grad, moved[name]) for name, grad in expected.items())
    with replay_routing(routed, routing):
        halves = [
            routed(torch.cat([images[i] for i in part]), [GRIDS[i] for i in part]) for part in (order[:2], order[2:])
        ]
        found = gradients(routed, halves)
    for name, grad in expected.items():
        assert torch.allclose(grad, found[name], atol=1e-10), name
    moved_again = gradients(routed, [routed(torch.cat(images), GRIDS)])
    assert all(torch.equal(grad, moved_again[name]) for name, grad in moved.items())


def test_replaying_an_image_that_was_not_recorded_is_an_error(routed):
    images = drawn_images()
    with record_routing(routed) as routing:
        routed(torch.cat(images[:2]), GRIDS[:2])
    with replay_routing(routed, routing), pytest.raises(InputError, match="1 of 2 images were not recorded"):
        routed(torch.cat(images[1:3]), GRIDS[1:3])


def test_amoes_student_has_the_parameters_of_the_paper():
    """AMoE: 523M, 172M of them active. The paper does not print the width of its heads: with 1024, and SigLIP2's pooler
    (a part of the teacher here), the counts agree."""
    moe = {"experts": 28, "active": 6, "hidden": 384}
    config = StudentConfig(patch=16, width=768, depth=18, heads=8, head_dim=128, moe=moe, head_hidden=1024)
    with torch.device("meta"):
        heads = [HeadConfig(summary=width, patches=width, hidden=config.head_hidden) for width in (1152, 1024)]
        student = Student(config, heads)
    total = sum(item.numel() for item in student.parameters())
    experts = sum(moe.gate_up.numel() + moe.down.numel() for moe in student.backbone.moes())
    active = total - experts * 22 // 28
    pooler = 15_238_352  # of timm's naflexvit_so400m_patch16_siglip
    assert (total, active) == (507_353_984, 156_998_528)
    assert [round((count + pooler) / 1e6) for count in (total, active)] == [523, 172]
