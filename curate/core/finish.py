"""Why a server ended a chat completion: the values of `finish_reason`, on which servers do not agree."""

from __future__ import annotations

import re

USUAL, LENGTH, WITHHELD, UNFINISHED, UNKNOWN = "usual", "length", "withheld", "unfinished", "unknown"
"""The answer is whole; it reached a limit of tokens; a filter withholds it; the server has failed; another reason."""
_KINDS = {
    WITHHELD: r"filter|safety|recitation|prohibited|blocklist|refusal|sensitive|spii|guardrail|moderation",
    LENGTH: r"length|max_tokens|context_window",
    UNFINISHED: r"error|abort|cancel|insufficient",
    USUAL: r"\A(?:stop|stop_sequence|eos|eos_token|end_turn|complete|tool_calls|function_call)\Z",
}


def kind_of(reason: object) -> str:
    """One of the above. None is usual."""
    found = (kind for kind, pattern in _KINDS.items() if re.search(pattern, str(reason), re.I))
    return USUAL if reason is None else next(found, UNKNOWN)
