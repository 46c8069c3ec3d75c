"""Pipelines and goldens of the contract suite: every registered op, run on tiny pools with every kind of row.

A new op needs an entry in STAGES (or in SOURCES, if it is a source), with parameters small enough for 24 images, and
goldens: `python -m tests.engine.contract update` writes them, and `git diff` shows the changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from curate.core.contracts import Filter, Map, Reduce, Source, Stage
from curate.core.hashing import digest
from curate.core.nouns import facts
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.engine.mixed import SOURCES, Mixed
from tests.engine.output import Output
from tests.text.wordnet.wordnets import write_wordnet

GOLDENS = Path(__file__).with_name("goldens.json")
UPDATE = "`python -m tests.engine.contract update`"
CLIP = f"open_clip:{Path(__file__).parents[1] / 'encoders/tiny_clip'}?random=3"
"""The smallest image-text model there can be, with random weights."""


ASKED = {"endpoints": {"scripted": {"base_urls": ["http://127.0.0.1:9/v1"], "model": "scripted"}}}
"""A parameter of stages that ask an endpoint, for goldens."""
ELSEWHERE: dict[str, tuple[str, dict[str, Any]]] = {
    "acquire.download": ("tests/acquire/download/test_download.py", {"namespace": "web", "contact": "me@example.org"}),
    "caption.judge": ("tests/caption/test_judged_run.py", ASKED | {"a": "generated", "b": "caption"}),
    "caption.generate": ("tests/caption/test_run.py", ASKED),
    "caption.rewrite": ("tests/caption/test_run.py", ASKED),
    "caption.summarise": ("tests/caption/test_run.py", ASKED),
    "caption.ask": ("tests/caption/test_run.py", ASKED),
    "caption.repair": ("tests/caption/test_repair_run.py", ASKED | {"prompt": "caption_short"}),
    "duplicates.videos": ("tests/video/test_video_run.py", {}),
    "image.concepts": ("tests/image/test_concepts.py", {}),
    "video.clips": ("tests/video/test_video_run.py", {"namespace": "clips"}),
    "video.divide": ("tests/video/test_video_run.py", {}),
    "video.embed": ("tests/video/test_video_run.py", {}),
    "video.frames": ("tests/video/test_video_run.py", {"namespace": "frames"}),
    "video.inspect": ("tests/video/test_video_run.py", {}),
    "video.look": ("tests/video/test_video_run.py", {}),
    "video.windows": ("tests/video/test_video_run.py", {"namespace": "windows"}),
}
"""Op that needs a server, videos or the real WordNet -> the file with its part of this suite, and parameters for its
golden."""


class Alive(Reduce):
    """Keys of the rows that reach it, and items of a list column: everything that a filter passes."""

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
    "appearance": ("image.appearance", "inspect", {}, {}),
    "size": ("image.filter", "inspect", {"min_side": 8, "animated": "reject"}, {}),
    "where": ("filter.where", "inspect", {"keep": "width < 40 or frames > 1", "reason": "large_still"}, {}),
    "frames": ("image.frames", "inspect", {"namespace": "contract_frames", "every": 2}, {}),
    "frames_seen": ("image.inspect", "frames", {}, {}),
    "virtual": ("image.frames", "inspect", {"namespace": "contract_virtual", "every": 2, "bytes": "virtual"}, {}),
    "virtual_seen": ("image.inspect", "virtual", {}, {}),
    "rolled": (
        "derive.roll_up",
        "inspect",
        {"column": "width", "how": "max", "into": "rolled"},
        {"children": "frames_seen"},
    ),
    "counted": (
        "derive.roll_up",
        "inspect",
        {"how": "count", "into": "counted"},
        {"children": "frames"},
    ),
    "clips": ("tests.engine.derived:Clips", "counted", {"namespace": "contract_clips"}, {}),
    "above": ("tests.engine.derived:Above", "clips", {}, {}),
    "of_many": ("filter.where", "above", {"keep": '"parent.counted" > 0', "reason": "still"}, {}),
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
    "mix": ("caption.mix", "tags", {"texts": {"original": "caption", "clean": "text", "tags": "tags"}}, {}),
    "checked": ("caption.check", "text", {"column": "text", "outcomes": False, "context": ["caption"]}, {}),
    "chosen": ("caption.choose", "checked", {"order": ["text", "caption"], "checks": {"caption": None}}, {}),
    "map": ("text.hashtag_map", "tags", {"heads": "all"}, {}),
    "hashtags": ("text.hashtags", "tags", {}, {"map": "map"}),
    "prints": ("image.fingerprint", "text", {}, {}),
    "embed": ("image.embed", "text", {}, {}),
    "sets": ("duplicates.find", "prints", {}, {}),
    "members": ("duplicates.members", "prints", {}, {"sets": "sets"}),
    "split": ("filter.split", "members", {"side": "train", "share": 0.3}, {}),
    "unique": ("duplicates.drop", "members", {}, {}),
    "evaluation": ("duplicates.reference", ["worded", "prints", "embed"], {}, {}),
    "matches": ("duplicates.match", ["text", "prints", "embed"], {"eps": 0.001}, {"against": "evaluation"}),
    "clean": ("duplicates.decontaminate", "matches", {}, {}),
    "said": ("tests.text.entries:Words", "text", {}, {}),
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
    "told": ("text.embed", "sentences", {"encoder": CLIP, "column": "sentences"}, {}),
    "half": ("align.threshold", "similar", {"share": 0.5}, {}),
    "margin": ("align.margin", "similar", {}, {"threshold": "half"}),
    "aligned": ("align.filter", "margin", {"score": "similarity_margin", "threshold": 0.0}, {}),
    "tree": ("cluster.fit", ["unique", "embed"], {"levels": [4, 2], "rounds": 2, "iterations": 5}, {}),
    "clusters": ("cluster.assign", ["unique", "embed"], {"levels": 2}, {"tree": "tree"}),
    "meanings": ("duplicates.semantic", ["unique", "embed"], {"eps": 0.15, "level": 1}, {"tree": "tree"}),
    "meant": ("duplicates.members", "unique", {"column": "semantic"}, {"sets": "meanings"}),
    "apart": ("duplicates.drop", "meant", {"reject": "semantic", "column": "semantic"}, {}),
    "searched": ("search.fit", ["unique", "embed"], {"cells": 3}, {}),
    "searched_by_leaf": ("search.fit", "clusters", {"cluster": "cluster_1"}, {"tree": "tree"}),
    "axes": ("project.fit", ["unique", "embed"], {"sample": 10}, {}),
    "spread": ("project.fit", ["unique", "embed"], {"method": "neighbours", "epochs": 3}, {}),
    "placed": ("project.place", "clusters", {}, {"projection": "axes"}),
    "placed_by_neighbours": ("project.place", "clusters", {"into": "near"}, {"projection": "spread"}),
    "region": ("project.region", "placed", {"polygon": [(-2, -2), (0, -2), (0, 2), (-2, 2)]}, {}),
    "sample": ("select.hierarchical", "clusters", {"target": 8}, {"tree": "tree"}),
    "covered": (
        "select.hierarchical",
        "clusters",
        {"target": 8, "strategy": "cover", "level": 2, "even": 0.5},
        {"tree": "tree"},
    ),
    "covered_fast": ("select.hierarchical", "clusters", {"target": 8, "strategy": "fast_cover"}, {"tree": "tree"}),
    "profile": ("cluster.profile", "clusters", {"source": "meta.category", "sample": 3, "tiny": 2}, {"tree": "tree"}),
    "drift": ("cluster.drift", "clusters", {"least_rows": 1}, {"tree": "tree"}),
    "fit_on": ("select.uniform", ["unique", "embed"], {"count": 7}, {}),
    "subtree": ("cluster.fit", ["fit_on", "embed"], {"levels": [3, 2], "rounds": 2, "schedule": "published"}, {}),
    "by_label": ("select.hierarchical", "clusters", {"by": "meta.category", "target": 8, "even": 0.5}, {}),
    "best": ("select.top", "clusters", {"score": "width", "target": 6}, {"tree": "tree"}),
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
    "captions": ("caption.report", "clusters", {"cluster": "cluster_1", "clusters_shown": 2, "per_cluster": 1}, {}),
    "compared": ("caption.compare", "text", {"a": "caption", "b": "text", "samples": 3, "open_samples": 2}, {}),
}
"""Stage -> op, `from`, parameters, ports. The first stage of an op has its golden. After each filter
comes a stage `<name>_alive`, since masks are stored where global stages read them."""
ON_TORCH = ("seen", "similar", "told", "half", "margin", "aligned", "aligned_alive")
"""Stages whose libraries each worker of Ray would take many seconds to import; no other stage needs them."""


# --- pipelines --------------------------------------------------------------------------------------------------------


def case(op: str) -> str:
    """The stage with an op's golden. A new op gets a message about what is missing."""
    found = next((name for name, stage in STAGES.items() if stage[0] == op), None)
    assert found or op in SOURCES or op in ELSEWHERE, (
        f"{op} is registered but the contract suite does not run it: add it to STAGES (or SOURCES) in "
        f"tests/engine/contract.py with small parameters, then write its goldens with {UPDATE}"
    )
    return found or "pool"


