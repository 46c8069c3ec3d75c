from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from curate.caption.report import survey as surveys
from curate.caption.report.columns import text_columns
from curate.caption.report.survey import OUTCOMES, survey
from curate.core.ledger import Entry
from tests.caption.captioned import captioned_pool


def found(view, cluster=None, sizes=(3, 2, 4), seed=0):
    return survey(view, text_columns(view, None, None), cluster, seed, sizes)


def test_texts_and_what_belongs_to_them_are_found_by_name() -> None:
    view = captioned_pool(20)
    texts = {text.name: text for text in text_columns(view, None, None)}
    assert list(texts) == ["caption", "generated", "repaired", "chosen"]
    assert texts["generated"].stage == "generate" and texts["repaired"].stage == "repair"
    assert texts["generated"].about == (
        "generated_check",
        "generated_injection",
        "generated_words",
        "generated_chats",
    )
    assert texts["generated"].check == "generated_check" and texts["caption"].check is None
    assert not texts["chosen"].asked and texts["chosen"].about == ()
    assert [text.name for text in text_columns(view, "source_id", ["chosen"])] == ["source_id", "chosen"]


def test_a_longer_name_keeps_its_columns() -> None:
    view = captioned_pool(20)
    view.types = {
        **view.types,
        "generated_long": pa.string(),
        "generated_long_outcome": pa.string(),
    }
    texts = {text.name: text for text in text_columns(view, None, ["generated"])}
    assert not any(name.startswith("generated_long") for name in texts["generated"].about)


@pytest.mark.parametrize("count", [1, 21, 120])
def test_outcomes_add_up(count: int) -> None:
    view = captioned_pool(count)
    made = found(view)
    assert made.rows == count
    for name, asked in made.asked.items():
        assert asked.reached + asked.earlier == count
        assert set(asked.outcomes) <= set(OUTCOMES)
        counted = Counter(row[f"{name}_outcome"] for row in view.rows if row.get(f"{name}_outcome"))
        assert asked.outcomes == counted
        assert asked.total.answers == counted.total()


def test_every_row_is_counted_where_it_left() -> None:
    asked = found(captioned_pool(120)).asked
    assert asked["generated"].errors == {"http_503": 6}
    assert (asked["generated"].earlier, asked["generated"].no_answer) == (1, 0)
    assert (asked["repaired"].earlier, asked["repaired"].no_answer) == (7, 120 - 7 - 24)


def test_errors_that_pass_are_counted_by_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `keep_null`, their rows look like those without a request."""
    view = captioned_pool(40)
    for row in view.rows:
        if row.get("rejected_by") == "generate":
            row |= {"rejected_by": None, "reject_reason": None}
    ledger = Entry(39, error=Counter(http_503=2), after=39, kept=2).check("generate").to_json()
    view.stages["generate"] = replace(view.stages["generate"], ledger=ledger)
    asked = found(view).asked["generated"]
    assert (asked.errors, asked.no_answer, asked.reached + asked.earlier) == ({"http_503": 2}, 0, 40)
    monkeypatch.setattr(surveys, "READ_SHARDS", 2)
    view.shard_rows = 10
    part = found(view)
    asked = part.asked["generated"]
    assert asked.errors.total() == 0 < asked.no_answer
    assert asked.reached + asked.earlier == part.rows == 20


def test_checks_flags_and_choices_are_counted() -> None:
    made = found(captioned_pool(120))
    assert made.checks == {"generated": Counter({"": 83, "repetition": 12, "truncated": 6, "injection": 6})}
    assert made.injections == {"generated": Counter({"": 101, "payload": 6})}
    assert made.flags == {"generated_chats": (59, 107)}
    assert made.chosen == {"generated": 83, "repaired": 24, "caption": 6, "": 6}
    assert (made.rows, made.reached, len(made.measured)) == (120, 119, 119)  # one was rejected before


def test_failures_are_sampled_by_text_and_reason() -> None:
    made = found(captioned_pool(120))
    assert made.failed == {
        ("generated", "http_503"): 6,
        ("generated", "truncated"): 6,
        ("generated", "refused"): 6,
        ("generated", "repetition"): 12,
        ("generated", "injection"): 6,
    }
    assert {pair: len(rows) for pair, rows in made.failures.items()} == dict.fromkeys(made.failed, 4)
    for (_, reason), rows in made.failures.items():
        for row in rows:
            assert reason in (row["generated_outcome"], row["generated_check"], row["reject_reason"])


def test_samples_come_evenly_from_some_clusters() -> None:
    made = found(captioned_pool(120), "cluster_1")
    assert len(made.samples) == 3 and set(made.samples) <= set(range(7))
    assert all(len(rows) == 2 for rows in made.samples.values())
    assert all(row["cluster_1"] == cluster for cluster, rows in made.samples.items() for row in rows)
    assert {tuple(found(captioned_pool(120), "cluster_1", seed=seed).samples) for seed in range(9)} > {
        tuple(made.samples)
    }


@pytest.mark.parametrize("cluster", [None, "cluster_1"])
def test_shards_do_not_matter(cluster: str | None) -> None:
    whole, parts = captioned_pool(120), captioned_pool(120)
    whole.shard_rows, parts.shard_rows = 1000, 7
    one, other = found(whole, cluster), found(parts, cluster)
    assert (one.samples, one.failures, one.asked, one.checks) == (
        other.samples,
        other.failures,
        other.asked,
        other.checks,
    )
    assert {cluster: one.clusters[cluster] for cluster in one.samples} == {
        cluster: other.clusters[cluster] for cluster in other.samples
    }
    assert one.measured == other.measured


def test_a_large_pool_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "READ_SHARDS", 3)
    monkeypatch.setattr(surveys, "MEASURED_ROWS", 5)
    view = captioned_pool(120)
    view.shard_rows = 10
    made = found(view)
    assert (made.shards, made.of_shards, made.rows, len(view.read)) == (3, 12, 30, 3)
    assert made.asked["generated"].reached + made.asked["generated"].earlier == 30
