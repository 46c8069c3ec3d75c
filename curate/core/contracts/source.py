"""`Source`: makes a pool of external data."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, ParamSpec

from pydantic import field_validator

from curate.core.contracts.stage import Stage, plain_name
from curate.core.errors import CurateError, Reject
from curate.core.ledger import Skip
from curate.core.reader import Reader

P = ParamSpec("P")
DETAIL = 300
"""Most characters of an error that a row keeps."""


def _never() -> bool:
    return False


def _ignored(rows: int, status: str, code: str, size: int) -> None:
    pass


def _forgotten(reason: str, name: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Portion:
    """The data of one shard. `content` (JSON-able) is all that `read` needs, and determines the shard."""

    content: dict[str, Any]
    rows: int | None = None
    """Most rows, if known without reading; otherwise None."""
    bytes: int = 0
    """Bytes to copy into the pool, as far as known without reading."""
    place: dict[str, Any] = field(default_factory=dict)
    """Where `read` finds the content; it does not determine the shard."""
    unread: tuple[str, ...] = ()
    """Folders that cannot be read, each a row of the portion; a warning names them."""
    skipped: Mapping[str, Skip] = field(default_factory=dict)
    """What planning found and gave to no portion; it is counted once, with this one."""
    only: Container[str] | None = None
    """Source ids to read, in a later generation of the portion or a canary run; None: all. The engine drops others."""
    limiter: dict[str, Any] | None = None
    """Where the run's limiter answers, for a source with `limited`: see `core.shares.ShareClient`."""
    stopped: Callable[[], bool] = _never
    """Whether the run is stopping, for a source whose portions take long. A source that asks is not considered hung."""
    received: Callable[[int, str, str, int], None] = _ignored
    """Takes rows, status, code and bytes of a fetch that has ended, so that progress counts them before `read` yields
    them."""
    skip: Callable[[str, str], None] = _forgotten
    """Takes the reason and the name of each thing in the portion that `read` makes no row of."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """What it took to get a sample. It is kept beside the shard and never determines it."""

    host: str
    tries: int = 1
    seconds: float = 0.0
    bytes: int = 0
    detail: str = ""
    ended: float = 0.0
    """Seconds since 1970; 0: when it is counted."""


@dataclass
class Incoming:
    """A sample to put into a pool: bytes to copy, bytes of a file that stays in place, or the location of its member in
    a tar that stays in place."""

    source_id: str
    name: str = ""
    """Member stem in the source; becomes the member's name in our tar when empty (then the key)."""
    ext: str = ""
    data: bytes | Reader | None = None
    offset: int | None = None
    size: int | None = None
    caption: str | None = None
    url: str | None = None
    source: str | None = None
    """Name of the folder that it comes from, if the source reads several."""
    meta: dict[str, Any] = field(default_factory=dict)
    reject: str | None = None
    """Reason why it is not alive."""
    status: Literal["unusable", "error"] | None = None
    """For a sample without a member, whose reason is `reject`: `error` may pass, so that `curate retry` tries again."""
    same_member: bool = False
    """Its member is that of the sample before it; `data` is then None."""
    fetch: Fetch | None = None


BAD_ROW = "bad_row"
ROW_REASONS = {BAD_ROW: "an error that no other reason names; meta has its `detail`"}
"""The reason of a row that its source, or the pool, could not make, with its meaning."""


def one_row(source_id: str, make: Callable[P, Incoming], *given: P.args, **more: P.kwargs) -> Incoming:
    """The sample that `make` returns. If it raises, the sample is rejected with a reason, and the others stay: each
    source makes all its samples here. Errors of the store and of the machine stay errors."""
    try:
        return make(*given, **more)
    except Reject as reject:
        return Incoming(source_id, reject=reject.reason, meta={"detail": reject.detail})
    except (CurateError, OSError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - the sample boundary
        return Incoming(source_id, reject=BAD_ROW, meta=detail_of(error))


def detail_of(error: Exception) -> dict[str, str]:
    """What `meta` has of an error: one line."""
    return {"detail": " ".join(f"{type(error).__name__}: {error}".split())[:DETAIL]}


class Source(Stage):
    unique_keys: ClassVar[bool] = False
    """Whether keys are unique across portions; otherwise the engine searches for repeats across shards."""
    repeatable: ClassVar[bool] = True
    """Whether a portion read again gives the same samples. Otherwise the first published shard wins, and rows in error
    can be retried: each retry is a generation."""
    limited: ClassVar[bool] = False
    """Whether `read` needs the run's limiter."""
    namespace: str
    """Part of every key: the same source id in another namespace is another sample. Also names a folder."""

    _plain_namespace = field_validator("namespace", check_fields=False)(plain_name)

    def plan(self) -> list[Portion]:
        """The data to read, divided into shards. Raises InputError if there is none. A source with ports is planned
        after `setup` with its artifacts, once they exist."""
        raise NotImplementedError

    def tar(self, portion: Portion) -> str | None:
        """URL of the existing tar of the portion's members, which stays in place; or of a folder (it ends in `/`) whose
        files stay in place, each at its sample's `source_id`; None if bytes are copied."""
        return None

    def origin(self, source_id: str) -> str | None:
        """URL of the file that a sample was copied from, if it is alone in it."""
        return None

    def read(self, portion: Portion) -> Iterator[Incoming]:
        raise NotImplementedError
