from __future__ import annotations

import hashlib
import io
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.errors import CurateError
from curate.core.group import MemoryGroup
from curate.image.duplicates import DropDuplicates, FindDuplicates
from curate.image.fingerprint import Fingerprint
from tests.codec import pictures
from tests.image.test_perceptual import blobs


def table(*data: bytes) -> pa.Table:
    """The columns that `duplicates.find` reads, made by the stages that write them; keys count upwards."""
    stage = Fingerprint()
    prepared = [stage.prepare(Sample(item, decode)) for item in data]
    sizes = [decode(item).size for item in data]
    return pa.table(
        {
            "key": [f"{i:032x}" for i in range(len(data))],
            "sha256": [hashlib.sha256(item).hexdigest() for item in data],
            **pa.table(stage.process(Batch(pa.table({}), prepared)), schema=stage.schema()).to_pydict(),
            "width": pa.array([size[0] for size in sizes], pa.int32()),
            "height": pa.array([size[1] for size in sizes], pa.int32()),
        }
    ).cast(SCHEMA)


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("sha256", pa.string()),
        *Fingerprint().schema(),
        ("width", pa.int32()),
        ("height", pa.int32()),
    ]
)


def jpeg(image: Image.Image, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def found(rows: pa.Table, shards: int = 1, **parameters: Any) -> dict[str, Any]:
    stage = FindDuplicates(**parameters)
    cuts = np.linspace(0, rows.num_rows, shards + 1).astype(int)
    return dict(stage.fit(MemoryGroup([stage.load(rows.slice(a, b - a)) for a, b in pairwise(cuts)])))


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    small, large = blobs(1, (150, 100)), blobs(1, (150, 100)).resize((300, 200), Image.Resampling.LANCZOS)
    png = pictures.encoded(small, "PNG")
    return table(
        png,  # 0
        pictures.encoded(large, "PNG"),  # 1: the keeper of the set, for it has the most pixels
        pictures.encoded(small, "BMP"),  # 2: the same pixels as 0
        pictures.encoded(blobs(2), "PNG"),  # 3: alone
        png,  # 4: the same bytes as 0
        jpeg(large, 85),  # 5
        pictures.encoded(Image.new("RGB", (64, 64), "red"), "PNG"),  # 6: flat
        pictures.encoded(Image.new("RGB", (64, 65), "red"), "PNG"),  # 7: flat, other pixels
        pictures.encoded(Image.new("RGB", (64, 64), "red"), "BMP"),  # 8: the pixels of 6
    )


def as_dict(artifact: dict[str, Any]) -> dict[int, tuple[int, str]]:
    return {int(r["key"], 16): (int(r["keeper"], 16), r["kind"]) for r in artifact["duplicates"].to_pylist()}


EXPECTED = {
    0: (1, "near"),
    1: (1, "keeper"),
    2: (1, "exact"),
    4: (1, "exact"),
    5: (1, "near"),
    6: (6, "keeper"),
    8: (6, "exact"),
}


@pytest.mark.parametrize("shards", [1, 3, 9])
def test_exact_and_near_sets(rows: pa.Table, shards: int) -> None:
    artifact = found(rows, shards)
    assert as_dict(artifact) == EXPECTED
    assert artifact["summary"] == {
        "rows": 9,
        "sets": 2,
        "largest_set": 5,
        "exact_duplicates": 3,
        "near_duplicates": 2,
    }


def test_any_order_of_rows_gives_the_same_artifact(rows: pa.Table) -> None:
    shuffled = rows.take(np.random.default_rng(0).permutation(rows.num_rows))
    assert found(shuffled)["duplicates"].equals(found(rows)["duplicates"])


def test_exact_only(rows: pa.Table) -> None:
    assert as_dict(found(rows, max_distance=-1)) == {
        0: (0, "keeper"),
        2: (0, "exact"),
        4: (0, "exact"),
        6: (6, "keeper"),
        8: (6, "exact"),
    }


def test_unknown_hashes_and_sizes_are_no_duplicates() -> None:
    nothing = pa.table(
        {"key": ["a" * 32, "b" * 32], **{n: pa.nulls(2, SCHEMA.field(n).type) for n in SCHEMA.names[1:]}}
    )
    assert as_dict(found(nothing.cast(SCHEMA))) == {}
    assert found(SCHEMA.empty_table())["summary"]["rows"] == 0


def dropped(artifact: dict[str, Any], reject: str, keys: list[str]) -> pa.Table:
    stage = DropDuplicates(reject=reject)
    stage.setup({"sets": artifact})
    return pa.table(stage.process(Batch(pa.table({"key": pa.array(keys, pa.string())}))))


@pytest.mark.parametrize(
    ("reject", "near", "exact"),
    [
        ("none", None, None),
        ("exact", None, "exact_duplicate"),
        ("near", "near_duplicate", "exact_duplicate"),
        ("semantic", "near_duplicate", "exact_duplicate"),
    ],
)
def test_drop_names_the_set_and_refuses_what_it_is_told(
    rows: pa.Table, reject: str, near: str | None, exact: str | None
) -> None:
    keys = rows.column("key").to_pylist()
    table = dropped(found(rows), reject, keys)
    for row, line in enumerate(table.to_pylist()):
        keeper, kind = EXPECTED.get(row, (row, "keeper"))
        assert line == {
            "duplicate_set": keys[keeper],
            "duplicate_of": None if keeper == row else keys[keeper],
            "reject": {"keeper": None, "near": near, "exact": exact}[kind],
        }


def test_drop_without_any_duplicates_keeps_all(rows: pa.Table) -> None:
    alone = found(rows.slice(3, 1))
    keys = ["f" * 32, "0" * 32]
    assert dropped(alone, "near", keys).to_pylist() == [
        {"duplicate_set": key, "duplicate_of": None, "reject": None} for key in keys
    ]
    assert dropped(alone, "near", []).num_rows == 0


def semantic(rows: pa.Table) -> dict[str, Any]:
    """What `duplicates.semantic` makes: row 5 stands for row 2."""
    keys = rows.column("key").to_pylist()
    table = pa.table(
        {"key": [keys[2], keys[5]], "keeper": [keys[5]] * 2, "kind": ["semantic", "keeper"], "similarity": [0.98, 1.0]}
    )
    return {"duplicates": table, "summary": {"rows": 9, "sets": 1, "semantic_duplicates": 1}}


def test_semantic_sets_have_columns_of_their_own(rows: pa.Table) -> None:
    keys = rows.column("key").to_pylist()
    stage = DropDuplicates(reject="semantic", column="semantic")
    stage.setup({"sets": semantic(rows)})
    assert stage.schema().names == list(stage.writes()) == ["semantic_set", "semantic_of"]
    lines = pa.table(stage.process(Batch(rows.select(["key"])))).to_pylist()
    for row, line in enumerate(lines):
        dropped = row == 2
        assert line == {
            "semantic_set": keys[5 if dropped else row],
            "semantic_of": keys[5] if dropped else None,
            "reject": "semantic_duplicate" if dropped else None,
        }


@pytest.mark.parametrize("reject", ["exact", "near"])
def test_what_would_refuse_nothing_is_refused(rows: pa.Table, reject: str) -> None:
    with pytest.raises(CurateError, match=f"reject: '{reject}' refuses nothing, since its `sets` are semantic"):
        DropDuplicates(reject=reject).setup({"sets": semantic(rows)})
    DropDuplicates(reject="none").setup({"sets": semantic(rows)})