def stage_of(op: str, place: Path | None = None) -> Stage:
    """The op as the suite runs it; a source needs a place for its files."""
    name = case(op)
    if op in ELSEWHERE:
        return registry.resolve(op)(**ELSEWHERE[op][1])
    if name == "pool":
        assert place is not None
        cls = registry.resolve(op)
        return cls(**SOURCES[op](place), **({"namespace": "contract"} if issubclass(cls, Source) else {}))
    return registry.resolve(op)(**STAGES[name][2])


def pipeline(source: Source, without: Collection[str] = ()) -> Pipeline:
    """All stages over a pool, or all `without` some, but with what the others need."""
    made = Pipeline().add("pool", source)
    for name, (op, inputs, parameters, ports) in STAGES.items():
        stage = registry.resolve(op)(**parameters)
        made.add(name, stage, inputs, **ports)
        if isinstance(stage, Filter):
            made.add(f"{name}_alive", Alive(column=stage.places()), name)
    made.check()
    wanted, todo = set(), [name for name in made.nodes if name not in without]
    while todo:
        name = todo.pop()
        wanted.add(name)
        todo += made.nodes[name].upstream
    part = Pipeline()
    for node in made.nodes.values():
        if node.name in wanted:
            part.add(node.name, node.stage, node.inputs, **node.ports)
    return part.check()


