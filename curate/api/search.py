"""Search: the rows of a run that are nearest to a text, an image or another row."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate import encoders
from curate.api.clusters import TREE, artifacts_of
from curate.api.slices import Slice, SliceReader
from curate.api.words import CONCEPTS, SHARE, showing
from curate.codec.images import decode
from curate.core.errors import InputError, Reject
from curate.core.nouns import tombstones
from curate.core.nouns.artifacts import StoredArtifact
from curate.core.nouns.manifest import Manifest
from curate.core.nouns.pools import read_shards
from curate.core.vectors import IDENTITY, from_binary
from curate.encoders.spec import WORDS
from curate.engine.record.explain import Say, find, plain
from curate.engine.record.runs import RunRecord
from curate.engine.units.keys import places_of
from curate.search.fit import KIND
from curate.search.index import SearchIndex

MOST_FOUND, MOST_FILTERED = 1000, 4096
"""Most rows of an answer, and most rows, nearest first, that a filter judges."""
AT_ONCE = 64
"""Rows looked up at a time."""
SHOWN = ("url", "caption", "shard", "row", "name", "media")
_ENCODING = threading.Lock()
"""Held while an encoder works: it takes one thread at a time."""


@dataclass(frozen=True)
class Hit:
    key: str
    score: float
    """Cosine of its vector with the query's."""
    url: str | None
    caption: str | None
    shard: str
    row: int
    """In its shard."""
    name: str | None
    media: str | None
    columns: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """Rows, nearest first, without tombstoned ones."""

    stage: str
    hits: list[Hit]
    judged: int
    """Rows that were looked up, nearest first; fewer than `MOST_FILTERED` unless a filter rejects most."""
    rows: int
    """Rows of the index."""
    said: str = ""
    """What was searched, if not vectors: images that show what a text names, the most probable first."""


def search(
    run: RunRecord,
    text: str | None = None,
    image: bytes | None = None,
    key: str | None = None,
    limit: int = 10,
    columns: Sequence[str] = (),
    where: str | None = None,
    stage: str | None = None,
    encoder: str | None = None,
    included: bool = False,
    say: Say = lambda _: None,
) -> Answer:
    """The `limit` rows of an index (`search.fit`) that are nearest to one of a text, an image's bytes, and a sample.
    Words that name what images show are searched in `image.concepts`, unless the index has an encoder of the user's.

    key: of the sample, the start of it, its source id, name or URL; columns: further columns of any stages; where: only
    rows for which it is true, as in `filter.where`; encoder: the encoder of the vectors, if it is not where the recipe
    had it; included: load no encoder but those in the package; say: announces a slow look-up. Raises InputError."""
    if sum(bool(one) for one in (text, image, key)) != 1:
        raise InputError("search: expected one of a text, an image and a key, which is not empty")
    if type(limit) is not int or not 1 <= limit <= MOST_FOUND:
        raise InputError(f"--limit {limit}: expected 1 to {MOST_FOUND}")
    if text and not encoder and stage is None and (answer := _showing(run, text, limit, columns, where)):
        return answer
    name, index = opened(run, stage)
    looked = _Looked(run, run.pool_of(name), columns, where)
    own_key, vectors = None, looked.column_of(name, index.about["embedding"])
    if key:
        own_key, vector = _vector_of_key(run, looked, vectors, key, say)
    else:
        spec = encoder or _encoder_of(run, looked, vectors)
        vector = _encoded(spec, index.about["encoder"], text, image or b"", included)
    if not np.isfinite(vector).all() or not vector.any():
        raise InputError("search: the query's vector has no direction; change the text or the image")
    count = MOST_FILTERED if where is not None or looked.tombstones else limit + AT_ONCE
    keys, scores = index.nearest(vector, count)
    score, hits, judged = dict(zip(keys, scores.tolist(), strict=True)), list[Hit](), 0
    for start in range(0, len(keys), AT_ONCE):
        some = [key for key in keys[start : start + AT_ONCE] if key != own_key]
        rows = looked.rows(some)
        for key in (key for key in some if key in rows):
            shown = {name: rows[key][name] for name in SHOWN}
            hits.append(Hit(key, score[key], **shown, columns={name: plain(rows[key][name]) for name in columns}))
        judged += len(some)
        if len(hits) >= limit:
            break
    return Answer(name, hits[:limit], judged, int(index.about["rows"]))


