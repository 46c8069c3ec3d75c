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
from tests.engine.experiment import COSTLY_STAGES, GLOBAL, IMAGES, READERS, Logs, pipeline

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
def requested(workspace: Path, logs: Logs) -> Experiment:
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


def test_a_threshold_that_rejects_no_other_row_computes_nothing(requested: Experiment, workspace: Path) -> None:
    assert requested(min_side=32) == (IMAGES, IMAGES)
    assert requested.rebuilt >= {*GLOBAL, *READERS, *COSTLY_STAGES}
    before = workspaces.times(workspace)
    assert requested(min_side=33) == (0, 0)
    assert requested.rebuilt == set() and all(said["requests"] == 0 for said in requested.stages.values())
    now = workspaces.times(workspace)
    assert {name: now[name] for name in before} == before
    assert {name.split("/")[0] for name in set(now) - set(before)} == {"masks"}


def test_a_stricter_threshold_rebuilds_global_stages_only(requested: Experiment) -> None:
    requested(min_side=32)
    assert requested(min_side=64) == (0, 0)
    assert requested.stages["size"]["rejected"] == {"too_small": SMALL}
    assert requested.rebuilt == {*GLOBAL, *READERS}
    computed = {name: said["computed"] for name, said in requested.stages.items() if said["computed"]}
    assert computed == {"contrast": IMAGES - SMALL}


def test_returning_to_a_threshold_computes_nothing(requested: Experiment) -> None:
    requested(min_side=32)
    first = requested.result
    requested(min_side=64)
    assert requested(min_side=32) == (0, 0)
    assert requested.rebuilt == set() and requested.result is not None and first is not None
    assert requested.result.ledger == first.ledger and requested.result.outputs["dataset"] == first.outputs["dataset"]


def test_a_looser_threshold_computes_the_rows_that_it_lets_in(requested: Experiment, memory: Path, logs: Logs) -> None:
    assert requested(min_side=64) == (IMAGES - SMALL, IMAGES - SMALL)
    first = {name: set(requested.rows[name]) for name in COSTLY_STAGES}
    assert requested(min_side=32) == (SMALL, SMALL)
    for name in COSTLY_STAGES:
        assert not first[name] & set(requested.rows[name])
        assert requested.stages[name] | {"copied": 0} == requested.stages[name]
        assert (requested.stages[name]["computed"], requested.stages[name]["reused"]) == (SMALL, IMAGES - SMALL)
    clean = Experiment(memory / "begun-at-32", logs)
    clean(min_side=32)
    assert clean.result is not None and requested.result is not None and clean.result.ledger == requested.result.ledger
    for name in ("embed", "caption", "echo", "contrast"):
        assert clean.facts(name) == requested.facts(name)
    ours, theirs = (Path(each.result.outputs["dataset"]) for each in (requested, clean) if each.result)
    assert ours.name == theirs.name and workspaces.files(ours) == workspaces.files(theirs)


def test_a_filter_that_rejects_only_what_others_have_rejected_rebuilds_nothing(requested: Experiment) -> None:
    requested(min_side=64, other=0)
    assert requested(min_side=64, other=64) == (0, 0)
    assert requested.stages["other"]["rejected"] == {"too_small": SMALL}
    assert requested.rebuilt & {"total", "even", "dataset", *READERS} == set()


# --- inputs ---


def test_a_text_rule_asks_again_for_the_texts_that_it_changes(requested: Experiment) -> None:
    requested(rule=False)
    changed = {line["text"] for line in requested.facts("text").values() if line["text"].startswith("buy now ")}
    assert len(changed) == IMAGES // 32
    assert requested(rule=True) == (0, len(changed))
    said = requested.stages["caption"]
    assert (said["computed"], said["reused"], said["copied"]) == (
        len(changed),
        IMAGES - len(changed),
        IMAGES - len(changed),
    )
    lines = requested.facts("caption")
    texts = requested.facts("text")
    assert all(lines[place]["answer"] == f"about {texts[place]['text']}" for place in texts)
    assert requested(rule=False) == (0, 0) and requested(rule=True) == (0, 0)


def test_one_image_in_two_shards_is_embedded_once(requested: Experiment) -> None:
    distinct = experiment.SHARD_ROWS // 2  # twice in each shard, and in each of four shards
    assert requested(source={"distinct": distinct}) == (distinct, distinct)
    for name in COSTLY_STAGES:
        said = requested.stages[name]
        assert (said["alive"], said["computed"], said["reused"]) == (IMAGES, distinct, IMAGES - distinct)


def test_one_image_in_another_pool_is_embedded_once(requested: Experiment) -> None:
    requested(namespace="one")
    ours = requested.facts("embed")
    assert requested(namespace="two") == (0, 0)
    theirs = requested.facts("embed")
    assert not ours.keys() & theirs.keys()
    assert sorted(line["embedding"] for line in ours.values()) == sorted(line["embedding"] for line in theirs.values())
    assert requested.stages["embed"]["copied"] == requested.stages["caption"]["copied"] == IMAGES


# --- rows that fail ---


def test_a_row_in_error_is_computed_once_until_it_is_retried(requested: Experiment) -> None:
    assert requested(fails=(" 77",)) == (IMAGES, IMAGES)
    said = requested.stages["caption"]
    assert (said["error"], said["after"], said["requests"]) == (1, IMAGES - 1, IMAGES)
    durable = requested.facts("caption")
    assert Counter(line[facts.STATUS_COLUMN] for line in durable.values()) == {facts.DONE: IMAGES - 1, facts.ERROR: 1}
    assert requested() == (0, 0) and requested.stages["caption"]["error"] == 1
    again = Options(retry={"caption": ("http_503",)})
    assert requested(options=again) == (0, 1)
    assert requested.stages["caption"]["error"] == 0 and requested.stages["caption"]["after"] == IMAGES
    now = requested.facts("caption")
    assert {place: line for place, line in now.items() if durable[place][facts.STATUS_COLUMN] == facts.DONE} == {
        place: line for place, line in durable.items() if line[facts.STATUS_COLUMN] == facts.DONE
    }
    assert requested(options=again) == (0, 0)


