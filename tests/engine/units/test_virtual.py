"""Virtual children, which are extracted from their parents when they are read."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from curate.api import Workspace
from curate.codec.members import member_columns, read_members
from curate.core.contracts import Child, Derive, Sample
from curate.core.errors import InputError, Reject, StageError
from curate.core.nouns import tombstones
from curate.core.nouns.pools import EXTRACTED, is_virtual, read_shards
from curate.core.recipe.load import load
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.core.store.storage import open_storage
from curate.engine.record import claims, gc
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.image.frames import Frames
from tests.codec import make_images
from tests.codec.test_frames import movie, noises
from tests.draw import drawn
from tests.engine import toys, workspaces
from tests.engine.deaths import deaths
from tests.engine.forks import Drivers

ALL = Options(failure_budget=1.0)
FRAMES = {"a.gif": 4, "b.png": 3, "c.webp": 2, "d.tif": 3, "e.jpg": 1}
OPTIONS: dict[str, dict[str, Any]] = {"gif": {"duration": 100}, "png": {"duration": 50}, "webp": {"duration": 80}}
MODULES = ("acquire.folder", "encoders.descriptor", "image.embed", "image.frames", "image.inspect", "pack.webdataset")
"""What each driver would import again."""


@pytest.fixture(scope="module")
def folder(memory: Path) -> Iterator[Path]:
    made = memory / "virtual-movies"
    made.mkdir()
    for number, (name, count) in enumerate(FRAMES.items()):
        kind, images = name.rpartition(".")[2], noises(9)[number : number + count]
        format = {"tif": "TIFF"}.get(kind, kind.upper())
        data = movie(format, images, **OPTIONS.get(kind, {})) if count > 1 else None
        (made / name).write_bytes(data or make_images.encoded(images[0], "JPEG"))
    yield made
    shutil.rmtree(made)


def recipe(folder: Path, bytes: str = "virtual", upto: str = "dataset", **more: Any) -> dict[str, Any]:
    stages: dict[str, dict[str, Any]] = {
        "pool": {"op": "acquire.folder", "path": str(folder), "namespace": "movies", "shard_rows": 2} | more,
        "frames": {"op": "image.frames", "from": "pool", "namespace": "frames", "bytes": bytes},
        "inspect": {"op": "image.inspect", "from": "frames", "threads": 1},
        "embed": {"op": "image.embed", "from": "inspect", "threads": 1},
        "all": {"op": "select.all", "from": "embed"},
        "dataset": {"op": "pack.webdataset", "from": "all", "name": "frames", "shard_rows": 5, "carry": ["span"]},
    }
    return {"stages": dict(list(stages.items())[: list(stages).index(upto) + 1])}


def written(path: Path, made: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path


def ran(tmp_path: Path, workspace: Path, made: dict[str, Any], **more: Any) -> Result:
    return run(load(written(tmp_path / "recipe.yaml", made)), str(workspace), **more)


def children(result: Result) -> list[dict[str, Any]]:
    url, base = result.outputs["frames"].split("/pools/")
    storage = open_storage(url)
    return [
        row for shard in read_shards(storage, f"pools/{base}") for row in storage.read_table(shard.table).to_pylist()
    ]


def tars(result: Result) -> dict[str, bytes]:
    dataset = open_storage(result.outputs["dataset"])
    return {name: dataset.read(name) for name in dataset.list("") if name.endswith(".tar")}


def vectors(workspace: Path) -> dict[str, list[float]]:
    page = Workspace(str(workspace)).table("one", "embed", ["key", "embedding"])
    return {row["key"]: row["embedding"] for row in page.table.to_pylist()}


def test_virtual_children_give_the_same_dataset_as_stored_ones(folder: Path, memory: Path, tmp_path: Path) -> None:
    places = {kind: memory / f"both-{kind}" for kind in ("virtual", "stored")}
    made = {kind: ran(tmp_path, place, recipe(folder, kind), run_id="one") for kind, place in places.items()}
    virtual, stored = made["virtual"], made["stored"]
    assert virtual.ledger == stored.ledger and virtual.ledger["frames"].children == sum(FRAMES.values())
    assert tars(virtual) == tars(stored) and len(tars(virtual)) == 3
    ours, theirs = children(virtual), children(stored)
    apart = {"sha256": "", "offset": 0, "size": 0}
    assert [row | apart for row in ours] == [row | apart for row in theirs]
    assert len({row["sha256"] for row in ours}) == len(ours)
    assert all(row["sha256"].startswith(EXTRACTED) for row in ours)
    assert len(vectors(places["virtual"])) == len(ours) and vectors(places["virtual"]) == vectors(places["stored"])
    assert not list(places["virtual"].glob("pools/frames/**/*.tar"))
    assert list(places["stored"].glob("pools/frames/**/*.tar"))
    for place in places.values():
        shutil.rmtree(place)


def test_children_of_virtual_children(folder: Path, workspace: Path, tmp_path: Path) -> None:
    """A page of a page: the bytes come from the pool at the top."""
    made = recipe(folder, upto="frames")
    again = {"op": "image.frames", "from": "frames", "namespace": "again", "bytes": "virtual"}
    result = ran(tmp_path, workspace, {"stages": made["stages"] | {"again": again}})
    storage = open_storage(str(workspace))
    found = {}
    for name in ("frames", "again"):
        for shard in read_shards(storage, result.outputs[name].removeprefix(f"{storage.url}/")):
            table = storage.read_table(shard.table)
            data = read_members(storage, shard, table.select(member_columns([shard])).to_pydict())
            assert is_virtual(shard)
            key = table.column("key" if name == "frames" else "parent").to_pylist()
            found |= {(name, one): part.bytes() for one, part in zip(key, data, strict=True)}
    assert len(found) == 2 * sum(FRAMES.values())
    assert all(found["again", key] == data for (name, key), data in found.items() if name == "frames")


def test_rows_asked_in_any_order_are_extracted(folder: Path, workspace: Path, tmp_path: Path) -> None:
    result = ran(tmp_path, workspace, recipe(folder, upto="frames"))
    storage = open_storage(str(workspace))
    [shard, *_] = read_shards(storage, result.outputs["frames"].removeprefix(f"{storage.url}/"))
    table = storage.read_table(shard.table).select(member_columns([shard]))
    there = [one.bytes() for one in read_members(storage, shard, table.to_pydict())]
    some = [5, 0, 0, 6, 2]
    assert [one.bytes() for one in read_members(storage, shard, table.take(some).to_pydict())] == [
        there[row] for row in some
    ]
    assert not list(read_members(storage, shard, table.slice(0, 0).to_pydict()))


# --- what becomes of the parents --------------------------------------------------------------------------------------


def test_gc_keeps_the_tar_of_parents_while_a_derived_pool_is_named(
    folder: Path, workspace: Path, tmp_path: Path
) -> None:
    first = ran(tmp_path, workspace, recipe(folder), run_id="first")
    storage = open_storage(str(workspace))
    ran(tmp_path, workspace, recipe(folder, upto="frames"), run_id="kept")
    held = sorted(workspace.glob("pools/movies/shards/*"))

    def collect(*drop: str) -> None:
        with claims.exclusive(storage):
            garbage, runs = gc.unreachable(storage, drop=drop)
            gc.collect(storage, garbage, runs)

    collect("first")
    assert sorted(workspace.glob("pools/movies/shards/*")) == held and len(held) == 6
    for shard in read_shards(storage, first.outputs["frames"].removeprefix(f"{storage.url}/")):
        rows = storage.read_table(shard.table, columns=list(member_columns([shard]))).to_pydict()
        assert not [one for one in read_members(storage, shard, rows) if isinstance(one, Reject)]
    collect("kept")
    assert not list(workspace.glob("pools/movies/shards/*"))


def test_a_tombstone_of_a_parent_takes_its_children(folder: Path, workspace: Path, tmp_path: Path) -> None:
    first = ran(tmp_path, workspace, recipe(folder), run_id="first")
    storage = open_storage(str(workspace))
    child = next(row for row in children(first) if row["source_id"].startswith("b.png#"))
    story = {name: about for name, _, about in explain(latest(storage, None), child["key"])}
    assert story["frames"]["sha256"] == child["sha256"] and story["parent: pool"]["source_id"] == "b.png"
    assert story["dataset"]
    tombstones.add(storage, [story["parent: pool"]["sha256"]], "asked for")
    again = ran(tmp_path, workspace, recipe(folder))
    assert again.ledger["all"].rejected["tombstone"] == FRAMES["b.png"]
    assert not again.counts["frames"].computed and not again.counts["embed"].computed
    index = open_storage(again.outputs["dataset"]).read_table("index.parquet")
    assert index.num_rows == sum(FRAMES.values()) - FRAMES["b.png"]


def test_children_of_a_file_that_is_gone_or_changed_are_in_error(folder: Path, workspace: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(folder, tmp_path / "movies"))
    ran(tmp_path, workspace, recipe(here, upto="frames", in_place=True))
    (here / "a.gif").unlink()
    data = bytearray((here / "c.webp").read_bytes())
    data[-1] ^= 1
    before = os.stat(here / "c.webp")
    (here / "c.webp").write_bytes(data)
    os.utime(here / "c.webp", ns=(before.st_atime_ns, before.st_mtime_ns))
    storage = open_storage(str(workspace))
    shards = read_shards(storage, latest(storage, None).outputs["frames"]["base"])
    lost = []
    for shard in shards:
        rows = storage.read_table(shard.table, columns=list(member_columns([shard]))).to_pydict()
        lost += [str(one) for one in read_members(storage, shard, rows) if isinstance(one, Reject)]
    assert lost == ["vanished: a.gif"] * 4 + ["changed: c.webp: other bytes than when it was imported"] * 2


def test_a_file_that_goes_during_a_run_is_named_by_its_children(
    folder: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path(shutil.copytree(folder, tmp_path / "movies"))
    made = load(written(tmp_path / "recipe.yaml", recipe(here, in_place=True)))
    children_of = Frames.children

    def gone(self: Frames, sample: Any) -> Iterator[Any]:
        yield from children_of(self, sample)
        if sample.row["source_id"] == "a.gif":
            (here / "a.gif").unlink()

    monkeypatch.setattr(Frames, "children", gone)
    result = run(made, str(workspace), options=ALL)
    assert result.ledger["inspect"].error == {"vanished": 4} and result.ledger["all"].after == 9
    key = next(row["key"] for row in children(result) if row["source_id"].startswith("a.gif#"))
    story = {name: about for name, _, about in explain(latest(open_storage(str(workspace)), None), key)}
    assert story["inspect"]["reason"] == "vanished" and story["parent: pool"]["source_id"] == "a.gif"
    whole = recipe(here, in_place=True)
    whole["stages"]["all"]["from"] = "frames"
    (here / "a.gif").write_bytes((folder / "a.gif").read_bytes())

    def later(self: Any, *given: Any) -> Any:
        (here / "b.png").unlink(missing_ok=True)
        return plan(self, *given)

    select = resolve("select.all")
    plan = select.plan
    monkeypatch.setattr(Frames, "children", children_of)
    monkeypatch.setattr(select, "plan", later)
    with pytest.raises(
        StageError, match=r"^dataset: \S+/movies/: vanished: b\.png; restore the file, or run the recipe"
    ):
        ran(tmp_path, workspace, whole, options=ALL)


class Liar(Derive):
    """Says that its children are virtual, and gives bytes."""

    op: ClassVar[str] = "toy.liar"
    child_kind: ClassVar[str] = "lie"
    namespace: str = "lies"

    @property
    def virtual(self) -> bool:
        return True

    def children(self, sample: Sample) -> Iterator[Child]:
        yield Child({"frame": 0}, sample.data, "png")


def test_a_child_with_bytes_in_a_virtual_pool_is_an_error_of_its_parent(workspace: Path) -> None:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=3), ()).add("lies", Liar(), "pool")
    with pytest.raises(InputError, match=r"toy\.liar made no samples from 3 parents; they are ValueError 3"):
        run(pipeline.check(), str(workspace), options=ALL)


# --- kills and engines ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(folder: Path, memory: Path) -> Iterator[tuple[Path, Path, list[str]]]:
    """A run in another process: its recipe, its workspace and its points."""
    made, log = written(memory / "virtual.yaml", recipe(folder)), memory / "virtual.log"
    with Drivers(*(f"curate.{name}" for name in MODULES)) as drivers:
        said = drivers.run(memory / "virtual-clean", recipe=str(made), environment={"CURATE_FAULT_LOG": str(log)})
    assert said["error"] is None
    points = [line for line in log.read_text().splitlines() if "pools/frames/" in line or "datasets/" in line]
    yield made, memory / "virtual-clean", points
    shutil.rmtree(memory / "virtual-clean")


@pytest.mark.long
def test_killed_at_every_point(memory: Path, undisturbed: tuple[Path, Path, list[str]]) -> None:
    made, clean, points = undisturbed
    assert len(points) > 10 and not [point for point in points if "pools/frames/" in point and ".tar" in point]
    with Drivers(*(f"curate.{name}" for name in MODULES)) as drivers:
        for point in drawn(points):
            target = memory / "virtual-killed"
            killed = drivers.run(target, recipe=str(made), environment={"CURATE_FAULT_KILL": point})
            assert killed["signal"] == signal.SIGKILL, point
            assert drivers.run(target, recipe=str(made))["error"] is None
            workspaces.assert_same(clean, target)
            shutil.rmtree(target)


@pytest.mark.long
def test_the_other_engine_and_its_killed_workers_make_the_same(
    workspace: Path, tmp_path: Path, undisturbed: tuple[Path, Path, list[str]], on_ray: Any
) -> None:
    made, clean, _ = undisturbed
    points = ("publish:pools/frames/derived/*.parquet:published", "publish:datasets/*.tar:published")
    (tmp_path / "deaths").mkdir()
    with deaths(on_ray, drawn(points), tmp_path / "deaths"):
        run(load(made), str(workspace), engine=on_ray)
    workspaces.assert_same(clean, workspace)
    assert all(run(load(made), str(workspace)).reused.values())
