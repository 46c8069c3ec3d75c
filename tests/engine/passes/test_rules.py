"""Score once, decide later: what a changed threshold, a changed rule, a bad row and a second run compute."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from curate.core.contracts import Batch
from curate.core.errors import BudgetError
from curate.core.nouns import facts
from curate.core.nouns.facts import Notes
from curate.core.rows import numbers
from curate.core.store.storage import open_storage
from curate.engine.backends.local import LocalBackend
from curate.engine.context import Context
from curate.engine.record.runs import RunRecord
from curate.engine.run import Result, run
from curate.engine.state import Options
from tests.engine import experiment, workspaces
from tests.engine.experiment import DEAR, GLOBAL, IMAGES, READERS, Logs, pipeline

SMALL = IMAGES // 4
LOSSES = Options(failure_budget=1.0)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "logs")


class Experiment:
    """Runs the experiment in a workspace and returns the rows requested from each costly stage."""

    def __init__(self, workspace: Path, logs: Logs) -> None:
        self.workspace, self.logs = str(workspace), logs
        self.result: Result | None = None

    def __call__(self, options: Options = LOSSES, **changes: Any) -> tuple[int, int]:
        """(embeddings, calls) of a run."""
        self.logs.new()
        self.result = run(pipeline(logs=self.logs.folder, **changes), self.workspace, options=options)
        adds_up(self.result)
        self.rows = self.logs.new()
        return len(self.rows["embed"]), len(self.rows["caption"])

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        assert self.result is not None
        return self.result.stages()

    @property
    def rebuilt(self) -> set[str]:
        return {name for name, said in self.stages.items() if said["rebuilt"]}

    def facts(self, stage: str, result: Result | None = None) -> dict[tuple[str, int], dict[str, Any]]:
        """(shard, row) -> its facts in the tables that a run has read."""
        storage, result = open_storage(self.workspace), result or self.result
        assert result is not None
        output = RunRecord.load(storage, result.run_id).outputs[stage]
        found = {}
        for shard, number in numbers(storage.url, output["base"]).items():
            for line in facts.read(storage, output["path"], shard, number).to_pylist():
                found[shard, line[facts.ROW]] = line
        return found


@pytest.fixture
def asked(workspace: Path, logs: Logs) -> Experiment:
    return Experiment(workspace, logs)


def adds_up(result: Result) -> None:
    """Every row is somewhere, at every stage and along the whole way."""
    ledger = result.ledger
    for entry in ledger.values():
        assert entry.before + entry.kept == entry.after + entry.lost.total()
    for name, before in (("size", "inspect"), ("text", "size"), ("embed", "text"), ("caption", "text")):
        assert ledger[name].before == ledger[before].after
    for name, before in (("echo", "caption"), ("parity", "echo"), ("even", "contrast"), ("dataset", "even")):
        assert ledger[name].before == ledger[before].after
    way = ("pool", "inspect", "size", "text", "caption", "echo", "parity")
    lost = sum(ledger[name].lost.total() - ledger[name].kept for name in way)
    assert ledger["pool"].before == ledger["parity"].after + lost
    for said in result.stages().values():
        assert said["alive"] - sum(said["rejected"].values()) - said["unusable"] - said["error"] <= said["after"]
        assert 0 <= said["reused"] <= said["alive"] and said["computed"] + said["reused"] >= said["alive"]


# --- thresholds ---


def test_a_threshold_that_rejects_no_other_row_computes_nothing(asked: Experiment, workspace: Path) -> None:
    assert asked(min_side=32) == (IMAGES, IMAGES)
    assert asked.rebuilt >= {*GLOBAL, *READERS, *DEAR}
    before = workspaces.times(workspace)
    assert asked(min_side=33) == (0, 0)
    assert asked.rebuilt == set() and all(said["requests"] == 0 for said in asked.stages.values())
    now = workspaces.times(workspace)
    assert {name: now[name] for name in before} == before
    assert {name.split("/")[0] for name in set(now) - set(before)} == {"masks"}


def test_a_stricter_threshold_rebuilds_global_stages_only(asked: Experiment) -> None:
    asked(min_side=32)
    assert asked(min_side=64) == (0, 0)
    assert asked.stages["size"]["rejected"] == {"too_small": SMALL}
    assert asked.rebuilt == {*GLOBAL, *READERS}
    computed = {name: said["computed"] for name, said in asked.stages.items() if said["computed"]}
    assert computed == {"contrast": IMAGES - SMALL}


def test_back_again_computes_nothing(asked: Experiment) -> None:
    asked(min_side=32)
    first = asked.result
    asked(min_side=64)
    assert asked(min_side=32) == (0, 0)
    assert asked.rebuilt == set() and asked.result is not None and first is not None
    assert asked.result.ledger == first.ledger and asked.result.outputs["dataset"] == first.outputs["dataset"]


def test_a_looser_threshold_computes_the_rows_that_it_lets_in(asked: Experiment, memory: Path, logs: Logs) -> None:
    assert asked(min_side=64) == (IMAGES - SMALL, IMAGES - SMALL)
    first = {name: set(asked.rows[name]) for name in DEAR}
    assert asked(min_side=32) == (SMALL, SMALL)
    for name in DEAR:
        assert not first[name] & set(asked.rows[name])
        assert asked.stages[name] | {"copied": 0} == asked.stages[name]
        assert (asked.stages[name]["computed"], asked.stages[name]["reused"]) == (SMALL, IMAGES - SMALL)
    clean = Experiment(memory / "begun-at-32", logs)
    clean(min_side=32)
    assert clean.result is not None and asked.result is not None and clean.result.ledger == asked.result.ledger
    for name in ("embed", "caption", "echo", "contrast"):
        assert clean.facts(name) == asked.facts(name)
    ours, theirs = (Path(each.result.outputs["dataset"]) for each in (asked, clean) if each.result)
    assert ours.name == theirs.name and workspaces.files(ours) == workspaces.files(theirs)


def test_a_filter_that_rejects_only_what_others_have_rejected_rebuilds_nothing(asked: Experiment) -> None:
    asked(min_side=64, other=0)
    assert asked(min_side=64, other=64) == (0, 0)
    assert asked.stages["other"]["rejected"] == {"too_small": SMALL}
    assert asked.rebuilt & {"total", "even", "dataset", *READERS} == set()


# --- inputs ---


def test_a_text_rule_asks_again_for_the_texts_that_it_changes(asked: Experiment) -> None:
    asked(rule=False)
    changed = {line["text"] for line in asked.facts("text").values() if line["text"].startswith("buy now ")}
    assert len(changed) == IMAGES // 32
    assert asked(rule=True) == (0, len(changed))
    said = asked.stages["caption"]
    assert (said["computed"], said["reused"], said["copied"]) == (
        len(changed),
        IMAGES - len(changed),
        IMAGES - len(changed),
    )
    lines = asked.facts("caption")
    texts = asked.facts("text")
    assert all(lines[place]["answer"] == f"about {texts[place]['text']}" for place in texts)
    assert asked(rule=False) == (0, 0) and asked(rule=True) == (0, 0)


def test_one_image_in_two_shards_is_embedded_once(asked: Experiment) -> None:
    distinct = experiment.SHARD_ROWS // 2  # twice in each shard, and in each of four shards
    assert asked(source={"distinct": distinct}) == (distinct, distinct)
    for name in DEAR:
        said = asked.stages[name]
        assert (said["alive"], said["computed"], said["reused"]) == (IMAGES, distinct, IMAGES - distinct)


def test_one_image_in_another_pool_is_embedded_once(asked: Experiment) -> None:
    asked(namespace="one")
    ours = asked.facts("embed")
    assert asked(namespace="two") == (0, 0)
    theirs = asked.facts("embed")
    assert not ours.keys() & theirs.keys()
    assert sorted(line["embedding"] for line in ours.values()) == sorted(line["embedding"] for line in theirs.values())
    assert asked.stages["embed"]["copied"] == asked.stages["caption"]["copied"] == IMAGES


# --- rows that fail ---


def test_a_row_in_error_is_computed_once_until_it_is_retried(asked: Experiment) -> None:
    assert asked(fails=(" 77",)) == (IMAGES, IMAGES)
    said = asked.stages["caption"]
    assert (said["error"], said["after"], said["requests"]) == (1, IMAGES - 1, IMAGES)
    durable = asked.facts("caption")
    assert Counter(line[facts.STATUS_COLUMN] for line in durable.values()) == {facts.DONE: IMAGES - 1, facts.ERROR: 1}
    assert asked() == (0, 0) and asked.stages["caption"]["error"] == 1
    again = Options(retry={"caption": ("http_503",)})
    assert asked(options=again) == (0, 1)
    assert asked.stages["caption"]["error"] == 0 and asked.stages["caption"]["after"] == IMAGES
    now = asked.facts("caption")
    assert {place: line for place, line in now.items() if durable[place][facts.STATUS_COLUMN] == facts.DONE} == {
        place: line for place, line in durable.items() if line[facts.STATUS_COLUMN] == facts.DONE
    }
    assert asked(options=again) == (0, 0)


def test_attempts_are_counted(asked: Experiment, workspace: Path) -> None:
    asked(fails=(" 77",))
    for times in (2, 3):
        assert asked(options=Options(retry={"caption": ()}), fails=(" 77",)) == (0, 1)
        assert attempts(asked, workspace) == [times]
    assert asked(options=Options(retry={"caption": ("other_reason",)})) == (0, 0)
    assert asked(options=Options(retry={"caption": ()})) == (0, 1) and attempts(asked, workspace) == []


def attempts(asked: Experiment, workspace: Path) -> list[int]:
    assert asked.result is not None
    storage = open_storage(str(workspace))
    output = RunRecord.load(storage, asked.result.run_id).outputs["caption"]
    tables = [
        facts.read(storage, output["path"], shard, number)
        for shard, number in numbers(storage.url, output["base"]).items()
    ]
    return [count for table in tables for count in Notes.of(table.schema).attempts.values()]


def test_a_row_that_raises_is_found_and_the_others_are_kept(asked: Experiment) -> None:
    embedded, calls = asked(raises=(" 77",))
    halvings = 2 * (experiment.SHARD_ROWS - 1)  # 32 rows, then 16 + 16, 8 + 8, 4 + 4, 2 + 2, 1 + 1 of its batch
    assert (embedded, calls) == (IMAGES, IMAGES + halvings)
    said = asked.stages["caption"]
    assert (said["error"], said["after"], said["requests"]) == (1, IMAGES - 1, calls)
    assert asked() == (0, 0)
    assert asked(options=Options(retry={"caption": ("ValueError",)})) == (0, 1)
    assert asked.stages["caption"]["error"] == 0


def test_a_run_past_its_budget_keeps_what_it_has_computed(asked: Experiment) -> None:
    with pytest.raises(BudgetError, match="1 rows were lost to failures"):
        asked(options=Options(failure_budget=0.0), fails=(" 77",))
    asked.logs.new()
    embedded, calls = asked(options=Options(failure_budget=0.1))
    assert embedded == calls and calls < IMAGES and asked.stages["caption"]["error"] == 1


def test_nulls_pass_and_values_computed_from_them_are_recomputed(asked: Experiment) -> None:
    assert asked(keep_null=True, fails=(" 77",)) == (IMAGES, IMAGES)
    said = asked.stages
    assert (said["caption"]["error"], said["caption"]["after"], said["echo"]["alive"]) == (1, IMAGES, IMAGES)
    marked = {place for place, line in asked.facts("echo").items() if line[facts.MARKED]}
    [place] = marked
    assert asked.facts("echo")[place]["echo"] == "silence"
    assert asked(keep_null=True, fails=(" 77",)) == (0, 0) and asked.rebuilt == set()
    assert asked(options=Options(retry={"caption": ()}), keep_null=True) == (0, 1)
    line = asked.facts("echo")[place]
    assert (asked.stages["echo"]["computed"], line["echo"], line[facts.MARKED]) == (1, "about image 77", False)
    assert asked(keep_null=True) == (0, 0) and asked.rebuilt == set()


def test_costly_results_are_durable_before_their_shard_is_done(
    asked: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without an image to decode: the run is interrupted in the third of four batches of its only shard."""
    changes = {"options": Options(segment_seconds=0.0), "source": {"shard_rows": IMAGES}}
    process, batches = experiment.Caption.process, iter(range(4))

    def interrupted(stage: experiment.Caption, batch: Batch) -> dict[str, Any]:
        if next(batches) == 2:
            raise KeyboardInterrupt
        return process(stage, batch)

    with monkeypatch.context() as patched:
        patched.setattr(experiment.Caption, "process", interrupted)
        with pytest.raises(KeyboardInterrupt):
            asked(**changes)
    assert {name: len(rows) for name, rows in asked.logs.new().items()} == {"embed": 0, "caption": 64}
    assert asked(**changes) == (IMAGES, 64)  # a batch of `embed` is as large as the shard, and was not full yet


