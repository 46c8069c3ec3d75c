"""Content of the page. test_browser.py tests how it looks and behaves."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest

from curate.core.errors import Reject
from curate.core.hashing import make_key
from curate.core.ledger import Entry
from curate.core.recipe.registry import resolve
from curate.report.html import ReportHtml
from curate.report.survey import scope as report_scope
from curate.report.survey.scope import scope_of
from curate.report.survey.survey import survey, with_pool_counts
from curate.report.survey.tree import choose
from curate.report.verdict import gather
from curate.report.verdict.compare import ENTROPY, KNN, NEARNESS, SMALL, SPACING
from tests.report.memory_view import MemoryView, clustered_pool, drawing, manifest, small_pool, stages_of

VOID = {"meta", "link", "img", "input", "line", "br", "wbr"}


class Page(HTMLParser):
    """Tags with their attributes, text without scripts and styles, and the tags that are still open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def render(view: MemoryView, **parameters) -> Page:
    files = ReportHtml(**parameters).render(view)
    assert files.keys() <= {"index.html", "balance.json"}
    page = Page(files["index.html"].decode())
    assert page.open == []
    return page


@pytest.fixture(scope="module")
def page() -> Page:
    return render(small_pool(), title="A toy pool", label="meta.category")


def test_is_registered():
    assert resolve("report.html") is ReportHtml
    assert ReportHtml(threads=7).parameters() == ReportHtml(threads=2).parameters()


def test_every_parameter_is_described():
    assert all(field.description for name, field in ReportHtml.model_fields.items())


def test_the_counts_add_up(page):
    assert "240 in = 94 rejected + 146 selected . Every image is accounted for." in page.text
    assert "− 16 = 220" in page.text
    assert "does not add up" not in page.text


def test_every_section_exists_and_is_linked(page):
    ids = {attributes.get("id") for _, attributes in page.tags}
    links = [link["href"][1:] for link in page.all("a")]
    assert {"random", "funnel", "balance", "labels", "browse", "kept", "rejected", "time", "recipe"} <= ids
    assert set(links) <= ids
    for button in page.all("button"):
        assert button.get("popovertarget") in ids | {None}


def test_the_selection_is_compared_with_a_random_sample(page):
    files = ReportHtml(label="meta.category").render(small_pool())
    found = json.loads(files["balance.json"])
    assert " a random sample: " in found["verdict"] and found["samples"] == 146
    assert [line[0] for line in found["lines"]] == [ENTROPY, SMALL, SPACING, KNN, NEARNESS]
    lines = (" ".join((name, state, *texts)) for name, *texts, state in found["lines"])
    for text in (found["verdict"], *found["warnings"], *lines):
        assert text[0].upper() + text[1:] in page.text


def test_labels_may_come_from_a_file(tmp_path):
    view, path = small_pool(), tmp_path / "labels.csv"
    some = [(row["key"], json.loads(row["meta"])["category"]) for row in view.rows if row["meta"]]
    path.write_text("key,label\n" + "".join(f"{key},{label}\n" for key, label in some[::2]))
    stage = ReportHtml(labels=path)
    assert stage.preflight() == [] and "labels" not in stage.parameters()
    found, before = json.loads(stage.render(view)["balance.json"]), stage.identity()
    assert found["lines"][0][0] == ENTROPY and found["warnings"] == []
    path.write_text("key,label\n")
    assert stage.identity() != before
    files = stage.render(view)
    assert json.loads(files["balance.json"])["lines"][0][0] == SPACING
    assert "No row has one of the keys in" in files["index.html"].decode()
    path.write_text("image,label\n")
    assert "give a .csv or .parquet file with the columns key and label" in stage.preflight()[0]
    assert ReportHtml(labels=tmp_path / "none.csv").preflight()[0].startswith("labels ")


def test_a_selection_that_loses_a_label_says_so():
    view = small_pool()
    for row in view.rows:
        if "shapes/1" in row["meta"] and row.get("rejected_by") is None:
            row |= {"rejected_by": "select", "reject_reason": "not_sampled", "copies": 0}
    view.stages = stages_of(view.rows)
    page = render(view, label="meta.category")
    assert re.search(r"1 of 3 labels vanish \(about 0 would in a random sample\): 'shapes/1' \d+ -> 0", page.text)


def test_a_small_selection_is_undecided_but_warns():
    view = small_pool(30)
    for row in view.rows[25:]:
        row |= {"rejected_by": "select", "reject_reason": "not_sampled", "copies": 0}
    text = render(view, label="meta.category").text
    assert "Undecided against a random sample: fewer than 20 samples" in text and "labels vanish" in text


def test_the_carried_label_is_the_default():
    view = small_pool(60)
    view.stages["dataset"] = manifest("dataset", "pack", Entry(146, Counter(), 146))
    view.stages["dataset"].parameters = {"carry": {"label": "meta.category", "key": "key"}}
    assert "Balance of meta.category" in render(view).text
    view.stages["dataset"].parameters = {"carry": ["meta.label"]}
    assert "No row has such a label" in render(view).text


