"""Base of all contracts.

A stage is a frozen pydantic model. Its fields are its parameters, which the constructor only stores. A parameter is
semantic (part of the fingerprint), `Runtime` (threads, batch size, paths: never part of it) or a `Secret` (a reference
to a value that is read only by the process that needs it). A stage does not depend on Ray, paths, retries or progress:
it gets tables from the engine and returns tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from curate.core.secrets import Secret, holds_secret, is_secret, references

if TYPE_CHECKING:
    from curate.core.endpoints import Endpoint

T = TypeVar("T")
Table: TypeAlias = pa.Table
Artifact: TypeAlias = Mapping[str, Any]  # name -> pa.Table | np.ndarray | JSON-able dict or list

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names that may be part of a path in the workspace: namespaces, run ids."""


def plain_name(value: str) -> str:
    """The name, if it is valid for a folder. Raises ValueError otherwise."""
    if not PLAIN_NAME.fullmatch(value):
        raise ValueError("expected letters, digits, . - and _, and a letter or digit first; it names a folder")
    return value


class Runtime:
    """Marks a parameter that affects speed or place, never the result: `threads: Annotated[int, Runtime()] = 2`."""


class Added:
    """Marks a parameter that was added to an existing stage or recipe. At its default it does not enter the
    fingerprint, so that outputs from before it stay valid."""


@dataclass(frozen=True)
class Location:
    """Marks a parameter whose text leads to something outside of the recipe: `path: Annotated[str, Location()]`. The
    service admits only what an admin has registered, so a parameter without the mark must not be opened or connected
    to. It never enters the fingerprint.

    path: a file, folder, pattern or URL that the stage reads, or several; file: one that must come from a person who is
    trusted, such as a model's; endpoints: a file of endpoints; prompt: a file; encoder: where weights come from; proxy:
    an address to connect to; network: addresses that may be reached.
    """

    kind: Literal["path", "file", "endpoints", "prompt", "encoder", "proxy", "network"] = "path"
    included: Callable[[str], bool] | None = None
    """Whether a text only names something that the package includes or vouches for."""


@dataclass(frozen=True)
class Resources:
    """Resources of a task of the stage while it runs. The engine translates them for its scheduler."""

    cpus: float = 1
    gpus: float = 0
    memory_bytes: int = 0
    remote: bool = False
    """It mostly waits for an endpoint, so that many of its units fit on one CPU."""

    @property
    def lane(self) -> str:
        """The pool of workers to run in: `gpu`, `remote` or `cpu`."""
        return "gpu" if self.gpus else "remote" if self.remote else "cpu"


