"""Features of teachers as columns: computed once, read by training."""

import shutil
from itertools import islice

import pyarrow as pa
import pytest
import torch
from rich.console import Console

from curate.core.errors import InputError, RecipeError
from curate.core.store.storage import Storage
from distill import commands
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_blend
from distill.teachers.columns import columns_key, open_columns
from distill.teachers.teach import _Teaching, jobs_of
from distill.training.parallel import World
from distill.training.trainer import Trainer
from distill.workbench import Workbench
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


def bench_of(values):
    recipe = parse_recipe(values, "test")
    return Workbench.of(recipe, open_blend(recipe.data), World(0, 1, torch.device("cpu")))


@pytest.fixture(scope="module")
def taught(folder, tmp_path_factory):
    """Values of a recipe, and the folder that was filled for it."""
    place = tmp_path_factory.mktemp("taught")
    values = values_of(folder, place)
    return values, commands.teach(parse_recipe(values, "test"), QUIET)


def assert_near(one, two):
    for kind in ("summary", "patches", "registers"):
        first, second = getattr(one, kind), getattr(two, kind)
        assert (first is None) == (second is None)
        assert first is None or torch.allclose(first, second, atol=1e-5)


def test_what_is_read_is_what_is_computed(taught, dataset):
    values, _ = taught
    reading = bench_of(values)
    asking = bench_of({**values, "run": {**values["run"], "teacher_cache": None}})
    rows = [7, 0, 59, 33, 7]
    found, wanted = (bench.teachers.targets([bench.pictures.get(row) for row in rows]) for bench in (reading, asking))
    assert reading.pictures.get(3).prepared == {}
    assert asking.pictures.get(3).prepared.keys() == {"descriptor", "own"}
    assert reading.teachers.answers == {"read": 12}
    assert asking.teachers.answers == {"computed": 12}
    for one, two in zip(found, wanted, strict=True):
        assert_near(one, two)
    assert torch.equal(found[1].summary, wanted[1].summary)
    columns = open_columns(reading.recipe, reading.dataset)
    assert [len(item) for item in columns.values()] == [60, 60, 60]
    assert columns["native"].get(0).patches.dtype == torch.float32
    assert columns["own"].get(0).patches.dtype == torch.float16


def test_training_with_features_on_disk_gives_the_same_losses(folder, tmp_path):
    """`descriptor` says the same in any company."""
    values = recipe_values(str(folder), str(tmp_path / "run"))
    cached = {**values, "run": {**values["run"], "teacher_cache": str(tmp_path / "features")}}
    commands.teach(parse_recipe(cached, "test"), QUIET)
    losses = []
    for each in (values, cached):
        trainer = Trainer(bench_of(each), "fingerprint")
        losses.append([trainer.take(share)[0]["loss"] for share in islice(trainer.loader, 3)])
    assert losses[0] == losses[1]
    assert trainer.bench.teachers.answers.keys() == {"read"}
    assert parse_recipe(cached, "test").semantic() == parse_recipe(values, "test").semantic()


def test_what_is_there_is_left_alone_and_what_is_missing_is_computed(taught, tmp_path):
    values, folder = taught
    again = tmp_path / "features"
    shutil.copytree(folder, again)
    lost = sorted(again.rglob("*.arrow"))[3]
    kept = {path: path.stat().st_mtime_ns for path in again.rglob("*.arrow") if path != lost}
    before = lost.read_bytes()
    lost.unlink()
    console = Console(file=(tmp_path / "said").open("w"), width=500)
    recipe = parse_recipe({**values, "run": {**values["run"], "teacher_cache": str(again)}}, "test")
    commands.teach(recipe, console)
    console.file.close()
    assert len(lost.read_bytes()) == len(before)
    assert kept == {path: path.stat().st_mtime_ns for path in again.rglob("*.arrow") if path != lost}
    said = (tmp_path / "said").read_text()
    assert "10 pictures, each native " in said
    assert "asked about 10 pictures, 0 could not be read, 50 were known" in said
    assert not list(again.rglob("*.tmp*"))