def test_what_takes_everything_is_not_compared():
    view = small_pool()
    for row in view.rows:
        if row.get("rejected_by") == "select":
            row |= {"rejected_by": None, "reject_reason": None, "copies": 1}
    view.stages = stages_of(view.rows)
    assert "balance.json" not in ReportHtml(label="meta.category").render(view)


def test_a_larger_pool_is_compared_by_a_part_of_it(monkeypatch):
    view = small_pool(600)
    monkeypatch.setattr(gather, "MOST", 100)
    files = ReportHtml(label="meta.category").render(view)
    assert json.loads(files["balance.json"])["samples"] == 100
    view.shard_rows = 77
    assert ReportHtml(label="meta.category").render(view) == files


def test_nothing_is_fetched(page):
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("data:", "#"))
    assert any("default-src 'none'" in (meta.get("content") or "") for meta in page.all("meta"))


def test_every_image_has_an_alternative_text(page):
    images = [image for image in page.all("img") if "data-key" in image]
    assert len(images) > 40
    assert all(image["alt"] for image in images)
    assert len({image["data-key"] for image in images}) == len(images)


def test_clusters_are_named_counted_and_shown(page):
    assert "star" in page.text
    assert {"cluster-2-0", "cluster-2-1", "cluster-2-2", "cluster-1-8"} <= {tag.get("id") for _, tag in page.tags}


def test_exemplars_are_the_closest_to_the_centroid():
    view = small_pool()
    reached = [row for row in view.rows if row.get("cluster_1") == 8]
    closest = {row["key"] for row in sorted(reached, key=lambda row: row["centroid_distance"])[:2]}
    page = render(view, pictures_shown=2, rejects_shown=0)
    assert closest <= {image.get("data-key") for image in page.all("img")}


def test_duplicates_are_shown_next_to_their_keeper(page):
    assert "pair" in {division.get("class") for division in page.all("div")}
    assert "Duplicate of" in page.text


def test_undecodable_and_missing_images_have_a_reason(page):
    assert "truncated png" in page.text
    assert "no bytes" in page.text


def test_bytes_that_are_gone_or_cannot_be_copied_have_their_reason():
    view = small_pool()
    view.encoded[view.rows[0]["key"]] = Reject("not_copyable", "vp8; an mp4 holds h264")
    page = render(view)
    assert "not copyable" in page.text and "vp8; an mp4 holds h264" in page.text


def test_detail_of_an_import_reaches_the_page():
    view = small_pool()
    view.rows[0]["meta"] = '{"detail": "HTTP 404 from example.org"}'
    assert "HTTP 404 from example.org" in render(view).text


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`{{ 7*7 }}\x00\u202e&amp;"


def test_hostile_text_stays_text():
    view = small_pool(60)
    for row in view.rows:
        row |= {"caption": HOSTILE, "source_id": HOSTILE, "url": f"javascript:{HOSTILE}"}
        row["meta"] = '{"category": "</script><svg onload=alert(3)>\\ud800"}'
    view.stages["inspect"].parameters = {HOSTILE: HOSTILE}
    view.rows[21] |= {"rejected_by": "inspect", "reject_reason": HOSTILE, "copies": 0}
    page = render(view, title=HOSTILE, label="meta.category")
    assert len(page.all("script")) == 1
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert not (attributes.get("href") or "").startswith("javascript")
        assert (tag, attributes.get("src")) != ("img", "x")
    assert "49" not in re.findall(r"`(\d+)", page.text)
    assert "\x00" not in page.text


def bare(*absent: str) -> MemoryView:
    """Live rows without clusters, selection and dataset."""
    keys = [make_key("bare", str(number)) for number in range(30)]
    rows = [{"key": key, "source_id": f"{key}.png"} for key in keys]
    stages = {"pool": manifest("pool", "acquire.folder", Entry(30, Counter(), 30))}
    return MemoryView(rows, stages, {key: drawing(n) for n, key in enumerate(keys)}, absent=absent)


CLUSTERS = ("cluster_1", "cluster_2", "cluster_3", "centroid_distance")


def test_a_pool_alone_has_a_page():
    page = render(bare(*CLUSTERS, "caption", "duplicate_of", "copies", "meta"))
    assert "30 in = 0 rejected + 30 kept . Every image is accounted for." in page.text
    assert not {"balance", "browse", "labels", "rejected"} & {tag.get("id") for _, tag in page.tags}
    assert len([image for image in page.all("img") if "data-key" in image]) == 24


def test_clusters_without_a_selection_show_sizes_now():
    view = bare()
    for number, row in enumerate(view.rows):
        row |= {"cluster_1": number % 3, "cluster_2": 0, "cluster_3": 0, "centroid_distance": None}
    page = render(view)
    assert "before the selection" not in page.text
    assert "Non-empty clusters 3" in page.text


