import gzip
import io
import json
import logging
import re
import shutil
import tarfile
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
import webdataset as wds
from PIL import Image

from curate.core.errors import InputError, StorageError
from distill.samples.batches.loader import Loader
from distill.samples.batches.stream import Stream
from distill.samples.images.reader import ImageReader
from distill.samples.sources import webdataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import as_mixture, open_source
from distill.samples.sources.tar_index import index_tar
from tests.distill.datasets import draw


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CURATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "webdataset"


def jpeg(number: int, width: int = 40, height: int = 24) -> bytes:
    stream = io.BytesIO()
    with Image.open(io.BytesIO(draw(number % 4, number, width, height))) as image:
        image.save(stream, "JPEG")
    return stream.getvalue()


def sample(number: int) -> dict[str, bytes]:
    image = {"jpg": jpeg(number)} if number % 2 else {"png": draw(number % 4, number, 30, 50)}
    words = {"txt": f"text {number}".encode(), "json": json.dumps({"title": f"title {number}"}).encode()}
    return image | words | {"cls": str(number % 4).encode()}


def write_tars(folder: Path, counts: Sequence[int], *, first: int = 0) -> Path:
    """Write tars with the webdataset package; counts: samples of each."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = count(first)
    for shard, samples in enumerate(counts):
        with wds.TarWriter(str(folder / f"tars-{shard:03d}.tar"), encoder=False) as writer:
            for number in islice(numbers, samples):
                writer.write({"__key__": f"some/where/{number:06d}", **sample(number)})
    return folder


def test_any_webdataset_has_the_columns_of_a_packed_dataset(tmp_path, dataset):
    found = open_source(str(write_tars(tmp_path / "d", [3, 0, 4])))
    assert set(dataset.columns) - {"label", "duplicate_set", "item"} <= set(found.columns)
    assert len(found) == 7
    assert found.strings("name") == [f"some/where/{number:06d}" for number in range(7)]
    assert found.integers("shard").tolist() == [0] * 3 + [2] * 4
    assert found.integers("row").tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert found.strings("ext") == ["png", "jpg"] * 3 + ["png"]
    assert found.integers("width").tolist() == [30, 40] * 3 + [30]
    assert found.integers("height").tolist() == [50, 24] * 3 + [50]
    assert found.strings("cls") == [str(number % 4) for number in range(7)]
    assert len(set(found.strings("key"))) == 7
    members = MemberReader(found)
    for row in range(7):
        assert members.read(row) == next(data for name, data in sample(row).items() if name in ("jpg", "png"))
        assert members.member(row, "txt") == f"text {row}".encode()
        assert json.loads(members.member(row, "json")) == {"title": f"title {row}"}
        assert members.member(row, "nothing") is None


@pytest.mark.parametrize("pattern", ["tars-{000..002}.tar", "tars-*.tar", "{tars-000,tars-001,tars-002}.tar", ""])
def test_a_folder_a_glob_and_braces_name_the_same_tars(tmp_path, pattern):
    folder = write_tars(tmp_path / "d", [2, 2, 1])
    assert open_source(f"{folder}/{pattern}").fingerprint == open_source(str(folder)).fingerprint
    assert len(open_source(f"{folder}/{pattern}")) == 5


def test_the_fingerprint_depends_on_content_not_on_place(tmp_path):
    folder = write_tars(tmp_path / "d", [2, 3])
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    (moved / "tars-001.tar").rename(moved / "u.tar")
    assert open_source(str(moved)).fingerprint == open_source(str(folder)).fingerprint
    assert (
        open_source(str(write_tars(tmp_path / "other", [2, 3], first=1))).fingerprint
        != open_source(str(folder)).fingerprint
    )


def test_the_index_is_reused_until_a_tar_changes(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(webdataset, "PART", 2)
    folder = write_tars(tmp_path / "d", [2, 2, 2])
    read = []
    real = webdataset.index_tar
    monkeypatch.setattr(webdataset, "index_tar", lambda storage, name: read.append(name) or real(storage, name))
    first = open_source(str(folder))
    assert sorted(read) == ["tars-000.tar", "tars-001.tar", "tars-002.tar"]
    assert len(list(cache.glob("*.parquet"))) == 2
    assert open_source(str(folder)).strings("name") == first.strings("name")
    assert len(read) == 3
    write_tars(tmp_path / "new", [2, 2, 3])
    shutil.copy(tmp_path / "new/tars-002.tar", folder)
    assert len(open_source(str(folder))) == 7
    assert read[3:] == ["tars-002.tar"]


def test_a_truncated_tar_is_read_up_to_the_error_and_named(tmp_path, caplog):
    folder = write_tars(tmp_path / "d", [3, 5])
    whole = open_source(str(folder))
    end = int(whole.integers("offset")[6])
    with (folder / "tars-001.tar").open("r+b") as tar:
        tar.truncate(end + 20)
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        with caplog.at_level(logging.WARNING, "distill"):
            assert len(open_source(str(folder))) == 6
        (record,) = caplog.records
        assert re.search(
            r"tars-001\.tar: 3 samples before an error of the tar \(the tar ends \d+ bytes before", record.message
        )


def test_nothing_readable_is_a_one_line_error(tmp_path, cache):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "a.tar").write_bytes(b"these are words")
    with pytest.raises(InputError, match=r"no samples in 1 tars \(.*a\.tar: 0 samples before an error of the tar"):
        open_source(str(folder))
    with tarfile.open(folder / "a.tar", "w") as tar:
        info = tarfile.TarInfo("only.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
    with pytest.raises(InputError, match="0 samples; skipped 1 without an image"):
        open_source(str(folder))
    with pytest.raises(
        InputError, match=r"b-7\.tar' of '.*/b-{7\.\.9}\.tar' does not exist; check the path or the pattern's range"
    ):
        open_source(f"{folder}/b-{{7..9}}.tar")
    with pytest.raises(InputError, match="close each brace"):
        open_source(f"{folder}/b-{{7..9.tar")
    with pytest.raises(InputError, match=r"matches no \.tar file"):
        open_source(f"{folder}/z*.tar")


@pytest.mark.parametrize(
    ("files", "url", "said"),
    [
        (
            [],
            "",
            r"has no .tar file \(found nothing\); give a folder .*; a packed dataset has a manifest.json",
        ),
        (["a.tar.gz", "b.tar.gz", "c.txt"], "", r"\(found 2 \.tar\.gz, 1 \.txt\); decompress them"),
        (["a.jpg", "deep/b.jpg"], "", r"\(found 2 \.jpg\); give a folder of \.tar files"),
        ([], "a-{0..1}.tar.gz", r"a-0\.tar\.gz' of '.*/a-{0\.\.1}\.tar\.gz' is neither a folder nor a \.tar file"),
        (["a.tar.gz"], "a.tar.gz", "is a file; give a dataset folder that a pipeline wrote, or"),
        (
            ["a.tar.gz"],
            "{a,b}.tar.gz",
            r"a\.tar\.gz' of '.*/{a,b}\.tar\.gz' is neither a folder nor a \.tar file; decom",
        ),
        (["a.tar/b"], "a.tar", "is a folder; add a slash to its end"),
    ],
)
def test_a_source_without_tars_is_a_one_line_error_with_its_contents(tmp_path, files, url, said):
    folder = tmp_path / "d"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    with pytest.raises(InputError, match=said) as error:
        open_source(f"{folder}/{url}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["gzip", "zip"])
def test_a_compressed_tar_is_named_with_its_compression(tmp_path, name):
    write_tars(tmp_path / "d", [1])
    packed = {"gzip": gzip.compress(b"tar" * 400), "zip": b"PK\x03\x04" * 300}
    (tmp_path / "d" / "tars-000.tar").write_bytes(packed[name])
    with pytest.raises(
        InputError, match=rf"tars-000\.tar: 0 samples before .*compressed with {name}, .*: decompress it"
    ):
        open_source(str(tmp_path / "d"))


def test_the_extension_may_be_upper_case(tmp_path):
    folder = write_tars(tmp_path / "d", [2])
    (folder / "tars-000.tar").rename(folder / "A.TAR")
    assert len(open_source(str(folder))) == len(open_source(f"{folder}/A.TAR")) == 2


@pytest.mark.parametrize("harm", ["cut", "empty", "words", "flipped", "schema"])
def test_a_corrupt_part_of_the_index_is_rebuilt(tmp_path, cache, caplog, monkeypatch, harm):
    monkeypatch.setattr(webdataset, "PART", 1)
    folder = write_tars(tmp_path / "d", [2, 3])
    whole = open_source(str(folder))
    part = max(cache.glob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    data = part.read_bytes()
    damaged = {"cut": data[:-50], "empty": b"", "words": b"these are words", "flipped": data}
    if harm == "flipped":
        chunk = pq.read_metadata(part).row_group(0).column(0)
        place = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 3
        damaged[harm] = data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]
    if harm == "schema":
        pq.write_table(pa.table({"a": [1]}), part)
    else:
        part.write_bytes(damaged[harm])
    with caplog.at_level(logging.WARNING, "distill"):
        again = open_source(str(folder))
    assert again.fingerprint == whole.fingerprint
    assert [record.message for record in caplog.records if "indexing its tars again" in record.message]
    assert part.read_bytes() == data


def test_a_part_that_becomes_corrupt_later_is_rebuilt(tmp_path, cache, caplog, monkeypatch):
    found = open_source(str(write_tars(tmp_path / "d", [2, 3])))
    (part,) = cache.glob("*.parquet")
    whole, data = found.strings("cls"), part.read_bytes()
    part.write_bytes(data[: len(data) // 2])
    with caplog.at_level(logging.WARNING, "distill"):
        assert found.strings("cls") == whole
    assert "indexing its tars again" in caplog.text and part.read_bytes() == data
    part.write_bytes(b"")
    monkeypatch.setattr(webdataset, "_build_missing", lambda parts: part.write_bytes(b"again"))
    with pytest.raises(StorageError, match=r"corrupt .*; set CURATE_CACHE to a folder elsewhere"):
        found.strings("cls")


@pytest.mark.parametrize("member", ["txt", "json", "cls", "mask.png"])
def test_a_changed_member_changes_the_fingerprint(tmp_path, member):
    prints = []
    for text in (b"one text", b"two text"):
        place = tmp_path / text.decode()[:3]
        place.mkdir()
        with wds.TarWriter(str(place / "a.tar"), encoder=False) as writer:
            writer.write({"__key__": "a", "jpg": jpeg(1), member: text})
        prints.append(open_source(str(place)).fingerprint)
    assert len(set(prints)) == 2


def test_few_tars_are_indexed_ahead(tmp_path, monkeypatch):
    """At most two parts' results are in memory, for any number of tars."""
    monkeypatch.setattr(webdataset, "PART", 1)
    asked, written, ahead = [], [], []
    index_one, publish = webdataset._index_one, webdataset._publish
    monkeypatch.setattr(webdataset, "_index_one", lambda *given: asked.append(1) or index_one(*given))

    def counted(*given):
        publish(*given)
        written.append(1)
        ahead.append(len(asked) - len(written))

    monkeypatch.setattr(webdataset, "_publish", counted)
    assert len(open_source(str(write_tars(tmp_path / "d", [1] * 6)))) == 6
    assert len(written) == 6 and max(ahead) <= 1


