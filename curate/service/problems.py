"""What the service answers when it cannot do what a request says, as problem+json (RFC 9457).

Every problem is a CurateError: one line with what was given, what was expected and what to do. Its `code` is stable, so
that programs may depend on it; its `status` is HTTP's.
"""

from __future__ import annotations

from curate.core.errors import CurateError


class Problem(CurateError):
    code = "problem"
    status = 500


class NotLoggedInProblem(Problem):
    """No token or session, or one that is unknown, expired or revoked. Never says which."""

    code = "not_logged_in"
    status = 401


class ForbiddenProblem(Problem):
    """The role does not suffice."""

    code = "forbidden"
    status = 403


class NotFoundProblem(Problem):
    """It does not exist, or in a workspace that the user cannot see."""

    code = "not_found"
    status = 404


class ConflictProblem(Problem):
    """It exists already, or its state does not allow it."""

    code = "conflict"
    status = 409


class ChangedProblem(Problem):
    """If-Match names another version than the current one."""

    code = "changed"
    status = 412


class TooLargeProblem(Problem):
    code = "too_large"
    status = 413


class InvalidProblem(Problem):
    """A value is out of range or of the wrong form."""

    code = "invalid"
    status = 422


class PolicyProblem(Problem):
    """A recipe asks for something that is not registered."""

    code = "policy"
    status = 422


class TooManyProblem(Problem):
    """Requests, streams or queued runs."""

    code = "too_many"
    status = 429

    def __init__(self, text: str, retry_after: float = 1.0) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class UnavailableProblem(Problem):
    """The database, a workspace or a target does not answer; the same request may work later."""

    code = "unavailable"
    status = 503
