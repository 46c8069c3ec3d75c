"""A sample is taken out of a workspace with two datasets, a release and a training run, and the receipt proves it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from curate.core.hashing import digest, key_words
from curate.core.nouns import facts
from curate.core.store import lease
from curate.core.store.storage import open_storage
from distill.commands.train import train
from distill.recipe import parse_recipe
from distill.samples.sources.dataset import open_dataset
from tests.distill.conftest import recipe_values
from tests.draw import drawn
from tests.e2e import image_files
from tests.e2e.commands import curate, curate_process

COUNT = 30


def recipe(path: Path, images: Path) -> Path:
    """Two datasets of one pool: of the images as they are, and of resized ones."""
    stages: dict[str, Any] = {
        "pool": {"op": "acquire.folder", "path": str(images), "namespace": "e2e", "shard_rows": 10},
        "inspect": {"op": "image.inspect", "from": "pool", "threads": 1},
        "prints": {"op": "image.fingerprint", "from": "inspect", "threads": 1},
        "embed": {"op": "image.embed", "from": "prints", "encoder": "descriptor", "threads": 1},
        "search": {"op": "search.fit", "from": "embed", "threads": 1},
        "all": {"op": "select.uniform", "from": "embed", "share": 1.0},
        "whole": {"op": "pack.webdataset", "from": "all", "name": "whole", "shard_rows": 5},
        "small": {"op": "pack.webdataset", "from": "all", "name": "small", "shard_rows": 7, "image": "resized",
                  "max_side": 24, "carry": {"duplicate_set": "format"}},
        "report": {"op": "report.html", "from": "whole", "threads": 1},
    }  # fmt: skip
    path.write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe that has run, a run of 4 steps on one of its datasets, and a release; read only."""
    folder = tmp_path_factory.mktemp("takedown")
    images = image_files.write_good(folder / "images", COUNT)
    printed = curate("run", recipe(folder / "recipe.yaml", images), "-w", folder / "workspace", "--run-id", "first")
    assert (printed.code, printed.err) == (0, ""), printed
    (folder / "release").mkdir()
    pq.write_table(
        pq.read_table(base(folder, "whole") / "index.parquet", columns=["key"]), folder / "release/1.parquet"
    )
    values = recipe_values(str(base(folder, "whole")), str(folder / "run")) | {"evaluate": {"tasks": []}}
    train(parse_recipe(values, "test"), Console(quiet=True))
    return folder


@pytest.fixture
def work(once: Path, tmp_path: Path) -> Path:
    """A copy of the workspace to change; release and run stay."""
    shutil.copytree(once / "workspace", tmp_path / "workspace")
    return tmp_path


def base(folder: Path, name: str) -> Path:
    [manifest] = (folder / "workspace/datasets" / name).glob("*/manifest.json")
    return manifest.parent


