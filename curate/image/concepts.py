"""`image.concepts`: what an image shows, as WordNet synsets with probabilities, by a classifier of its vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Self

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


LEAST_DEPTH, MOST_CLASSES = 5, 0.12
"""Steps below WordNet's root, and share of all classes: nearer to the root, or with more classes, a concept says
little, such as artifact or mammal (a dog has 118 classes of 1,000)."""


class ImageConcepts(EncoderMap):
    """Name what each image shows: `concepts`, synsets such as `lemon.n.01`, the most probable first.

    Reads the vectors of `image.embed` with the same encoder, which must have been trained on ImageNet's classes (lite0,
    lite1, most of timm's), or read texts (open_clip:…, hf:…). A synset's probability is the sum of its classes'. Named
    are the most specific synsets that have at least `share`: a dog whose breed is unclear is a `dog.n.01` (Deng et al.,
    "Hedging Your Bets", 2012). Synsets of more than 12 % of the classes, such as mammal, are not named, so that other
    images than photos often have no concept.

    Columns: `concepts`, a list of one list, as for an image with one text, which `text.counts`, `select.frequency` and
    reports read; `concept_shares`, their probabilities; `concept`, the first one, or null; `concept_share`, its
    probability, or that of the best class. Counters: sure and unsure images. Unusable: no_embedding.
    """

    op: ClassVar[str] = "image.concepts"
    batch_rows: ClassVar[int] = 256

    encoder: EncoderName = Field("lite1", description="Encoder of the vectors.")
    embedding: str = Field(
        "embedding", description="Column with the vectors of images; `<name>_norm` holds their norms."
    )
    share: float = Field(
        0.4,
        gt=0,
        le=1,
        description="Least probability of a concept. At 0.4, 88 % of ImageNet's photos have one and 94 % of these are "
        "right; 26 % and 53 % for CIFAR-10's, which have 32 x 32 pixels.",
    )
    most: int = Field(3, ge=1, le=100, description="Most concepts of an image.")
    depth: int | None = Field(
        None,
        ge=LEAST_DEPTH,
        description="Most steps below WordNet's root, for coarser concepts, of any number of classes: at 7, a car is a "
        "vehicle.n.01 and a dog a chordate.n.01; null: ImageNet's classes are the most specific.",
    )

    _classes: Classes = PrivateAttr()
    _names: NDArray[np.str_] = PrivateAttr()
    _holds_CN: NDArray[np.float64] = PrivateAttr()
    """1 where a class is a kind of a concept."""
    _edges: tuple[NDArray[np.int64], NDArray[np.int64]] = PrivateAttr()
    """Concepts and their direct hypernyms."""

    def placed(self, gpus: bool) -> Self:
        """On CPUs: the classifier is one product, and must not hold the GPU of the stage that embeds."""
        return self.model_copy(update={"device": "cpu"})

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
        kinds = [known.kinds(known.by_offset[wnid[1:]]) for wnid in self._classes.wnids]
        counts, most = Counter(name for of in kinds for name in of), MOST_CLASSES * len(kinds)
        depths = range(LEAST_DEPTH, (self.depth or 0) + 1)
        fits = {name: len(known.path(name)) - 1 in depths if self.depth else counts[name] <= most for name in counts}
        names = sorted(name for name in counts if fits[name])
        place = {name: number for number, name in enumerate(names)}
        self._names, self._holds_CN = np.array(names), np.zeros((len(kinds), len(names)))
        for number, of in enumerate(kinds):
            self._holds_CN[number, [place[name] for name in of if name in place]] = 1
        edges = [(place[name], place[up]) for name in names for up in known.above(name) if up in place]
        self._edges = np.array([below for below, _ in edges]), np.array([above for _, above in edges])

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
        best_class, shares, fit = self._judged(np.where(usable[:, None], vectors, 0))
        order = np.argsort(np.where(fit, -shares, 1), axis=1, kind="stable")[:, : self.most]
        sure, best = np.take_along_axis(fit, order, axis=1), np.take_along_axis(shares, order, axis=1)
        batch.counters.update(sure=int(sure[usable, 0].sum()), unsure=int((~sure[usable, 0]).sum()))
        offsets = pa.array(np.append(0, np.cumsum(sure.sum(axis=1))), pa.int32())
        names, numbers = pa.array(self._names[order[sure]], pa.string()), pa.array(best[sure], pa.float32())
        return {
            "concepts": one_item(pa.ListArray.from_arrays(offsets, names)),
            "concept_shares": one_item(pa.ListArray.from_arrays(offsets, numbers)),
            "concept": pa.array(self._names[order[:, 0]], pa.string(), mask=~sure[:, 0]),
            "concept_share": np.where(sure[:, 0], best[:, 0], best_class).astype(np.float32),
        }

    def _judged(
        self, vectors_BD: NDArray[np.float32]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        """(probability of the best class (B,), of each concept (B, N), which concepts are named (B, N)). In float64, so
        that a row does not depend on its batch."""
        logits = vectors_BD.astype(np.float64) @ self._classes.weight_CD.T.astype(np.float64) + self._classes.bias_C
        of_class = np.exp(logits - logits.max(axis=1, keepdims=True))
        of_class /= of_class.sum(axis=1, keepdims=True)
        shares = of_class @ self._holds_CN
        enough = shares >= self.share
        general = np.zeros_like(enough)
        np.logical_or.at(general.T, self._edges[1], enough.T[self._edges[0]])
        return of_class.max(axis=1), shares, enough & ~general


def one_item(lists: pa.ListArray) -> pa.ListArray:
    """A list per image -> a list of that one list, as for an image with one text."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(lists) + 1), pa.int32()), lists)
