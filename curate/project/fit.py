"""`project.fit`: fit two coordinates to the vectors of a pool, on a sample."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from curate.core.contracts import Artifact, Fit, Resources, Runtime, Table
from curate.core.errors import CurateError
from curate.core.group import Group
from curate.kernels.draw import drawn
from curate.kernels.embeddings import embedding_arrays, encoder_identity
from curate.project.neighbours import spread

KIND = "projection"
MOST_SAMPLED = 200_000


class FitProjection(Fit):
    """Fit a projection of vectors to two coordinates, for `project.place` and the map of a run.

    `pca` takes the two directions of the largest variance. `neighbours` keeps rows close that are close in all
    dimensions: it moves the points of a sample along a graph of nearest neighbours, with the loss of UMAP (McInnes et
    al. 2018) and the kernel of t-SNE, as in Damrich et al. 2023, from the places that PCA gives them.

    The artifact contains `mean` (d,) and `axes` (d, 2) for `pca`; `vectors` (m, d) in half precision and `points`
    (m, 2) for `neighbours`; and `summary`. It does not depend on the number of workers and threads; on another machine,
    `neighbours` may place points elsewhere.
    """

    op: ClassVar[str] = "project.fit"
    kind: ClassVar[str] = KIND

    method: Literal["pca", "neighbours"] = Field(
        "pca", description="pca: within seconds. neighbours: groups stand apart, a minute per 100,000 sampled rows."
    )
    embedding: str = Field("embedding", description="Column of vectors; their directions are projected.")
    sample: int = Field(
        50_000, ge=10, le=MOST_SAMPLED, description="Most rows to fit on, drawn at random; all rows are placed."
    )
    neighbours: int = Field(15, ge=2, le=100, description="Neighbours of a row that `neighbours` keeps close.")
    epochs: int = Field(200, ge=1, description="Passes of `neighbours` over its graph.")
    seed: int = Field(0, ge=0, description="Seed of the sample and of the moves.")
    threads: Annotated[int, Runtime()] = Field(1, ge=1, description="Cores of one worker.")

    def reads(self) -> tuple[str, ...]:
        return (self.embedding,)

    def resources(self) -> Resources:
        return Resources(cpus=self.threads)

    def provenance(self, schema: pa.Schema) -> dict[str, str]:
        return encoder_identity(self.op, schema, self.embedding)

    def load(self, table: Table) -> dict[str, NDArray[Any]]:
        """`vectors` (n, d) in halves. Raises InputError for a vector without a direction."""
        return embedding_arrays(self.op, table, self.embedding, True)

    def fit(self, group: Group) -> Artifact:
        """Raises CurateError if there are no rows."""
        rows = sum(group.rows)
        if not rows:
            why = "every row was rejected upstream; `curate status RUN` shows where and why"
            raise CurateError(f"{self.op}: no rows to project: {why}")
        sample = drawn(group, self.sample, self.seed)
        mean, axes, explained = principal_axes(sample)
        made: dict[str, NDArray[Any]] = {"mean": mean, "axes": axes}
        if self.method == "neighbours":
            start = ((sample - mean) @ axes).astype(np.float32)
            points = spread(sample, start, self.neighbours, self.epochs, self.seed, group.progress)
            made = {"vectors": sample.astype(np.float16), "points": points}
        summary = {
            "method": self.method,
            "embedding": self.embedding,
            "encoder": dict(group.provenance),
            "dim": sample.shape[1],
            "rows": rows,
            "sampled": len(sample),
            "explained": explained,
            "neighbours": self.neighbours,
        }
        return {**made, "summary": summary}


def principal_axes(sample: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """Mean (d,) of rows (n, d), their two directions (d, 2) of largest variance, and its share of all variance. The
    largest entry of a direction is positive, so that maps of other samples are not mirrored."""
    mean = sample.mean(axis=0, dtype=np.float64)
    centred = sample - mean.astype(np.float32)
    values, vectors = np.linalg.eigh((centred.T @ centred).astype(np.float64) / len(sample))
    axes = np.zeros((sample.shape[1], 2))
    axes[:, : len(values)] = vectors[:, ::-1][:, :2]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]] + 0.0)
    total = float(values.sum())
    return mean.astype(np.float32), axes.astype(np.float32), float(values[-2:].sum() / total) if total > 0 else 0.0