def sample(once: Path) -> dict[str, Any]:
    """A sample that the run was trained on, with the bytes that each dataset has of it."""
    steps = [json.loads(line) for line in (once / "run/metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["step"] == 4
    printed = curate_distill(once)
    key = printed["samples"][0]["key"]
    found = {"key": key}
    for name in ("whole", "small"):
        [line] = [row for row in index(base(once, name)) if row["key"] == key]
        found[name] = line | {"bytes": member(base(once, name), line)}
    return found


def curate_distill(once: Path) -> dict[str, Any]:
    from distill.commands.explain import explain

    return explain(str(once / "run"), 2, None, Console(quiet=True))


def index(dataset: Path) -> list[dict[str, Any]]:
    return pq.read_table(dataset / "index.parquet").to_pylist()


def member(dataset: Path, line: dict[str, Any]) -> bytes:
    tar = sorted(dataset.glob("*.tar"))[line["shard"]]
    return tar.read_bytes()[line["offset"] : line["offset"] + line["size"]]


def has(folder: Path, data: bytes) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and data in path.read_bytes()]


def digests(dataset: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dataset.glob("*.tar")}


def take(work: Path, once: Path, entry: str, *words: str) -> dict[str, Any]:
    places = ["--releases", once / "release", "--runs", once / "run"]
    printed = curate("takedown", entry, "-w", work / "workspace", "--why", "asked for", "--json", *places, *words)
    assert (printed.code, printed.err) == (0, ""), printed
    return json.loads(printed.out)


def test_a_sample_is_found_in_everything(once: Path) -> None:
    taken = sample(once)
    found = take(once, once, taken["key"])
    [pool] = found["pools"]
    assert pool["index"] == "key index" and [row["key"] for row in pool["rows"]] == [taken["key"]]
    assert {line["dataset"].split("/")[1] for line in found["datasets"]} == {"whole", "small"}
    assert {line["table"].split("/")[1] for line in found["facts"]} == {
        "image.inspect",
        "image.fingerprint",
        "image.embed",
    }
    assert [line["copies"] for line in found["selections"]] == [1]
    assert [line["files"] for line in found["releases"]] == [{"1.parquet": 1}]
    [run] = found["runs"]
    assert 2 in [one["step"] for one in run["seen"][taken["key"]]] and run["steps"] == 4
    image = once / "images" / pool["rows"][0]["source_id"]
    for entry in (str(image), pool["rows"][0]["sha256"], pool["rows"][0]["source_id"]):
        assert take(once, once, entry)["keys"] == [taken["key"]]
    same = {row["key"] for row in index(base(once, "small")) if row["duplicate_set"] == taken["small"]["duplicate_set"]}
    assert {line["key"] for line in found["near"]} == same - {taken["key"]} != set()
    words = curate("takedown", taken["key"], "-w", once / "workspace", "--runs", once / "run").words
    assert f"key {taken['key']}" in words and "steps, first in" in words


def test_apply_makes_each_dataset_again_and_leaves_the_rest_as_it_is(once: Path, work: Path) -> None:
    taken = sample(once)
    assert curate("pin", "v1", "first", "whole", "-w", work / "workspace").code == 0
    receipt = take(work, once, taken["key"], "--apply")
    assert receipt["left"]["pins"] == []
    for name in ("whole", "small"):
        old = base(once, name)
        was = f"datasets/{name}/{old.name}"
        made = work / "workspace" / receipt["datasets"][was]
        before, after = digests(old), digests(made)
        changed = {tar for tar in before if before[tar] != after[tar]}
        assert len(changed) == 1 and receipt["unchanged_tars"][was] == len(before) - 1
        for tar in before.keys() - changed:
            assert (made / tar).stat().st_ino == (work / "workspace" / was / tar).stat().st_ino
        manifest = json.loads((made / "manifest.json").read_text())
        assert manifest["extra"]["predecessor"] == old.name and manifest["extra"]["removed"] == [taken["key"]]
        rows = {row["name"]: row for row in index(made)}
        assert rows.keys() == {row["name"] for row in index(old)} - {taken[name]["name"]}
        for row in index(old):
            if row["key"] != taken["key"]:
                assert member(made, rows[row["name"]]) == member(old, row)
        assert len(open_dataset(str(made))) == len(rows) == sum(json.loads((made / "sizes.json").read_text()).values())
        assert not has(made, taken[name]["bytes"]) and has(work / "workspace" / was, taken[name]["bytes"])
        places: dict[int, list[int]] = {}
        for row in index(made):
            places.setdefault(row["shard"], []).append(row["row"])
        assert all(own == list(range(len(own))) for own in places.values())
        assert {path.name for path in made.rglob("*")} == {path.name for path in old.rglob("*") if path.name != "work"}
        for number, tar in enumerate(sorted(after)):
            starts = np.fromfile(made / f"{tar}.idx", "<u8").tolist()
            with tarfile.open(made / tar) as archive:
                names = [member.name for member in archive.getmembers() if member.offset in starts]
            own = sorted((row for row in rows.values() if row["shard"] == number), key=lambda row: row["row"])
            assert [name.partition(".")[0] for name in names] == [row["name"] for row in own]
    path = work / "workspace" / receipt["receipt"]
    every = [path for made in receipt["datasets"].values() for path in (work / "workspace" / made).rglob("*")]
    files = sum(path.is_file() for path in every)
    assert f"none of {files} files has the bytes" in curate("takedown", "verify", path).out
    assert receipt["left"]["weights"] and receipt["left"]["releases"] == [str(once / "release")]
    garbage = curate("gc", "-w", work / "workspace").words
    assert "would remove 0 outputs" in garbage
    again = take(work, once, taken["key"], "--apply")
    assert again["datasets"] == receipt["datasets"] and again["unchanged_tars"] == {}
    path = work / "workspace" / again["receipt"]
    assert f"none of {files} files has the bytes" in curate("takedown", "verify", path).out
    # the versions that an erasure removes are in its receipt, though they were replaced before
    other = next(row["key"] for row in index(base(once, "whole")) if row["key"] not in receipt["found"]["keys"])
    newest = take(work, once, other, "--apply")["datasets"]
    printed = curate("takedown", taken["key"], "-w", work / "workspace", "--why", "asked for", "--erase")
    assert "left: pin:v1 names a removed version" in printed.out and "made before, the old removed" in printed.words
    erased = json.loads((work / "workspace/takedowns/000004/receipt.json").read_text())
    assert erased["left"]["pins"] == ["v1"]
    assert erased["datasets"] == {old: newest[made] for old, made in receipt["datasets"].items()}
    for name, was in receipt["before"].items():
        made = erased["datasets"][name.rpartition("/")[0]]
        assert erased["before"][name] == was and erased["after"][name]["now"] == f"{made}/{Path(name).name}"
        assert not (work / "workspace" / name).exists() and (work / "workspace" / made).exists()
    assert curate("takedown", "verify", work / "workspace" / erased["receipt"]).code == 0


def test_erase_removes_the_bytes_everywhere(once: Path, work: Path) -> None:
    taken, workspace = sample(once), work / "workspace"
    [pool] = take(once, once, taken["key"])["pools"]
    assert len(has(workspace, taken["whole"]["bytes"])) == 2
    assert (once / "images" / pool["rows"][0]["source_id"]).exists()
    assert curate("pin", "v1", "first", "whole", "-w", workspace).code == 0
    receipt = take(work, once, pool["rows"][0]["sha256"], "--erase")
    assert receipt["left"]["source_files"] == [str(once / "images" / pool["rows"][0]["source_id"])]
    assert receipt["left"]["pins"] == ["v1"] and curate("unpin", "v1", "-w", workspace).code == 0
    for name in ("whole", "small"):
        assert not has(workspace, taken[name]["bytes"])
        assert base(work, name).name != base(once, name).name
    verified = curate("takedown", "verify", workspace / receipt["receipt"])
    assert verified.words.endswith("files has the bytes")
    assert curate("gc", "-w", workspace, "--delete").code == 0  # what a kept run's dataset has become stays
    assert {base(work, name).name for name in ("whole", "small")} == {
        place.split("/")[2] for place in receipt["datasets"].values()
    }
    facts_are_erased(receipt, once / "workspace", workspace)
    words = key_words([taken["key"]]).tobytes()
    assert has(once / "workspace/artifacts", words) and not has(workspace / "artifacts", words)
    later_runs_leave_it_out(taken["key"], once, work)
    assert not has(workspace / "artifacts", words)
    later_receipts_know_the_bytes(receipt, taken, once, work)


def facts_are_erased(receipt: dict[str, Any], before: Path, after: Path) -> None:
    """Rows of the sample are unusable and without values, in each table; others are as they were."""
    for line in receipt["found"]["facts"]:
        tables = (pq.read_table(workspace / line["table"]).to_pylist() for workspace in (before, after))
        for former, row in zip(*tables, strict=True):
            if row[facts.ROW] in line["rows"]:
                assert (row[facts.STATUS_COLUMN], row[facts.REASON]) == (facts.UNUSABLE, "erased")
                assert {value for name, value in row.items() if not name.startswith("_")} == {None}
            else:
                assert row == former
    assert not list((after / "artifacts/report.html").glob("*/manifest.json"))


def later_runs_leave_it_out(key: str, once: Path, work: Path) -> None:
    """A stage that looks at the sample for the first time finds it erased."""
    assert key not in keys_of_run(once / "recipe.yaml", work)
    changed = yaml.safe_load((once / "recipe.yaml").read_text())
    changed["stages"]["again"] = {"op": "image.embed", "from": "prints", "threads": 1}
    changed["stages"]["all"]["from"] = "again"
    (work / "recipe.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    assert key not in keys_of_run(work / "recipe.yaml", work)
    assert "erased" in curate("explain", key, "-w", work / "workspace").words


def keys_of_run(path: Path, work: Path) -> set[str]:
    printed = curate("run", path, "-w", work / "workspace", "--json", work / "made.json")
    assert printed.code == 0, printed
    made = json.loads((work / "made.json").read_text())["outputs"]["whole"]
    return {row["key"] for row in index(Path(made))}


def later_receipts_know_the_bytes(receipt: dict[str, Any], taken: dict[str, Any], once: Path, work: Path) -> None:
    """A second erasure finds an erased member, and has the marks of the first; without these nothing is verified."""
    workspace = work / "workspace"
    path = workspace / receipt["receipt"]
    (workspace / "cache.bin").write_bytes(b"x" * 999 + taken["small"]["bytes"])
    assert "cache.bin has the bytes" in (failed := curate("takedown", "verify", path)).words
    assert "the bytes are still in 1 files" in failed.err and "by its key, or remove the file" in failed.err
    second = take(work, once, taken["key"], "--erase")
    known = sorted(mark["sha256"] for mark in receipt["found"]["marks"])
    assert sorted(mark["sha256"] for mark in second["found"]["marks"]) == known and len(known) == 2
    assert "cache.bin has the bytes" in curate("takedown", "verify", workspace / second["receipt"]).words
    for plan in workspace.glob("takedowns/*/plan.json"):
        plan.unlink()
    third = curate("takedown", "verify", workspace / take(work, once, taken["key"], "--erase")["receipt"])
    assert f"no mark of {taken['key']} is known, so nothing can be verified" in third.error
    alone = shutil.move(workspace / second["receipt"], work / "receipt.json")
    shutil.rmtree(workspace)
    assert "not a workspace" in curate("takedown", "verify", alone).error


def test_an_object_store_is_cleared_too(once: Path, object_store: Any) -> None:
    object_store.create_bucket(Bucket="takedown")
    for path in (once / "workspace").rglob("*"):
        if path.is_file():
            name = str(path.relative_to(once / "workspace"))
            object_store.put_object(Bucket="takedown", Key=name, Body=path.read_bytes())
    taken, words = sample(once), ["-w", "s3://takedown", "--why", "asked for", "--erase", "--json"]
    printed = curate("takedown", taken["key"], *words)
    assert (printed.code, printed.err) == (0, ""), printed
    receipt = json.loads(printed.out)
    listed = object_store.list_objects_v2(Bucket="takedown")["Contents"]
    bodies = {
        line["Key"]: object_store.get_object(Bucket="takedown", Key=line["Key"])["Body"].read() for line in listed
    }
    for name in ("whole", "small"):
        assert not [key for key, body in bodies.items() if taken[name]["bytes"] in body]
        assert sum(key.endswith(".tar") and f"datasets/{name}/" in key for key in bodies) == len(
            digests(base(once, name))
        )
    (once / "receipt.json").write_bytes(bodies[receipt["receipt"]])
    assert curate("takedown", "verify", once / "receipt.json").code == 0


def test_a_run_that_may_still_write_the_sample_is_waited_for(once: Path, work: Path) -> None:
    storage = open_storage(str(work / "workspace"))
    (work / "workspace/runs/first/result.json").unlink()
    with lease.hold(storage, "runs/first", lambda: False):
        printed = curate("takedown", sample(once)["key"], "-w", work / "workspace", "--why", "asked for", "--apply")
        assert "run first may still write the samples; wait for it, or `curate stop first`" in printed.error


def test_a_file_in_place_is_named_and_left(once: Path, tmp_path: Path) -> None:
    changed = yaml.safe_load((once / "recipe.yaml").read_text())
    changed["stages"]["pool"] |= {"in_place": True, "path": str(shutil.copytree(once / "images", tmp_path / "images"))}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    workspace = tmp_path / "workspace"
    assert curate("run", tmp_path / "recipe.yaml", "-w", workspace).code == 0
    release = shutil.copytree(once / "release", tmp_path / "release")
    words = ["takedown", "kind0/0000.png", "-w", workspace, "--why", "asked for", "--erase", "--releases", release]
    image = tmp_path / "images/kind0/0000.png"
    printed = curate(*words)
    assert printed.code == 0 and f"left: {image} is yours; remove it there" in printed.out, printed
    data = image.read_bytes()
    assert not has(workspace, data)
    image.unlink()
    assert curate(*words).code == 0
    second = workspace / "takedowns/000002/receipt.json"
    assert "none of" in curate("takedown", "verify", second).out
    (workspace / "copy").write_bytes(data)
    assert "copy has the bytes" in curate("takedown", "verify", second).words
    shutil.rmtree(release)
    assert f"{release}: no files, so nothing can be verified" in curate("takedown", "verify", second).error


def test_a_changed_receipt_is_one_line(once: Path, work: Path) -> None:
    receipt = take(work, once, sample(once)["key"], "--apply")
    path = work / "workspace" / receipt["receipt"]
    path.write_text(path.read_text().replace("asked for", "not asked"))
    assert "the receipt was changed after it was written" in curate("takedown", "verify", path).error
    del receipt["digest"]
    flawed = [
        ({}, "workspace: Field required"),
        (receipt | {"datasets": []}, "datasets: Input should be a valid dictionary"),
        (receipt | {"found": receipt["found"] | {"marks": [{"word": "x"}]}}, "found.marks.0.sha256: Field required"),
        (receipt | {"found": receipt["found"] | {"keys": 1}}, "found.keys: Input should be a valid list"),
    ]
    for content, message in flawed:
        path.write_text(json.dumps(content | {"digest": digest(content)}))
        assert f"not a receipt of a takedown ({message}" in curate("takedown", "verify", path).error
    for content in ("[]", "[" * 100_000):
        path.write_text(content)
        assert "not a receipt of a takedown" in curate("takedown", "verify", path).error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0" * 32], "no pool or dataset of"),
        ([""], "takedown: '' names no sample; give a key"),
        (["#x"], "takedown: '#x' names no sample; give a key"),
        (["FILE"], "/recipe.yaml; give a key, URL, sha256 or image"),
        (["nothing"], "'nothing' is the source id of 0 samples"),
        (["KEY", "--apply"], "--why is missing"),
        (
            ["KEY", "--runs", "/nowhere"],
            "--runs /nowhere: `distill where` failed (distill: /nowhere is not a run folder",
        ),
        (["KEY", "--releases", "/nowhere"], "--releases /nowhere: no .parquet files"),
        (["verify"], "expected one RECEIPT"),
        (["verify", "/nowhere"], "/nowhere: not a receipt of a takedown"),
    ],
)
def test_mistakes_are_one_line(once: Path, words: list[str], message: str) -> None:
    places = {"KEY": sample(once)["key"], "FILE": str(once / "recipe.yaml")}
    given = [places.get(word, word) for word in words]
    assert message in curate("takedown", *given, "-w", once / "workspace").error