def test_attempts_are_counted(requested: Experiment, workspace: Path) -> None:
    requested(fails=(" 77",))
    for times in (2, 3):
        assert requested(options=Options(retry={"caption": ()}), fails=(" 77",)) == (0, 1)
        assert attempts(requested, workspace) == [times]
    assert requested(options=Options(retry={"caption": ("other_reason",)})) == (0, 0)
    assert requested(options=Options(retry={"caption": ()})) == (0, 1) and attempts(requested, workspace) == []


def attempts(requested: Experiment, workspace: Path) -> list[int]:
    assert requested.result is not None
    storage = open_storage(str(workspace))
    output = RunRecord.load(storage, requested.result.run_id).outputs["caption"]
    tables = [
        facts.read(storage, output["path"], shard, number)
        for shard, number in numbers(storage.url, output["base"]).items()
    ]
    return [count for table in tables for count in Notes.of(table.schema).attempts.values()]


def test_a_row_that_raises_is_found_and_the_others_are_kept(requested: Experiment) -> None:
    embedded, calls = requested(raises=(" 77",))
    halvings = 2 * (experiment.SHARD_ROWS - 1)  # 32 rows, then 16 + 16, 8 + 8, 4 + 4, 2 + 2, 1 + 1 of its batch
    assert (embedded, calls) == (IMAGES, IMAGES + halvings)
    said = requested.stages["caption"]
    assert (said["error"], said["after"], said["requests"]) == (1, IMAGES - 1, calls)
    assert requested() == (0, 0)
    assert requested(options=Options(retry={"caption": ("ValueError",)})) == (0, 1)
    assert requested.stages["caption"]["error"] == 0


def test_a_run_past_its_budget_keeps_what_it_has_computed(requested: Experiment) -> None:
    with pytest.raises(BudgetError, match="1 rows were lost to failures"):
        requested(options=Options(failure_budget=0.0), fails=(" 77",))
    requested.logs.new()
    embedded, calls = requested(options=Options(failure_budget=0.1))
    assert embedded == calls and calls < IMAGES and requested.stages["caption"]["error"] == 1


def test_nulls_pass_and_values_computed_from_them_are_recomputed(requested: Experiment) -> None:
    assert requested(keep_null=True, fails=(" 77",)) == (IMAGES, IMAGES)
    said = requested.stages
    assert (said["caption"]["error"], said["caption"]["after"], said["echo"]["alive"]) == (1, IMAGES, IMAGES)
    marked = {place for place, line in requested.facts("echo").items() if line[facts.MARKED]}
    [place] = marked
    assert requested.facts("echo")[place]["echo"] == "silence"
    assert requested(keep_null=True, fails=(" 77",)) == (0, 0) and requested.rebuilt == set()
    assert requested(options=Options(retry={"caption": ()}), keep_null=True) == (0, 1)
    line = requested.facts("echo")[place]
    assert (requested.stages["echo"]["computed"], line["echo"], line[facts.MARKED]) == (1, "about image 77", False)
    assert requested(keep_null=True) == (0, 0) and requested.rebuilt == set()


def test_costly_results_are_durable_before_their_shard_is_done(
    requested: Experiment, monkeypatch: pytest.MonkeyPatch
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
            requested(**changes)
    assert {name: len(rows) for name, rows in requested.logs.new().items()} == {"embed": 0, "caption": 64}
    assert requested(**changes) == (IMAGES, 64)  # a batch of `embed` is as large as the shard, and was not full yet


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

    separate = True


def at_once(requested: Experiment, backend: type[LocalBackend]) -> list[Result]:
    """Two runs in threads."""
    with ThreadPoolExecutor(2) as threads:
        recipe = [pipeline(logs=requested.logs.folder) for _ in range(2)]
        going = [threads.submit(run, each, requested.workspace, engine=backend()) for each in recipe]
        return [each.result() for each in going]


@pytest.mark.usefixtures("meeting")
def test_two_runs_at_once_have_one_value_for_each_row(requested: Experiment) -> None:
    """The toy LLM says something else in each thread."""
    one, two = at_once(requested, Threads)
    adds_up(one)
    adds_up(two)
    assert one.ledger == two.ledger and one.outputs["dataset"] == two.outputs["dataset"]
    rows = requested.logs.new()
    for name in COSTLY_STAGES:
        assert Counter(Counter(rows[name]).values()) == {2: IMAGES}
        repeated = [result.stages()[name]["repeated"] for result in (one, two)]
        assert sum(repeated) == IMAGES, name
    answers, echoes = requested.facts("caption", one), requested.facts("echo", one)
    assert answers == requested.facts("caption", two) and echoes == requested.facts("echo", two)
    assert all(echoes[place]["echo"] == answers[place]["answer"] for place in answers)


def test_a_second_run_waits_and_then_finds_everything(requested: Experiment) -> None:
    one, two = at_once(requested, LocalBackend)
    assert one.ledger == two.ledger and one.outputs == two.outputs
    assert {name: len(rows) for name, rows in requested.logs.new().items()} == dict.fromkeys(COSTLY_STAGES, IMAGES)
