from __future__ import annotations

import hashlib
import io
import json
import re
import sqlite3
import tarfile
import uuid
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import ValidationError
from webdataset.tariterators import group_by_keys, tar_file_expander

from curate.codec.images import decode, probe
from curate.codec.tars import TarWriter
from curate.core.contracts import Packed
from curate.core.errors import CurateError, Undecodable
from curate.core.hashing import make_key
from curate.core.reader import Reader, as_reader
from curate.pack import energon
from curate.pack.images import fitted_size, resize
from curate.pack.webdataset import PackWebDataset
from tests.codec.make_images import encoded, gradient, noise


def sample(number: int, data: bytes, **more: Any) -> dict[str, Any]:
    """A row as the engine passes it: the pool's columns, item and copy."""
    found = probe(data)
    row = {
        "key": make_key("test", str(number)), "source_id": f"{number}.png", "name": str(number), "offset": 0,
        "size": len(data), "ext": "png", "caption": f"caption {number}", "url": None, "width": found.width,
        "height": found.height, "format": found.format, "sha256": hashlib.sha256(data).hexdigest(),
        "meta": json.dumps({"category": "shapes/stars", "rating": number}), "item": "0", "copy": 0,
    }  # fmt: skip
    return row | more


def pack(
    folder: Path, stage: PackWebDataset, rows: list[tuple[dict[str, Any], bytes]], shards: int = 1
) -> list[Packed]:
    """Write rows into tars, then the files about all tars, as the engine does."""
    per_shard = -(-len(rows) // shards)
    packed, tars, tables = [], [], []
    for i in range(shards):
        part = rows[i * per_shard : (i + 1) * per_shard]
        tars.append((f"{stage.name}-{i:06d}.tar", len(part)))
        with open(folder / tars[-1][0], "wb") as file, TarWriter(file) as tar:
            made = [stage.write(row, Reader(data), tar.add) for row, data in part]
        names = [f"{row['key']}-{row['item']}-{row['copy']}" for row, _ in part]
        lines = [
            {"shard": i, "row": n, "name": name} | vars(one)
            for n, (name, one) in enumerate(zip(names, made, strict=True))
        ]
        tables.append(pa.Table.from_pylist(lines).drop_columns("carried"))
        for name, content in stage.beside(tars[-1][0], tables[-1]).items():
            (folder / name).write_bytes(content)
        packed += made
    for name, content in stage.finish(tars, "ab" * 16, lambda: tables).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content) if isinstance(content, bytes) else content(folder / name)
    return packed


def ignored(name: str, data: bytes) -> int:
    """An `add` that discards the member."""
    return 0


def samples(tar: Path) -> list[dict[str, Any]]:
    """Samples of a tar, read by the webdataset library."""
    with open(tar, "rb") as stream:
        return list(group_by_keys(tar_file_expander([{"url": str(tar), "stream": stream}])))


@pytest.fixture
def images() -> list[bytes]:
    return [encoded(noise(24 + i, 16, seed=i), "png") for i in range(5)]


def test_originals_keep_their_bytes_at_the_offsets_of_the_index(tmp_path: Path, images: list[bytes]) -> None:
    rows = [(sample(i, data), data) for i, data in enumerate(images)]
    packed = pack(tmp_path, PackWebDataset(name="d"), rows)
    tar = (tmp_path / "d-000000.tar").read_bytes()
    for (row, data), member in zip(rows, packed, strict=True):
        assert tar[member.offset : member.offset + member.size] == data
        assert tar[member.text_offset : member.text_offset + member.text_size].decode() == row["caption"]
        assert (member.ext, member.width, member.height) == ("png", row["width"], row["height"])


