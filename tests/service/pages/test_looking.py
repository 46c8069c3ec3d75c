"""Find, clusters, captions, what a dataset contains, and what people do with samples: over a small real workspace."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml
from fastapi.testclient import TestClient
from PIL import Image

from curate.api import Options, Pipeline, Run, Slice, Values, Workspace, make_stage
from curate.api.find import Containing
from curate.core.errors import CorruptError, InputError
from curate.filter.expressions import parse
from curate.service.app import create_app
from curate.service.auth.roles import Principal, Role
from curate.service.pages.data import contents
from curate.service.samples import exports
from curate.service.samples.looking import looked
from curate.service.service import Service
from curate.service.settings import Settings
from curate.service.view import set_up
from tests.draw import drawn
from tests.html.browser import Browser, serious
from tests.service.pages.markup import Markup
from tests.service.pages.served import served

URL = "http://127.0.0.1:8090"
HOSTILE = "<script>alert(1)</script>"
ROWS, CHOSEN = 24, 10


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """24 images in 4 shards: 2 are too small, 10 are packed. Captions name a colour; one is hostile."""
    folder = tmp_path_factory.mktemp("looking")
    images = folder / "images"
    for number in range(ROWS):
        kind, side = ("red", "blue")[number % 2], 8 if number < 2 else 40
        place = images / kind / f"{number:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        colour = (250 - 4 * number, 0, 0) if kind == "red" else (0, 0, 250 - 4 * number)
        Image.new("RGB", (side, side), colour).save(place)
        place.with_suffix(".txt").write_text(f"a {kind} Bicycle {number}" if number != 5 else HOSTILE)
    made = Pipeline().add("pool", make_stage("acquire.folder", namespace="n", path=str(images), shard_rows=6))
    made.add("inspect", make_stage("image.inspect"), "pool")
    made.add("size", make_stage("image.filter", min_side=16), "inspect")
    made.add("embed", make_stage("image.embed", encoder="tiny"), "size")
    made.add("index", make_stage("search.fit"), "embed")
    made.add("tree", make_stage("cluster.fit", levels=[4, 2], rounds=0), "embed")
    made.add("clusters", make_stage("cluster.assign", levels=2), "embed", tree="tree")
    made.add("sample", make_stage("select.hierarchical", target=CHOSEN), "clusters", tree="tree")
    made.add("fit", make_stage("project.fit"), "embed")
    made.add("map", make_stage("project.place"), "clusters", projection="fit")
    made.add("packed", make_stage("pack.webdataset", name="bikes", carry={"label": "meta.folder"}), "sample")
    made.add("report", make_stage("report.html"), "packed")
    found = Workspace(str(folder / "bikes"))
    found.submit(made.check(), run_id="one", options=Options(cpus=1)).wait()
    return found


@pytest.fixture(scope="module")
def run(workspace: Workspace) -> Run:
    return workspace.run("one")


@pytest.fixture(scope="module")
def service(workspace: Workspace, migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("state") / "view.db"
    shutil.copy(migrated_file, path)
    with closing(Service.of(Settings(database=f"sqlite:///{path}", url=URL))) as made:
        made.alone = set_up(made, workspace)
        made.sandbox.start = lambda: None  # type: ignore[method-assign]
        yield made


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[TestClient]:
    with TestClient(create_app(service, reconcile=False), base_url=URL, follow_redirects=False) as made:
        yield made


def get(client: TestClient, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert Markup(answer.text).problems == []
    assert HOSTILE not in answer.text
    return answer.text


def keys(run: Run, stage: str) -> list[str]:
    found: list[str] = run.slice(Slice(stage), limit=100).table["key"].to_pylist()
    return found


# --- find -------------------------------------------------------------------------------------------------------------


def test_texts_are_found_in_lists_and_regardless_of_case() -> None:
    table = pa.table({"a": ["A Fox", None, "dog", ""], "b": [None, ["x", "foxes"], [], ["cat", None]]})
    assert Containing("fox", ("a", "b")).holds(table).tolist() == [True, True, False, False]
    assert Containing("(", ("a",)).holds(table).tolist() == [False] * 4  # no pattern


def test_a_key_its_start_and_a_source_id_are_found_by_the_index(client: TestClient, run: Run) -> None:
    key = keys(run, "pool")[3]
    source = run.slice(Slice("pool"), ["source_id"]).table["source_id"][3].as_py()
    for text in (key, key[:10], source):
        found = client.get(f"/api/v1/runs/one/find?text={quote(text)}").json()
        assert ([row["key"] for row in found["rows"]], found["by"], found["searched"]) == ([key], "key", 0)
    assert client.get(f"/api/v1/runs/one/find?text={key[:6]}").json()["by"] == "text"  # it may be a word
    page = get(client, f"/find?q={key}")
    assert "By key" in page and f"/runs/one/samples/{key}" in page and "Find similar images" in page


def test_a_text_is_found_shard_by_shard_with_a_cursor(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curate.service.samples.find.SECONDS", 0.0)  # a shard a page
    found, cursor, searched = list[str](), "", list[int]()
    while True:
        page = client.get(f"/api/v1/runs/one/find?text=RED bicycle&cursor={cursor}").json()
        found += [row["key"] for row in page["rows"]]
        searched.append(page["searched"])
        cursor = page["next"]
        if not cursor:
            break
    assert (len(set(found)), searched, page["shards"]) == (12, [1, 2, 3, 4], 4)
    text = get(client, "/find?q=RED bicycle&run=one")
    assert "By text" in text and "searched 1 of 4 shards" in text


def test_a_reason_leads_to_its_rejects(client: TestClient) -> None:
    text = get(client, "/find?q=too small")
    assert "By reject reason" in text and "/runs/one/samples?stage=size&amp;rejected=too_small" in text


def test_meaning_is_searched_if_there_is_an_index(client: TestClient, run: Run) -> None:
    assert "By meaning" in get(client, "/find?q=a red square")
    key = keys(run, "embed")[0]
    text = get(client, f"/find?like={key}")
    assert "Similar images" in text and "similarity 0.9" in text


def test_the_page_says_what_it_did_not_find(client: TestClient) -> None:
    assert "No text of 4 shards contains" in get(client, "/find?q=zebra<b>")
    assert "nowhere" in get(client, "/find?q=x&stage=nowhere", 422)
    assert "not found" in get(client, "/find?q=x&run=other", 404)
    assert get(client, "/find")


# --- the run's page ---------------------------------------------------------------------------------------------------


def test_each_stage_is_in_one_table_with_what_it_took(client: TestClient, run: Run) -> None:
    text = get(client, "/runs/one")
    assert text.count('id="s-embed"') == 1 and text.count("<bdi>embed</bdi>") == 1
    assert run.record.took().keys() == run.record.record["stages"].keys()
    [line] = [one for one in client.get("/api/v1/runs/one/funnel").json() if one["stage"] == "embed"]
    assert line["seconds"] == run.record.took()["embed"] > 0


def test_a_report_is_shown_without_scripts_and_apart_from_our_origin(client: TestClient, run: Run) -> None:
    [href] = re.findall(r'href="(/runs/one/reports/[^"]*)"', get(client, "/runs/one"))
    answer = client.get(href)
    policy = answer.headers["content-security-policy"].split("; ")
    assert answer.status_code == 200 and "Curation report" in answer.text
    assert "sandbox" in policy and "default-src 'none'" in policy and "script" not in " ".join(policy)
    get(client, "/runs/one/reports/none", 404)


# --- clusters and captions --------------------------------------------------------------------------------------------


def test_clusters_have_what_was_chosen_on_every_level(run: Run) -> None:
    found = run.clusters()
    assert (found.rows_of, found.selection) == ("clusters", "sample")
    for level in (1, 2):
        column = run.slice(Slice("sample"), [f"cluster_{level}"], limit=100).table[f"cluster_{level}"].to_pylist()
        assert found.level(level)["chosen"].to_pylist() == [column.count(number) for number in range(6 - 2 * level)]


def test_the_way_down_a_tree(client: TestClient, run: Run) -> None:
    text = get(client, "/runs/one/clusters")
    assert "Level 2: 2 clusters" in text and "Level 1: 4 clusters" in text and "chosen</b>" in text
    assert "/runs/one/thumbnails/" in text
    text = get(client, "/runs/one/clusters?level=2&cluster=0")
    assert "What it consists of" in text and "where=%22clusters.cluster_2%22+%3D+0" in text
    assert "the finest" in get(client, "/runs/one/clusters?level=1&cluster=3")
    for query in ("level=9", "level=1&cluster=4", "level=x", "sort=colour", "stage=pool", "cluster=-1"):
        get(client, f"/runs/one/clusters?{query}", 422)


def test_a_sample_is_shown_without_what_is_missing(
    client: TestClient, run: Run, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(run: Run, shard: str, key: str) -> None:
        raise CorruptError("children.parquet: missing")

    monkeypatch.setattr(Run, "children_of", gone)
    [tar] = (Path(workspace.url) / "datasets").rglob("*.tar")
    aside = tar.rename(tar.with_suffix(".aside"))
    try:
        text = get(client, f"/runs/one/samples/{keys(run, 'sample')[-1]}")
    finally:
        aside.rename(tar)
    assert "children.parquet: missing" in text and "bikes-000000.tar (missing)" in text


def test_texts_are_beside_their_images(client: TestClient) -> None:
    text = get(client, "/runs/one/captions?stage=inspect")
    assert text.count('<li class="card">') == ROWS and "a red Bicycle 2" in text and "&lt;script&gt;" in text
    assert "Nothing to check" not in text
    for query in ("stage=nope", "columns=nope", "drawn=z"):
        get(client, f"/runs/one/captions?{query}", 422)


# --- datasets ---------------------------------------------------------------------------------------------------------


def test_a_dataset_says_what_it_contains_and_how_to_read_it(client: TestClient, workspace: Workspace) -> None:
    (dataset,) = workspace.datasets()
    found = workspace.contents(dataset.base)
    assert (found.rows, found.read, found.texts, found.repeated) == (CHOSEN, CHOSEN, CHOSEN, 0)
    assert found.files == {"png": CHOSEN} and found.shorter_side == (40.0,) * 5
    assert [(one.column, one.source, one.distinct) for one in found.values] == [("label", "meta.folder", 2)]
    assert sum(rows for _, rows in found.values[0].top) == CHOSEN
    text = get(client, f"/datasets/bikes/{dataset.base.removeprefix('datasets/')}")
    assert "where=meta.folder+%3D+%27red%27" in text and text.count('class="tile"') == CHOSEN
    assert f"--train-num-samples {CHOSEN}" in text and found.tars == "bikes-000000.tar" and found.tars in text
    with pytest.raises(InputError, match="not a dataset"):
        workspace.contents("datasets/bikes/0000")


@pytest.mark.parametrize(
    ("source", "boolean", "value", "where"),
    [
        ("flag", True, "True", "flag = true"),
        ("meta.my-field", False, "it's", "\"meta.my-field\" = 'it''s'"),
        ("meta.nested.a b", False, "1", "\"meta.nested.a b\" = '1'"),
        ("meta.long", False, "L" * 1000, ""),
    ],
)
def test_links_of_values(service: Service, source: str, boolean: bool, value: str, where: str) -> None:
    assert service.alone is not None
    seen = looked(service, service.alone, "one", None)
    path = contents._filtered(seen, "sample", Values("c", source, 1, 0, boolean=boolean), value, "")
    assert parse_qs(urlsplit(path).query).get("where", [""]) == [where]
    assert not where or parse(where).columns == (source,)


def test_a_dataset_without_its_index_says_so(client: TestClient, workspace: Workspace, service: Service) -> None:
    (dataset,) = workspace.datasets()
    index = Path(workspace.url, dataset.base, "index.parquet")
    index.rename(index.with_suffix(".away"))
    assert service.alone is not None
    (place,) = service.alone.roles
    service.kept.drop(("contents", place, dataset.base))
    try:
        text = get(client, f"/datasets/bikes/{dataset.base.removeprefix('datasets/')}")
        assert "Not all of it can be shown" in text and "index of a dataset is corrupt or missing" in text
    finally:
        index.with_suffix(".away").rename(index)


def test_a_field_of_meta_filters_and_is_shown(client: TestClient, run: Run) -> None:
    found = run.slice(Slice("pool", where="meta.folder = 'blue'"), ["meta.folder"], limit=100).table
    assert found["meta.folder"].to_pylist() == ["blue"] * 12


# --- actions ----------------------------------------------------------------------------------------------------------


def exported(client: TestClient, form: str, query: str = "stage=sample") -> Any:
    answer = client.get(f"/api/v1/runs/one/export?format={form}&{query}")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"].startswith("attachment; ")
    return answer


def test_a_slice_is_exported(client: TestClient, run: Run) -> None:
    chosen, query = keys(run, "sample"), "stage=sample&columns=width,embedding"
    table = pq.read_table(io.BytesIO(exported(client, "parquet", query).content))
    assert table["key"].to_pylist() == chosen and table["width"].to_pylist() == [40] * CHOSEN
    rows = pa_csv.read_csv(io.BytesIO(exported(client, "csv", query).content))
    assert rows["key"].to_pylist() == chosen and len(json.loads(rows["embedding"][0].as_py())) > 1
    stages = yaml.safe_load("stages:\n" + exported(client, "recipe").text)["stages"]
    rest = [key for key in keys(run, "pool") if key not in chosen]
    keep = stages["without_1"]["keep"]
    assert run.slice(Slice("pool", where=keep), limit=100).table["key"].to_pylist() == rest
    assert len(exported(client, "recipe", "stage=pool&text=red").text.split("'")) == 2 * 12 + 1


def test_a_notebook_reads_the_same_rows(client: TestClient, run: Run) -> None:
    query = urlencode({"stage": "pool", "where": "meta.folder = 'red'", "text": "bicycle"})
    cells = json.loads(exported(client, "notebook", query).text)["cells"]
    names: dict[str, Any] = {}
    exec(cells[0]["source"], names)
    assert len(names["page"].table) == 12
    hostile = exported(client, "notebook", f"stage=pool&text={quote(chr(34) + chr(39) + ')#' + chr(10) + 'import os')}")
    for cell in json.loads(hostile.text)["cells"]:
        compile(cell["source"], "cell", "exec")
        assert not [line for line in cell["source"].splitlines() if line.startswith("import os")]


def test_a_long_export_says_that_there_are_more(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exported(client, "csv").headers["x-curate-more"] == "no"
    monkeypatch.setattr(exports, "MOST_ROWS", 7)
    answer = exported(client, "csv")
    assert answer.headers["x-curate-more"] == "yes" and answer.text.count("\n") == 1 + 7


def test_an_export_has_a_limit_on_its_memory(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MOST_BYTES", 1)
    monkeypatch.setattr(exports, "AT_ONCE", 4)
    answer = exported(client, "csv")
    assert answer.headers["x-curate-more"] == "yes" and answer.text.count("\n") == 1 + 4


def test_spreadsheets_run_no_cell() -> None:
    texts = ["=1+1", "+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "\uff1d1", "a=b", "", None]
    table = pa.table({"text": texts, "number": pa.array([-1] * len(texts)), "key": ["k"] * len(texts)})
    rows = pa_csv.read_csv(
        io.BytesIO(exports.WRITERS["csv"](table, "")), parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )  # fmt: skip
    assert rows["text"].to_pylist() == [*(f"'{text}" for text in texts[:7]), *texts[7:]]
    assert rows["number"].to_pylist() == [-1] * len(texts)


def test_pages_of_one_person_offer_no_editor_and_name_the_limits(client: TestClient) -> None:
    for path in ("", "/thresholds?stage=inspect&column=width", "/map?within=-9,-9 9,-9 9,9 -9,9"):
        text = get(client, f"/runs/one{path}")
        assert "/new" not in text, path
    text = get(client, "/runs/one/samples?stage=sample")
    assert "100,000 rows, the keys 10,000, the notebook 1,000" in text


def test_bad_exports_are_one_line(client: TestClient) -> None:
    for query in ("stage=nope", "stage=pool&where=width >", "stage=pool&columns=nope", "stage=pool&format=exe"):
        answer = client.get(f"/api/v1/runs/one/export?format=csv&{query}")
        assert answer.status_code == 422 and "\n" not in answer.json()["detail"]


def test_excluding_needs_a_choice_and_a_reason(client: TestClient, service: Service, workspace: Workspace) -> None:
    for form in ({"why": "x"}, {"key": "ab" * 16, "why": ""}):
        answer = client.post("/runs/one/exclude", data=form | {"csrf": service.csrf})
        assert answer.status_code == 422 and Markup(answer.text).problems == []
    assert client.post("/runs/one/exclude", data={"key": "ab" * 16, "why": "x"}).status_code == 403  # without the token
    assert workspace.tombstones().get("key", ()) == ()


def test_a_viewer_excludes_nothing(client: TestClient, service: Service, workspace: Workspace) -> None:
    assert service.alone is not None
    before, (place,) = service.alone, service.alone.roles
    service.alone = Principal(before.user_id, before.user, "", roles={place: Role.VIEWER}, alone=True)
    try:
        text = get(client, "/runs/one/samples?stage=pool")
        assert "Exclude" not in text and "Export" in text and "Hidden" in text and "/thumbnails/" not in text
        dataset = f"/datasets/bikes/{workspace.datasets()[0].base.removeprefix('datasets/')}"
        of_run = ("rejects", "clusters", "captions", "map", "thresholds", "thresholds?column=width", "compare/one")
        for path in (dataset, "/find?q=red", *(f"/runs/one/{one}" for one in of_run)):
            assert "/thumbnails/" not in get(client, path), path
        form = {"key": "ab" * 16, "why": "x", "csrf": service.csrf}
        assert client.post("/runs/one/exclude", data=form).status_code == 403
    finally:
        service.alone = before
    assert workspace.tombstones().get("key", ()) == ()


@pytest.mark.long
def test_red_bicycles_are_found_and_three_excluded(
    browser: Browser, service: Service, run: Run, workspace: Workspace
) -> None:
    """By keyboard and mouse, in a browser; the next search by meaning leaves them out."""
    with served(create_app(service, reconcile=False)) as url, browser.tab() as tab:
        page = tab.page
        page.goto(f"{url}/runs/one")
        page.get_by_label("Find samples by key").fill("red bicycle")
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="By text").wait_for()
        chosen = [page.locator("ul[aria-label='By text'] input[name=key]").nth(place) for place in range(3)]
        keys = [one.get_attribute("value") for one in chosen]
        for one in chosen:
            one.check()
        page.get_by_text("Exclude samples from later runs").click()
        page.get_by_label("Why").fill("Not a bicycle")
        page.get_by_role("button", name="Exclude").click()
        page.get_by_text("No later run uses these samples").wait_for()
        assert tab.messages == []
    assert set(keys) == set(workspace.tombstones()["key"])
    assert not set(keys) & {hit.key for hit in run.search("a red bicycle", limit=24).hits}


# --- for everybody ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_axe_finds_nothing_serious(browser: Browser, service: Service, run: Run, workspace: Workspace) -> None:
    chosen, (dataset,) = keys(run, "sample")[0], workspace.datasets()
    of_run = (
        "", "/samples", "/samples?stage=size&rejected=*", "/samples?where=width >", f"/samples/{chosen}", "/rejects",
        "/clusters", "/clusters?level=2&cluster=0", "/captions", "/map", "/map?map=map&colour=cluster_1", "/thresholds",
        "/thresholds?stage=inspect&column=width", "/compare", "/compare/one",
    )  # fmt: skip
    paths = [f"/runs/one{path}" for path in of_run]
    paths += ["/runs", "/datasets", f"/datasets/bikes/{dataset.base.removeprefix('datasets/')}", "/find"]
    paths += ["/find?q=red bicycle", f"/find?like={chosen}", "/nowhere"]
    with served(create_app(service, reconcile=False)) as url:
        assert serious(browser, [url + path for path in drawn(paths)]) == []
