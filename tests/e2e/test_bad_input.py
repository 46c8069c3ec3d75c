"""Everything bad that a pool of the web holds, through the whole pipeline: each leaves with its reason."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from webdataset.tariterators import group_by_keys, tar_file_expander

from curate.core.ledger import Entry
from curate.core.store.storage import Storage, open_storage
from tests.codec.make_images import encoded
from tests.e2e import image_files
from tests.e2e.commands import CommandResult, curate
from tests.e2e.recipes import ORDER, write_recipe
from tests.encoders.models import TINY, save_timm

GOOD = 24
STAGES = ("pool", "inspect", "size", "text", "captioned", "embed")
UNUSABLE = ("inspect", "embed")
"""Stages that decode images, which undecodable samples never pass."""
WHITE = encoded(Image.new("RGB", (48, 48), "white"), "png")


@dataclass(frozen=True)
class Done:
    workspace: Path
    source: dict[str, bytes]
    """Source id -> its bytes."""
    expected: dict[str, tuple[str, str] | None]
    """Source id -> (stage that rejects it, reason); None if it reaches the selection."""
    printed: CommandResult
    result: dict[str, Any]

    def explain(self, source_id: str) -> str:
        return curate("explain", source_id, "--workspace", self.workspace).words


def _go(folder: Path, source: dict[str, Any], **changes: dict[str, Any]) -> tuple[CommandResult, dict[str, Any]]:
    recipe = write_recipe(folder / "recipe.yaml", source, **changes)
    words = ["run", recipe, "--workspace", folder / "workspace", "--json", folder / "result.json", "--quiet"]
    printed = curate(*words)
    assert (printed.code, printed.err) == (0, ""), printed
    return printed, json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def from_folder(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("folder")
    root = image_files.write_good(folder / "images", GOOD)
    (root / "bad").mkdir()
    (root / "nothing in here").mkdir()
    expected: dict[str, tuple[str, str] | None] = {}
    for name, (data, reason) in image_files.BAD.items():
        (root / "bad" / name).write_bytes(data)
        (root / "bad" / name).with_suffix(".txt").write_text("a caption")
        expected[f"bad/{name}"] = (image_files.left_at(reason), reason) if reason else None
    (root / "bad/latin.png").write_bytes(image_files.good(300))
    (root / "bad/latin.txt").write_bytes("déjà vu".encode("latin-1"))
    (root / "bad/silent.png").write_bytes(image_files.good(303))
    (root / "bad/white.png").write_bytes(WHITE)
    (root / "bad/white.txt").write_text("snow in a fog")
    (root / "bad/again.png").write_bytes(image_files.good(0))
    (root / "bad/again.txt").write_text("the same once more")
    (root / "bad/out.png").symlink_to("/etc/hostname")
    (root / "bad/round").symlink_to(root)
    expected |= {"bad/latin.png": ("pool", "caption_not_utf8"), "bad/silent.png": ("captioned", "missing_caption")}
    expected |= {"bad/white.png": ("embed", "nan_embedding"), "bad/out.png": ("pool", "outside_root")}
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix != ".txt"]
    printed, result = _go(
        folder,
        {"op": "acquire.folder", "path": root, "shard_rows": 10},
        size={"animated": "reject"},
        captioned={"missing": "reject"},
        embed={"op": "tests.e2e.stages:EmbedOverflowing"},
    )
    source = {str(path.relative_to(root)): path.read_bytes() for path in files}
    return Done(folder / "workspace", source, expected, printed, result)


@pytest.fixture(scope="module")
def from_tars(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("tars")
    good = [(f"{i:04d}.{image_files.extension(i)}", image_files.good(i), b"words of %d" % i) for i in range(GOOD)]
    root = folder / "tars"
    image_files.write_tar(root / "0.tar", good[:12])
    traitor = ("../../escape.png", image_files.good(50), b"out")
    image_files.write_tar(root / "1.tar", [traitor, *good[12:], ("latin.png", image_files.good(51), b"d\xe9j\xe0")])
    image_files.write_tar(root / "2.tar", [("0003.png", image_files.good(60), b"a key that is there already")])
    image_files.write_tar(root / "3-no-sample.tar", [])
    (root / "4-no-byte.tar").write_bytes(b"")
    cut = [(f"cut{i}.png", image_files.good(3 * i + 300), None) for i in range(3)]
    whole = image_files.write_tar(root / "5-cut.tar", cut).stat().st_size
    image_files.write_tar(root / "5-cut.tar", cut, keep=whole - 1024 - len(cut[2][1]) // 2)
    bad = [(name, data, b"bad") for name, (data, reason) in image_files.BAD.items() if reason]
    image_files.write_tar(root / "6-bad.tar", bad)
    expected: dict[str, tuple[str, str] | None] = {
        Path(name).stem: (image_files.left_at(reason), reason)
        for name, (_, reason) in image_files.BAD.items()
        if reason
    }
    expected |= {"latin": ("pool", "caption_not_utf8"), "cut2": ("pool", "truncated_tar")}
    source = {Path(name).stem: data for name, data, _ in [*good, *cut]}
    printed, result = _go(folder, {"op": "acquire.webdataset", "path": root}, size={"animated": "reject"})
    return Done(folder / "workspace", source, expected, printed, result)


@pytest.fixture(params=["from_folder", "from_tars"])
def done(request: pytest.FixtureRequest) -> Done:
    return request.getfixturevalue(request.param)


def _dataset(done: Done) -> Storage:
    return open_storage(done.result["outputs"]["dataset"])


def _pool(done: Done) -> list[dict[str, Any]]:
    storage = open_storage(str(done.workspace))
    base = done.result["outputs"]["pool"].removeprefix(f"{done.workspace}/")
    shards = storage.read_table(f"{base}/shards.parquet").to_pylist()
    return [row for shard in shards for row in storage.read_table(shard["table"]).to_pylist()]


def test_every_reason_is_explained(done: Done) -> None:
    for source_id, left in done.expected.items():
        words = done.explain(source_id)
        if left is None:
            assert not [word for word in ("computed", "judged", "reached") if f"not {word}" in words], source_id
        else:
            stage, reason = left
            printed = f"status unusable reason {reason}" if stage in UNUSABLE else f"rejected {reason}"
            assert printed in words and f"not reached {stage}: {reason}" in words, source_id


def test_the_ledger_adds_up_at_every_stage(done: Done) -> None:
    ledger = {name: Entry.from_json(value) for name, value in done.result["ledger"].items()}
    assert list(ledger) == ORDER
    for name, entry in ledger.items():
        entry.check(name)
    chain = [ledger[name] for name in STAGES]
    assert [a.after for a in chain[:-1]] == [b.before for b in chain[1:]]
    assert ledger["pool"].before == len(_pool(done))
    assert ledger["dataset"].copies == _dataset(done).read_table("index.parquet").num_rows == 12
    for stage in STAGES:
        named = [left[1] for left in done.expected.values() if left and left[0] == stage]
        assert set(named) <= set(ledger[stage].lost)
        if stage != "pool":
            counted = ledger[stage].unusable if stage in UNUSABLE else ledger[stage].rejected
            assert counted == ledger[stage].lost == {reason: named.count(reason) for reason in named}


def test_nothing_goes_missing(from_folder: Done) -> None:
    rows = {row["source_id"]: row for row in _pool(from_folder)}
    assert set(rows) == set(from_folder.source)
    assert len({row["key"] for row in rows.values()}) == len(rows)


def test_what_a_tar_holds_is_a_row_or_a_reject(from_tars: Done) -> None:
    rows = _pool(from_tars)
    reasons = [row["reject"] for row in rows if row["reject"]]
    assert sorted(reasons) == sorted(
        ["unsafe_path", "caption_not_utf8", "duplicate_key", "truncated_tar", "truncated_tar"]
    )
    assert sum(row["source_id"] == "0003" and row["reject"] is None for row in rows) == 1
    assert {row["source_id"] for row in rows} >= set(from_tars.source)


def test_one_of_several_copies_is_kept(from_folder: Done) -> None:
    one, other = (from_folder.explain(name) for name in ("bad/again.png", "kind0/0000.png"))
    assert ("rejected exact_duplicate" in one) != ("rejected exact_duplicate" in other)
    assert "copies of it in pool: 1: " in one + other


def test_selected_images_are_the_bytes_of_the_source(done: Done) -> None:
    ids = {row["key"]: row["source_id"] for row in _pool(done) if not row["reject"]}
    dataset = _dataset(done)
    seen = set()
    for row in dataset.read_table("index.parquet").to_pylist():
        with dataset.open(f"small-{row['shard']:06d}.tar") as tar:
            tar.seek(row["offset"])
            assert tar.read(row["size"]) == done.source[ids[row["key"]]]
        seen.add(ids[row["key"]])
    refused = {name for name, reason in done.expected.items() if reason}
    assert len(seen) == 12 and not seen & refused


def test_webdataset_reads_it_back(done: Done) -> None:
    dataset = _dataset(done)
    samples = []
    for name in sorted(dataset.read_json("sizes.json")):
        with dataset.open(name) as stream:  # webdataset itself leaves its files to the garbage collector
            samples += group_by_keys(tar_file_expander([{"url": name, "stream": stream}]))
    index = dataset.read_table("index.parquet").to_pylist()
    assert [sample["__key__"] for sample in samples] == [row["name"] for row in index]
    for sample, row in zip(samples, index, strict=True):
        assert len(sample[row["ext"]]) == row["size"] and json.loads(sample["json"])["key"] == row["key"]
        with Image.open(io.BytesIO(sample[row["ext"]])) as image:
            image.load()
            assert image.size == (row["width"], row["height"])
        assert ("txt" in sample) == (row["text_offset"] >= 0)


def test_the_wids_index_counts_samples_per_tar(done: Done) -> None:
    dataset = _dataset(done)
    index = dataset.read_json("index.json")
    assert index["__kind__"] == "wids-shard-index-v1"
    assert {shard["url"]: shard["nsamples"] for shard in index["shardlist"]} == dataset.read_json("sizes.json")
    for shard in index["shardlist"]:
        with tarfile.open(f"{dataset.root}/{shard['url']}") as tar:
            assert len({name.partition(".")[0] for name in tar.getnames()}) == shard["nsamples"]


def test_nothing_is_written_outside_of_the_workspace(from_tars: Done) -> None:
    names = {path.name for path in from_tars.workspace.parent.iterdir()}
    assert names == {"tars", "workspace", "recipe.yaml", "result.json"}


def test_a_checkpoint_of_nan_rejects_all_rows_with_a_message(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_timm(tmp_path / "vit.safetensors", seed=0)
    weights = load_file(tmp_path / "vit.safetensors")
    weights["norm.bias"] = weights["norm.bias"] * np.nan
    save_file(weights, tmp_path / "vit.safetensors")
    root = image_files.write_good(tmp_path / "images", 3)
    encoder = f"timm:vit_base_patch16_224?{TINY}@{tmp_path / 'vit.safetensors'}"
    recipe = write_recipe(
        tmp_path / "recipe.yaml",
        {"op": "acquire.folder", "path": root},
        embed={"encoder": encoder},
        sample={"target": 1},
    )
    printed = curate("run", recipe, "--workspace", tmp_path / "workspace")
    assert "(embed 3)" in printed.words
    assert "nan_embedding" in curate("explain", "kind0/0000.png", "--workspace", tmp_path / "workspace").words
    assert "cluster.fit: no rows" in printed.error and "curate status" in printed.error


def test_an_empty_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "images/deeper").mkdir(parents=True)
    recipe = write_recipe(tmp_path / "recipe.yaml", {"op": "acquire.folder", "path": tmp_path / "images"})
    printed = curate("run", recipe, "--workspace", tmp_path / "workspace")
    assert "no images in" in printed.error and str(tmp_path / "images") in printed.error
    assert not list((tmp_path / "workspace").rglob("*.parquet"))


def test_tars_without_a_sample_are_one_clear_error(tmp_path: Path) -> None:
    image_files.write_tar(tmp_path / "tars/0.tar", [])
    recipe = write_recipe(tmp_path / "recipe.yaml", {"op": "acquire.webdataset", "path": tmp_path / "tars"})
    printed = curate("run", recipe, "--workspace", tmp_path / "workspace")
    assert "pool" in printed.error and "no samples" in printed.error
