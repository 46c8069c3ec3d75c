from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.folder import AcquireFolder
from curate.core.errors import InputError
from tests.acquire.helpers import PNG, by_id, rejects, write

ROWS = [{"file_name": "a.png", "text": "an a", "n": 1}, {"file_name": "x/b.png", "text": "a b", "n": 2}]


def folder(root: Path, **more: object) -> AcquireFolder:
    return AcquireFolder(namespace="test", path=str(root), **more)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write(tmp_path, {"a.png": PNG, "x/b.png": PNG, "c.png": PNG})


def lines(*values: object) -> str:
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values) + "\n"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_rows_become_captions_and_meta(images: Path, kind: str) -> None:
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), images / "metadata.parquet")
    else:
        text = {"jsonl": lines(*ROWS), "csv": "file_name,text,n\na.png,an a,1\nx/b.png,a b,2\n"}
        write(images, {f"metadata.{kind}": "\ufeff" + text[kind]})
    samples = by_id(folder(images))
    assert [samples[name].caption for name in ("a.png", "x/b.png", "c.png")] == ["an a", "a b", None]
    assert samples["x/b.png"].meta == {"n": "2" if kind == "csv" else 2, "folder": "x"}


def test_a_metadata_file_covers_its_own_folder(images: Path) -> None:
    write(images, {
        "metadata.jsonl": lines({"file_name": "x/b.png", "text": "from above"}, {"file_name": "a.png", "text": "a"}),
        "x/metadata.jsonl": lines({"file_name": "b.png", "text": "from beside"}),
    })  # fmt: skip
    samples = by_id(folder(images))
    assert (samples["a.png"].caption, samples["x/b.png"].caption) == ("a", "from beside")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_splits_are_folders_with_their_own_metadata(tmp_path: Path, kind: str) -> None:
    """As `datasets` writes them: a metadata file beside the images of each split, which may have sub-folders."""
    splits = {"train": ("0001.png", "deep/0002.png"), "test": ("0001.png",)}
    for split, names in splits.items():
        write(tmp_path, {f"{split}/{name}": PNG for name in names})
        rows = [{"file_name": name, "text": f"{split} {name}", "bbox": [1, 2]} for name in names]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / split / "metadata.parquet")
        elif kind == "jsonl":
            write(tmp_path, {f"{split}/metadata.jsonl": lines(*rows)})
        else:
            table = [["file_name", "text"], *([row["file_name"], row["text"]] for row in rows)]
            write(tmp_path, {f"{split}/metadata.csv": "".join(f"{','.join(row)}\n" for row in table)})
    write(tmp_path, {"README.md": "---\n---\n"})
    samples = by_id(folder(tmp_path))
    assert {name: sample.caption for name, sample in samples.items()} == {
        "test/0001.png": "test 0001.png", "train/0001.png": "train 0001.png",
        "train/deep/0002.png": "train deep/0002.png",
    }  # fmt: skip
    assert [sample.meta["folder"] for sample in samples.values()] == ["test", "train", "train/deep"]
    assert kind == "csv" or samples["test/0001.png"].meta["bbox"] == [1, 2]


def test_one_metadata_file_may_cover_all_splits(images: Path) -> None:
    write(images, {"metadata.jsonl": lines(*ROWS), "x/other.png": PNG})
    samples = by_id(folder(images))
    assert samples["x/b.png"].caption == "a b"
    assert samples["x/other.png"].caption is None and not samples["x/other.png"].reject


def test_a_second_column_of_paths_is_a_field_and_its_images_are_samples(images: Path) -> None:
    row = {"file_name": "a.png", "mask_file_name": "c.png", "text": "an a"}
    write(images, {"metadata.jsonl": lines(row)})
    samples = by_id(folder(images))
    assert samples["a.png"].meta == {"mask_file_name": "c.png", "folder": ""}
    assert (samples["c.png"].caption, samples["c.png"].reject) == (None, None)


def test_the_row_takes_precedence_over_sidecars_and_is_merged(images: Path) -> None:
    write(images, {
        "metadata.jsonl": lines({"file_name": "a.png", "text": "row", "n": 1}, {"file_name": "c.png", "n": 3}),
        "a.txt": "txt", "a.json": '{"title": "json", "n": 2, "m": 4}', "c.txt": "txt",
    })  # fmt: skip
    samples = by_id(folder(images))
    assert (samples["a.png"].caption, samples["a.png"].meta) == ("row", {"n": 1, "m": 4, "folder": ""})
    assert samples["c.png"].caption == "txt"


def test_caption_fields_are_tried_in_turn(images: Path) -> None:
    write(images, {"metadata.jsonl": lines(
        {"file_name": "a.png", "caption": " ", "title": "t"}, {"file_name": "c.png", "title": ["one", "two"]}
    )})  # fmt: skip
    samples = by_id(folder(images))
    assert samples["a.png"].caption == "t"
    assert (samples["c.png"].caption, samples["c.png"].meta["title"]) == ("one", ["one", "two"])


def test_an_invalid_line_rejects_only_its_file(images: Path) -> None:
    write(images, {"metadata.jsonl": lines('{"file_name": "a.png", "text": "cut', {"file_name": "c.png", "text": "c"})})
    samples = by_id(folder(images))
    assert (samples["a.png"].reject, samples["a.png"].data) == ("bad_metadata", PNG)
    assert (samples["c.png"].reject, samples["c.png"].caption) == (None, "c")


