"""Teachers' features are computed once and then read by training."""

import shutil
from itertools import islice

import pyarrow as pa
import pytest
import torch
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from curate.core.store.storage import Storage
from distill.commands.teach import CacheWriter, jobs_of, teach
from distill.context import StageContext
from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_mixture
from distill.teachers.feature_cache import cache_key, open_caches
from distill.training.trainer import Trainer
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

DINO = "timm:vit_small_patch16_dinov3?depth=1&embed_dim=16&num_heads=2&patch_size=8&img_size=32&random=7"
QUIET = Console(quiet=True)


def values_of(folder, place, **changes):
    values = recipe_values(str(folder), str(place / "run"))
    values["student"]["registers"] = 4
    values["run"]["teacher_cache"] = str(place / "features")
    values["teachers"] = [
        {"encoder": DINO, "name": "native", "pictures": "student"},
        {"encoder": "descriptor"},
        {"encoder": DINO, "name": "own", "keep": "float16"},
    ]
    return values | changes


def context_of(values):
    recipe = parse_recipe(values, "test")
    return StageContext.of(recipe, open_mixture(recipe.data), World(0, 1, torch.device("cpu")))


@pytest.fixture(scope="module")
def taught(folder, tmp_path_factory):
    """Values of a recipe, and its filled teacher_cache."""
    place = tmp_path_factory.mktemp("taught")
    values = values_of(folder, place)
    return values, teach(parse_recipe(values, "test"), QUIET)


def assert_near(one, two):
    for kind in ("summary", "patches", "registers"):
        first, second = getattr(one, kind), getattr(two, kind)
        assert (first is None) == (second is None)
        assert first is None or torch.allclose(first, second, atol=1e-5)


def test_cached_features_equal_computed_ones(taught, dataset):
    values, _ = taught
    reading = context_of(values)
    computing = context_of({**values, "run": {**values["run"], "teacher_cache": None}})
    rows = [7, 0, 59, 33, 7]
    cached, computed = (
        context.teachers.targets([context.reader.get(row) for row in rows]) for context in (reading, computing)
    )
    assert reading.reader.get(3).prepared == {}
    assert computing.reader.get(3).prepared.keys() == {"descriptor", "own"}
    assert reading.teachers.counts == {"read": 12}
    assert computing.teachers.counts == {"computed": 12}
    for one, two in zip(cached, computed, strict=True):
        assert_near(one, two)
    assert torch.equal(cached[1].summary, computed[1].summary)
    caches = open_caches(reading.recipe, reading.dataset)
    assert [len(item) for item in caches.values()] == [60, 60, 60]
    assert caches["native"].get(0).patches.dtype == torch.float32
    assert caches["own"].get(0).patches.dtype == torch.float16


def test_training_with_features_on_disk_gives_the_same_losses(folder, tmp_path):
    """Exactly, because the features of `descriptor` do not depend on the batch."""
    values = recipe_values(str(folder), str(tmp_path / "run"))
    cached = {**values, "run": {**values["run"], "teacher_cache": str(tmp_path / "features")}}
    teach(parse_recipe(cached, "test"), QUIET)
    losses = []
    for each in (values, cached):
        trainer = Trainer(context_of(each), "fingerprint")
        losses.append([trainer.update(share)[0]["loss"] for share in islice(trainer.loader, 3)])
    assert losses[0] == losses[1]
    assert trainer.context.teachers.counts.keys() == {"read"}
    assert parse_recipe(cached, "test").semantic() == parse_recipe(values, "test").semantic()


def test_existing_files_stay_and_missing_ones_are_computed(taught, tmp_path):
    values, folder = taught
    again = tmp_path / "features"
    shutil.copytree(folder, again)
    lost = sorted(again.rglob("*.arrow"))[3]
    kept = {path: path.stat().st_mtime_ns for path in again.rglob("*.arrow") if path != lost}
    before = lost.read_bytes()
    lost.unlink()
    console = Console(file=(tmp_path / "output").open("w"), width=500)
    recipe = parse_recipe({**values, "run": {**values["run"], "teacher_cache": str(again)}}, "test")
    teach(recipe, console)
    console.file.close()
    assert len(lost.read_bytes()) == len(before)
    assert kept == {path: path.stat().st_mtime_ns for path in again.rglob("*.arrow") if path != lost}
    printed = (tmp_path / "output").read_text()
    assert "10 images, per image native " in printed
    assert "10 images computed, 0 unreadable, 50 cached before" in printed
    assert not list(again.rglob("*.tmp*"))


def test_unreadable_images_are_counted_and_absent(tmp_path):
    items = drawn_items(20)
    items[4].data = items[4].data[:60]
    folder = write_dataset(tmp_path / "data", items)
    console = Console(file=(tmp_path / "output").open("w"), width=500)
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    teach(recipe, console)
    console.file.close()
    assert "19 images computed, 1 unreadable, 0 cached before" in (tmp_path / "output").read_text()
    cache = open_caches(recipe, open_mixture(recipe.data))["descriptor"]
    assert [cache.has(row) for row in (3, 4, 5)] == [True, False, True]
    assert cache.get(4) is None


