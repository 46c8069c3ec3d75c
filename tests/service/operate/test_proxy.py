"""infra/nginx.conf, tried: TLS, cookies, addresses of clients, event streams, bodies."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import uvicorn
from sqlalchemy import select, update

from curate.service.app import create_app
from curate.service.database.database import Database
from curate.service.database.models import AuditEntry, IndexedRun, Submission
from curate.service.service import Service
from curate.service.serving import configured, listening
from curate.service.settings import Settings
from tests.conftest import ROOT
from tests.service.people import People
from tests.service.people import people as made_people

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]
HOST = "curate.example.org"
CLIENT = "127.0.0.2"
"""Another address than that of the proxy."""


@dataclass(frozen=True)
class Site:
    service: Service
    people: People
    client: httpx2.Client
    """Speaks TLS with nginx."""
    plain: httpx2.Client
    """Speaks HTTP with nginx."""


@pytest.fixture
def site(sqlite: Database, tmp_path: Path) -> Iterator[Site]:
    """The service, with nginx in front of it."""
    http, https = _free_ports(2)
    settings = Settings(database=str(sqlite.url), url=f"https://{HOST}:{https}", proxies=("127.0.0.1",))
    service, bound = Service.of(settings), listening("127.0.0.1", 0)
    people = made_people(service, str(tmp_path / "workspace"))
    server = uvicorn.Server(configured(service, create_app(service, reconcile=False), lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        with _nginx(tmp_path, bound.getsockname()[1], http, https) as certificate:
            context = ssl.create_default_context(cafile=str(certificate))
            local = httpx2.HTTPTransport(verify=context, local_address=CLIENT)
            headers = {"Host": f"{HOST}:{https}"}
            with (
                httpx2.Client(transport=local, base_url=f"https://127.0.0.1:{https}", headers=headers) as client,
                httpx2.Client(base_url=f"http://127.0.0.1:{http}", headers={"Host": HOST}) as plain,
            ):
                yield Site(service, people, client, plain)
    finally:
        server.should_exit = True
        thread.join(60)
        service.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _nginx(folder: Path, service: int, http: int, https: int) -> Iterator[Path]:
    """Run the configuration with other ports and a new certificate, whose file it yields."""
    key, certificate = folder / "curate.key", folder / "curate.crt"
    subject = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST},IP:127.0.0.1"]
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*words, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    text = (ROOT / "infra" / "nginx.conf").read_text()
    replaced = {
        "127.0.0.1:8080": f"127.0.0.1:{service}",
        "listen 80;": f"listen 127.0.0.1:{http};",
        "listen 443 ": f"listen 127.0.0.1:{https} ",
        "/etc/ssl/curate.crt": str(certificate),
        "/etc/ssl/private/curate.key": str(key),
    }
    for old, new in replaced.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "site.conf").write_text(text)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {paths} include {folder}/site.conf; }}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", folder / "nginx.conf", "-e", folder / "error.log"])
    try:
        _wait(https, process, folder / "error.log")
        yield certificate
    finally:
        process.terminate()
        process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"nginx did not start: {log.read_text()}")


def test_http_leads_to_https(site: Site) -> None:
    answer = site.plain.get("/runs?state=done")
    assert (answer.status_code, answer.headers["location"]) == (301, f"https://{HOST}/runs?state=done")


def test_a_browser_logs_in_with_a_cookie_for_tls_only(site: Site) -> None:
    origin = site.service.settings.url
    form = {"token": site.people.viewer.token}
    answer = site.client.post("/login", data=form, headers={"Origin": origin})
    assert answer.status_code == 303, answer.text
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("__host-curate_session=") and "; path=/" in cookie and "; domain" not in cookie
    assert "; secure" in cookie and "; httponly" in cookie and "samesite=strict" in cookie
    assert "strict-transport-security" in answer.headers
    assert site.client.get("/runs").status_code == 200
    value = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
    site.client.cookies.clear()
    planted = {"Cookie": f"curate_session={value}"}
    assert site.client.get("/api/v1/me", headers=planted).status_code == 401, "another host may have set it"
    elsewhere = site.client.post("/login", data=form, headers={"Origin": "https://elsewhere.example.org"})
    assert elsewhere.status_code == 403


def test_the_address_of_a_client_is_what_nginx_saw(site: Site) -> None:
    forged = {"Authorization": "Bearer cur_00000000_x", "X-Forwarded-For": "6.6.6.6, 127.0.0.1"}
    assert site.client.get("/api/v1/me", headers=forged).status_code == 401
    with site.service.database.read() as session:
        targets = list(session.scalars(select(AuditEntry.target).where(AuditEntry.action == "login")))
    assert targets == [CLIENT]


def test_a_body_that_is_too_large_gets_a_problem(site: Site) -> None:
    size = site.service.settings.limits.body_bytes
    for body in [b"x" * (size + 1)] * 20 + [iter([b"x" * size, b"x" * 2])]:  # nginx may still be sending
        answer = site.client.post("/api/v1/runs", content=body, headers=site.people.operator.headers)
        assert answer.status_code == 413 and answer.json()["code"] == "too_large"
    assert site.client.post("/api/v1/runs", content=b"x" * 3_000_000).status_code == 413  # by nginx itself


def test_events_arrive_as_they_happen(site: Site) -> None:
    people = site.people
    about = {"workspace_id": people.workspace.id, "id": "r1", "state": "queued"}
    with site.service.database.write() as session:
        session.add(
            Submission(
                **about, target_id=people.target.id, user_id=people.operator.principal.user_id, recipe="{}",
                resolved="{}", created=1.0, since=1.0, queued=1.0,
            )
        )  # fmt: skip
        session.add(IndexedRun(**about, attempt_id="r1-1", submitted=True, started=1.0))
    headers = {**people.viewer.headers, "Accept": "text/event-stream"}
    with site.client.stream("GET", "/api/v1/runs/r1/events", headers=headers, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(line for line in lines if '"queued"' in line)  # nothing else has happened yet
        with site.service.database.write() as session:
            session.execute(update(Submission).values(state="stopped", version=2))
            session.execute(update(IndexedRun).values(state="stopped"))
        assert next(line for line in lines if '"stopped"' in line)


def test_metrics_are_not_for_the_outside(site: Site) -> None:
    assert site.client.get("/metrics", headers=site.people.admin.headers).status_code == 404
    assert site.client.get("/healthz").status_code == 200


def test_a_length_beside_chunks_never_reaches_the_service(site: Site) -> None:
    """The two could read the end of the request differently."""
    port = site.client.base_url.port
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30)) as connection:
        lines = ["POST /login HTTP/1.1", f"Host: {HOST}:{port}", "Content-Length: 5", "Transfer-Encoding: chunked"]
        hidden = f"GET /healthz HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n"
        connection.sendall("\r\n".join([*lines, "", "0", "", hidden]).encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
    assert b"nginx" in answer
