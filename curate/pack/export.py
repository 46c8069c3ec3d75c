"""A dataset in the container of another reader: MDS, litData, a folder of images, or Parquet.

Every format gets the same samples in the same order: their members, byte by byte. What a dataset carries as `label`
becomes a column, as text, or class folders.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.codec.tars import members
from curate.core.errors import CorruptError, InputError, StorageError, did_you_mean
from curate.core.store.storage import TEMPORARY, Storage, open_storage
from curate.kernels.meta import as_text

CHUNK_BYTES = 64 << 20
"""Size of the files of MDS and litData, and the largest row group of Parquet."""
_FEATURES = {"image": {"_type": "Image"}, "frames": {"feature": {"_type": "Image"}, "_type": "List"}}
"""How Hugging Face `datasets` shows columns of Parquet; others are as they are."""
LABEL = "label"
_NOT_IN_NAMES = re.compile(r"[%/\\\x00-\x1f]|^\.")
"""Characters of a label that its folder has as %2F."""


@dataclass(frozen=True)
class Shape:
    """Which fields the samples have."""

    videos: bool
    """They may be videos."""
    labels: bool


@dataclass(frozen=True)
class Sample:
    name: str
    """`{key}-{item}-{copy}`."""
    shard: int
    parts: dict[str, bytes]
    """Extension -> bytes of a member, such as jpg or 00.jpg, txt, json; in the tar's order."""

    @property
    def text(self) -> str | None:
        return self.parts["txt"].decode() if "txt" in self.parts else None

    @property
    def label(self) -> str | None:
        return as_text(json.loads(self.parts["json"]).get(LABEL))

    @property
    def media(self) -> dict[str, bytes]:
        """The members that are not texts: an image; or the frames of a video, its mp4, or both."""
        return {name: data for name, data in self.parts.items() if name not in ("txt", "json")}

    def flat(self, shape: Shape) -> dict[str, bytes | str]:
        """For formats whose samples all have the same fields, of plain types: frames are joined, and `frame_sizes` is a
        JSON list of their bytes."""
        about: dict[str, bytes | str] = {"key": self.name}
        frames = [data for name, data in self.media.items() if name != "mp4"]
        if shape.labels:
            about[LABEL] = self.label or ""
        if shape.videos:
            about |= {"frames": b"".join(frames), "frame_sizes": json.dumps([len(data) for data in frames])}
            about["video"] = self.parts.get("mp4", b"")
        else:
            [(ext, image)] = self.media.items()
            about |= {"image": image, "ext": ext}
        return about | {"text": self.text or "", "json": self.parts["json"].decode()}


Add = Callable[[Sample], None]


# --- formats ----------------------------------------------------------------------------------------------------------


@contextmanager
def mds(folder: Path, shape: Shape) -> Iterator[Add]:
    """For MosaicML's `streaming`."""
    from streaming import MDSWriter

    names = ("key", *([LABEL] if shape.labels else []))
    names += ("frames", "frame_sizes", "video") if shape.videos else ("image", "ext")
    kinds = {name: "bytes" if name in ("frames", "video", "image") else "str" for name in (*names, "text", "json")}
    with MDSWriter(out=str(folder), columns=kinds, size_limit=CHUNK_BYTES) as out:
        yield lambda sample: out.write(sample.flat(shape))


@contextmanager
def litdata(folder: Path, shape: Shape) -> Iterator[Add]:
    from litdata.streaming.cache import Cache

    cache, number = Cache(str(folder), chunk_bytes=CHUNK_BYTES), 0

    def add(sample: Sample) -> None:
        nonlocal number
        cache[number] = sample.flat(shape)
        number += 1

    yield add
    cache.done()
    cache.merge()


@contextmanager
def imagefolder(folder: Path, shape: Shape) -> Iterator[Add]:
    """Files in a folder per label, those without one outside of all, or else per tar; and `metadata.jsonl` with their
    texts. A sample of a dataset that may have videos has a list of images."""
    with open(folder / "metadata.jsonl", "w", encoding="utf-8") as lines:

        def add(sample: Sample) -> None:
            names, label = [], sample.label
            place = f"{sample.shard:06d}/" if not shape.labels else f"{folder_of(label)}/" if label else ""
            for ext, data in sample.media.items():
                if ext == "mp4":
                    raise InputError(
                        f"export: {sample.name} has an mp4, which --to imagefolder cannot hold; give parquet"
                    )
                names.append(f"{place}{sample.name}.{ext}")
                (folder / names[-1]).parent.mkdir(exist_ok=True)
                (folder / names[-1]).write_bytes(data)
            about: dict[str, Any] = {"frames_file_names": names} if shape.videos else {"file_name": names[0]}
            about |= {LABEL: label} if shape.labels else {}
            about |= {"key": sample.name, "text": sample.text, "json": sample.parts["json"].decode()}
            lines.write(json.dumps(about, ensure_ascii=False) + "\n")

        yield add


def folder_of(label: str) -> str:
    """The folder of a label, whose name is the label if it is one."""
    return _NOT_IN_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", label)