# --- live rows --------------------------------------------------------------------------------------------------------


def alive(made: Output, name: str, behind: bool = False) -> list[np.ndarray]:
    """Rows of every shard that no stage upstream has rejected (with `behind`, nor the stage itself), computed from
    statuses and verdicts, independently of the engine's masks."""
    whole = pipeline(Mixed(namespace="contract"))
    shards = made.shards_of(name)
    tables = [made.storage.read_table(shard.table) for shard in shards]
    masks = [table.column("reject").is_null().to_numpy() for table in tables]
    for up in [*whole.along(name), *([whole.nodes[name]] if behind else [])]:
        if isinstance(up.stage, Map) and made.shards_of(up.name) == shards:
            for mask, (_, table) in zip(masks, made.facts(up.name), strict=True):
                bad = table.column(facts.STATUS_COLUMN).to_numpy() != facts.DONE
                mask[table.column(facts.ROW).to_numpy()[bad]] = False
        elif isinstance(up.stage, Filter):
            for mask, (_, fate) in zip(masks, made.fates(up.name), strict=True):
                mask[fate.stage == made.order[up.name]] = False
    return masks


def alive_rows(made: Output, name: str, stage: Filter) -> pa.Table:
    """Rows alive before a filter, with what it reads."""
    parts = []
    makers = pipeline(Mixed(namespace="contract"))
    for number, (shard, mask) in enumerate(zip(made.shards, alive(made, name), strict=True)):
        table = made.storage.read_table(shard.table)
        for column in stage.reads():
            maker = makers.maker(name, column)
            if maker is not None:
                found = facts.expanded(made.facts(maker)[number][1], shard.rows, [column])
                place = table.schema.get_field_index(column)
                table = table.drop_columns(column) if place >= 0 else table
                table = table.append_column(found.schema.field(0), found.column(0))
        parts.append(table.select(["key", *stage.reads()]).filter(pa.array(mask)))
    return pa.concat_tables(parts)


def alive_before_derive(made: Output, name: str) -> set[str]:
    [parent] = pipeline(Mixed(namespace="contract")).nodes[name].inputs
    masks = alive(made, parent, behind=True)
    return {made.keys(s)[row] for s, mask in zip(made.shards, masks, strict=True) for row in np.flatnonzero(mask)}


# --- goldens ----------------------------------------------------------------------------------------------------------


def golden(value: Any) -> dict[str, Any]:
    """A digest of all but the floats, and a few sums of the floats, which tolerate the last bits of another CPU."""
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


def goldens_of(output: Output | None, op: str, stage: Stage) -> dict[str, Any]:
    return {
        "version": stage.version,
        "fingerprint": digest([stage.op, stage.version, stage.parameters(), stage.identity(), stage.ports]),
        "output": golden(output.value(case(op), stage) if output else None),
    }


def update() -> None:
    """Write the goldens of all registered ops."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        os.environ["CURATE_WORDNET"] = str(write_wordnet(Path(place, "wordnet")))
        workspace = f"{place}/workspace"
        made = pipeline(Mixed(namespace="contract"))
        output = Output(workspace, run(made, workspace))
        for op in sorted(registry.OPS):
            if op in ELSEWHERE:
                found[op] = goldens_of(None, op, stage_of(op))
            elif op in SOURCES:
                files = Path(place, op)
                files.mkdir()
                source = stage_of(op, files)
                made_ = Pipeline().add("pool", source)
                found[op] = goldens_of(Output(f"{files}-ws", run(made_, f"{files}-ws")), op, neutral(source, files))
            else:
                found[op] = goldens_of(output, op, made.nodes[case(op)].stage)
    GOLDENS.write_text(json.dumps(found, indent=1) + "\n")


def neutral(source: Stage, place: Path) -> Stage:
    """A source without the path of its files, which differs in every test."""
    return source.model_copy(update={"path": str(source.path).replace(str(place), "PLACE")})  # type: ignore[attr-defined]


if __name__ == "__main__":
    if sys.argv[1:] != ["update"]:
        sys.exit("usage: python -m tests.engine.contract update")
    update()
