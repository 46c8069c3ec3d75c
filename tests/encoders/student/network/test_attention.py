import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from curate.core.errors import InputError, PreflightError
from curate.encoders.student.network.attention import Varlen, attention_backend, attention_plan, document_mask, runs

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


def alone(q, k, v, lengths):
    """The definition: softmax over the tokens of each image."""
    outputs = []
    for one, two, three in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        weights = (torch.einsum("nhd,mhd->hnm", one, two) / q.shape[-1] ** 0.5).softmax(-1)
        outputs.append(torch.einsum("hnm,mhd->nhd", weights, three))
    return torch.cat(outputs)


def tensors(lengths, dim=4, **how):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, sum(lengths), 2, dim, dtype=torch.float64, generator=generator).to(**how).requires_grad_()


@given(st.lists(st.integers(1, 7), min_size=1, max_size=9))
def test_the_loop_equals_one_softmax_per_image(lengths):
    x = tensors(lengths)
    found, expected = attention_plan(lengths, CPU)(*x), alone(*x, lengths)
    assert torch.allclose(found, expected, atol=1e-12)
    weight = torch.arange(found.numel()).view(found.shape)
    ours, theirs = (torch.autograd.grad((out * weight).sum(), x)[0] for out in (found, expected))
    assert torch.allclose(ours, theirs, atol=1e-9)


def test_neighbours_of_equal_length_are_one_call():
    assert runs([3, 3, 5, 2, 2, 2]) == [(2, 3), (1, 5), (3, 2)]


@given(st.lists(st.integers(1, 400), min_size=1, max_size=8))
def test_the_document_mask_equals_torchs(lengths):
    from torch.nn.attention.flex_attention import create_block_mask

    total = sum(lengths)
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    expected = create_block_mask(lambda b, h, q, k: document[q] == document[k], 1, 1, total, total, device="cpu")
    found = document_mask(lengths, CPU)
    for kind in ("kv", "full_kv", "q", "full_q"):
        assert tiles(found, kind) == tiles(expected, kind), kind
    assert found.seq_lengths == expected.seq_lengths


def tiles(mask, kind):
    counts, places = getattr(mask, f"{kind}_num_blocks")[0, 0], getattr(mask, f"{kind}_indices")[0, 0]
    return [sorted(row[:count].tolist()) for count, row in zip(counts, places, strict=True)]


def test_backends_that_cannot_train_here_are_errors_in_one_line():
    assert attention_backend("auto", CPU) == "sdpa_loop"
    assert attention_backend("auto", CUDA) == "flex"
    for name in ("flex", "varlen"):
        with pytest.raises(PreflightError, match=f"run.attention: '{name}' trains on a GPU only.*use sdpa_loop"):
            attention_backend(name, CPU)
        assert attention_backend(name, CUDA) == name
    with pytest.raises(PreflightError, match=r"'varlen' trains in 16 bits; set train\.precision=bfloat16, not float32"):
        attention_backend("varlen", CUDA, "float32")
    with pytest.raises(InputError, match="'varlen' runs on a GPU only"):
        attention_plan([3], CPU, "varlen")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_varlen_uses_flex_for_float32():
    """A student trained in 16 bits is evaluated in 32."""
    lengths = [30, 7, 129]
    plan = Varlen.__new__(Varlen)  # whose kernel, not used here, asks for a GPU
    plan.lengths, plan.flex = lengths, None
    x = tensors(lengths, dim=16).detach().float()
    assert torch.allclose(plan(*x), alone(*x, lengths), atol=1e-5)


@on_gpu
@pytest.mark.parametrize("backend", ["sdpa_loop", "flex", "varlen"])
def test_backends_agree_on_a_gpu(backend):
    lengths = [300, 7, 128, 129, 64]
    x = tensors(lengths, dim=64, device="cuda", dtype=torch.bfloat16 if backend == "varlen" else torch.float32)
    exact = x.detach().cpu().double().requires_grad_()
    found, expected = attention_plan(lengths, CUDA, backend)(*x), alone(*exact, lengths)
    ours, theirs = torch.autograd.grad(found.sum(), x)[0], torch.autograd.grad(expected.sum(), exact)[0]
    tolerance = 2e-2 if backend == "varlen" else 2e-3
    assert torch.allclose(found.cpu().double(), expected, atol=tolerance)
    assert torch.allclose(ours.cpu().double(), theirs, atol=tolerance)
