"""The rows and the card of a release, from the records of the run that made it: rows, card, recipe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.api.tables import plain_vectors
from curate.core.errors import InputError
from curate.core.items import per_item
from curate.core.nouns.manifest import Manifest, read_index
from curate.core.nouns.selections import read_selection, selection_places
from curate.core.nouns.takedowns import origins
from curate.core.nouns.tombstones import COLUMNS, FIELDS, Tombstones
from curate.core.store.storage import Storage
from curate.engine.record.live import LiveRows
from curate.engine.record.runs import RunRecord, list_runs
from curate.engine.record.usage import DatasetInfo
from curate.engine.units.common import fetched
from curate.kernels.evenness import entropy_bits, gini
from curate.kernels.meta import META, column_of
from curate.release import layout
from curate.release.keys import Keys, words_of
from curate.release.public import public_texts
from curate.release.read import Release
from curate.release.write import About

READERS = 4
OPTED_OUT = ("opt_out", "robots_txt")
"""Beginning of the reasons of rows whose host opted out."""
OF_SOURCE = {"license": ("license", "licence", "rights", "license_url"), "source": ("source",),
             "opt_out": ("opt_out", "opted_out")}  # fmt: skip
"""Columns that a source may give -> the fields of `meta` under which it does, in order of preference."""
_DIGEST, _NAME = "^[0-9a-f]{64}$", re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_NO_TEXT = pa.scalar(None, pa.string())


class Rows:
    """The rows of a dataset: its index says which, the run that made it where their columns are."""

    def __init__(
        self, storage: Storage, dataset: DatasetInfo, columns: Sequence[str], tombstones: Tombstones,
        before: Release | None, title: str, license: str,
    ) -> None:  # fmt: skip
        self.storage, self.dataset = storage, dataset
        self.run, self.stage = _made(storage, dataset)
        self.above = self.run.record["stages"][self.stage]["from"][0]
        self.live = LiveRows(self.run, self.above)
        self.parameters = self.run.record["stages"][self.stage]["parameters"]
        pool = self.run.record["stages"][self.live.pool]
        self.op, self.settings, self.derived = pool["op"], pool["parameters"], bool(pool["from"])
        self.videos = "media" in self.live.places
        self.as_they_came = (
            self.op == "acquire.download"
            and self.settings.get("resize_mode", "no") == "no"
            and self.settings.get("disable_all_reencoding") is not False
        )
        self.captions = self._captions()
        self.chosen = self._chosen(columns)
        self.tombstones, self.removed = tombstones, layout.REMOVED_SCHEMA.empty_table()
        if before is not None:
            self._look_back(before)
        self.about = self._about(title, license)

    def _look_back(self, before: Release) -> None:
        """The predecessor's rows that must not be used any more: those that it lists, those tombstoned since, and
        others with the URL or the bytes of one of these, which a fetch leaves out too."""
        names, listed = layout.REMOVED_SCHEMA.names, before.removed()
        columns = [*FIELDS, *(["parent"] if "parent" in before.about.get("columns", ()) else [])]
        self.tombstones = _with(self.tombstones, listed)
        while True:
            hits = [table.filter(pa.array(self.tombstones.mask(table))) for table in before.rows(columns)]
            why = [hit.append_column("why", pa.array([layout.TAKEN_DOWN] * len(hit), pa.string())) for hit in hits]
            whole = pa.concat_tables([listed, *(hit.select(names) for hit in why)])
            known, self.tombstones = self.tombstones, _with(self.tombstones, whole)
            if known == self.tombstones:
                break
        lines = list(zip(*(whole.column(name).to_pylist() for name in names), strict=True))
        once = sorted({line[:3]: line for line in reversed(lines)}.values(), key=lambda line: tuple(map(str, line)))
        self.removed = pa.Table.from_pylist(
            [dict(zip(names, line, strict=True)) for line in once], layout.REMOVED_SCHEMA
        )

    # --- which columns ---

    def _chosen(self, columns: Sequence[str]) -> dict[str, str]:
        """Name in the release -> column: clusters, then those that the caller names."""
        ops = self.run.ops()
        clusters = [
            name for name, (stage, column) in self.live.places.items()
            if ops.get(stage) == "cluster.assign" and name == column and name.startswith("cluster_")
        ]  # fmt: skip
        found = {name: name for name in clusters}
        for text in columns:
            given, equals, source = text.partition("=")
            name, source = (given, source) if equals else (text.rpartition(".")[2], text)
            taken = name in layout.COLUMNS or name in self.captions or found.get(name, source) != source
            if not _NAME.fullmatch(name) or not source or taken:
                raise InputError(f"columns: {text!r}: {name!r} is taken, or no name; write NAME=COLUMN")
            if not source.startswith(META):
                self.live.one_field(source)
                stage, column = self.live.places[source]
                if stage == self.live.pool and column in layout.NEVER:
                    raise InputError(f"columns: {text!r}: {column} is never published; a field of meta is meta.FIELD")
            found[name] = source
        return found

    def _captions(self) -> dict[str, tuple[str, str]]:
        """Name in the release -> (column, kind) of each text; kind is "" unless the column has several."""
        text, kind = (self.parameters.get("text") or "").partition(".")[::2]
        if not text and "text" in self.live.places:
            text = "text"
        found = {"caption": ("caption", "")} | ({"text": (text, kind)} if text not in ("", "caption") else {})
        texts = self.parameters.get("texts")
        if texts is not None:
            kinds = self.live.field(texts).type
            found |= {f"caption_{one.name}": (texts, one.name) for one in kinds}
        return found

    @cached_property
    def _reads(self) -> list[str]:
        pool = ["key", "url", "sha256", "width", "height", "meta", "parent", "root", "span"]
        pool += [name for name in ("source", "media", "duration_ms") if name in self.live.places]
        texts = [column for column, _ in self.captions.values()]
        chosen = [column for column in self.chosen.values() if not column.startswith(META)]
        return list(dict.fromkeys([*pool, *texts, *chosen]))

    # --- rows ---

    @cached_property
    def _lines(self) -> tuple[Keys, pa.Array, pa.Array, bool]:
        """(keys of the index, item and copies of each line, whether there are several items)."""
        index = read_index(self.storage, self.dataset.base, ["key", "item"])
        if pc.all(pc.equal(index.column("item"), "0")).as_py():
            keys = Keys(words_of(index.column("key")))
            copies, keys.order, keys.edges = np.diff(keys.edges), np.arange(len(keys)), np.arange(len(keys) + 1)
            return keys, pa.array(["0"]).take(pa.array(np.zeros(len(keys), np.int64))), pa.array(copies), False
        counts = index.group_by(["key", "item"], use_threads=False).aggregate([([], "count_all")]).combine_chunks()
        keys = Keys(words_of(counts.column("key")))
        item, copies = counts.column("item").combine_chunks(), counts.column("count_all").combine_chunks()
        return keys, item, copies, True

    def tables(self) -> Iterator[pa.Table]:
        """The rows of the dataset, in the order of the pool. Raises InputError if some are no longer in the pool."""
        keys = self._lines[0]
        chosen = next((b for n in self.live.path if (b := self.live.bases[n]).startswith("selections/")), None)
        places = None if chosen is None else selection_places(self.storage.url, chosen)
        shards = [s for s in self.live.shards if places is None or (s.id in places and places[s.id].copies)]
        seen = np.zeros(len(keys), dtype=bool)
        for table in fetched(lambda shard: self.live.whole(shard, self._reads), shards, READERS):
            at = keys.find(words_of(table.column("key")))
            at[seen[at] & (at >= 0)] = -1  # a repeated key of a pool is a reject in later shards
            rows = np.flatnonzero(at >= 0)
            seen[at[rows]] = True
            if len(rows):
                yield self._released(table, rows, at[rows])
        if not seen.all():
            raise InputError(
                f"{self.dataset.base}: {int((~seen).sum()):,} of its samples are not in the pool of run "
                f"{self.run.run_id}; run the recipe again"
            )

    def _released(self, table: pa.Table, rows: NDArray[np.int64], at: NDArray[np.int64]) -> pa.Table:
        """Rows of the release. rows: the rows of a shard that the dataset has; at: their places among its keys."""
        down = self.tombstones.mask(table.select(COLUMNS).take(pa.array(rows)))
        keys, items, copies, itemised = self._lines
        edges = keys.edges
        count = np.where(down, 0, edges[at + 1] - edges[at])
        self.about.tombstoned += int(down.sum())
        ends = np.cumsum(count)
        offset = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)
        lines = pa.array(keys.order[np.repeat(edges[at], count) + offset])
        own = table.take(pa.array(np.repeat(rows, count)))
        item = items.take(lines)
        source, stored = self._digests(own)
        found: dict[str, Any] = {"key": own.column("key")} | ({"item": item} if itemised else {})
        found |= {"copies": copies.take(lines).cast(pa.int32()), "url": own.column("url")}
        found |= {"sha256": source, "stored_sha256": stored}
        found |= {name: own.column(name) for name in ("media", "duration_ms") if name in own.column_names}
        found |= {name: own.column(name) for name in ("width", "height")}
        found |= {name: own.column(name) for name in ("parent", "span") if self.derived}
        found |= {name: self._text(own, *where, item) for name, where in self.captions.items()}
        found |= {name: self._of_source(own, name) for name in OF_SOURCE}
        for name, column in self.chosen.items():
            found[name] = self._chosen_values(own, column)
        return pa.table(found)

    def _digests(self, own: pa.Table) -> tuple[Any, Any]:
        """(of the bytes at the URL, of those that were stored instead)."""
        held = own.column("sha256")
        held = pc.if_else(pc.match_substring_regex(held, _DIGEST), held, _NO_TEXT)
        none = pa.nulls(len(own), pa.string())
        if self.as_they_came and not self.derived:
            return held, none
        given = none if self.derived else column_of(own.column("meta"), "sha256")
        return pc.if_else(pc.match_substring_regex(given, _DIGEST), given, _NO_TEXT), held

    def _text(self, own: pa.Table, column: str, kind: str, item: pa.Array) -> Any:
        values = own.column(column)
        if kind:
            return pc.struct_field(values.combine_chunks(), kind)
        if not per_item(self.live.field(column)):
            return values
        lists = values.combine_chunks()
        place = pc.cast(item, pa.int64()).to_numpy()
        starts = lists.offsets.to_numpy()[: len(lists)]
        length = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
        return lists.values.take(pa.array(starts + place, mask=place >= length))

    @staticmethod
    def _chosen_values(own: pa.Table, column: str) -> Any:
        return column_of(own.column("meta"), column) if column.startswith(META) else plain_vectors(own.column(column))

    @staticmethod
    def _of_source(own: pa.Table, name: str) -> Any:
        known: list[Any] = []
        for spelling in OF_SOURCE[name]:
            known.append(column_of(own.column("meta"), spelling))
            if not known[-1].null_count:
                return pc.coalesce(*known)
        known += [own.column(name).combine_chunks()] if name in own.column_names else []
        return pc.coalesce(*known)

    # --- about it ---

    def _about(self, title: str, license: str) -> About:
        ledger, ops, stages = self.run.ledger(), self.run.ops(), self.run.record["stages"]
        path = self.run.upstream(self.stage)
        order = [name for name in stages if name in path and name in ledger]
        funnel = [
            {"stage": name, "op": ops[name], "before": one.before, "lost": dict(sorted(one.lost.items())),
             "after": one.after if one.copies is None else one.copies}
            for name in order if (one := ledger[name])
        ]  # fmt: skip
        lost: Counter[str] = sum((ledger[name].lost for name in order), Counter())
        chosen = {name: f"Column {column} in the dataset's run." for name, column in self.chosen.items()}
        texts = {name: f"{column}{f'.{kind}' if kind else ''}, by {ops[self.live.places[column][0]]}."
                 for name, (column, kind) in self.captions.items() if name not in layout.COLUMNS}  # fmt: skip
        digests = (
            "the bytes are stored as they came"
            if self.as_they_came
            else "`stored_sha256` is the pool's; `sha256` is given where the source gave it"
        )
        return About(
            name=self.dataset.name, title=title, dataset=self.dataset.fingerprint,
            committed=datetime.fromtimestamp(self.dataset.committed, UTC).date().isoformat(), license=license,
            namespace=str(self.settings.get("namespace") or self.dataset.name),
            media=self._media(), recipe=_recipe(stages), columns=chosen | texts,
            captions=list(self.captions),
            provenance={"Pool": f"`{self.op}`", "Digests": digests}, funnel=funnel,
            opt_outs={name: count for name, count in sorted(lost.items()) if name.startswith(OPTED_OUT)},
            balance=self._balance(),
        )  # fmt: skip

    def _media(self) -> list[str]:
        given = self.settings.get("media") or self.run.record["stages"][self.live.pool].get("media") or ["image"]
        return [given] if isinstance(given, str) else list(given)

    def _balance(self) -> dict[str, Any]:
        """How even the groups are from which the sample was drawn, before and after."""
        chosen = next((b for n in self.live.path if (b := self.live.bases[n]).startswith("selections/")), None)
        if chosen is None:
            return {}
        quotas = read_selection(self.storage, chosen, "quotas.parquet", ["count", "quota"])
        if len(quotas) < 2:
            return {}
        sizes = {"before": quotas.column("count").to_numpy(), "after": quotas.column("quota").to_numpy()}
        return {
            when: {"groups": int((n > 0).sum()), "entropy_bits": entropy_bits(n), "gini": gini(n)}
            for when, n in sizes.items()
        }


def _with(tombstones: Tombstones, table: pa.Table) -> Tombstones:
    """Tombstones, and those of the rows of a table."""
    each = {name: {*tombstones.values.get(name, ()), *table.column(name).drop_null().to_pylist()} for name in FIELDS}
    return Tombstones({name: tuple(sorted(items)) for name, items in each.items()})


def _made(storage: Storage, dataset: DatasetInfo) -> tuple[RunRecord, str]:
    """(the newest run that has the dataset, or the one that this one is a version of, and its stage there). Raises
    InputError if the records of all such runs are gone."""
    runs = [RunRecord.load(storage, name) for name in reversed(list_runs(storage))]
    above, base = origins(storage), dataset.base
    while base:
        of_these = {base, *above.get(base, ())}
        for run in runs:
            for stage, output in run.outputs.items():
                if output["base"] in of_these:
                    return run, stage
        manifest = Manifest.load(storage, base)  # a takedown of which no record is left
        before = manifest.extra.get("predecessor") if manifest else None
        base = f"datasets/{dataset.name}/{before}" if before else ""
    raise InputError(f"{dataset.base}: the record of the run that made it is gone; run the recipe again")


def _recipe(stages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A recipe of the stages of a run, with the parameters that decide the result: places are not among them."""
    found: dict[str, Any] = {}
    for name, stage in stages.items():
        inputs = list(stage["from"])
        place = {"from": inputs[0] if len(inputs) == 1 else inputs} if inputs else {}
        found[name] = {"op": stage["op"], **place, **stage["ports"], **_public(stage["parameters"])}
    return found


def _public(value: Any) -> Any:
    """A parameter without the paths and private URLs in it."""
    if isinstance(value, Mapping):
        return {name: _public(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_public(item) for item in value]
    if isinstance(value, str) and public_texts(pa.array([value]))[1]:
        return "(left out)"
    return value
