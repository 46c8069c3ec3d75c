"""Images into sequences of fixed length: first-fit-decreasing in a look-ahead window (Johnson 1973)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_fit_decreasing(tokens: Sequence[int], capacity: int, max_images: int) -> list[list[int]]:
    """Bins of positions into `tokens` (n,): each at most `capacity` tokens and `max_images` images.

    The longest image goes first, into the first bin with enough room. Positions within a bin ascend, and bins are
    ordered by their first position, so that a window of equal lengths keeps its order and long images do not all come
    first. O(n log n). Raises ValueError for an image longer than a sequence.
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
