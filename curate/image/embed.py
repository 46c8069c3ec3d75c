"""`image.embed`: a vector per image, from any encoder, for clusters, semantic duplicates and scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from curate.core.contracts import Batch, Sample
from curate.encoders.images import MOST_IMAGES, ImageVectors, embedding_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Embed(ImageVectors):
    """Embed each image with a frozen encoder.

    Writes vectors of unit length in half precision, and their norms. Unusable: zero_embedding, nan_embedding, and
    images that cannot be decoded.
    """

    op: ClassVar[str] = "image.embed"
    batch_rows: ClassVar[int] = MOST_IMAGES

    def prepare(self, sample: Sample) -> NDArray[Any]:
        return self._encoder.prepare(sample.image())

    def process(self, batch: Batch) -> dict[str, Any]:
        return embedding_columns(batch, self.encoded(batch.prepared), self.column)

    def padded(self) -> int:
        """Images per pass; 0 for `descriptor`, which computes each image separately."""
        return 0 if self.encoder == "descriptor" else self.images_per_pass()
