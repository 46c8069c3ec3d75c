from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from curate.acquire.folder import REASONS, AcquireFolder
from curate.codec.formats import DECODED, RASTER_EXTENSIONS
from curate.core.errors import InputError
from tests.acquire.helpers import PNG, by_id, encoded_image, read_all, rejects, write


def folder(root: Path, **more: object) -> AcquireFolder:
    return AcquireFolder(**{"namespace": "test", "path": str(root)} | more)


def test_files_are_sorted_by_relative_path(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "b/2.png": encoded_image(2),
            "a.JPG": encoded_image(1),
            "b/c/3.webp": encoded_image(3),
            "notes.md": "",
            "b.png": PNG,
        },
    )
    samples = read_all(folder(tmp_path))
    assert [s.source_id for s in samples] == ["a.JPG", "b.png", "b/2.png", "b/c/3.webp"]
    assert [s.data for s in samples] == [encoded_image(1), PNG, encoded_image(2), encoded_image(3)]
    assert [s.ext for s in samples] == ["jpg", "png", "png", "webp"]
    assert [s.meta for s in samples] == [{"folder": ""}, {"folder": ""}, {"folder": "b"}, {"folder": "b/c"}]
    assert not any(s.reject or s.caption for s in samples)


def test_portions_have_shard_rows_samples(tmp_path: Path) -> None:
    write(tmp_path, {f"{i:02d}.png": PNG for i in range(7)})
    portions = folder(tmp_path, shard_rows=3).plan()
    assert [portion.rows for portion in portions] == [3, 3, 1]


def test_a_moved_folder_has_the_same_content(tmp_path: Path) -> None:
    write(
        tmp_path / "one",
        {"a/1.png": PNG, "a/1.txt": "one", "2.png": PNG, "metadata.csv": "file_name,text\n2.png,two\n"},
    )
    before = folder(tmp_path / "one").plan()
    shutil.move(tmp_path / "one", tmp_path / "two")
    after = folder(tmp_path / "two").plan()
    assert before == after
    assert str(tmp_path) not in json.dumps(before[0].content)
    assert folder(tmp_path / "one").parameters() == folder(tmp_path / "two").parameters()


def test_in_place_gives_the_same_samples_and_copies_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": PNG, "a/1.txt": "one", "2.png": encoded_image(2), "2.json": "{", "3.png": b""})
    copied, here = folder(tmp_path, shard_rows=2), folder(tmp_path, shard_rows=2, in_place=True)
    assert read_all(here) == read_all(copied)
    assert here.parameters() == copied.parameters()
    portions, theirs = here.plan(), copied.plan()
    assert sum(portion.bytes for portion in portions) == 0 < sum(portion.bytes for portion in theirs)
    assert all(ours.content != other.content for ours, other in zip(portions, theirs, strict=True))
    assert {here.tar(portion) for portion in portions} == {f"{tmp_path}/"}
    assert {copied.tar(portion) for portion in theirs} == {None}


def test_a_touched_file_or_sidecar_changes_the_content(tmp_path: Path) -> None:
    write(tmp_path, {"1.png": PNG, "1.txt": "one", "2.png": PNG})
    contents = [folder(tmp_path).plan()]
    os.utime(tmp_path / "1.txt", ns=(1, 1))
    contents.append(folder(tmp_path).plan())
    os.utime(tmp_path / "2.png", ns=(1, 1))
    contents.append(folder(tmp_path).plan())
    assert contents[0] != contents[1] != contents[2] != contents[0]


def test_files_that_are_not_images_are_imported_too(tmp_path: Path) -> None:
    write(tmp_path, {"empty.png": b"", "text.jpg": "hello", "cut.png": PNG[:40]})
    samples = by_id(folder(tmp_path))
    assert samples["empty.png"].data == b""
    assert samples["text.jpg"].data == b"hello"
    assert not any(sample.reject for sample in samples.values())


def test_extensions_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path, {"1.png": PNG, "2.jpg": PNG, "3.dat": PNG})
    assert list(by_id(folder(tmp_path, extensions=(".PNG", "dat")))) == ["1.png", "3.dat"]


def test_every_decoded_format_is_found_by_its_extensions() -> None:
    Image.init()
    names = {"jpeg2000": "JPEG2000"} | {name: name.upper() for name in DECODED if name != "jpeg2000"}
    known = {ext.lstrip(".") for ext, name in Image.registered_extensions().items() if name in names.values()}
    assert known <= set(RASTER_EXTENSIONS)


