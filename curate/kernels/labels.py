"""A small file of labels: a .csv or .parquet file with the columns key and label."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from curate.core.errors import InputError

_TEXTS = pa_csv.ConvertOptions(column_types={"key": pa.string(), "label": pa.string()})  # not 1 for 01
_WANTED = "give a .csv or .parquet file with the columns key and label"


def read_labels(path: Path) -> dict[str, str]:
    """Key -> label; rows without either are left out. Raises InputError, also for a key with two labels."""
    if not path.is_file():
        raise InputError(f"labels {path}: {'not a file' if path.exists() else 'does not exist'}; {_WANTED}")
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa_csv.read_csv(path, convert_options=_TEXTS)
        if missing := {"key", "label"}.difference(table.column_names):
            named = ", ".join(map(repr, table.column_names[:5]))
            raise InputError(f"labels {path}: no column {' and '.join(sorted(missing))}, only {named[:200]}; {_WANTED}")
        texts = pa.table({name: table.column(name).cast(pa.string()) for name in ("key", "label")})
    except (OSError, pa.ArrowException):  # their texts may quote the file
        kind = "parquet" if path.suffix == ".parquet" else "csv"
        raise InputError(f"labels {path}: cannot be read as {kind}; {_WANTED}") from None
    given = texts.filter(pc.and_(*(pc.greater(pc.fill_null(pc.utf8_length(column), 0), 0) for column in texts.columns)))
    found: dict[str, str] = {}
    for key, label in zip(given["key"].to_pylist(), given["label"].to_pylist(), strict=True):
        if found.setdefault(key, label) != label:
            raise InputError(f"labels {path}: key {key!r} has the labels {found[key]!r} and {label!r}; keep one")
    return found
