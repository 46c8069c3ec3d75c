"""What a stage has fetched, for `curate status`: rates, codes, and the hosts that fail most or are slowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from curate.api import FetchStatus, Status

CODES, HOSTS = 10, 20
"""Codes and hosts shown; other codes are summed up."""
HOST_CHARACTERS = 28
LINE_CHARACTERS = 24
LEVELS = "▁▂▃▄▅▆▇█"
STYLES = {"done": "green", "error": "yellow", "unusable": "red"}


def fetches(status: Status) -> Iterator[RenderableType]:
    """A block for each stage that has fetched something in this run, at most 100 characters wide."""
    from curate.api import duration

    for stage in status.stages:
        found = stage.fetches
        if found is not None:
            title = Text(f"{stage.stage}: fetched in {duration(found.seconds)} of this run", "italic")
            yield Group(
                title, "", _rates(found, stage.state == "running"), "", _counts(found), _codes(found), _hosts(found)
            )


def _rates(found: FetchStatus, running: bool) -> Table:
    """Images and bytes per second: now, on average, and over time."""
    from curate.api import speed

    table = Table.grid(padding=(0, 3, 0, 0))
    last = found.rates[-1] if running and found.rates else None
    texts: list[tuple[str, float, Callable[[float], str]]] = [
        ("images", found.samples_per_s, lambda value: f"{value:,.1f}/s"),
        ("bytes", found.bytes_per_s, speed),
    ]
    for place, (name, mean, text) in enumerate(texts, 1):
        now = [f"{text(last[place])} now"] if last else []
        line = sparkline([(rate[0], rate[place]) for rate in found.rates])
        table.add_row(f" {name}", *now, f"{text(mean)} on average", line)
    return table


def _counts(found: FetchStatus) -> Text:
    by_status: Counter[str] = Counter()
    for (status, _), count in found.codes.items():
        by_status[status] += count
    tries = f"; {found.finished.tries / found.finished.total:.2f} tries per URL" if found.finished else ""
    counts = ", ".join(f"{by_status[status]:,} {status}" for status in STYLES)
    total = found.codes.total()
    return Text(f" {total:,} URL{'s' if total != 1 else ''}: {counts}{tries}")


def sparkline(points: list[tuple[float, float]], width: int = LINE_CHARACTERS) -> str:
    """(time, value) pairs as blocks of eight heights. Each covers an equal part of the time and shows the mean of its
    values; a part without values repeats the one before."""
    if len(points) < 2:
        return ""
    began, span = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
    parts: list[list[float]] = [[] for _ in range(width)]
    for then, value in points:
        parts[min(width - 1, int((then - began) / span * width))].append(value)
    means: list[float] = []
    for values in parts:
        means.append(sum(values) / len(values) if values else means[-1])
    top = max(means) or 1.0
    return "".join(LEVELS[round((len(LEVELS) - 1) * mean / top)] for mean in means)


def _codes(found: FetchStatus) -> RenderableType:
    """Failed URLs by code, the most frequent codes first."""
    from curate.api import opt_outs

    total = found.codes.total()
    failures = [(code, count) for code, count in found.codes.most_common() if code[0] != "done"]
    if not failures:
        return ""
    table = _table("code", "status", "URLs", "share")
    for (status, code), count in failures[:CODES]:
        table.add_row(code, Text(status, STYLES.get(status, "")), f"{count:,}", _share(count, total))
    if rest := sum(count for _, count in failures[CODES:]):
        table.add_row(f"{len(failures) - CODES} other codes", "", f"{rest:,}", _share(rest, total))
    if opted_out := sum(opt_outs(found.codes).values()):
        table.add_section()
        table.add_row("all opt-outs", "", f"{opted_out:,}", _share(opted_out, total))
    return table


def _hosts(found: FetchStatus) -> Table:
    """Hosts of finished shards: those with the most failed URLs, and beside them the slowest."""
    tables = []
    if failing := found.finished.failing(HOSTS):
        table = _table("hosts with most failures", "failed", "URLs")
        for name, host in failing.items():
            table.add_row(_host(name), f"{host.failed:,}", f"{host.fetches:,}")
        tables.append(table)
    if slowest := found.finished.slowest(HOSTS):
        table = _table("slowest, of 10 URLs or more", "mean", "URLs")
        for name, host in slowest.items():
            table.add_row(_host(name), f"{host.mean_seconds:.2f} s", f"{host.fetches:,}")
        tables.append(table)
    pair = Table.grid(padding=(0, 3, 0, 0))
    if tables:
        pair.add_row(*tables)
    return pair


def _host(name: str) -> str:
    """The end of a long name says more than its beginning."""
    return escape(name if len(name) <= HOST_CHARACTERS else f"…{name[1 - HOST_CHARACTERS :]}")


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if count / total >= 0.001 else "<0.1 %"


def _table(*columns: str) -> Table:
    """An empty table whose first column has names."""
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in columns:
        left = name in ("status", columns[0])
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    return table
