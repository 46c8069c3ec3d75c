"""What a dataset contains, from its own index: sizes, texts, values of the columns that samples carry. A large one is
known by its first rows, which are a fair sample: a dataset is shuffled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.core.errors import InputError
from curate.core.nouns.manifest import Manifest, reading
from curate.core.store.storage import Storage
from curate.pack.webdataset import carry_mapping

FIXED = ("ext", "copy", "text_offset", "text_size", "width", "height")
MOST_ROWS = 200_000
MOST_VALUES, FEW_VALUES = 2000, 12
"""Values of a column that are listed, the most frequent first; and of one in which few rows share a value."""
QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
CARD_BYTES = 20_000


@dataclass(frozen=True)
class Values:
    """Values of a carried column."""

    column: str
    source: str
    """The column of the run that it is, or `meta.FIELD`."""
    distinct: int
    missing: int
    """Rows without a value."""
    listed: bool = False
    """Whether a sample has a list of them."""
    boolean: bool = False
    top: tuple[tuple[str, int], ...] = ()
    """(value, rows) of the most frequent ones; none for numbers, and for texts such as ids that never repeat."""
    quantiles: tuple[float, ...] = ()
    """For numbers: least, quarter, median, three quarters, greatest."""


@dataclass(frozen=True)
class Contents:
    rows: int
    read: int
    """Rows that the figures below are of."""
    files: Mapping[str, int]
    """Extension -> samples, of images and videos."""
    texts: int
    """Samples with a text."""
    text_bytes: tuple[float, ...]
    """Quantiles (see Values) of the sizes of texts."""
    shorter_side: tuple[float, ...]
    """Quantiles of the shorter sides, in pixels."""
    repeated: int
    """Samples that are a further copy of another."""
    values: tuple[Values, ...]
    tars: str
    """Names of the tars with a range in braces, as WebDataset's readers take them."""
    card: str
    """Its README.md."""


def contents(storage: Storage, base: str) -> Contents:
    """Raises InputError for what is not a dataset."""
    manifest = Manifest.load(storage, base)
    if manifest is None or manifest.noun != "dataset":
        raise InputError(f"{base}: not a dataset of {storage.url}; `curate datasets` lists them")
    carried = carry_mapping(manifest.parameters.get("carry") or [])
    path, remedy = f"{base}/index.parquet", "remove its folder and rerun the recipe"
    with reading(storage, path, "index of a dataset", remedy), storage.open(path) as file:
        index = pq.ParquetFile(file)
        wanted = [name for name in (*FIXED, *carried) if name in index.schema_arrow.names]
        batches, read = list[pa.RecordBatch](), 0
        for batch in index.iter_batches(columns=wanted):
            batches.append(batch)
            read += len(batch)
            if read >= MOST_ROWS:
                break
        table = pa.Table.from_batches(batches, pa.schema([index.schema_arrow.field(name) for name in wanted]))
    for name in FIXED:  # an index of another op may lack some
        table = table if name in wanted else table.append_column(name, pa.nulls(len(table), pa.int64()))
    with_text = table.filter(pc.greater_equal(table.column("text_offset"), 0))
    tars = [path.rpartition("/")[2] for path in sorted(storage.list(base)) if path.endswith(".tar")]
    return Contents(
        rows=manifest.rows,
        read=len(table),
        files=_counts(table.column("ext")),
        texts=len(with_text),
        text_bytes=_quantiles(with_text.column("text_size")),
        shorter_side=_quantiles(pc.min_element_wise(table.column("width"), table.column("height"))),
        repeated=pc.sum(pc.greater(table.column("copy"), 0)).as_py() or 0,
        values=tuple(_values(table.column(name), name, carried[name]) for name in carried if name in wanted),
        tars=_braces(tars),
        card=_card(storage, f"{base}/README.md"),
    )


def _card(storage: Storage, path: str) -> str:
    try:
        with storage.open(path) as file:
            return str(file.read(CARD_BYTES).decode("utf-8", "replace"))
    except FileNotFoundError:
        return ""


def _values(column: pa.ChunkedArray, name: str, source: str) -> Values:
    kind = column.type
    if pa.types.is_list(kind):
        return replace(_values(pc.list_flatten(column), name, source), listed=True)
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return Values(name, source, 0, column.null_count)
    distinct = pc.count_distinct(column).as_py()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Values(name, source, distinct, column.null_count, quantiles=_quantiles(column))
    counts = _counts(column, FEW_VALUES if distinct > 0.9 * len(column) else MOST_VALUES)
    top = () if distinct > FEW_VALUES and max(counts.values()) == 1 else tuple(counts.items())
    return Values(name, source, distinct, column.null_count, boolean=pa.types.is_boolean(kind), top=top)


def _counts(column: pa.ChunkedArray, most: int = FEW_VALUES) -> dict[str, int]:
    counted = column.drop_null().value_counts()
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    return {str(value): rows for value, rows in sorted(pairs, key=lambda one: (-one[1], str(one[0])))[:most]}


def _quantiles(column: Any) -> tuple[float, ...]:
    found = column.drop_null().to_numpy().astype(np.float64)
    found = found[np.isfinite(found)]
    return tuple(np.quantile(found, QUANTILES).tolist()) if len(found) else ()


def _braces(tars: list[str]) -> str:
    """a-000000.tar … a-000005.tar as a-{000000..000005}.tar."""
    if len(tars) < 2:
        return tars[0] if tars else ""
    stem, _, first = tars[0].removesuffix(".tar").rpartition("-")
    return f"{stem}-{{{first}..{tars[-1].removesuffix('.tar').rpartition('-')[2]}}}.tar"
