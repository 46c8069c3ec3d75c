"""`AsyncMap`: facts that a service answers, a request a row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from curate.core.contracts.map import Batch, Map, Sample
from curate.core.contracts.stage import Resources, Runtime


class NoAnswer(Exception):
    """A row got no answer this time: status `error`, which `curate retry` tries again. `reason` is a snake_case word
    that the ledger counts; `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Client(Protocol):
    """What `answer` asks with. The engine bounds the requests in flight, and tries again what may succeed later."""

    async def post(self, url: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Send `body` (bytes as they are, anything else as JSON) and return the decoded JSON of the answer.

        Raises NoAnswer where every attempt failed (`timeout`, `connect`, `reset`, `not_json`, `http_503`), Reject where
        the endpoint refuses this request (`refused_400`), CurateError where it refuses all (401, 403, 404)."""
        ...


class AsyncMap(Map):
    """Facts about samples that an endpoint answers, a row each. It is costly: rows are looked up by the values that
    they are asked with before they are asked, and answers are saved while a unit is under way.

    With `pixels`, `request` finds what `prepare` returned under `image`: the encoded bytes, unless it is overridden."""

    costly: ClassVar[bool] = True

    max_in_flight: Annotated[int, Runtime(), Field(ge=1)] = 40
    """Requests that one worker has under way. More than the endpoint has slots for it: 1.25 times keeps them busy."""
    timeout_seconds: Annotated[float, Runtime(), Field(gt=0)] = 120.0
    """Of one attempt, from the connection to the last byte."""
    attempts: Annotated[int, Runtime(), Field(ge=1)] = 5
    """How often a request is sent before its row is in error."""

    def resources(self) -> Resources:
        return Resources(cpus=0.25, remote=True)

    def prepare(self, sample: Sample) -> Any:
        return sample.data

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        """What to ask for a row: `key` and what the stage `reads`. Equal requests of a unit are asked once. None: the
        row needs no answer; it is done, and its columns are null. Raise Reject: the row is unusable."""
        raise NotImplementedError

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        """A value for each column of the schema. Raise Reject: the row is unusable; NoAnswer, or what `client.post`
        raises: it is in error. Runs in an event loop that all requests share: it must not block."""
        raise NotImplementedError

    def process(self, batch: Batch) -> dict[str, Any]:
        raise AssertionError("an AsyncMap is asked row by row")