def _showing(run: RunRecord, text: str, limit: int, columns: Sequence[str], where: str | None) -> Answer | None:
    """The most probable of the first 1,000 rows that show what a text names, found within some seconds. None if the run
    has an index of vectors whose encoder is the user's, or if none shows it and an index can search texts."""
    made = [name for name, (kind, _) in artifacts_of(run).items() if kind == KIND and name in run.outputs]
    made = [name for name in made if Manifest.load(run.storage, run.outputs[name]["base"])]  # an erasure removes it
    specs = {str(opened(run, name)[1].about["encoder"].get("encoder")) for name in made}
    specs = {spec for spec in specs if not spec.startswith("timm:")}  # which read no texts
    if not specs.issubset(WORDS):
        return None
    by_index = any(not encoders.text_problems(spec) for spec in specs)
    pools = (run.pool_of(name) for name, output in run.outputs.items() if str(output["base"]).startswith("pools/"))
    pool = next(pools, None)
    page, said = showing(run, pool, text, ["caption", *columns], where) if pool else (None, "")
    if page is None and said and not by_index:
        raise InputError(f"search: {said}")
    if pool is None or page is None or (by_index and not len(page.table)):
        return None
    score = SHARE if SHARE in page.table.column_names and CONCEPTS in page.table.column_names else None
    hits = [
        Hit(
            row["key"], row[score] if score else 1.0, **{name: row[name] for name in SHOWN},
            columns={name: plain(row[name]) for name in columns},
        )
        for row in page.table.slice(0, limit).to_pylist()
    ]  # fmt: skip
    rows = read_shards(run.storage, str(run.outputs[pool]["base"]))
    return Answer(pool, hits, len(page.table), sum(shard.rows for shard in rows), said)


def opened(run: RunRecord, stage: str | None = None) -> tuple[str, SearchIndex]:
    """A stage that built an index, and the index. Raises InputError if there is none, or if there are several."""
    made = artifacts_of(run)
    names = [name for name, (kind, _) in made.items() if kind == KIND and name in run.outputs]
    if not names:
        remedy = "add a stage `search.fit` after one that embeds, and run again"
        raise InputError(f"run {run.run_id}: no vectors to search yet; {remedy}")
    if stage is not None and stage not in names:
        raise InputError(f"--stage {stage}: built no index in run {run.run_id}; stages that did: {', '.join(names)}")
    if stage is None and len(names) > 1:
        raise InputError(f"run {run.run_id}: several indexes ({', '.join(names)}); choose one with --stage")
    name = stage or names[0]
    if Manifest.load(run.storage, run.outputs[name]["base"]) is None:
        raise InputError(f"run {run.run_id}: the index of {name} was removed; run the recipe again")
    tree = run.record["stages"][name]["ports"].get("tree")
    held = StoredArtifact(run.storage, made[tree][1]) if tree and made.get(tree, ("",))[0] == TREE else None
    return name, SearchIndex(StoredArtifact(run.storage, made[name][1]), held)