def test_invalid_csv_rows_reject_only_their_files(images: Path) -> None:
    write(images, {"metadata.csv": b"file_name,text\na.png,one,two\nc.png,caf\xe9\nx/b.png\n"})
    assert rejects(folder(images)) == dict.fromkeys(("a.png", "c.png", "x/b.png"), "bad_metadata")


UNNAMED = {
    "metadata.jsonl": ('{"text": "cut', "[1]", '{"text": "no name"}', '{"file_name": 1.5}'),
    "metadata.csv": (",y", '"",y', "\xff.png,y", '"', ",,", '"x\n.png",y,z'),
}
GOOD = {"metadata.jsonl": ('{"file_name": "a.png"}', '{"file_name": "c.png"}'), "metadata.csv": ("a.png,x", "c.png,z")}


@pytest.mark.parametrize(("name", "bad"), [(name, line) for name, some in UNNAMED.items() for line in some])
def test_a_row_without_a_readable_name_is_one_reject(images: Path, name: str, bad: str) -> None:
    rows = [*(["file_name,text"] if name.endswith("csv") else []), GOOD[name][0], bad, GOOD[name][1]]
    write(images, {name: "\n".join(rows).encode("latin1")})
    found = by_id(folder(images))
    [(key, reason)] = [(key, one.reject) for key, one in found.items() if one.reject]
    assert key in (f"{name}: line {rows.index(bad) + 1}", "x\n.png")
    assert reason == "bad_metadata"


def test_a_row_without_a_readable_name_of_a_joined_table_is_an_error(images: Path, tmp_path: Path) -> None:
    """It would be in no count: rows of such a table that name no image are ignored."""
    write(tmp_path, {"labels.csv": "file_name,label\na.png,x\n,y\n"})
    with pytest.raises(InputError, match=r"metadata: labels.csv: line 3 names no image; fix or remove the line"):
        folder(images, metadata=str(tmp_path / "labels.csv")).plan()


def test_a_metadata_file_that_cannot_be_read_is_an_error(images: Path) -> None:
    (images / "metadata.csv").symlink_to(images / "gone.csv")
    with pytest.raises(InputError, match=r"metadata.csv: .*; make it readable or remove it"):
        folder(images).plan()


def test_a_named_file_that_is_skipped_is_counted_once(images: Path) -> None:
    write(images, {".h.png": PNG, "README": "text", "a.doc": "x", "metadata.csv": "file_name\n.h.png\nREADME\na.doc\n"})
    source = folder(images)
    assert rejects(source) == {".h.png": "missing_file", "README": "not_an_image", "a.doc": "other_extension"}
    skipped = [kind for portion in source.plan() for kind in portion.skipped]
    assert not [kind for kind in skipped if kind.startswith(("hidden", "not_an_image"))]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata.jsonl", lines('{"text": "cut', "", [1]), "line 1: invalid JSON without a readable file_name"),
        ("metadata.jsonl", lines("", [1]), "line 2: expected a JSON object with file_name, not list"),
        ("metadata.jsonl", lines({"image": "a.png"}), r"line 1: no file_name \(fields: image\); add the path"),
        (
            "metadata.jsonl",
            lines({"file_names": ["a.png", "c.png"]}),
            r"no file_name \(fields: file_names\); write a row",
        ),
        ("metadata.csv", "left_file_name,right_file_name\na.png,c.png\n", r"right_file_name\); write a row per image"),
        (
            "metadata.jsonl",
            lines(ROWS[0], ROWS[1], ROWS[0] | {"n": 9}),
            "line 3: 'a.png' has a different row in line 1",
        ),
        ("metadata.csv", "name,text\na.png,x\n", r"line 2: no file_name \(fields: name, text\)"),
        ("metadata.csv", b"file_name,text\n\xff.png,x\n", "line 2: file_name is not UTF-8"),
        ("metadata.parquet", b"PAR1 no", "after row 0: .*; write the file again"),
    ],
)
def test_metadata_without_a_file_name_is_a_one_line_error(
    images: Path, name: str, content: bytes | str, message: str
) -> None:
    write(images, {name: content})
    with pytest.raises(InputError, match=message) as caught:
        folder(images).plan()
    assert str(images / name) in str(caught.value)


def test_the_same_row_twice_is_accepted(images: Path) -> None:
    write(images, {"metadata.jsonl": lines(ROWS[0], ROWS[0])})
    assert by_id(folder(images))["a.png"].caption == "an a"


def test_rows_without_an_image_are_rejects_with_their_text(images: Path) -> None:
    write(images, {
        "clip.mp4": b"", "metadata.jsonl": lines(
            {"file_name": "gone.png", "text": "gone"}, {"file_name": "clip.mp4"}, {"file_name": "../../etc/passwd"}
        ),
    })  # fmt: skip
    source = folder(images)
    assert rejects(source) == {
        "gone.png": "missing_file", "clip.mp4": "other_extension", "../../etc/passwd": "unsafe_path",
    }  # fmt: skip
    assert by_id(source)["gone.png"].caption == "gone"


def test_a_changed_row_changes_only_its_portion(images: Path) -> None:
    write(images, {"metadata.jsonl": lines(*ROWS)})
    before = folder(images, shard_rows=1).plan()
    write(images, {"metadata.jsonl": lines(ROWS[0], ROWS[1] | {"text": "new"})})
    after = folder(images, shard_rows=1).plan()
    assert [old == new for old, new in zip(before, after, strict=True)] == [True, True, False]
