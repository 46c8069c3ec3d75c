"""The wall clock, by which tokens and sessions expire, without its small jumps back.

If the wall clock goes back by up to an hour, time continues by the monotonic clock, so that no expired token becomes
valid again. A larger jump back is followed, with a warning in the log: tokens that expired in that interval are valid
until it has passed again. Otherwise a clock that was once a year ahead would end every token for a year. A jump forward
is followed and never stored: tokens are valid again once the clock is right. Revocation does not depend on the clock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

DISBELIEVED_SECONDS = 3600.0

log = logging.getLogger(__name__)


class Clock:
    """Seconds since the epoch. Thread-safe."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            steady = self._steady()
            offset = self._wall() - steady
            back = self._offset - offset
            if back > DISBELIEVED_SECONDS:
                log.warning("the clock went back by %.0f s: tokens that expired in that time are valid again", back)
            if back < 0 or back > DISBELIEVED_SECONDS:
                self._offset = offset
            return steady + self._offset


now = Clock()
"""The clock of this process."""
