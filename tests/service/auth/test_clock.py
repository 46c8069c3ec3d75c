"""A clock that jumps neither revives tokens nor locks everybody out."""

from __future__ import annotations

import pytest

from curate.service.auth import tokens
from curate.service.auth.clock import Clock
from curate.service.database.models import BrowserSession
from curate.service.problems import NotLoggedInProblem
from curate.service.service import Service
from tests.service.people import People


class Times:
    """A wall clock and a monotonic one, both at 1,000,000."""

    def __init__(self) -> None:
        self.wall = self.steady = 1_000_000.0
        self.clock = Clock(lambda: self.wall, lambda: self.steady)

    def passes(self, seconds: float, jump: float = 0.0) -> float:
        self.wall += seconds + jump
        self.steady += seconds
        return self.clock()


def test_small_jumps_back_are_not_believed() -> None:
    times = Times()
    assert times.passes(10) == 1_000_010
    assert times.passes(10, jump=-3600) == 1_000_020
    assert times.passes(10) == 1_000_030
    assert times.passes(0, jump=3600) == 1_000_030


def test_large_jumps_back_are_believed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    times = Times()
    assert times.passes(10, jump=-86_400) == 1_000_010 - 86_400
    assert times.passes(10) == 1_000_020 - 86_400
    [record] = caplog.records
    assert "went back by 86400 s" in record.getMessage()


def test_small_jumps_back_add_up_to_a_large_one() -> None:
    times = Times()
    found = [times.passes(0, jump=-1000) for _ in range(4)]
    assert found == [1_000_000, 1_000_000, 1_000_000, 996_000]


def test_jumps_forward_are_believed_and_forgotten() -> None:
    times = Times()
    assert times.passes(0, jump=1e9) == 1_000_000 + 1e9
    assert times.passes(0, jump=-1e9) == 1_000_000


def is_valid(service: Service, text: str) -> bool:
    try:
        with service.database.read() as session:
            tokens.verified(session, text, service.clock())
    except NotLoggedInProblem:
        return False
    return True


@pytest.fixture
def times(service: Service) -> Times:
    made = Times()
    service.clock = made.clock
    return made


def test_tokens_under_a_clock_that_jumps(service: Service, times: Times, people: People) -> None:
    """They were made for 90 days."""
    text, day = people.viewer.token, 86_400.0
    assert is_valid(service, text)
    times.passes(0, jump=365 * day)
    assert not is_valid(service, text)  # the clock ran ahead
    times.passes(0, jump=-365 * day)
    assert is_valid(service, text)  # and the user is not locked out
    times.passes(90 * day)
    assert not is_valid(service, text)
    times.passes(0, jump=-3000)
    assert not is_valid(service, text)  # a small jump back revives nothing


def test_a_revoked_token_stays_revoked(service: Service, times: Times, people: People) -> None:
    with service.database.write() as session:
        session.get_one(tokens.Token, people.viewer.principal.token_id).revoked = service.clock()
    times.passes(0, jump=-1e6)
    assert not is_valid(service, people.viewer.token)


def test_a_session_does_not_last_longer_through_a_jump_back(service: Service, times: Times, people: People) -> None:
    from curate.service.auth import sessions

    longest = service.settings.limits.session_seconds
    with service.database.write() as session:
        now, token = service.clock(), people.viewer.principal.token_id
        session.add(
            BrowserSession(digest=tokens.digest("cookie"), token_id=token, csrf="x", created=now, expires=now + longest)
        )
    with service.database.read() as session:
        assert sessions.verified(session, tokens.digest("cookie"), service.clock(), longest)[1] == "x"
        times.passes(0, jump=-1e5)
        with pytest.raises(NotLoggedInProblem):
            sessions.verified(session, tokens.digest("cookie"), service.clock(), longest)
