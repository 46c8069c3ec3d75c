"""The contract suite's pipelines and its goldens: every registered op, run on tiny pools that hold what pools can hold.

A new op needs an entry in STAGES (or in SOURCES, if it is a source), with parameters small enough for 24 pictures, and
goldens: `python -m tests.engine.contract update` writes them, and `git diff` shows what has changed.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from curate.codec.tars import TarWriter
from curate.core import facts
from curate.core.contracts import Derive, Filter, Fit, Incoming, Map, Portion, Reduce, Report, Select, Source, Stage
from curate.core.hashing import digest
from curate.core.ledger import Entry
from curate.core.masks import Fate, fate_of
from curate.core.nouns import Manifest, Shard, StoredArtifact, read_shards
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.rows import mask_files, numbers
from curate.core.store.storage import Storage, open_storage
from curate.core.vectors import from_binary
from curate.engine.run import Result, run
from tests.text.wordnet.wordnets import write_wordnet

GOLDENS = Path(__file__).with_name("goldens.json")
UPDATE = "`python -m tests.engine.contract update`"
FAMILIES, ROWS, SIDE = 4, 24, 48
CLIP = f"open_clip:{Path(__file__).parents[1] / 'encoders/tiny_clip'}?random=3"
"""The smallest image-text model there can be, with random weights."""


class Alive(Reduce):
    """Keys of the rows that reach it, and which items of a list column: what a filter has let go on."""

    op: ClassVar[str] = "contract.alive"
    kind: ClassVar[str] = "contract_alive"
    column: str | None = None

    def reads(self) -> tuple[str, ...]:
        return (self.column,) if self.column else ()

    def partial(self, table: pa.Table) -> pa.Table:
        items = [None] * table.num_rows
        if self.column:
            lists = table.column(self.column).to_pylist()
            items = [None if row is None else [item is not None for item in row] for row in lists]
        return pa.table([table.column("key"), pa.array(items, pa.list_(pa.bool_()))], names=["key", "items"])

    def finish(self, state: pa.Table) -> dict[str, Any]:
        return {"alive": state.sort_by("key")}


STAGES: dict[str, tuple[str, str | list[str], dict[str, Any], dict[str, str]]] = {
    "inspect": ("image.inspect", "pool", {}, {}),
    "size": ("image.filter", "inspect", {"min_side": 8, "animated": "reject"}, {}),
    "where": ("filter.where", "inspect", {"keep": "width < 40 or frames > 1", "reason": "large_still"}, {}),
    "frames": ("image.frames", "inspect", {"namespace": "contract_frames", "every": 2}, {}),
    "frames_seen": ("image.inspect", "frames", {}, {}),
    "text": ("text.clean", "size", {}, {}),
    "worded": ("text.filter", "text", {"min_words": 2}, {}),
    "sentences": ("text.sentences", "text", {}, {}),
    "pairs": ("text.filter", "sentences", {"column": "sentences", "items": True, "min_words": 2}, {}),
    "language": ("text.language", "text", {}, {}),
    "english": ("text.language_filter", "language", {"languages": ["en"], "missing": "keep"}, {}),
    "text_sets": ("text.duplicates", "text", {"keepers": 2}, {}),
    "text_copies": ("text.copies", "text", {}, {"sets": "text_sets"}),
    "text_unique": ("text.drop_duplicates", "text_copies", {"copies": 2}, {}),
    "boilerplate": ("text.boilerplate", "text", {"least_count": 2, "whole": True}, {}),
    "stripped": ("text.strip", "text", {"also": ["see"]}, {"boilerplate": "boilerplate"}),
    "concepts": ("text.concepts", "text", {"nouns": ["animal", "artifact", "cognition"]}, {}),
    "vocabulary": (
        "text.vocabulary",
        "text",
        {"wordnet": False, "unigrams": 4, "bigrams": {"count": 1, "pmi": 0}},
        {},
    ),
    "entries": ("text.match", "text", {}, {"vocabulary": "vocabulary"}),
    "tags": ("text.tags", "text", {"fields": ["text", "meta.category"]}, {}),
    "map": ("text.hashtag_map", "tags", {"heads": "all"}, {}),
    "hashtags": ("text.hashtags", "tags", {}, {"map": "map"}),
    "prints": ("image.fingerprint", "text", {}, {}),
    "embed": ("image.embed", "text", {}, {}),
    "sets": ("duplicates.find", "prints", {}, {}),
    "members": ("duplicates.members", "prints", {}, {"sets": "sets"}),
    "unique": ("duplicates.drop", "members", {}, {}),
    "evaluation": ("duplicates.reference", ["worded", "prints", "embed"], {}, {}),
    "matches": ("duplicates.match", ["text", "prints", "embed"], {"eps": 0.001}, {"against": "evaluation"}),
    "clean": ("duplicates.decontaminate", "matches", {}, {}),
    "said": ("tests.text.entries:Said", "text", {}, {}),
    "counts": ("text.counts", "said", {"columns": ["said"]}, {}),
    "counts_by": ("text.counts", "said", {"columns": ["said"], "by": "language_said"}, {}),
    "by_frequency": ("select.frequency", "said", {"columns": ["said"], "multiplier": 2}, {"counts": "counts"}),
    "by_metaclip": (
        "select.metaclip",
        "said",
        {"columns": ["said"], "by": "language_said", "threshold": 2},
        {"counts": "counts_by"},
    ),
    "seen": ("image.embed", "inspect", {"encoder": CLIP, "column": "seen"}, {}),
    "similar": ("align.similarity", "seen", {"encoder": CLIP, "embedding": "seen", "column": "caption"}, {}),
    "half": ("align.threshold", "similar", {"share": 0.5}, {}),
    "margin": ("align.margin", "similar", {}, {"threshold": "half"}),
    "aligned": ("align.filter", "margin", {"score": "similarity_margin", "threshold": 0.0}, {}),
    "tree": ("cluster.fit", ["unique", "embed"], {"levels": [4, 2], "rounds": 2, "iterations": 5}, {}),
    "clusters": ("cluster.assign", ["unique", "embed"], {"levels": 2}, {"tree": "tree"}),
    "meanings": ("duplicates.semantic", ["unique", "embed"], {"eps": 0.15, "level": 1}, {"tree": "tree"}),
    "meant": ("duplicates.members", "unique", {"column": "semantic"}, {"sets": "meanings"}),
    "apart": ("duplicates.drop", "meant", {"reject": "semantic", "column": "semantic"}, {}),
    "sample": ("select.hierarchical", "clusters", {"target": 8}, {"tree": "tree"}),
    "profile": ("cluster.profile", "clusters", {"source": "meta.category", "sample": 3, "tiny": 2}, {"tree": "tree"}),
    "drift": ("cluster.drift", "clusters", {"least_rows": 1}, {"tree": "tree"}),
    "all": ("select.all", "clusters", {}, {}),
    "dataset": ("pack.webdataset", "sample", {"name": "contract", "shard_rows": 5, "carry": ["duplicate_set"]}, {}),
    "dataset_of_all": (
        "pack.webdataset",
        "all",
        {"name": "all", "image": "resized", "format": "png", "max_side": 32},
        {},
    ),
    "report": (
        "report.html",
        ["dataset", "profile", "drift"],
        {"clusters_shown": 2, "leaves_shown": 2, "pictures_shown": 1},
        {},
    ),
}
"""Stage -> op, `from`, parameters, ports. The first stage of an op is the one that its golden is of. Behind each filter
comes a stage `<name>_alive`, since masks are stored where global stages read them."""
ON_TORCH = ("seen", "similar", "half", "margin", "aligned", "aligned_alive")
"""Stages whose libraries each worker of Ray would take many seconds to import; no other stage needs them."""


# --- what pools can hold ----------------------------------------------------------------------------------------------


def picture(number: int) -> bytes:
    """A BMP: one of four patterns in its own colours, with some noise; integers only, so the same bytes everywhere."""
    family, y, x = number % FAMILIES, *np.mgrid[0:SIDE, 0:SIDE]
    stripes = [x, y, x + y, (x // 12) ^ (y // 12)][family] // (6, 8, 10, 1)[family] % 2
    noise = np.frombuffer(hashlib.shake_128(str(number).encode()).digest(SIDE * SIDE * 3), dtype=np.uint8)
    colours = np.array([[60, 90, 130], [150, 60, 40], [40, 140, 60], [120, 120, 20]])[family]
    pixels = stripes[..., None] * 90 + colours + noise.reshape(SIDE, SIDE, 3) // 8
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "BMP")
    return out.getvalue()


CAPTIONS = (
    "a pattern",
    None,
    "  see &amp; buy at https://example.org/x  ",
    "",
    "mail me@example.org",
    "Stri\u0301pes\n<b>b</b>",
)


def animation() -> bytes:
    """A GIF of three frames."""
    frames = [Image.open(io.BytesIO(picture(number))).quantize(8) for number in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=100)
    return out.getvalue()


def samples() -> Iterator[Incoming]:
    """24 rows: pictures, one byte for byte the same as another, a cut one, none at all, one without a byte, and an
    animation."""
    for number in range(ROWS):
        data = {5: picture(1), 9: picture(9)[:400], 14: b"no picture", 19: b"", 21: animation()}
        about = {"caption": CAPTIONS[number % len(CAPTIONS)], "meta": {"category": f"family/{number % FAMILIES}"}}
        ext = "gif" if number == 21 else "bmp"
        yield Incoming(f"{number:03d}", ext=ext, data=data.get(number, picture(number)), **about)


class Mixed(Source):
    """The samples, in shards of `shard_rows`, with an empty shard and a shard of rejected rows between them."""

    op: ClassVar[str] = "contract.mixed"
    shard_rows: int = 8
    alive: bool = True

    def plan(self) -> list[Portion]:
        starts = range(0, ROWS, self.shard_rows)
        real = [Portion({"start": start, "kind": "real"}, self.shard_rows) for start in starts]
        return [real[0], Portion({"kind": "empty"}, 0), Portion({"kind": "refused"}, 3), *real[1:]]

    def read(self, portion: Portion) -> Iterator[Incoming]:
        if portion.content["kind"] == "refused":
            yield from (Incoming(f"refused-{i}", ext="bmp", data=picture(i), reject="unwanted") for i in range(3))
        if portion.content["kind"] == "real":
            start = portion.content["start"]
            for incoming in list(samples())[start : start + self.shard_rows]:
                incoming.reject = None if self.alive else "unwanted"
                yield incoming


def folder(place: Path) -> dict[str, Any]:
    """The samples as files with sidecars."""
    for incoming in samples():
        path = place / incoming.meta["category"] / f"{incoming.source_id}.{incoming.ext}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(incoming.data or b"")
        if incoming.caption is not None:
            path.with_suffix(".txt").write_text(incoming.caption, encoding="utf-8")
    return {"path": str(place), "shard_rows": 10}


def tars(place: Path) -> dict[str, Any]:
    for shard in range(2):
        with open(place / f"{shard:05d}.tar", "wb") as file, TarWriter(file) as tar:
            for incoming in list(samples())[shard * 12 : shard * 12 + 12]:
                tar.add(f"{incoming.source_id}.{incoming.ext}", incoming.data or b"")
                tar.add(f"{incoming.source_id}.json", json.dumps({"caption": incoming.caption}).encode())
    return {"path": str(place)}


def table(place: Path) -> dict[str, Any]:
    rows = [{"id": s.source_id, "image": s.data, "caption": s.caption} | s.meta for s in samples()]
    pq.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return {"path": str(place / "rows.parquet"), "image": "image", "caption": "caption", "id": "id", "shard_rows": 10}


SOURCES = {"acquire.folder": folder, "acquire.webdataset": tars, "acquire.parquet": table}
"""Op -> what writes the samples into a folder, and the parameters to import them."""


# --- pipelines --------------------------------------------------------------------------------------------------------


def case(op: str) -> str:
    """The stage that an op's golden is of. A new op is told what it lacks."""
    found = next((name for name, stage in STAGES.items() if stage[0] == op), None)
    assert found or op in SOURCES, (
        f"{op} is registered but the contract suite does not run it: add it to STAGES (or SOURCES) in "
        f"tests/engine/contract.py with small parameters, then write its goldens with {UPDATE}"
    )
    return found or "pool"


