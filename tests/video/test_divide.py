from __future__ import annotations

import pyarrow as pa
import pytest

from curate.core.contracts import Batch, Sample
from curate.core.errors import Reject
from curate.core.reader import as_reader
from curate.video.clips import FATES, MOST_WINDOWS
from curate.video.divide import Clips, Divide, Windows


def divided(**more: object) -> dict[str, list[object]]:
    columns = {
        "key": ["a", "b", "c"],
        "duration_ms": [20_000, None, 5_000],
        "cuts_ms": [[3_000, 3_500], None, []],
        "black_ms": [[8_000, 9_000], None, []],
    }
    types = (pa.string(), pa.int64(), pa.list_(pa.int64()), pa.list_(pa.int64()))
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in zip(columns, types, strict=True)})
    return Divide(**more).process(Batch(table))


def test_the_ledger_adds_up_to_the_duration() -> None:
    columns = divided(min_seconds=1, max_seconds=6, trim_seconds=0.1)
    assert columns["clips_ms"] == [[0, 2900, 3600, 7900, 9100, 14550, 14550, 20000], [], [0, 5000]]
    sums = [sum(columns[f"clips_{fate}_ms"][row] for fate in FATES) for row in range(3)]  # type: ignore[misc]
    assert sums == [20_000, 0, 5_000]
    assert list(columns) == Divide().schema().names


def test_windows_that_could_be_too_short_are_errors() -> None:
    with pytest.raises(ValueError, match=r"max_seconds: 3, but min_seconds is 2; expected at least twice"):
        Divide(min_seconds=2, max_seconds=3)


def test_children_are_virtual_spans_with_the_metadata_of_their_video() -> None:
    stage = Clips(namespace="clips")
    row = {"clips_ms": [0, 2900, 3600, 7900], "meta": '{"label": "dog", "hashtags": ["dog"]}'}
    sample = Sample(b"", lambda encoded, **_: as_reader(encoded), row)
    children = list(stage.children(sample))
    assert [child.span for child in children] == [
        {"start_ms": 0, "stop_ms": 2900},
        {"start_ms": 3600, "stop_ms": 7900},
    ]
    assert stage.virtual and all(child.data is None for child in children)
    assert [child.probe.duration_ms for child in children] == [2900, 4300]
    assert {child.probe.kind for child in children} == {"clip"}
    assert [child.meta for child in children] == [{"label": "dog", "hashtags": ["dog"]}] * 2


@pytest.mark.parametrize("clips", [[0, 3000, 2999, 4000], [2000, 3000, 0, 1000], [5, 5], [-1, 5], [0, 1000, 2000]])
def test_clips_that_overlap_are_errors(clips: list[int]) -> None:
    sample = Sample(b"", lambda encoded, **_: as_reader(encoded), {"clips_ms": clips})
    with pytest.raises(ValueError, match=r"^clips_ms: .* expected start < stop, ascending and without overlap$"):
        list(Clips(namespace="clips").children(sample))


def test_windows_cover_a_video() -> None:
    stage = Windows(namespace="windows", max_seconds=2)

    def windows(duration: int | None) -> list[tuple[int, int]]:
        children = stage.children(Sample(b"", lambda encoded, **_: as_reader(encoded), {"duration_ms": duration}))
        return [(child.span["start_ms"], child.span["stop_ms"]) for child in children]

    assert windows(5_000) == [(0, 1666), (1666, 3333), (3333, 5000)]
    with pytest.raises(Reject, match="empty"):  # no header either
        windows(None)


def test_a_header_with_a_false_duration_costs_nothing() -> None:
    stage, most = Windows(namespace="windows", max_seconds=10), MOST_WINDOWS * 10_000
    for duration in (most + 1, 8 * 10**15):
        sample = Sample(b"", lambda encoded, **_: as_reader(encoded), {"duration_ms": duration})
        with pytest.raises(Reject, match="too_long"):
            next(stage.children(sample))
    batch = Batch(
        pa.table({"key": ["a", "b"], "duration_ms": [8 * 10**15, 50], "cuts_ms": [[], []], "black_ms": [[], []]})
    )
    columns = Divide(min_seconds=0).process(batch)
    assert batch.unfit == {0: "too_long"} and columns["clips_ms"] == [[], [0, 50]]
