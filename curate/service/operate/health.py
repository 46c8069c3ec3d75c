"""Readiness: whether this replica can serve, and some replica moves runs."""

from __future__ import annotations

from curate.service.database.migrate import current, heads
from curate.service.operate.collector import Loop
from curate.service.problems import UnavailableProblem
from curate.service.service import Service

PASS_SECONDS = 60.0
"""Longest time without a pass of any replica."""


def check(service: Service, loop: Loop | None) -> None:
    """Raises UnavailableProblem with what is missing, in one line."""
    found = current(service.database)
    if found != heads()[-1]:
        raise UnavailableProblem(
            f"not ready: the database has the tables of {found}, expected {heads()[-1]}; run `curate service migrate`"
        )
    if loop is None:
        return
    age = loop.pass_age()
    if age is None or age > PASS_SECONDS:
        since = "since this replica started" if age is None else f"for {age:.0f} s"
        raise UnavailableProblem(f"not ready: no replica has moved runs {since}; read the logs of the replicas")
