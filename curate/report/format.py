"""Numbers for people: thousands separators, units, no more digits than mean something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def number(value: float, decimals: int = 2) -> str:
    """1,234 or 12.3 or 1.23: whole numbers whole, others to three digits and at most `decimals` behind the point."""
    if value == int(value) or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.{1 if abs(value) >= 10 else decimals}f}"


def percent(part: float, whole: float) -> str:
    if not whole:
        return "–"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "<0.1 %"
    return f"{share:.1f} %" if share < 10 or 99 < share < 100 else f"{share:.0f} %"


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


_CONTROLS = dict.fromkeys([*range(9), 11, 12, *range(14, 32), *range(127, 160)], "\ufffd")


def printable(value: Any) -> Any:
    """Text without control characters, which HTML forbids even as references; anything else, and markup, as it is."""
    return value.translate(_CONTROLS) if type(value) is str else value


def capitalize_first(text: str) -> str:
    """A sentence's capital; the rest as it is."""
    return text[:1].upper() + text[1:]


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "percent": percent,
    "size": size,
    "duration": duration,
    "capitalize_first": capitalize_first,
}
