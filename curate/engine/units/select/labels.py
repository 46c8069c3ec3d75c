"""Units that are labels, which have numbers once all shards were read; until then a hash stands for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from curate.core.hashing import hashed_words

LABEL = "label"


def hashed(dealt: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """Lines with a hash of 63 bits in place of each label, and the label of each hash; other lines as they are."""
    place = dealt.schema.get_field_index("unit")
    if place < 0 or not pa.types.is_string(dealt.schema.field(place).type):
        return dealt, {}
    encoded = pa.concat_arrays(dealt.column(place).chunks or [pa.array([], pa.string())]).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    hashes = (hashed_words(LABEL, names)[:, 0] >> np.uint64(1)).astype(np.int64)
    known = dict(zip(hashes.tolist(), names, strict=True))
    return dealt.set_column(place, "unit", pa.array(hashes).take(encoded.indices)), known


def added(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of unit, count and label -> one, in the order of the labels."""
    sums = pa.concat_tables(tables).group_by([LABEL, "unit"]).aggregate([("count", "sum")])
    return sums.rename_columns({"count_sum": "count"}).select(tables[0].column_names).sort_by(LABEL)


def numbered(lines: pa.Table, hashes: NDArray[np.int64]) -> pa.Table:
    """Lines with the number of each label, its place in `hashes` (U,), in place of its hash."""
    order, place = np.argsort(hashes), lines.schema.get_field_index("unit")
    unit = lines.column(place)
    numbers = order[np.searchsorted(hashes, unit.fill_null(int(hashes[order[0]])).to_numpy(), sorter=order)]
    return lines.set_column(place, "unit", pa.array(numbers, mask=unit.is_null().to_numpy()))
