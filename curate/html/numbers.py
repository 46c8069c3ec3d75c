"""Numbers as text for people: thousands separators, units, and only as many digits as are significant."""

from __future__ import annotations

import math


def number(value: float, decimals: int = 2) -> str:
    """1,234 or 12.3 or 1.23: integers without decimals, others with three digits and at most `decimals` decimals; nan
    and inf as they are."""
    if not isinstance(value, int) and not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.{1 if abs(value) >= 10 else decimals}f}"


def percent(part: float, whole: float) -> str:
    """`part` of `whole` with the digits that matter: 12 %, 3.4 %, <0.1 %; – if `whole` is 0."""
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.1f} %" if share < 10 or 99 < share < 100 else f"{share:.0f} %"


def score(value: float | None) -> str:
    """A share of 1, such as an accuracy, with one decimal: 92.9 %; – for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


def size(count: int) -> str:
    """Bytes in decimal units."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} PB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds >= 0.05 else "under 0.1 s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60:,} h {minutes % 60:02} min"