# --- captions ---


def test_captions_come_from_sidecars(tmp_path: Path) -> None:
    described = {"caption": "from json", "author": "Ada", "score": float("nan")}
    write(tmp_path, {
        "a.png": PNG, "a.txt": "\ufeffa café\n",
        "b.png": PNG, "b.json": json.dumps(described),
        "c.png": PNG, "c.txt": "from txt", "c.json": json.dumps(described),
        "d.png": PNG, "d.txt": " \n",
        "e.png": PNG,
    })  # fmt: skip
    samples = by_id(folder(tmp_path))
    assert samples["a.png"].caption == "a café"
    assert (samples["b.png"].caption, samples["b.png"].meta["author"]) == ("from json", "Ada")
    assert samples["b.png"].meta["score"] is None
    assert (samples["c.png"].caption, samples["c.png"].meta["author"]) == ("from txt", "Ada")
    assert samples["d.png"].caption is None
    assert samples["e.png"].caption is None


def test_the_caption_field_can_be_named(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": PNG, "a.json": json.dumps({"caption": "no", "prompt": "yes"})})
    sample = by_id(folder(tmp_path, caption_field="prompt"))["a.png"]
    assert (sample.caption, sample.meta["caption"]) == ("yes", "no")


def test_a_caption_that_is_not_utf8_is_a_reject_that_keeps_the_image(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": PNG, "a.txt": "gräulich".encode("latin-1"), "b.png": PNG})
    samples = by_id(folder(tmp_path))
    assert (samples["a.png"].reject, samples["a.png"].data) == ("caption_not_utf8", PNG)
    assert samples["b.png"].reject is None


@pytest.mark.parametrize("content", [b"{", b'{"caption": "\xff"}', b"[" * 100_000, b"1" * 5000])
def test_an_invalid_json_sidecar_is_a_reject(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {"a.png": PNG, "a.json": content, "b.png": PNG})
    assert rejects(folder(tmp_path)) == {"a.png": "bad_metadata"}


def test_a_label_replaces_the_folder(tmp_path: Path) -> None:
    write(tmp_path, {"x/a.png": PNG, "x/a.json": '{"label": "frog"}'})
    assert by_id(folder(tmp_path))["x/a.png"].meta == {"label": "frog"}


# --- what cannot be read ---


def test_entries_that_cannot_be_read_are_rejects(tmp_path: Path) -> None:
    root = write(tmp_path / "root", {"a.png": PNG, "b.png": PNG, "c.png": PNG})
    outside = write(tmp_path / "outside", {"1.png": PNG, "1.txt": "secret"})
    (root / "a.txt").symlink_to(outside / "1.txt")
    (root / "link.png").symlink_to(outside / "1.png")
    (root / "linked").symlink_to(outside)
    (root / "gone.png").symlink_to(root / "nowhere")
    (root / "inside.png").symlink_to(root / "b.png")
    os.mkfifo(root / "pipe.png")
    samples = by_id(folder(root))
    assert {name: sample.reject for name, sample in samples.items()} == {
        "a.png": "outside_root", "b.png": None, "c.png": None, "gone.png": "dangling_link", "inside.png": None,
        "link.png": "outside_root", "linked": "outside_root", "pipe.png": "not_a_file",
    }  # fmt: skip
    assert [portion.unread for portion in folder(root).plan()] == [("linked",)]
    assert samples["inside.png"].data == PNG
    assert all(sample.data is None and sample.caption is None for sample in samples.values() if sample.reject)


def test_files_changed_since_the_plan_are_rejects(tmp_path: Path) -> None:
    write(tmp_path, {"1.png": PNG, "2.png": PNG, "3.png": PNG, "4.png": PNG, "5.png": PNG, "5.txt": "five"})
    source = folder(tmp_path)
    (portion,) = source.plan()
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").write_bytes(PNG[:10])
    (tmp_path / "3.png").unlink()
    (tmp_path / "3.png").mkdir()
    (tmp_path / "5.txt").unlink()
    found = [sample.reject for sample in source.read(portion)]
    assert found == ["vanished", "changed", "unreadable", None, "vanished"]


def test_files_above_the_limit_are_rejected_unread(tmp_path: Path) -> None:
    write(tmp_path, {"1.png": PNG, "2.png": bytes(5000)})
    samples = by_id(folder(tmp_path, max_bytes=4999))
    assert (samples["2.png"].reject, samples["2.png"].data) == ("too_large", None)
    assert samples["1.png"].reject is None


def test_every_reason_is_described() -> None:
    assert all(text and reason == reason.lower() for reason, text in REASONS.items())
    assert all(field.description for field in AcquireFolder.model_fields.values())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("empty", r"no images in '.*empty' \(1 other files\); looked for apng"),
        ("nowhere", "nowhere' does not exist"),
        ("empty/notes.md", "is a file; give the folder"),
        ("nosuch://x", "Protocol not known"),
    ],
)
def test_nothing_to_import_is_a_one_line_error(tmp_path: Path, path: str, message: str) -> None:
    write(tmp_path / "empty", {"notes.md": "hello"})
    with pytest.raises(InputError, match=message) as caught:
        AcquireFolder(namespace="test", path=path if "://" in path else str(tmp_path / path)).plan()
    assert "\n" not in str(caught.value)