# --- two runs ---


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in threads compute the same rows at once: leases, which only save work, are off for facts."""
    lease = Context.lease

    def without(self: Context, node: Any, output: str, *more: Any) -> Any:
        return contextlib.nullcontext(True) if output.startswith("facts/") else lease(self, node, output, *more)

    monkeypatch.setattr(Context, "lease", without)
    monkeypatch.setattr(experiment, "MEETING", [threading.Barrier(2)])


class Threads(LocalBackend):
    """Leaves no marks, by which the other run would take this one for dead."""

    name = "threads"


def at_once(asked: Experiment, backend: type[LocalBackend]) -> list[Result]:
    """Two runs in threads."""
    with ThreadPoolExecutor(2) as threads:
        recipe = [pipeline(logs=asked.logs.folder) for _ in range(2)]
        going = [threads.submit(run, each, asked.workspace, engine=backend()) for each in recipe]
        return [each.result() for each in going]


@pytest.mark.usefixtures("meeting")
def test_two_runs_at_once_have_one_value_for_each_row(asked: Experiment) -> None:
    """The toy LLM says something else in each thread."""
    one, two = at_once(asked, Threads)
    adds_up(one)
    adds_up(two)
    assert one.ledger == two.ledger and one.outputs["dataset"] == two.outputs["dataset"]
    rows = asked.logs.new()
    for name in DEAR:
        assert Counter(Counter(rows[name]).values()) == {2: IMAGES}
        repeated = [result.stages()[name]["repeated"] for result in (one, two)]
        assert sum(repeated) == IMAGES, name
    answers, echoes = asked.facts("caption", one), asked.facts("echo", one)
    assert answers == asked.facts("caption", two) and echoes == asked.facts("echo", two)
    assert all(echoes[place]["echo"] == answers[place]["answer"] for place in answers)


def test_a_second_run_waits_and_then_finds_everything(asked: Experiment) -> None:
    one, two = at_once(asked, LocalBackend)
    assert one.ledger == two.ledger and one.outputs == two.outputs
    assert {name: len(rows) for name, rows in asked.logs.new().items()} == dict.fromkeys(DEAR, IMAGES)
