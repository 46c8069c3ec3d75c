import json
import shutil
from contextlib import nullcontext

import numpy as np
import pyarrow.parquet as pq
import pytest

from curate.core.errors import InputError, PinnedError, Reject
from distill.recipe import parse_recipe
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import Members
from distill.samples.sources.mixture import open_blend
from distill.training.run_folder import RunFolder
from tests.distill.datasets import drawn_items, write_dataset


def test_reads_the_index_and_every_member(dataset, folder):
    items = drawn_items(60)
    assert len(dataset) == 60
    assert dataset.strings("key") == [item.key for item in items]
    members = Members(dataset, open_tars=2)
    order = np.random.default_rng(0).permutation(60)
    assert all(members.read(int(row)) == items[row].data for row in order)


def test_the_only_finished_dataset_below_a_folder_is_meant(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "toy/aaaa")
    (tmp_path / "toy/bbbb").mkdir()
    assert open_dataset(str(tmp_path / "toy")).url.endswith("toy/aaaa")
    shutil.copytree(folder, tmp_path / "toy/cccc")
    with pytest.raises(InputError, match="finished datasets below it: aaaa, cccc; give one"):
        open_dataset(str(tmp_path / "toy"))


def test_its_fingerprint_is_of_the_content(tmp_path, folder, dataset):
    shutil.copytree(folder, tmp_path / "copy")
    assert open_dataset(str(tmp_path / "copy")).fingerprint == dataset.fingerprint
    other = open_dataset(str(write_dataset(tmp_path / "other", drawn_items(59))))
    assert other.fingerprint != dataset.fingerprint


def test_what_is_no_finished_dataset_is_one_clear_line(tmp_path, folder):
    with pytest.raises(InputError, match="is no folder"):
        open_dataset(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"no manifest\.json; finished datasets below it: none"):
        open_dataset(str(tmp_path))
    copy = shutil.copytree(folder, tmp_path / "copy")
    table = pq.read_table(copy / "index.parquet")
    pq.write_table(table.drop_columns(["width", "offset"]), copy / "index.parquet")
    with pytest.raises(InputError, match="no column offset, width"):
        open_dataset(str(copy))
    pq.write_table(table.slice(0, 0), copy / "index.parquet")
    with pytest.raises(InputError, match="has no samples"):
        open_dataset(str(copy))
    pq.write_table(table, copy / "index.parquet")
    (copy / "sizes.json").write_text(json.dumps({"toy-000000.tar": 10}))
    with pytest.raises(InputError, match="1 tars, but the index names 6"):
        open_dataset(str(copy))


def test_a_dataset_that_changed_under_a_run_is_named(tmp_path, values):
    place = write_dataset(tmp_path / "d", drawn_items(12))
    values["data"]["sources"][0]["dataset"] = str(place)
    recipe, run = parse_recipe(values, "test"), RunFolder(tmp_path / "run")
    for fingerprint, said in (("a", None), ("b", "this recipe's is b; set"), ("c", rf"\({place} has changed since: ")):
        if fingerprint == "c":
            shutil.rmtree(place)
            write_dataset(place, drawn_items(9))
        claimed = run.claimed(recipe, fingerprint, [open_blend(recipe.data)])
        with nullcontext() if said is None else pytest.raises(PinnedError, match=said), claimed:
            pass


@pytest.mark.parametrize("share", [1.0, 0.01])
def test_the_same_bytes_from_an_object_store(s3_folder, share, monkeypatch):
    """Whole tars where a rank reads much of them, ranges where it reads little."""
    url, items = s3_folder
    dataset = open_dataset(url)
    members = Members(dataset, share=share, open_tars=1)
    assert [members.read(row) for row in (7, 0, 11, 1)] == [items[row].data for row in (7, 0, 11, 1)]
    fetched = []
    real = dataset.storage.fs.get_file
    monkeypatch.setattr(dataset.storage.fs, "get_file", lambda *given: fetched.append(given) or real(*given))
    passing = Members(dataset, share=share)
    with passing.passing(np.array([19, 3])):
        assert [passing.read(row) for row in (3, 19)] == [items[row].data for row in (3, 19)]
    assert len(fetched) == (0 if share < 0.1 else 2)
    monkeypatch.undo()
    dataset.storage.remove(dataset.tars[1])
    dataset.storage.fs.invalidate_cache()
    with pytest.raises(Reject, match="shard_missing"):
        Members(dataset, share=share).read(10)