class _Looked:
    """Rows looked up by key, from their shards."""

    def __init__(self, run: RunRecord, pool: str, columns: Sequence[str], where: str | None) -> None:
        names = dict.fromkeys(("caption", *tombstones.COLUMNS, *columns))
        self.run, self.pool = run, pool
        self.slice = SliceReader(run, Slice(pool, where=where), list(names))
        self.rows_of = self.slice.reads.rows
        self._manifest = Manifest.load(run.storage, run.outputs[pool]["base"])
        self.tombstones = tombstones.load(run.storage)
        self._table = lru_cache(AT_ONCE)(self.slice.shard)

    def rows(self, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Key -> its columns and shard, without rows that `where` rejects, that are tombstoned, or gone."""
        found: dict[str, dict[str, Any]] = {}
        for place in self.places(keys):
            table = self._table(place)
            table = table.filter(pc.is_in(table.column("key"), value_set=pa.array(keys, pa.string())))
            table = table.filter(pa.array(~self.tombstones.mask(table)))
            found |= {row["key"]: row for row in table.to_pylist()}
        return found

    def column_of(self, stage: str, column: str) -> str:
        """A column that a stage read, as STAGE.COLUMN: others over the same rows may have written one of its name."""
        named = (f"{above}.{column}" for above in self.run.upstream(stage))
        found = next((name for name in named if name in self.rows_of.places), column)
        self.rows_of.field(found)
        return found

    def places(self, keys: Sequence[str]) -> list[int]:
        """Numbers of the shards that may have the keys; all of them for a pool without an index of keys."""
        known = places_of(self.run.storage, self._manifest, keys) if self._manifest is not None and keys else {}
        if known is None:
            return list(range(len(self.rows_of.shards)))
        return sorted({place for found in known.values() for place, _ in found})


# --- the query's vector -----------------------------------------------------------------------------------------------


def _vector_of_key(
    run: RunRecord, looked: _Looked, embedding: str, wanted: str, say: Say
) -> tuple[str, NDArray[np.float32]]:
    """The key, whole, and the vector (d,) that the index was built from."""
    pool, shard, _, about = find(run, wanted, say)
    if pool == looked.pool:
        table = looked.rows_of.table(shard, ["key", embedding])
        table = table.filter(pc.and_(pc.equal(table.column("key"), about["key"]), pc.is_valid(table.column(embedding))))
        if table.num_rows:
            return about["key"], from_binary(table.column(embedding))[0]
    raise InputError(
        f"{wanted!r}: has no {embedding!r} in {looked.pool}; `curate explain` shows why. Search by another key or text"
    )


def _encoded(
    spec: str, known: Mapping[str, str], text: str | None, image: bytes, included: bool
) -> NDArray[np.float32]:
    """Vector (d,) of a text, or else of an image. Raises InputError if the encoder is not the one whose identity is
    `known`, or has no texts."""
    if included and spec not in WORDS:
        raise InputError(f"encoder: {spec!r} is not loaded here; search by a key, or with `curate search` where it is")
    for problem in encoders.text_problems(spec) if text else ():
        raise InputError(problem)
    with _ENCODING:
        model = _loaded(spec)
        for name in IDENTITY[:2]:
            mine = model.identity()[name]
            if known.get(name, mine) != mine:
                remedy = "give the encoder that made them"
                raise InputError(f"--encoder: {name} {mine}, but the vectors are of {known[name]}; {remedy}")
        if text:
            return model.encode_text([text.encode("utf-8", "replace").decode()])[0]
        try:
            return model.encode([model.prepare(decode(image))], patches=False).summary[0]
        except Reject as error:
            raise InputError(f"search: the image cannot be decoded ({error}); give a file of one image") from None


def _encoder_of(run: RunRecord, looked: _Looked, embedding: str) -> str:
    """The encoder that wrote a column, as the recipe names it."""
    stage, _ = looked.rows_of.places[embedding]
    written = ((run.record.get("recipe") or {}).get("stages") or {}).get(stage) or {}
    named = written.get("encoder") or run.record["stages"][stage]["parameters"].get("encoder")
    if not named:
        raise InputError(f"{embedding}: stage {stage} names no encoder; give one with --encoder")
    return str(named)


@lru_cache(2)
def _loaded(spec: str) -> encoders.Encoder:
    return encoders.load(spec, device="cpu")
