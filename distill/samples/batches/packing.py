"""Images into sequences of fixed length: first-fit-decreasing in a look-ahead window (Johnson 1973)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def first_fit_decreasing(tokens: Sequence[int], capacity: int, max_images: int) -> list[list[int]]:
    """Bins of positions into `tokens` (n,): each at most `capacity` tokens and `max_images` images.

    The longest goes first, into the first bin where it fits. Positions inside a bin rise, and bins are ordered by their
    first position, so that a window of equal lengths keeps its order and long images do not all come first. Takes
    n log n steps. Raises ValueError for an image longer than a sequence.
    """
    if len(tokens) and max(tokens) > capacity:
        raise ValueError(f"an image of {max(tokens)} tokens does not fit into a sequence of {capacity}")
    if len(tokens) and min(tokens) == max(tokens):
        each = min(capacity // tokens[0], max_images)
        return [list(range(start, min(start + each, len(tokens)))) for start in range(0, len(tokens), each)]
    bins: list[list[int]] = [[] for _ in tokens]
    leaves = 1 << max(0, len(tokens) - 1).bit_length()
    room = [capacity] * (2 * leaves)  # a tree: node i has the larger room of 2i and 2i + 1, bins are the leaves
    for position in np.argsort(-np.asarray(tokens, dtype=np.int64), kind="stable").tolist():
        need = int(tokens[position])
        node = 1
        while node < leaves:
            node *= 2
            if room[node] < need:
                node += 1
        bin = bins[node - leaves]
        bin.append(position)
        room[node] = room[node] - need if len(bin) < max_images else -1
        while node > 1:
            node //= 2
            largest = max(room[2 * node], room[2 * node + 1])
            if room[node] == largest:
                break
            room[node] = largest
    return sorted(sorted(bin) for bin in bins if bin)


def grids(
    widths: NDArray[np.int64], heights: NDArray[np.int64], *, patch: int, max_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Patch grids (columns (n,), rows (n,)) of pictures of so many pixels: native aspect, at most `max_tokens` patches.

    A picture is scaled down to fit, never up; sides are rounded to whole patches (at least one). Where rounding the
    shorter side up went over the limit, the longer one gives way. Turning a picture by 90 degrees turns its grid. A
    size that is unknown (< 1) gets the largest square.
    """
    width, height = np.asarray(widths, dtype=np.float64), np.asarray(heights, dtype=np.float64)
    unknown = (width < 1) | (height < 1)
    side = patch * np.floor(np.sqrt(max_tokens))
    width, height = np.where(unknown, side, width), np.where(unknown, side, height)
    scale = np.minimum(1.0, np.sqrt(max_tokens * patch**2 / (width * height))) / patch
    columns = np.clip(np.rint(width * scale), 1, max_tokens).astype(np.int64)
    rows = np.clip(np.rint(height * scale), 1, max_tokens).astype(np.int64)
    over = columns * rows > max_tokens
    wide = width >= height
    columns = np.where(over & wide, max_tokens // rows, columns)
    rows = np.where(over & ~wide, max_tokens // columns, rows)
    return columns, rows


@lru_cache(maxsize=1 << 16)
def grid(width: int, height: int, *, patch: int, max_tokens: int) -> tuple[int, int]:
    """(columns, rows) of one picture."""
    columns, rows = grids(np.array([width]), np.array([height]), patch=patch, max_tokens=max_tokens)
    return int(columns[0]), int(rows[0])
