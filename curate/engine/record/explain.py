"""`curate explain`: everything known about one sample, read backwards from the ledger."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from curate.core.errors import InputError
from curate.core.hashing import make_key
from curate.core.nouns.facts import STATUS, UNUSABLE
from curate.core.nouns.manifest import Manifest, read_lines
from curate.core.nouns.masks import ABSENT, ALIVE
from curate.core.nouns.pools import Shard, read_pool, read_shards, shards_of
from curate.core.nouns.takedowns import ERASED, erased_rows
from curate.core.rows import mask_files, read_fates
from curate.engine.record.runs import RunRecord
from curate.engine.steps import maker_of
from curate.engine.units.common import fetched
from curate.engine.units.keys import as_source_id, look_up
from curate.engine.units.source.step import fetch_of
from curate.engine.units.step import Explained

PREFIX = re.compile("[0-9a-f]{4,32}")
MOST_HITS = 64
"""Matches of a prefix that are read."""
QUICK = 256
"""Number of shards that are scanned without an announcement."""
Hit = tuple[str, Shard, int, dict[str, Any]]
Say = Callable[[str], None]


def find(run: RunRecord, wanted: str, say: Say = lambda _: None) -> Hit:
    """(pool stage, shard, row, facts) of the sample with this key, key prefix or source id, from the pools' indexes;
    otherwise of the sample with this name, or whose path or URL ends with it, with or without its extension, found by
    scanning all tables, which `say` announces."""
    hits, count = indexed(run, wanted)
    wanted = as_source_id(wanted)
    if not hits:
        hits = [hit for name, base in _pools(run).items() for hit in _scanned(run, name, base, wanted, say)]
        count = len(hits)
    exact = [hit for hit in hits if wanted in (hit[3]["key"], hit[3]["source_id"], hit[3]["name"], hit[3]["url"])]
    hits = exact or hits
    if not hits:
        raise InputError(f"{wanted!r}: no sample of run {run.run_id} has this key, key prefix, source id, name or URL")
    if len({hit[3]["key"] for hit in hits}) > 1:
        some = ", ".join(hit[3]["key"] for hit in hits[:3])
        raise InputError(
            f"{wanted!r}: {count} samples of run {run.run_id} match ({some} …); give more of its path, or a key"
        )
    return next((hit for hit in hits if not hit[3]["status"]), hits[-1])  # later generations replace failed rows


def indexed(run: RunRecord, wanted: str) -> tuple[list[Hit], int]:
    """(samples with this key, key prefix or source id, by the pools' indexes, number of all matches)."""
    wanted, pools = as_source_id(wanted), _pools(run)
    places = {name: _places(run, base, wanted) for name, base in pools.items()}
    hits = [hit for name in pools for hit in _rows(run, name, pools[name], places[name][:MOST_HITS])]
    return hits, sum(map(len, places.values()))


def _pools(run: RunRecord) -> dict[str, str]:
    return {name: output["base"] for name, output in run.outputs.items() if output["base"].startswith("pools/")}


def _places(run: RunRecord, base: str, wanted: str) -> list[tuple[int, int]]:
    """(index of the shard, row) of the matches in a pool's index: by source id, else by key or its prefix."""
    manifest = Manifest.load(run.storage, base)
    if manifest is None:
        return []
    named = look_up(run.storage, manifest, make_key(base.split("/")[1], wanted))
    return named or (look_up(run.storage, manifest, wanted) if PREFIX.fullmatch(wanted) else None) or []


def _rows(run: RunRecord, name: str, base: str, places: Sequence[tuple[int, int]]) -> Iterator[Hit]:
    lines = read_lines(run.storage, base) if places else None
    for place, row in places:
        assert lines is not None
        [shard] = shards_of(lines.slice(place, 1))
        yield name, shard, row, read_pool(run.storage, shard.table).slice(row, 1).to_pylist()[0]


def _scanned(run: RunRecord, name: str, base: str, wanted: str, say: Say) -> Iterator[Hit]:
    """Samples with this name, a path or URL that ends so, or this key prefix, from a scan of all tables of a pool."""
    shards = read_shards(run.storage, base)
    end = rf"(^|/){re.escape(wanted)}(\.[^./]+)?$"
    if len(shards) > QUICK:
        say(f"{wanted!r} is not a key or source id; searching {len(shards):,} shards of {name} for this name")

    def hits(shard: Shard) -> list[int]:
        table = read_pool(run.storage, shard.table, ["key", "source_id", "name", "url"])
        hit = pc.fill_null(pc.equal(table["name"], wanted), False)
        for name in ("source_id", "url"):
            hit = pc.or_(hit, pc.fill_null(pc.match_substring_regex(table[name], end, ignore_case=True), False))
        if PREFIX.fullmatch(wanted):
            hit = pc.or_(hit, pc.starts_with(table["key"], wanted))
        return np.flatnonzero(hit.to_numpy(zero_copy_only=False)).tolist()

    for place, rows in enumerate(fetched(hits, shards)):
        yield from _rows(run, name, base, [(place, row) for row in rows])


@dataclass(frozen=True)
class Told:
    """What one stage says about a sample."""

    stage: str
    op: str
    noun: str
    """pools, facts, masks, selections, datasets or artifacts: what the stage makes."""
    status: str
    """done, rejected, unusable, error, or not reached."""
    reason: str | None
    """Why it is not done."""
    facts: dict[str, Any]
    """Everything else, as `curate explain` shows it."""


@dataclass(frozen=True)
class Story:
    """Everything known about one sample of a run, in the order of the DAG, starting with its pool."""

    run: str
    key: str
    stages: tuple[Told, ...]
    parent: Story | None
    """For a sample of a derived pool."""

    def lines(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(stage, op, facts). `reject`: the reason it was rejected there; `not computed`: it was rejected before."""
        own = [(told.stage, told.op, told.facts) for told in self.stages]
        above = self.parent.lines() if self.parent else []
        return [*own, *((f"parent: {name}", op, about) for name, op, about in above)]

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self))
        return found


def explain(run: RunRecord, wanted: str, say: Say = lambda _: None) -> list[tuple[str, str, dict[str, Any]]]:
    """The lines of its story."""
    return story(run, wanted, say).lines()


def plain(value: Any) -> Any:
    """A fact in JSON's types."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | None) else value.hex() if isinstance(value, bytes) else str(value)


def _told(name: str, op: str, base: str, about: dict[str, Any]) -> Told:
    missed = next((about[key] for key in ("not computed", "not judged", "not reached") if key in about), None)
    status = "rejected" if about.get("reject") else "done" if missed is None else "not reached"
    if about.get("status") in STATUS:
        status = about["status"]
    reason = None if status == "done" else about.get("reject") or missed or about.get("reason")
    return Told(name, op, base.split("/")[0], status, reason, about)


def story(run: RunRecord, wanted: str, say: Say = lambda _: None) -> Story:
    """Raises InputError for a sample that the run does not have."""
    pool, shard, row, found = find(run, wanted, say)
    ops = run.ops()
    if found["status"]:
        found["reason"] = found["reject"]
    about = found | fetch_of(run, pool, shard, found["key"]) | {"shard": shard.id, "row": row}
    rejects, items = _rejects(run, shard, row, pool)
    if row in erased_rows(run.storage).get(shard.id, ()):
        about |= {"status": STATUS[UNUSABLE], "reason": ERASED}
        rejects[pool] = ERASED
    if found["reject"]:
        rejects[pool] = found["reject"]
    parent = story(run, found["parent"], say) if found.get("parent") else None
    if rejects.get(pool) == ABSENT:
        rejects[pool] = about["reject"] = _absence(run, pool, parent.lines() if parent else [])
    told = [_told(pool, ops[pool], run.outputs[pool]["base"], about)]
    for name in ops:
        base = run.outputs.get(name, {}).get("base", "")
        if name == pool or run.pool_above(name) != pool:
            continue
        before = next((f"{up}: {rejects[up]}" for up in run.upstream(name)[:-1] if rejects.get(up)), None)
        maker = maker_of(base)
        said = maker.explain(run, name, Explained(shard, row, found["key"], before, rejects)) if maker else None
        if said is not None:
            verdict = {"reject": rejects[name]} if name in rejects else {}
            if said.get("status") in STATUS[1:] and run.keeps_null(name):
                verdict["continues"] = "with nulls (keep_null)"
            told.append(_told(name, ops[name], base, said | verdict | items.get(name, {})))
    return Story(run.run_id, found["key"], tuple(told), parent)


def _absence(run: RunRecord, pool: str, parent: Sequence[tuple[str, str, dict[str, Any]]]) -> str:
    """Why a child does not exist: the stage that rejected its parent."""
    before = run.upstream(pool)[:-1]
    reasons = (f"{name}: {about['reject']}" for name, _, about in parent if name in before and about.get("reject"))
    return f"{ABSENT}: its parent was rejected at {next(reasons, 'another stage')}"


def _rejects(run: RunRecord, shard: Shard, row: int, pool: str) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """(stage -> reason the row was rejected there, stage -> items rejected up to there, with reasons by place). A mask
    does not record which stage rejected an item, only the point."""
    order = {name: place for place, name in enumerate(run.record["stages"])}
    names = list(order)
    rejects: dict[str, str] = {}
    items: dict[str, dict[str, Any]] = {}
    for base in run.masks():
        manifest = Manifest.load(run.storage, base)
        if manifest is None:
            continue
        file = mask_files(run.storage.url, base).get(shard.id)
        if file is None:  # belongs to another pool
            continue
        for point, fate in read_fates(run.storage, file, manifest.extra["points"], order, row).items():
            if fate.stage[0] != ALIVE:
                rejects[names[fate.stage[0]] if fate.stage[0] else pool] = fate.reason[0]
            for family, lists in fate.items.items():
                if lists[0] is not None:
                    rejected = [f"{place}: {why}" for place, why in enumerate(lists[0]) if why]
                    ways = sorted(point.split("+"), key=lambda name: order[name])
                    where = "up to here" if len(ways) == 1 else f"where {' and '.join(ways)} meet"
                    items.setdefault(ways[-1], {})[f"{family} rejected {where}"] = rejected
    return rejects, items