def test_webdataset_reads_samples_in_order(tmp_path: Path, images: list[bytes]) -> None:
    rows = [(sample(i, data, item="3", copy=i % 2), data) for i, data in enumerate(images)]
    pack(tmp_path, PackWebDataset(name="d", carry={"label": "meta.category"}), rows)
    found = samples(tmp_path / "d-000000.tar")
    assert [item["__key__"] for item in found] == [f"{row['key']}-3-{row['copy']}" for row, _ in rows]
    assert [item["png"] for item in found] == images
    assert [item["txt"].decode() for item in found] == [row["caption"] for row, _ in rows]
    about = json.loads(found[1]["json"])
    assert about["key"] == rows[1][0]["key"]
    assert about["meta"] == {"category": "shapes/stars", "rating": 1}
    assert about["label"] == "shapes/stars"
    assert (about["width"], about["height"], about["format"]) == (25, 16, "png")
    assert about["sha256"] == hashlib.sha256(images[1]).hexdigest()


def test_tars_have_only_the_samples_and_no_owner_or_time(tmp_path: Path, images: list[bytes]) -> None:
    pack(tmp_path, PackWebDataset(name="d"), [(sample(0, images[0]), images[0])])
    with tarfile.open(tmp_path / "d-000000.tar") as tar:
        infos = tar.getmembers()
    assert [info.name.rpartition(".")[2] for info in infos] == ["png", "txt", "json"]
    assert {(info.mtime, info.uid, info.gid, info.uname) for info in infos} == {(0, 0, 0, "")}


def test_sizes_and_index_name_every_tar(tmp_path: Path, images: list[bytes]) -> None:
    rows = [(sample(i, data), data) for i, data in enumerate(images)]
    pack(tmp_path, PackWebDataset(name="d"), rows, shards=2)
    assert json.loads((tmp_path / "sizes.json").read_text()) == {"d-000000.tar": 3, "d-000001.tar": 2}
    index = json.loads((tmp_path / "index.json").read_text())
    assert index["wids_version"] == 1
    assert index["shardlist"] == [{"url": "d-000000.tar", "nsamples": 3}, {"url": "d-000001.tar", "nsamples": 2}]


# --- text ---


def test_text_comes_from_the_text_column_then_from_the_caption(images: list[bytes]) -> None:
    def text(stage: PackWebDataset, **columns: Any) -> bytes | None:
        members: dict[str, bytes] = {}

        def add(name: str, data: bytes) -> int:
            members[name.rpartition(".")[2]] = data
            return 0

        stage.write(sample(0, images[0], **columns), Reader(images[0]), add)
        return members.get("txt")

    plain = PackWebDataset(name="d")
    assert text(plain) == b"caption 0"
    assert text(plain, text="gräulich") == "gräulich".encode()
    assert text(plain, text=None) == b"caption 0"
    assert text(plain, caption=None) is None
    named = PackWebDataset(name="d", text="title")
    assert text(named, title="a title") == b"a title"
    assert text(named, title=None) is None
    assert (named.reads(), named.text_columns()) == (("title",), ("title",))
    assert (plain.reads(), plain.text_columns()) == ((), ("text", "caption"))


def test_a_sample_without_text_has_no_txt_member(tmp_path: Path, images: list[bytes]) -> None:
    packed = pack(tmp_path, PackWebDataset(name="d"), [(sample(0, images[0], caption=None), images[0])])
    assert (packed[0].text_offset, packed[0].text_size) == (-1, 0)
    with tarfile.open(tmp_path / "d-000000.tar") as tar:
        assert [name.rpartition(".")[2] for name in tar.getnames()] == ["png", "json"]


# --- carry ---


def test_carry_takes_columns_and_fields_of_meta(images: list[bytes]) -> None:
    stage = PackWebDataset(name="d", carry={"label": "meta.category", "rating": "meta.rating", "leaf": "cluster_1"})
    row = sample(7, images[0], cluster_1=12)
    assert stage.reads() == ("cluster_1",)
    assert stage.write(row, Reader(images[0]), ignored).carried == {"label": "shapes/stars", "rating": "7", "leaf": 12}


