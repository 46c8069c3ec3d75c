"""Pools of files that stay in place: stages read the files themselves, and notice when one is no longer the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from curate.acquire.folder import AcquireFolder
from curate.core.contracts import Portion, Stage
from curate.core.errors import StageError
from curate.core.nouns import tombstones
from curate.core.nouns.pools import read_shards
from curate.core.recipe import registry
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.record import claims, gc
from curate.engine.record.explain import explain
from curate.engine.record.runs import latest
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import mixed, workspaces

ALL = Options(failure_budget=1.0)


class Planned(AcquireFolder):
    """Plans once: what changes afterwards changes during a run."""

    op: ClassVar[str] = "acquire.folder"
    portions: ClassVar[dict[str, list[Portion]]] = {}

    def plan(self) -> list[Portion]:
        return self.portions.setdefault(self.path, super().plan())


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    """24 images with every kind of row, some with captions."""
    mixed.folder(tmp_path / "images")
    yield tmp_path / "images"
    Planned.portions.clear()


def pipeline(images: Path, source: type[AcquireFolder] = AcquireFolder, upto: str = "report", **more: Any) -> Pipeline:
    stages: dict[str, tuple[Stage, Any]] = {
        "pool": (source(namespace="mine", shard_rows=10, **{"path": str(images), "in_place": True, **more}), ()),
        "inspect": (stage("image.inspect"), "pool"),
        "frames": (stage("image.frames", namespace="mine_frames", every=1), "inspect"),
        "seen": (stage("image.inspect"), "frames"),
        "all": (stage("select.all"), "inspect"),
        "dataset": (stage("pack.webdataset", name="mine", shard_rows=7), "all"),
        "report": (stage("report.html"), "dataset"),
    }
    made = Pipeline()
    for name in list(stages)[: list(stages).index(upto) + 1]:
        made.add(name, *stages[name])
    return made.check()


def stage(op: str, **parameters: Any) -> Stage:
    return registry.resolve(op)(**parameters)


def rows(result: Result, name: str = "pool") -> dict[str, dict[str, Any]]:
    """Rows of a pool by source id."""
    url, base = result.outputs[name].split("/pools/")
    storage = open_storage(url)
    shards = read_shards(storage, f"pools/{base}")
    return {row["source_id"]: row for shard in shards for row in storage.read_table(shard.table).to_pylist()}


def tars(result: Result) -> dict[str, bytes]:
    dataset = open_storage(result.outputs["dataset"])
    return {name: dataset.read(name) for name in dataset.list("") if name.endswith(".tar")}


def thumbnails(result: Result) -> int:
    return open_storage(result.outputs["report"]).read("index.html").count(b"data:image/webp")


def test_all_stages_make_the_same_of_files_in_place_as_of_copies(images: Path, workspace: Path, memory: Path) -> None:
    here = run(pipeline(images), str(workspace))
    copied = run(pipeline(images, in_place=False), str(memory / "copied"))
    assert here.ledger == copied.ledger
    assert rows(here, "frames") == rows(copied, "frames")
    ours, theirs = rows(here), rows(copied)
    assert {name: row | {"offset": 0} for name, row in theirs.items()} == ours
    assert tars(here) == tars(copied) and len(tars(here)) > 2
    assert thumbnails(here) == thumbnails(copied) > 0
    assert not list(workspace.glob("pools/mine/shards/*.tar"))
    assert len(list(memory.glob("copied/pools/mine/shards/*.tar"))) == 3
    shutil.rmtree(memory / "copied")


@pytest.mark.parametrize("in_place", [True, False])
def test_several_folders_are_one_pool_with_a_source(images: Path, workspace: Path, in_place: bool) -> None:
    """Frames inherit the source; `filter.where` and `carry` read it; the first folder keeps its keys."""
    alone = rows(run(pipeline(images, upto="pool", in_place=in_place), str(workspace)))
    shutil.copytree(images, images.parent / "phone")
    made = pipeline(images, upto="frames", in_place=in_place, path=(str(images), str(images.parent / "phone")))
    made.add("phone", stage("filter.where", keep="source = 'phone'", reason="other_source"), "inspect")
    made.add("all", stage("select.all"), "phone")
    made.add("dataset", stage("pack.webdataset", name="mine", shard_rows=7, carry=["source"]), "all")
    both = run(made.check(), str(workspace))
    keys = {name: row["key"] for name, row in rows(both).items() if row["source"] == "images"}
    assert keys == {name: row["key"] for name, row in alone.items()}
    assert {row["source"] for row in rows(both, "frames").values()} == {"images", "phone"}
    index = open_storage(both.outputs["dataset"]).read_table("index.parquet")
    assert index.num_rows == both.ledger["phone"].after > 0
    assert set(index.column("source").to_pylist()) == {"phone"}


def test_a_moved_folder_is_the_same_pool(images: Path, workspace: Path) -> None:
    first = run(pipeline(images), str(workspace))
    moved = shutil.move(images, images.parent / "moved")
    second = run(pipeline(moved), str(workspace))
    assert second.ledger == first.ledger and second.reused["inspect"] and second.reused["dataset"]
    assert rows(second) == rows(first) and second.outputs["pool"] != first.outputs["pool"]


def test_copies_are_separate_shards_that_reuse_costly_answers(images: Path, workspace: Path) -> None:
    def with_embeddings(in_place: bool) -> Result:
        made = pipeline(images, upto="inspect", in_place=in_place)
        return run(made.add("embed", stage("image.embed"), "inspect").check(), str(workspace))

    first = with_embeddings(in_place=True)
    copied = with_embeddings(in_place=False)
    assert not copied.reused["pool"] and len(list(workspace.glob("pools/mine/shards/*.tar"))) == 3
    assert first.counts["embed"].computed > 0 == copied.counts["embed"].computed
    assert copied.counts["embed"].copied == first.counts["embed"].computed + first.counts["embed"].copied
    assert all(with_embeddings(in_place=True).reused.values())


def damage(images: Path) -> dict[str, str]:
    """Delete a file, shorten one, and change one without changing its size. Returns their reasons."""
    files = sorted(path for path in images.rglob("*.bmp") if path.stat().st_size > 1000)[:3]
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].write_bytes(files[2].read_bytes()[::-1])
    reasons = ("vanished", "changed", "changed")
    return {str(file.relative_to(images)): reason for file, reason in zip(files, reasons, strict=True)}


@pytest.mark.usefixtures("at_once")
def test_a_file_that_is_no_longer_the_same_is_an_error_of_its_row(images: Path, workspace: Path) -> None:
    whole = images.parent / "whole"
    shutil.copytree(images, whole)
    run(pipeline(images, Planned, upto="pool"), str(workspace))
    lost = damage(images)
    result = run(pipeline(images, Planned), str(workspace), options=ALL)
    assert result.ledger["inspect"].error == {"vanished": 1, "changed": 2}
    assert result.ledger["dataset"].before == result.ledger["inspect"].after
    record = latest(open_storage(str(workspace)), None)
    for name, reason in lost.items():
        told = next(about for place, _, about in explain(record, name) if place == "inspect")
        assert (told["status"], told["reason"]) == ("error", reason)
        assert any(one in told["message"] for one, other in lost.items() if other == reason)  # an example
    shutil.copytree(whole, images, dirs_exist_ok=True)
    mended = run(pipeline(images, Planned), str(workspace), options=Options(retry={"inspect": ("vanished", "changed")}))
    assert not mended.ledger["inspect"].error and mended.counts["inspect"].computed == 3


@pytest.mark.usefixtures("at_once")
def test_children_of_a_changed_file_are_not_made(images: Path, workspace: Path) -> None:
    run(pipeline(images, Planned, upto="inspect"), str(workspace))
    damage(images)
    result = run(pipeline(images, Planned, upto="seen"), str(workspace), options=ALL)
    assert result.ledger["frames"].error == {"vanished": 1, "changed": 2}


@pytest.mark.usefixtures("at_once")
def test_a_dataset_without_a_selected_file_is_not_built(images: Path, workspace: Path) -> None:
    run(pipeline(images, Planned, upto="all"), str(workspace))
    damage(images)
    with pytest.raises(StageError, match=rf"dataset: .*{images}/: vanished: .*bmp; restore the file, or run") as caught:
        run(pipeline(images, Planned), str(workspace))
    assert "\n" not in str(caught.value)
    result = run(pipeline(images), str(workspace))  # lists the folder again
    assert result.ledger["pool"].before == 23 and result.ledger["dataset"].before == result.ledger["all"].after


def test_a_report_shows_what_is_still_there(images: Path, workspace: Path) -> None:
    shown = thumbnails(run(pipeline(images, Planned), str(workspace)))
    shutil.rmtree(images / "family/0")
    shutil.rmtree(workspace / "artifacts/report.html")
    assert 0 < thumbnails(run(pipeline(images, Planned), str(workspace))) < shown


def test_gc_removes_what_a_grown_folder_no_longer_needs(images: Path, workspace: Path) -> None:
    run(pipeline(images), str(workspace), run_id="first")
    before = workspaces.files(images)
    shutil.copy(images / "family/0/000.bmp", images / "family/3/zzz.bmp")
    run(pipeline(images), str(workspace), run_id="second")
    storage = open_storage(str(workspace))
    with claims.exclusive(storage):
        garbage, runs = gc.unreachable(storage, None, ("first",))
        gc.collect(storage, garbage, runs)
    kinds = {path.split("/")[2] for path in garbage if path.startswith("pools/mine/")}
    assert kinds == {"shards", "portions", "keys", "versions"}
    assert (
        len(list(workspace.glob("pools/mine/shards/*"))) == len(list(workspace.glob("pools/mine/portions/*.json"))) == 3
    )
    assert {name: workspaces.files(images)[name] for name in before} == before
    assert all(run(pipeline(images), str(workspace)).reused.values())


def test_tombstones_apply_to_files_in_place(images: Path, workspace: Path) -> None:
    first = run(pipeline(images), str(workspace))
    row = next(row for row in rows(first).values() if row["width"])
    tombstones.add(open_storage(str(workspace)), [row["sha256"]], "asked for")
    assert row["key"].encode() in b"".join(tars(first).values())
    assert row["key"].encode() not in b"".join(tars(run(pipeline(images), str(workspace))).values())
