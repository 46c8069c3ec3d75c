"""Seconds until a takedown knows where a key is: in a pool, by its index of keys, and in a dataset, by its index.

    python -m bench.engine.takedown [KEYS]

The indexes have 10,000,000 random keys each; the dataset's has the columns of a pack of images. Both are read from the
page cache. Beside it, the pool's index of keys read as a whole, and reading every column of the dataset's.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.kit.measure import line, machine, seconds
from curate.core.hashing import keys_of_words
from curate.core.nouns.manifest import Manifest
from curate.core.store.storage import Storage
from curate.engine.takedown.find import _lines
from curate.engine.units import shuffle
from curate.engine.units.keys import ROW_GROUP, _keys, _range_of, places_of

KEYS, GROUP, FOLDER = 10_000_000, 1 << 17, "pools/p/keys/k"


def write_pool(storage: Storage, folder: str, words: np.ndarray) -> dict[str, object]:
    """The index of the keys of shards of 10,000 rows in this order; the entry for the pool's manifest."""
    ranges = shuffle.buckets_for(len(words))
    order = np.lexsort((words[:, 1], words[:, 0]))
    of = _range_of(words[order, 0], ranges)
    for number in range(ranges):
        rows = order[of == number]
        columns = {"key": _keys(words[rows]), "shard": pa.array(rows // 10_000, pa.int32())}
        table = pa.table(columns | {"row": pa.array(rows % 10_000, pa.int32())})
        storage.publish_table(f"{folder}/{number:06d}.parquet", table, row_group_size=ROW_GROUP, use_dictionary=False)
    return {"folder": folder, "ranges": ranges}


def write_dataset(storage: Storage, words: np.ndarray) -> None:
    """`index.parquet`."""
    place = np.arange(len(words))
    with storage.publish("index.parquet") as aside:
        writer = None
        for start in range(0, len(words), GROUP):
            keys, at = keys_of_words(words[start : start + GROUP]), place[start : start + GROUP]
            small = {name: pa.array(at % 1000, pa.int32()) for name in ("row", "copy", "width", "height")}
            large = {name: pa.array(at * 4096) for name in ("offset", "size", "text_offset", "text_size")}
            texts = {"name": [f"{key}-0-0" for key in keys], "item": ["0"] * len(keys), "ext": ["jpg"] * len(keys)}
            table = pa.table({"shard": pa.array(at // 1000, pa.int32()), "key": keys, **small, **large, **texts})
            writer = writer or pq.ParquetWriter(aside, table.schema, compression="zstd")
            writer.write_table(table)
        assert writer is not None
        writer.close()


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] and __name__ == "__main__" else KEYS
    print(machine())
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 63, (count, 2), dtype=np.uint64) << np.uint64(1)
    with tempfile.TemporaryDirectory(prefix="bench-takedown-") as name:
        storage = Storage(name)
        manifest = Manifest("pool", "op", 1, "f", extra={"keys": write_pool(storage, FOLDER, words)})
        write_dataset(storage, words)
        some = keys_of_words(words[rng.integers(0, count, 10)])
        assert all((places_of(storage, manifest, some) or {}).values())
        assert {row["key"] for row in _lines(storage, "index.parquet", pa.array(some))} == set(some)
        pool = seconds(lambda: places_of(storage, manifest, some))
        dataset = seconds(lambda: _lines(storage, "index.parquet", pa.array(some)))
        files = [f"{FOLDER}/{number:06d}.parquet" for number in range(manifest.extra["keys"]["ranges"])]
        whole = seconds(lambda: [storage.read_table(path) for path in files], 1)
        wanted = pc.is_in(pc.field("key"), value_set=pa.array(some))
        columns = seconds(lambda: storage.read_table("index.parquet", filters=wanted), 1)
    line(f"10 keys in a pool of {count:,}", f"{pool:.3f} s", f"the whole index: {whole:.2f} s")
    line(f"10 keys in a dataset of {count:,}", f"{dataset:.3f} s", f"all columns: {columns:.2f} s")


if __name__ == "__main__":
    main()
