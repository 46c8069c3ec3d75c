"""`duplicates.reference` and `duplicates.match`, called as the engine calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.contracts import Batch
from curate.core.errors import CurateError, InputError
from curate.core.vectors import to_binary
from curate.duplicates.reference.match import MatchReference
from curate.duplicates.reference.reference import ReferenceSet

DIM = 8


def pool(
    names: list[str],
    digests: list[str],
    hashes: np.ndarray,
    vectors: np.ndarray,
    flat: list[bool] | None = None,
    encoder: str = "timm:vit",
) -> pa.Table:
    column, _ = to_binary(vectors)
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("source_id", pa.string()),
            ("sha256", pa.string()),
            ("pixel_sha256", pa.string()),
            ("perceptual_hash", pa.binary(32)),
            ("flat", pa.bool_()),
            pa.field("embedding", column.type, metadata={"encoder": encoder, "weights": encoder, "dim": str(DIM)}),
        ]
    )
    keys = [f"{row:032x}" for row in range(len(names))]
    prints = [row.tobytes() for row in hashes]
    columns = [keys, names, digests, [f"pixels of {d}" for d in digests], prints, flat or [False] * len(names)]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    return pa.table([*arrays, column], schema=schema)


def hash_of(*bits: int) -> np.ndarray:
    ones = np.zeros(256, dtype=np.uint8)
    ones[list(bits)] = 1
    return np.packbits(ones)


FAR = [hash_of(*range(start, start + 60)) for start in (0, 60, 120)]
EYE = np.eye(DIM)
REFERENCE = pool(["val/a.jpg", "val/b.jpg", "val/c.jpg"], ["A", "B", "C"], np.stack(FAR), EYE[:3])


def reference(table: pa.Table = REFERENCE, **parameters: Any) -> dict[str, Any]:
    stage = ReferenceSet(**parameters)
    states = iter([stage.partial(table.slice(1)), stage.partial(table.slice(0, 1))])
    return dict(stage.finish(stage.merge(states)))


def found(table: pa.Table, against: dict[str, Any], **parameters: Any) -> pa.Table:
    stage = MatchReference(**parameters)
    before = stage.schema()
    stage.setup({"against": against})
    columns = stage.process(Batch(table.select(["key", *stage.reads()])))
    assert stage.schema().equals(before, check_metadata=True) and list(columns) == before.names
    return pa.table(columns, schema=before)


def matched(table: pa.Table, against: dict[str, Any], **parameters: Any) -> list[tuple[Any, ...]]:
    """Name, kind and similarity of each row's match."""
    return [tuple(row.values())[:3] for row in found(table, against, **parameters).to_pylist()]


POOL = pool(
    ["1", "2", "3", "4", "5", "6"],
    ["B", "x", "y", "z", "v", "w"],
    np.stack([FAR[0], hash_of(*range(3, 62)), hash_of(200), FAR[2], hash_of(210), hash_of(220)]),
    np.stack([EYE[0], EYE[5], EYE[2] + 0.1 * EYE[6], EYE[6], EYE[7], EYE[1] + EYE[2]]),
    flat=[False, False, False, True, False, False],
)
"""b's digest with a's hash and vector; a's hash with 5 bits flipped; near c's vector; c's hash, but flat; no match;
a vector equally far from b and c."""

COSINE = float(1 / np.sqrt(1.01))


def test_matches_by_bytes_then_hash_then_embedding() -> None:
    exact, near, semantic, *others = matched(POOL, reference())
    assert exact == ("val/b.jpg", "exact", 1.0)
    assert near == ("val/a.jpg", "near", pytest.approx(1 - 5 / 256))
    assert semantic == ("val/c.jpg", "semantic", pytest.approx(COSINE, abs=1e-3))
    assert others == [(None, None, None)] * 3


def test_every_similarity_within_the_search_limits_is_written() -> None:
    table = found(POOL, reference())
    assert table["contamination_near"].to_pylist() == [1, pytest.approx(1 - 5 / 256), None, None, None, None]
    assert table["contamination_semantic"].to_pylist() == [
        pytest.approx(1, abs=1e-3),
        None,
        pytest.approx(COSINE, abs=1e-3),
        None,
        None,
        None,
    ]


def test_equal_pixels_are_exact() -> None:
    same = POOL.slice(5).set_column(3, "pixel_sha256", pa.array(["pixels of C"]))
    assert matched(same, reference())[0] == ("val/c.jpg", "exact", 1.0)


def test_search_limits() -> None:
    kinds = [row[1] for row in matched(POOL, reference(), max_distance=4, eps=1e-3)]
    assert kinds == ["exact", None, None, None, None, None]
    assert [row[1] for row in matched(POOL, reference(), max_distance=-1)] == [
        "exact",
        None,
        "semantic",
        None,
        None,
        None,
    ]
    wide = matched(POOL, reference(), eps=0.3)[5]
    assert wide[:2] == ("val/b.jpg", "semantic"), "the first of two equally near"


def test_without_embeddings() -> None:
    against = reference(embedding=None)
    assert [row[1] for row in matched(POOL, against, embedding=None)] == ["exact", "near", None, None, None, None]
    with pytest.raises(CurateError, match=r"embedding: 'embedding', but its `against` has no embeddings; write"):
        matched(POOL, against)


def test_another_column_name() -> None:
    table = found(POOL, reference(), column="voc")
    assert table.column_names == ["voc", "voc_kind", "voc_similarity", "voc_near", "voc_semantic"]
    assert table["voc"][0].as_py() == "val/b.jpg"


def test_another_encoder_is_an_error_of_one_line() -> None:
    other = pool(["1"], ["x"], hash_of(7)[None], EYE[:1], encoder="open_clip:b")
    with pytest.raises(CurateError, match=r"has encoder open_clip:b, but its `against` has encoder timm:vit; embed"):
        matched(other, reference())
    wider = pool(["1"], ["x"], hash_of(7)[None], np.eye(DIM + 1)[:1])
    with pytest.raises(CurateError, match=r"9 dimensions, but its `against` has 8"):
        matched(wider, reference())
    with pytest.raises(InputError, match=r"embedding: column 'sha256': expected fixed_size_binary .* not string"):
        reference(embedding="sha256")


def test_an_empty_reference_set_is_an_error() -> None:
    with pytest.raises(CurateError, match=r"duplicates.reference: no images in the reference set"):
        reference(REFERENCE.slice(0, 0))


def test_flat_reference_images_match_exactly_only() -> None:
    flat = pool(["f"], ["F"], hash_of()[None], EYE[3:4], flat=[True])
    queries = pool(["1", "2"], ["F", "u"], np.stack([hash_of(), hash_of()]), EYE[4:6])
    assert [row[1] for row in matched(queries, reference(flat))] == ["exact", None]


def test_the_reference_set_does_not_depend_on_the_order_of_shards() -> None:
    permuted = reference(REFERENCE.take([2, 0, 1]))
    assert permuted["reference"].equals(reference()["reference"]) and permuted["summary"] == reference()["summary"]


def test_no_rows() -> None:
    assert matched(POOL.slice(0, 0), reference()) == []