def test_an_unreadable_image_stays_in_the_index_and_is_skipped(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    with wds.TarWriter(str(folder / "a.tar"), encoder=False) as writer:
        writer.write({"__key__": "good", "jpg": jpeg(1)})
        writer.write({"__key__": "bad", "jpg": b"these are words"})
    found = open_source(str(folder))
    assert found.integers("width").tolist() == [40, -1]
    assert ImageReader(found, patch=8, max_tokens=16).get(1).reason == "not_an_image"


def test_several_images_and_copies_in_a_sample(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    with wds.TarWriter(str(folder / "a.tar"), encoder=False) as writer:
        writer.write({"__key__": "a", "seg.png": draw(0, 0, 8, 8), "jpg": jpeg(1), "png": draw(0, 1, 9, 9)})
        writer.write({"__key__": "b", "left.png": draw(0, 2, 10, 10)})
        writer.write({"__key__": "a", "jpg": jpeg(1)})
    found = open_source(str(folder))
    assert found.strings("ext") == ["jpg", "left.png", "jpg"]
    keys = found.strings("key")
    assert keys[0] == keys[2] != keys[1]
    assert found.integers("copy").tolist() == [0, 0, 1]
    assert MemberReader(found).member(0, "seg.png") == draw(0, 0, 8, 8)


def test_image_headers_longer_than_the_first_read(tmp_path):
    """A JPEG whose size comes after 100 kB of metadata, and a format that needs the complete file."""
    folder = tmp_path / "d"
    folder.mkdir()
    image = Image.new("RGB", (70, 30), "red")
    late, webp = io.BytesIO(), io.BytesIO()
    image.save(late, "JPEG", icc_profile=bytes(100_000))
    Image.effect_noise((300, 400), 90).convert("RGB").save(webp, "WEBP", quality=100)
    assert len(webp.getvalue()) > 32 << 10
    with wds.TarWriter(str(folder / "a.tar"), encoder=False) as writer:
        writer.write({"__key__": "a", "jpg": late.getvalue()})
        writer.write({"__key__": "b", "webp": webp.getvalue()})
    found = open_source(str(folder))
    assert list(zip(found.integers("width"), found.integers("height"), strict=True)) == [(70, 30), (300, 400)]


@pytest.mark.parametrize("world", [1, 3])
def test_fewer_tars_than_ranks_and_lanes(tmp_path, world):
    found = open_source(str(write_tars(tmp_path / "d", [5])))
    reader = ImageReader(found, patch=8, max_tokens=16)
    stream = Stream(found, np.arange(5), seed=0, sequences=2)
    shares = [list(islice(Loader(stream, reader, rank=rank, world=world), 3)) for rank in range(world)]
    rows = [item.row for rank in shares for share in rank for item in share.images]
    assert sorted(rows) == list(range(5))


def test_tars_on_an_object_store(tmp_path, object_store):
    object_store.create_bucket(Bucket="tars")
    store = s3fs.S3FileSystem()
    for path in write_tars(tmp_path / "d", [2, 2]).iterdir():
        store.pipe_file(f"tars/set/{path.name}", path.read_bytes())
    for url in ("s3://tars/set", "s3://tars/set/tars-{000..001}.tar"):
        found = open_source(url)
        assert found.fingerprint == open_source(str(tmp_path / "d")).fingerprint
        assert MemberReader(as_mixture(found)).member(3, "txt") == b"text 3"


def test_a_temporarily_unreadable_tar_is_not_cached_as_empty(tmp_path, monkeypatch):
    folder, reads = write_tars(tmp_path / "d", [2, 2]), []

    def fails(times):
        def read(storage, name):
            reads.append(name)
            if name == "tars-001.tar" and reads.count(name) <= times:
                raise TimeoutError("read timed out")
            return index_tar(storage, name)

        reads.clear()
        monkeypatch.setattr(webdataset, "index_tar", read)

    monkeypatch.setattr(webdataset, "_WAIT_SECONDS", 0)
    fails(3)
    with pytest.raises(
        InputError, match=r"tars-001\.tar: cannot read it \(TimeoutError: read timed out\); check its permissions"
    ):
        open_source(str(folder))
    fails(2)
    assert len(open_source(str(folder))) == 4


def test_links_to_tars_elsewhere_are_followed_and_hidden_files_skipped(tmp_path):
    elsewhere, folder = write_tars(tmp_path / "elsewhere", [2, 1]), tmp_path / "d"
    (folder / "sub").mkdir(parents=True)
    (folder / "one.tar").symlink_to(elsewhere / "tars-000.tar")
    (folder / "all").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(elsewhere)
    (folder / ".hidden.tar").write_bytes(b"x")
    assert open_source(str(folder)).tars == ["all/tars-000.tar", "all/tars-001.tar", "one.tar"]
    (folder / "gone.tar").symlink_to(elsewhere / "gone.tar")
    with pytest.raises(
        InputError, match=r"gone\.tar: a symbolic link whose target does not exist; fix it or remove it"
    ):
        open_source(str(folder))
