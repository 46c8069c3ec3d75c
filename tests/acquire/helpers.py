"""Small sources on disk, and the samples that an importer reads from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from curate.codec.tars import TarWriter
from curate.core.contracts import Incoming, Source
from tests.codec.make_images import encoded, noise

PNG = encoded(noise(8, 8), "png")


def encoded_image(seed: int) -> bytes:
    return encoded(noise(8 + seed % 5, 8, seed=seed), "png")


def write(root: Path, files: Mapping[str, bytes | str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def write_tar(path: Path, members: Mapping[str, bytes | str] | list[tuple[str, bytes | str]]) -> Path:
    with open(path, "wb") as file, TarWriter(file) as tar:
        for name, content in members.items() if isinstance(members, Mapping) else members:
            tar.add(name, content.encode() if isinstance(content, str) else content)
    return path


def read_all(source: Source) -> list[Incoming]:
    """All samples; checks that portions are JSON-able, since the engine stores them as JSON."""
    portions = source.plan()
    for portion in portions:
        assert json.loads(json.dumps(portion.content)) == portion.content
    samples = [list(source.read(portion)) for portion in portions]
    for portion, found in zip(portions, samples, strict=True):
        assert portion.rows is None or len(found) == portion.rows
    return [sample for part in samples for sample in part]


def by_id(source: Source) -> dict[str, Incoming]:
    samples = read_all(source)
    found = {sample.source_id: sample for sample in samples}
    assert len(found) == len(samples)
    return found


def rejects(source: Source) -> dict[str, str]:
    return {name: sample.reject for name, sample in by_id(source).items() if sample.reject}
