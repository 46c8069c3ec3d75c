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


# --- Histograms of oriented gradients and of colours ------------------------------------------------------------------
# Dalal & Triggs, "Histograms of Oriented Gradients for Human Detection" (CVPR 2005): gradient of the strongest colour
# channel, signed directions, trilinear votes, cells normalised by the four 2 x 2 blocks around them and clipped
# (section 6.4, L2-Hys without the second normalisation). As in Felzenszwalb et al. (PAMI 2010, section 6.2), a cell
# keeps the mean of its four normalisations instead of all four, which makes it four times shorter.

Floats = NDArray[np.float32]
_TAU = np.float32(2 * np.pi)


def gradients(pixels: Floats) -> tuple[Floats, Floats]:
    """pixels (B, H, W, C) -> magnitude and direction in [0, 2 pi), each (B, H, W), of the strongest channel."""
    dx, dy = np.zeros_like(pixels), np.zeros_like(pixels)
    dx[:, :, 1:-1] = pixels[:, :, 2:] - pixels[:, :, :-2]
    dy[:, 1:-1] = pixels[:, 2:] - pixels[:, :-2]
    strongest = np.argmax(dx * dx + dy * dy, axis=-1)[..., None]
    dx = np.take_along_axis(dx, strongest, -1)[..., 0]
    dy = np.take_along_axis(dy, strongest, -1)[..., 0]
    return np.sqrt(dx * dx + dy * dy), np.arctan2(dy, dx) % _TAU


def oriented_cells(pixels: Floats, cells: int, directions: int) -> Floats:
    """pixels (B, H, H, C) -> (B, cells, cells, directions): gradient energy by position and direction.

    A pixel votes for the two nearest directions and the four nearest cells, in proportion.
    """
    magnitude, angle = gradients(pixels)
    bins = angle * np.float32(directions / (2 * np.pi))
    weights = _hat(pixels.shape[1], cells)
    out = np.empty((len(pixels), cells, cells, directions), dtype=np.float32)
    for direction in range(directions):
        away = np.abs(bins - np.float32(direction))
        vote = np.maximum(0, 1 - np.minimum(away, directions - away)) * magnitude
        out[..., direction] = weights.T @ vote @ weights
    return out


def _hat(size: int, cells: int) -> Floats:
    """(size, cells): bilinear weight of each pixel row in each cell row."""
    position = (np.arange(size) + 0.5) * cells / size - 0.5
    return np.maximum(0, 1 - np.abs(position[:, None] - np.arange(cells))).astype(np.float32)


def normalise_cells(cells: Floats, floor: float = 0.1, clip: float = 0.2) -> Floats:
    """cells (B, n, n, d) -> (B, n, n, d): divided by the norms of the four 2 x 2 blocks, clipped, averaged.

    `floor`, whose square is added to the squared norms, suppresses noise in flat blocks.
    """
    n = cells.shape[1]
    energy = np.pad((cells * cells).sum(-1), ((0, 0), (1, 1), (1, 1)))
    blocks = energy[:, :-1, :-1] + energy[:, 1:, :-1] + energy[:, :-1, 1:] + energy[:, 1:, 1:]
    scale = 1 / np.sqrt(blocks + np.float32(floor * floor))
    parts = [np.minimum(cells * scale[:, y : y + n, x : x + n, None], clip) for y in (0, 1) for x in (0, 1)]
    return (parts[0] + parts[1] + parts[2] + parts[3]) / 4


def colour_histogram(pixels: NDArray[np.uint8], levels: int) -> Floats:
    """pixels (B, H, W, 3) -> (B, levels**3): fraction of pixels in each box of the RGB cube."""
    boxes = pixels.astype(np.int64) * levels // 256
    index = (boxes[..., 0] * levels + boxes[..., 1]) * levels + boxes[..., 2]
    size = levels**3
    index += np.arange(len(pixels))[:, None, None] * size
    counts = np.bincount(index.ravel(), minlength=len(pixels) * size).reshape(len(pixels), size)
    return (counts / np.float32(pixels.shape[1] * pixels.shape[2])).astype(np.float32)


def unit(rows: Floats) -> Floats:
    """rows (B, d) scaled to length 1; a row of zeros is unchanged."""
    norms: Floats = np.sqrt(np.einsum("bd,bd->b", rows, rows))[:, None]
    norms[norms <= 1e-6] = 1
    return rows / norms
