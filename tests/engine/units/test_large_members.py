"""Members that are read by ranges: the limit of 64 MiB is lowered to 4 KB, which most images of the pool exceed."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from curate.acquire import folder
from curate.acquire.folder import AcquireFolder
from curate.acquire.webdataset import AcquireWebDataset
from curate.codec import members, readers
from curate.codec.readers import FileReader
from curate.codec.tars import TarWriter
from curate.codec.tars import members as tar_members
from curate.core import reader
from curate.core.contracts import AsyncMap, Child, Client, Packed, Portion, Sample, Stage
from curate.core.errors import StageError
from curate.core.ledger import SET_ASIDE
from curate.core.nouns.pools import EDGES
from curate.core.reader import Reader
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import run
from curate.image.frames import Frames
from curate.image.inspect import Inspect
from curate.pack.webdataset import PackWebDataset
from tests.codec.test_readers import bmp
from tests.engine import mixed, workspaces
from tests.engine.units.test_in_place import ALL, Planned, pipeline, rows, stage, tars, thumbnails

LARGE = 4000


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    mixed.folder(tmp_path / "images")
    yield tmp_path / "images"
    Planned.portions.clear()


@pytest.fixture
def low(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for module in (folder, members, readers):
        monkeypatch.setattr(module, "MEMORY_BYTES", LARGE)
    monkeypatch.setattr(readers, "_EDGE_BYTES", 500)
    monkeypatch.setattr(reader, "BLOCK_BYTES", 3000)
    return monkeypatch


class Weigh(AsyncMap):
    """The bytes of each image, which it reads."""

    op: ClassVar[str] = "toy.weigh"
    pixels: ClassVar[bool] = True

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("weight", pa.int64())])

    def request(self, row: Any) -> bytes:
        data: bytes = row["image"]
        return data

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        return {"weight": len(request)}


def cut(read: Reader) -> None:
    """Shorten the file of a reader, if it is 000.bmp."""
    if isinstance(read, FileReader) and read.path.endswith("000.bmp"):
        os.truncate(read.root.path(read.path), LARGE + 1)


class CuttingInspect(Inspect):
    op: ClassVar[str] = "image.inspect"

    def prepare(self, sample: Sample) -> Any:
        cut(sample.reader)
        return super().prepare(sample)


class CuttingFrames(Frames):
    op: ClassVar[str] = "image.frames"

    def children(self, sample: Sample) -> Iterator[Child]:
        yield Child({"frame": 7}, mixed.image_bytes(0), "bmp")  # a child that is written before the loss is noticed
        cut(sample.reader)
        yield from super().children(sample)


class CuttingPack(PackWebDataset):
    op: ClassVar[str] = "pack.webdataset"

    def write(self, row: Any, data: Reader, add: Any) -> Packed:
        cut(data)
        return super().write(row, data, add)


@pytest.mark.long
def test_all_stages_make_the_same_of_large_members(images: Path, memory: Path, low: pytest.MonkeyPatch) -> None:
    with low.context() as whole:
        for module in (folder, members, readers):
            whole.setattr(module, "MEMORY_BYTES", 1 << 20)
        before = run(pipeline(images, in_place=False), str(memory / "before"))
    copied = run(pipeline(images, in_place=False), str(memory / "copied"))
    assert workspaces.files(memory / "copied", "pools") == workspaces.files(memory / "before", "pools")
    here = run(pipeline(images), str(memory / "here"))
    full = run(pipeline(images, digest="full"), str(memory / "full"))
    ours, theirs = rows(here), rows(copied)
    assert rows(full) == {name: row | {"offset": 0} for name, row in theirs.items()}
    for name, row in theirs.items():
        edges = row["size"] > LARGE
        assert ours[name]["sha256"].startswith(EDGES) == edges
        assert ours[name] | {"sha256": row["sha256"] if edges else ours[name]["sha256"]} == row | {"offset": 0}
    assert here.ledger == full.ledger == copied.ledger == before.ledger
    assert rows(here, "frames") == rows(full, "frames") == rows(before, "frames")
    assert tars(here) == tars(full) == tars(copied) == tars(before)  # the JSON has the SHA-256 of all bytes
    assert thumbnails(here) == thumbnails(before) > 0
    for name in ("before", "copied", "here", "full"):
        shutil.rmtree(memory / name)


def test_large_members_of_a_tar_in_place(tmp_path: Path, memory: Path, low: pytest.MonkeyPatch) -> None:
    place = tmp_path / "tars"
    place.mkdir()
    mixed.tars(place)
    made = from_tars(place)
    made.add("all", stage("select.all"), "inspect")
    made.add("dataset", stage("pack.webdataset", name="mine", shard_rows=7), "all").check()
    ours = run(made, str(memory / "ours"))
    with low.context() as whole:
        whole.setattr(members, "MEMORY_BYTES", 1 << 20)
        theirs = run(made, str(memory / "theirs"))
    assert ours.ledger == theirs.ledger and rows(ours) == rows(theirs) and tars(ours) == tars(theirs)
    assert sum(row["size"] > LARGE for row in rows(ours).values()) > 12
    shutil.rmtree(memory / "ours")
    shutil.rmtree(memory / "theirs")


def from_tars(place: Path) -> Pipeline:
    made = Pipeline().add("pool", PlannedTars(namespace="mine", path=str(place)))
    return made.add("inspect", stage("image.inspect"), "pool").check()


def test_importing_a_large_member_of_a_tar_takes_little_memory(tmp_path: Path, workspace: Path) -> None:
    size = 300 << 20
    header, end = io.BytesIO(), (size + 2048) // 512 * 512
    info = tarfile.TarInfo("a.bmp")
    info.size = size
    header.write(info.tobuf(tarfile.USTAR_FORMAT) + bmp(size))
    (tmp_path / "large.tar").write_bytes(header.getvalue())
    os.truncate(tmp_path / "large.tar", end)
    tracemalloc.start()
    result = run(Pipeline().add("pool", AcquireWebDataset(namespace="m", path=str(tmp_path))).check(), str(workspace))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows(result)["a"]["size"] == size and rows(result)["a"]["width"] == 30_000
    assert len(rows(result)["a"]["sha256"]) == 64
    assert peak < 100 << 20


class PlannedTars(AcquireWebDataset):
    """Plans once."""

    op: ClassVar[str] = "acquire.webdataset"
    portions: ClassVar[dict[str, list[Portion]]] = {}

    def plan(self) -> list[Portion]:
        return self.portions.setdefault(str(self.path), super().plan())


@pytest.mark.usefixtures("low", "at_once")
@pytest.mark.parametrize("how", ["cut", "deleted"])
def test_a_tar_cut_within_a_large_member_sets_its_shard_aside(
    tmp_path: Path, workspace: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "tars"
    place.mkdir()
    mixed.tars(place)
    pool = run(Pipeline().add("pool", PlannedTars(namespace="mine", path=str(place))).check(), str(workspace))
    last = max(rows(pool).values(), key=lambda row: row["offset"] or 0)
    tar = place / "00001.tar"
    tar.unlink() if how == "deleted" else os.truncate(tar, last["offset"] + LARGE)
    result = run(from_tars(place), str(workspace), options=ALL)
    assert result.ledger["inspect"].error == {SET_ASIDE: 12}
    assert str(tar) in caplog.text


def damage(images: Path) -> dict[str, str]:
    """Delete a large file, shorten one, and rewrite one, of the same size. Returns their reasons."""
    files = sorted(path for path in images.rglob("*.bmp") if path.stat().st_size > LARGE)[:3]
    files[0].unlink()
    os.truncate(files[1], LARGE + 1)
    data, known = files[2].read_bytes(), files[2].stat()
    files[2].write_bytes(data[:1000] + bytes(1000) + data[2000:])
    os.utime(files[2], ns=(known.st_atime_ns, known.st_mtime_ns + 1))
    reasons = ("vanished", "changed", "changed")
    return {str(file.relative_to(images)): reason for file, reason in zip(files, reasons, strict=True)}


@pytest.mark.usefixtures("low", "at_once")
@pytest.mark.parametrize("digest", ["auto", "full"])
def test_a_large_file_that_is_no_longer_the_same_is_an_error_that_names_it(
    images: Path, workspace: Path, digest: str
) -> None:
    """In a Map, an AsyncMap and a Derive, of which none has seen the files before; a Pack is not built."""

    def made() -> Pipeline:
        found = pipeline(images, Planned, upto="pool", digest=digest)
        found.add("inspect", stage("image.inspect"), "pool").add("weigh", Weigh(), "pool")
        return found.add("frames", stage("image.frames", namespace="mine_frames"), "pool").check()

    run(pipeline(images, Planned, upto="pool", digest=digest), str(workspace))
    lost = damage(images)
    result = run(made(), str(workspace), options=ALL)
    record = latest(open_storage(str(workspace)), None)
    for place in ("inspect", "weigh", "frames"):
        assert result.ledger[place].error == Counter(lost.values()), place
        assert result.ledger[place].before == len(rows(result))
    for name, reason in lost.items():
        told = {place: about for place, _, about in explain(record, name)}
        for place in ("inspect", "weigh"):
            assert (told[place]["status"], told[place]["reason"]) == ("error", reason)
            assert any(one in told[place]["message"] for one, other in lost.items() if other == reason)
    packed = pipeline(images, Planned, upto="pool", digest=digest).add("all", stage("select.all"), "pool")
    packed.add("dataset", stage("pack.webdataset", name="mine"), "all")
    with pytest.raises(
        StageError, match=rf"dataset: .*{images}/: (vanished|changed): .*bmp.*; restore the file"
    ) as one:
        run(packed.check(), str(workspace))
    assert "\n" not in str(one.value)


@pytest.mark.usefixtures("low", "at_once")
def test_a_file_that_changes_under_its_reader_is_an_error_that_names_it(images: Path, workspace: Path) -> None:
    def made(name: str, over: Stage) -> Pipeline:
        return pipeline(images, Planned, upto="pool").add(name, over, "pool")

    whole = images.parent / "whole"
    shutil.copytree(images, whole)
    for name, over in {"inspect": CuttingInspect(), "frames": CuttingFrames(namespace="mine_frames")}.items():
        result = run(made(name, over).check(), str(workspace), options=ALL)
        assert result.ledger[name].error == {"changed": 1}
        told = b"".join(path.read_bytes() for path in workspace.rglob("*.parquet"))
        assert b"000.bmp: another size or time than when" in told
        shutil.copytree(whole, images, dirs_exist_ok=True)  # with the times of modification
    lost = next(row for name, row in rows(result).items() if name.endswith("000.bmp"))
    assert not [row for row in rows(result, "frames").values() if row["parent"] == lost["key"]]
    packed = made("all", stage("select.all")).add("dataset", CuttingPack(name="mine"), "all").check()
    with pytest.raises(StageError, match=rf"dataset: .*{images}/: changed: .*000\.bmp.*; restore the file"):
        run(packed, str(workspace))


@pytest.mark.usefixtures("low", "at_once")
def test_files_of_one_name_in_two_folders_are_told_apart(images: Path, workspace: Path) -> None:
    other = images.parent / "phone"
    shutil.copytree(images, other)  # with the times of modification
    both = pipeline(images, upto="pool", path=(str(images), str(other)))
    found = rows(run(both, str(workspace)))
    large = [row for row in found.values() if row["size"] > LARGE]
    assert len({row["sha256"] for row in large}) == len(large) > 30
    shared = [name for name in found if f"phone/{name}" in found]
    assert all(found[name]["key"] != found[f"phone/{name}"]["key"] for name in shared) and len(shared) == len(found) / 2


@pytest.mark.usefixtures("low")
def test_the_digest_is_part_of_the_pool_and_auto_is_not(images: Path, workspace: Path) -> None:
    run(pipeline(images, upto="inspect"), str(workspace))
    assert all(run(pipeline(images, upto="inspect", digest="auto"), str(workspace)).reused.values())
    full = run(pipeline(images, upto="inspect", digest="full"), str(workspace))
    assert not full.reused["pool"]
    assert all(run(pipeline(images, upto="inspect", digest="full"), str(workspace)).reused.values())


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize(("how", "reason"), [("grown", "changed"), ("cut", "changed"), ("gone", "vanished")])
def test_a_file_that_changes_while_it_is_copied_is_rejected_and_leaves_no_half_member(
    images: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, how: str, reason: str
) -> None:
    victim = sorted(path for path in images.rglob("*.bmp") if path.stat().st_size > LARGE)[2]
    content, write, seen = victim.read_bytes(), TarWriter._write, io.BytesIO()

    def changing(self: TarWriter, data: bytes) -> None:
        """Changes the file once its first block is in the tar."""
        write(self, data)
        if data == content[: len(data)] and len(data) == reader.BLOCK_BYTES and victim.exists() and not seen.tell():
            seen.write(b"changed")
            if how == "gone":
                victim.unlink()
            else:
                os.truncate(victim, len(content) + (1 if how == "grown" else -2000))

    monkeypatch.setattr(TarWriter, "_write", changing)
    result = run(pipeline(images, upto="inspect", in_place=False), str(workspace))
    assert seen.tell(), "the file was not changed"
    assert result.ledger["pool"].rejected == {reason: 1}
    assert result.ledger["pool"].before == 24 and result.ledger["pool"].after == 23
    found = rows(result)
    row = found[str(victim.relative_to(images))]
    assert (row["reject"], row["offset"], row["sha256"], row["width"]) == (reason, None, None, None)
    copied: dict[str, int] = {}
    for tar in workspace.glob("pools/mine/shards/*.tar"):
        with open(tar, "rb") as file:
            for member in tar_members(file):
                assert member.reject is None
                copied[member.name.partition(".")[0]] = member.size
    assert copied == {row["key"]: row["size"] for row in found.values() if row["offset"] is not None}


def test_reject_reasons_of_a_lost_file_are_those_of_the_source() -> None:
    assert {"changed", "vanished", "unreadable"} <= folder.REASONS.keys()
    assert AcquireFolder(namespace="x", path="y").digest == "auto"
