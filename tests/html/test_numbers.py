from __future__ import annotations

import pytest

from curate.html.numbers import duration, number, percent, score, size


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(1234567), "1,234,567"),
        (number(0.5), "0.50"),
        (number(2.5, 1), "2.5"),
        (number(12.34), "12.3"),
        (number(1234.6), "1,235"),
        (number(10**400), f"{10**400:,}"),
        (number(float("nan")), "nan"),
        (number(float("-inf")), "-inf"),
        (percent(1, 8), "12 %"),
        (percent(1, 10_000), "<0.1 %"),
        (percent(999, 1000), "99.9 %"),
        (percent(0, 0), "–"),
        (score(0.9286), "92.9 %"),
        (score(None), "–"),
        (size(999), "999 bytes"),
        (size(1_234_567), "1.23 MB"),
        (size(3_500_000_000_000_000), "3.50 PB"),
        (duration(0.01), "under 0.1 s"),
        (duration(59.94), "59.9 s"),
        (duration(61), "1 min 01 s"),
        (duration(7290), "2 h 01 min"),
    ],
)
def test_numbers_for_people(shown, expected):
    assert shown == expected
