"""Files about what it took to get samples.

    fetches/<namespace>/<portion>.parquet    a line per sample that was fetched, and the portion's summary
    fetches/<namespace>/all-<portions>.json  summary of all portions of a run

They are not in the pool's folder, whose files never depend on when or how often a sample was fetched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.fetches import Fetches
from curate.core.store.storage import Storage
from curate.engine.units.common import dump, fetched

_SUMMARY = b"summary"
SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("code", pa.string()),
        pa.field("host", pa.string()),
        pa.field("tries", pa.int32()),
        pa.field("seconds", pa.float32()),
        pa.field("bytes", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)


def fetches_path(record: str) -> str:
    """Path of a portion's table or of a run's summary, by the path of its record or its file of many records."""
    _, namespace, _, name = record.split("/", 3)
    if record.endswith(".json"):
        return f"fetches/{namespace}/{name.removesuffix('.json')}.parquet"
    return f"fetches/{namespace}/{name.removesuffix('.parquet').replace('/', '-')}.json"


def publish_fetches(storage: Storage, record: str, lines: list[dict[str, Any]], summary: Mapping[str, Any]) -> None:
    """Publish the table of a portion's fetches."""
    table = pa.Table.from_pylist(lines, schema=SCHEMA)
    storage.publish_table(fetches_path(record), table.replace_schema_metadata({_SUMMARY: dump(summary)}))


def summed(storage: Storage, records: Iterable[str], all_: str) -> Fetches:
    """Summary of the fetches of some portions, by the paths of their records; and of a run, by that of its file of many
    records ("": none). Files that do not exist count as empty: nothing depends on them."""
    found = Fetches()
    if all_ and storage.exists(fetches_path(all_)):
        found.add(storage.read_json(fetches_path(all_)))
    for summary in fetched(lambda record: _read_summary(storage, fetches_path(record)), records):
        found.add(summary)
    return found


def _read_summary(storage: Storage, path: str) -> dict[str, Any]:
    try:
        with storage.open(path) as file:
            return dict(json.loads(pq.read_metadata(file).metadata[_SUMMARY]))
    except FileNotFoundError:
        return {}