@pytest.mark.parametrize(
    ("change", "native", "own"),
    [
        ({"student": {"patch": 16}}, False, True),
        ({"data": {"sources": [{"max_tokens": 32}]}}, False, True),
        ({"data": {"sources": [{"max_tokens": {16: 1, 32: 1}}]}}, None, True),
        ({"data": {"augment": {"flip": True}}}, None, None),
        ({"teachers": [{"precision": "bfloat16"}, {}, {"precision": "bfloat16"}]}, False, False),
        ({"teachers": [{"keep": "float16"}, {}, {"keep": "float32"}]}, False, False),
        ({"train": {"steps": 9}, "seed": 4}, True, True),
    ],
)
def test_the_cache_key_covers_everything_that_features_depend_on(taught, change, native, own):
    """native, own: whether the cache is reused; None if features differ between epochs and cannot be cached."""
    values = _changed(taught[0], change)
    recipe = parse_recipe(values, "test")
    caches = open_caches(recipe, open_mixture(recipe.data))
    assert len(caches["native"]) == (60 if native else 0)
    assert len(caches["own"]) == (60 if own else 0)
    if native is None and own is None:
        with pytest.raises(RecipeError, match=r"nothing to cache: .*data\.augment"):
            jobs_of(recipe, [open_mixture(recipe.data)])


class Rank(World):
    """One of two ranks that run in turn; `gathered` holds the values of both."""

    def __init__(self, rank, gathered):
        super().__init__(rank, 2, torch.device("cpu"))
        object.__setattr__(self, "gathered", gathered)

    def gather(self, value):
        self.gathered.append(value)
        return [self.gathered[0], value]

    def sum(self, values):
        return values


def test_ranks_divide_the_shards_whenever_they_look(folder, tmp_path):
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    (job,) = jobs_of(recipe, [open_mixture(recipe.data)])
    gathered = []
    (tmp_path / "features").mkdir()
    for rank in range(2):
        CacheWriter(recipe, Storage(str(tmp_path / "features")), Rank(rank, gathered), QUIET).write(job)
    assert gathered == [[0, 1, 2, 3, 4, 5], [1, 3, 5]]
    assert len(open_caches(recipe, open_mixture(recipe.data))["descriptor"]) == 60


def corrupted(data, harm):
    if harm == "schema":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema([("a", pa.int64())])) as file:
            file.write_table(pa.table({"a": [1]}))
        return sink.getvalue().to_pybytes()
    if harm == "flipped":
        place = len(data) // 2
        return data[:place] + bytes(255 - byte for byte in data[place : place + 64]) + data[place + 64 :]
    return {"truncated": data[: len(data) // 2], "empty": b"", "words": b"these are words"}[harm]


@pytest.mark.parametrize("harm", ["truncated", "empty", "words", "schema", "flipped"])
def test_corrupt_files_are_one_line_and_recomputed(folder, tmp_path, caplog, harm):
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    teach(recipe, QUIET)
    file = next((tmp_path / "features").rglob("000002.arrow"))
    whole = file.read_bytes()
    file.write_bytes(corrupted(whole, harm))

    def read():
        cache = open_caches(recipe, open_mixture(recipe.data))["descriptor"]
        return [cache.get(row) for row in range(60)]

    with pytest.raises(InputError, match=r"cannot read .*000002\.arrow \(.*\); remove it and run `dist") as error:
        read()
    assert "\n" not in str(error.value)
    if harm == "flipped":
        file.unlink()
    teach(recipe, QUIET)
    assert file.read_bytes() == whole
    assert [record.message for record in caplog.records if "recomputing it" in record.message] or harm == "flipped"


def test_the_cache_key_covers_how_images_are_decoded(taught, dataset):
    """With a teacher that reads whole images, JPEGs are not decoded at a reduced size."""
    values, _ = taught
    keys = set()
    for teachers in (values["teachers"][:1], values["teachers"][:2]):
        recipe = parse_recipe({**values, "teachers": teachers}, "test")
        keys.add(cache_key(dataset, recipe.data.sources[0], recipe.teachers[0], recipe))
    assert len(keys) == 2


def _changed(values, change):
    if isinstance(change, dict) and isinstance(values, dict):
        return {**values, **{name: _changed(values.get(name), item) for name, item in change.items()}}
    if isinstance(change, list) and change and isinstance(change[0], dict):
        return [_changed(one, two) for one, two in zip(values, change, strict=True)]
    return change


def test_mistakes_are_one_line(taught, tmp_path, monkeypatch):
    values, folder = taught
    none = {**values, "run": {**values["run"], "teacher_cache": None}}
    with pytest.raises(RecipeError, match=r"run\.teacher_cache: missing; name the folder to fill"):
        teach(parse_recipe(none, "test"), QUIET)
    broken = tmp_path / "features"
    shutil.copytree(folder, broken)
    path = sorted(broken.rglob("*.arrow"))[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"cannot read .*\.arrow .*run `distill teach` again") as error:
        context_of({**values, "run": {**values["run"], "teacher_cache": str(broken)}})
    assert "\n" not in str(error.value)
    small = shutil._ntuple_diskusage(1000, 0, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    full = {**values, "run": {**values["run"], "teacher_cache": str(tmp_path / "other")}}
    with pytest.raises(InputError, match=r"GB needed, 0\.0 GB free in .*keep: float16"):
        teach(parse_recipe(full, "test"), QUIET)


def test_the_files_are_arrow(taught):
    path = sorted(taught[1].rglob("*.arrow"))[0]
    table = pa.ipc.open_file(str(path)).read_all()
    assert table.column_names == ["row", "summary", "patches", "rows", "columns", "registers", "count", "check"]
    assert table.num_rows == 10
