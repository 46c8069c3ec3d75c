"""Checks and plans recipes in a limited process, so that no recipe can harm the service.

The time, the memory and the files of the process are limited, its environment has no token of the service, and at most
two run at a time. They are forked from a warm process, because importing all stages takes seconds. They have files and
the network, since plans read workspaces.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from curate.core.child import KEPT, Ended, Warm
from curate.core.child import Limits as ChildLimits
from curate.core.errors import PreflightError
from curate.service.problems import TooManyProblem, UnavailableProblem

if TYPE_CHECKING:
    from curate.service.policy.rules import Rules
    from curate.service.settings import Limits

AT_ONCE = 2
PLAN_FILE_BYTES = 64 << 20
"""A plan copies files of denied hosts; a check writes nothing."""
ENVIRONMENT = (
    KEPT + r"|SSL_CERT_\w+|(AWS|AZURE_STORAGE|GOOGLE|FSSPEC)_\w+|HF_(HOME|HUB_CACHE|HUB_OFFLINE|ENDPOINT)"
    r"|(https?|no|all)_proxy|(HTTPS?|NO|ALL)_PROXY"
)
"""Variables that the process gets: what it needs to import the package, and to read workspaces on object stores."""
CHECKING = "curate.service.policy.checking"


@dataclass
class Outcome:
    """JSON-able. `mistakes`, `stages` and `plan` have the fields of the API's shapes."""

    mistakes: list[dict[str, Any]] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    plan: list[dict[str, Any]] = field(default_factory=list)
    resolved: str = ""
    """The recipe that the job runs."""
    needs: dict[str, Any] = field(default_factory=dict)
    """The most GPUs of a task, and its stage."""
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    """Including memory that the process shares with the warm one."""


_OUTCOME = TypeAdapter(Outcome)


class Sandbox:
    """Thread-safe. Starts its warm process at the first order, or by `start`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._warm = Warm(f"{CHECKING}:warm", alone=False, kept=ENVIRONMENT)
        self._running = threading.BoundedSemaphore(AT_ONCE)
        self._describing = threading.Lock()
        self._ops: list[dict[str, Any]] | None = None

    def check(self, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        """Whether the rules admit a recipe and it can be built. The caller has a turn (`Limiter.checks`), so that no
        thread waits here. Raises TooManyProblem or UnavailableProblem."""
        return self._outcome("check", text, sets, rules)

    def plan(self, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        """The same, with what a run would do."""
        return self._outcome("plan", text, sets, rules)

    def ops(self) -> list[dict[str, Any]]:
        """Descriptions of all ops."""
        with self._describing:
            if self._ops is None:
                ended = self._ask({"want": "ops"}, 0)
                if ended.answer is None:
                    raise UnavailableProblem("the list of ops cannot be made at the moment; try again")
                self._ops = json.loads(ended.answer)
            return self._ops

    def start(self) -> None:
        """Start the warm process, which is ready some seconds later. Does nothing if it runs."""
        self._warm.start()

    def close(self) -> None:
        self._warm.close()

    # --- one order ---

    def _outcome(self, want: str, text: str, sets: Sequence[str], rules: Rules) -> Outcome:
        size = len(text) + sum(map(len, sets))
        if size > self._limits.recipe_bytes:  # bytes are at least as many as characters
            most = f"at most {self._limits.recipe_bytes:,} bytes"
            return Outcome([_mistake("too_large", f"{size:,} characters with its overrides; {most}")])
        order = {"want": want, "text": text, "sets": list(sets), "rules": asdict(rules)}
        order["limits"] = self._limits.model_dump(mode="json")
        if not self._running.acquire(timeout=self._limits.check_seconds):
            raise TooManyProblem("too many recipes are being checked; try again in some seconds", 5.0)
        try:
            ended = self._ask(order, PLAN_FILE_BYTES if want == "plan" else 0)
        finally:
            self._running.release()
        outcome = _read(ended) or Outcome([self._failure(want, ended)])
        outcome.cpu_seconds, outcome.peak_bytes = ended.cpu_seconds, ended.peak_bytes
        return outcome

    def _failure(self, want: str, ended: Ended) -> dict[str, Any]:
        if ended.how == "timeout":
            seconds = f"{self._limits.check_seconds:g} s"
            if want == "plan":
                return _mistake("timeout", f"the plan takes more than {seconds}; submit the recipe without one")
            return _mistake("timeout", f"the check takes more than {seconds}; make the recipe smaller")
        if ended.how not in ("memory", "signal", "answer"):
            return _mistake("recipe", f"the {want} failed unexpectedly; ask an admin to look into the service's log")
        most = f"{self._limits.check_bytes:,} bytes"
        return _mistake(
            "too_large", f"the {want} crashed, or needs more than {most} of memory; make the recipe smaller"
        )

    def _ask(self, order: dict[str, Any], file_bytes: int) -> Ended:
        limits = ChildLimits(self._limits.check_seconds, self._limits.check_bytes, file_bytes, open_files=1024)
        try:
            return self._warm.call(f"{CHECKING}:answered", json.dumps(order).encode("utf-8", "surrogatepass"), limits)
        except PreflightError as error:
            raise UnavailableProblem(
                "the process that checks recipes does not answer; try again, or ask an admin for its log"
            ) from error


def _read(ended: Ended) -> Outcome | None:
    try:
        return _OUTCOME.validate_python(json.loads(ended.answer or b"", parse_constant=_rejected))
    except (ValueError, RecursionError):  # code of a stage may have written anything
        return None


def _rejected(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _mistake(code: str, text: str) -> dict[str, Any]:
    return {"code": code, "text": text, "stage": "", "line": None}
