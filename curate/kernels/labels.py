"""A small file of labels: a .csv or .parquet file with the columns key and label."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from curate.core.errors import InputError

_TEXTS = pa_csv.ConvertOptions(column_types={"key": pa.string(), "label": pa.string()})  # not 1 for 01


def read_labels(path: Path) -> dict[str, str]:
    """Key -> label; rows without either are left out. Raises InputError."""
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa_csv.read_csv(path, convert_options=_TEXTS)
        columns = [table.column(name).cast(pa.string()).to_pylist() for name in ("key", "label")]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InputError(f"labels {path}: {error}; give a .csv or .parquet file with columns key and label") from None
    return {key: label for key, label in zip(*columns, strict=True) if key and label}