def test_carry_as_a_list_keeps_names_and_missing_fields_are_null(images: list[bytes]) -> None:
    stage = PackWebDataset(name="d", carry=["duplicate_set", "meta.author", "meta.exif.camera"])
    meta = json.dumps({"exif": {"camera": "Leica"}})
    packed = stage.write(sample(0, images[0], duplicate_set="ab", meta=meta), Reader(images[0]), ignored)
    assert packed.carried == {"duplicate_set": "ab", "author": None, "exif.camera": "Leica"}


def test_json_has_null_for_numbers_that_it_cannot_represent_and_no_bytes(tmp_path: Path, images: list[bytes]) -> None:
    stage = PackWebDataset(name="d", carry=["score", "embedding"])
    row = sample(0, images[0], score=float("nan"), embedding=b"\x00\x3c")
    [packed] = pack(tmp_path, stage, [(row, images[0])])
    about = json.loads(samples(tmp_path / "d-000000.tar")[0]["json"])
    assert about["score"] is None
    assert "embedding" not in about
    assert packed.carried["embedding"] == b"\x00\x3c"


@pytest.mark.parametrize("name", ["key", "offset", "width"])
def test_carry_cannot_use_a_name_of_the_index(name: str) -> None:
    with pytest.raises(ValidationError, match=f"already has a column '{name}'"):
        PackWebDataset(name="d", carry={name: "meta.x"})


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "../x", "ä"])
def test_a_name_that_is_not_valid_in_file_names_is_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match="letters, digits"):
        PackWebDataset(name=name)


# --- images ---


@pytest.mark.parametrize(
    ("ext", "format", "expected"),
    [
        ("JPEG", "jpeg", "jpeg"),
        ("png", "jpeg", "jpg"),
        ("", "webp", "webp"),
        ("x.y", None, "bin"),
        ("tga", None, "tga"),
    ],
)
def test_extension_is_the_sources_unless_it_contradicts_the_format(ext: str, format: str | None, expected: str) -> None:
    members: list[str] = []
    row = sample(0, encoded(gradient(), "png"), ext=ext, format=format)
    PackWebDataset(name="d").write(row, Reader(b"not an image"), lambda name, data: members.append(name) or 0)
    assert members[0] == f"{row['key']}-0-0.{expected}"


@pytest.mark.parametrize(("format", "ext"), [("webp", "webp"), ("jpeg", "jpg"), ("png", "png")])
def test_resized_images_fit_and_look_the_same(tmp_path: Path, format: Any, ext: str) -> None:
    data = encoded(gradient(200, 100), "png")
    stage = PackWebDataset(name="d", image="resized", max_side=50, format=format)
    (member,) = pack(tmp_path, stage, [(sample(0, data), data)])
    assert (member.ext, member.width, member.height) == (ext, 50, 25)
    found = samples(tmp_path / "d-000000.tar")[0]
    resized = decode(found[ext])
    assert resized.size == (50, 25)
    assert all(
        abs(a - b) < 16 for a, b in zip(resized.getpixel((40, 5)), decode(data).getpixel((160, 20)), strict=True)
    )
    about = json.loads(found["json"])
    assert about["sha256"] == hashlib.sha256(found[ext]).hexdigest()
    assert (about["original_width"], about["original_format"]) == (200, "png")
    assert about["original_sha256"] == hashlib.sha256(data).hexdigest()


def test_resizing_keeps_the_bytes_of_an_image_that_fits() -> None:
    data = encoded(gradient(40, 20), "jpeg")
    assert resize(data, 40, "jpeg", 90) == (data, 40, 20)
    assert resize(data, 39, "jpeg", 90)[0] != data


def test_resizing_turns_images_upright_and_removes_transparency() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = encoded(gradient(40, 20), "jpeg", exif=exif)
    data, width, height = resize(sideways, 100, "jpeg", 90)
    assert (width, height) == (20, 40)
    assert probe(data).orientation == 1
    clear = encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "png")
    assert decode(resize(clear, 100, "png", 90)[0]).getpixel((0, 0)) == (255, 255, 255)


