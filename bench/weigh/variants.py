"""The variants that `bench.weigh` compares. Each function replaces our code by a library's in the current process."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ours() -> None:
    """Run our own code unchanged."""


def fasttext_library() -> None:
    """Predict languages with fastText's own C++, text by text (fasttext-predict)."""
    import fasttext
    import pyarrow as pa

    from curate.text.language import file, model

    class Library:
        def __init__(self, path: str) -> None:
            self._model = fasttext.load_model(path).f
            self._unknown = self._best("")
            names = [name for _, name in self._model.predict("\n", 1000, 0.0, "strict")]
            self._ids = {name: number for number, name in enumerate(names)}
            self.labels = [name.removeprefix("__label__") for name in names]

        def _best(self, text: str) -> tuple[float, str]:
            score, name = self._model.predict(text.replace("\n", " ") + "\n", 1, 0.0, "strict")[0]
            return score, name

        def predict(self, texts: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
            found = [self._best(text or "") for text in texts.to_pylist()]
            label = np.array([-1 if one == self._unknown else self._ids[one[1]] for one in found], np.int32)
            return label, np.array([score for score, _ in found], np.float32)

    file.read = lambda path: path  # type: ignore[assignment,return-value]
    model.LanguageModel = Library  # type: ignore[assignment,misc]


def wordnet_cold() -> None:
    """Compile WordNet's table in every process, as the first process of a machine does."""
    from curate.kernels.wordnet import database
    from curate.text.wordnet import synsets

    synsets.table = lambda: synsets.compiled(database.read)


def wordnet_nltk() -> None:
    """Look words up in nltk's WordNet one by one; nltk keeps the synsets that it has read in memory."""
    import pyarrow as pa

    from bench.text.concepts import Peer
    from curate.text.wordnet import synsets

    class NltkSynsets:
        def __init__(self, rules: Any) -> None:
            self._peer = Peer()
            self.nouns, self.verbs = ([synset.name() for synset in self._peer.wn.all_synsets(kind)] for kind in "nv")
            self._ids = [{name: number for number, name in enumerate(names)} for names in (self.nouns, self.verbs)]

        def find(self, texts: pa.Array) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
            found = [
                (row, self._ids[0].get(noun or "", -1), self._ids[1].get(verb or "", -1))
                for row, text in enumerate(texts.to_pylist())
                for _, noun, verb in self._peer.matches(text or "")
            ]
            rows, nouns, verbs = np.array(found, np.int64).reshape(-1, 3).T
            return rows, nouns, verbs

    synsets.Synsets = NltkSynsets  # type: ignore[assignment,misc]


def lloyd() -> None:
    """Run Lloyd's iterations alone, without exchange."""
    from curate.cluster.kmeans import lloyd as kmeans

    kmeans.EXCHANGE_ROWS = 0


def faiss_kmeans() -> None:
    """Replace every k-means of the tree by faiss.Kmeans in one process, which draws its own start."""
    import faiss

    from curate.cluster.kmeans import assigned
    from curate.cluster.kmeans.lloyd import State
    from curate.cluster.tree import level

    def rows_of(part: Any, shared: Any) -> NDArray[np.float32]:
        return assigned.vectors(part, shared)[:]

    def by_faiss(group: Any, settings: Any, subset: Any = None, begin: Any = None, save: Any = None) -> State:
        rows = np.concatenate(list(group.each(rows_of, subset=subset)))
        model = faiss.Kmeans(
            rows.shape[1], settings.clusters, niter=settings.iterations, seed=settings.seed % (1 << 31),
            spherical=settings.unit_norm, min_points_per_centroid=1, max_points_per_centroid=1 << 30,
        )  # fmt: skip
        model.train(rows, init_centroids=begin.centroids if begin else None)
        return State(model.centroids, settings.iterations, converged=True)

    level.kmeans = by_faiss


def skimage_hog() -> None:
    """Describe shapes by skimage.feature.hog, with as many values (8 x 8 cells, 8 directions, blocks of one cell)."""
    from skimage.feature import hog

    from curate.encoders import descriptor

    def describe(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        cells = [
            hog(image, descriptor.DIRECTIONS, (8, 8), (1, 1), block_norm="L2-Hys", channel_axis=-1)
            for image in pixels.astype(np.float32) / 255
        ]
        form = np.stack(cells).astype(np.float32)
        colour = descriptor.colour_histogram(pixels, descriptor.LEVELS) ** np.float32(0.25)
        return np.concatenate([descriptor.unit(form - form.mean(1, keepdims=True)), descriptor.unit(colour)], axis=1)

    descriptor.describe = describe
