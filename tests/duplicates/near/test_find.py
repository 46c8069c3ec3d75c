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
from curate.core.group import MemoryGroup
from curate.duplicates.near.find import FindDuplicates
from curate.duplicates.near.members import DuplicateMembers
from curate.image.fingerprint import Fingerprint
from tests.codec import make_images
from tests.core.stored import Stored, members
from tests.kernels.test_perceptual import blobs


def table(*data: bytes) -> pa.Table:
    """The columns that `duplicates.find` reads, computed by the stages that write them; keys are row numbers."""
    stage = Fingerprint()
    prepared = [stage.prepare(Sample(item, decode)) for item in data]
    sizes = [decode(item).size for item in data]
    return pa.table(
        {
            "key": [f"{i:032x}" for i in range(len(data))],
            "source_id": [f"{i}.png" for i in range(len(data))],
            "sha256": [hashlib.sha256(item).hexdigest() for item in data],
            **pa.table(stage.process(Batch(pa.table({}), prepared)), schema=stage.schema()).to_pydict(),
            "width": pa.array([size[0] for size in sizes], pa.int32()),
            "height": pa.array([size[1] for size in sizes], pa.int32()),
        }
    ).cast(SCHEMA)


SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("source_id", pa.string()),
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


def found(rows: pa.Table, shards: int = 1, **parameters: Any) -> Stored:
    stage = FindDuplicates(**parameters)
    cuts = np.linspace(0, rows.num_rows, shards + 1).astype(int)
    group = MemoryGroup([stage.load(named(rows.slice(a, b - a), f"shard {a}")) for a, b in pairwise(cuts)])
    return Stored(stage.fit(group), group)


def named(rows: pa.Table, shard: str) -> pa.Table:
    return rows.replace_schema_metadata({"shard": shard})


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    small, large = blobs(1, (150, 100)), blobs(1, (150, 100)).resize((300, 200), Image.Resampling.LANCZOS)
    png = make_images.encoded(small, "PNG")
    return table(
        png,  # 0
        make_images.encoded(large, "PNG"),  # 1: the keeper of the set, because it has the most pixels
        make_images.encoded(small, "BMP"),  # 2: the same pixels as 0
        make_images.encoded(blobs(2), "PNG"),  # 3: alone
        png,  # 4: the same bytes as 0
        jpeg(large, 85),  # 5
        make_images.encoded(Image.new("RGB", (64, 64), "red"), "PNG"),  # 6: flat
        make_images.encoded(Image.new("RGB", (64, 65), "red"), "PNG"),  # 7: flat, other pixels
        make_images.encoded(Image.new("RGB", (64, 64), "red"), "BMP"),  # 8: the pixels of 6
    )


def as_dict(artifact: Stored) -> dict[int, tuple[int, str]]:
    return {int(r["key"], 16): (int(r["keeper"], 16), r["kind"]) for r in members(artifact)}


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


def test_the_artifact_does_not_depend_on_the_order_of_rows(rows: pa.Table) -> None:
    shuffled = rows.take(np.random.default_rng(0).permutation(rows.num_rows))
    assert members(found(shuffled)) == members(found(rows))


@pytest.mark.parametrize("shards", [1, 3, 9])
def test_members_with_a_shard_column_reads_only_the_file_of_that_shard(rows: pa.Table, shards: int) -> None:
    artifact = found(rows, shards)
    without_shards, with_shards = DuplicateMembers(), DuplicateMembers()
    without_shards.setup({"sets": artifact})
    with_shards.setup({"sets": artifact})
    files_read: list[int] = []
    artifact.part = lambda name, index: (files_read.append(index), Stored.part(artifact, name, index))[1]  # type: ignore
    cuts = np.linspace(0, rows.num_rows, shards + 1).astype(int)
    for part, (a, b) in enumerate(pairwise(cuts)):
        table = rows.slice(a, b - a).select(["key"])
        shard = pa.array([f"shard {a}"] * (b - a)).dictionary_encode()
        files_read.clear()
        by_shard = with_shards.process(Batch(table.append_column("shard", shard)))
        assert set(files_read) <= {part}
        searched = without_shards.process(Batch(table))
        assert {name: column.to_pylist() for name, column in by_shard.items()} == {
            name: column.to_pylist() for name, column in searched.items()
        }
        for key, kind, keeper in zip(
            table["key"].to_pylist(), *(by_shard[f"duplicate_{n}"].to_pylist() for n in ("kind", "set")), strict=True
        ):
            assert (int(keeper, 16), kind) == EXPECTED.get(int(key, 16), (int(key, 16), "keeper"))


