"""`transformers serve` with a tiny random vision-language model, in separate processes.

with started(folder) as real:
    real.endpoint     # its answers are nonsense
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from curate.core.endpoints import Endpoint
from pipelines import tiny_vlm


@dataclass(frozen=True)
class RealServer:
    base_url: str
    model: str

    @property
    def url(self) -> str:
        return f"{self.base_url}/chat/completions"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(base_urls=(self.base_url,), model=self.model)


def model(folder: Path) -> Path:
    """Folder of the model, which is made there unless the same one exists already."""
    place = folder / sha256(Path(tiny_vlm.__file__).read_bytes()).hexdigest()[:12]
    if not place.exists():  # a separate process, because it imports torch and transformers
        subprocess.run([sys.executable, "-m", tiny_vlm.__name__, str(place)], check=True, stdout=subprocess.DEVNULL)
    return place


def launched(place: Path, startup_seconds: float = 240.0) -> Endpoint:
    """An endpoint whose server is to be launched."""
    launch = {"server": "transformers", "gpus": 0, "arguments": ["--dtype", "float32"]}
    return Endpoint.model_validate({"model": str(place), "launch": launch | {"startup_seconds": startup_seconds}})


@contextmanager
def started(folder: Path) -> Iterator[RealServer]:
    """The server, and the model in `folder`."""
    place = model(folder)
    command = [sys.executable, "-m", "tests.servers.transformers_server", str(place)]
    with (
        TemporaryDirectory() as aside,  # other test runs have separate servers
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": aside, "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        base_url = process.stdout.readline().strip()
        assert base_url, "transformers serve did not start (see above)"
        yield RealServer(base_url, str(place))
        process.stdin.close()


def main() -> None:
    from curate.engine import servers

    server = servers.join("tests", launched(Path(sys.argv[1])))
    print(asyncio.run(server.base_url()), flush=True)  # noqa: T201 - the parent process reads it
    sys.stdin.read()  # until it closes our input
    server.end()


if __name__ == "__main__":
    main()
