import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError

from curate import encoders
from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.vectors import from_binary, vector_type
from curate.engine.passes.batches import run_batch
from curate.image.concepts import ImageConcepts
from curate.image.embed import Embed, embedding_columns
from curate.text.embed import Embed as EmbedTexts
from tests.codec.make_images import encoded
from tests.encoders.models import TINY, blob_image, save_timm

VIT = f"timm:vit_base_patch16_224?{TINY}&random=0"


def _run(stage, count=5):
    """(columns of the stage, vectors of the same images directly from the encoder)."""
    stage.setup({})
    samples = [Sample(encoded(blob_image(seed=seed), "PNG"), decode) for seed in range(count)]
    prepared = [stage.prepare(sample) for sample in samples]
    keys = [f"{number:032x}" for number in range(count)]
    batch = Batch(pa.table({"key": pa.array(keys, pa.string())}), prepared)
    columns = stage.process(batch)
    assert not batch.unfit and not batch.failed
    encoder = encoders.load(stage.encoder, device="cpu", precision=stage.precision)
    direct = encoder.encode([encoder.prepare(sample.image()) for sample in samples]).summary
    return columns, direct


@pytest.mark.parametrize("encoder", ["descriptor", VIT])
def test_columns_have_the_encoders_vectors(encoder):
    stage = Embed(encoder=encoder, batch_size=2)
    columns, direct = _run(stage)
    assert list(columns) == ["embedding", "embedding_norm"]
    assert columns["embedding"].type == vector_type(direct.shape[1])
    assert np.allclose(np.linalg.norm(from_binary(columns["embedding"]), axis=1), 1, atol=1e-3)
    assert np.allclose(from_binary(columns["embedding"], columns["embedding_norm"]), direct, rtol=2e-3, atol=2e-3)


def test_descriptor_has_not_changed():
    """Golden: if these figures change, raise `Embed.version` and the descriptor's WEIGHTS."""
    columns, _ = _run(Embed(), 1)
    vector = from_binary(columns["embedding"])[0]
    figures = [float(vector @ np.cos(np.arange(728) * turn)) for turn in (0.0, 0.1, 0.7, 1.9)]
    assert figures == pytest.approx([9.1769, -1.112, -0.4322, 0.2606], abs=2e-3)


def test_an_empty_batch():
    columns, _ = _run(Embed(), 0)
    assert [len(column) for column in columns.values()] == [0, 0]
    assert columns["embedding"].type == vector_type(728)


def test_schema_has_the_provenance_of_the_vectors():
    stage = Embed(encoder=VIT, column="look")
    before = stage.schema()
    assert before.names == ["look", "look_norm"] and before.types == [pa.null(), pa.float32()]
    assert b"encoder" not in before.field("look").metadata and stage.provenance() == {}
    columns, _ = _run(stage)
    schema = stage.schema()
    assert schema.names == ["look", "look_norm"]
    assert schema.types == [columns["look"].type, pa.float32()]
    metadata = {key.decode(): value.decode() for key, value in schema.field("look").metadata.items()}
    assert metadata["encoder"] == VIT
    assert metadata["weights"] == "random:0"
    assert metadata["dim"] == "64"
    assert json.loads(metadata["preprocessing"])["size"] == [224, 224]
    assert "unit length" in metadata["units"]


_WILD = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(arrays(np.float32, (6, 3), elements=_WILD | st.just(0.0)))
def test_rows_without_a_direction_are_unusable(vectors):
    batch = Batch(pa.table({"key": [""] * len(vectors)}))
    columns = embedding_columns(batch, vectors, "embedding")
    units = from_binary(columns["embedding"])
    for row, (vector, norm) in enumerate(zip(vectors, columns["embedding_norm"], strict=True)):
        reason = batch.unfit.get(row)
        if not np.isfinite(vector).all():
            assert reason == "nan_embedding"
        elif not vector.any():
            assert reason == "zero_embedding"
        elif reason is None:
            assert np.isfinite(norm) and norm > 0 and np.linalg.norm(units[row]) == pytest.approx(1, abs=1e-2)
        else:
            assert reason == "nan_embedding" and np.isinf(norm)


def test_bad_rows_do_not_affect_other_rows():
    vectors = np.array([[3, 4], [0, 0], [np.nan, 1], [0, 2]], dtype=np.float32)
    batch = Batch(pa.table({"key": [""] * 4}))
    columns = embedding_columns(batch, vectors, "embedding")
    assert batch.unfit == {1: "zero_embedding", 2: "nan_embedding"}
    assert columns["embedding_norm"][[0, 3]].tolist() == [5, 2]
    assert np.allclose(from_binary(columns["embedding"])[[0, 3]], [[0.6, 0.8], [0, 1]], atol=1e-3)


def _passes(stage, rows, monkeypatch):
    """Sizes of the stage's forward passes over a batch."""
    stage.setup({})
    seen = []

    def encode(arrays, **_):
        seen.append(len(arrays))
        return encoders.Features(np.ones((len(arrays), stage._encoder.dim), np.float32))

    monkeypatch.setattr(stage._encoder, "encode", encode)
    columns = stage.process(Batch(pa.table({"key": [""] * rows}), [None] * rows))
    assert len(columns["embedding"]) == rows
    return seen