def test_max_distance_of_minus_one_finds_exact_duplicates_only(rows: pa.Table) -> None:
    assert as_dict(found(rows, max_distance=-1)) == {
        0: (0, "keeper"),
        2: (0, "exact"),
        4: (0, "exact"),
        6: (6, "keeper"),
        8: (6, "exact"),
    }


def test_rows_without_hashes_and_sizes_are_not_duplicates() -> None:
    nothing = pa.table(
        {"key": ["a" * 32, "b" * 32], **{n: pa.nulls(2, SCHEMA.field(n).type) for n in SCHEMA.names[1:]}}
    )
    assert as_dict(found(nothing.cast(SCHEMA))) == {}
    assert found(SCHEMA.empty_table())["summary"]["rows"] == 0


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("prefer", "keeper"),
    [
        ([], 1),
        (["caption"], 5),
        (["meta.from=phone"], 2),
        (["meta.from=phone", "caption"], 4),
        (["caption", "meta.from=phone"], 4),
        (["source=b"], 0),
        (["source=b", "caption"], 4),
        (["source=c", "source=a"], 5),
    ],
)
def test_a_preference_decides_before_the_number_of_pixels(
    rows: pa.Table, prefer: list[str], keeper: int, shards: int
) -> None:
    """Rows 0, 1, 2, 4 and 5 are copies; 1 and 5 have the most pixels, 1 the smallest key of the two."""
    more = {
        "caption": [None, "", None, "alone", "words", "words", None, None, None],
        "source": ["b", None, "b", "b", "b", "a", None, None, None],
        "meta": [None, "{}", '{"from": "phone"}', None, '{"from": "phone"}', "[]", None, None, None],
    }
    table = rows
    for name, values in more.items():
        table = table.append_column(name, pa.array(values, pa.string()))
    stage = FindDuplicates(prefer=tuple(prefer))
    assert set(stage.reads()) <= set(table.column_names)
    kept = as_dict(found(table, shards, prefer=tuple(prefer)))
    assert {row: kept[row][0] for row in (0, 1, 2, 4, 5)} == dict.fromkeys((0, 1, 2, 4, 5), keeper)


@pytest.mark.parametrize(
    "copies",
    [
        ["photo (1).jpg", "photo(2).jpg", "photo (copy).jpg"],
        ["photo copy.jpg", "photo copy 2.jpg", "photo (another copy).jpg"],
        ["photo - Copy.jpg", "photo - Copy (2).JPG", "photo (3rd copy).jpg"],
        ["Copy of photo.jpg", "photo_copy.jpg", "a/Copy of photo"],
    ],
)
@pytest.mark.parametrize("original", ["photo.jpg", "holiday (2019).jpg", "copyright.jpg", "photocopy.jpg", None])
def test_the_image_whose_name_is_not_a_copys_is_kept(rows: pa.Table, copies: list[str], original: str | None) -> None:
    """Rows 0, 2 and 4 have equal pixels; 1 and 5, which are larger, have their place by size alone."""
    names = [copies[0], None, copies[1], None, original, None, *"678"]
    place = rows.column_names.index("source_id")
    equal = rows.set_column(place, "source_id", pa.array(names)).take([0, 2, 4])
    assert {keeper for keeper, _ in as_dict(found(equal)).values()} == {4}
    names[1], names[5] = copies[2], copies[0]
    larger = rows.set_column(place, "source_id", pa.array(names))
    assert as_dict(found(larger))[4][0] == 1
