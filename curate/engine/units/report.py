"""A Report: files about everything upstream, rendered in the driver from committed nouns, a shard at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.codec.members import member_columns, read_members
from curate.core.contracts import Artifact, Pack, Report, trait
from curate.core.errors import Reject
from curate.core.hashing import digest
from curate.core.ledger import SET_ASIDE, Entry
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.masks import ABSENT, ALIVE, Fate
from curate.core.nouns.pools import Shard, read_pool
from curate.core.nouns.selections import read_selected, read_selection, selection_places
from curate.core.reader import Reader
from curate.core.recipe.pipeline import Node
from curate.core.rows import MaskRef, Rows
from curate.core.spend import RunSpend
from curate.core.store.storage import Storage
from curate.engine.context import Context
from curate.engine.fingerprints import buried, rows_fingerprint
from curate.engine.state import Built
from curate.engine.units.common import made_of_rows
from curate.engine.units.keys import places_of
from curate.engine.units.step import GlobalStep


class ReportStep(GlobalStep):
    def record(self) -> dict[str, Any]:
        return {"reports": True}

    def fingerprint(self, ctx: Context) -> str:
        upstream = ctx.pipeline.reaches(self.node.name)
        makers: dict[str, list[str]] = {}
        for up in upstream:
            for column in ctx.pipeline.columns_of(up.name):
                makers.setdefault(column, []).append(ctx.outputs.built[up.name].fingerprint)
        columns = {column: digest([found, column]) for column, found in sorted(makers.items())}
        more = {"alive": self._shown(ctx, upstream), "from": made_of_rows(ctx, upstream)} | buried(ctx.outputs)
        return rows_fingerprint(ctx.outputs, self.node, columns, **more)

    def _shown(self, ctx: Context, upstream: Sequence[Node]) -> list[Any]:
        """What it shows in addition to artifacts: the ledger, and the live rows at each point upstream."""
        names = sorted(up.name for up in upstream)
        manifests = {name: ctx.outputs.built[name].manifest for name in names}
        ledgers = [[name, {**m.entry.to_json(), "counters": {}}] for name, m in manifests.items() if m is not None]
        points = {point: reasons for mask in ctx.outputs.masks for point, reasons in mask.reasons.items()}
        return [ledgers, sorted(item for item in points.items() if set(names).issuperset(item[0].split("+")))]

    def build(self, ctx: Context, built: Built) -> None:
        node, stage = self.node, self.node.stage
        assert isinstance(stage, Report)
        rows = ctx.outputs.pool(node).rows
        with ctx.progress.step(node.name, rows) as step:
            view = StoredView.of(ctx, node)
            size, _ = save_artifact(ctx.storage, built.base, stage.render(view))
            step.advance(rows)
        entry = Entry(view.alive, after=view.alive)
        ctx.outputs.finish(node, built, "artifact", entry, rows=view.alive, bytes=size, built_rows=rows)


FATE = ("rejected_by", "reject_reason", "copies", "item_copies", "item_expected")


@dataclass
class StoredView:
    storage: Storage
    stages: dict[str, Manifest]
    shards: list[Shard]
    rows: Rows
    points: tuple[MaskRef, ...]
    """Points of all upstream masks."""
    selection: tuple[str, str] | None
    """Stage name and base of the selection."""
    artifacts: dict[str, str]
    pack: tuple[str, Manifest] | None
    source: str
    pool_columns: tuple[str, ...]
    alive: int
    pinned: dict[str, Manifest]
    spend: RunSpend

    @classmethod
    def of(cls, ctx: Context, node: Node) -> Self:
        upstream = ctx.pipeline.reaches(node.name)
        refs = tuple(ctx.outputs.column_ref(up) for up in upstream if ctx.outputs.built[up.name].path)
        select = ctx.pipeline.selection(node.name)
        pack = next((up for up in upstream if isinstance(up.stage, Pack)), None)
        manifests = {up.name: ctx.outputs.built[up.name].manifest for up in upstream}
        stages = {name: manifest for name, manifest in manifests.items() if manifest is not None}
        pins = {name: ctx.outputs.built[name] for up in [*upstream, node] for name in up.pinned.values()}
        made = {up.name: ctx.outputs.built[up.name] for up in upstream if trait(up.stage, "kind")}
        entries = [stages[name].entry for name in node.inputs]
        last = [entry.after if entry.children is None else entry.children for entry in entries]
        packed = (ctx.outputs.built[pack.name].base, stages[pack.name]) if pack else None
        return cls(
            storage=ctx.storage,
            stages=stages,
            shards=ctx.outputs.pool(node).shards,
            rows=Rows(ctx.storage, refs, order=ctx.outputs.order, parents=ctx.outputs.pool(node).parents),
            points=tuple(
                MaskRef(mask.chain, point, mask.base)
                for mask in ctx.outputs.masks
                for point in mask.points
                if {up.name for up in upstream}.issuperset(point.split("+"))
            ),
            selection=(select, ctx.outputs.built[select].base) if select else None,
            artifacts={name: built.base for name, built in (made | pins).items()},
            pack=packed,
            source=ctx.pipeline.pool_of(node.name),
            pool_columns=ctx.pipeline.pool_columns(ctx.pipeline.pool_of(node.name)),
            alive=min(last),
            pinned={name: pin.manifest for name, pin in pins.items() if pin.manifest is not None},
            spend=ctx.spending.spent() if ctx.spending is not None else RunSpend(),
        )

    @property
    def selected_by(self) -> str | None:
        return None if self.selection is None else self.selection[0]

    def columns(self) -> tuple[str, ...]:
        made = [name for ref in self.rows.columns for name in ref.names]
        return (*self.pool_columns, *made, *FATE)

    def size(self) -> tuple[int, int]:
        return len(self.shards), self._rows - self._replaced

    @property
    def _rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def _replaced(self) -> int:
        """Rows in error that later generations replace; a source's ledger counts each once."""
        manifest = self.stages.get(self.source)
        if manifest is None or not manifest.ledger or self.rows.parents is not None:
            return 0
        entry = manifest.entry
        return max(0, self._rows - entry.before + entry.lost[SET_ASIDE])

    def tables(self, names: Sequence[str], shards: int = 0) -> Iterator[pa.Table]:
        return self._tables(names, self._chosen(shards))

    def rows_of(self, keys: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
        wanted = pa.array(list(keys), pa.string())
        for table in self._tables(names, self._shards_of(keys)):
            found = table.filter(pc.is_in(table.column("key"), value_set=wanted))
            if found.num_rows:
                yield found

    def _tables(self, names: Sequence[str], shards: Sequence[Shard]) -> Iterator[pa.Table]:
        known = self.columns()
        wanted = [name for name in names if name in known and name not in FATE]
        generations = Generations(self.storage, self.shards) if self._replaced else None
        for shard in shards:
            table = self.rows.table(shard, tuple(wanted))
            fate = self._fate_of(shard)
            if set(FATE) & set(names):
                for name, column in self._fate(shard, fate).items():
                    if name in names:
                        table = table.append_column(name, column)
            if self.rows.parents is not None:
                table = table.filter(pa.array(fate.reason != ABSENT))
            yield table if generations is None else table.filter(pa.array(generations.latest(shard)))

    def _chosen(self, most: int) -> list[Shard]:
        """Up to `most` shards, chosen by hash, in the pool's order."""
        if not most or len(self.shards) <= most:
            return self.shards
        order = sorted(range(len(self.shards)), key=lambda place: (digest(self.shards[place].id), place))
        return [self.shards[place] for place in sorted(order[:most])]

    def _fate_of(self, shard: Shard) -> Fate:
        """First reject of each row over all upstream paths."""
        found = self.rows.fate(shard)
        for ref in self.points:
            found = found.intersect(replace(self.rows, masks=(ref,)).fate(shard))
        return found

    def _fate(self, shard: Shard, fate: Fate) -> dict[str, pa.Array]:
        """Columns of FATE: the stage that rejected each row, its reason, and the copies selected that are alive."""
        by = np.full(shard.rows, None, dtype=object)
        why = np.full(shard.rows, None, dtype=object)
        copies = np.zeros(shard.rows, dtype=np.int32)

        def note(stage: str, rows: NDArray[np.int64], reasons: NDArray[Any]) -> None:
            for row, reason in zip(rows, reasons, strict=True):
                if reason is not None and by[row] is None:
                    by[row], why[row] = stage, reason

        left = np.flatnonzero(fate.stage != ALIVE)
        names = list(self.rows.order)
        by[left] = [names[place] if place else self.source for place in fate.stage[left]]
        why[left] = fate.reason[left]
        items = [np.zeros((0, 2), np.int64)]
        values: dict[str, list[np.ndarray]] = {"copies": [np.zeros(0)], "expected": [np.zeros(0)]}
        if self.selection is not None:
            base = self.selection[1]
            table = read_selected(self.storage, base, selection_places(self.storage.url, base).get(shard.id))
            rows = table.column("row").to_numpy()
            given = table.column("copies").to_numpy()
            reasons = np.array([*table.column("reject").to_pylist(), None], dtype=object)[:-1]
            reasons[np.isin(rows, rows[given > 0])] = None
            note(self.selection[0], rows, reasons)
            items.append(np.stack([rows, pc.cast(table.column("item"), pa.int64()).to_numpy()], axis=1))
            values["expected"].append(
                table.column("expected").to_numpy() if "expected" in table.column_names else given
            )
            # A stage downstream of the selection may have rejected a row or an item.
            given = np.where(fate.alive_items(rows, table.column("item").to_pylist()), given, 0)
            values["copies"].append(given)
            np.add.at(copies, rows, given)
        of_items = {f"item_{name}": _listed(shard.rows, np.concatenate(items), found) for name, found in values.items()}
        return {
            "rejected_by": pa.array(by, pa.string()),
            "reject_reason": pa.array(why, pa.string()),
            "copies": pa.array(copies),
        } | of_items

    def artifact(self, stage: str) -> Artifact:
        return StoredArtifact(self.storage, self.artifacts[stage])

    def quotas(self) -> pa.Table | None:
        return None if self.selection is None else read_selection(self.storage, self.selection[1], "quotas.parquet")

    def images(self, keys: Sequence[str]) -> Iterator[tuple[str, Reader | Reject]]:
        found = set[str]()
        wanted = pa.array(list(keys), pa.string())
        for shard in self._shards_of(keys):
            table = self.rows.table(shard, member_columns([shard]))
            hit = pc.and_(pc.is_in(table.column("key"), value_set=wanted), pc.is_valid(table.column("offset")))
            table = table.filter(hit)
            data = read_members(self.storage, shard, table.to_pydict())
            for key, image in zip(table.column("key").to_pylist(), data, strict=True):
                if key not in found:
                    found.add(key)
                    yield key, image

    def _shards_of(self, keys: Sequence[str]) -> list[Shard]:
        """Shards that contain the keys; all shards if the pool has no index."""
        known = places_of(self.storage, self.stages[self.source], keys)
        if known is None:
            return self.shards
        return [self.shards[place] for place in sorted({shard for hits in known.values() for shard, _ in hits})]

    def dataset(self) -> dict[str, Any] | None:
        if self.pack is None:
            return None
        base, manifest = self.pack
        return {
            "path": self.storage.url_of(base),
            "fingerprint": manifest.fingerprint,
            "samples": manifest.rows,
            "tars": manifest.extra["tars"],
            "bytes": manifest.bytes,
        }


class Generations:
    """Rows of a pool's shards that a later generation replaces. A generation follows the shard whose rows it
    replaces."""

    def __init__(self, storage: Storage, shards: Sequence[Shard]) -> None:
        self.storage, self.shards = storage, shards
        self._places = {shard.id: place for place, shard in enumerate(shards)}

    def latest(self, shard: Shard) -> NDArray[np.bool_]:
        """Mask (n,) of the rows that no later generation replaces."""
        table = read_pool(self.storage, shard.table, ["key", "status"])
        keys, failed = table.column("key"), pc.is_valid(table.column("status"))
        waiting = keys.filter(failed)
        for later in self.shards[self._places[shard.id] + 1 :]:
            found = read_pool(self.storage, later.table, ["key"]).column("key") if len(waiting) else keys[:0]
            if not len(found) or not pc.all(pc.is_in(found, value_set=waiting.combine_chunks())).as_py():
                break
            waiting = waiting.filter(pc.invert(pc.is_in(waiting, value_set=found.combine_chunks())))
        kept = pc.or_(pc.invert(failed), pc.is_in(keys, value_set=waiting.combine_chunks()))
        return np.asarray(kept.to_numpy(zero_copy_only=False), dtype=bool)


def _listed(rows: int, items: np.ndarray, values: list[np.ndarray]) -> pa.Array:
    """(row, item) pairs (m, 2) and a value each -> a list per row, 0 for items outside the selection."""
    lengths = np.zeros(rows, dtype=np.int64)
    np.maximum.at(lengths, items[:, 0], items[:, 1] + 1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.zeros(offsets[-1], dtype=np.float32)
    flat[offsets[items[:, 0]] + items[:, 1]] = np.concatenate(values)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat))
