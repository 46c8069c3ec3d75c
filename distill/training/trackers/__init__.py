"""Trackers: where the lines of metrics.jsonl also go, a module each, which imports its library when it is opened."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from curate.core.errors import InputError

PACKAGES: dict[str, str] = {"wandb": "wandb", "mlflow": "mlflow-skinny", "trackio": "trackio"}
"""Name of a tracker, which is that of its module and of its library -> what to install."""
TENSORBOARD = "tensorboard"
PROJECT = "distill"
"""Project or experiment, unless the library's environment names one."""


@dataclass(frozen=True)
class Tracked:
    """What a tracker gets of a run when it starts or resumes."""

    folder: Path
    name: str
    fingerprint: str
    """Digest of recipe, datasets and teachers: a resumed run has the same."""
    recipe: Mapping[str, Any]
    inputs: Mapping[str, str]
    """URL of each dataset -> its fingerprint."""
    after_step: int
    """Steps beyond it are repeated."""

    @property
    def title(self) -> str:
        return f"{self.name}-{self.fingerprint[:12]}"

    @property
    def config(self) -> dict[str, Any]:
        return {"recipe": self.recipe, "fingerprint": self.fingerprint, "inputs": self.inputs}


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Logs:
    """A run of a library with `log` and `finish`."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def check(names: Sequence[str]) -> None:
    """Raises InputError for a library that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise InputError(f"run.trackers: {name} is not installed; pip install {PACKAGES[name]}, or remove it there")


def opened(names: Sequence[str], run: Tracked, say: Callable[[str], None]) -> list[Tracker]:
    """Raises InputError if a library cannot start, for example without a login. `say` reports one that fails later."""
    made: list[Tracker] = []
    for name in names:
        module = importlib.import_module(f"{__name__}.{name}")
        if name == TENSORBOARD:
            made.append(module.open_run(run))
            continue
        try:
            made.append(_Guarded(name, module.open_run(run), say))
        except Exception as error:  # any library, any error
            raise InputError(
                f"run.trackers: {name} cannot start ({_said(error)}); fix this, or remove it there"
            ) from error
    return made


class _Guarded:
    """A tracker that is left out once it fails: its server may be away, and metrics.jsonl has all values."""

    def __init__(self, name: str, tracker: Tracker, say: Callable[[str], None]) -> None:
        self._name, self._tracker, self._say = name, tracker, say
        self._failed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._tried(lambda: self._tracker.log(step, values))

    def close(self) -> None:
        self._tried(self._tracker.close)

    def _tried(self, work: Callable[[], None]) -> None:
        try:
            if not self._failed:
                work()
        except Exception as error:  # noqa: BLE001 - each library has its own errors
            self._failed = True
            self._say(f"{self._name} failed and gets no more metrics ({_said(error)}); metrics.jsonl has them")


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
