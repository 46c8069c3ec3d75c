"""`AsyncMap`: facts about samples from an endpoint, by one request per row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import Field

from curate.core.contracts.map import Batch, Map, Sample
from curate.core.contracts.stage import Resources, Runtime
from curate.core.secrets import Secret


class NoAnswer(Exception):
    """A row got no answer this time: status `error`, which `curate retry` retries. The ledger counts by `reason`, a
    snake_case word; `detail` is for people."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Client(Protocol):
    """The HTTP client of `answer`. The engine bounds the requests in flight, and retries those that may succeed
    later."""

    async def post(
        self, url: str, body: Any, headers: Mapping[str, str] | None = None, *, endpoint: str | None = None
    ) -> Any:
        """Send `body` (bytes unchanged, other values as JSON) and return the decoded JSON of the answer.

        endpoint: a name of `asks()`; `url` is then a path below one of its base URLs (`/chat/completions`), and its
        key, limits and budget apply.

        Raises NoAnswer if every attempt failed (`timeout`, `connect`, `reset`, `not_json`, `http_503`), or if a healthy
        endpoint fails on this request (`endpoint_refuses`); if its filter rejects the contents (`refused`); Reject if a
        plain URL rejects it (`refused_400`); CurateError if the endpoint rejects all requests (401, 403, 404, an empty
        account) or is down for too long."""
        ...


class AsyncMap(Map):
    """Facts about samples from an endpoint, one request per row. Requests are costly, so the engine first looks for an
    earlier answer to the values that the request contains, and saves answers while a unit is running.

    With `pixels`, `request` gets the result of `prepare` under `image`: the encoded bytes unless it is overridden."""

    costly: ClassVar[bool] = True

    max_in_flight: Annotated[int, Runtime(), Field(ge=1)] = 40
    """Requests in flight per worker. 1.25 times its slots of the endpoint keep those busy."""
    timeout_seconds: Annotated[float, Runtime(), Field(gt=0)] = 120.0
    """Limit of an attempt, from connecting to the last byte."""
    attempts: Annotated[int, Runtime(), Field(ge=1)] = 5
    """Attempts before a row is in error."""

    def secrets(self) -> dict[str, Secret]:
        keys = {f"key of {name}": one.key for name, one in self.asks().items() if one.key is not None}
        return super().secrets() | keys

    def resources(self) -> Resources:
        gpus = max((one.launch.gpus for one in self.asks().values() if one.launch), default=0.0)
        return Resources(cpus=0.25, gpus=gpus, remote=not gpus)

    def prepare(self, sample: Sample) -> Any:
        return sample.data

    def request(self, row: Mapping[str, Any]) -> Hashable | None:
        """The request for a row, which has `key` and the columns that the stage `reads`. Equal requests of a unit are
        sent once. None: the row needs no answer, and its columns are null. Raise Reject if the row is unusable."""
        raise NotImplementedError

    async def answer(self, request: Any, client: Client) -> dict[str, Any]:
        """Send the request and return a value for each column of the schema. Raise Reject if the row is unusable, and
        NoAnswer if it is in error. Runs in an event loop shared by all requests, so it must not block."""
        raise NotImplementedError

    def process(self, batch: Batch) -> dict[str, Any]:
        raise AssertionError("an AsyncMap has no batches")