def stage_of(op: str, place: Path | None = None) -> Stage:
    """The op as the suite runs it; a source needs a place for its files."""
    name = case(op)
    if name == "pool":
        assert place is not None
        return registry.resolve(op)(namespace="contract", **SOURCES[op](place))
    return registry.resolve(op)(**STAGES[name][2])


def pipeline(source: Source, upto: str | None = None, without: tuple[str, ...] = ()) -> Pipeline:
    """All stages over a pool, or all `without` some; `upto` one of them, with what it needs."""
    made = Pipeline().add("pool", source)
    for name, (op, inputs, parameters, ports) in STAGES.items():
        stage = registry.resolve(op)(**parameters)
        made.add(name, stage, inputs, **ports)
        if isinstance(stage, Filter):
            made.add(f"{name}_alive", Alive(column=stage.places()), name)
    made.check()
    wanted, todo = set(), [upto] if upto else [name for name in made.nodes if name not in without]
    while todo:
        name = todo.pop()
        wanted.add(name)
        todo += made.nodes[name].upstream
    part = Pipeline()
    for node in made.nodes.values():
        if node.name in wanted:
            part.add(node.name, node.stage, node.inputs, **node.ports)
    return part.check()


# --- what came out ----------------------------------------------------------------------------------------------------


class Output:
    """What a run has made, whatever shards it lies in: rows by key, parts by name, members by name."""

    def __init__(self, workspace: str, result: Result) -> None:
        self.storage: Storage = open_storage(workspace)
        self.bases = {name: url.removeprefix(f"{self.storage.url}/") for name, url in result.outputs.items()}
        self.shards = read_shards(self.storage, self.bases["pool"])
        self.result = result
        self.order = {name: place for place, name in enumerate(result.ops)}

    def ledger(self, name: str) -> Entry:
        return self.result.ledger[name].check(name)

    def manifest(self, name: str) -> Manifest:
        found = Manifest.load(self.storage, self.bases[name])
        assert found is not None
        return found

    def keys(self, shard: Shard) -> list[str]:
        return self.storage.read_table(shard.table, columns=["key"]).column("key").to_pylist()

    def shards_of(self, name: str) -> list[Shard]:
        """Those of the pool of a stage: of the frames, or of what was imported."""
        return read_shards(self.storage, self.bases["frames"]) if name in ("frames", "frames_seen") else self.shards

    def facts(self, name: str) -> list[tuple[Shard, pa.Table]]:
        """The table of facts of every shard that the run has read: the rows that were needed."""
        base = self.bases[name]
        folder, counts = base.split("/versions/")[0], numbers(self.storage.url, base)
        return [(s, facts.read(self.storage, folder, s.id, counts[s.id])) for s in self.shards_of(name)]

    def fates(self, name: str) -> list[tuple[Shard, Fate]]:
        """What the mask behind a filter says of every shard's rows."""
        files = mask_files(self.storage.url, self.bases[name])
        return [(s, fate_of(self.storage.read_table(files[s.id]), name, self.order)) for s in self.shards_of(name)]

    def selection(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.storage.list(f"{self.bases[name]}/rows"))
        return [r for f in files for r in self.storage.read_table(f"{self.bases[name]}/rows/{f}").to_pylist()]

    def value(self, name: str, stage: Stage) -> Any:
        """The output of a stage, without anything that depends on how the pool was cut into shards."""
        if isinstance(stage, (Source, Derive)):
            return self._rows_of_pool(name)
        if isinstance(stage, Map):
            return self._rows_of_facts(name)
        if isinstance(stage, Filter):
            return self._verdicts(name)
        if isinstance(stage, Select):
            rows = [{n: row[n] for n in ("key", "item", "copies", "reject")} for row in self.selection(name)]
            return sorted(rows, key=lambda row: (row["key"], row["item"]))
        if isinstance(stage, (Reduce, Fit)):
            return {part: plain(value) for part, value in StoredArtifact(self.storage, self.bases[name]).items()}
        files = [f for f in sorted(self.storage.list(self.bases[name])) if f not in ("manifest.json", "shards.parquet")]
        if isinstance(stage, Report):
            return files
        return {f: self._file(f"{self.bases[name]}/{f}") for f in files}

    def _rows_of_pool(self, name: str) -> dict[str, Any]:
        rows = {}
        for shard in read_shards(self.storage, self.bases[name]):
            table = self.storage.read_table(shard.table).drop_columns(["offset", "size", "parent_row"])
            rows |= {row["key"]: row for row in table.to_pylist()}
        return rows

    def _rows_of_facts(self, name: str) -> dict[str, Any]:
        """Rows that were needed, with their status; the others are absent."""
        rows = {}
        for shard, table in self.facts(name):
            keys = self.keys(shard)
            names = [n for n in table.column_names if n not in (facts.ROW, facts.INPUT)]
            values = {n: decoded(table.column(n), table.schema.field(n)) for n in names}
            for place, row in enumerate(table.column(facts.ROW).to_pylist()):
                rows[keys[row]] = {n: values[n][place] for n in names}
        return rows

    def _verdicts(self, name: str) -> dict[str, Any]:
        """Rows that the filter has rejected, with the reason; and of rows that it has seen, reasons by place."""
        rejected, items = {}, {}
        for shard, fate in self.fates(name):
            keys = self.keys(shard)
            for row in np.flatnonzero(fate.stage == self.order[name]):
                rejected[keys[row]] = fate.reason[row]
            for family, lists in fate.items.items():
                items |= {f"{keys[row]} {family}": lists[row] for row in range(shard.rows) if lists[row] is not None}
        return {"rejected": rejected, "items": items}

    def _file(self, path: str) -> Any:
        if path.endswith(".parquet"):
            return self.storage.read_table(path).to_pylist()
        return hashlib.sha256(self.storage.read(path)).hexdigest()


