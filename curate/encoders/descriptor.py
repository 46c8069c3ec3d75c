"""`descriptor`, the offline default: 512 HOG values and 216 colours, without weights and without torch.

It recognises near-duplicates and drawing styles, not meanings. The image is fitted into a white square of 64 pixels.
The mean of the HOG values (8 x 8 cells, 8 signed directions) is subtracted, because all images share it. The 6 x 6 x 6
colour fractions are raised to 1/4, so that a large background does not dominate. Both halves have length 1, so that the
cosine weighs form and colour equally. `python -m bench.image.embed judge FOLDER` measures the quality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from curate.encoders.base import Encoder, Features, within_aspect
from curate.encoders.hog import colour_histogram, normalise_cells, oriented_cells, unit
from curate.encoders.spec import Spec

if TYPE_CHECKING:
    from PIL.Image import Image

SIZE, CELLS, DIRECTIONS, LEVELS = 64, 8, 8, 6
WEIGHTS = "none (version 1)"
PREPROCESSING = {"fit": [SIZE, SIZE], "fill": [255, 255, 255], "interpolation": "bicubic"}
_CHUNK = 32


def load(spec: Spec, identity: dict[str, Any], device: str) -> Descriptor:
    return Descriptor(spec, identity)


class Descriptor(Encoder):
    dim = CELLS * CELLS * DIRECTIONS + LEVELS**3

    @property
    def preprocessing(self) -> dict[str, Any]:
        return dict(PREPROCESSING)

    def prepare(self, image: Image) -> NDArray[np.uint8]:
        """(64, 64, 3): the whole image with its aspect ratio, centred in a white square."""
        from PIL import Image as pillow

        image = within_aspect(image)
        scale = SIZE / max(image.size)
        width, height = (max(1, round(side * scale)) for side in image.size)
        square = pillow.new("RGB", (SIZE, SIZE), (255, 255, 255))
        small = image.resize((width, height), pillow.Resampling.BICUBIC, reducing_gap=3.0)
        square.paste(small, ((SIZE - width) // 2, (SIZE - height) // 2))
        return np.asarray(square)

    def encode(self, batch: list[NDArray[np.uint8]], *, patches: bool = True) -> Features:
        if not batch:
            return Features(np.zeros((0, self.dim), dtype=np.float32))
        chunks = [np.stack(batch[start : start + _CHUNK]) for start in range(0, len(batch), _CHUNK)]
        return Features(np.concatenate([describe(chunk) for chunk in chunks]))


def describe(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """pixels (B, 64, 64, 3) -> (B, 728): form and colour, each of length 1 (form of a blank image: 0)."""
    cells = normalise_cells(oriented_cells(pixels.astype(np.float32) / np.float32(255), CELLS, DIRECTIONS))
    form = cells.reshape(len(pixels), -1)
    colour = colour_histogram(pixels, LEVELS) ** np.float32(0.25)
    return np.concatenate([unit(form - form.mean(axis=1, keepdims=True)), unit(colour)], axis=1)
