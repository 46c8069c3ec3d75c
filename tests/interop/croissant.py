"""A release, read by what reads such folders: mlcroissant, and `datasets` with the header of its README.md."""

from __future__ import annotations

import hashlib
from pathlib import Path

import datasets
import mlcroissant
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.core.hashing import make_key
from curate.core.store.storage import open_storage
from curate.release import layout
from curate.release.write import FILE_ROWS, About, write

pytestmark = pytest.mark.filterwarnings("ignore")  # those of mlcroissant's own code
COUNT = 3 * 1000 + 7


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has four files, with every kind of column."""
    folder = tmp_path_factory.mktemp("released") / "v1"
    about = About(
        name="photos", title="Photos: \"free\" ones", dataset="0" * 32, committed="2026-01-31", license="cc0-1.0",
        namespace="web", media=["image"], recipe={"pool": {"op": "acquire.list"}},
        columns={"score": "A score.", "rounds": "A number.", "good": "Yes or no.", "embedding": "A vector."},
        captions=["caption"], provenance={"Pool": "`acquire.download`"}, funnel=[], opt_outs={"robots_txt": 3},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("curate.release.write.FILE_ROWS", 1000)
        patch.setattr("curate.release.write.GROUP_ROWS", 500)
        write([table(COUNT)], about, open_storage(str(folder)), None, layout.REMOVED_SCHEMA.empty_table(), ())
    assert FILE_ROWS > COUNT and len([*(folder / "data").iterdir()]) == 4
    return folder


def table(count: int) -> pa.Table:
    texts = pa.array([None if n % 5 == 0 else f"a photo № {n}" for n in range(count)])
    return pa.table({
        "key": [make_key("web", str(n)) for n in range(count)], "copies": pa.array([1] * count, pa.int32()),
        "url": [f"https://images.example.org/{n}.jpg" for n in range(count)],
        "sha256": [hashlib.sha256(str(n).encode()).hexdigest() for n in range(count)],
        "stored_sha256": pa.nulls(count, pa.string()), "width": pa.array([640] * count, pa.int32()),
        "height": pa.array(range(count), pa.int32()), "caption": texts, "license": ["cc0"] * count,
        "source": pa.nulls(count, pa.string()), "opt_out": pa.nulls(count, pa.string()),
        "score": pa.array([n / 7 for n in range(count)], pa.float32()), "rounds": range(count),
        "good": [n % 2 == 0 for n in range(count)],
        "embedding": pa.array([[0.5, 1.0]] * count, pa.list_(pa.float32(), 2)),
    })  # fmt: skip


def test_croissant_is_valid_and_gives_the_rows(released: Path) -> None:
    made = mlcroissant.Dataset(jsonld=str(released / layout.CROISSANT))
    assert not made.metadata.ctx.issues.errors
    rows = pq.read_table(released / "data").drop_columns(["embedding"]).to_pylist()
    found = [
        {
            name.removeprefix("rows/"): value.decode() if isinstance(value, bytes) else value
            for name, value in row.items()
        }
        for row in made.records("rows")
    ]
    assert sorted((row["key"], row["url"], row["sha256"], row["height"], row["good"]) for row in found) == sorted(
        (row["key"], row["url"], row["sha256"], row["height"], row["good"]) for row in rows
    )
    files = {one.id: one.sha256 for one in made.metadata.file_objects}
    assert files == {name: hashlib.sha256((released / name).read_bytes()).hexdigest() for name in files}
    assert len(files) == 4


def test_a_wrong_croissant_is_found(released: Path, tmp_path: Path) -> None:
    text = (released / layout.CROISSANT).read_text()
    (tmp_path / "bad.json").write_text(text.replace('"sc:Dataset"', '"sc:Thing"', 1))
    with pytest.raises(mlcroissant.ValidationError):
        mlcroissant.Dataset(jsonld=str(tmp_path / "bad.json"))


def test_datasets_reads_the_folder_by_its_card(released: Path, tmp_path: Path) -> None:
    found = datasets.load_dataset(str(released), split="train", streaming=True)
    assert [row["key"] for row in found] == pq.read_table(released / "data")["key"].to_pylist()
    whole = datasets.load_dataset(str(released), cache_dir=str(tmp_path))
    assert {name: len(part) for name, part in whole.items()} == {"train": COUNT}