def test_resizing_bytes_that_are_not_an_image_raises_undecodable() -> None:
    with pytest.raises(Undecodable):
        resize(b"text", 100, "jpeg", 90)


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 4096))
def test_fitted_size_keeps_the_aspect_and_never_enlarges(width: int, height: int, side: int) -> None:
    w, h = fitted_size(width, height, side)
    assert 1 <= w <= width
    assert 1 <= h <= height
    assert max(w, h) == min(side, max(width, height))
    scale = max(w, h) / max(width, height)
    assert abs(w - width * scale) <= 1
    assert abs(h - height * scale) <= 1


def test_the_same_rows_give_the_same_bytes(tmp_path: Path, images: list[bytes]) -> None:
    def build() -> bytes:
        sink = io.BytesIO()
        with TarWriter(sink) as tar:
            stage = PackWebDataset(name="d", image="resized", max_side=10)
            for i, data in enumerate(images):
                stage.write(sample(i, data), Reader(data), tar.add)
        return sink.getvalue()

    assert build() == build()


def test_every_parameter_is_described() -> None:
    assert all(field.description for field in PackWebDataset.model_fields.values())


# --- several texts ---

TEXTS = {"original": "IMG_1", "short": "a cat", "tags": None}


def members(stage: PackWebDataset, data: bytes, **columns: Any) -> dict[str, bytes]:
    found: dict[str, bytes] = {}

    def add(name: str, content: bytes | Reader) -> int:
        found[name.rpartition(".")[2]] = as_reader(content).bytes()
        return 0

    stage.write(sample(0, data, **columns), Reader(data), add)
    return found


def test_all_texts_are_in_the_json_and_one_of_them_may_be_the_txt_member(images: list[bytes]) -> None:
    stage = PackWebDataset(name="d", texts="texts", text="texts.short")
    assert (stage.reads(), stage.text_columns()) == (("texts",), ("texts",))
    found = members(stage, images[0], texts=TEXTS)
    assert found["txt"] == b"a cat"
    assert json.loads(found["json"])["texts"] == {"original": "IMG_1", "short": "a cat"}
    assert "txt" not in members(stage, images[0], texts=TEXTS | {"short": None})
    nothing = members(stage, images[0], texts=None)
    assert "txt" not in nothing and "texts" not in json.loads(nothing["json"])


def test_texts_are_beside_the_usual_text_and_in_the_index_only_if_carried(images: list[bytes]) -> None:
    stage = PackWebDataset(name="d", texts="mixed", carry=["mixed"])
    assert (stage.reads(), stage.text_columns()) == (("mixed",), ("text", "caption"))
    found = members(stage, images[0], mixed=TEXTS)
    assert found["txt"] == b"caption 0"
    assert json.loads(found["json"])["texts"] == {"original": "IMG_1", "short": "a cat"}
    packed = stage.write(sample(0, images[0], mixed=TEXTS), Reader(images[0]), ignored)
    assert packed.carried == {"mixed": TEXTS}
    plain = PackWebDataset(name="d", texts="mixed").write(sample(0, images[0], mixed=TEXTS), Reader(images[0]), ignored)
    assert plain == replace(packed, carried={}, json_size=plain.json_size) and plain.json_size < packed.json_size


def test_a_stage_without_texts_has_the_parameters_that_it_had() -> None:
    plain = PackWebDataset(name="d")
    assert "texts" not in plain.parameters()
    assert PackWebDataset(name="d", texts="texts").parameters() == plain.parameters() | {"texts": "texts"}


@pytest.mark.parametrize(
    ("parameters", "texts", "message"),
    [
        (
            {"text": "texts.shrot"},
            TEXTS,
            "pack.webdataset.text: column 'texts' has no kind 'shrot'; did you mean 'short'?",
        ),
        (
            {"text": "texts"},
            TEXTS,
            "column 'texts' has texts of several kinds; give one of texts.original, texts.short",
        ),
        ({"texts": "texts"}, "a cat", "pack.webdataset.texts: column 'texts' has str, expected texts by kind"),
    ],
)
def test_wrong_kinds_are_one_line(parameters: dict[str, str], texts: Any, message: str, images: list[bytes]) -> None:
    with pytest.raises(CurateError, match=re.escape(message)):
        PackWebDataset(name="d", **parameters).write(sample(0, images[0], texts=texts), Reader(images[0]), ignored)


