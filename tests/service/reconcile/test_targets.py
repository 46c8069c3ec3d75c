"""Clients of targets and their health."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from curate.core.errors import CurateError
from curate.service.reconcile.targets import discreet
from tests.service.reconcile.clusters import Amounts, Connect, FakeCluster, refused, target, targets

SECRET = "s3cr3t-of-the-cluster"


def test_health_is_unknown_before_the_first_check_and_says_what_there_is_after_it() -> None:
    made, connect = targets()
    connect.clusters["http://local:8265"] = FakeCluster()
    connect.clusters["http://local:8265"].amounts = Amounts(2, 16.0, 4.0, 8.0, 1.0)
    assert made.health("local") is None

    made.refresh([target()])

    found = made.health("local")
    assert found is not None and found.healthy and found.version == "2.60.0"
    assert (found.nodes, found.cpus, found.gpus, found.free_cpus, found.free_gpus) == (2, 16, 4, 8, 1)


def test_a_target_that_does_not_answer_is_unhealthy_and_says_why() -> None:
    made, connect = targets()
    cluster = connect.clusters["http://local:8265"] = FakeCluster()
    made.refresh([target()])

    cluster.error = refused()
    made.refresh([target()])

    found = made.health("local")
    assert found is not None and not found.healthy and "connection refused" in found.error


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        ("http://local:8265: no answer (local:8265: reset)", "no answer (reset)"),
        ("no redirect to http://local:8265/login", "no redirect to …/login"),
        ("target local: token: file:/run/ray.token: no such file", "target local: token: no such file"),
        ("target local: token: file:/run/ray.token is empty", "target local: token: … is empty"),
    ],
)
def test_an_error_that_everybody_sees_names_neither_address_nor_token(error: str, shown: str) -> None:
    assert discreet(target(token="file:/run/ray.token"), error) == shown
    assert discreet(target(address=""), "its disk is full") == "its disk is full"
    far = target(address="https://head.lab.internal:8265/", token="env:LAB_RAY")
    error = "certificate is not valid for 'head.lab.internal'; https://head.lab.internal:8265/api: LAB_RAY, LAB_RAYS"
    assert discreet(far, error) == "certificate is not valid for '…'; …/api: …, LAB_RAYS"


def test_an_unknown_answer_is_unhealthy() -> None:
    made, connect = targets()
    connect.clusters["http://local:8265"] = FakeCluster()
    connect.clusters["http://local:8265"].error = KeyError("nodes")

    found = made.check(target())

    assert not found.healthy and found.error == "its answer is not understood (KeyError)"


def test_a_dead_target_delays_no_other_and_has_one_check_at_a_time() -> None:
    made, connect = targets(seconds=0.2)
    hanging = connect.clusters["http://dead:8265"] = FakeCluster()
    hanging.hang = threading.Event()
    rows = [target("dead"), target("local")]

    try:
        made.refresh(rows)
        made.refresh(rows)

        dead = made.health("dead")
        assert dead is not None and not dead.healthy and dead.error == "no answer within 0.2 s"
        while (local := made.health("local")) is None or not local.healthy:  # its answer may come later
            made.refresh(rows)
        assert hanging.calls == 1
    finally:
        hanging.hang.set()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(SECRET)
    return path


def test_the_token_is_read_from_its_reference(secret: Path) -> None:
    made, connect = targets()
    row = target(token=f"file:{secret}")

    made.refresh([row])
    made.cluster(row)

    assert connect.tokens == [SECRET]
    assert row.token == f"file:{secret}"


def test_a_new_token_or_address_makes_a_new_client(secret: Path) -> None:
    made, connect = targets()
    row = target(token=f"file:{secret}")
    first = made.cluster(row)

    secret.write_text("another")
    made.cluster(row)
    row.address = "http://moved:8265"
    last = made.cluster(row)

    assert connect.tokens == [SECRET, "another", "another"]
    assert isinstance(first, FakeCluster) and first.closed
    assert isinstance(last, FakeCluster) and not last.closed


@pytest.mark.parametrize(
    ("reference", "error"),
    [
        ("env:NO_SUCH_TOKEN_OF_RAY", "env:NO_SUCH_TOKEN_OF_RAY: the environment variable is not set"),
        ("file:/no/such/file", "file:/no/such/file: the file cannot be read"),
        ("env:CURATE_TOKEN", "target local: token: variables named CURATE_"),
    ],
)
def test_a_token_that_cannot_be_read_is_the_target_s_error(reference: str, error: str) -> None:
    made, _ = targets()

    found = made.check(target(token=reference))

    assert not found.healthy and error in found.error
    with pytest.raises(CurateError):
        made.cluster(target(token=reference))


def test_no_message_has_the_token(secret: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, connect = targets()
    cluster = connect.clusters["http://local:8265"] = FakeCluster()
    row = target(token=f"file:{secret}")
    for error in (CurateError(f"401 for Bearer {SECRET}"), ValueError(f"header {SECRET}")):
        cluster.error = error
        found = made.check(row)
        assert not found.healthy and SECRET not in found.error + caplog.text


def test_targets_that_were_removed_are_forgotten() -> None:
    made, connect = targets()
    made.refresh([target("a"), target("b")])

    made.refresh([target("b")])

    assert made.health("a") is None and made.health("b") is not None
    assert connect.clusters["http://a:8265"].closed and not connect.clusters["http://b:8265"].closed
    made.close()
    assert connect.clusters["http://b:8265"].closed


def test_connect_is_called_once_for_many_threads() -> None:
    connect = Connect()
    made = type(targets()[0])(connect)
    row = target()
    threads = [threading.Thread(target=made.cluster, args=(row,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert connect.tokens == [""]
