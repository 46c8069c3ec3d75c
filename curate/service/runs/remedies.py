"""What to do about a failed run, where its error does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TABLE: tuple[tuple[str, str], ...] = (
    (r"out of memory|cannot allocate memory|OutOfMemory|signal 9|SIGKILL|OOM",
     "give it a smaller batch_size or fewer workers, or a target with more memory; then resume"),
    (r"no space left|disk quota", "free disk space (`gc` of the workspace frees what no run needs); then resume"),
    (r"more than its budget|the budget is",
     "look at the reasons in the funnel and the log; fix the cause, or submit with a larger failure_budget"),
    (r"\bHTTP 401\b|\bHTTP 403\b|access ?denied|invalid ?access ?key|forbidden|credentials",
     "check the registered secret, and that the target's nodes may read what the stage reads; then resume"),
    (r"connection (refused|reset)|timed? ?out|unreachable|name resolution|temporary failure",
     "check that the target's nodes reach the address; then resume, which repeats only what failed"),
    (r"CUDA|no kernel image|NVML", "check the GPUs and the driver of the target's nodes; then resume"),
    (r"no module named|ModuleNotFoundError|command not found|curate: not found",
     "the target's nodes lack this version of the package; install it there, then resume"),
    (r"is corrupt|is missing|damaged", "remove the file that the error names; the next attempt rebuilds it"),
    (r"hung|without progress", "look at the log of the stage's last worker; resume, or submit with another deadline"),
    (r"heartbeat|driver died|does not know its job|does not answer",
     "check the target's head; the run resumes from its last finished work"),
)  # fmt: skip
_KNOWN = [(re.compile(pattern, re.IGNORECASE), text) for pattern, text in _TABLE]
_OTHERWISE = "read the stage's log below; then fix the cause and resume, which repeats only what failed"


def remedy(error: str) -> str:
    """In one line; "" without an error."""
    if not error:
        return ""
    return next((text for pattern, text in _KNOWN if pattern.search(error)), _OTHERWISE)


def failed_stage(error: str, begun: Iterable[str]) -> str | None:
    """The stage that an error is about: the one that it names, or else the only one that had started. `begun`: stages
    that have started and are not done, in order."""
    begun = list(begun)
    named = [stage for stage in begun if re.search(rf"(?<![\w.]){re.escape(stage)}(?![\w-])", error)]
    if named:
        return max(named, key=len)
    return begun[0] if len(begun) == 1 else None
