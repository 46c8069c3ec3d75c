"""Nouns: committed by one small file, never rewritten, and read back unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from curate.core.errors import PinnedError, StorageError
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard, read_shards
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import Storage

SHARD = {"id": "a", "rows": 3, "tar": "pools/n/a.tar", "tar_bytes": 10, "table": "pools/n/a.parquet"}


def manifest(**changes: Any) -> Manifest:
    return Manifest(**({"noun": "pool", "op": "toy", "version": 1, "fingerprint": "f"} | changes))


def test_the_second_writer_uses_the_first_manifest(storage: Storage) -> None:
    assert Manifest.load(storage, "base") is None
    first = manifest(seconds=1.0).commit(storage, "base", [SHARD])
    second = manifest(seconds=2.0).commit(storage, "base", [SHARD | {"rows": 99}])
    assert first == second == Manifest.load(storage, "base") and second.seconds == 1.0
    assert read_shards(storage, "base") == [Shard(**SHARD)]


def test_a_conflict_names_both_fingerprints(storage: Storage) -> None:
    manifest().commit(storage, "base")
    with pytest.raises(PinnedError, match="base: contains f, not g; choose another name"):
        manifest(fingerprint="g").commit(storage, "base")


@pytest.mark.parametrize("data", [b"", b'{"noun": "po', b"[1]", b'{"noun": "pool"}', b"\xff"])
def test_a_manifest_that_cannot_be_read_is_one_line(storage: Storage, data: bytes) -> None:
    storage.publish_bytes("base/manifest.json", data)
    with pytest.raises(
        StorageError, match=r"base/manifest.json: cannot read the manifest .*; remove it and rerun the recipe$"
    ):
        Manifest.load(storage, "base")


def test_artifacts_are_read_back_by_name(storage: Storage) -> None:
    table = pa.table({"x": [1.5, None]})
    parts = {"a": table, "b": np.eye(3, dtype=np.float16), "c": {"k": [1, None]}, "d.html": b"<p>", "e.f": [1]}
    size, digests = save_artifact(storage, "artifacts/op/f", parts)
    manifest(noun="artifact").commit(storage, "artifacts/op/f")
    found = StoredArtifact(storage, "artifacts/op/f")
    assert sorted(found) == ["a", "b", "c", "d.html", "e.f"] and len(found) == 5
    assert found["a"] == table and found["c"] == {"k": [1, None]} and found["d.html"] == b"<p>" and found["e.f"] == [1]
    assert found["b"].dtype == np.float16 and (found["b"] == np.eye(3)).all()
    assert found["a"] is found["a"]
    assert size == sum(bytes_ for name, bytes_ in storage.list("artifacts").items() if "manifest" not in name)
    with pytest.raises(KeyError):
        found["nothing"]
    assert sorted(digests) == ["a.parquet", "b.npy", "c.json", "d.html", "e.f.json"]
    changed = parts | {"c": {"k": [1, 2]}}
    again = [save_artifact(storage, f"artifacts/op/{n}", held)[1] for n, held in (("h", parts), ("i", changed))]
    assert again[0] == digests and {n for n in digests if again[1][n] != digests[n]} == {"c.json"}
    save_artifact(storage, "artifacts/op/g", {"shards": table})
    assert StoredArtifact(storage, "artifacts/op/g")["shards"] == table


def test_pickled_arrays_are_rejected(storage: Storage) -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        save_artifact(storage, "artifacts/op/f", {"objects": np.array([object()])})


def test_arrays_of_parts_are_memory_mapped(storage: Storage) -> None:
    write_arrays(storage, "artifacts/op/f/leaves/000002.npz", {"x": np.arange(6).reshape(3, 2), "y": np.ones(3, "<f2")})
    found = StoredArtifact(storage, "artifacts/op/f")
    for _ in range(2):
        part = found.part("leaves", 2)
        assert part["x"].tolist() == [[0, 1], [2, 3], [4, 5]] and part["y"].dtype == np.float16
        assert not part["x"].flags.owndata and not part["x"].flags.writeable
    assert found.parts("leaves") == [2]
    with pytest.raises(KeyError):
        found.part("leaves", 0)
