"""A folder of videos and images, and recipes that pack them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from curate.core.nouns.pools import read_shards
from curate.core.store.storage import Storage, open_storage
from curate.engine.run import Result
from tests.codec.make_images import encoded, gradient
from tests.codec.video.make_videos import turned, video


def files() -> dict[str, bytes]:
    """Videos of 2.4 seconds, except `few`, and a text that is named like one."""
    film = video("mp4 h264")
    return {
        "film.mp4": film,
        "film.txt": b"numbers that count",
        "again.avi": video("avi mjpeg"),
        "sound.mkv": video("mkv h264"),
        "tall.mp4": turned(film, 90),
        "few.mp4": video("mp4 mpeg4", 3),
        "web.webm": video("webm vp8"),
        "text.mp4": b"no video" * 50,
        "a.png": encoded(gradient(40, 30), "png"),
        "b.jpg": encoded(gradient(30, 40), "jpeg"),
    }


def written(folder: Path) -> Path:
    folder.mkdir()
    for name, data in files().items():
        (folder / name).write_bytes(data)
    return folder


def recipe(folder: Path, windows: bool = False, in_place: bool = False, **pack: Any) -> dict[str, Any]:
    stages: dict[str, dict[str, Any]] = {
        "pool": {
            "op": "acquire.folder", "path": str(folder), "media": ["image", "video"], "namespace": "mixed",
            "shard_rows": 5, "in_place": in_place,
        },
    }  # fmt: skip
    if windows:
        stages["windows"] = {"op": "video.windows", "from": "pool", "namespace": "windows", "max_seconds": 1.0}
    stages["all"] = {"op": "select.all", "from": list(stages)[-1]}
    stages["dataset"] = {"op": "pack.webdataset", "from": "all", "name": "mixed", "shard_rows": 4} | pack
    return {"stages": stages}


def saved(path: Path, made: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path


class Dataset:
    def __init__(self, result: Result, pool: str = "pool") -> None:
        self.storage = open_storage(result.outputs["dataset"])
        workspace = open_storage(result.outputs[pool].split("/pools/")[0])
        self.names = {row["key"]: row["source_id"] for row in _rows(workspace, result.outputs[pool])}
        self.index = self.storage.read_table("index.parquet")
        self.rows = {self.names[row["key"]]: row for row in self.index.to_pylist()}
        self.tars = sorted(name for name in self.storage.list("") if name.endswith(".tar"))

    def span(self, row: dict[str, Any], offset: int, size: int) -> bytes:
        return self.storage.read_range(self.tars[row["shard"]], offset, offset + size)

    def frames(self, row: dict[str, Any]) -> list[bytes]:
        """As a reader gets them, in one read."""
        data = self.span(row, row["offset"], row["size"])
        places = zip(row["frame_offsets"], row["frame_sizes"], strict=True)
        return [data[offset : offset + size] for offset, size in places]


def _rows(storage: Storage, url: str) -> Iterator[dict[str, Any]]:
    for shard in read_shards(storage, url.removeprefix(f"{storage.url}/")):
        yield from storage.read_table(shard.table).to_pylist()
