"""Section about downloads: rates, codes, opt-outs and hosts, from what a pool keeps about its fetches; and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from curate.core.fetches import FETCHED, OPT_OUT, ROBOTS, Fetches, Host, opt_outs
from curate.core.nouns.manifest import Manifest
from curate.html.charts import StepChart, time_chart
from curate.report.page.terms import fetch_meaning, human
from curate.report.survey.sizes import RATIO_NAMES, ImageSizes, side_names

CODES_SHOWN = 20


@dataclass(frozen=True)
class CodeRow:
    name: str
    meaning: str
    status: str
    count: int
    width: float
    """Percent of the largest count of a failure."""


@dataclass(frozen=True)
class CountRow:
    name: str
    count: int
    width: float
    """Percent of the largest count."""


@dataclass(frozen=True)
class Downloads:
    stage: str
    op: str
    total: int
    """URLs fetched, those of retries too."""
    done: int
    tries: int
    bytes: int
    seconds: float
    """Time in which shards were fetched, in whole periods."""
    errors: int
    unusable: int
    opted_out: list[CountRow]
    """By the header, or the file, that says so."""
    codes: list[CodeRow]
    """Failures, the most frequent first."""
    rest: tuple[int, int]
    """Codes that are not shown, and their fetches."""
    images_chart: StepChart
    bytes_chart: StepChart
    failing: list[tuple[str, Host]]
    slowest: list[tuple[str, Host]]
    sides: list[CountRow]
    ratios: list[CountRow]

    @property
    def opt_outs(self) -> int:
        return sum(row.count for row in self.opted_out)

    @property
    def images(self) -> int:
        """Images whose sizes were counted."""
        return sum(row.count for row in self.sides)


def downloads(stages: Mapping[str, Manifest], sizes: ImageSizes) -> list[Downloads]:
    """One for each pool that was downloaded."""
    found = [
        (name, manifest, Fetches.from_json(manifest.extra.get("fetches", {}))) for name, manifest in stages.items()
    ]
    return [_downloads(name, manifest.op, fetches, sizes) for name, manifest, fetches in found if fetches]


def _downloads(stage: str, op: str, fetches: Fetches, sizes: ImageSizes) -> Downloads:
    failures = Counter({code: count for code, count in fetches.codes.items() if code != FETCHED})
    common = failures.most_common()
    most = common[0][1] if common else 1
    by_status = Counter[str]()
    for (status, _), count in failures.items():
        by_status[status] += count
    outs = opt_outs(fetches.codes)
    hidden = common[CODES_SHOWN:]
    return Downloads(
        stage=stage,
        op=op,
        total=fetches.total,
        done=fetches.codes[FETCHED],
        tries=fetches.tries,
        bytes=fetches.bytes,
        seconds=float(fetches.period * len(fetches.periods)),
        errors=by_status["error"],
        unusable=by_status["unusable"],
        opted_out=[CountRow(_way(code), count, 100 * count / max(outs.values())) for code, count in outs.items()],
        codes=[_code(*code, count, most) for code, count in common[:CODES_SHOWN]],
        rest=(len(hidden), sum(count for _, count in hidden)),
        images_chart=_images_chart(fetches),
        bytes_chart=_bytes_chart(fetches),
        failing=list(fetches.failing().items()),
        slowest=list(fetches.slowest().items()),
        sides=list(_sizes(side_names(), sizes.sides)),
        ratios=list(_sizes(RATIO_NAMES, sizes.ratios)),
    )


def _code(status: str, code: str, count: int, most: int) -> CodeRow:
    return CodeRow(human(code), fetch_meaning(code), status, count, 100 * count / most)


def _way(code: str) -> str:
    """`opt_out_x_robots_tag` as `x-robots-tag`."""
    return "robots.txt" if code == ROBOTS else code.removeprefix(OPT_OUT).replace("_", "-")


def _sizes(names: Sequence[str], counts: NDArray[np.int64]) -> Iterator[CountRow]:
    """Classes from the first to the last that has images."""
    held = np.flatnonzero(counts)
    for place in range(held[0], held[-1] + 1) if len(held) else ():
        yield CountRow(names[place], int(counts[place]), 100 * int(counts[place]) / int(counts.max()))


def _images_chart(fetches: Fetches) -> StepChart:
    counts = [fetches.periods[place] for place in sorted(fetches.periods)]
    urls, images = ([count[k] / fetches.period for count in counts] for k in (0, 1))
    return time_chart([("URLs", "before", urls), ("Images", "after", images)], fetches.period, "per second")


def _bytes_chart(fetches: Fetches) -> StepChart:
    sizes = [fetches.periods[place][2] / fetches.period / 1e6 for place in sorted(fetches.periods)]
    return time_chart([("MB", "after", sizes)], fetches.period, "MB per second")
