import json
import shutil
from contextlib import nullcontext

import numpy as np
import pyarrow.parquet as pq
import pytest

from curate.core.errors import InputError, PinnedError, Reject
from distill.recipe import parse_recipe
from distill.samples.sources.dataset import open_dataset
from distill.samples.sources.members import MemberReader
from distill.samples.sources.mixture import open_mixture
from distill.training.run_folder import RunFolder
from tests.distill.datasets import drawn_items, write_dataset


def test_reads_the_index_and_every_member(dataset, folder):
    items = drawn_items(60)
    assert len(dataset) == 60
    assert dataset.strings("key") == [item.key for item in items]
    members = MemberReader(dataset, open_tars=2)
    order = np.random.default_rng(0).permutation(60)
    assert all(members.read(int(row)) == items[row].data for row in order)


def test_a_folder_stands_for_its_only_finished_dataset(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "toy/aaaa")
    (tmp_path / "toy/bbbb").mkdir()
    assert open_dataset(str(tmp_path / "toy")).url.endswith("toy/aaaa")
    shutil.copytree(folder, tmp_path / "toy/cccc")
    with pytest.raises(InputError, match="give one of the finished datasets in it: aaaa, cccc"):
        open_dataset(str(tmp_path / "toy"))


def test_the_fingerprint_depends_only_on_content(tmp_path, folder, dataset):
    shutil.copytree(folder, tmp_path / "copy")
    assert open_dataset(str(tmp_path / "copy")).fingerprint == dataset.fingerprint
    other = open_dataset(str(write_dataset(tmp_path / "other", drawn_items(59))))
    assert other.fingerprint != dataset.fingerprint


def test_a_folder_without_finished_dataset_is_a_one_line_error(tmp_path, folder):
    with pytest.raises(InputError, match="does not exist"):
        open_dataset(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"no manifest\.json; give one of the finished datasets in it: none"):
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
    with pytest.raises(InputError, match="1 tars, but 6 in the index"):
        open_dataset(str(copy))


def test_a_dataset_that_changed_during_a_run_is_named(tmp_path, values):
    place = write_dataset(tmp_path / "d", drawn_items(12))
    values["data"]["sources"][0]["dataset"] = str(place)
    recipe, run = parse_recipe(values, "test"), RunFolder(tmp_path / "run")
    for fingerprint, said in (("a", None), ("b", "this recipe has b; set"), ("c", rf"\({place} has changed: ")):
        if fingerprint == "c":
            shutil.rmtree(place)
            write_dataset(place, drawn_items(9))
        claimed = run.claimed(recipe, fingerprint, [open_mixture(recipe.data)])
        with nullcontext() if said is None else pytest.raises(PinnedError, match=said), claimed:
            pass


@pytest.mark.parametrize("share", [1.0, 0.01])
def test_the_same_bytes_from_an_object_store(s3_folder, share, monkeypatch):
    """A rank downloads complete tars if it reads much of them, otherwise ranges."""
    url, items = s3_folder
    dataset = open_dataset(url)
    members = MemberReader(dataset, share=share, open_tars=1)
    assert [members.read(row) for row in (7, 0, 11, 1)] == [items[row].data for row in (7, 0, 11, 1)]
    fetched = []
    real = dataset.storage.fs.get_file
    monkeypatch.setattr(dataset.storage.fs, "get_file", lambda *given: fetched.append(given) or real(*given))
    passing = MemberReader(dataset, share=share)
    with passing.reading(np.array([19, 3])):
        assert [passing.read(row) for row in (3, 19)] == [items[row].data for row in (3, 19)]
    assert len(fetched) == (0 if share < 0.1 else 2)
    monkeypatch.undo()
    dataset.storage.remove(dataset.tars[1])
    dataset.storage.fs.invalidate_cache()
    with pytest.raises(Reject, match="shard_missing"):
        MemberReader(dataset, share=share).read(10)
