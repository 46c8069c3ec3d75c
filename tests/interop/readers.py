"""Reads a dataset with another library: `python -m tests.interop.readers READER WORK OUT FOLDER …`.

Each reader is a separate process, since some of them change others. It yields (name, members that are not texts,
text, texts by kind) of each sample, in the order in which the library gives them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Read = tuple[str, list[bytes], str | None, Any]


def _read(name: str, members: Mapping[str, bytes]) -> Read:
    """From members by extension; those of a sample with frames sort as they are in the tar."""
    texts = json.loads(members["json"]).get("texts", {})
    media = [bytes(members[ext]) for ext in sorted(members) if ext not in ("txt", "json")]
    return name, media, members["txt"].decode() if members.get("txt") else None, texts


def _flat(sample: Mapping[str, Any]) -> Read:
    """A sample of MDS or litData as `curate export` writes it."""
    if "image" in sample:
        media = [sample["image"]]
    else:
        media, start = [], 0
        for size in json.loads(sample["frame_sizes"]):
            media.append(sample["frames"][start : start + size])
            start += size
        media += [sample["video"]] if sample["video"] else []
    return sample["key"], media, sample["text"] or None, json.loads(sample["json"]).get("texts", {})


def _tars(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.tar"))]


def tars(folder: Path, _: Path) -> Iterator[Read]:
    """The truth, by Python's own library."""
    for path in _tars(folder):
        found: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as tar:
            for info in tar:
                name, _, ext = info.name.partition(".")
                file = tar.extractfile(info)
                assert file is not None
                found.setdefault(name, {})[ext] = file.read()
        yield from (_read(name, members) for name, members in found.items())


def webdataset(folder: Path, _: Path) -> Iterator[Read]:
    import webdataset as wds

    for sample in wds.WebDataset(_tars(folder), shardshuffle=False):
        yield _read(sample["__key__"], {ext: data for ext, data in sample.items() if not ext.startswith("__")})


def wids(folder: Path, work: Path) -> Iterator[Read]:
    import wids

    dataset = wids.ShardListDataset(str(folder / "index.json"), transformations=[], cache_dir=str(work))
    for number in range(len(dataset)):
        sample = dataset[number]
        members = {ext[1:]: data.read() for ext, data in sample.items() if ext.startswith(".")}
        yield _read(sample["__key__"], members)


def _rows(rows: Any) -> Iterator[dict[str, Any]]:
    """Rows of Hugging Face `datasets` with the bytes of their images and videos."""
    from datasets import Image, List, Video

    undecoded = {"Image": Image(decode=False), "Video": Video(decode=False)}
    for name, kind in rows.features.items():
        if type(kind).__name__ in undecoded:
            rows = rows.cast_column(name, undecoded[type(kind).__name__])
        elif isinstance(kind, List):
            rows = rows.cast_column(name, List(undecoded["Image"]))
    yield from rows


def _encoded(row: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    for name, value in row.items():
        if value is not None and not name.startswith("__"):
            about = json.dumps(value) if name == "json" else value
            yield name, about.encode() if isinstance(about, str) else about["bytes"]


def datasets(folder: Path, work: Path, **options: Any) -> Iterator[Read]:
    from datasets import load_dataset

    rows = load_dataset(str(folder), split="train", cache_dir=str(work), **options)
    for row in _rows(rows):
        yield _read(row["__key__"], dict(_encoded(row)))


def datasets_streaming(folder: Path, work: Path) -> Iterator[Read]:
    return datasets(folder, work, streaming=True)


def energon(folder: Path, _: Path) -> Iterator[Read]:
    from megatron.energon import Cooker, TaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

    @stateless
    def as_it_is(sample: Any) -> Any:
        return sample

    class Raw(TaskEncoder):
        decoder = None
        cookers = [Cooker(as_it_is)]

    for rank in range(2):  # the second begins within a tar
        half = WorkerConfig(rank=rank, world_size=2, num_workers=0)
        dataset = get_val_dataset(
            str(folder), split_part="train", worker_config=half, batch_size=None, task_encoder=Raw()
        )
        for sample in get_loader(dataset):
            yield _read(sample["__key__"], {ext: data for ext, data in sample.items() if not ext.startswith("__")})


def _exported(folder: Path, work: Path, to: str) -> Path:
    from curate.pack import export

    export.CHUNK_BYTES = 1 << 16  # several files
    export.export(str(folder), to, str(work / to))
    return work / to


def mds(folder: Path, work: Path) -> Iterator[Read]:
    from streaming import StreamingDataset

    yield from map(_flat, StreamingDataset(local=str(_exported(folder, work, "mds")), shuffle=False, batch_size=1))


def litdata(folder: Path, work: Path) -> Iterator[Read]:
    from litdata import StreamingDataset

    yield from map(_flat, StreamingDataset(str(_exported(folder, work, "litdata")), shuffle=False))


def parquet(folder: Path, work: Path) -> Iterator[Read]:
    from datasets import load_dataset

    rows = load_dataset(str(_exported(folder, work, "parquet")), split="train", cache_dir=str(work / "cache"))
    for row in _rows(rows):
        media = [one["bytes"] for one in row.get("frames") or [row.get("image")] if one]
        media += [row["video"]] if row.get("video") else []
        yield row["key"], media, row["text"], json.loads(row["json"]).get("texts", {})


def imagefolder(folder: Path, work: Path) -> Iterator[Read]:
    from datasets import load_dataset

    rows = load_dataset(str(_exported(folder, work, "imagefolder")), split="train", cache_dir=str(work / "cache"))
    for row in _rows(rows):
        images = row["frames"] if "frames" in row else [row["image"]]
        media = [Path(one["path"]).read_bytes() if one["bytes"] is None else one["bytes"] for one in images]
        yield row["key"], media, row["text"], json.loads(row["json"]).get("texts", {})


READERS: dict[str, Callable[[Path, Path], Iterator[Read]]] = {
    reader.__name__: reader
    for reader in (
        tars, webdataset, wids, datasets, datasets_streaming, energon, mds, litdata, parquet, imagefolder
    )
}  # fmt: skip


def main(reader: str, work: str, out: str, *folders: str) -> None:
    found = []
    for number, folder in enumerate(folders):
        place = Path(work) / f"{number}"
        place.mkdir(parents=True)
        found.append(
            [
                [name, [hashlib.sha256(data).hexdigest() for data in media], text or "", dict(sorted(texts.items()))]
                for name, media, text, texts in READERS[reader](Path(folder), place)
            ]
        )
    Path(out).write_text(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    main(*sys.argv[1:])