# --- several folders ---


def test_a_list_of_folders_keeps_the_source_ids_of_the_first(tmp_path: Path) -> None:
    write(tmp_path, {"cam/x/1.png": PNG, "cam/2.png": PNG, "phone/x/1.png": encoded_image(1), "phone/x/1.txt": "one"})
    alone = by_id(folder(tmp_path / "cam"))
    both = by_id(folder(tmp_path, path=(str(tmp_path / "cam"), str(tmp_path / "phone"))))
    assert [*both] == [*alone, "phone/x/1.png"]
    assert [sample.source for sample in alone.values()] == [None, None]
    assert [sample.source for sample in both.values()] == ["cam", "cam", "phone"]
    other = both["phone/x/1.png"]
    assert (other.data, other.caption, other.meta) == (encoded_image(1), "one", {"folder": "x"})


def test_a_folder_that_joins_a_list_leaves_the_portions_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, {f"{name}/{n}.png": PNG for name in ("b", "a", "c") for n in range(3)})
    paths = [str(tmp_path / name) for name in ("b", "a", "c")]
    one, before, after = (folder(tmp_path, path=paths[:count], shard_rows=2).plan() for count in (1, 2, 3))
    assert after[: len(before)] == before and len(after) == len(before) + 2 and before[: len(one)] == one
    assert one[0].content != folder(tmp_path / "b", shard_rows=2).plan()[0].content  # its rows have no `source`
    assert str(tmp_path) not in json.dumps([portion.content for portion in after])
    shutil.move(tmp_path, tmp_path.with_name("moved folders"))
    moved = [str(tmp_path.with_name("moved folders") / name) for name in ("b", "a", "c")]
    assert folder(tmp_path, path=moved, shard_rows=2).plan() == after


def test_a_second_bucket_in_place_has_no_folder_to_be_its_source() -> None:
    with pytest.raises(InputError, match="'s3://two/' is a whole bucket; with in_place, put it first in the list"):
        AcquireFolder(namespace="x", path=("s3://one/photos", "s3://two"), in_place=True).plan()


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("x/a", "y/a"), "two folders are named 'a'"),
        (("x", "y/a"), r"'a/1.png' is in 'x' and in 'a'; leave out a folder that is inside another"),
        (("x", "x/a"), r"x/a/' is inside '.*/x/'; leave out one of them"),
        (("x/a", "x"), r"x/a/' is inside '.*/x/'; leave out one of them"),
        (("x", "nowhere"), "nowhere' does not exist"),
        (("x", "empty"), "no images in '.*empty'"),
    ],
)
def test_folders_that_cannot_be_together_are_one_line(tmp_path: Path, paths: tuple[str, ...], message: str) -> None:
    write(tmp_path, {"x/a/1.png": PNG, "y/a/1.png": PNG, "empty/notes.md": ""})
    with pytest.raises(InputError, match=message) as caught:
        folder(tmp_path, path=tuple(str(tmp_path / path) for path in paths)).plan()
    assert "\n" not in str(caught.value)


# --- labels and joined metadata ---


