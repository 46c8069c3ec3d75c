"""Releases on Azure's and Google's object stores, through their emulators. Not collected, because no lock has these:

npm install --prefix PLACE azurite
uv pip install --python PYTHON adlfs gcsfs gcp-storage-emulator       # beside this project's packages
AZURITE=PLACE/node_modules/.bin/azurite-blob PYTHON -m pytest tests/interop/object_stores.py
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import fsspec
import pytest

from curate.acquire.lists.list import AcquireList
from curate.api import Workspace
from curate.core.errors import AlreadyExistsError
from curate.core.store.storage import open_storage
from curate.release.read import open_release
from tests.engine import toys

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's account, which is in its documentation."""
pytestmark = pytest.mark.filterwarnings("default")


@contextmanager
def serving(*command: str, port: int) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while True:
                with closing(socket.socket()) as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                assert process.poll() is None and time.monotonic() < until, f"{command[0]} did not start"
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(params=["az", "gs"], scope="module")
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a bucket, on one server each: fsspec keeps its connections."""
    with pytest.MonkeyPatch.context() as patch, emulated(request.param, patch) as url:
        yield url


@contextmanager
def emulated(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    port = free_port()
    if kind == "az":
        endpoint = f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{endpoint}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        options = ("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry")
        with serving(os.environ["AZURITE"], "--blobPort", str(port), *options, port=port):
            fsspec.filesystem("az").mkdir("photos")
            yield "az://photos"
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        program = str(Path(sys.executable).with_name("gcp-storage-emulator"))
        options = ("--host=127.0.0.1", f"--port={port}", "--in-memory", "--default-bucket=photos")
        with serving(program, "start", *options, port=port):
            yield "gs://photos"


def test_a_release_is_written_and_read(bucket: str, tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path / "workspace"))
    workspace.submit(toys.pipeline()).wait()
    made = workspace.release("toys", f"{bucket}/v1")
    found = open_release(f"{bucket}/v1")
    found.verify()
    found.check()
    assert len(found.keys()) == made["rows"] == 9
    listed = AcquireList(path=f"{bucket}/v1/data", columns={"url": "key"})
    assert sum(table.num_rows for portion in listed.plan() for table in listed.read(portion)) == 9


def test_a_name_is_taken_once(bucket: str) -> None:
    """What workspaces need. Google's emulator ignores the condition of a write."""
    if bucket.startswith("gs:"):
        pytest.xfail("the emulator knows no conditions")
    storage = open_storage(f"{bucket}/place")
    storage.create("a.txt", b"first")
    with pytest.raises(AlreadyExistsError):
        storage.create("a.txt", b"second")
    assert storage.read("a.txt") == b"first"