def decoded(column: pa.ChunkedArray, field: pa.Field) -> list[Any]:
    """Values as Python has them; vectors of halves as lists of floats."""
    if b"dim" in (field.metadata or {}):
        vectors = from_binary(column)
        return [None if not np.isfinite(row).all() else row.tolist() for row in vectors]
    return column.to_pylist()


def plain(value: Any) -> Any:
    if isinstance(value, pa.Table):
        return [decoded(value.column(n), value.schema.field(n)) for n in value.column_names]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def golden(value: Any) -> dict[str, Any]:
    """A digest of everything but the floats, and a few sums of these: another CPU's last bits are no other output."""
    floats: list[float] = []

    def skeleton(item: Any) -> Any:
        if isinstance(item, dict):
            return {str(name): skeleton(item[name]) for name in sorted(item, key=str)}
        if isinstance(item, (list, tuple)):
            return [skeleton(part) for part in item]
        if isinstance(item, float) and math.isfinite(item):
            floats.append(item)
            return "a number"
        return item.hex() if isinstance(item, bytes) else repr(item) if isinstance(item, float) else item

    shape = digest(skeleton(value))
    numbers = np.array(floats)
    signs = np.frombuffer(hashlib.shake_128(b"signs").digest(4 * len(floats)), dtype=np.int8).reshape(4, -1) // 64
    return {"digest": shape, "floats": len(floats), "sums": [float(f"{s:.6g}") for s in signs @ numbers]}


