"""Notes on an endpoint, for people who watch a run."""

from __future__ import annotations

import logging
from typing import Any

from curate.core.secrets import redact
from curate.engine.requests.answers import note_of
from curate.engine.tasks import beat

log = logging.getLogger("curate")


class Notes:
    """What this process says."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._told = set[str]()
        self._reported: list[tuple[Any, Any]] = []
        """(model, fingerprint) as the answers report them."""

    def say(self, text: str, *values: object, name: str = "") -> None:
        """name: as of `beat.note`."""
        told = f"endpoint {self._endpoint}: {text % values}"
        log.warning("%s", told)
        beat.note(redact(told), name)

    def of_answer(self, answer: Any) -> None:
        """What people should know about it, once."""
        if not isinstance(answer, dict):
            return
        if (note := note_of(answer)) and note not in self._told:
            self._told.add(note)
            self.say("%s", note)
        found = (answer.get("model"), answer.get("system_fingerprint"))
        if found not in self._reported:
            if self._reported:
                told = [f"{model!r} with fingerprint {version!r}" for model, version in (self._reported[-1], found)]
                self.say("the model has changed: answers report %s, then %s", *told)
            self._reported.append(found)