class Stage(BaseModel):
    """Base of all contracts. `op` names the stage in recipes; increase `version` when its output changes."""

    # keep a secret given instead of its reference out of pydantic's messages
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    op: ClassVar[str] = ""
    version: ClassVar[int] = 1
    sees: ClassVar[tuple[str, ...]] = ("image",)
    """Names of the media (curate.codec.media) that it opens, if it opens samples. Samples of other media are unusable
    for it, and a pool without any of these is an error."""
    earlier: ClassVar[dict[str, Any]] = {}
    """Parameters and defaults of earlier versions: the values that mean what the stage does now if nothing else is
    given. They stay in the fingerprint, so that outputs from before stay valid."""
    ports: ClassVar[dict[str, str]] = {}
    """Named inputs in addition to `from`: port -> `kind` of the artifact."""
    optional_ports: ClassVar[tuple[str, ...]] = ()
    """Ports that a recipe may leave out; `setup` then gets no artifact under their names."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name, info in cls.model_fields.items():
            alone = is_secret(info.annotation) and not isinstance(info.default, str)
            secret = holds_secret(info.annotation) or Secret in info.metadata
            listed = is_runtime(info.metadata) and cls.secrets is not Stage.secrets
            assert alone or not secret or listed, (
                f"{cls.__name__}.{name}: write `{name}: Secret` or `{name}: Secret | None`"
            )

    @field_validator("*", check_fields=False)
    @classmethod
    def _no_secret_in_the_fingerprint(cls, value: Any, info: ValidationInfo) -> Any:
        for reference in references(value) if is_semantic(cls.model_fields[str(info.field_name)]) else ():
            rule = "would enter the fingerprint; only parameters of type Secret take a reference"
            raise PydanticCustomError("secret_reference", f"{reference} {rule}")
        return value

    def parameters(self) -> dict[str, Any]:
        """The semantic parameters, JSON-able, which enter the fingerprint."""
        fields = type(self).model_fields.items()
        hidden = {name for name, info in fields if not is_semantic(info) or is_as_before(info, getattr(self, name))}
        return {**self.earlier, **json.loads(self.model_dump_json(exclude=hidden))}

    def reads(self) -> tuple[str, ...]:
        """Columns of the pool's table or of upstream stages that it needs; `key` is always there."""
        return ()

    def schema(self) -> pa.Schema:  # type: ignore[override]  # pydantic's own is deprecated
        """Names and types of the columns that it writes; only a Map writes any."""
        return pa.schema([])

    def check_columns(self, columns: pa.Schema) -> None:
        """Raise CurateError if it cannot work with these columns. Called before anything runs, with all columns that
        reach it; the type `pa.null()` is not known yet."""

    def check_ports(self, given: Mapping[str, str]) -> None:
        """Raise CurateError if the given ports, with the stages that they name, do not fit the parameters."""

    def asks(self) -> Mapping[str, Endpoint]:
        """The endpoints that it asks, by name."""
        return {}

    def places(self) -> str | None:
        """The list column whose items it judges; None for a stage that judges rows, or nothing."""
        return None

    def target_rows(self) -> int | None:
        """Number of rows that it selects, copies included, so that an impossible run fails before it computes anything;
        None if it has no target."""
        return None

    def identity(self) -> dict[str, Any]:
        """Other values that determine the output: digests of weights, preprocessing, precision. Called on the driver;
        must be cheap."""
        return {}

    def resources(self) -> Resources:
        return Resources(cpus=getattr(self, "threads", 1))

    def placed(self, gpus: bool) -> Self:
        """The same stage with its device chosen for the whole run, once the engine knows whether workers have GPUs.
        Results must not depend on it, except for the last bits recorded by `hardware`."""
        return self

    def scaled(self, fraction: float) -> Self:
        """The same stage for a canary run on a `fraction` of the pool, with absolute targets scaled down."""
        return self

    def pace(self, cpus: int, gpu: bool) -> tuple[float, str] | None:
        """(rows per second on so many CPUs, perhaps with GPUs, what would be faster), if it is known before any row was
        computed."""
        return None

    def meta_fields(self) -> tuple[str, ...]:
        """The fields of `meta` (`meta.label`) that the recipe names, perhaps among columns: the run checks that there
        are rows with them."""
        return ()

    def preflight(self) -> list[str]:
        """Problems that would stop the stage later, one line each: missing weights or folders. Runs on the submitting
        machine, which need not have the secrets; the engine checks those on the machines that run the stage."""
        return []

    def preflight_on_worker(self) -> list[str]:
        """The same, for what every worker needs: called in one worker before anything runs."""
        return []

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Load models and data, once per process, into pydantic private attributes; `artifacts` by port."""

    def secrets(self) -> dict[str, Secret]:
        """Secret parameters by name."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, Secret)}


def by_contract(table: Mapping[type, T], stage: Stage) -> T:
    """The entry of a stage's contract. If that contract extends another, its own entry comes first."""
    return next(table[contract] for contract in type(stage).__mro__ if contract in table)


def trait(stage: Stage, name: str) -> Any:
    """A class variable that some contracts have: the `kind` of an artifact, `pixels`, `costly`. None for a stage
    without it, also if a parameter has this name."""
    return getattr(type(stage), name, None)


def kind_of(info: Any) -> str:
    """The kind of a parameter, by its field: `semantic`, `runtime` or `secret`."""
    if is_secret(info.annotation):
        return "secret"
    return "runtime" if is_runtime(info.metadata) else "semantic"


def is_semantic(info: Any) -> bool:
    return kind_of(info) == "semantic"


def is_as_before(info: Any, value: Any) -> bool:
    """Whether a field was added to an existing model and has its default value."""
    added = any(isinstance(item, Added) for item in info.metadata)
    return added and bool(value == info.get_default(call_default_factory=True))


def is_runtime(metadata: Iterable[Any]) -> bool:
    """Whether the metadata of a field marks a runtime parameter."""
    return any(isinstance(item, Runtime) or item is Runtime for item in metadata)