def test_a_carried_column_cannot_hide_the_texts() -> None:
    with pytest.raises(ValidationError, match="carry: the JSON already has a field 'texts'"):
        PackWebDataset(name="d", texts="texts", carry={"texts": "meta.texts"})


# --- Energon ---


def test_energon_finds_every_member_where_it_is(tmp_path: Path, images: list[bytes]) -> None:
    rows = [(sample(i, data, **({"caption": None} if i == 2 else {})), data) for i, data in enumerate(images)]
    pack(tmp_path, PackWebDataset(name="d"), rows, shards=2)
    with closing(sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite")) as base:
        parts = base.execute(
            "SELECT s.tar_file_id, s.sample_key || '.' || p.part_name, content_byte_offset, content_byte_size "
            "FROM samples s JOIN sample_parts p USING (tar_file_id, sample_index) ORDER BY s.rowid, p.rowid"
        ).fetchall()
        spans = base.execute("SELECT tar_file_id, byte_offset, byte_offset + byte_size FROM samples").fetchall()
    there, starts = [], []
    for number in range(2):
        with tarfile.open(tmp_path / f"d-{number:06d}.tar") as tar:
            infos = tar.getmembers()
        there += [(number, info.name, info.offset_data, info.size) for info in infos]
        starts.append([info.offset for info in infos if info.name.endswith(".png")])
        places = np.frombuffer((tmp_path / f"d-{number:06d}.tar.idx").read_bytes(), "<u8").tolist()
        assert places[:-1] == starts[-1] and spans[: len(starts[-1])] == [(number, *pair) for pair in pairwise(places)]
        spans = spans[len(starts[-1]) :]
    assert parts == there and [len(found) for found in starts] == [3, 2]


def test_energons_index_depends_on_the_fingerprint_and_the_content_only(tmp_path: Path, images: list[bytes]) -> None:
    def build(name: str) -> dict[str, bytes]:
        (tmp_path / name).mkdir()
        pack(tmp_path / name, PackWebDataset(name="d"), [(sample(i, data), data) for i, data in enumerate(images)])
        return {
            str(p.relative_to(tmp_path / name)): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()
        }

    found = build("first")
    assert found == build("second")
    assert found[".nv-meta/index.uuid"] == str(uuid.uuid5(uuid.NAMESPACE_OID, "ab" * 16)).encode()


def test_the_readme_lists_the_fields_of_all_samples(tmp_path: Path, images: list[bytes]) -> None:
    """As Hugging Face `datasets` reads it: images are shown, bytes of no known format are bytes."""
    rows = [(sample(0, images[0]), images[0]), (sample(1, images[1], ext="xyz", format=None), b"no format")]
    pack(tmp_path, PackWebDataset(name="d"), rows, shards=2)
    _, header, text = (tmp_path / "README.md").read_text().split("---\n")
    about = yaml.safe_load(header)
    fields = {field["name"]: field["dtype"] for field in about["dataset_info"]["features"]}
    strings = dict.fromkeys(("__key__", "__url__"), "string")
    assert fields == {"png": "image", "xyz": "binary", "txt": "string", "json": "json"} | strings
    assert about["configs"] == [{"config_name": "default", "data_files": "*.tar"}]
    assert "2 samples in 2 tars" in text


def test_a_dataset_that_is_too_large_for_it_has_no_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energon, "MOST_LOOKED_UP", 4)
    assert ".nv-meta/index.sqlite" in energon.files([("a.tar", 4)], "", list, True)
    found = energon.files([("a.tar", 4), ("b.tar", 0), ("c.tar", 1)], "", list, True)
    assert ".nv-meta/index.sqlite" not in found
    split = found[".nv-meta/split.yaml"]
    assert isinstance(split, bytes) and yaml.safe_load(split)["split_parts"]["train"] == ["a.tar", "c.tar"]
