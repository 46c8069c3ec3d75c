"""Outputs of a run: what its stages have built so far, and the rows and columns that a stage reads of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from curate.core.ledger import Entry
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import Shard
from curate.core.nouns.selections import Lines, selection_places
from curate.core.nouns.tombstones import Tombstones
from curate.core.recipe.pipeline import PIN, Node, Pipeline
from curate.core.rows import CHILDREN, ColumnsRef, KnownShards, MaskRef, Rows
from curate.core.store.storage import Storage
from curate.engine.state import Built, Mask, Pool


@dataclass
class Outputs:
    pipeline: Pipeline
    storage: Storage
    tombstones: Tombstones
    pools: dict[str, Pool] = field(default_factory=dict)
    built: dict[str, Built] = field(default_factory=dict)
    """Stage -> output; pinned artifacts under `pin:NAME`."""
    masks: list[Mask] = field(default_factory=list)
    removed: dict[str, int] = field(default_factory=dict)
    """Folder of a costly stage -> number of times that gc removed its answers."""
    known: KnownShards = field(default_factory=KnownShards)
    """For a plan: masks and facts that are not stored."""
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Guards them while a pass is laid out: each step is a thread."""

    @property
    def order(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.pipeline.nodes)}

    def pool(self, node: Node) -> Pool:
        return self.pools[self.pipeline.pool_of(node.name)]

    def pool_upstream(self, node: Node) -> Pool:
        """The pool whose rows reach a stage; for a Derive, the pool of its parents."""
        return self.pools[self.pipeline.pool_upstream(node.name)]

    def whole_pool_rows(self, node: Node) -> int:
        """Rows of the stage's pool as acquired; failure budgets are shares of this number."""
        manifest = self.built[self.pipeline.pool_of(node.name)].manifest
        return max(manifest.entry.before if manifest else 0, self.pool(node).rows)

    def columns(self, node: Node) -> tuple[ColumnsRef, ...]:
        """Facts of the upstream Maps that are built."""
        built = [up for up in self.pipeline.along(node.name) if up.name in self.built]
        return tuple(self.column_ref(up) for up in built if self.built[up.name].path)

    def column_ref(self, node: Node) -> ColumnsRef:
        built = self.built[node.name]
        return ColumnsRef(node.name, built.path, built.base, tuple(self.pipeline.columns_of(node.name)))

    def rows(self, node: Node, inputs: Sequence[str] | None = None) -> Rows:
        """The rows that reach a stage through its `from` (or through `inputs`), with all upstream columns."""
        made = self._rows(node.inputs if inputs is None else inputs, self.columns(node), self.pool_upstream(node))
        families, child = tuple(sorted(self.pipeline.families(node.name).items())), node.ports.get(CHILDREN)
        source = self.pipeline.pool_upstream(node.name)
        return replace(made, families=families, source=source, children=self.rows_after(child) if child else None)

    def rows_after(self, name: str) -> Rows:
        """The rows that a Map, a Filter or a Derive leaves, with its columns and those upstream."""
        node = self.pipeline.nodes[name]
        own = (self.column_ref(node),) if self.built[name].path else ()
        upstream = () if self.pipeline.makes_pool(name) else self.columns(node)
        pool = self.pool(node)
        if self.known.plan:
            self.known.children[self.pipeline.pool_of(name)] = pool.of_parents
        return replace(self._rows((name,), (*upstream, *own), pool), source=self.pipeline.pool_of(name))

    def _rows(self, inputs: Sequence[str], columns: tuple[ColumnsRef, ...], pool: Pool) -> Rows:
        ways = self.ways(inputs)
        select = self.selection_among(ways)
        before = self.mask_refs(self.ways(self.pipeline.nodes[select].inputs)) if select else ()
        return Rows(
            self.storage,
            columns,
            (*self.mask_refs(ways), *before),
            self.built[select].base if select else None,
            select,
            self._items_of(select),
            order=self.order,
            parents=pool.parents,
            known=self.known,
        )

    def placed(self, rows: Rows, shards: Iterable[Shard]) -> Rows:
        """The same rows with the state of some shards, so that a task reads no manifest."""
        if self.known.plan:
            return rows
        return rows.with_known(self.known_of([rows], shards))

    def known_of(self, several: Iterable[Rows], shards: Iterable[Shard]) -> KnownShards:
        """Tables and masks of some shards that the given rows refer to."""
        numbers, files = dict[str, dict[str, int]](), dict[str, dict[str, str]]()
        lines, children = dict[str, dict[str, Lines]](), dict[str, dict[str, tuple[Shard, ...]]]()
        masks = {mask.chain: mask for mask in self.masks}
        shards = list(shards)
        for rows in several:
            for ref in rows.columns:
                held = self.built[ref.stage].numbers
                found = numbers.setdefault(ref.path, {})
                found.update({shard.id: held[shard.id] for shard in shards if shard.id in held})
            for mask in rows.masks:
                held_files = masks[mask.chain].files
                files.setdefault(mask.chain, {}).update({s.id: held_files[s.id] for s in shards if s.id in held_files})
            if rows.selection is not None:
                places = selection_places(self.storage.url, rows.selection)
                lines.setdefault(rows.selection, {}).update({s.id: places[s.id] for s in shards if s.id in places})
            near = []
            if rows.parents is not None:
                near.append((rows.parents, list({s.parent: s.parent_shard() for s in shards if s.parent}.values())))
            if rows.children is not None:
                below = self.pools[rows.children.source].of_parents
                children[rows.children.source] = {shard.id: below.get(shard.id, ()) for shard in shards}
                near.append((rows.children, [child for shard in shards for child in below.get(shard.id, ())]))
            for of_near, their in near:
                above = self.known_of([of_near], their)
                for path, more in above.numbers.items():
                    numbers.setdefault(path, {}).update(more)
                for chain, named in above.files.items():
                    files.setdefault(chain, {}).update(named)
                for base, of_shard in above.lines.items():
                    lines.setdefault(base, {}).update(of_shard)
        return KnownShards(numbers, files, lines, children=children)

    def ways(self, inputs: Sequence[str]) -> list[str]:
        """Inputs that decide which rows are alive; without any, all rows of the pool are."""
        return [name for name in inputs if not self.pipeline.makes_pool(name)]

    def selection_among(self, ways: Sequence[str]) -> str:
        """The selection among inputs; "" if the mask of their point includes it."""
        if any(point_name(ways) in mask.points for mask in self.masks):
            return ""
        return next((name for name in ways if self.pipeline.selection(name) == name), "")

    def _items_of(self, select: str) -> str:
        """Family of the items that a selection chooses from: the family of the per-item columns it reads."""
        if not select or (self.built[select].manifest or Manifest("", "", 0, "")).entry.items is None:
            return ""
        families = self.pipeline.families(select)
        found = {families[name] for name in self.pipeline.nodes[select].stage.reads() if name in families}
        return found.pop() if len(found) == 1 else ""

    def mask_refs(self, ways: Sequence[str]) -> tuple[MaskRef, ...]:
        """Points that decide which rows are alive where these inputs meet: one in common, or one per pass."""
        whole = point_name(ways)
        for mask in self.masks:
            if ways and whole in mask.points:
                return (MaskRef(mask.chain, whole, mask.base),)
        found = []
        for mask in self.masks:
            mine = [name for name in ways if name in mask.names]
            if mine:
                found.append(MaskRef(mask.chain, point_name(mine), mask.base))
        return tuple(found)

    def pinned(self) -> dict[str, Built]:
        """Artifacts that no stage of this run builds, by `pin:NAME`."""
        return {name: built for name, built in self.built.items() if name.startswith(PIN)}

    def ports(self, node: Node) -> dict[str, str]:
        return {port: self.built[name].base for port, name in node.artifacts.items()}

    def finish(
        self,
        node: Node,
        built: Built,
        noun: str,
        entry: Entry,
        shards: Sequence[dict[str, Any]] | pa.Table = (),
        **about: Any,
    ) -> Built:
        """Commit the noun's manifest."""
        stage = node.stage
        about.setdefault("seconds", round(time.monotonic() - built.began, 3))
        manifest = Manifest(
            noun=noun,
            op=stage.op,
            version=stage.version,
            fingerprint=built.fingerprint,
            parameters=stage.parameters(),
            identity=stage.identity(),
            inputs={name: self.built[name].fingerprint for name in (*node.upstream, *node.pinned.values())},
            ledger=entry.check(node.name).to_json(),
            **about,
        )
        manifest.extra.setdefault("committed", time.time())
        built.manifest = manifest.commit(self.storage, built.base, shards)
        built.content = built.manifest.content or built.fingerprint
        return built


def point_name(inputs: Sequence[str]) -> str:
    """Name of the point where the paths through these stages meet."""
    return "+".join(sorted(inputs))