@contextmanager
def parquet(folder: Path, shape: Shape) -> Iterator[Add]:
    """A file per tar, which Hugging Face `datasets` shows with its images."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    media = [("frames", pa.list_(image)), ("video", pa.binary())] if shape.videos else [("image", image)]
    label = [(LABEL, pa.string())] if shape.labels else []
    schema = pa.schema([("key", pa.string()), *label, *media, ("text", pa.string()), ("json", pa.string())])
    features = {one.name: _FEATURES.get(one.name, {"dtype": str(one.type), "_type": "Value"}) for one in schema}
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    rows, held, shard, out = list[dict[str, Any]](), 0, -1, None

    def flush() -> None:
        if out is not None and rows:
            out.write_table(pa.Table.from_pylist(rows, schema))
        rows.clear()

    def add(sample: Sample) -> None:
        nonlocal held, shard, out
        size = sum(map(len, sample.parts.values()))
        if sample.shard != shard or held + size > CHUNK_BYTES:
            flush()
            held = 0
        if sample.shard != shard:
            if out is not None:
                out.close()
            shard, out = (
                sample.shard,
                pq.ParquetWriter(folder / f"{sample.shard:06d}.parquet", schema, compression="zstd"),
            )
        shown = [{"bytes": data, "path": f"{sample.name}.{ext}"} for ext, data in sample.media.items() if ext != "mp4"]
        found: dict[str, Any] = {LABEL: sample.label} if shape.labels else {}
        found |= {"frames": shown, "video": sample.parts.get("mp4")} if shape.videos else {"image": shown[0]}
        rows.append({"key": sample.name, **found, "text": sample.text, "json": sample.parts["json"].decode()})
        held += size

    try:
        yield add
        flush()
    finally:
        if out is not None:
            out.close()


FORMATS: dict[str, Callable[[Path, Shape], AbstractContextManager[Add]]] = {
    "mds": mds, "litdata": litdata, "imagefolder": imagefolder, "parquet": parquet,
}  # fmt: skip
PACKAGES = {"streaming": "mosaicml-streaming"}
"""Module -> its package, where the names differ."""


# --- the loop ---------------------------------------------------------------------------------------------------------


def export(dataset: str, to: str, folder: str) -> int:
    """Write a dataset (its folder or URL) in one of FORMATS to a new or empty folder; returns the number of samples.
    The folder has all of them or does not appear. Raises InputError, CorruptError or StorageError."""
    if to not in FORMATS:
        raise InputError(f"--to {to}: not a format; " + did_you_mean(to, FORMATS, f"give one of {', '.join(FORMATS)}"))
    if "://" in folder:
        raise InputError(f"export: {folder!r} is a URL; give a local folder, and copy it")
    target = Path(folder).absolute()
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"export: {folder} is not empty; give a new or empty folder")
    storage = open_storage(dataset)
    sizes, shape = _opened(storage, dataset)
    aside, count = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}"), 0
    try:
        for left in target.parent.glob(f".{glob.escape(target.name)}.*{TEMPORARY}"):  # by a killed export
            shutil.rmtree(left, ignore_errors=True)
        aside.mkdir(parents=True)
        with FORMATS[to](aside, shape) as add:
            for shard, (tar, samples) in enumerate(sorted(sizes.items())):
                for sample in _samples(storage, tar, shard, samples):
                    add(sample)
                    count += 1
        os.replace(aside, target)
    except ModuleNotFoundError as error:
        package = PACKAGES.get(error.name or "", error.name)
        raise InputError(
            f"export: --to {to} needs the package {package}, which is missing; install {package}"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{folder}: cannot write the export ({error.strerror or error}); fix that and repeat"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return count


def _opened(storage: Storage, dataset: str) -> tuple[dict[str, int], Shape]:
    """Samples by tar, and the fields that they have."""
    try:
        manifest, sizes = storage.read_json("manifest.json"), storage.read_json("sizes.json")
        with storage.open("index.parquet") as file:
            names = pq.read_schema(file).names
        if manifest["noun"] != "dataset":
            raise ValueError(f"it is a {manifest['noun']}")
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())[:200]
        raise InputError(
            f"{dataset}: not a complete dataset ({what}); give the folder that `curate datasets` shows"
        ) from error
    return sizes, Shape("frame_offsets" in names, LABEL in names)


def _samples(storage: Storage, tar: str, shard: int, count: int) -> Iterator[Sample]:
    """Samples of a tar. Raises CorruptError if it has fewer."""
    remedy, found, name, parts = "copy the dataset again, or pack it again", 0, "", dict[str, bytes]()
    try:
        with storage.open(tar) as file:
            for member in members(file):
                if member.reject:
                    raise CorruptError(f"{storage.url_of(tar)}: {member.detail or member.reject}; {remedy}")
                stem, _, ext = member.name.partition(".")
                if stem != name and parts:
                    yield Sample(name, shard, parts)
                    found, parts = found + 1, {}
                file.seek(member.offset)
                name, parts[ext] = stem, file.read(member.size)
    except FileNotFoundError as error:
        raise CorruptError(f"{storage.url_of(tar)}: no such file; {remedy}") from error
    if parts:
        yield Sample(name, shard, parts)
        found += 1
    if found != count:
        raise CorruptError(f"{storage.url_of(tar)}: {found:,} samples, expected {count:,}; {remedy}")
