"""Pools of other media than images, of which there are only toys; pools of images are as they were before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.api import Workspace, make_stage
from curate.codec import media
from curate.core.contracts import Batch, Child, Derive, Incoming, Map, Portion, Sample
from curate.core.errors import InputError, RecipeError, Undecodable
from curate.core.nouns.pools import MEDIA_COLUMNS, POOL_SCHEMA, pool_table, read_pool, read_shards
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import run
from curate.engine.units.common import content_id
from tests.engine import toys

STORED = dict.fromkeys(POOL_SCHEMA.names) | {
    "key": "0" * 32, "source_id": "a.jpg", "name": "a", "offset": 512, "size": 9, "ext": "jpg", "width": 4,
    "height": 3, "format": "jpeg", "sha256": "f" * 64, "meta": "{}",
}  # fmt: skip
LOST = STORED | {"key": "1" * 32, "offset": None, "size": None, "reject": "timeout", "status": "error"}


class Reels(toys.Numbers):
    """Toy videos: the word, then an image."""

    op: ClassVar[str] = "toy.reels"
    media: ClassVar[tuple[str, ...]] = ("reel",)

    def read(self, portion: Portion) -> Iterator[Incoming]:
        for item in super().read(portion):
            yield replace(item, ext="reel", data=b"reel" + (item.data or b""))


class Watch(toys.Brightness):
    op: ClassVar[str] = "toy.watch"
    sees: ClassVar[tuple[str, ...]] = ("reel",)


class Stills(Derive):
    op: ClassVar[str] = "toy.stills"
    sees: ClassVar[tuple[str, ...]] = ("reel",)
    child_kind: ClassVar[str] = "still"
    namespace: str = "stills"

    def children(self, sample: Sample) -> Iterator[Child]:
        yield Child({"frame": 0}, sample.data[4:], "bmp")


class Rate(Map):
    """A user's own column with the name of a pool's."""

    op: ClassVar[str] = "toy.rate"

    def schema(self) -> pa.Schema:
        return pa.schema([("fps", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {"fps": [f"rate of {key[:4]}" for key in batch.column("key")]}


def probe(data: bytes) -> SimpleNamespace:
    if len(data) < 8:
        raise Undecodable("truncated", "no image")
    return SimpleNamespace(width=8, height=8, format="reel", duration_ms=1500, fps=24.0, frames=36, has_audio=False)


@pytest.fixture
def reel(monkeypatch: pytest.MonkeyPatch) -> media.Medium:
    """A medium that samples of `Reels` are of."""
    made = replace(
        media.DEFAULT, name="reel", version=7, probe=probe, sniff=lambda data: "reel" if data[:4] == b"reel" else None,
        open=lambda data, *given, **more: media.DEFAULT.open(data[4:], *given, **more),
    )  # fmt: skip
    monkeypatch.setitem(media.MEDIA, "reel", made)
    monkeypatch.setitem(registry.OPS, "toy.stills", f"{__name__}:Stills")
    return made


@pytest.mark.parametrize(
    ("rows", "identity"),
    [
        ([STORED, LOST], "b4a1ca9f4b5294b6a80ca5718fc89ecd"),
        ([STORED | {"source": "x"}, LOST | {"source": "y"}], "5ca7e71a7678c0d6492f49b680f1f0e9"),
    ],
)
def test_a_shard_of_images_has_the_id_that_it_had_before_there_were_other_media(rows: Any, identity: str) -> None:
    table = pool_table(rows)
    assert content_id(table) == identity
    assert not set(MEDIA_COLUMNS) & set(table.column_names)
    assert content_id(pool_table([rows[0] | {"has_audio": False}, rows[1]])) != identity


def test_a_pool_of_another_medium_has_what_its_header_says(reel: media.Medium, tmp_path: Path) -> None:
    pipeline = Pipeline().add("pool", Reels(namespace="reels", rows=4)).add("stills", Stills(), "pool")
    pipeline.add("bright", toys.Brightness(), "stills").add(
        "rate", make_stage("filter.where", keep="fps > 20", reason="slow"), "pool"
    )
    result = run(pipeline.check(), str(tmp_path / "w"), run_id="one")
    assert result.ledger["bright"].after == result.ledger["rate"].after == 4
    storage = open_storage(str(tmp_path / "w"))
    shard = read_shards(storage, str(Path(result.outputs["pool"]).relative_to(tmp_path / "w")))[0]
    table = read_pool(storage, shard.table)
    assert table.select([name for name in MEDIA_COLUMNS if name != "kind"]).to_pylist()[0] == {
        "media": "reel", "duration_ms": 1500, "fps": 24.0, "frames": 36, "has_audio": False,
    }  # fmt: skip
    assert content_id(table) == shard.id
    workspace = Workspace(str(tmp_path / "w"))
    assert workspace.table("one", "rate", ["fps", "media"]).table.to_pylist() == [{"fps": 24.0, "media": "reel"}] * 4
    with pytest.raises(InputError, match="frames: no stage over the rows of bright writes this column"):
        workspace.table("one", "bright", ["frames"])


def test_a_stage_gets_what_the_medium_of_its_sample_opens(reel: media.Medium, tmp_path: Path) -> None:
    pipeline = Pipeline().add("pool", Reels(namespace="reels", rows=4)).add("seen", Watch(), "pool")
    assert run(pipeline.check(), str(tmp_path)).ledger["seen"].after == 4


def test_a_column_of_a_user_may_have_the_name_of_a_column_of_other_media(tmp_path: Path) -> None:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="n", rows=4)).add("rate", Rate(), "pool")
    pipeline.add("kept", make_stage("filter.where", keep="strpos(fps, 'rate') = 1", reason="odd"), "rate")
    pipeline.add("all", make_stage("select.all"), "kept")
    pipeline.add("dataset", make_stage("pack.webdataset", name="rates", carry=["fps"]), "all")
    result = run(pipeline.check(), str(tmp_path / "w"), run_id="one")
    assert result.ledger["kept"].after == 4
    found = Workspace(str(tmp_path / "w")).table("one", "kept", ["key", "fps"]).table.to_pylist()
    assert [row["fps"] for row in found] == [f"rate of {row['key'][:4]}" for row in found]
    index = pq.read_table(Path(result.outputs["dataset"]) / "index.parquet")
    assert sorted(index["fps"].to_pylist()) == sorted(row["fps"] for row in found)


def test_a_column_of_other_media_is_missing_in_a_pool_of_images() -> None:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="n"))
    pipeline.add("kept", make_stage("filter.where", keep="fps > 20", reason="slow"), "pool")
    with pytest.raises(RecipeError, match="column 'fps' is missing upstream"):
        pipeline.check()


@pytest.mark.parametrize(
    "stage", [toys.Brightness(), toys.PlainPack(), Stills(), make_stage("image.frames", namespace="f")]
)
def test_a_stage_that_opens_samples_needs_a_medium_that_it_sees(reel: media.Medium, stage: Any) -> None:
    if isinstance(stage, Stills):
        source, hint = toys.Numbers(namespace="n"), "image; give it a pool of reel samples"
    else:
        source, hint = Reels(namespace="n"), "reel; put toy.stills before it, which makes image samples of them"
    sees = stage.sees[0]
    pipeline = Pipeline().add("pool", source).add("all", make_stage("select.all"), "pool")
    pipeline.add("stage", stage, "all" if isinstance(stage, toys.PlainPack) else "pool", place="r.yaml:9")
    with pytest.raises(RecipeError) as caught:
        pipeline.check()
    assert str(caught.value) == f"r.yaml:9: stage: {stage.op} reads {sees} samples, but those of 'pool' are {hint}"


class Both(toys.Brightness):
    op: ClassVar[str] = "toy.both"
    sees: ClassVar[tuple[str, ...]] = ("image", "reel")


def test_the_version_of_a_medium_recomputes_what_saw_it_alone(
    reel: media.Medium, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A stage that sees both media, over images, is not computed again either."""

    def computed() -> dict[str, int]:
        pipeline = Pipeline().add("pool", toys.Numbers(namespace="n", rows=4)).add("bright", Both(), "pool")
        pipeline.add("reels", Reels(namespace="reels", rows=4)).add("stills", Stills(), "reels")
        result = run(pipeline.check(), str(tmp_path / "w"))
        return {name: not result.reused[name] for name in ("bright", "stills")}

    assert computed() == {"bright": True, "stills": True}
    monkeypatch.setitem(media.MEDIA, "reel", replace(reel, version=8))
    assert computed() == {"bright": False, "stills": True}
    monkeypatch.setitem(media.MEDIA, "image", replace(media.DEFAULT, version=2))
    assert computed() == {"bright": True, "stills": False}
