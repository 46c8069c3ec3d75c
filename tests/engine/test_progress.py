"""Progress of a run: bars on a terminal, lines elsewhere, and events."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest
from rich.console import Console

from curate.core.recipe.pipeline import Pipeline
from curate.core.store.storage import Storage
from curate.engine import progress
from curate.engine.backends.local import LocalBackend
from curate.engine.progress import Progress, count, duration, pace, speed
from curate.engine.record.events import Events, read_events
from curate.engine.run import run
from curate.engine.tasks.beat import Beat
from curate.engine.workers.scheduler import Scheduler
from curate.image.embed import Embed
from tests.engine import toys
from tests.engine.paid import Third


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_lines_show_the_recent_rate_and_the_time_left(clock: list[float]) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Progress(console).step("embed", 10_000) as step:
        for _ in range(40):  # a slow start does not count after half a minute
            clock[0] += 1.0
            step.advance(1)
        for _ in range(60):
            clock[0] += 1.0
            step.advance(50, 1, "size")
    told = lines(console)
    assert told[0] == "  embed: 16 of 10,000, 1/s, 2 h 46 min left"
    assert re.fullmatch(r"  embed: 2,\d+ of 10,000, 50/s, 2 min \d+ s left", told[-2])
    assert told[-1] == "embed: 3,040 rows in 100.0 s (30/s), 60 rejected (size 60)"


def test_rows_that_were_found_are_done_and_in_no_rate(clock: list[float]) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Progress(console).step("embed", 10_000) as step:
        step.advance(9_000, found=True)
        for _ in range(16):
            clock[0] += 1.0
            step.advance(10)
    assert lines(console)[0] == "  embed: 9,160 of 10,000, 10/s, 1 min 24 s left"


def test_steps_may_advance_in_many_threads(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    events = Events(Storage(str(tmp_path)), "run")
    made = Progress(console, events)

    def work(label: str) -> None:
        with made.step(label, 4000) as step:
            threads = [threading.Thread(target=lambda: [step.advance(1, 1, "x") for _ in range(1000)]) for _ in "1234"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert (step.done, step.rejects["x"]) == (4000, 4000)

    with made.live():
        steps = [threading.Thread(target=work, args=(label,)) for label in "abc"]
        for thread in steps:
            thread.start()
        for thread in steps:
            thread.join()
    events.flush()
    told = [event for event in read_events(events.storage, "run") if event.get("ended")]
    assert {(event["stage"], event["rows"]) for event in told} == {(label, 4000) for label in "abc"}


def test_a_terminal_shows_steps_and_lanes_without_breaking_lines(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    events = Events(Storage(str(tmp_path)), "run")
    made = Progress(console, events)
    label = "inspect + size + text + captioned + prints + embed"
    with made.step(label, 2_300_000_000) as step, made.step("tree", 1000) as tree:
        step.advance(1_000_000, 30_000, "size")
        tree.progress(0.25, "level 1, round 5 of 20")
        events.emit("progress", stage="embed", lane="gpu", rows=4000, rows_per_s=812.3, bytes_per_s=43e6, busy=0.93)
        shown = shown_by(made)
        assert len(shown) == 3 and all(len(line) <= 100 for line in shown)
        assert "1,000,000 / 2.30 B" in shown[0] and "30,000 rejected" in shown[0]
        assert "25%" in shown[1] and "level 1" in shown[1]
        assert shown[2].split() == ["embed", "on", "gpu", "4,000", "812/s", "43.0", "MB/s", "93%", "busy"]
        events.emit("stage", stage="embed")
        assert len(shown_by(made)) == 2


def test_a_live_step_counts_rows_of_unfinished_tasks_once(clock: list[float], tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    events = Events(Storage(str(tmp_path)), "run")
    made = Progress(console, events)

    def report(rows: int, lost: int = 0, lane: str = "cpu", stage: str = "pool") -> None:
        clock[0] += 16.0
        events.emit("progress", stage=stage, lane=lane, rows=rows, lost=lost)

    with made.step("pool", 1000, live=True) as step:
        report(100)
        report(50, lane="far")
        assert step.shown == 150
        step.advance(120)  # a task of 120 rows has ended
        assert step.shown == 150
        report(200, lost=100)  # a worker died, and its rows are read again
        assert step.shown == 150 and step.done == 120
        report(5000, stage="other")
        assert step.shown == 150
        report(5000)
        assert step.shown == 1000
        step.advance(880)
    report(1, stage="pool")
    told = lines(console)
    assert told[0].startswith("  pool: 100 of 1,000, ") and told[-1].startswith("pool: 1,000 rows in ")
    events.flush()
    steps = [event for event in read_events(events.storage, "run") if event["event"] == "step"]
    assert steps[-1]["live"] and steps[-1]["ended"]


def shown_by(made: Progress) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    assert made.bars is not None
    console.print(made.bars.get_renderable())
    return lines(console)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (duration(8.34), "8.3 s"),
        (duration(59.7), "1 min 0 s"),
        (duration(250), "4 min 10 s"),
        (duration(1500), "25 min"),
        (duration(12_000), "3 h 20 min"),
        (duration(190_800), "2 d 5 h"),
        (count(9_999_999), "9,999,999"),
        (count(2.3e9), "2.30 B"),
        (count(2.3e11), "230 B"),
        (count(45e6), "45.00 M"),
        (speed(4300), "4.3 kB/s"),
        (speed(43.1e6), "43.1 MB/s"),
    ],
)
def test_numbers_for_people(said: str, wanted: str) -> None:
    assert said == wanted


@pytest.mark.parametrize("again", [False, True])
def test_filters_count_what_they_judge_unless_maps_before_them_found_all(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """`again`: they share a pass with a Map whose results exist."""
    told: dict[str, list[bool]] = {}
    passed = Beat.passed

    def listen(beat: Beat, stage: str, rows: int, found: bool) -> None:
        told.setdefault(stage, []).append(found)
        passed(beat, stage, rows, found)

    if again:
        run(toys.chain(toys.Brightness()), str(workspace))
    monkeypatch.setattr(Beat, "passed", listen)
    stages = [toys.Brightness(), Third()] if again else [Third()]
    run(toys.chain(*stages), str(workspace))
    assert set(told[f"stage_{len(stages)}"]) == {again}


# --- the pace before a run ---


def test_the_pace_names_faster_encoders_for_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Scheduler(LocalBackend())
    assert pace(Embed(encoder="lite1"), 60, workers) == "about 25 new images/s on 1 CPU, 2.4 s for 60"
    monkeypatch.setattr(workers, "slots", lambda resources: 2)
    assert pace(Embed(encoder="lite1"), 1_000, workers) == "about 50 new images/s on 2 CPUs, 20 s for 1,000"
    many = pace(Embed(encoder="lite1"), 180_001, workers)
    assert (
        many.startswith("about 50 new images/s on 2 CPUs, 1 h 0 min for 180,001; without a GPU, ")
        and "lite0 1.7" in many
    )
    assert ";" not in pace(Embed(encoder="lite1"), 100_000, workers)
    assert ";" not in pace(Embed(encoder="descriptor"), 180_001, workers)  # none is faster


def test_an_unknown_pace_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Scheduler(LocalBackend())
    assert pace(Embed(encoder="lite1"), 0, workers) == pace(toys.Brightness(), 10, workers) == ""
    assert pace(Embed(encoder="timm:resnet10t?random=1"), 10, workers) == ""
    monkeypatch.setattr(workers, "has_gpu", lambda: True)
    assert pace(Embed(encoder="lite1"), 200_000, workers) == ""


def test_a_pass_says_first_how_long_it_will_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=6, shard_rows=3))
    made.add("embed", Embed(encoder="tiny"), "pool")
    for times in (1, 0):  # of what is stored, nothing is expected
        run(made.check(), str(tmp_path / "workspace"), console=Console(width=200))
        assert (
            len(re.findall(r"^embed: about \d+ new images/s on \d+ CPU", capsys.readouterr().out, re.MULTILINE))
            == times
        )
