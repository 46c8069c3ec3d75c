"""robots.txt (RFC 9309), fetched once per host and day.

4xx means that there are no rules. While the file cannot be read, everything is disallowed: a row gets the failure of
the file, which may pass, and the file is fetched again after a few minutes.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.target import Target

MOST_BYTES = 500_000
"""RFC 9309, 2.5: at least 500 kiB are parsed; what follows is ignored."""
KEEP_SECONDS = 86_400.0
KEEP_FAILURE_SECONDS = 300.0
MOST_HOSTS = 5_000
MOST_CHARACTERS = 8 * 2**20
"""Total size of the files in memory. Parsed, they take about thirty times as much."""

_AGENT_LINE = re.compile(r"^(\s*user[ -]?agent\b\s*:?)(.*)", re.I)


class Rules(Protocol):
    def can_fetch(self, url: str, user_agent: str) -> bool: ...


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.expires = 0.0
        self.rules: Rules | None = None
        self.characters = 0
        self.weight = 0
        """Characters as they are counted in the sum over all entries."""
        self.failure: Failure | None = None


class Robots:
    def __init__(self, product: str) -> None:
        from protego import Protego  # only the runner's environment has it

        self._parse: Callable[[str], Rules] = Protego.parse
        self._product = product
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def check(self, target: Target, end: float, get: Callable[[Target], bytes]) -> None:
        """`get` fetches the file; threads that need the same file share one fetch. Raises Failure: robots_txt,
        deadline, or why the file cannot be read."""
        origin = f"{target.scheme}://{target.authority}"
        entry = self._entry(origin)
        if not entry.lock.acquire(timeout=max(0.0, end - time.monotonic())):
            raise Failure("deadline", "while robots.txt was fetched")
        try:
            if time.monotonic() >= entry.expires:
                self._load(entry, replace(target, path="/robots.txt"), get)
                self._weigh(origin, entry)
            rules, failure = entry.rules, entry.failure
        finally:
            entry.lock.release()
        if failure:
            raise Failure(failure.code, f"robots.txt: {failure.detail}", wait_seconds=math.inf)
        if rules and not rules.can_fetch(target.url, self._product):
            raise Failure("robots_txt")

    def _entry(self, origin: str) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(origin, _Entry())
            self._entries.move_to_end(origin)
            while len(self._entries) > MOST_HOSTS or self._characters > MOST_CHARACTERS:
                self._characters -= self._entries.popitem(last=False)[1].weight
        return entry

    def _weigh(self, origin: str, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(origin) is entry:
                self._characters += entry.characters - entry.weight
                entry.weight = entry.characters

    def _load(self, entry: _Entry, place: Target, get: Callable[[Target], bytes]) -> None:
        entry.rules = entry.failure = None
        entry.characters = 0
        keep = KEEP_SECONDS
        try:
            text = get(place).decode("utf-8-sig", "replace")
            entry.rules = self._parse(with_few_agents(text, self._product))
            entry.characters = len(text)
        except Failure as failure:
            if not _means_no_rules(failure):
                entry.failure = failure
                keep = 0.0 if failure.code == "deadline" else KEEP_FAILURE_SECONDS  # a deadline is one URL's own
        entry.expires = time.monotonic() + keep


def with_few_agents(text: str, product: str) -> str:
    """The file with one name for all agents except `product`. protego copies a group's rules for each agent, so half a
    megabyte of agents and rules would become 30 million rules."""
    return "\n".join(_AGENT_LINE.sub(partial(_renamed, product), line, count=1) for line in text.splitlines())


def _renamed(product: str, line: re.Match[str]) -> str:
    name = line[2].partition("#")[0].strip().lower()
    concerns_us = name == "*" or name.replace("*", "") in product
    return line[0] if concerns_us else f"{line[1].rstrip()} -"


def _means_no_rules(failure: Failure) -> bool:
    """RFC 9309, 2.3.1.2 and 2.3.1.3: the file is unavailable, or behind more redirects than anyone must follow."""
    return failure.code == "redirects" or (failure.status == "unusable" and failure.code.startswith("http_"))