def state(workspace: Path) -> dict[str, str]:
    """Digests of what a takedown leaves, without times."""
    files = {}
    for path in sorted(workspace.rglob("*")):
        name = str(path.relative_to(workspace))
        if path.is_file() and not name.startswith(("leases/", "takedowns/")) and path.suffix != ".tmp":
            data = path.read_bytes()
            if path.name == "manifest.json":
                data = json.dumps(json.loads(data) | {"extra": None}).encode()
            files[name] = hashlib.sha256(data).hexdigest()
    return files


@pytest.mark.long  # a process for each point, and one more
def test_a_killed_erasure_is_resumed(once: Path, work: Path, tmp_path: Path) -> None:
    key = sample(once)["key"]
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(work / "workspace", undisturbed / "workspace")
    expected = take(undisturbed, once, key, "--erase")
    every = [
        "publish:takedowns/*plan.json:published", "publish:datasets/small/*.tar:written",
        "publish:datasets/small/*/index.parquet:published", "publish:datasets/whole/*manifest.json:published",
        "publish:pools/*.tar:written", "publish:facts/*:published", "publish:takedowns/*receipt.json:written",
    ]  # fmt: skip
    points = drawn(every)
    assert points
    faults = tmp_path / "once"
    faults.mkdir()
    for _ in range(len(points) + 1):
        killing = {"CURATE_FAULT_KILL": "|".join(points), "CURATE_FAULT_ONCE": str(faults)}
        words = ["takedown", key, "-w", work / "workspace", "--why", "asked for", "--erase"]
        printed = curate_process(*words, "--releases", once / "release", "--runs", once / "run", **killing)
        if printed.code >= 0:
            break
    assert printed.code == 0, printed
    assert sorted(os.listdir(faults)) == [str(place) for place in range(len(points))]
    assert state(work / "workspace") == state(undisturbed / "workspace")
    receipt = json.loads((work / "workspace" / expected["receipt"]).read_text())
    assert (receipt["before"], receipt["found"]) == (expected["before"], expected["found"])
    assert curate("takedown", "verify", work / "workspace" / expected["receipt"]).code == 0
