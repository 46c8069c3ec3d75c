"""Summary of what it took to get samples: by code, by host and over time. Summaries of portions are added up.

Sums are exact by code and over time. By host they cover the hosts with the most fetches of each portion; rows are
divided into portions by hash, so a host that matters is among them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from curate.core.contracts import Fetch

DONE = "done"
Code = tuple[str, str]
"""Status of the rows of a fetch (done, error or unusable), and its code: DONE, or the reason."""
FETCHED: Code = (DONE, DONE)
OPT_OUT, ROBOTS = "opt_out_", "robots_txt"
"""Beginning of the codes of opt-outs by a response header, and the code of those by robots.txt."""
HOSTS_OF_PORTION, HOSTS = 200, 2000
"""Hosts in the summary of a portion and of a run: those with the most fetches."""
RANKED = 20
"""Hosts in a ranking."""
LEAST_FETCHES = 10
"""A host with fewer is not among the slowest: a mean of few is chance."""
PERIODS = 240
"""Most periods of the rates over time; beyond, they get twice as long."""
PERIOD_SECONDS = 10


@dataclass
class Host:
    """Fetches from one host: done, failed, their seconds and bytes."""

    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    bytes: int = 0

    @property
    def fetches(self) -> int:
        return self.done + self.failed

    @property
    def mean_seconds(self) -> float:
        return self.seconds / max(1, self.fetches)


@dataclass
class Fetches:
    codes: Counter[Code] = field(default_factory=Counter)
    tries: int = 0
    bytes: int = 0
    hosts: dict[str, Host] = field(default_factory=dict)
    period: int = PERIOD_SECONDS
    periods: dict[int, list[int]] = field(default_factory=dict)
    """Number of the period since 1970 -> [fetches, of them done, bytes]. Periods without a portion are missing."""

    def __bool__(self) -> bool:
        return bool(self.codes)

    def count(self, fetch: Fetch, code: Code, now: float | None = None) -> None:
        """Count one fetch."""
        self.codes[code] += 1
        self.tries += fetch.tries
        self.bytes += fetch.bytes
        if fetch.host:
            host = self.hosts.setdefault(fetch.host, Host())
            host.done, host.failed = host.done + (code == FETCHED), host.failed + (code != FETCHED)
            host.seconds, host.bytes = host.seconds + fetch.seconds, host.bytes + fetch.bytes
        place = int(((fetch.ended or time.time()) if now is None else now) // self.period)
        self._at(place, [1, int(code == FETCHED), fetch.bytes])

    def cover(self, began: float, ended: float) -> None:
        """Add the periods from `began` to `ended`, during which samples were fetched, also periods in which no fetch
        ended."""
        for then in range(int(began) // PERIOD_SECONDS * PERIOD_SECONDS, int(ended) + 1, PERIOD_SECONDS):
            self._at(then // self.period, [0, 0, 0])

    def add(self, value: Mapping[str, Any]) -> None:
        """Add another summary, as `to_json` wrote it."""
        if not value:
            return
        self.codes.update(codes_of(value["codes"]))
        self.tries += value["tries"]
        self.bytes += value["bytes"]
        for name, (done, failed, seconds, size) in value["hosts"].items():
            host = self.hosts.setdefault(name, Host())
            host.done, host.failed = host.done + done, host.failed + failed
            host.seconds, host.bytes = host.seconds + seconds, host.bytes + size
        if len(self.hosts) > 2 * HOSTS:
            self.hosts = self.busiest(HOSTS)
        while self.period < value["period"]:
            self._widen()
        for place, counts in value["periods"].items():
            self._at(int(place) * value["period"] // self.period, counts)

    def _at(self, place: int, counts: list[int]) -> None:
        held = self.periods.setdefault(place, [0, 0, 0])
        self.periods[place] = [a + b for a, b in zip(held, counts, strict=True)]
        while len(self.periods) > PERIODS:
            self._widen()

    def _widen(self) -> None:
        before, self.periods, self.period = self.periods, {}, 2 * self.period
        for place, counts in sorted(before.items()):
            held = self.periods.setdefault(place // 2, [0, 0, 0])
            self.periods[place // 2] = [a + b for a, b in zip(held, counts, strict=True)]

    @property
    def total(self) -> int:
        return self.codes.total()

    def busiest(self, most: int) -> dict[str, Host]:
        """The hosts with the most fetches."""
        order = sorted(self.hosts, key=lambda name: (-self.hosts[name].fetches, name))
        return {name: self.hosts[name] for name in order[:most]}

    def slowest(self, most: int = RANKED) -> dict[str, Host]:
        """The hosts with the highest mean duration, among those with at least LEAST_FETCHES."""
        names = [name for name, host in self.hosts.items() if host.fetches >= LEAST_FETCHES]
        order = sorted(names, key=lambda name: (-self.hosts[name].mean_seconds, name))
        return {name: self.hosts[name] for name in order[:most]}

    def failing(self, most: int = RANKED) -> dict[str, Host]:
        """The hosts with the most failed fetches."""
        names = [name for name, host in self.hosts.items() if host.failed]
        order = sorted(names, key=lambda name: (-self.hosts[name].failed, name))
        return {name: self.hosts[name] for name in order[:most]}

    def to_json(self, hosts: int = HOSTS) -> dict[str, Any]:
        """With `hosts` hosts, and the slowest and the most failing ones."""
        shown = self.busiest(hosts) | self.slowest() | self.failing()
        return {
            "codes": codes_to_json(self.codes),
            "tries": self.tries,
            "bytes": self.bytes,
            "hosts": {n: [h.done, h.failed, round(h.seconds, 3), h.bytes] for n, h in sorted(shown.items())},
            "period": self.period,
            "periods": {str(place): self.periods[place] for place in sorted(self.periods)},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fetches:
        made = cls()
        made.add(value)
        return made


def opt_outs(codes: Mapping[Code, int]) -> dict[str, int]:
    """Code -> fetches that a host's opt-out ended, by the way in which it opted out."""
    return {code: count for (_, code), count in sorted(codes.items()) if code.startswith(OPT_OUT) or code == ROBOTS}


def codes_to_json(codes: Mapping[Code, int]) -> list[list[Any]]:
    return [[*code, count] for code, count in sorted(codes.items()) if count > 0]


def codes_of(value: list[list[Any]]) -> dict[Code, int]:
    return {(status, code): count for status, code, count in value}
