"""`video.embed`: a vector per video, the mean of those of some frames."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from curate.codec.video.limited import frames
from curate.codec.video.times import duration_of, times_ms
from curate.core.contracts import Batch, Sample
from curate.core.vectors import has_direction
from curate.encoders.images import ImageVectors, embedding_columns


class Embed(ImageVectors):
    """Embed each video or clip with a frozen encoder of images.

    Writes the mean of the unit vectors of its frames, of unit length in half precision; its original length; and what
    that lacks to 1, the spread: the mean cosine distance of the frames to it, 0 if all look alike. Times are parts of
    the duration in the header: without one, embed windows or clips of the video, which have their own. Unusable:
    zero_embedding, nan_embedding, no_duration, and the codec's reasons.
    """

    op: ClassVar[str] = "video.embed"
    sees: ClassVar[tuple[str, ...]] = ("video",)
    batch_rows: ClassVar[int] = 16

    frames: int = Field(
        8, ge=1, le=256, description="Number of frames, at the middles of as many equal parts of the video."
    )

    def schema(self) -> pa.Schema:
        metadata = {"units": "mean cosine distance of frames to the mean, 0 to 1"}
        return super().schema().append(pa.field(f"{self.column}_spread", pa.float32(), metadata=metadata))

    def prepare(self, sample: Sample) -> list[NDArray[Any]]:
        times = times_ms(duration_of(sample.reader, sample.row), self.frames)
        return [self._encoder.prepare(Image.fromarray(frame.rgb)) for frame in frames(sample.reader, times)]

    def process(self, batch: Batch) -> dict[str, Any]:
        vectors = self.encoded([image for images in batch.prepared for image in images])
        means = mean_directions(vectors.reshape(len(batch), self.frames, vectors.shape[1]))
        columns = embedding_columns(batch, means, self.column)
        columns[f"{self.column}_spread"] = np.float32(1) - np.minimum(columns[f"{self.column}_norm"], np.float32(1))
        return columns


def mean_directions(vectors_BND: NDArray[np.float32]) -> NDArray[np.float32]:
    """(B, D): the mean of the unit vectors of each row, whose length is 1 - the mean cosine distance to it. Vectors
    without a direction, such as those of black frames, do not count; one that is not finite makes its row so."""
    norms = np.linalg.norm(vectors_BND.astype(np.float64), axis=-1, keepdims=True)
    some = has_direction(norms) | ~np.isfinite(norms)
    with np.errstate(invalid="ignore"):
        units = np.where(some, vectors_BND / np.where(some, norms, 1), 0)
    return (units.sum(axis=1) / np.maximum(some.sum(axis=1), 1)).astype(np.float32)
