"""Stages that an admin registered by mistake: slow, hungry, noisy. Each acts when it is built."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from pydantic import BaseModel, field_validator

from curate.core.contracts import Batch, Map


class Inner(BaseModel):
    place: str = ""


class Odd(Map):
    """`act` says what happens when it is built."""

    op: ClassVar[str] = "odd"

    act: str
    note: str = ""
    more: dict[str, list[str]] = {}
    inner: Inner = Inner()
    folder: Path | None = None

    @field_validator("act")
    @classmethod
    def _acted(cls, value: str) -> str:
        kind, _, given = value.partition(" ")
        ACTS[kind](given)
        return value

    def schema(self) -> pa.Schema:
        return pa.schema([])

    def process(self, batch: Batch) -> dict[str, Any]:
        return {}


def _sleep(pipe: str) -> None:
    """With a child in the same process group, whose end shows that it was ended too: it holds the pipe open."""
    with Path(_file(pipe)).open("w") as held:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=held)
        time.sleep(600)


def _spin(_: str) -> None:
    while True:
        pass


def _eat(_: str) -> None:
    held = [bytearray(64 << 20) for _ in range(1000)]
    raise AssertionError(len(held))


def _write(name: str) -> None:
    Path(_file(name)).write_bytes(b"x")


def _tell(name: str) -> None:
    raise ValueError(f"{name}={os.environ.get(name)}")


def _talk(_: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.write("noise\n" * 10_000)
    raise ValueError("x" * 100_000)


def _file(name: str) -> str:
    return f"/{name.replace('!', '/')}"


ACTS = {
    "nothing": lambda _: None, "sleep": _sleep, "spin": _spin, "eat": _eat, "write": _write, "tell": _tell,
    "talk": _talk, "abort": lambda _: os.abort(), "exit": lambda _: os._exit(7),
}  # fmt: skip
