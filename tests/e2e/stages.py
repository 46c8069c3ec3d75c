"""A stage of our own, named in the recipe by module and class, as another package would bring it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from curate.core.contracts import Batch
from curate.image.embed import Embed, embedding_columns


class EmbedOverflowing(Embed):
    """`image.embed` whose numbers run over where an image is all white, as half precision does."""

    op: ClassVar[str] = "tests.e2e.stages:EmbedOverflowing"

    def process(self, batch: Batch) -> dict[str, Any]:
        vectors = self._encoder.encode(batch.prepared, patches=False).summary.copy()
        vectors[[pixels.min() > 250 for pixels in batch.prepared]] = np.nan
        return embedding_columns(batch, vectors, self.column)
