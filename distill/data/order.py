"""The global order of an epoch: a pure function of the index and a seed, whoever reads it with how many processes.

1. Shards are ordered by hash(seed, epoch, shard) and dealt to `lanes` in turn.
2. In a lane, each `window_shards` consecutive shards form a window; its samples are ordered by
   hash(seed, key, epoch, shard, row).
3. The global order takes one sample of each lane in turn; a lane that has run out is passed over.

So at most lanes x window_shards tars are in use at any moment, each is read once per epoch, and the shuffle reaches
over all of them. The dataset's tars are shuffled globally when they are written, so a window need not be large.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from curate.core.hashing import make_key, ranks, ranks_of_words


def epoch_order(
    words: NDArray[np.uint64],
    shards: NDArray[np.int64],
    rows: NDArray[np.int64],
    *,
    seed: int,
    epoch: int,
    lanes: int,
    window_shards: int,
) -> NDArray[np.int64]:
    """Permutation (n,) of n samples given by key (n, 2), shard (n,) and row within the shard (n,)."""
    present, shard_of = np.unique(shards, return_inverse=True)
    lanes = min(lanes, len(present))
    shard_ranks = ranks(seed, [make_key("shard", str(shard)) for shard in present], epoch)
    turn = np.argsort(np.argsort(shard_ranks, kind="stable"), kind="stable")[shard_of]
    lane, window = turn % lanes, turn // lanes // window_shards
    by_lane = np.lexsort((ranks_of_words(seed, words, epoch, shards, rows), window, lane))
    lane = lane[by_lane]
    place = np.arange(len(lane)) - np.searchsorted(lane, np.arange(lanes))[lane]
    return by_lane[np.lexsort((lane, place))]
