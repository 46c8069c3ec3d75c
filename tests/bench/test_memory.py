"""`bench.acquire.memory`: the driver's memory hardly grows with the list."""

from __future__ import annotations

import pytest

from bench.acquire.memory import peaks_of

MOST_GROWTH = 1.05
"""From 1M to 5M rows; 1.01 was measured."""


@pytest.mark.long
def test_a_list_of_five_times_the_rows_takes_the_driver_hardly_more_memory() -> None:
    for small, large in zip(peaks_of(1_000_000, "local"), peaks_of(5_000_000, "local"), strict=True):
        assert large <= small * MOST_GROWTH
