from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from pipelines.serve import ImageServer, listening, parse


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageServer]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "images/a b").mkdir(parents=True)
    (folder / "secret.txt").write_text("secret")
    (folder / "images/a b/ü.png").write_bytes(b"png")
    with ImageServer(
        folder / "images", mounted={"big.jpg": bytes(1 << 20)}, addresses=["127.0.0.1", "127.0.0.2"]
    ) as made:
        yield made


def test_a_file_by_its_name(server: ImageServer) -> None:
    with urlopen(server.url("a b/ü.png")) as response:
        assert response.read() == b"png"
        assert response.headers["Content-Type"] == "image/png"


def test_all_addresses_have_the_same_port(server: ImageServer) -> None:
    with urlopen(server.url("big.jpg", "127.0.0.2")) as response:
        assert len(response.read()) == 1 << 20
    assert server.origin("::1") == f"http://[::1]:{server.port}"  # in brackets


def test_a_connection_serves_many_requests(server: ImageServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for method, size in (("GET", 1 << 20), ("HEAD", 0), ("GET", 1 << 20)):
        connection.request(method, "/images/big.jpg")
        response = connection.getresponse()
        assert response.headers["Content-Length"] == str(1 << 20)
        assert len(response.read()) == size
        kept = connection.sock
        assert kept is not None
    connection.request("GET", "/images/big.jpg", headers={"Connection": "close"})
    assert len(connection.getresponse().read()) == 1 << 20
    assert kept.recv(1) == b""
    connection.close()


@pytest.mark.parametrize(
    "path",
    ["/", "/images/", "/images/none.png", "/images/../secret.txt", "/images/%2e%2e/secret.txt", "/images//etc/passwd"],
)
def test_nothing_else_is_served(server: ImageServer, path: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(server.origin() + path)
    with caught.value as error:
        assert error.code == 404


def test_invalid_requests(server: ImageServer) -> None:
    for text, answer in ((b"POST /images/big.jpg HTTP/1.1", b"405"), (b"nonsense", b"400")):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(text + b"\r\n\r\n")
            assert client.recv(1000).split()[1] == answer


def test_the_host_of_a_request() -> None:
    heads = {"a.example": "a.example", "a.example:80": "a.example", "[::1]:80": "[::1]", "[::1]": "[::1]"}
    assert {host: parse(f"GET / HTTP/1.1\r\nHost: {host}").host for host in heads} == heads


def test_only_loopback_is_served() -> None:
    with pytest.raises(ValueError, match=r"0\.0\.0\.0: not a loopback address"):
        ImageServer(addresses=["0.0.0.0"])


def test_a_port_that_is_taken() -> None:
    (taken,) = listening(["127.0.0.1"])
    port = taken.getsockname()[1]
    with taken, pytest.raises(OSError, match=f"cannot listen on port {port} of 127.0.0.1"), ImageServer(port=port):
        pass


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    command = [sys.executable, "-m", "pipelines.serve", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urlopen(url + "a.png") as response:
            assert response.read() == b"png"
        process.terminate()
    assert process.returncode == 0
