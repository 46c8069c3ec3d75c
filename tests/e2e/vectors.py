"""Pools with chosen vectors: a source of rows without images, and a stage that writes their embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Batch, Incoming, Map, Portion, Runtime, Source
from curate.core.vectors import to_binary, vector_type

MOST_ROWS = 1 << 16
CENTRES = 7


class Rows(Source):
    """`rows` samples of one byte; portions in `gaps` are empty."""

    op: ClassVar[str] = "tests.e2e.vectors:Rows"
    unique_keys: ClassVar[bool] = True
    rows: Annotated[int, Runtime()] = 60
    shard_rows: int = 20
    gaps: tuple[int, ...] = ()

    def plan(self) -> list[Portion]:
        starts = [start for start in range(0, self.rows, self.shard_rows) if start // self.shard_rows not in self.gaps]
        return [Portion({"start": start, "stop": min(start + self.shard_rows, self.rows)}) for start in starts]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for number in range(portion.content["start"], portion.content["stop"]):
            yield Incoming(f"{number:06d}", ext="bin", data=b"x", caption="")


class Vectors(Map):
    """The `embedding` of a row by its number: in one of a few clusters, all `equal`, or replaced as in `bad`."""

    op: ClassVar[str] = "tests.e2e.vectors:Vectors"
    batch_rows: ClassVar[int] = 8192

    dim: int = 8
    equal: bool = False
    scale: float = 1.0
    encoder: str = ""
    """Encoder in the column's metadata, as `image.embed` writes it; without it, no metadata."""
    bad: dict[str, list[int]] = Field(default_factory=dict)
    """nan, infinite, zero, null or none (the norm alone is null) -> numbers of the rows."""
    refused: tuple[int, ...] = ()

    def reads(self) -> tuple[str, ...]:
        return ("source_id",)

    def schema(self) -> pa.Schema:
        told = {"encoder": self.encoder, "weights": hashlib.sha256(self.encoder.encode()).hexdigest()[:8]}
        metadata = told if self.encoder else None
        vectors = pa.field("embedding", vector_type(self.dim), metadata=metadata)
        return pa.schema([vectors, pa.field("embedding_norm", pa.float32())])

    def process(self, batch: Batch) -> dict[str, Any]:
        numbers = np.array([int(name) for name in batch.column("source_id")])
        x = points(self.dim)[np.zeros_like(numbers) if self.equal else numbers] * self.scale
        halves, norms = to_binary(x)
        raw = np.frombuffer(halves.buffers()[1], dtype=np.float16).reshape(len(numbers), self.dim).copy()
        for how, value in (("nan", np.nan), ("infinite", np.inf), ("zero", 0)):
            raw[np.isin(numbers, self.bad.get(how, [])), -1 if value else slice(None)] = value
        column = pa.Array.from_buffers(vector_type(self.dim), len(numbers), [None, pa.py_buffer(raw)])
        null = np.isin(numbers, self.bad.get("null", []))
        batch.unusable(np.flatnonzero(np.isin(numbers, self.refused)), "unwanted")
        return {
            "embedding": pc.if_else(pa.array(~null), column, pa.scalar(None, column.type)),
            "embedding_norm": pa.array(norms, mask=null | np.isin(numbers, self.bad.get("none", []))),
        }


@lru_cache
def points(dim: int) -> NDArray[np.float64]:
    """(MOST_ROWS, dim): row i lies around centre i % CENTRES."""
    rng = np.random.default_rng(dim)
    centres = rng.standard_normal((CENTRES, dim))
    return np.tile(centres, (MOST_ROWS // CENTRES + 1, 1))[:MOST_ROWS] + 0.2 * rng.standard_normal((MOST_ROWS, dim))


def stages(
    pool: dict[str, Any] | None = None, embed: dict[str, Any] | None = None, **changes: dict[str, Any] | None
) -> dict[str, dict[str, Any]]:
    """pool -> embed -> tree -> clusters, meanings; `changes` are put over the stages they name, None leaves one out."""
    made_of: dict[str, dict[str, Any]] = {
        "pool": {"op": Rows.op, "namespace": "vectors", **(pool or {})},
        "embed": {"op": Vectors.op, "from": "pool", **(embed or {})},
        "tree": {"op": "cluster.fit", "from": "embed", "levels": [6, 2], "rounds": 2, "threads": 1},
        "clusters": {"op": "cluster.assign", "from": "embed", "tree": "tree", "levels": 2},
        "meanings": {"op": "duplicates.semantic", "from": "embed", "tree": "tree", "eps": 0.01},
    }
    for name, change in changes.items():
        if change is None:
            del made_of[name]
        else:
            made_of[name] = {**made_of.get(name, {}), **change}
    return made_of


def write_recipe(path: Path, made_of: dict[str, dict[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump({"stages": made_of}, sort_keys=False))
    return path
