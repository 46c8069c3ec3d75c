"""What the page says of clusters when their artifacts are upstream: profile, growth, quotas."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.html import ReportHtml
from curate.report.profile import drifts, profile_of
from curate.report.quotas import fill, fills
from curate.report.survey import Level
from tests.report.report_view import clustered_pool, small_pool


def words(page: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())


@pytest.fixture(scope="module")
def page() -> str:
    return ReportHtml().render(clustered_pool())["index.html"].decode()


def test_clusters_carry_what_their_profile_says(page: str) -> None:
    leaf = page.split('id="cluster-1-8"')[1].split("</h4>")[0]
    assert "single source" in leaf and "all from site0.org" in words(leaf)
    noisy = page.split('id="cluster-1-0"')[1].split("</h4>")[0]
    assert 'title="Its pictures are hardly more alike than those of the whole pool."' in noisy
    assert "mean distance 1.200 · 0.0 % explained · " in words(noisy)
    assert "Variance explained" in page


def test_growth_is_a_box_of_its_own(page: str) -> None:
    box = words(page.split('id="drift"')[1].split("</section>")[0])
    assert "A refit is due" in box and "in another way" in box
    assert "Level 2, 3 clusters" in box and "Clusters that changed most" in box
    assert 'href="#cluster-1-8"' in page


def test_quotas_say_what_clusters_could_give(page: str) -> None:
    box = words(page.split("What clusters could give, and gave")[1].split("</article>")[0])
    view = clustered_pool()
    counts = view.filled["count"].to_numpy()
    [coarse, fine] = fills(view)
    assert (fine.level, fine.clusters, fine.quota) == (1, 9, int(np.minimum(counts, 12).sum()))
    assert fine.exhausted == int((counts <= 12).sum()) and fine.least == pytest.approx(12 / counts.max())
    assert coarse.level == 2 and coarse.quota == fine.quota
    assert f"{coarse.quota} samples were asked for" in box and "Gave everything 2 3 " in box


def test_without_artifacts_nothing_is_said_of_them() -> None:
    page = ReportHtml().render(small_pool())["index.html"].decode()
    for text in ('id="drift"', "Median fill", "mean distance", "Growth</a>"):
        assert text not in page


def test_a_profile_of_another_tree_is_left_alone() -> None:
    view = clustered_pool()
    assert profile_of(view, [Level()]) is None
    found = profile_of(view, [Level(), Level()])
    assert found is not None and found.of(1, 9) is None and found.of(3, 0) is None


def test_a_pool_that_has_hardly_grown() -> None:
    view = clustered_pool()
    told = view.artifacts["grown"]["drift"]
    told |= {"due": False, "enough": False, "reasons": [], "new_rows": 0, "far": told["far"] | {"share": None}}
    told["levels"] = [{"level": 1, "clusters": 9}]
    [drift] = drifts(view, None, set())
    assert not drift.levels and not drift.changed
    assert "Too few new pictures" in ReportHtml().render(view)["index.html"].decode()


def test_artifacts_of_ops_that_are_not_installed_are_passed_over() -> None:
    view = clustered_pool()
    view.stages["grown"].op = "gone.stage"
    assert drifts(view, None, set()) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=20))
def test_fill_rates_lie_between_nothing_and_everything(clusters: list[tuple[int, float]]) -> None:
    most = np.array([size for size, _ in clusters])
    quota = np.array([int(size * share) for size, share in clusters])
    found = fill(1, most, quota)
    assert 0 <= found.least <= found.median <= 1 and found.clusters + found.empty == len(clusters)
    assert found.exhausted_quota <= found.quota == quota.sum()
