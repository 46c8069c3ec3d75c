"""acquire.download's part of the contract suite, with a real runner and a real server."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import tarfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from curate.acquire.download import child
from curate.acquire.download.download import AcquireDownload
from curate.acquire.download.environment import clean_environment
from curate.acquire.webdataset import AcquireWebDataset
from curate.core.contracts import Fetch
from curate.core.errors import CurateError
from curate.core.fetches import Fetches
from curate.core.hashing import make_key, rank_below, ranks
from curate.core.nouns.pools import read_pool, read_shards
from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import open_storage
from curate.engine.run import Result, run
from curate.engine.state import Options
from curate.engine.units.source.pulse import Pulse
from curate.image.embed import Embed
from curate.image.inspect import Inspect
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from tests.acquire.download.site import IMAGES, LATE, SECONDS, Row, Site, write_list
from tests.engine import workspaces

pytestmark = pytest.mark.usefixtures("runner_python")
RESIZED = {"resize_mode": "keep_ratio", "image_size": 12}


@dataclass
class Pool:
    """A pool that was made, by source id."""

    rows: dict[str, Row]
    members: dict[str, bytes]
    shards: list[tuple[str, int]]
    """Digest and members of each tar."""

    @classmethod
    def of(cls, result: Result, stage: str = "pool") -> Pool:
        workspace, _, base = result.outputs[stage].partition("/pools/")
        storage = open_storage(workspace)
        made = cls({}, {}, [])
        for shard in read_shards(storage, f"pools/{base}"):
            tar = (Path(workspace) / shard.tar.removeprefix("file://")).read_bytes()
            rows = read_pool(storage, shard.table).to_pylist()
            made.rows |= {row["source_id"]: row for row in rows}
            made.members |= {
                row["source_id"]: tar[row["offset"] :][: row["size"]] for row in rows if row["size"] is not None
            }
            made.shards.append((hashlib.sha256(tar).hexdigest(), len({row["offset"] for row in rows} - {None})))
        return made

    def reasons(self) -> dict[str, str]:
        """Reject reasons by URL."""
        return {row["url"]: row["reject"] for row in self.rows.values() if row["reject"]}


def download(site: Site, folder: Path, rows: list[Row], options: Options | None = None, **changes: Any) -> Pool:
    """The pool of a list."""
    path = write_list(folder / "list.jsonl", rows)
    return Pool.of(run(site.pipeline(path, **changes), str(folder / "workspace"), options=options))


def source_id(row: Row) -> str:
    return row["url"] if row["caption"] is None else f"{row['url']}\t{row['caption']}"


def requests(site: Site) -> Counter[str]:
    """URL -> requests that the server has had."""
    return Counter(f"http://{visit.host}:{site.port}{visit.request.target}" for visit in site.log)


@dataclass
class Everything:
    """Pools of Site.rows() as they come (`pool`) and `resized`; and what the server was asked for."""

    folder: Path
    result: Result
    asked: Counter[str]
    """Requests for `pool`, by URL."""


@pytest.fixture(scope="module")
def everything(site_server: Site, tmp_path_factory: pytest.TempPathFactory) -> Everything:
    folder = tmp_path_factory.mktemp("everything")
    pipeline = site_server.pipeline(write_list(folder / "list.jsonl", site_server.rows()))
    site_server.log.clear()
    run(pipeline, str(folder / "workspace"))
    asked = requests(site_server)
    pipeline.add("resized", AcquireDownload(**site_server.settings(namespace="resized", **RESIZED)), list="urls")
    return Everything(folder, run(pipeline, str(folder / "workspace")), asked)


def test_every_row_of_the_list_has_a_row(site: Site, everything: Everything) -> None:
    pool = Pool.of(everything.result)
    assert sorted(pool.rows) == sorted(source_id(row) for row in site.rows())
    for row in site.rows():
        made = pool.rows[source_id(row)]
        assert (made["url"], made["caption"]) == (row["url"], row["caption"])
        assert made["key"] == make_key("web", source_id(row))
        name = row["url"].rpartition("/")[2]
        assert pool.members.get(source_id(row)) == IMAGES.get(name)
        if name in IMAGES:
            assert made["sha256"] == hashlib.sha256(IMAGES[name]).hexdigest() and made["ext"] == "jpg"
    assert pool.reasons() == {
        site.at("/404"): "http_404",
        site.at("/500"): "http_500",
        site.at("/html.jpg"): "not_image",
        site.at("/opt-out/x-robots-tag"): "opt_out_x_robots_tag",
        site.url(LATE): "http_503",
        "file:///a": "scheme",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("contact", "me"),
        ("contact", "me@example.org\r\nX: y"),
        ("contact", "a\x1b@example.org"),
        ("user_agent", ""),
        ("user_agent", "/1.0"),
        ("user_agent", "bot/1\r\nX: y"),
        ("user_agent", "böt/1"),
    ],
)
def test_contact_and_user_agent_fit_into_a_header(name: str, value: str) -> None:
    given = {"namespace": "web", "contact": "me@example.org"}
    AcquireDownload(**given | {"user_agent": "OurBot/1.0 (+https://example.org/bot)"})
    with pytest.raises(ValueError, match=f"{name}\n.*expected"):
        AcquireDownload(**given | {name: value})


def test_rows_of_one_url_share_a_fetch_and_a_member(site: Site, everything: Everything) -> None:
    urls = {row["url"] for row in site.rows()} - {"file:///a"}
    assert everything.asked == Counter(urls)
    pool = Pool.of(everything.result)
    assert len(pool.members) == len(IMAGES) + len(site.rows()) - len(urls) - 1
    assert sum(members for _, members in pool.shards) == len(IMAGES)


def test_the_url_of_the_list_is_fetched(site: Site, tmp_path: Path) -> None:
    """Two spellings of a URL are one fetch, of one of them as it is."""
    plain, odd = site.url("0.jpg"), site.url("0.jpg").replace("/0", "/%30").replace("http", "HTTP") + "#top"
    pool = download(site, tmp_path, [{"url": odd, "caption": "a"}, {"url": plain, "caption": "b"}])
    assert list(pool.members.values()) == [IMAGES["0.jpg"]] * 2
    assert [visit.request.target for visit in site.log] == ["/images/%30.jpg"]
    assert {row["url"] for row in pool.rows.values()} == {odd, plain}


def test_digests(site: Site, tmp_path: Path) -> None:
    data = IMAGES["0.jpg"]
    right = {"sha256": hashlib.sha256(data).hexdigest(), "md5": hashlib.md5(data).hexdigest()}
    wrong = {"sha256": "0" * 64, "md5": "0" * 32}
    rows = [{"url": site.url("0.jpg"), "caption": "as it comes", **dict.fromkeys(right)}]
    rows += [{**rows[0], "caption": f"right {name}", name: value} for name, value in right.items()]
    rows += [{**rows[0], "caption": f"wrong {name}", name: value} for name, value in wrong.items()]
    pool = download(site, tmp_path, rows)
    found = {row["caption"]: (row["reject"], row["status"]) for row in pool.rows.values()}
    assert found == {
        row["caption"]: ("changed", "unusable") if "wrong" in row["caption"] else (None, None) for row in rows
    }


def test_denied_hosts_and_urls(site: Site, tmp_path: Path) -> None:
    """Before a request, and at a redirect."""
    hosts, urls = tmp_path / "hosts.txt", tmp_path / "urls.txt"
    hosts.write_text(f"# not these\n{site.addresses[1]}\n")
    urls.write_text(f"{site.url('0.jpg')}\n")

    def to(place: str) -> str:
        return site.at(f"/redirect?{urlencode({'to': place})}")

    allowed = [site.url("1.jpg"), to(site.url("1.jpg"))]
    denied = [site.url("0.jpg"), site.url("0.jpg", site.addresses[1]), to(site.url("0.jpg"))]
    denied += [to(site.url("1.jpg", site.addresses[1]))]
    rows = [{"url": url, "caption": None} for url in (*allowed, *denied)]
    pool = download(site, tmp_path, rows, deny_hosts=str(hosts), deny_urls=str(urls))
    assert sorted(pool.members) == sorted(allowed)
    codes = ["denied_url", "denied_host", "denied_url", "denied_host"]
    assert pool.reasons() == dict(zip(denied, codes, strict=True))
    assert site.log.per_host()[site.addresses[1]] == 0


def test_a_file_of_denied_hosts_is_read_before_anything_runs(site: Site, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    for text, said in [(None, "No such file"), ("http://a.example\n", "line 1")]:
        if text is not None:
            hosts.write_text(text)
        with pytest.raises(CurateError, match=said) as raised:
            download(site, tmp_path, site.rows(), deny_hosts=str(hosts))
        assert "deny_hosts" in str(raised.value) and "\n" not in str(raised.value)
        assert len(site.log) == 0 and not (tmp_path / "workspace/runs").exists()


def test_only_allowed_networks_are_connected_to(site: Site, tmp_path: Path) -> None:
    rows = [row for row in site.rows() if row["url"].startswith("http")]
    pool = download(site, tmp_path, rows, allow_networks=(f"{site.addresses[1]}/32",))
    asked = [row["url"] for row in rows if site.addresses[1] in row["url"]]
    assert {pool.rows[name]["url"] for name in pool.members} == set(asked)
    assert set(pool.reasons().values()) == {"private_address"} and len(pool.reasons()) > len(IMAGES) / 2
    assert set(site.log.per_host()) == {site.addresses[1]}


@pytest.mark.parametrize("threads", [1, pytest.param(64, marks=pytest.mark.long)])
def test_the_number_of_threads_changes_nothing(
    site: Site, everything: Everything, tmp_path: Path, threads: int
) -> None:
    run(site.pipeline(everything.folder / "list.jsonl", thread_count=threads), str(tmp_path / "workspace"))
    assert workspaces.files(tmp_path / "workspace", "pools/web/") == workspaces.files(
        everything.folder / "workspace", "pools/web/"
    )


# --- img2dataset ------------------------------------------------------------------------------------------------------

THEIRS = """
import json, sys
from img2dataset import download
if __name__ == "__main__":
    download(**json.loads(sys.argv[1]))
