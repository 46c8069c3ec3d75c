"""The stage contracts: all that the author of a stage has to know. Each has a file and a main method.

Source   plan() -> portions, read(portion) -> samples             a pool
Collect  plan() -> parts, read(part) -> tables                    an artifact whose portions a Source reads
Map      process(batch) -> as many rows of new columns            facts
AsyncMap request(row) -> request, answer(request, client)         facts that an endpoint answers
Filter   keep(table) -> a reason or null per row or item          a mask
Derive   children(sample) -> samples derived from it              a derived pool
Reduce   partial(table) -> state, merge(states), finish(state)    an artifact
Fit      load(table) -> arrays, fit(group)                        an artifact
Select   plan(counts) -> quotas, pick(lines) -> copies            a selection
Pack     write(row, bytes, tar)                                   a dataset
Report   render(view) -> files                                    an artifact that people look at
"""

from curate.core.contracts.async_map import AsyncMap, Client, NoAnswer
from curate.core.contracts.collect import Collect
from curate.core.contracts.derive import Child, Derive, media_of
from curate.core.contracts.filter import Filter
from curate.core.contracts.fit import Fit
from curate.core.contracts.map import Batch, Map, Sample
from curate.core.contracts.pack import MEDIUM, OF_VIDEOS, Pack, Packed
from curate.core.contracts.reduce import Reduce
from curate.core.contracts.report import Report
from curate.core.contracts.select import Select
from curate.core.contracts.source import BAD_ROW, ROW_REASONS, Fetch, Incoming, Portion, Source, detail_of, one_row
from curate.core.contracts.stage import (
    PLAIN_NAME,
    Added,
    Artifact,
    Location,
    Resources,
    Runtime,
    Stage,
    Table,
    by_contract,
    is_as_before,
    is_runtime,
    is_semantic,
    kind_of,
    trait,
)
from curate.core.secrets import Secret

__all__ = [
    "BAD_ROW", "MEDIUM", "OF_VIDEOS", "PLAIN_NAME", "ROW_REASONS", "Added", "Artifact", "AsyncMap", "Batch", "Child",
    "Client", "Collect", "Derive", "Fetch", "Filter", "Fit", "Incoming", "Location", "Map", "NoAnswer",
    "Pack", "Packed", "Portion", "Reduce", "Report", "Resources", "Runtime", "Sample", "Secret", "Select", "Source",
    "Stage", "Table", "by_contract", "detail_of", "is_as_before", "is_runtime", "is_semantic", "kind_of", "media_of",
    "one_row", "trait",
]  # fmt: skip