@pytest.mark.parametrize(
    ("label", "expected"),
    [(-1, ["cat", "dog", "cat", ""]), (1, ["june", "dog", "cat", ""]), (-2, ["june", "", "", ""])],
)
def test_a_part_of_the_path_is_the_label(tmp_path: Path, label: int, expected: list[str]) -> None:
    """A folder `june` with the same classes makes no new ones."""
    names = ["june/cat/1.png", "dog/1.png", "cat/1.png", "1.png"]
    samples = by_id(folder(write(tmp_path, dict.fromkeys(names, PNG)), label=label))
    assert [samples[name].meta["label"] for name in names] == expected
    assert [samples[name].meta["folder"] for name in names] == ["june/cat", "dog", "cat", ""]


def test_the_label_of_the_metadata_wins_over_the_path(tmp_path: Path) -> None:
    """Unless it is empty."""
    told = {"a": '{"label": "frog"}', "b": '{"label": null}', "c": '{"label": ""}', "d": "{}"}
    write(tmp_path, {f"x/{name}.png": PNG for name in told} | {f"x/{name}.json": text for name, text in told.items()})
    samples = by_id(folder(tmp_path, label=-1))
    assert [sample.meta["label"] for sample in samples.values()] == ["frog", "x", "x", "x"]


def test_numbers_name_images(tmp_path: Path) -> None:
    write(tmp_path / "photos", {"1.png": PNG, "20.png": PNG})
    write(tmp_path, {"labels.jsonl": '{"id": 1, "label": "ape"}\n{"id": 20, "label": "bat"}\n'})
    samples = by_id(folder(tmp_path / "photos", metadata=str(tmp_path / "labels.jsonl"), metadata_key="id"))
    assert [sample.meta["label"] for sample in samples.values()] == ["ape", "bat"]


def test_a_table_elsewhere_is_joined_by_the_end_of_the_path(tmp_path: Path) -> None:
    names = ["1.png", "june/1.png", "june/cat/2.png", "june/dog/3.jpeg", "4.png"]
    write(tmp_path / "photos", dict.fromkeys(names, PNG) | {"4.json": '{"label": "old", "by": "Ada"}'})
    table = "id,label,caption\n1.png,ape,\njune/1,bat,a bat\n2.png,cat,\n3,dog,\n4.png,new,\nnone.png,elk,\n"
    write(tmp_path, {"labels.csv": table})
    source = folder(tmp_path / "photos", metadata=str(tmp_path / "labels.csv"), metadata_key="id")
    samples = by_id(source)
    assert [samples[name].meta["label"] for name in names] == ["ape", "bat", "cat", "dog", "new"]
    assert samples["june/1.png"].caption == "a bat" and samples["4.png"].meta["by"] == "Ada"
    before = source.plan()
    write(tmp_path, {"labels.csv": table.replace("bat,a", "bat, a")})
    assert source.plan() != before


def test_a_joined_table_may_name_images_of_several_folders(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": PNG, "b/1.png": PNG, "t.jsonl": '{"file_name": "1.png", "label": "x"}\n'
          '{"file_name": "b/1.png", "label": "y"}\n'})  # fmt: skip
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    samples = by_id(folder(tmp_path, path=paths, metadata=str(tmp_path / "t.jsonl")))
    assert [sample.meta["label"] for sample in samples.values()] == ["x", "y"]


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        (
            "file_name,label\n1.png,x\n",
            "file_name",
            r"'1.png' is both 'a/1.png' and 'b/1.png'; write",
        ),
        ("file_name,label\n7.png,x\n", "file_name", r"none of its 1 rows names an image: '7.png' is not the end of"),
        ("name,label\n1.png,x\n", "file_name", r"line 2: no file_name \(fields: name, label\)"),
        ("file_name,label\na/1.png,x\na/1.png,y\n", "file_name", "has a different row in line 2"),
    ],
)
def test_a_table_that_cannot_be_joined_is_one_line(tmp_path: Path, table: str, key: str, message: str) -> None:
    write(tmp_path, {"photos/a/1.png": PNG, "photos/b/1.png": PNG, "labels.csv": table})
    with pytest.raises(InputError, match=message) as caught:
        folder(tmp_path / "photos", metadata=str(tmp_path / "labels.csv"), metadata_key=key).plan()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("parameter", "message"), [({"label": 0}, "expected 1"), ({"metadata": "a.txt"}, ".csv")])
def test_values_that_mean_nothing_are_rejected(tmp_path: Path, parameter: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        folder(tmp_path, **parameter)
