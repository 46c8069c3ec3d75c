from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curate.pack.groups import By, group_of, groups

BOTH: tuple[By, By] = ("aspect", "duration")


def name(width: int | None, height: int | None, duration_ms: int | None) -> str:
    return groups(BOTH)[group_of(BOTH, {"width": width, "height": height, "duration_ms": duration_ms})]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((1920, 1080, 7_300), "16x9-5to10s"),
        ((1080, 1920, 1_999), "9x16-0to2s"),
        ((640, 480, 2_000), "4x3-2to5s"),
        ((500, 510, None), "1x1-still"),
        ((4000, 100, 60_000), "16x9-60s"),
        ((10, 4000, 10**9), "9x16-60s"),
        ((None, None, 0), "unknown-0to2s"),
    ],
)
def test_groups(row: Any, expected: str) -> None:
    assert name(*row) == expected


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.none() | st.integers(0, 10**8))
def test_a_sample_turned_is_of_the_group_turned(width: int, height: int, duration_ms: int | None) -> None:
    aspect, _, duration = name(width, height, duration_ms).partition("-")
    turned = "x".join(reversed(aspect.split("x")))
    assert name(height, width, duration_ms) in (f"{turned}-{duration}", f"{aspect}-{duration}")
    assert len(set(groups(BOTH))) == len(groups(BOTH)) == len(groups(["aspect"])) * len(groups(["duration"]))


def test_without_groups_a_tar_has_any_samples() -> None:
    assert groups([]) == ()
