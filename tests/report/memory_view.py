"""A view of a pool in memory, so that the report can be tested without the engine."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from PIL import Image, ImageDraw

from curate.cluster.profile.drift import Drift
from curate.cluster.profile.profile import Profile
from curate.core.contracts import Artifact
from curate.core.errors import Reject
from curate.core.hashing import make_key
from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.core.reader import Reader
from curate.core.spend import RunSpend
from curate.select.frequency import SelectFrequency
from curate.select.items import SelectItems
from curate.text.counts import TextCounts

TYPES = {
    "key": pa.string(),
    "source_id": pa.string(),
    "caption": pa.string(),
    "url": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "format": pa.string(),
    "meta": pa.string(),
    "duplicate_of": pa.string(),
    "cluster_1": pa.int64(),
    "cluster_2": pa.int64(),
    "cluster_3": pa.int64(),
    "centroid_distance": pa.float32(),
    "embedding": pa.binary(16),
    "rejected_by": pa.string(),
    "reject_reason": pa.string(),
    "copies": pa.int32(),
    "concepts": pa.list_(pa.list_(pa.string())),
    "item_copies": pa.list_(pa.float32()),
    "item_expected": pa.list_(pa.float32()),
}


@dataclass
class MemoryView:
    """Rows (dicts with the names of `types`) and encoded images by key; `absent` columns do not exist."""

    rows: list[dict[str, Any]]
    stages: dict[str, Manifest]
    encoded: dict[str, bytes | Reject] = field(default_factory=dict)
    shard_rows: int = 100
    absent: tuple[str, ...] = ()
    packed: dict[str, Any] | None = None
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    spend: RunSpend = field(default_factory=RunSpend)
    filled: pa.Table | None = None
    pinned: dict[str, Manifest] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    """Keys whose bytes were requested."""
    read: list[int] = field(default_factory=list)
    """First rows of the shards whose tables were read."""
    types: Mapping[str, pa.DataType] = field(default_factory=lambda: TYPES)
    """Columns and their types."""

    @property
    def selected_by(self) -> str | None:
        return next((name for name, one in self.stages.items() if one.noun == "selection"), None)

    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.types if name not in self.absent)

    def tables(self, names: Sequence[str], shards: int = 0) -> Iterator[pa.Table]:
        wanted = [name for name in dict.fromkeys(("key", *names)) if name in self.columns()]
        schema = pa.schema([(name, self.types[name]) for name in wanted])
        starts = range(0, max(len(self.rows), 1), self.shard_rows)
        for start in starts[:: -(-len(starts) // shards)] if shards else starts:
            self.read.append(start)
            yield pa.Table.from_pylist(self.rows[start : start + self.shard_rows], schema=schema)

    def size(self) -> tuple[int, int]:
        return max(1, -(-len(self.rows) // self.shard_rows)), len(self.rows)

    def rows_of(self, keys: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
        found = [row for row in self.rows if row["key"] in keys]
        yield from replace(self, rows=found, shard_rows=len(found) + 1, read=[]).tables(names)

    def artifact(self, stage: str) -> Artifact:
        return self.artifacts[stage]

    def quotas(self) -> pa.Table | None:
        return self.filled

    def images(self, keys: Sequence[str]) -> Iterator[tuple[str, Reader | Reject]]:
        self.requested.extend(keys)
        found = ((key, self.encoded[key]) for key in keys if key in self.encoded)
        return ((key, one if isinstance(one, Reject) else Reader(one)) for key, one in found)

    def dataset(self) -> dict[str, Any] | None:
        return self.packed


def drawing(number: int, size: int = 96) -> bytes:
    """A PNG that differs with `number`: a disc on a background, each with its own colour."""
    colours = np.random.default_rng(number).integers(0, 256, 6).tolist()
    image = Image.new("RGB", (size, size), tuple(colours[:3]))
    ImageDraw.Draw(image).ellipse((size // 5, size // 5, size - size // 4, size - size // 4), fill=tuple(colours[3:]))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def manifest(noun: str, op: str, entry: Entry, **more: Any) -> Manifest:
    values = {"seconds": 2.0, "built_rows": entry.before, "bytes": 123_456} | more
    return Manifest(noun, op, 1, make_key("fingerprint", op), ledger=entry.to_json(), rows=entry.after, **values)


def small_pool(count: int = 240) -> MemoryView:
    """A pool that fills every section: two levels of clusters, a selection, rejects for four reasons."""
    rows, images = [], {}
    for number in range(count):
        key = make_key("test", str(number))
        leaf = min(int(9 * (number / count) ** 2), 8)
        row = {"key": key, "source_id": f"drawing {number}.png", "width": 96, "height": 96, "format": "png"}
        row |= {"caption": f"a round {('star', 'heart', 'leaf')[leaf // 3]} number {number}", "copies": 1}
        row["embedding"] = np.random.default_rng(number).standard_normal(8).astype("<f2").tobytes()
        row["meta"] = json.dumps({"category": f"shapes/{leaf // 3}"})
        row |= {"cluster_1": leaf, "cluster_2": leaf // 3, "centroid_distance": (number % 17) / 100}
        images[key] = drawing(number)
        rows.append(row)
    _reject(rows[0], "import", "missing_file", clustered=False)
    del images[rows[0]["key"]]
    for row in rows[1:4]:
        _reject(row, "inspect", "truncated", clustered=False)
        images[row["key"]] = images[row["key"]][:200]
    for row in rows[4:20]:
        _reject(row, "duplicates", "near_duplicate", clustered=False)
        row["duplicate_of"] = rows[-1]["key"]
    for row in rows[20::3]:
        _reject(row, "select", "not_sampled", clustered=True)
    return MemoryView(rows, stages_of(rows), images, absent=("cluster_3",), packed=PACKED)


def clustered_pool() -> MemoryView:
    """The small pool with a tree of 9 leaves under 3 clusters, quotas, a profile, and a drift that demands a refit."""
    view = small_pool()
    for row in view.rows:
        row["url"] = f"https://site{0 if row['cluster_1'] == 8 else int(row['key'], 16) % 5}.org/x.png"
    table = pa.Table.from_pylist([row for row in view.rows if row["cluster_1"] is not None])
    table = table.set_column(
        table.schema.get_field_index("centroid_distance"),
        "centroid_distance",
        pa.array([1.2 if leaf == 0 else 0.2 for leaf in table["cluster_1"].to_pylist()], pa.float32()),
    )
    counts = np.bincount(table["cluster_1"].to_numpy(), minlength=9)
    facts = [{"clusters": clusters, "entropy": 0.9, "gini": 0.3} for clusters in (9, 3)]
    tree = {
        "parents_1": np.arange(9) // 3,
        "sizes_1": counts,
        "sizes_2": counts.reshape(3, 3).sum(axis=1),
        "distance_quantiles": np.linspace(0, 1, 101),
        "shards": pa.table({"shard": ["old"]}),
        "levels": {"variance": 1.0, "levels": facts},
    }
    grown = table.filter(pa.compute.greater(table["cluster_1"], 5)).replace_schema_metadata({b"shard": b"new"})
    view.filled = pa.table({"count": counts, "quota": np.minimum(counts, 12)})
    for name, stage, tables in (("look", Profile(), [table]), ("grown", Drift(least_rows=20), [grown])):
        stage.setup({"tree": tree})
        view.artifacts[name] = stage.finish(stage.merge(stage.partial(part) for part in tables))
        view.stages[name] = manifest("artifact", stage.op, Entry(len(view.rows), after=len(view.rows)))
    view.artifacts["tree"] = tree
    view.stages["tree"] = manifest("artifact", "cluster.fit", Entry(len(view.rows), after=len(view.rows)))
    view.stages["select"].inputs |= {"assign": "a0", "tree": "f1"}
    return view


def balanced_pool(stage: SelectItems | None = None) -> MemoryView:
    """The small pool with one to three texts per row, balanced by concepts of decreasing frequency."""
    stage = stage or SelectFrequency(multiplier=3)
    view = small_pool()
    rows = [row for row in view.rows if row.get("rejected_by") in (None, "select")]
    for number, row in enumerate(rows):
        words = [f"{('dog', 'swimming pool', 'aardvark')[n % 3]}.n.{n:02d}" for n in drawn_words(number)]
        row["concepts"] = [[word] if number % 5 else [] for word in words[1:]] + [sorted(set(words))]
        row |= {"rejected_by": None, "reject_reason": None}
    table = pa.table({"key": [row["key"] for row in rows], "concepts": [row["concepts"] for row in rows]})
    counter = TextCounts()
    counts = counter.finish(counter.merge(iter([counter.partial(table)])))
    stage.setup({"counts": counts})
    lines = stage.deal(table)
    of = lines.column("row").to_numpy()
    lines = lines.append_column("key", table.column("key").take(lines.column("row")))
    tally = np.bincount(lines.column("unit").drop_null().to_numpy())
    picked = stage.pick(lines, tally, stage.plan(tally))
    for number, row in enumerate(rows):
        mine = np.flatnonzero(of == number)
        row["item_copies"], row["item_expected"] = (picked[name][mine].tolist() for name in ("copies", "expected"))
        row["copies"] = sum(row["item_copies"])
        if not row["copies"]:
            row |= {"rejected_by": "select", "reject_reason": picked["reject"][int(mine[0])].as_py()}
    view.stages = stages_of(view.rows)
    chosen = view.stages["select"]
    chosen.op, chosen.parameters = stage.op, stage.parameters()
    chosen.ledger |= {"items": int((picked["copies"] > 0).sum()), "counters": {"items": len(of)}}
    view.stages["inspect"].ledger["counters"] = {"html_entities": 12, "file_names": 190, "unheard_of": 0}
    return view


def drawn_words(number: int) -> list[int]:
    """Up to three numbers, small ones more often."""
    return (40 * np.random.default_rng(number).random(1 + number % 3) ** 3).astype(int).tolist()


PACKED = {"path": "/data/datasets/toy/f00", "fingerprint": "f00", "samples": 146, "tars": 2, "bytes": 1_234_567}


def _reject(row: dict[str, Any], stage: str, reason: str, clustered: bool) -> None:
    row |= {"rejected_by": stage, "reject_reason": reason, "copies": 0}
    if not clustered:
        row |= {"cluster_1": None, "cluster_2": None, "centroid_distance": None}


def stages_of(rows: Sequence[dict[str, Any]]) -> dict[str, Manifest]:
    """Manifests whose ledgers agree with the rows."""
    nouns = {"import": "pool", "inspect": "columns", "duplicates": "columns"}
    nouns |= {"assign": "columns", "select": "selection"}
    ops = {"import": "acquire.folder", "inspect": "image.inspect", "duplicates": "duplicates.drop"}
    manifests, live = {}, len(rows)
    for stage, noun in nouns.items():
        rejected = Counter(row["reject_reason"] for row in rows if row.get("rejected_by") == stage)
        entry = Entry(live, rejected, live - sum(rejected.values()))
        live = entry.after
        if noun == "selection":
            entry.copies = sum(row.get("copies") or 0 for row in rows)
        more = {"parameters": {"min_side_pixels": 32, "path": "/images"}} if stage in ops else {}
        manifests[stage] = manifest(noun, ops.get(stage, f"test.{stage}"), entry, **more)
    return manifests
