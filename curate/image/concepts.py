"""`image.concepts`: what an image shows, as WordNet synsets with probabilities, by a classifier of its vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from curate.core.contracts import Artifact, Batch
from curate.core.errors import InputError
from curate.core.items import places_of
from curate.core.vectors import from_binary, same_encoder
from curate.encoders.base import Classes
from curate.encoders.stage import EncoderMap, EncoderName
from curate.kernels.wordnet import database
from curate.kernels.wordnet.hypernyms import taxonomy

LISTS, SHARES = pa.list_(pa.list_(pa.string())), pa.list_(pa.list_(pa.float32()))


class ImageConcepts(EncoderMap):
    """Name what each image shows: `concepts`, synsets such as `lemon.n.01`, the most probable first.

    Reads the vectors of `image.embed` with the same encoder, which must have been trained on ImageNet's classes (lite0,
    lite1, most of timm's), or read texts (open_clip:…, hf:…). Columns: `concepts` in a list for the image, as the
    stages that read `concepts` of a text expect it; `concept_shares`, their probabilities; `concept`, the first one, or
    null; `concept_share`, the highest probability even where it is below `share`. Counters: sure and unsure images.
    Unusable: no_embedding.
    """

    op: ClassVar[str] = "image.concepts"
    batch_rows: ClassVar[int] = 256

    encoder: EncoderName = Field("lite1", description="Encoder of the vectors.")
    embedding: str = Field(
        "embedding", description="Column with the vectors of images; `<name>_norm` holds their norms."
    )
    share: float = Field(0.3, gt=0, le=1, description="Least probability of a concept.")
    most: int = Field(3, ge=1, le=100, description="Most concepts of an image.")
    depth: int | None = Field(
        None,
        ge=1,
        description="Name hypernyms this many steps below WordNet's root (7: vehicle.n.01 and chordate.n.01), whose "
        "probability is the sum of their classes'; null: the classes themselves.",
    )

    _classes: Classes = PrivateAttr()
    _names: pa.Array = PrivateAttr()
    _sums: NDArray[np.int64] = PrivateAttr()

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"wordnet": database.identity()}

    def preflight(self) -> list[str]:
        return [*super().preflight(), *database.problems()]

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Raises CurateError if the encoder has no classes."""
        super().setup(artifacts)
        self._classes, known = self._encoder.classes(), taxonomy()
        missing = [wnid for wnid in self._classes.wnids if wnid[1:] not in known.by_offset]
        if missing:
            raise InputError(f"{self.op}: WordNet in {database.place()} has no {missing[0]}; {database.REMEDY}")
        classes = [known.by_offset[wnid[1:]] for wnid in self._classes.wnids]
        named = classes if self.depth is None else [known.at_depth(name, self.depth) for name in classes]
        names, self._sums = np.unique(named, return_inverse=True)
        self._names = pa.array(names.tolist(), pa.string())

    def reads(self) -> tuple[str, ...]:
        return (self.embedding, f"{self.embedding}_norm")

    def schema(self) -> pa.Schema:
        own = places_of("concepts")
        about = self.provenance() | {"of": f"what {self.embedding} shows"}
        return pa.schema(
            [
                pa.field("concepts", LISTS, metadata=own | about),
                pa.field("concept_shares", SHARES, metadata=own | {"unit": "probability"}),
                pa.field("concept", pa.string(), metadata={"of": "the most probable concept"}),
                pa.field("concept_share", pa.float32(), metadata={"unit": "probability"}),
            ]
        )

    def process(self, batch: Batch) -> dict[str, Any]:
        """Raises CurateError if another encoder made the images' vectors."""
        column = batch.table.column(self.embedding)
        provenance = {**self.provenance(), "dim": str(self._encoder.dim)}
        remedy = "name the encoder that embedded the images"
        same_encoder(self.op, batch.table.schema.field(self.embedding), provenance, "encoder", remedy)
        norms = None if self._classes.unit else batch.table.column(f"{self.embedding}_norm").to_numpy()
        vectors = from_binary(column, norms)
        usable = np.isfinite(vectors.sum(axis=1))
        batch.unusable(np.flatnonzero(~usable), "no_embedding")
        shares = self._shares(np.where(usable[:, None], vectors, 0))
        order = np.argsort(-shares, axis=1, kind="stable")[:, : self.most]
        best = np.take_along_axis(shares, order, axis=1)
        sure = best >= self.share
        batch.counters.update(sure=int(sure[usable, 0].sum()), unsure=int((~sure[usable, 0]).sum()))
        offsets = pa.array(np.append(0, np.cumsum(sure.sum(axis=1))), pa.int32())
        names, numbers = self._names.take(pa.array(order[sure])), pa.array(best[sure], pa.float32())
        return {
            "concepts": one_item(pa.ListArray.from_arrays(offsets, names)),
            "concept_shares": one_item(pa.ListArray.from_arrays(offsets, numbers)),
            "concept": self._names.take(pa.array(order[:, 0], mask=~sure[:, 0])),
            "concept_share": best[:, 0].astype(np.float32),
        }

    def _shares(self, vectors_BD: NDArray[np.float32]) -> NDArray[np.float64]:
        """Probability (B, concepts) of each concept; float64, so that it does not depend on the batch."""
        logits = vectors_BD.astype(np.float64) @ self._classes.weight_CD.T.astype(np.float64) + self._classes.bias_C
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        summed = np.zeros((len(shares), len(self._names)))
        np.add.at(summed.T, self._sums, shares.T)
        return summed


def one_item(lists: pa.ListArray) -> pa.ListArray:
    """A list per image -> a list of that one list, as for an image with one text."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(lists) + 1), pa.int32()), lists)