"""


@pytest.mark.long
def test_keys_and_images_are_those_of_img2dataset(
    site: Site, everything: Everything, tmp_path: Path, runner_python: Path
) -> None:
    """The same list through img2dataset and acquire.webdataset."""
    rows = site.rows()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    asked = {"url_list": "list.parquet", "input_format": "parquet", "url_col": "url", "caption_col": "caption"}
    asked |= {"output_folder": "theirs", "output_format": "webdataset", "processes_count": 1, "thread_count": 4}
    (tmp_path / "program.py").write_text(THEIRS)
    variables = clean_environment({"TMPDIR": str(tmp_path)})
    command = [runner_python, "-I", "program.py", json.dumps(asked | RESIZED)]
    subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True)
    theirs = AcquireWebDataset(namespace="resized", path=str(tmp_path / "theirs"))
    pool = Pool.of(run(Pipeline().add("pool", theirs), str(tmp_path / "workspace")))
    ours = Pool.of(everything.result, "resized")
    assert {name: row["key"] for name, row in pool.rows.items()} == {name: r["key"] for name, r in ours.rows.items()}
    assert len(ours.members) > len(IMAGES) and pool.members == ours.members


# --- what follows -----------------------------------------------------------------------------------------------------


def test_rows_that_share_a_member_on_their_way_to_a_dataset(site: Site, everything: Everything, tmp_path: Path) -> None:
    pipeline = site.pipeline(everything.folder / "list.jsonl")
    pipeline.add("inspect", Inspect(), "pool").add("embed", Embed(), "inspect")
    pipeline.add("all", SelectAll(), "embed")
    pipeline.add("dataset", PackWebDataset(name="web"), "all").check()
    shutil.copytree(everything.folder / "workspace", tmp_path / "workspace")
    result = run(pipeline, str(tmp_path / "workspace"))
    pool = Pool.of(result)
    assert result.reused["pool"] and len(site.log) == 0
    for stage in ("inspect", "embed", "all"):
        assert (result.ledger[stage].before, result.ledger[stage].after) == (len(pool.members), len(pool.members))
    packed = {}
    for tar in Path(result.outputs["dataset"]).rglob("*.tar"):
        with tarfile.open(tar) as file:
            packed |= {one.name: file.extractfile(one).read() for one in file if one.name.endswith(".jpg")}  # type: ignore[union-attr]
    keys = {row["key"]: pool.members[name] for name, row in pool.rows.items() if name in pool.members}
    assert {name.rpartition("/")[2].partition("-")[0]: data for name, data in packed.items()} == keys


def test_a_canary_run(site: Site, tmp_path: Path) -> None:
    """It takes some rows from one portion, and fetches only their URLs."""
    data = dict(zip((site.url(name) for name in IMAGES), IMAGES.values(), strict=True))
    rows = [{"url": url, "caption": caption} for url in data for caption in ("one", "two")]
    found = download(site, tmp_path, rows, Options(sample=0.5), portion_rows=1000)
    names = [source_id(row) for row in rows]
    chosen = rank_below(ranks(0, [make_key("web", name) for name in names]), 0.5)
    assert sorted(found.rows) == sorted(name for name, inside in zip(names, chosen, strict=True) if inside)
    assert found.members == {name: data[name.partition("\t")[0]] for name in found.rows}
    first_left_out = [url for url in data if [f"{url}\t{one}" in found.rows for one in ("one", "two")] == [False, True]]
    assert first_left_out
    assert requests(site) == Counter({row["url"] for row in found.rows.values()})


def test_a_retry_fetches_what_may_have_passed(site: Site, everything: Everything, tmp_path: Path) -> None:
    """And gives the same shards as before, and one with the rows that changed."""
    shutil.copytree(everything.folder / "workspace", tmp_path / "workspace")
    site.late = True
    pipeline = site.pipeline(everything.folder / "list.jsonl")
    pool = Pool.of(run(pipeline, str(tmp_path / "workspace"), options=Options(retry={"pool": ()})))
    assert requests(site) == Counter([site.url(LATE), site.at("/500")])
    assert pool.rows[site.url(LATE)]["status"] is None and pool.members[site.url(LATE)] == IMAGES["0.jpg"]
    before = Pool.of(everything.result)
    assert pool.shards[: len(before.shards)] == before.shards or set(before.shards) < set(pool.shards)
    assert len(pool.shards) == len(before.shards) + 1


def test_rates_count_a_fetch_when_it_ended(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when the engine gets to its row, which may come after that of a slow host. Idle time counts too."""
    answered, counted, told = threading.Semaphore(0), list[Fetch](), Pulse.received
    count, began = Fetches.count, time.time()

    def received(self: Pulse, *of: Any) -> None:
        told(self, *of)
        answered.release()

    def counts(self: Fetches, fetch: Fetch, *of: Any) -> None:
        counted.append(fetch)
        count(self, fetch, *of)

    monkeypatch.setattr(Pulse, "received", received)
    monkeypatch.setattr(Fetches, "count", counts)
    rows = [row for row in site.rows() if row["url"].endswith(".jpg") and row["caption"]][: len(IMAGES)]
    pipeline = site.pipeline(write_list(tmp_path / "list.jsonl", rows), portion_rows=100)
    site.hold(len(rows) - 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, pipeline, str(tmp_path / "workspace"))
        assert all(answered.acquire(timeout=SECONDS) for _ in rows[1:])
        site.wait()
        opened = time.time()
        site.open()
        result = running.result()
    assert sum(began < fetch.ended < opened for fetch in counted) == len(rows) - 1 == len(counted) - 1
    made = json.loads((Path(result.outputs["pool"]) / "manifest.json").read_text())["extra"]["fetches"]
    first, last = (int(then // made["period"]) for then in (opened, time.time()))
    assert set(map(str, range(first, last))) <= set(made["periods"])


@pytest.mark.long
def test_rows_left_at_the_deadline_of_a_shard_are_retried(
    site: Site, everything: Everything, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline comes when 20 URLs are answered."""
    answered, late_now, told = threading.Semaphore(0), threading.Event(), Pulse.received

    def received(self: Pulse, *of: Any) -> None:
        told(self, *of)
        answered.release()

    def clock() -> float:
        return math.inf if late_now.is_set() else time.monotonic()

    monkeypatch.setattr(Pulse, "received", received)
    monkeypatch.setattr(child, "time", SimpleNamespace(monotonic=clock))
    path = write_list(tmp_path / "list.jsonl", [row for row in site.rows() if row["url"] != site.url(LATE)])
    pipeline = site.pipeline(path, portion_rows=1000)
    site.hold(20)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, pipeline, str(tmp_path / "workspace"))
        assert all(answered.acquire(timeout=SECONDS) for _ in range(20))
        site.wait()
        late_now.set()
        first = Pool.of(running.result(SECONDS))
    late_now.clear()
    late = {row["url"] for row in first.rows.values() if (row["reject"], row["status"]) == ("deadline", "error")}
    assert len(late) == len(IMAGES) + 4 - 20
    site.open()
    site.log.clear()
    second = Pool.of(run(pipeline, str(tmp_path / "workspace"), options=Options(retry={"pool": ("deadline",)})))
    assert set(requests(site)) == late
    assert second.members == Pool.of(everything.result).members


def test_a_portion_of_rejected_rows_needs_no_runner(site: Site, tmp_path: Path) -> None:
    pipeline = site.pipeline(write_list(tmp_path / "list.jsonl", [{"url": "file:///a", "caption": "a"}]))
    pool = Pool.of(run(pipeline, str(tmp_path / "workspace")))
    assert pool.reasons() == {"file:///a": "scheme"}