def test_pictures_that_cannot_be_read_are_counted_and_absent(tmp_path):
    items = drawn_items(20)
    items[4].data = items[4].data[:60]
    folder = write_dataset(tmp_path / "data", items)
    console = Console(file=(tmp_path / "said").open("w"), width=500)
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    commands.teach(recipe, console)
    console.file.close()
    assert "asked about 19 pictures, 1 could not be read, 0 were known" in (tmp_path / "said").read_text()
    columns = open_columns(recipe, open_blend(recipe.data))["descriptor"]
    assert [columns.has(row) for row in (3, 4, 5)] == [True, False, True]
    assert columns.get(4) is None


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
def test_features_are_of_what_decides_them(taught, change, native, own):
    """None: they would not be the same at every visit, so there is no place for them."""
    values = _changed(taught[0], change)
    recipe = parse_recipe(values, "test")
    columns = open_columns(recipe, open_blend(recipe.data))
    assert len(columns["native"]) == (60 if native else 0)
    assert len(columns["own"]) == (60 if own else 0)
    if native is None and own is None:
        with pytest.raises(RecipeError, match=r"nothing to keep: .*data\.augment"):
            jobs_of(recipe, [open_blend(recipe.data)])


class Rank(World):
    """One of two, which runs when the other one has ended: what each found is heard by both."""

    def __init__(self, rank, heard):
        super().__init__(rank, 2, torch.device("cpu"))
        object.__setattr__(self, "heard", heard)

    def gather(self, value):
        self.heard.append(value)
        return [self.heard[0], value]

    def sum(self, values):
        return values


def test_ranks_divide_the_shards_whenever_they_look(folder, tmp_path):
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    (job,) = jobs_of(recipe, [open_blend(recipe.data)])
    heard = []
    (tmp_path / "features").mkdir()
    for rank in range(2):
        _Teaching(recipe, Storage(str(tmp_path / "features")), Rank(rank, heard), QUIET).do(job)
    assert heard == [[0, 1, 2, 3, 4, 5], [1, 3, 5]]
    assert len(open_columns(recipe, open_blend(recipe.data))["descriptor"]) == 60


def harmed(data, harm):
    if harm == "schema":
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, pa.schema([("a", pa.int64())])) as file:
            file.write_table(pa.table({"a": [1]}))
        return sink.getvalue().to_pybytes()
    if harm == "flipped":
        place = len(data) // 2
        return data[:place] + bytes(255 - byte for byte in data[place : place + 64]) + data[place + 64 :]
    return {"cut": data[: len(data) // 2], "empty": b"", "words": b"these are words"}[harm]


@pytest.mark.parametrize("harm", ["cut", "empty", "words", "schema", "flipped"])
def test_damaged_features_are_one_line_and_taught_again(folder, tmp_path, caplog, harm):
    recipe = parse_recipe(values_of(folder, tmp_path, teachers=[{"encoder": "descriptor"}]), "test")
    commands.teach(recipe, QUIET)
    file = next((tmp_path / "features").rglob("000002.arrow"))
    whole = file.read_bytes()
    file.write_bytes(harmed(whole, harm))

    def read():
        columns = open_columns(recipe, open_blend(recipe.data))["descriptor"]
        return [columns.get(row) for row in range(60)]

    with pytest.raises(InputError, match=r"000002\.arrow: cannot be read \(.*\); remove it and run `dist") as error:
        read()
    assert "\n" not in str(error.value)
    if harm == "flipped":
        file.unlink()
    commands.teach(recipe, QUIET)
    assert file.read_bytes() == whole
    assert [record.message for record in caplog.records if "it is made again" in record.message] or harm == "flipped"


def test_how_pictures_are_decoded_is_part_of_what_features_are_of(taught, dataset):
    """Beside a teacher that looks at whole pictures no JPEG is decoded smaller."""
    values, _ = taught
    keys = set()
    for teachers in (values["teachers"][:1], values["teachers"][:2]):
        recipe = parse_recipe({**values, "teachers": teachers}, "test")
        keys.add(columns_key(dataset, recipe.data.sources[0], recipe.teachers[0], recipe))
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
        commands.teach(parse_recipe(none, "test"), QUIET)
    broken = tmp_path / "features"
    shutil.copytree(folder, broken)
    path = sorted(broken.rglob("*.arrow"))[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"\.arrow: cannot be read .*run `distill teach` again") as error:
        bench_of({**values, "run": {**values["run"], "teacher_cache": str(broken)}})
    assert "\n" not in str(error.value)
    small = shutil._ntuple_diskusage(1000, 0, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: small)
    full = {**values, "run": {**values["run"], "teacher_cache": str(tmp_path / "other")}}
    with pytest.raises(InputError, match=r"GB asked for, 0\.0 GB free in .*keep: float16"):
        commands.teach(parse_recipe(full, "test"), QUIET)


def test_files_are_arrows(taught):
    path = sorted(taught[1].rglob("*.arrow"))[0]
    table = pa.ipc.open_file(str(path)).read_all()
    assert table.column_names == ["row", "summary", "patches", "rows", "columns", "registers", "count", "check"]
    assert table.num_rows == 10
