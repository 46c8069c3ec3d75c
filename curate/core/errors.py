"""All errors that a user can see, as one tree.

CurateError
├── RecipeError            the recipe is wrong: unknown op, parameter or input, a cycle; names the place in the file
├── InputError             what a source points to is missing, empty or unreadable
├── StorageError           the workspace cannot be read or written
│   └── AlreadyExistsError create-if-absent failed: another process published this name first
├── CorruptError           a table or mask of the workspace is corrupt or missing; names what to remove
├── RunExistsError         a run with this id exists
├── PinnedError            a pinned artifact or checkpoint does not have the requested fingerprint
├── TargetError            a selection requests more than the pool has; names the maximum
├── BudgetError            more rows or shards were lost to failures than the run allows
├── PreflightError         credentials, weights or disk space are missing before a run
├── StageError             a unit that the run cannot continue without failed at every attempt
├── UnreachableError       a Ray cluster does not answer, or was lost during a run
├── DrainedError           stopped: finished work is committed, and another run resumes from it
│   └── CeilingError       the run has used its tokens or dollars
├── LedgerError            counts do not add up: a bug, not the user's mistake
└── Reject                 one sample cannot be used, and why: status `unusable` of its row; does not end a run
    └── Undecodable        the bytes cannot be decoded as an image

Messages are one line: the value given, what was expected, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

RESUMES = "with a new --run-id or none, the same command resumes from there"
LOST = "lost the Ray cluster"  # begins the error of a run whose cluster has died


class CurateError(Exception):
    """Base of all errors that the package raises for its users. Programs may depend on `code`, which never changes."""

    code: str = "error"

    def __str__(self) -> str:
        return " ".join(str(super().__str__()).split())


class RecipeError(CurateError):
    code = "recipe"


class InputError(CurateError):
    code = "input"


class StorageError(CurateError):
    code = "storage"


class AlreadyExistsError(StorageError):
    code = "exists"


class CorruptError(CurateError):
    code = "corrupt"


class RunExistsError(CurateError):
    code = "conflict"


class PinnedError(CurateError):
    code = "pinned"


class TargetError(CurateError):
    code = "too_few_rows"


class BudgetError(CurateError):
    code = "budget"


class PreflightError(CurateError):
    code = "preflight"


class StageError(CurateError):
    code = "stage"


class UnreachableError(CurateError):
    code = "unreachable"


class DrainedError(CurateError):
    code = "stopped"


class CeilingError(DrainedError):
    code = "ceiling"


class LedgerError(CurateError):
    code = "ledger"


class Reject(CurateError):
    """Rejects one sample. The ledger counts by `reason`, a snake_case word; `detail` is for people."""

    code = "reject"

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class Undecodable(Reject):
    code = "undecodable"


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The remedy for an unknown name: the known name closest to it, or `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of many names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
