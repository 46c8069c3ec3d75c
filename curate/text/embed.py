"""`text.embed`: a vector per text, so that training against a frozen text encoder reads a column.

Huang et al., "LLM2CLIP" (2024), which embeds captions once by a language model; Xray-Visual, section 4.6.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from curate import encoders
from curate.core.contracts import Artifact, Batch
from curate.core.items import places_of, texts_of
from curate.core.vectors import has_direction, to_binary, vector_type
from curate.encoders.stage import EncoderMap, EncoderName
from curate.encoders.texts import encode_texts


class Embed(EncoderMap):
    """Embed each text with a frozen encoder: a causal language model, or the text tower of an image-text model.

    In a language model, every token attends to the whole text, and the vector is the mean of the tokens' last hidden
    states. Writes, for each text, a vector of unit length in half precision, and its original length. They are null for
    a null text, and for a text without tokens or whose vector is not finite (counted as no_direction).
    """

    op: ClassVar[str] = "text.embed"
    costly: ClassVar[bool] = True
    batch_rows: ClassVar[int] = 256

    encoder: EncoderName = Field(
        description="hf:NAME or hf:FOLDER (a language model, such as Llama or Qwen; CLIP, SigLIP), open_clip:NAME/TAG, "
        "distill:FOLDER, tiny"
    )
    column: str = Field("text", description="Column of texts: one per row, or a list (`sentences`).")
    output: str = Field(
        "text_embedding",
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Name of the column of vectors, a list for each row; '<output>_norm' has their original lengths.",
    )

    def reads(self) -> tuple[str, ...]:
        return (self.column,)

    def schema(self) -> pa.Schema:
        metadata = {**places_of(self.column), **self.provenance()}
        vector = {"units": "half-precision floats of unit length"}
        kind = pa.null()
        if self._encoder is not None:
            kind = pa.list_(vector_type(self._encoder.dim))
            vector["dim"] = str(self._encoder.dim)
        norm = {"units": "length of the encoder's vector"}
        return pa.schema(
            [
                pa.field(self.output, kind, metadata=metadata | vector),
                pa.field(f"{self.output}_norm", pa.list_(pa.float32()), metadata=metadata | norm),
            ]
        )

    def preflight(self) -> list[str]:
        return [*encoders.text_problems(self.encoder), *super().preflight()]

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the encoder has no text tower."""
        super().setup(artifacts)
        self._encoder.encode_text([""])

    def process(self, batch: Batch) -> dict[str, Any]:
        items = texts_of(self.op, batch.table.column(self.column), self.column)
        distinct = pc.dictionary_encode(items.values.cast(pa.string()))
        vectors = encode_texts(self._encoder, distinct.dictionary.to_pylist())
        lost = ~(np.isfinite(vectors).all(axis=1) & np.any(vectors != 0, axis=1))
        unit, norms = to_binary(np.where(lost[:, None], 0, vectors))
        lost |= ~has_direction(norms)
        text = distinct.indices.to_numpy()
        batch.counters["no_direction"] += int(lost[text].sum())
        places = pa.array(text, mask=lost[text])
        return {
            self.output: items.nest(unit.take(places), unit.type),
            f"{self.output}_norm": items.nest(pa.array(norms).take(places), pa.float32()),
        }