def test_an_empty_pool_has_a_page():
    page = render(MemoryView([], {}))
    assert "0 in = 0 rejected + 0 kept" in page.text
    assert "Nothing is kept" in page.text


def test_a_pool_that_lost_everything_shows_where():
    view = bare(*CLUSTERS)
    for row in view.rows:
        row |= {"rejected_by": "pool", "reject_reason": "unreadable", "copies": 0}
    view.stages = {"pool": manifest("pool", "acquire.folder", Entry(30, Counter(unreadable=30), 0))}
    page = render(view)
    assert "Nothing is kept" in page.text
    assert "unreadable 30" in page.text


def test_a_ledger_that_does_not_add_up_is_shown():
    view = small_pool()
    view.stages["inspect"].ledger["after"] += 5
    view.rows[100]["copies"] = 0
    view.rows[100]["rejected_by"] = None
    text = render(view).text
    assert "does not add up" in text
    assert "1 unaccounted for" in text


def test_an_unknown_label_is_reported():
    assert "No row has such a label" in render(small_pool(60), label="meta.colour").text
    assert "No row has such a label" in render(small_pool(60), label="colour").text


def test_times_show_what_was_computed():
    view = small_pool()
    view.stages["inspect"].built_rows = 0
    view.stages["duplicates"].built_rows = 36
    text = render(view).text
    assert "inspect 2.0 s – 239 123 kB cached" in text
    assert "duplicates 2.0 s 18 236 123 kB partly cached, 36 computed" in text


def test_the_page_does_not_depend_on_shards_and_threads():
    first = ReportHtml(threads=1).render(small_pool())
    other = small_pool()
    other.shard_rows = 7
    assert ReportHtml(threads=3).render(other) == first


def test_another_seed_shows_other_images():
    first, other = small_pool(), small_pool()
    ReportHtml(seed=0, rejects_shown=3).render(first)
    ReportHtml(seed=1, rejects_shown=3).render(other)
    assert set(first.requested) != set(other.requested)


@pytest.mark.long
def test_the_size_of_the_page_is_bounded():
    view = small_pool(3000)
    for number, row in enumerate(view.rows):
        if row["cluster_1"] is not None:
            row |= {"cluster_1": number % 900, "cluster_2": number % 900 // 10}
    view.stages = stages_of(view.rows)
    files = ReportHtml(clusters_shown=5, leaves_shown=15, pictures_shown=2, rejects_shown=4).render(view)
    page = Page(files["index.html"].decode())
    assert len(set(view.requested)) <= 15 * 2 + 4 * 4 + 4 + 24
    assert len([tag for _, tag in page.tags if (tag.get("id") or "").startswith("cluster-1-")]) == 15
    assert "85 more clusters with 2,7" in page.text
    assert "tail" in page.texts


@pytest.fixture
def six_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_scope, "READ_SHARDS", 6)


def test_few_of_many_shards_are_read(six_shards: None) -> None:
    """Counts of stages cover all shards, and keepers are found in any shard."""
    view = small_pool()
    whole = render(view).text
    view.shard_rows, view.read = 10, []
    page = render(view)
    assert len(view.read) == 2 * 6 and len(set(view.read)) == 6
    assert "come from 6 of 24 shards, chosen by hash (60 images); all other counts cover the whole pool" in page.text
    summary = r"240 in = \d+ rejected \+ \d+ selected \. Every image is accounted for"
    assert re.findall(summary, page.text) == re.findall(summary, whole) != []
    gallery = r"(near duplicate|not sampled|truncated|missing file) (\w+) ([\d,]+)"
    assert set(re.findall(gallery, page.text)) == set(re.findall(gallery, whole)) != set()
    assert view.rows[-1]["key"] in {image.get("data-key") for image in page.all("img")}  # the keeper
    assert "sizes of clusters" in page.text


def test_a_selection_over_a_tree_counts_every_cluster(six_shards: None) -> None:
    view = clustered_pool()
    view.shard_rows = 10
    scope = scope_of(view, None, None)
    part = survey(view, scope, 0, 12, 24)
    found = with_pool_counts(view, scope, part)
    assert found.read is not None and not found.read.sizes and found.rows == 240 > part.rows
    count = view.filled.column("count").to_numpy()
    assert found.levels[0].before.tolist() == count.tolist()
    assert found.levels[1].before.tolist() == count.reshape(3, 3).sum(axis=1).tolist()
    assert found.levels[0].after.tolist() == view.filled.column("quota").to_pylist()
    root = choose(found.levels, [3, 3], 0)
    known = part.levels[0].before > 0
    assert all(known[leaf.id] for leaf in root.leaves())  # only these have images to show
    assert root.before == count.sum() and "sizes of clusters" not in render(view).text
