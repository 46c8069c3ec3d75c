"""What all contracts have in common.

A stage is a frozen pydantic model. Its fields are its parameters; the constructor only stores them. A parameter is
semantic (it enters the fingerprint), `Runtime` (threads, batch size, paths: never in it) or a `Secret` (a reference to
a value that only the process which needs it reads). A stage knows nothing of Ray, paths, retries or progress: the
engine hands it tables and takes tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from curate.core.recipe.secrets import Secret, holds_secret, is_secret, references

Table: TypeAlias = pa.Table
Artifact: TypeAlias = Mapping[str, Any]  # name -> pa.Table | np.ndarray | JSON-able dict or list

PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What may become part of a path in the workspace: namespaces, run ids."""


def plain_name(value: str) -> str:
    """The name, if it may name a folder. Raises ValueError."""
    if not PLAIN_NAME.fullmatch(value):
        raise ValueError("expected letters, digits, . - and _, and a letter or digit first; it names a folder")
    return value


class Runtime:
    """Marks a parameter that changes speed or place, never the result: `threads: Annotated[int, Runtime()] = 2`."""


@dataclass(frozen=True)
class Resources:
    """What one task of a stage holds while it runs. The engine turns it into its scheduler's terms."""

    cpus: float = 1
    gpus: float = 0
    memory_bytes: int = 0
    remote: bool = False
    """It waits for an endpoint: many of its units fit on one CPU."""

    @property
    def lane(self) -> str:
        """The pool of workers that it runs in: `gpu`, `remote` or `cpu`."""
        return "gpu" if self.gpus else "remote" if self.remote else "cpu"


class Stage(BaseModel):
    """Common to all contracts. `op` names the stage in recipes; `version` rises when its output changes."""

    # a secret given in place of its reference must not be in pydantic's message
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    op: ClassVar[str] = ""
    version: ClassVar[int] = 1
    ports: ClassVar[dict[str, str]] = {}
    """Named inputs besides `from`: port -> kind of artifact (what a Reduce calls its `kind`)."""
    optional_ports: ClassVar[tuple[str, ...]] = ()
    """Ports that a recipe may leave out; `setup` then finds nothing under their names."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name, info in cls.model_fields.items():
            alone = is_secret(info.annotation) and not isinstance(info.default, str)
            secret = holds_secret(info.annotation) or Secret in info.metadata
            assert alone or not secret, f"{cls.__name__}.{name}: write `{name}: Secret` or `{name}: Secret | None`"

    @field_validator("*", check_fields=False)
    @classmethod
    def _no_secret_in_the_fingerprint(cls, value: Any, info: ValidationInfo) -> Any:
        for reference in references(value) if is_semantic(cls.model_fields[str(info.field_name)]) else ():
            rule = "would enter the fingerprint; only parameters of type Secret take a reference"
            raise PydanticCustomError("secret_reference", f"{reference} {rule}")
        return value

    def parameters(self) -> dict[str, Any]:
        """The semantic parameters, JSON-able: what enters the fingerprint."""
        hidden = {name for name, info in type(self).model_fields.items() if not is_semantic(info)}
        return json.loads(self.model_dump_json(exclude=hidden))

    def identity(self) -> dict[str, Any]:
        """What else decides the output: weight digests, preprocessing, precision. Called on the driver; cheap."""
        return {}

    def resources(self) -> Resources:
        return Resources(cpus=getattr(self, "threads", 1))

    def placed(self, gpus: bool) -> Self:
        """The same stage with its device settled, once the engine knows whether its workers have GPUs: one choice for
        the whole run. What comes out must not depend on it, but for the last bits that `hardware` tells of."""
        return self

    def scaled(self, fraction: float) -> Self:
        """The same stage for a canary run on `fraction` of the pool: absolute targets shrink with it."""
        return self

    def preflight(self) -> list[str]:
        """Problems that would stop this stage later, a line each: missing weights, folders. Runs on the submitting
        machine, which need not have the secrets: the engine checks those where the stage will run."""
        return []

    def setup(self, artifacts: Mapping[str, Artifact]) -> None:
        """Load what the work needs, once per process; `artifacts` by port. Keep it in pydantic private attributes."""

    def secrets(self) -> dict[str, Secret]:
        """Secret parameters by name."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, Secret)}


def kind_of(info: Any) -> str:
    """`semantic`, `runtime` or `secret`: what a parameter's field says it is."""
    if is_secret(info.annotation):
        return "secret"
    return "runtime" if is_runtime(info.metadata) else "semantic"


def is_semantic(info: Any) -> bool:
    return kind_of(info) == "semantic"


def is_runtime(metadata: Iterable[Any]) -> bool:
    """Whether a field's metadata marks it as a runtime parameter."""
    return any(isinstance(item, Runtime) or item is Runtime for item in metadata)
