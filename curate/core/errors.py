"""Every error a user can meet, drawn as one tree.

CurateError
├── RecipeError            the pipeline is wrong: unknown op, parameter, input, cycle; names its place in the file
├── InputError             what a source points to is missing, empty or unreadable
├── StorageError           the workspace cannot be read or written
│   └── AlreadyExistsError create-if-absent lost: somebody published this name before
├── CorruptError           a table or mask of the workspace is gone or cannot be read; says what to remove
├── RunExistsError         a run id is used twice
├── PinnedError            a pinned artifact or checkpoint has another fingerprint than the one asked for
├── TargetError            a selection asks for more than the pool can give; names the maximum
├── BudgetError            more rows or shards were lost to failures than the run allows
├── PreflightError         credentials, weights or disk space are missing before a run
├── StageError             a step that nothing can go on without failed at every attempt
├── DrainedError           SIGTERM came: what was under way is committed, the same command goes on from there
├── LedgerError            counts do not add up: a bug, never the user's fault
└── Reject                 one sample cannot be used, with its reason; a row's status `unusable`, never ends a run
    └── Undecodable        the bytes are not an image that can be decoded

Messages are one line: what was given, what was expected, what to do.
"""

from __future__ import annotations


class CurateError(Exception):
    """Base of everything the package raises on purpose."""

    def __str__(self) -> str:
        return " ".join(str(super().__str__()).split())


class RecipeError(CurateError):
    pass


class InputError(CurateError):
    pass


class StorageError(CurateError):
    pass


class AlreadyExistsError(StorageError):
    pass


class CorruptError(CurateError):
    pass


class RunExistsError(CurateError):
    pass


class PinnedError(CurateError):
    pass


class TargetError(CurateError):
    pass


class BudgetError(CurateError):
    pass


class PreflightError(CurateError):
    pass


class StageError(CurateError):
    pass


class DrainedError(CurateError):
    pass


class LedgerError(CurateError):
    pass


class Reject(CurateError):
    """Refuse one sample. `reason` is a snake_case word that the ledger counts; `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.reason, self.detail)


class Undecodable(Reject):
    pass
