"""Runs over a pool of videos: frames, embeddings, copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curate.core.nouns import facts
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.engine.run import run
from tests.engine.output import Output
from tests.video.pool import Films

STAGES: dict[str, tuple[str, Any, dict[str, Any], dict[str, str]]] = {
    "inspect": ("video.inspect", "pool", {}, {}),
    "look": ("video.look", "pool", {}, {}),
    "frames": ("video.frames", "look", {"namespace": "frames", "frames": 3}, {}),
    "seen": ("image.inspect", "frames", {}, {}),
    "widths": (
        "derive.roll_up", "look", {"column": "width", "how": "max", "into": "frame_width"}, {"children": "seen"}
    ),
    "embed": ("video.embed", "look", {"frames": 3}, {}),
    "sets": ("duplicates.videos", "look", {}, {}),
    "members": ("duplicates.members", "look", {}, {"sets": "sets"}),
    "unique": ("duplicates.drop", "members", {}, {}),
    "tree": ("cluster.fit", "embed", {"levels": [2], "rounds": 1, "iterations": 3}, {}),
    "meanings": ("duplicates.semantic", "embed", {"eps": 0.02, "level": 1}, {"tree": "tree"}),
    "meant": ("duplicates.members", "embed", {"column": "semantic"}, {"sets": "meanings"}),
}  # fmt: skip


def pipeline() -> Pipeline:
    made = Pipeline().add("pool", Films(namespace="films"))
    for name, (op, inputs, parameters, ports) in STAGES.items():
        made.add(name, registry.resolve(op)(**parameters), inputs, **ports)
    return made.check()


def test_a_run_over_videos(tmp_path: Path) -> None:
    made = Output(str(tmp_path), run(pipeline(), str(tmp_path)))
    names = {
        row["key"]: row["source_id"]
        for shard in made.shards
        for row in made.storage.read_table(shard.table).to_pylist()
    }

    def column(stage: str, name: str) -> dict[str, Any]:
        found = {}
        for shard, table in made.facts(stage):
            every = facts.expanded(table, shard.rows, [name])
            keys = made.storage.read_table(shard.table).column("key").to_pylist()
            found |= {
                names.get(key, key): value for key, value in zip(keys, every.column(name).to_pylist(), strict=True)
            }
        return found

    sets = {name: names.get(key or "") for name, key in column("members", "duplicate_set").items()}
    assert sets["film"] == sets["again"] == sets["smaller"] == sets["trimmed"]
    assert sets["film"] in ("film", "again") and sets["other"] == "other"
    meant = {name: names.get(key or "") for name, key in column("meant", "semantic_set").items()}
    assert meant["film"] == meant["again"] == meant["smaller"] != meant["other"]
    assert column("widths", "frame_width")["smaller"] == 96
    assert column("widths", "frame_width")["film"] == 160
    assert sum(shard.rows for shard in made.shards_of("seen")) == 15
    assert column("inspect", "codec") == {
        "film": "mpeg4", "again": "mjpeg", "smaller": "mpeg4", "trimmed": "mpeg4", "other": "mpeg4", "text": None,
        "empty": None,
    }  # fmt: skip
    vectors = column("embed", "embedding")
    embedded = {name for name, vector in vectors.items() if vector is not None}
    assert embedded == {"film", "again", "smaller", "trimmed", "other"}
