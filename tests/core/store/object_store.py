"""An object store for tests: moto's server on loopback, started once per test run (fixture `object_store_server`)."""

from __future__ import annotations

import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
import s3fs
from moto import backends
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

from curate.core.store.storage import open_storage

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def started() -> Iterator[str]:
    """URL of a server that runs during the block."""
    modules = tuple(backends.list_of_moto_modules())
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        # it searches some hundred folders for each request
        patch.setattr(backends, "list_of_moto_modules", lambda: iter(modules))
        patch.setattr(S3Response, "_key_response", _one_at_a_time(S3Response._key_response))
        yield f"http://{host}:{port}"
    server.stop()


@contextmanager
def used(server: str) -> Iterator[Any]:
    """A boto3 client of the server. In the block, the environment directs all clients to it; afterwards, all buckets
    are deleted."""
    forget_connections()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server}.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        yield client
        client.close()
    forget_connections()
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()


def forget_connections() -> None:
    open_storage.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()


def _one_at_a_time(answer: Any) -> Any:
    """`If-None-Match: *` is atomic on S3, but moto checks before it writes, and another thread may write in between."""
    lock = threading.Lock()

    def wait(*arguments: Any) -> Any:
        with lock:
            return answer(*arguments)

    return wait


def new_bucket(client: Any) -> str:
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    client.create_bucket(Bucket=name)
    return name
