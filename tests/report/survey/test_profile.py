"""The page's facts about clusters if their artifacts are upstream: profile, drift, quotas."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.report.html import ReportHtml
from curate.report.survey.profile import drifts, profile_of
from curate.report.survey.quotas import fill, fills
from tests.report.memory_view import clustered_pool, small_pool


def words(page: str) -> str:
    return " ".join(unescape(re.sub("<[^>]+>", " ", page)).split())


@pytest.fixture(scope="module")
def page() -> str:
    return ReportHtml().render(clustered_pool())["index.html"].decode()


def test_clusters_show_their_profile(page: str) -> None:
    leaf = page.split('id="cluster-1-8"')[1].split("</h4>")[0]
    assert "single source" in leaf and "all from site0.org" in words(leaf)
    noisy = page.split('id="cluster-1-0"')[1].split("</h4>")[0]
    assert 'title="Its images are hardly more alike than images of the whole pool."' in noisy
    assert "mean distance 1.200 · 0.0 % explained · " in words(noisy)
    assert "Variance explained" in page


def test_growth_has_its_own_section(page: str) -> None:
    box = words(page.split('id="drift"')[1].split("</section>")[0])
    assert "A refit is due" in box and "beyond chance" in box
    assert "Level 2, 3 clusters" in box and "Clusters that changed most" in box
    assert 'href="#cluster-1-8"' in page


def test_quotas_show_what_clusters_could_give(page: str) -> None:
    box = words(page.split("Quotas and what clusters could give")[1].split("</article>")[0])
    view = clustered_pool()
    counts = view.filled["count"].to_numpy()
    [coarse, fine] = fills(view)
    assert (fine.level, fine.clusters, fine.quota) == (1, 9, int(np.minimum(counts, 12).sum()))
    assert fine.exhausted == int((counts <= 12).sum()) and fine.least == pytest.approx(12 / counts.max())
    assert coarse.level == 2 and coarse.quota == fine.quota
    assert f"asked for {coarse.quota} samples" in box and "Exhausted 2 3 " in box


def test_without_artifacts_their_facts_are_absent() -> None:
    page = ReportHtml().render(small_pool())["index.html"].decode()
    for text in ('id="drift"', "Median fill", "mean distance", "Growth</a>"):
        assert text not in page


def test_a_profile_of_another_tree_is_not_used() -> None:
    view = clustered_pool()
    assert profile_of(view, 1) is None
    found = profile_of(view, 2)
    assert found is not None and found.of(1, 9) is None and found.of(3, 0) is None


def test_a_pool_that_has_hardly_grown() -> None:
    view = clustered_pool()
    values = view.artifacts["grown"]["drift"]
    values |= {"due": False, "enough": False, "reasons": [], "new_rows": 0, "far": values["far"] | {"share": None}}
    values["levels"] = [{"level": 1, "clusters": 9}]
    [drift] = drifts(view, None, set())
    assert not drift.levels and not drift.changed
    assert "Too few new images" in ReportHtml().render(view)["index.html"].decode()


def test_artifacts_of_missing_ops_are_ignored() -> None:
    view = clustered_pool()
    view.stages["grown"].op = "gone.stage"
    assert drifts(view, None, set()) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=20))
def test_fill_rates_are_between_zero_and_one(clusters: list[tuple[int, float]]) -> None:
    most = np.array([size for size, _ in clusters])
    quota = np.array([int(size * share) for size, share in clusters])
    found = fill(1, most, quota)
    assert 0 <= found.least <= found.median <= 1 and found.clusters + found.empty == len(clusters)
    assert found.exhausted_quota <= found.quota == quota.sum()
