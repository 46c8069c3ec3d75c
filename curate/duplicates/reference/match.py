"""`duplicates.match`: finds images that match an image of an evaluation set; `duplicates.decontaminate` rejects them.

`max_distance` and `eps` limit the search. Every similarity within the limits is written, so a stricter threshold of
the filter gives the same result as a narrower search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch, Map
from curate.core.errors import CurateError
from curate.core.vectors import from_binary, same_encoder
from curate.duplicates.reference.hash_index import BITS, HashIndex
from curate.duplicates.reference.reference import KIND, PRINTS
from curate.duplicates.semantic.kernels import best_within, unit_rows
from curate.kernels.embeddings import read_embeddings

Kind: TypeAlias = Literal["exact", "near", "semantic"]
KINDS: tuple[Kind, ...] = ("exact", "near", "semantic")
"""Kinds of matches, in order of precedence."""

_VECTORS_AT_ONCE = 1 << 14
"""Reference vectors compared at a time; they are kept as float16."""


class MatchReference(Map):
    """Find the image of a reference set that each image equals or nearly equals.

    An image matches by its bytes or pixels (`exact`), by the nearest perceptual hash within `max_distance` (`near`, not
    for flat images), or by the nearest embedding within `eps` (`semantic`). `<column>`, `<column>_kind` and
    `<column>_similarity` describe the first of these that matches. `<column>_near` and `<column>_semantic` are written
    for every such match, even if `<column>_kind` is a different kind.
    """

    op: ClassVar[str] = "duplicates.match"
    ports: ClassVar[dict[str, str]] = {"against": KIND}
    batch_rows: ClassVar[int] = 4096

    max_distance: int = Field(
        12,
        ge=-1,
        le=64,
        description="Maximum Hamming distance of the 256-bit hash of a near copy; -1 compares no hashes.",
    )
    embedding: str | None = Field(
        "embedding", description="Column of `image.embed` to compare; null compares digests and hashes only."
    )
    eps: float = Field(
        0.05, gt=0, lt=1, description="Cosines above 1 - eps are matches; a good value depends on the encoder."
    )
    column: str = Field(
        "contamination",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Column for the matched image's source id, and prefix of the columns about the match. Give each "
        "such stage over a pool a different name.",
    )

    _names: pa.ChunkedArray = PrivateAttr()
    _digests: dict[str, pa.Array] = PrivateAttr()
    _hashes: HashIndex = PrivateAttr()
    _hashed: NDArray[np.int64] = PrivateAttr()
    """Row numbers of the reference images that have a hash."""
    _vectors: list[NDArray[np.float16]] = PrivateAttr()
    _encoder: dict[str, str] = PrivateAttr()
    """Identity of the encoder of the reference embeddings; empty if the set has none."""

    def reads(self) -> tuple[str, ...]:
        return (*PRINTS, *([self.embedding] if self.embedding else []))

    def schema(self) -> pa.Schema:
        bits, cosine = _search_limits(self.max_distance, self.eps if self.embedding else None)
        fields = [
            ("", pa.string(), {"of": "source id of the matched reference image; null for none"}),
            ("_kind", pa.string(), {"values": " ".join(KINDS)}),
            ("_similarity", pa.float32(), {"of": "exact: 1; near: share of equal bits; semantic: cosine"}),
            ("_near", pa.float32(), {"of": "share of equal bits; null beyond the search", "least": bits}),
            ("_semantic", pa.float32(), {"of": "cosine; null beyond the search", "least": cosine}),
        ]
        return pa.schema([pa.field(self.column + name, kind, metadata=about) for name, kind, about in fields])

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if `embedding` is set and the reference set has no embeddings."""
        table, summary = artifacts["against"]["reference"], artifacts["against"]["summary"]
        self._encoder = summary["embedding"]
        if self.embedding and not self._encoder:
            raise CurateError(
                f"{self.op}.embedding: {self.embedding!r}, but its `against` has no embeddings; write embedding: null "
                "here, or set `embedding` of its `duplicates.reference`"
            )
        self._names = table.column("name")
        self._digests = {name: table.column(name).combine_chunks() for name in ("sha256", "pixel_sha256")}
        hashed = pc.is_valid(table.column("perceptual_hash")).to_numpy(zero_copy_only=False)
        self._hashed = np.flatnonzero(hashed)
        hashes = _bytes(table.column("perceptual_hash").filter(pa.array(hashed)))
        self._hashes = HashIndex(hashes, max(0, self.max_distance))
        self._vectors = list(_float16_blocks(table.column("embedding"))) if self.embedding else []

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError if another encoder computed the embeddings of the reference set."""
        count = len(batch)
        place, kinds = np.full(count, -1, dtype=np.int64), np.full(count, None, dtype=object)
        best = np.full(count, np.nan, dtype=np.float32)
        columns: dict[str, Any] = {}
        for kind, match in zip(KINDS, (self._exact, self._near, self._semantic), strict=True):
            found, value = match(batch.table)
            hit = (place < 0) & (found >= 0)
            place[hit], kinds[hit], best[hit] = found[hit], kind, value[hit]
            columns[f"{self.column}_{kind}"] = pa.array(value, pa.float32(), mask=found < 0)
        columns[self.column] = self._names.take(pa.array(place, mask=place < 0))
        columns[f"{self.column}_kind"] = pa.array(kinds, pa.string())
        columns[f"{self.column}_similarity"] = pa.array(best, mask=place < 0)
        return {name: columns[name] for name in self.schema().names}

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
        same_encoder(self.op, field, self._encoder, "against", "embed both pools with the same encoder")
        vectors = read_embeddings(self.op, table, self.embedding, True)
        start = 0
        for halves in self._vectors:
            found, cosine = best_within(vectors, unit_rows(halves), self.eps)
            better = (found >= 0) & (np.nan_to_num(cosine, nan=-np.inf) > similarity)
            place[better], similarity[better] = found[better] + start, cosine[better]
            start += len(halves)
        return place, np.minimum(similarity, np.float32(1))


def _search_limits(max_distance: int, eps: float | None) -> tuple[str, str]:
    """Minimum share of equal bits and minimum cosine of the search; `none` if it does not compare hashes or vectors."""
    bits = f"{1 - max_distance / BITS:.9g}" if max_distance >= 0 else "none"
    return bits, "none" if eps is None else f"{1 - eps:.9g}"


def _bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    """Fixed-size binary column without nulls -> (n, width)."""
    width, array = column.type.byte_width, column.combine_chunks()
    data = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)
    return data[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)


def _float16_blocks(column: pa.ChunkedArray) -> Iterator[NDArray[np.float16]]:
    for start in range(0, len(column), _VECTORS_AT_ONCE):
        yield from_binary(column.slice(start, _VECTORS_AT_ONCE)).astype(np.float16)
