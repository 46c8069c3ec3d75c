"""Ray's job server: what starts a detached run. Every answer comes within seconds, or not at all in one line."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

from curate.core.errors import CurateError

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 6.0
"""Ray itself waits for minutes."""
SUBMIT_SECONDS = 60.0
ADVICE = "check it with `ray status`, or give the dashboard's address, http://HOST:8265"
T = TypeVar("T")


class Jobs:
    """The jobs of the cluster at an address: auto (this machine's), host:port of its GCS, or http://… of its dashboard.
    Raises CurateError where no job server answers."""

    def __init__(self, address: str | None) -> None:
        self.address = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "auto"
        if self.address.startswith("ray://"):
            raise CurateError(f"--address {self.address}: serves no jobs; give the dashboard's, http://HOST:8265")
        if ":" in self.address:
            self._reach(self.address)
        self._client = self._within(ANSWER_SECONDS, self._connected)

    def known(self, name: str) -> bool:
        """Whether the cluster has a job of this name."""
        return self._within(ANSWER_SECONDS, lambda: self._info(name)) is not None

    def ended(self, name: str) -> str | None:
        """How a job has ended, in a line; None while it has not. A job that the cluster does not know has ended."""
        found = self._within(ANSWER_SECONDS, lambda: self._info(name))
        if found is None:
            return "the cluster knows no such job"
        if not found.status.is_terminal():
            return None
        lines = [line.strip() for line in str(found.message or "").splitlines() if line.strip()]
        return f"{found.status.value.lower()}" + (f" ({lines[-1][:200]})" if lines else "")

    def _info(self, name: str) -> Any:
        try:
            return self._client.get_job_info(name)
        except RuntimeError as error:  # of any status
            if "404" not in str(error):
                raise
            return None

    def submit(self, name: str, entrypoint: str, environment: dict[str, str]) -> None:
        """Start a job. No files go with it: the cluster has the package, the workspace everything else."""
        about: dict[str, Any] = {"submission_id": name, "runtime_env": {"env_vars": environment}}
        self._within(SUBMIT_SECONDS, lambda: self._client.submit_job(entrypoint=entrypoint, **about))

    def _connected(self) -> Any:
        from curate.engine.backends.ray import job_client

        return job_client(self.address)

    def _reach(self, address: str) -> None:
        found = urlsplit(address if "://" in address else f"//{address}")
        try:
            port = found.port or (443 if found.scheme == "https" else 80)
            socket.create_connection((found.hostname or "", port), CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            raise self._silent(error) from None

    def _within(self, seconds: float, ask: Callable[[], T]) -> T:
        """An answer, or CurateError after so many seconds; the thread that waits for one is left behind."""
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - Ray's client raises anything, SystemExit too
                future.set_exception(error)

        threading.Thread(target=answer, daemon=True).start()
        try:
            return future.result(seconds)
        except TimeoutError:
            raise self._silent(f"nothing within {seconds:g} s") from None
        except BaseException as error:  # Ray's client raises anything; what is no answer is said in one line
            if isinstance(error, KeyboardInterrupt):
                raise
            raise self._silent(error) from None

    def _silent(self, why: object) -> CurateError:
        text = " ".join(str(why).split())[:200]
        return CurateError(f"--address {self.address}: no job server of Ray answers there ({text}); {ADVICE}")
