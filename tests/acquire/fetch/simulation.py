"""Runners and their limiter in simulated time: the pure parts of both, without threads, sockets or waiting.

Each runner has threads, latency to the limiter and rows; requests take some time. The log of starts and ends is what a
server would see.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from curate.acquire.fetch.grants import PREFIX, Grants
from curate.acquire.fetch.line import Host, Line
from curate.engine.workers.shares import Dealer

PATIENCE = 60.0
TICK_SECONDS = 1e-6
"""Sums of floats may be late by less."""


@dataclass
class World:
    """rows: of each runner, the hosts in list order. connections, rate: limits of a host."""

    connections: int
    rate: float | None
    rows: Sequence[Sequence[str]]
    seed: int = 0
    threads: int = 4
    request_seconds: tuple[float, float] = (0.01, 0.2)
    latency_seconds: tuple[float, float] = (0.001, 0.03)
    join_seconds: float = 1.0
    """Runners join within this time."""
    deaths: int = 0
    """Runners that die, each at some time; the first one never does."""
    now: float = 0.0
    starts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    most: dict[str, int] = field(default_factory=dict)
    """Host -> most requests at once."""
    active: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.dealer = Dealer(hold=1.0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.runners = [Runner(self, hosts) for hosts in self.rows]
        for runner in self.runners:
            self.after(self.random.uniform(0.0, self.join_seconds), runner.join)
        for runner in self.runners[1 : self.deaths + 1]:
            self.after(self.random.uniform(self.join_seconds, 4.0), runner.die)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._order), call))

    def run(self, seconds: float = 1e5) -> World:
        """Until nothing happens any more."""
        while self._events and self._events[0][0] < seconds:
            self.now, _, call = heappop(self._events)
            call()
        return self

    def begin(self, host: str) -> None:
        self.starts[host].append(self.now)
        self.active[host] += 1
        self.most[host] = max(self.most.get(host, 0), self.active[host])


@dataclass
class Runner:
    world: World
    rows: Sequence[str]
    done: int = 0
    alive: bool = True
    active: int = 0
    parks: dict[str, float] = field(default_factory=dict)
    """Host -> seconds it asks for at this runner's first request."""
    when_parked: Callable[[], None] = lambda: None

    def join(self) -> None:
        world = self.world
        one = {"seats": world.connections} if world.rate is None else {"seats": 1, "pause": 1.0 / world.rate}
        opening = {"client": str(id(self)), "room": "", "limits": {"host": {"limit": world.connections, **one}}}
        self.client, self.number = world.dealer.join(opening, world.now)
        self.grants = Grants(world.threads)
        self.line = Line(PATIENCE)
        self.hosts: dict[str, Host] = {}
        for place, name in enumerate(self.rows):
            host = self.hosts.setdefault(name, Host(name, 0, world.rate))
            self.line.add(host, place, place, self.world.now)
            self.grants.add(host)
        self.timer = math.inf
        self.send()

    def send(self) -> None:
        if self.alive:
            message = {"busy": bool(self.line.rows or self.active), "asks": self.grants.asks(self.world.now)}
            self.world.after(self.world.random.uniform(*self.world.latency_seconds), lambda: self.arrive(message))

    def arrive(self, message: dict) -> None:
        if self.alive:
            answer = self.world.dealer.exchange(self.client, message, self.world.now)
            self.world.after(self.world.random.uniform(*self.world.latency_seconds), lambda: self.hear(answer))

    def hear(self, answer: dict) -> None:
        if not self.alive:
            return
        now = self.world.now
        seats = {name.removeprefix(PREFIX): share for name, share in answer["shares"].items()}
        for host in self.grants.heard(seats, now):
            self.line.update(host, now, moved=True)
        self.start()
        if self.line.rows or self.active or self.grants.holds:
            self.world.after(answer["seconds"], self.send)

    def hold(self, name: str, seconds: float) -> None:
        host = self.hosts[name]
        host.parked = max(host.parked, self.world.now + seconds)
        self.line.update(host, self.world.now, moved=True)

    def start(self) -> None:
        world = self.world
        while self.alive and self.active < world.threads and (found := self.line.pop(world.now)):
            host, _ = found
            if self.line.given_up(host, world.now):
                self.done += 1
            else:
                self.active += 1
                host.active += 1
                host.pace.take(world.now)
                world.begin(host.name)
                world.after(world.random.uniform(*world.request_seconds), lambda host=host: self.end(host))
            self.line.update(host, world.now)
        free = self.alive and self.active < world.threads
        if free and (soonest := self.line.soonest()) < self.timer:
            self.timer = soonest
            world.after(soonest - world.now + TICK_SECONDS, self.look)

    def look(self) -> None:
        self.timer = math.inf
        self.start()

    def end(self, host: Host) -> None:
        if not self.alive:
            return
        self.world.active[host.name] -= 1
        self.active -= 1
        host.active -= 1
        self.done += 1
        if (seconds := self.parks.pop(host.name, None)) is not None:
            self.hold(host.name, seconds)
            self.when_parked()
        self.line.update(host, self.world.now)
        self.start()

    def die(self) -> None:
        """Its sockets close at once, and the limiter sees that."""
        self.alive = False
        for host in self.hosts.values():
            self.world.active[host.name] -= host.active
        self.world.dealer.leave(self.client, self.number, self.world.now)
