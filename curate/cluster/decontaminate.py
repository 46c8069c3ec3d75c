"""`duplicates.decontaminate`: no picture of an evaluation set, nor a near copy of one, gets into the training set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.cluster.embeddings import read_embeddings
from curate.cluster.hash_index import BITS, HashIndex
from curate.cluster.reference import KIND, PRINTS
from curate.cluster.semantic_kernels import best_within, unit_rows
from curate.core.contracts import Artifact, Batch, Map
from curate.core.errors import CurateError
from curate.core.vectors import from_binary, same_encoder

_AT_ONCE = 1 << 14
"""Reference vectors compared at a time; they are kept as halves."""


class Decontaminate(Map):
    """Refuse every picture that is, or nearly is, one of a reference set, and name that one.

    In this order: equal bytes or pixels (`exact`); perceptual hashes within `max_distance` (`near`, the nearest; flat
    pictures match exactly only); embeddings within `eps` (`semantic`, the nearest). Rejects: contaminated.
    """

    op: ClassVar[str] = "duplicates.decontaminate"
    ports: ClassVar[dict[str, str]] = {"against": KIND}
    batch_rows: ClassVar[int] = 4096

    max_distance: int = Field(
        12, ge=-1, le=64, description="Most bits of 256 in which the hash of a near copy differs; -1 compares none."
    )
    embedding: str | None = Field(
        "embedding", description="Column of `image.embed` to compare by; null compares digests and hashes only."
    )
    eps: float = Field(
        0.05, gt=0, lt=1, description="Cosines above 1 - eps are matches; what suits depends on the encoder."
    )
    column: str = Field(
        "contamination",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Column with the matched picture's source id; `<column>_kind` and `<column>_similarity` say how it "
        "matches. Two stages over one pool need two names.",
    )

    _names: pa.ChunkedArray = PrivateAttr()
    _digests: dict[str, pa.Array] = PrivateAttr()
    _hashes: HashIndex = PrivateAttr()
    _hashed: NDArray[np.int64] = PrivateAttr()
    """Places of the reference pictures that have a hash."""
    _vectors: list[NDArray[np.float16]] = PrivateAttr()
    _made: dict[str, str] = PrivateAttr()

    def reads(self) -> tuple[str, ...]:
        return (*PRINTS, *([self.embedding] if self.embedding else []))

    def writes(self) -> tuple[str, ...]:
        return (self.column, f"{self.column}_kind", f"{self.column}_similarity")

    def schema(self) -> pa.Schema:
        said = (
            pa.field("", pa.string(), metadata={"of": "source id of the matched reference picture; null for none"}),
            pa.field("", pa.string(), metadata={"of": "exact, near or semantic"}),
            pa.field("", pa.float32(), metadata={"of": "exact: 1; near: share of equal bits; semantic: cosine"}),
        )
        return pa.schema([field.with_name(name) for field, name in zip(said, self.writes(), strict=True)])

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError for a reference set without the embeddings that are asked for."""
        table, summary = artifacts["against"]["reference"], artifacts["against"]["summary"]
        self._made = summary["embedding"]
        if self.embedding and not self._made:
            raise CurateError(
                f"{self.op}.embedding: {self.embedding!r}, but its `against` has no embeddings; write embedding: null "
                "here, or name a column in its `duplicates.reference`"
            )
        self._names = table.column("name")
        self._digests = {name: table.column(name).combine_chunks() for name in ("sha256", "pixel_sha256")}
        hashed = pc.is_valid(table.column("perceptual_hash")).to_numpy(zero_copy_only=False)
        self._hashed = np.flatnonzero(hashed)
        hashes = _bytes(table.column("perceptual_hash").filter(pa.array(hashed)))
        self._hashes = HashIndex(hashes, max(0, self.max_distance))
        self._vectors = list(_halves(table.column("embedding"))) if self.embedding else []

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError where the embeddings are of another encoder than the reference set's."""
        table = batch.table
        place, kind = np.full(len(batch), -1, dtype=np.int64), np.full(len(batch), None, dtype=object)
        similarity = np.full(len(batch), np.nan, dtype=np.float32)
        for how, match in (("exact", self._exact), ("near", self._near), ("semantic", self._semantic)):
            rest = np.flatnonzero(place < 0)
            found, value = match(table.take(pa.array(rest)))
            hit = found >= 0
            place[rest[hit]], kind[rest[hit]], similarity[rest[hit]] = found[hit], how, value[hit]
        return {
            self.column: self._names.take(pa.array(place, mask=place < 0)),
            f"{self.column}_kind": pa.array(kind, pa.string()),
            f"{self.column}_similarity": pa.array(similarity, mask=place < 0),
            "reject": pa.array(np.where(place >= 0, "contaminated", None), pa.string()),
        }

    def _exact(self, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        places = [
            pc.fill_null(pc.index_in(table.column(name), value_set=known, skip_nulls=True).cast(pa.int64()), -1)
            for name, known in self._digests.items()
        ]
        bytes_, pixels = (np.asarray(column, dtype=np.int64) for column in places)
        return np.where(bytes_ >= 0, bytes_, pixels), np.ones(table.num_rows, dtype=np.float32)

    def _near(self, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        place = np.full(table.num_rows, -1, dtype=np.int64)
        similarity = np.zeros(table.num_rows, dtype=np.float32)
        if self.max_distance >= 0 and len(self._hashed):
            valid = pc.and_(pc.is_valid(table.column("perceptual_hash")), pc.equal(table.column("flat"), False))
            rows = np.flatnonzero(pc.fill_null(valid, False).to_numpy(zero_copy_only=False))
            found, bits = self._hashes.nearest(_bytes(table.column("perceptual_hash").take(pa.array(rows))))
            place[rows] = np.where(found >= 0, self._hashed[found], -1)
            similarity[rows] = 1 - bits / BITS
        return place, similarity

    def _semantic(self, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        place = np.full(table.num_rows, -1, dtype=np.int64)
        similarity = np.full(table.num_rows, -np.inf, dtype=np.float32)
        if not self.embedding:
            return place, similarity
        field = table.schema.field(self.embedding)
        same_encoder(self.op, field, self._made, "against", "embed both pools with the same encoder")
        vectors = read_embeddings(self.op, table, self.embedding, True)
        start = 0
        for halves in self._vectors:
            found, cosine = best_within(vectors, unit_rows(halves), self.eps)
            better = (found >= 0) & (np.nan_to_num(cosine, nan=-np.inf) > similarity)
            place[better], similarity[better] = found[better] + start, cosine[better]
            start += len(halves)
        return place, np.minimum(similarity, np.float32(1))


def _bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """A fixed-size binary column without nulls -> (n, width)."""
    width, array = column.type.byte_width, column.combine_chunks()
    data = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)
    return data[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _halves(column: pa.ChunkedArray) -> Iterator[NDArray[np.float16]]:
    for start in range(0, len(column), _AT_ONCE):
        yield from_binary(column.slice(start, _AT_ONCE)).astype(np.float16)
