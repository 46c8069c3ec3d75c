"""What a source finds beside its samples is counted by reason and extension, and named: found = rows + skipped."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from curate.acquire.folder import AcquireFolder
from curate.acquire.parquet import AcquireParquet
from curate.acquire.webdataset import AcquireWebDataset
from curate.api import Workspace
from curate.cli.tables import funnel_of
from curate.codec.groups import group_members
from curate.codec.listing import SKIPPED
from curate.codec.tars import members as members_of
from curate.core.contracts import Incoming, Source
from curate.core.errors import InputError
from curate.core.ledger import MOST_KINDS, MOST_NAMES, Skip, Skips, joined_skips, skip, told
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.acquire.helpers import PNG, encoded_image, write, write_tar
from tests.codec.test_phones import HEIC, JXL


def read(source: Source) -> tuple[list[Incoming], Skips]:
    skips, rows = Skips(), list[Incoming]()
    for portion in source.plan():
        skips = joined_skips(skips, portion.skipped)
        rows += source.read(replace(portion, skip=partial(skip, skips)))
    return rows, skips


def counts(skips: Mapping[str, Skip]) -> dict[str, int]:
    return {kind: one.count for kind, one in skips.items()}


def test_a_phones_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **{f"IMG_{n}.JPG": encoded_image(n) for n in range(4)},
            **{f"IMG_{n}.HEIC": HEIC for n in range(4, 10)},
            "IMG_10.MPO": PNG,
            "IMG_11.jxl": JXL,
            "IMG_12": PNG,
            "README": "text",
            "IMG_1.AAE": "edits",
            "IMG_1.txt": "a caption",
            "notes.txt": "beside nothing",
            "metadata.csv": "file_name,place\nIMG_2.JPG,Bonn\n",
            "@eaDir/IMG_1.JPG/SYNOFILE_THUMB_M.jpg": PNG,
            "Thumbs.db": "",
            ".DS_Store": "",
            ".cache/1.png": PNG,
        },
    )
    rows, skips = read(AcquireFolder(namespace="test", path=str(tmp_path)))
    assert len(rows) == 13 and not any(row.reject for row in rows)
    assert {row.source_id: row.ext for row in rows}["IMG_12"] == "png"
    assert counts(skips) == {
        "hidden": 1, "hidden .png": 1, "not_an_image": 1, "other_extension .aae": 1, "other_extension .txt": 1,
        "system_file .db": 1, "system_file .jpg": 1,
    }  # fmt: skip
    assert skips["other_extension .txt"].names == ("notes.txt",)
    assert {kind.split()[0] for kind in skips} - {"not_an_image"} <= SKIPPED.keys()


def test_given_extensions_decide_alone(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": PNG, "b": PNG, "c.heic": HEIC})
    rows, skips = read(AcquireFolder(namespace="test", path=str(tmp_path), extensions=("png",)))
    assert [row.source_id for row in rows] == ["a.png"]
    assert counts(skips) == {"other_extension": 1, "other_extension .heic": 1}


def test_large_files_without_an_extension(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": PNG, "core": bytes(5000), "large": PNG + bytes(5000)})
    rows, skips = read(AcquireFolder(namespace="test", path=str(tmp_path), max_bytes=4000))
    assert [(row.source_id, row.reject) for row in rows] == [("a.png", None), ("large", "too_large")]
    assert counts(skips) == {"not_an_image": 1}


def test_other_files_change_no_shard(tmp_path: Path) -> None:
    write(tmp_path, {f"{number}.png": PNG for number in range(5)})
    source = AcquireFolder(namespace="test", path=str(tmp_path), shard_rows=2)
    before = [portion.content for portion in source.plan()]
    write(tmp_path, {"0": "text", "LICENSE": "text", "2.xmp": "", ".hidden.png": PNG})
    assert [portion.content for portion in source.plan()] == before


def test_a_folder_of_other_files_has_no_images(tmp_path: Path) -> None:
    write(tmp_path, {"LICENSE": "text", "README": "text"})
    with pytest.raises(InputError, match=r"no images in .* \(2 other files\)"):
        AcquireFolder(namespace="test", path=str(tmp_path)).plan()


def test_files_that_are_used_are_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars/00000.tar", [("000000000.jpg", PNG)])
    table = {"url": ["http://a/1"], "key": ["000000000"], "status": ["success"]}
    pq.write_table(pa.table(table), tmp_path / "tars/00000.parquet")
    _, skips = read(AcquireWebDataset(namespace="test", path=str(tmp_path / "tars")))
    assert skips == {}
    write(tmp_path / "images", {"1.png": PNG, "labels.csv": "file_name,label\n1.png,cat\n"})
    given = {"path": str(tmp_path / "images"), "metadata": str(tmp_path / "images/labels.csv")}
    _, skips = read(AcquireFolder(namespace="test", **given))
    assert skips == {}


def test_each_file_of_globs_and_overlapping_folders_is_counted_once(tmp_path: Path) -> None:
    for place in ("a.parquet", "x/b.parquet", "@eaDir/c.parquet"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": [PNG], "id": [place]}), tmp_path / place)
    write(tmp_path / "x", {".hidden": "", "notes.txt": ""})
    for path in (str(tmp_path / "**/*"), (str(tmp_path), str(tmp_path / "x"))):
        rows, skips = read(AcquireParquet(namespace="test", path=path))
        assert [row.source_id for row in rows] == ["a:0", "x/b:0"]
        assert counts(skips) == {"hidden": 1, "other_extension .txt": 1, "system_file .parquet": 1}
    assert skips["hidden"].names == ("x/.hidden",)


NAMES = st.sampled_from(["a", "b", "c", ".d", "x.png", "x.txt", "x.json", "x", "y.heic", "Thumbs.db", "z.doc"])
"""Without the metadata files, which have a part in their samples."""


@given(st.sets(st.tuples(st.sampled_from(["", "e/", "f/.g/", "@eaDir/"]), NAMES), min_size=1))
def test_each_file_of_a_folder_is_in_one_count(
    tmp_path_factory: pytest.TempPathFactory, names: set[tuple[str, str]]
) -> None:
    root = tmp_path_factory.mktemp("folder")
    files = {folder + name for folder, name in names} | {"one.png"}
    write(root, dict.fromkeys(files, PNG))
    source = AcquireFolder(namespace="test", path=str(root))
    rows, skips = read(source)
    beside = {
        file[0]
        for p in source.plan()
        for item in p.content["files"]
        for k, file in item.items()
        if k in ("txt", "json")
    }
    assert len(rows) + len(beside) + sum(counts(skips).values()) == len(files)


def test_members_of_a_tar(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        [("1.left.png", PNG), ("1.right.png", encoded_image(1)), ("1.txt", "one"), ("1.caption", "two"),
         ("2.png", PNG), ("2.npy", "x"),
         ("__meta__/x.json", "{}"), ("LICENSE", "MIT"), ("._2.png", "from a disk")],
    )  # fmt: skip
    write(tmp_path, {"README.md": ""})
    rows, skips = read(AcquireWebDataset(namespace="test", path=str(tmp_path)))
    assert [(row.source_id, row.caption) for row in rows] == [("1", "one"), ("2", None)]
    assert counts(skips) == {
        "no_sample": 1, "no_sample .json": 1, "no_sample .png": 1, "other_extension .md": 1, "other_member .caption": 1,
        "other_member .npy": 1, "other_member .png": 1,
    }  # fmt: skip
    assert skips["other_member .png"].names == ("1.right.png",)
    rows, skips = read(AcquireWebDataset(namespace="test", path=str(tmp_path), name_ends="last_dot"))
    assert [(row.source_id, row.reject) for row in rows] == [
        ("1.left", None), ("1.right", None), ("1", "no_image"), ("2", None),
    ]  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from("ab_"), st.sampled_from(["png", "left.png", "txt", "json", "npy", ""])), min_size=1
    ),
    st.sampled_from(["first_dot", "last_dot"]),
)
def test_each_member_of_a_tar_is_in_one_count(  # that of a sample without an image is its reject
    tmp_path_factory: pytest.TempPathFactory, names: list[tuple[str, str]], ends: str
) -> None:
    root = tmp_path_factory.mktemp("tar")
    members = [(f"{stem}.{suffix}" if suffix else stem, PNG if "png" in suffix else b"{}") for stem, suffix in names]
    write_tar(root / "a.tar", members)
    rows, skips = read(AcquireWebDataset(namespace="test", path=str(root), name_ends=ends))
    with (root / "a.tar").open("rb") as file:
        groups = [*group_members(members_of(file), lambda *_: None, last_dot=ends == "last_dot")]
    rejected = [len(group.members) for row, group in zip(rows, groups, strict=True) if row.offset is None]
    images = [group.members for row, group in zip(rows, groups, strict=True) if row.offset is not None]
    texts = sum(suffix in ("txt", "json") for group in images for suffix in group)
    assert len(images) + texts + sum(rejected) + sum(counts(skips).values()) == len(members)


def test_files_beside_tables(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [PNG], "id": ["1"]}), tmp_path / "a.parquet")
    write(tmp_path, {"dataset_infos.json": "{}", ".gitattributes": ""})
    rows, skips = read(AcquireParquet(namespace="test", path=str(tmp_path)))
    assert len(rows) == 1
    assert counts(skips) == {"hidden": 1, "other_extension .json": 1}


def test_the_kinds_and_names_are_bounded() -> None:
    skips = Skips()
    for number in range(1000):
        skip(skips, "other_extension", f"scan.{number:06d}")
        skip(skips, "hidden", ".x\x1b[2J")
    assert len(skips) <= MOST_KINDS + 2
    assert sum(one.count for one in skips.values()) == 2000
    assert skips["hidden"].names == (".x\\x1b[2J",) * MOST_NAMES
    assert told(skips, 1) == "hidden 1,000 (.x\\x1b[2J), other 1,000"


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.builds(Skip, st.integers(1, 9))), max_size=4))
def test_counts_add_up(several: list[Skips]) -> None:
    joined = joined_skips(*several)
    assert sum(counts(joined).values()) == sum(sum(counts(skips).values()) for skips in several)
    assert list(joined) == sorted(joined)


def test_a_run_says_what_its_source_found(tmp_path: Path) -> None:
    root = write(tmp_path / "photos", {"1.png": PNG, "2.png": b"", "notes.md": ""})
    pipeline = Pipeline().add("pool", AcquireFolder(namespace="test", path=str(root))).check()
    first = run(pipeline, str(tmp_path / "workspace"))
    entry = first.ledger["pool"]
    assert (entry.found, entry.before, counts(entry.skipped or {})) == (3, 2, {"other_extension .md": 1})
    assert first.stages()["pool"]["found"] == 3
    write(root, {"more.xmp": "", ".hidden": ""})
    second = run(pipeline, str(tmp_path / "workspace"))
    assert second.reused["pool"] and first.outputs == second.outputs
    assert second.ledger["pool"].found == 5 and "other_extension .xmp" in (second.ledger["pool"].skipped or {})
    [line] = Workspace(str(tmp_path / "workspace")).plan(pipeline)
    assert (
        line.note == "skipped hidden 1 (.hidden), other_extension .md 1 (notes.md), other_extension .xmp 1 (more.xmp)"
    )
    shown = Console(width=160, record=True, file=io.StringIO())
    shown.print(funnel_of(second.ledger, second.ops, 160))
    assert re.search(r"found +5 +skipped hidden 1 \(\.hidden\), .*\n", shown.export_text())
