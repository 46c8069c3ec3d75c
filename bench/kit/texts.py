"""Texts of the benchmarks: 10,000 alt texts of the web, and as many altered ones as wanted, no two of them equal.

The alt texts are beside this repository (`shared/data`; CURATE_SHARED names another place); a benchmark says so and
skips them where they are absent.
"""

from __future__ import annotations

import functools

import numpy as np

from bench.kit.features import shared

FILE = "laion-alt-text-10k.parquet"


@functools.cache
def alt_texts() -> tuple[str, ...]:
    """The raw alt texts; empty if the file is missing."""
    import pyarrow.parquet as pq

    file = shared() / "data" / FILE
    if not file.exists():
        print(f"alt texts: skipped, {file} does not exist; set CURATE_SHARED to its folder")
        return ()
    return tuple(pq.read_table(file, columns=["caption"]).column("caption").to_pylist())


def altered(count: int, seed: int = 0) -> list[str]:
    """`count` texts: the alt texts in a shuffled order, over and over, each with one seeded edit of its tokens (another
    text's token in place of one, beside one, or two swapped; further tokens where that has been made before), so that
    a cache of texts gains nothing."""
    texts = alt_texts()
    if not texts:
        return []
    rng = np.random.default_rng(seed)
    pool = [token for text in texts for token in text.split()]
    split = [text.split() or [""] for text in texts]
    which = np.concatenate([rng.permutation(len(texts)) for _ in range(-(-count // len(texts)))])[:count]
    kind = rng.integers(0, 3, count)
    place, other = rng.random(count), rng.integers(0, len(pool), count)
    made: dict[str, None] = {}
    for text, edit, where, token in zip(which.tolist(), kind.tolist(), place.tolist(), other.tolist(), strict=True):
        words = split[text].copy()
        at = int(where * len(words))
        if edit == 2 and len(words) > 1:
            at = min(at, len(words) - 2)
            words[at], words[at + 1] = words[at + 1], words[at]
        elif edit == 1:
            words.insert(at, pool[token])
        else:
            words[at] = pool[token]
        while (joined := " ".join(words)) in made:
            words.insert(at, pool[int(rng.integers(len(pool)))])
        made[joined] = None
    return list(made)
