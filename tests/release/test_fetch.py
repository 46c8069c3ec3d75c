"""A release of downloaded images, and the pool that others make from it later."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from curate.api import Workspace
from curate.core.errors import InputError
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.store.storage import open_storage
from curate.release import layout
from tests.e2e.commands import curate
from tests.release.conftest import COUNT, Made, pipeline

ALLOWED = ["127.0.0.0/8"]
CONTACT = "tests@example.org"


@pytest.fixture(scope="module")
def released(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released") / "v1"
    made.workspace.release("photos", str(folder), allow_networks=ALLOWED, title="Free photos", license="cc0-1.0")
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "data").to_pylist()


def resummed(folder: Path, *names: str) -> None:
    """Give changed files the right checksum again."""
    path = folder / layout.SUMS
    lines = dict(reversed(line.split("  ")) for line in path.read_text().splitlines())
    lines |= {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    path.write_text("".join(f"{value}  {name}\n" for name, value in lines.items()))


def test_each_row_has_its_source_and_digest(made: Made, released: Path) -> None:
    found = rows(released)
    assert len(found) == COUNT and {row["license"] for row in found} == {"cc0", "cc-by"}
    for row in found:
        data = made.images[row["url"].rpartition("/")[2]]
        assert row["sha256"] == hashlib.sha256(data).hexdigest() and row["stored_sha256"] is None
        assert row["caption"].startswith("photo ") and (row["height"], row["copies"]) == (16, 1)
        assert row["source"].startswith("agency ")
    for line in (released / layout.SUMS).read_text().splitlines():
        value, _, name = line.partition("  ")
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == value
    whole = b"".join(path.read_bytes() for path in released.rglob("*") if path.is_file() and path.suffix != ".parquet")
    assert str(made.workspace.url).encode() not in whole and CONTACT.encode() not in whole
    about = json.loads((released / layout.ABOUT).read_text())
    funnel = {line["stage"]: line for line in about["funnel"]}
    assert funnel["free"]["lost"] == {"licence": COUNT // 2, "licence_null": COUNT // 2}
    assert about["licences"] == {"cc0": COUNT // 2, "cc-by": COUNT // 2} and about["digests"] == COUNT


def test_the_same_dataset_is_the_same_release(made: Made, released: Path, tmp_path: Path) -> None:
    made.workspace.release(
        "photos", str(tmp_path / "again"), allow_networks=ALLOWED, title="Free photos", license="cc0-1.0"
    )
    assert (tmp_path / "again" / layout.SUMS).read_bytes() == (released / layout.SUMS).read_bytes()


def test_private_addresses_are_not_published(made: Made, tmp_path: Path) -> None:
    about = made.workspace.release("photos", str(tmp_path / "public"))
    assert about["withheld"] == {"url": {"private_address": COUNT}} and about["urls"] == 0
    assert all(row["url"] is None and row["sha256"] for row in rows(tmp_path / "public"))


def test_what_is_gone_is_counted_by_reason(made: Made, released: Path, tmp_path: Path) -> None:
    """Since then 5 % of the sources are gone, 2 % changed and 1 % were taken down."""
    found = rows(released)
    gone, changed, down = found[:10], found[50:54], found[150:152]
    folder = tmp_path / "release"
    shutil.copytree(released, folder)
    lines = [{"key": down[0]["key"], "url": None, "sha256": None, "why": layout.TAKEN_DOWN}]
    lines += [{"key": None, "url": down[1]["url"], "sha256": None, "why": layout.TAKEN_DOWN}]
    pq.write_table(pa.Table.from_pylist(lines, layout.REMOVED_SCHEMA), folder / layout.REMOVED)
    names = {row["key"]: row["url"].rpartition("/")[2] for row in found}
    before = dict(made.site.mounted)
    made.site.mounted = {name: data for name, data in before.items() if name not in {names[row["key"]] for row in gone}}
    made.site.mounted |= {names[row["key"]]: made.images["399.jpg"] for row in changed}
    made.site.log.clear()
    workspace = Workspace(str(tmp_path / "workspace"))
    try:
        result = workspace.fetch(str(folder), CONTACT, **made.fetching())
    finally:
        made.site.mounted = before
    assert result.gone == {"http_404": 10, "changed": 4, layout.TAKEN_DOWN: 2}
    assert (result.rows, result.fetched, result.digests, result.repeated) == (COUNT, COUNT - 16, COUNT, 0)
    asked = Counter(f"http://{visit.host}:{made.site.port}{visit.request.target}" for visit in made.site.log)
    assert asked == Counter({row["url"] for row in found} - {row["url"] for row in down})
    pool = _pool(workspace)
    lost = {row["key"] for row in (*gone, *changed, *down)}
    assert {row["key"] for row in pool if row["reject"] is None} == {row["key"] for row in found} - lost
    assert {row["key"]: row["sha256"] for row in pool if row["reject"] is None}.items() <= {
        row["key"]: row["sha256"] for row in found
    }.items()
    assert {json.loads(row["meta"])["license"] for row in pool} == {"cc0", "cc-by"}
    assert set(workspace.tombstones()["url"]) == {row["url"] for row in down}


def _pool(workspace: Workspace) -> list[dict[str, Any]]:
    storage = open_storage(workspace.url)
    (base,) = {name.rpartition("/")[0] for name in storage.list("pools") if name.endswith("/manifest.json")}
    return [
        row for shard in read_shards(storage, f"pools/{base}") for row in read_pool(storage, shard.table).to_pylist()
    ]


def test_rows_that_lead_nowhere_good_are_not_fetched(made: Made, released: Path, tmp_path: Path) -> None:
    """A release that was tampered with, whose checksums are right."""
    folder = tmp_path / "release"
    shutil.copytree(released, folder)
    name = layout.data_file(0)
    table = pq.read_table(folder / name).slice(0, 5)
    urls = ["file:///etc/passwd", "http://10.0.0.1/a.jpg", f"http://me:pw@127.0.0.1:{made.site.port}/a.jpg", None]
    urls += [table.column("url")[4].as_py()]
    at = table.column_names.index("url")
    pq.write_table(table.set_column(at, table.schema.field("url"), pa.array(urls)), folder / name)
    resummed(folder, name)
    allowed = made.fetching(allow_ports=(80, made.site.port))
    result = Workspace(str(tmp_path / "workspace")).fetch(str(folder), CONTACT, **allowed)
    assert result.gone == {"scheme": 1, "private_address": 1, "credentials": 1, "no_url": 1} and result.fetched == 1


def test_a_later_list_of_what_was_removed(made: Made, released: Path, tmp_path: Path) -> None:
    """v2 names its predecessor, what changed, and what must not be used any more: a fetch of v1 honours it."""
    path = Path(made.workspace.url).parent / "list.jsonl"
    workspace = Workspace(str(tmp_path / "workspace"))
    shutil.copytree(made.workspace.url, workspace.url)
    first = rows(released)
    one = next(row for row in first if row["license"] == "cc-by")
    workspace.add_tombstones([one["sha256"]], "asked by letter")
    wanted = "meta.license = 'all rights reserved' or meta.license = 'cc-by'"
    workspace.submit(pipeline(made.site, path, wanted), run_id="second").wait()
    about = workspace.release("photos", str(tmp_path / "v2"), allow_networks=ALLOWED, predecessor=str(released))
    assert (about["version"], about["added"], about["removed"], about["taken_down"]) == (2, 100, 101, 1)
    assert about["predecessor"]["dataset"] == json.loads((released / layout.ABOUT).read_text())["dataset"]
    second = {row["key"] for row in rows(tmp_path / "v2")}
    changes = pq.read_table(tmp_path / "v2" / layout.CHANGES).to_pylist()
    then = {row["key"] for row in first}
    assert {line["key"] for line in changes if line["change"] == "added"} == second - then
    assert {line["key"] for line in changes if line["change"] == "removed"} == then - second
    assert [line["key"] for line in changes if line["why"]] == [one["key"]]
    removed = tmp_path / "v2" / layout.REMOVED
    assert pq.read_table(removed).to_pylist() == [
        {name: one[name] for name in ("key", "url", "sha256")} | {"why": layout.TAKEN_DOWN}
    ]
    assert "asked by letter" not in (tmp_path / "v2" / layout.CARD).read_text()
    fresh = Workspace(str(tmp_path / "fresh"))
    result = fresh.fetch(str(released), CONTACT, removed=[str(removed)], **made.fetching())
    assert result.gone == {layout.TAKEN_DOWN: 1} and result.fetched == COUNT - 1


def test_rows_of_the_same_bytes_go_together(made: Made, released: Path, tmp_path: Path) -> None:
    """The next version has no row that a fetch with its own `removed.parquet` leaves out."""
    first, folder, workspace = rows(released), tmp_path / "v1", Workspace(str(tmp_path / "workspace"))
    shutil.copytree(made.workspace.url, workspace.url)
    shutil.copytree(released, folder)
    name = layout.data_file(0)
    table = pq.read_table(folder / name)
    digests = [first[0]["sha256"] if place == 1 else row["sha256"] for place, row in enumerate(first)]
    at = table.column_names.index("sha256")
    pq.write_table(table.set_column(at, "sha256", pa.array(digests)), folder / name)
    resummed(folder, name)
    workspace.add_tombstones([first[0]["url"]], "asked for")
    workspace.release("photos", str(tmp_path / "v2"), allow_networks=ALLOWED, predecessor=str(folder))
    gone = {first[0]["key"], first[1]["key"]}
    assert {row["key"] for row in rows(tmp_path / "v2")} == {row["key"] for row in first} - gone
    assert set(pq.read_table(tmp_path / "v2" / layout.REMOVED)["key"].to_pylist()) == gone


def test_tombstoned_samples_are_left_out(made: Made, released: Path, tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path / "workspace"))
    shutil.copytree(made.workspace.url, workspace.url)
    one = rows(released)[7]
    workspace.add_tombstones([one["key"]], "asked by letter")
    about = workspace.release("photos", str(tmp_path / "v1"), allow_networks=ALLOWED)
    assert about["tombstoned"] == 1 and about["rows"] == COUNT - 1
    assert one["key"] not in {row["key"] for row in rows(tmp_path / "v1")}


def test_a_version_that_no_run_has_made(made: Made, released: Path, tmp_path: Path) -> None:
    """A takedown makes one: its manifest names the version before."""
    root = tmp_path / "workspace"
    shutil.copytree(made.workspace.url, root)
    (dataset,) = Workspace(str(root)).datasets()
    old, new = root / dataset.base, root / "datasets" / "photos" / ("f" * 32)
    shutil.copytree(old, new)
    index = pq.read_table(new / "index.parquet")
    gone = index["key"][3].as_py()
    pq.write_table(index.filter(pc.not_equal(index["key"], gone)), new / "index.parquet")
    manifest = json.loads((new / "manifest.json").read_text())
    manifest |= {"fingerprint": new.name, "rows": COUNT - 1}
    manifest["extra"] |= {"predecessor": dataset.fingerprint, "committed": dataset.committed + 1}
    (new / "manifest.json").write_text(json.dumps(manifest))
    about = Workspace(str(root)).release(
        "photos", str(tmp_path / "v2"), allow_networks=ALLOWED, predecessor=str(released)
    )
    assert (about["dataset"], about["rows"], about["removed"], about["added"]) == (new.name, COUNT - 1, 1, 0)
    assert gone not in {row["key"] for row in rows(tmp_path / "v2")}
    shutil.rmtree(root / "runs")
    with pytest.raises(InputError, match=r"the record of the run that made it is gone; run the recipe again$"):
        Workspace(str(root)).release("photos", str(tmp_path / "v3"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("bytes", r"data/train-00000.parquet: has the sha256 [0-9a-f]{64}, not [0-9a-f]{64}, which SHA256SUMS gives"),
        ("missing file", r"data/train-00000.parquet: is missing, which SHA256SUMS gives; get it again$"),
        ("missing column", r"train-00000.parquet: no column 'url'; found key, .*; get it again$"),
        ("column of numbers", r"train-00000.parquet: column 'url' is int64; expected text$"),
        ("no parquet", r"train-00000.parquet: is not a parquet file \(.*\); get it again$"),
        ("outside", r"SHA256SUMS: '.*': expected SHA256, two spaces, a file in it$"),
        ("namespace", r"release.json: namespace: '../../x': expected a plain name$"),
        ("format", r"release: format True; this version reads format 1$"),
        ("media", r"release.json: media: None: expected a list of media$"),
        ("dataset", r"release.json: dataset: 'x\\n# y': expected a plain name$"),
        ("nested", r"release.json or SHA256SUMS is corrupt \(.*recursion.*\); expected a folder"),
        ("folder", r"data: is missing, which SHA256SUMS gives; get it again$"),
        ("two columns", r"train-00000.parquet: has the column 'url' 2 times; get it again$"),
        ("key", r"train-00000.parquet: key 'zz': expected 32 hex characters$"),
        (
            "no release",
            r"release: has no release.json and SHA256SUMS; expected a folder that `curate release` has made$",
        ),
    ],
)
def test_a_damaged_release_is_one_line(released: Path, tmp_path: Path, damage: str, says: str) -> None:
    folder = tmp_path / "release"
    shutil.copytree(released, folder)
    name = layout.data_file(0)
    data, about = folder / name, folder / layout.ABOUT
    table = pq.read_table(data)
    if damage == "bytes":
        whole = bytearray(data.read_bytes())
        whole[100] ^= 1
        data.write_bytes(whole)
    elif damage == "missing file":
        data.unlink()
    elif damage == "missing column":
        pq.write_table(table.drop_columns(["url"]), data)
    elif damage == "column of numbers":
        at = table.column_names.index("url")
        pq.write_table(table.set_column(at, "url", pa.array(range(len(table)))), data)
    elif damage == "two columns":
        pq.write_table(table.append_column("url", table["url"]), data)
    elif damage == "key":
        at = table.column_names.index("key")
        pq.write_table(table.set_column(at, "key", pa.array(["zz"] * len(table))), data)
    elif damage == "nested":
        about.write_text("[" * 100_000)
    elif damage == "folder":
        (folder / layout.SUMS).write_text(f"{'0' * 64}  data\n")
    elif damage == "no parquet":
        data.write_bytes(b"nothing")
    elif damage == "outside":
        (folder / layout.SUMS).write_text(f"{'0' * 64}  ../../secrets\n")
    elif damage == "no release":
        about.unlink()
    else:
        value = {"namespace": "../../x", "format": True, "media": None, "dataset": "x\n# y"}[damage]
        about.write_text(json.dumps(json.loads(about.read_text()) | {damage: value}))
    if damage in ("missing column", "column of numbers", "no parquet", "two columns", "key"):
        resummed(folder, name)
    if damage in ("namespace", "format", "media", "dataset"):
        resummed(folder, layout.ABOUT)
    with pytest.raises(InputError, match=says) as error:
        Workspace(str(tmp_path / "workspace")).fetch(str(folder), CONTACT)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset": "photo"}, r"^'photo': not a dataset of .*did you mean 'photos'"),
        ({"columns": ["sharpness"]}, r"^sharpness: no stage over the rows of sample writes this column"),
        ({"columns": ["url=width"]}, r"^columns: 'url=width': 'url' is taken, or no name; write NAME=COLUMN$"),
        ({"columns": ["aspect", "aspect=width"]}, r"^columns: 'aspect=width': 'aspect' is taken, or no name"),
        *(({"columns": [name]}, r"^columns: .*: \w+ is never published; a field of meta is meta.FIELD$")
          for name in ("x=source_id", "pool.source_id", "meta", "offset", "size", "ext", "name")),
        ({"to": " "}, r"^to: ' ': expected a new folder or URL$"),
        ({"to": __file__}, r"^to: '.*': File exists; give a new folder$"),
        ({"to": "/dev/null/x"}, r"^to: '/dev/null/x': Not a directory; give a new folder$"),
        ({"to": "gs://bucket/x"}, r"^to: gs://bucket/x: needs a package that is missing; pip install 'curate\[gcs\]'$"),
        ({"to": "nosuch://x"}, r"^to: 'nosuch://x': Protocol not known"),
        ({"allow_networks": ["x"]}, r"^allow_networks: 'x' is not a network"),
        ({"predecessor": "nowhere"}, r"nowhere: has no release.json and SHA256SUMS; expected a folder"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line(made: Made, tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        made.workspace.release(**{"dataset": "photos", "to": str(tmp_path / "new")} | options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--contact", "nobody"], "pool.contact: 'nobody': expected an e-mail address or a URL"),
        (["--allow-port", "99999"], "99999 is not a port; expected 1 to 65535"),
        (["--allow-network", "10.0.0.0/99"], "'10.0.0.0/99' is not a network"),
        (["--host-rate", "-1"], "pool.host_rate: -1.0: input should be greater than 0"),
        (["--namespace", "../x"], "pool.namespace: '../x': expected letters, digits"),
        (["--removed", "/nowhere.parquet"], "curate: /nowhere.parquet: is missing"),
    ],
)
def test_a_recipe_that_would_not_run_is_not_written(
    released: Path, tmp_path: Path, words: list[str], says: str
) -> None:
    recipe = tmp_path / "fetch.yaml"
    place = ["-w", tmp_path / "workspace", "--recipe", recipe, "--contact", CONTACT]
    assert says in curate("fetch", released, *place, *words).error
    assert not recipe.exists()


def test_a_folder_that_is_not_empty_is_left_alone(made: Made, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty \(it has mine.txt\); give a new folder$"):
        made.workspace.release("photos", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_chosen_columns(made: Made, tmp_path: Path) -> None:
    made.workspace.release("photos", str(tmp_path / "new"), columns=["aspect", "agency=meta.source"])
    found = rows(tmp_path / "new")
    assert all(row["agency"] == row["source"] and row["aspect"] > 0 for row in found)


def test_a_title_is_one_line(made: Made, tmp_path: Path) -> None:
    made.workspace.release("photos", str(tmp_path / "new"), title="Photos\r\n\n# Injected\n")
    assert "\n# Photos # Injected\n" in (tmp_path / "new" / layout.CARD).read_text()
