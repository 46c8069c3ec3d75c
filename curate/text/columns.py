"""Columns of texts."""

from __future__ import annotations

import pyarrow as pa

from curate.core.errors import CurateError


def plain_texts(op: str, name: str, column: pa.ChunkedArray, parameter: str = "column") -> pa.Array:
    """A column of one text per row, as one array. Raises CurateError, which names the parameter, for other columns."""
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise CurateError(
            f"{op}.{parameter}: {name!r} holds {column.type}, expected one text per row; give a column such as `text`"
        )
    texts = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    return texts if isinstance(texts, pa.Array) else pa.concat_arrays(texts.chunks)
