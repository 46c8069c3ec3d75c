"""A server that this process started: restarted if it dies, ended without users or with the process."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from concurrent.futures import Future
from typing import IO

from curate.core.endpoints import Endpoint, Launch
from curate.core.errors import CurateError
from curate.core.secrets import redact
from curate.engine.servers.commands import problem
from curate.engine.servers.process import END_SECONDS, Died, Process, Slot, base_url, health, is_up, publish

POLL_SECONDS = 0.2
HEALTH_SECONDS = 10.0
"""Between two questions for the health of a running server."""
UNHEALTHY_SECONDS = 30.0
"""A server that reports for so long that it is unhealthy is ended and started again."""
SILENT_SECONDS = 180.0
"""The same for one that does not answer: it may have much to do."""
REPORT_SECONDS = 30.0
"""Between two reports that it is still starting."""
RESTART_SECONDS = 1.0
"""Pause before a restart; it doubles with each death, up to LONGEST_PAUSE."""
LONGEST_PAUSE = 60.0
STARTS = 2
"""Attempts until it is healthy for the first time: its port may be taken meanwhile."""
DEATHS = 5
"""Deaths in a row, each within STEADY_SECONDS, that end the run."""
STEADY_SECONDS = 600.0
IDLE_SECONDS = 60.0
"""How long a server without users is kept."""
log = logging.getLogger("curate.servers")


class Server:
    """The server of an endpoint, as this process sees it. Its thread starts the server's process and watches it."""

    def __init__(self, name: str, endpoint: Endpoint, before: threading.Thread | None) -> None:
        """before: thread of a server that has to end first."""
        assert endpoint.launch is not None
        self.name, self.endpoint, self.launch = name, endpoint, endpoint.launch
        self.users = 0
        self.pid = 0
        """Process that keeps the server; 0 if another process has started it."""
        self._unused = time.monotonic()
        self._over = threading.Event()
        self._ready: Future[str] = Future()
        self._before = before
        self._deaths, self._ever_healthy = 0, False
        self.thread = threading.Thread(target=self._serve, daemon=True, name=f"server of {name}")
        self.thread.start()

    async def base_url(self) -> str:
        """The server's URL up to the version, as soon as it is healthy; that takes up to `startup_seconds`. Raises
        CurateError if it cannot be started, or died too often."""
        ready = self._ready
        if not ready.done():
            await asyncio.shield(asyncio.wrap_future(ready))
        return ready.result()

    def leave(self) -> None:
        """One user less. It ends IDLE_SECONDS after the last one."""
        with _guard:
            self.users -= 1
            self._unused = time.monotonic()

    def end(self) -> None:
        """End it, and wait until it has."""
        self.stop()
        self.thread.join(END_SECONDS + 5)

    def stop(self) -> None:
        with _guard:
            self._forget()
            self._over.set()

    # --- in its thread ---

    def _serve(self) -> None:
        if self._before is not None:
            self._before.join()
        try:
            slot = Slot(self.endpoint, self.launch)
            while self._wanted():
                taken = slot.take()
                if taken is None:
                    self._borrow(slot)
                    continue
                _taken.add(taken)
                with taken:
                    self._own(taken)
                _taken.discard(taken)
        except CurateError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - those that wait for the URL would wait forever
            self._fail(CurateError(redact(f"endpoint {self.name}: {type(error).__name__}: {error}")))
        else:
            self._fail(CurateError(f"endpoint {self.name}: its server was ended"))

    def _own(self, slot: IO[str]) -> None:
        """Start it and watch it until it dies or is not wanted any more; then the pause before a restart. Raises
        CurateError if it cannot be started or died too often."""
        wrong = problem(self.name, self.endpoint)
        if wrong is not None:
            raise CurateError(wrong)
        process, healthy = Process(self.endpoint, self.launch, slot), 0.0
        self.pid = process.pid
        try:
            if self._started(process):
                healthy, self._ever_healthy = time.monotonic(), True
                publish(slot, process.port)
                self._ready.set_result(base_url(process.port))
                self._watch(process)
        except Died as reason:
            steady = healthy and time.monotonic() - healthy > STEADY_SECONDS
            self._deaths = 1 if steady else self._deaths + 1
            self._down()
            self._report(process, str(reason))
        finally:
            process.end()
        self._over.wait(min(RESTART_SECONDS * 2 ** max(self._deaths - 1, 0), LONGEST_PAUSE))

    def _started(self, process: Process) -> bool:
        """Wait until it is healthy; False if it is not wanted any more. Raises Died, and CurateError if it takes too
        long."""
        about, limit = f"endpoint {self.name}: {self.launch.server}", self.launch.startup_seconds
        began = reported = time.monotonic()
        log.info("endpoint %s: starting %s with %s", self.name, self.launch.server, self.endpoint.model)
        while self._wanted():
            process.read(POLL_SECONDS)
            now = time.monotonic()
            if is_up(process.port, self.endpoint, self.launch):
                log.info("%s is healthy after %.0f s", about, now - began)
                return True
            if now - began > limit:
                remedy = "raise `startup_seconds`, or start it by hand to see why"
                raise CurateError(redact(f"{about} is not healthy after {limit:g} s; {process.last_line}; {remedy}"))
            if now - reported > REPORT_SECONDS:
                reported = now
                log.info("%s is starting, %.0f s of at most %g s; %s", about, now - began, limit, process.last_line)
        return False

    def _watch(self, process: Process) -> None:
        """Return once it is not wanted any more. Raises Died."""
        healthy = asked = time.monotonic()
        while self._wanted():
            process.read(POLL_SECONDS)
            if time.monotonic() - asked > HEALTH_SECONDS:
                status, asked = health(process.port), time.monotonic()
                healthy = asked if status == 200 else healthy
                if asked - healthy > (UNHEALTHY_SECONDS if status else SILENT_SECONDS):
                    raise Died(f"was {'unhealthy' if status else 'silent'} for {asked - healthy:.0f} s")

    def _borrow(self, slot: Slot) -> None:
        """Use the server of another process, until that has ended it or it is not wanted any more."""
        began, self.pid = time.monotonic(), 0
        while self._wanted():
            port, taken = slot.port(), slot.take()
            if taken is not None:
                taken.close()
                self._down()
                return
            if self._ready.done():
                if self._ready.result() != base_url(port):  # it was restarted
                    self._down()
            elif port and is_up(port, self.endpoint, self.launch):
                self._ready.set_result(base_url(port))
            elif time.monotonic() - began > 2 * self.launch.startup_seconds:
                raise CurateError(f"endpoint {self.name}: the server that another process started is not healthy")
            self._over.wait(POLL_SECONDS)

    def _wanted(self) -> bool:
        with _guard:
            if not self._over.is_set() and not self.users and time.monotonic() - self._unused > IDLE_SECONDS:
                self.stop()
        return not self._over.is_set()

    def _down(self) -> None:
        """Let `base_url` wait from now on."""
        if self._ready.done():
            self._ready = Future()

    def _fail(self, error: CurateError) -> None:
        self.stop()
        self._down()
        self._ready.set_exception(error)

    def _report(self, process: Process, reason: str) -> None:
        """Log a death. Raises CurateError if it was one too many."""
        about = f"endpoint {self.name}: {self.launch.server} {reason}"
        most = DEATHS if self._ever_healthy else STARTS
        log.warning("%s (death %d of at most %d)\n%s", about, self._deaths, most, process.output)
        if self._deaths >= most:
            often = f"{self._deaths} times in a row" if self._ever_healthy else "before it was healthy"
            remedy = "check its arguments and its environment"
            raise CurateError(redact(f"{about} {often}; {process.last_line}; {remedy}"))

    def _forget(self) -> None:
        if _servers.get((self.endpoint.model, self.launch)) is self:
            del _servers[self.endpoint.model, self.launch]
            _ending[self.launch] = self.thread


# --- the process's servers --------------------------------------------------------------------------------------------

_guard = threading.RLock()
_servers: dict[tuple[str, Launch], Server] = {}
"""(model, launch) -> its server."""
_ending: dict[Launch, threading.Thread] = {}
"""Threads of the latest servers that end or have ended."""
_taken: set[IO[str]] = set()
"""Slots of this process."""


def join(name: str, endpoint: Endpoint) -> Server:
    """One user more of the endpoint's server, which is started if there is none. Does not wait for it."""
    assert endpoint.launch is not None
    with _guard:
        server = _servers.get((endpoint.model, endpoint.launch))
        if server is None:
            server = Server(name, endpoint, _ending.get(endpoint.launch))
            _servers[endpoint.model, endpoint.launch] = server
        server.users += 1
        return server


def _reset() -> None:
    """A forked process does not own the servers of its parent, and must not keep their slots locked."""
    global _guard, _servers, _ending
    _guard, _servers, _ending = threading.RLock(), {}, {}
    while _taken:
        _taken.pop().close()


os.register_at_fork(after_in_child=_reset)


@atexit.register
def end_all() -> None:
    """End the servers of this process."""
    ending = list(_servers.values())
    for server in ending:
        server.stop()
    for server in ending:
        server.end()
