"""`align.similarity`: how well each text matches its image, as the cosine of an image-text encoder's vectors.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision" (2021), section 2.3; as a filter
in DataComp (Gadre et al. 2023, section 3.4) and in Xray's ViSE.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate import encoders
from curate.align.scores import cosines
from curate.core.contracts import Artifact, Batch
from curate.core.items import places_of, texts_of
from curate.core.vectors import from_binary, same_encoder
from curate.encoders.stage import EncoderMap, EncoderName
from curate.encoders.texts import encode_texts


class Similarity(EncoderMap):
    """Compute the cosine of an image's vector with that of each of its texts.

    The vectors must come from `image.embed` with the same encoder. The encoder does not read tokens beyond its context
    (77 for CLIP). The similarity is null for a null text, and for a text whose vector is not finite (counted as
    no_direction). Unusable: no_embedding (null, zero, or not finite).
    """

    op: ClassVar[str] = "align.similarity"
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 256

    encoder: EncoderName = Field(
        description="Encoder that embedded the images: open_clip:NAME/TAG or hf:NAME (CLIP, SigLIP), each also with "
        "a local checkpoint"
    )
    embedding: str = Field("embedding", description="Column of the images' vectors, from `image.embed`.")
    column: str = Field("text", description="Column of texts: one per row, or a list (`sentences`).")
    output: str = Field(
        "similarity", pattern=r"^[a-z][a-z0-9_]*$", description="Name of the column of cosines, a list for each row."
    )

    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.embedding, self.column)))

    def schema(self) -> pa.Schema:
        of = {"of": f"{self.embedding} and {self.column}", "unit": "cosine"}
        metadata = {**places_of(self.column), **of, **self.provenance()}
        return pa.schema([pa.field(self.output, pa.list_(pa.float32()), metadata=metadata)])

    def preflight(self) -> list[str]:
        return [*encoders.text_problems(self.encoder), *super().preflight()]

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the encoder has no text tower."""
        super().setup(artifacts)
        self._encoder.encode_text([""])

    def padded(self) -> int:
        """No padding: `encode_texts` gives the model one batch size anyway."""
        return 0

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError if another encoder made the images' vectors."""
        embeddings = batch.table.column(self.embedding)
        provenance = {**self.provenance(), "dim": str(self._encoder.dim)}
        remedy = "score with the encoder that embedded the images"
        same_encoder(self.op, batch.table.schema.field(self.embedding), provenance, "encoder", remedy)
        vectors = from_binary(embeddings)
        items = texts_of(self.op, batch.table.column(self.column), self.column)
        distinct = pc.dictionary_encode(items.values.cast(pa.string()))
        texts = encode_texts(self._encoder, distinct.dictionary.to_pylist())
        found = cosines(vectors, texts, items.row, distinct.indices.to_numpy())
        usable = np.isfinite(vectors).all(axis=1) & np.any(vectors != 0, axis=1)
        batch.counters["no_direction"] += int((np.isnan(found) & usable[items.row]).sum())
        batch.unusable(np.flatnonzero(~usable), "no_embedding")
        return {self.output: items.nest(pa.array(found, mask=np.isnan(found)), pa.float32())}