def goldens_of(output: Output, op: str, stage: Stage) -> dict[str, Any]:
    return {
        "version": stage.version,
        "fingerprint": digest([stage.op, stage.version, stage.parameters(), stage.identity(), stage.ports]),
        "output": golden(output.value(case(op), stage)),
    }


def update() -> None:
    """Write the goldens of everything that is registered."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        os.environ["CURATE_WORDNET"] = str(write_wordnet(Path(place, "wordnet")))
        workspace = f"{place}/workspace"
        made = pipeline(Mixed(namespace="contract"))
        output = Output(workspace, run(made, workspace))
        for op in sorted(registry.OPS):
            if op in SOURCES:
                files = Path(place, op)
                files.mkdir()
                source = stage_of(op, files)
                made_ = Pipeline().add("pool", source)
                found[op] = goldens_of(Output(f"{files}-ws", run(made_, f"{files}-ws")), op, neutral(source, files))
            else:
                found[op] = goldens_of(output, op, made.nodes[case(op)].stage)
    GOLDENS.write_text(json.dumps(found, indent=1) + "\n")


def neutral(source: Stage, place: Path) -> Stage:
    """A source without the place of its files, which is another in every test."""
    return source.model_copy(update={"path": str(source.path).replace(str(place), "PLACE")})  # type: ignore[attr-defined]


if __name__ == "__main__":
    if sys.argv[1:] != ["update"]:
        sys.exit("usage: python -m tests.engine.contract update")
    update()
