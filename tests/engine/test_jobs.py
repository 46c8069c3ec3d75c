"""The client of Ray's job server, against a server that answers as Ray 2.60 does; `test_detach` has a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from curate.api import ClusterResources, JobServer, stop_environment
from curate.core.errors import CurateError, PreflightError, RunExistsError, UnreachableError

TOKEN = "a-secret-token"
Answer = Callable[["Handler"], tuple[int, Any]]


class Cluster(ThreadingHTTPServer):
    """Jobs as Ray keeps them. `answers`: (method, path) -> answer, before all others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.answers: dict[tuple[str, str], Answer] = {}
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not an error."""


class Handler(BaseHTTPRequestHandler):
    server: Cluster

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET", b"")

    def do_POST(self) -> None:
        self._answer("POST", self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _answer(self, method: str, body: bytes) -> None:
        self.body = json.loads(body or b"null")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, value = 401, "Unauthorized: Missing authentication token"
        else:
            status, value = self.server.answers.get((method, self.path), _as_ray)(self)
        text = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _as_ray(request: Handler) -> tuple[int, Any]:
    jobs, words = request.server.jobs, request.path.strip("/").split("/")
    if request.path == "/api/version":
        return 200, {"version": "4", "ray_version": "2.60.0"}
    if request.command == "POST" and request.path == "/api/jobs/":
        name = request.body["submission_id"]
        if name in jobs:
            return 500, f"Traceback\nValueError: Job with submission_id {name} already exists.\n."
        jobs[name] = request.body | {"status": "PENDING", "message": "", "driver_exit_code": None}
        return 200, {"submission_id": name}
    if words[:2] == ["api", "jobs"] and words[2] in jobs:
        if words[3:] == ["stop"]:
            return 200, {"stopped": jobs[words[2]]["status"] == "RUNNING"}
        return 200, {"logs": "hello"} if words[3:] == ["logs"] else jobs[words[2]]
    return 404, "Job does not exist"


@pytest.fixture(scope="module")
def server() -> Iterator[Cluster]:
    with Cluster() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    server.jobs, server.answers = {}, {}
    return server


@pytest.fixture
def jobs(cluster: Cluster) -> Iterator[JobServer]:
    made = JobServer(cluster.url + "/", TOKEN)
    yield made
    made.close()


def test_a_job_is_submitted_once(cluster: Cluster, jobs: JobServer) -> None:
    assert jobs.version() == "2.60.0" and jobs.info("one") is None and jobs.log("one") is None
    for _ in range(2):
        jobs.submit("one", "curate run", stop_environment(120), {"run": "o"})
    found = jobs.info("one")
    assert found and (found.status, found.ended, found.entrypoint) == ("pending", False, "curate run")
    assert cluster.jobs["one"]["runtime_env"] == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}}
    assert cluster.jobs["one"]["metadata"] == {"run": "o"} and jobs.log("one") == "hello"
    with pytest.raises(RunExistsError, match=r"one: http.* has another job of this name; choose another id"):
        jobs.submit("one", "rm -rf /")


@pytest.mark.parametrize("answer", ["taken", "lost"])
def test_a_submission_whose_answer_is_lost_counts(cluster: Cluster, jobs: JobServer, answer: str) -> None:
    """Another replica was faster, or the cluster took the job and its answer did not arrive."""

    def submitted(request: Handler) -> tuple[int, Any]:
        cluster.jobs["one"] = request.body | {"status": "RUNNING", "message": "", "driver_exit_code": None}
        if answer == "lost":
            request.connection.close()
        return _as_ray(request)

    cluster.answers["POST", "/api/jobs/"] = submitted
    jobs.submit("one", "curate run")
    assert list(cluster.jobs) == ["one"]


def test_how_a_job_ended(cluster: Cluster, jobs: JobServer) -> None:
    message = "Job entrypoint command failed\n\nsh: curate: not found\n"
    cluster.jobs["over"] = {"status": "FAILED", "message": message, "driver_exit_code": 127}
    cluster.jobs["runs"] = {"status": "RUNNING", "message": None}
    over, runs = jobs.info("over"), jobs.info("runs")
    assert over and (over.ended, over.last_line, over.driver_exit_code) == (True, "sh: curate: not found", 127)
    assert runs and not runs.ended and runs.last_line == ""
    assert [jobs.stop(name) for name in ("runs", "over", "none")] == [True, False, False]


def test_resources_of_both_autoscalers(cluster: Cluster, jobs: JobServer) -> None:
    usage = {"a": {"CPU": [1.5, 4.0], "memory": [0.0, 9.0]}, "b": {"CPU": [0.0, 8.0], "GPU": [1.0, 2.0]}}
    report = {"data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": usage}}}}
    cluster.answers["GET", "/api/cluster_status"] = lambda _: (200, report)
    assert jobs.resources() == ClusterResources(2, 12.0, 2.0, 10.5, 1.0)

    def node(name: str, state: str = "ALIVE") -> dict[str, Any]:
        return {"raylet": {"nodeId": name, "state": state, "resourcesTotal": {"CPU": 8.0, "GPU": 2.0}}}

    told = {"a": "1.5/8.0 CPU (0.5 used of 1.0 reserved in placement groups)\n1.0/2.0 GPU\n0B/9GiB memory"}
    summary = {"summary": [node("a"), node("b"), node("c", "DEAD")], "nodeLogicalResources": told}
    cluster.answers["GET", "/api/cluster_status"] = lambda _: (200, {"data": {"clusterStatus": None}})
    cluster.answers["GET", "/nodes?view=summary"] = lambda _: (200, {"data": summary})
    assert jobs.resources() == ClusterResources(2, 16.0, 4.0, 14.0, 3.0)


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_token_that_the_cluster_rejects(cluster: Cluster, token: str) -> None:
    with pytest.raises(
        PreflightError, match="the token is missing or wrong; check the token of this cluster"
    ) as raised:
        JobServer(cluster.url, token).version()
    assert not token or token not in str(raised.value).replace("is missing or wrong", "")
    with pytest.raises(PreflightError, match="not ASCII") as raised:
        JobServer(cluster.url, "gehe\N{LATIN SMALL LETTER I WITH DIAERESIS}m")
    assert "gehe" not in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((200, "<html>"), "not from a Ray job server"),
        ((200, "[1]"), "not from a Ray job server"),
        ((200, "{}"), "it has no ray_version"),
        ((500, "Traceback\nOSError: broken\n."), r"failed with status 500 \(OSError: broken\)"),
        ((302, ""), "failed with status 302"),
    ],
)
def test_answers_of_something_else(cluster: Cluster, jobs: JobServer, answer: tuple[int, str], text: str) -> None:
    cluster.answers["GET", "/api/version"] = lambda _: answer
    with pytest.raises(CurateError, match=text):
        jobs.version()


def test_a_server_that_does_not_answer_in_time(cluster: Cluster) -> None:
    """Also one that answers byte by byte, or without an end: neither ends by itself."""
    impatient, over = JobServer(cluster.url, TOKEN, seconds=0.3), threading.Event()

    def slow(request: Handler) -> tuple[int, Any]:
        request.send_response(200)
        request.end_headers()
        while not over.wait(0.02):
            request.wfile.write(b" ")
        return 200, {}

    def silent(request: Handler) -> tuple[int, Any]:
        over.wait()
        return 200, {}

    try:
        for answer, why in ((slow, "no complete answer within 0.3 s"), (silent, "nothing within 0.3 s")):
            cluster.answers["GET", "/api/version"] = answer
            with pytest.raises(UnreachableError, match=rf"no Ray job server answers there \({why}\)"):
                impatient.version()
    finally:
        over.set()


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8265", "ftp://host", "http://", "http://host:nine", "http://user:word@host", "http://[::1"]
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(CurateError, match="expected the address of a Ray dashboard, such as http://HOST:8265"):
        JobServer(url)