@pytest.mark.parametrize(("batch_size", "passes"), [(1, 128 * [1]), (50, 4 * [32]), (64, 2 * [64]), (999, [128])])
def test_all_passes_of_a_batch_have_the_same_size(batch_size, passes, monkeypatch):
    stage = Embed(batch_size=batch_size)
    assert _passes(stage, stage.batch_rows, monkeypatch) == passes and stage.padded() == 0


@pytest.mark.parametrize(("batch_size", "size"), [(1, 1), (7, 4), (16, 16), (64, 16), (999, 16)])
def test_passes_on_a_cpu_have_at_most_16_images(batch_size, size, monkeypatch):
    stage = Embed(encoder=VIT, device="cpu", batch_size=batch_size)
    assert _passes(stage, stage.batch_rows, monkeypatch) == [size] * (stage.batch_rows // size)
    assert stage.padded() == size


def test_a_short_batch_is_padded_to_whole_passes(monkeypatch):
    """21 images take two passes of 16, not a batch of 128."""
    stage, prepared = Embed(encoder=VIT, device="cpu"), list(range(21))
    stage.setup({})
    seen = []

    def encode(arrays, **_):
        seen.append(arrays)
        return encoders.Features(np.ones((len(arrays), stage._encoder.dim), np.float32))

    monkeypatch.setattr(stage._encoder, "encode", encode)
    result = run_batch(stage, pa.table({"key": [""] * 21}), prepared, stage.padded())
    assert seen == [prepared[:16], prepared[16:] + [20] * 11] and result.table.num_rows == result.computed == 21


def test_passes_on_a_gpu_use_the_largest_divisor_of_the_batch(monkeypatch):
    """Runs without a GPU, since the stage only reads the encoder's device."""
    stage = Embed(encoder=VIT, device="cpu", batch_size=100)
    stage.setup({})
    monkeypatch.setattr(stage._encoder, "device", "cuda:0")
    assert stage.padded() == 64 and Embed(encoder="tiny").padded() > 0 and Embed().padded() == 0


def test_weights_and_precision_enter_the_identity_and_runtime_settings_do_not(tmp_path):
    save_timm(tmp_path / "a.safetensors", seed=0)
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    name = f"timm:vit_base_patch16_224?{TINY}"
    a, b = (Embed(encoder=f"{name}@{tmp_path}/{file}.safetensors") for file in ("a", "b"))
    assert a.parameters() == b.parameters()
    assert a.identity() == b.identity()
    assert Embed(threads=2, device="cpu", batch_size=8).parameters() == Embed().parameters()
    assert Embed(encoder=VIT, precision="bfloat16").identity() != Embed(encoder=VIT).identity()
    assert Embed(column="other").parameters() != Embed().parameters()


def test_resources_and_preflight():
    assert Embed(encoder=VIT, device="cuda", threads=3).resources().gpus == 1
    assert Embed(encoder=VIT, device="cpu", threads=3).resources().cpus == 3
    assert Embed(device="auto").resources().gpus == 0
    assert Embed().preflight() == []
    assert "no weights at" in Embed(encoder="hf:/no/such").preflight()[0]


def test_setup_sets_the_threads():
    import torch

    before = torch.get_num_threads()
    try:
        Embed(encoder=VIT, threads=1).setup({})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_pace_of_included_encoders_is_known_without_a_gpu():
    """By the number of cores; each names those that are faster."""
    rates = {name: Embed(encoder=name).pace(4, gpu=False) for name in ("lite1", "lite0", "tiny", "descriptor")}
    assert sorted(rate for rate, _ in rates.values()) == [rate for rate, _ in rates.values()]
    assert all(rate == 4 * Embed(encoder=name).pace(1, gpu=False)[0] for name, (rate, _) in rates.items())
    assert [name for name in rates if name in rates["tiny"][1]] == ["descriptor"]
    assert all(name in rates["lite1"][1] for name in ("descriptor", "tiny", "lite0")) and rates["descriptor"][1] == ""
    assert Embed(encoder="lite1").pace(4, gpu=True) is None and Embed(encoder=VIT).pace(4, gpu=False) is None
    assert EmbedTexts(encoder="tiny").pace(4, gpu=False) is None and ImageConcepts().pace(4, gpu=False) is None


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"encoder": "vitb"}, "'vitb' is not 'library:model'"),
        ({"precision": "half"}, "'float32', 'bfloat16' or 'float16'"),
        ({"device": "gpu"}, "'auto', 'cpu' or 'cuda'"),
        ({"batch_size": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_parameters_are_rejected(parameters, message):
    with pytest.raises(ValidationError, match=message):
        Embed(**parameters)


def test_a_stage_can_be_pickled_and_has_descriptions():
    stage = pickle.loads(pickle.dumps(Embed(encoder=VIT)))
    assert stage == Embed(encoder=VIT)
    assert all(field.description for field in Embed.model_fields.values())
