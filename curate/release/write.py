"""Writes a release: rows in files of near-equal size, the lists of what changed, the card, and the checksums last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from curate.core.addresses import Networks
from curate.core.errors import InputError
from curate.core.hashing import digest
from curate.core.store.storage import Storage
from curate.release import layout
from curate.release.card import card
from curate.release.croissant import croissant
from curate.release.keys import Keys, words_of
from curate.release.public import public_nested, public_texts, public_urls
from curate.release.read import Release
from curate.release.statistics import Statistics

FILE_ROWS, GROUP_ROWS = 1 << 20, 1 << 16


@dataclass
class About:
    """What a release says about its dataset. All of it is published."""

    name: str
    title: str
    dataset: str
    """Fingerprint of the dataset."""
    committed: str
    """Day on which the dataset was made, YYYY-MM-DD."""
    license: str
    """Licence for the release as a whole, as the Hub names it."""
    namespace: str
    """Namespace of the pool, which enters the keys."""
    media: list[str]
    recipe: dict[str, Any]
    """Stages with the parameters that decide the result, without places."""
    columns: dict[str, str]
    """Columns that this release alone has -> what they mean."""
    captions: list[str]
    provenance: dict[str, str]
    funnel: list[dict[str, Any]]
    """A line per stage: stage, op, before, after, lost (reason -> rows)."""
    opt_outs: dict[str, int]
    """Rows of the pool by reason for which they were not downloaded, because their host opted out."""
    balance: dict[str, Any] = field(default_factory=dict)
    """Sizes of clusters before and after the selection, where there are any."""
    tombstoned: int = 0
    """Samples of the dataset that were left out."""

    @property
    def recipe_digest(self) -> str:
        return digest(self.recipe)


def write(
    tables: Iterable[pa.Table],
    about: About,
    to: Storage,
    before: Release | None,
    tombstoned: pa.Table,
    allowed: Networks,
) -> dict[str, Any]:
    """Write a release of these rows and return what its release.json says. tombstoned: the predecessor's rows that must
    not be used any more (`REMOVED_SCHEMA`). What a killed call has left of the same release is written again. Raises
    InputError if the folder has something else."""
    begun = _begin(to, about, before, allowed)
    counts, sums = Statistics(about.captions), dict[str, str]()
    words: list[Any] = []
    schema: pa.Schema | None = None
    for number, part in enumerate(_files(_public(tables, counts, allowed))):
        if not number:  # rows that cannot be published have raised by now
            to.publish_bytes(layout.BEGUN, begun)
        with to.publish(layout.data_file(number)) as path:
            writer: pq.ParquetWriter | None = None
            for table in part:
                schema = schema or table.schema
                repeated = [name for name in schema.names if name not in layout.UNIQUE]
                writer = writer or pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=repeated)
                writer.write_table(table)
                words += [] if before is None else [words_of(table.column("key"))]
            assert writer is not None
            writer.close()
            sums[layout.data_file(number)] = sha256_of(path)
    if schema is None:
        raise InputError(f"{about.name}: no row of the dataset may be published; see its tombstones")
    known = {"format": layout.FORMAT} | asdict(about) | {"recipe_digest": about.recipe_digest, "files": sorted(sums)}
    known["version"] = 1 if before is None else _version(before) + 1
    known |= {"columns": layout.described(schema, about.columns), **counts.to_json(), "taken_down": len(tombstoned)}
    texts: dict[str, bytes] = {}
    if before is not None:
        changes = _changes(before, Keys(np.concatenate(words)), tombstoned)
        made = pc.value_counts(changes.column("change")).to_pylist()
        of = {line["values"]: line["counts"] for line in made}
        about_it = {name: before.about.get(name) for name in ("name", "dataset")}
        known["predecessor"] = about_it | {"digest": before.digest}
        known |= {name: of.get(name, 0) for name in ("added", "removed")}
        with to.publish(layout.CHANGES) as path:
            pq.write_table(changes, path, compression="zstd")
            sums[layout.CHANGES] = sha256_of(path)
    if len(tombstoned):
        to.publish_table(layout.REMOVED, tombstoned)
    recipe = known.pop("recipe")
    texts[layout.RECIPE] = yaml.safe_dump({"stages": recipe}, sort_keys=False, allow_unicode=True).encode()
    texts[layout.CROISSANT] = json.dumps(croissant(known, schema, sums), indent=1, ensure_ascii=False).encode()
    texts[layout.CARD] = card(known).encode()
    texts[layout.ABOUT] = json.dumps(known, indent=1, ensure_ascii=False, sort_keys=True).encode()
    for name, data in texts.items():
        to.publish_bytes(name, data)
        sums[name] = hashlib.sha256(data).hexdigest()
    to.publish_bytes(layout.SUMS, "".join(f"{value}  {name}\n" for name, value in sorted(sums.items())).encode())
    to.remove_file(layout.BEGUN)
    return known


def _begin(to: Storage, about: About, before: Release | None, allowed: Networks) -> bytes:
    """Clear what a killed process left of this release; returns the content of BEGUN."""
    options = [about.title, about.license, [*about.columns.items()], before and before.digest, [*map(str, allowed)]]
    begun = {"order": digest([about.name, about.dataset, *options])}
    there = to.read_json(layout.BEGUN) if to.exists(layout.BEGUN) else None
    if there != begun:
        if found := next(to.some_files(1), None):
            what = f"{found} of a release that only the same command resumes" if there else found
            raise InputError(f"{to.url}: is not empty (it has {what}); give a new folder")
    else:
        for path in (layout.SUMS, layout.REMOVED, layout.DATA, *to.temporary("")):
            to.remove(path)
    return json.dumps(begun).encode()


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _public(tables: Iterable[pa.Table], counts: Statistics, allowed: Networks) -> Iterator[pa.Table]:
    """Tables of GROUP_ROWS rows, without what must not be published."""
    for table in _groups(tables, GROUP_ROWS):
        for name, field_ in zip(table.column_names, table.schema, strict=True):
            if name in counts.words or name in layout.OWN or "string" not in str(field_.type):
                continue
            texts = public_texts if pa.types.is_string(field_.type) else public_nested
            clean = public_urls if name == "url" else texts
            column, reasons = clean(table.column(name).combine_chunks(), allowed)
            counts.withhold(name, reasons)
            if reasons:
                table = table.set_column(table.column_names.index(name), field_, column)
        counts.add(table)
        yield table


def _groups(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    held: list[pa.Table] = []
    rows = 0
    for table in tables:
        held.append(table)
        rows += len(table)
        while rows >= most:
            whole = pa.concat_tables(held)
            yield whole.slice(0, most).combine_chunks()
            held, rows = [whole.slice(most)], rows - most
    if rows:
        yield pa.concat_tables(held).combine_chunks()


def _files(tables: Iterator[pa.Table]) -> Iterator[Iterator[pa.Table]]:
    """Tables by file: each must be read to its end before the next."""
    for first in tables:

        def part(first: pa.Table = first) -> Iterator[pa.Table]:
            yield first
            rows = len(first)
            while rows < FILE_ROWS and (table := next(tables, None)) is not None:
                yield table
                rows += len(table)

        yield part()


def _changes(before: Release, now: Keys, tombstoned: pa.Table) -> pa.Table:
    """The keys that were added since the predecessor, and those removed, with the reason where there is one."""
    then = before.keys()
    added, removed = now.without(then), then.without(now)
    down = set(tombstoned.column("key").to_pylist())
    why = [None] * len(added) + [layout.TAKEN_DOWN if key in down else None for key in removed]
    change = ["added"] * len(added) + ["removed"] * len(removed)
    return pa.table([[*added, *removed], change, why], schema=layout.CHANGES_SCHEMA)


def _version(release: Release) -> int:
    found = release.about.get("version")
    return found if isinstance(found, int) else 1
