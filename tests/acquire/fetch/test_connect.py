"""Which addresses are connected to; proxies; TLS."""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from curate.acquire.fetch.codes import Failure
from curate.acquire.fetch.connect import Connector, Proxy, tls_context
from curate.acquire.fetch.dns import Resolver
from curate.acquire.fetch.target import parse
from tests.acquire.fetch.scripted import IMAGE, SETTINGS, Scripted, redirect, response


def test_a_proxy_is_asked_for_the_whole_url() -> None:
    """It decides: the addresses of the URLs' hosts are neither asked for nor checked."""
    with Scripted(response()) as server:
        proxy = f"http://me:p%40ss@127.0.0.1:{server.port}"
        with nullcontext(server.fetcher(proxy=proxy, allow_networks=(), allow_ports=(80, 443))) as fetcher:
            found = [fetcher.fetch(f"http://{host}/a?b").data for host in ("one.invalid", "two.invalid")]
    assert found == [IMAGE, IMAGE]
    assert server.connections == 2
    for head, host in zip(server.requests, ("one.invalid", "two.invalid"), strict=True):
        lines = head.decode().splitlines()
        assert lines[0] == f"GET http://{host}/a?b HTTP/1.1"
        assert f"Host: {host}" in lines and "Proxy-Authorization: Basic bWU6cEBzcw==" in lines


@pytest.mark.parametrize(
    ("status", "code"), [("407 Proxy", "http_407"), ("403 Denied", "http_403"), ("502 Bad", "http_502")]
)
def test_a_proxy_that_makes_no_tunnel(status: str, code: str) -> None:
    with Scripted(response(b"no", status=status)) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        with nullcontext(server.fetcher(proxy=proxy, retries=0, allow_ports=(443,))) as fetcher:
            found = fetcher.fetch("https://[2606:4700::1]/a")
    assert (found.code, found.detail) == (code, "the proxy's answer to CONNECT")
    assert server.requests[0].startswith(b"CONNECT [2606:4700::1]:443 HTTP/1.1\r\nHost: [2606:4700::1]:443\r\n")


def test_the_urls_own_rules_hold_with_a_proxy_too() -> None:
    urls = ("http://a.invalid:22/", "ftp://a.invalid/", "http://u@a.invalid/")
    with Scripted(response()) as server:
        proxy = f"http://127.0.0.1:{server.port}"
        with nullcontext(server.fetcher(proxy=proxy, allow_ports=(80,))) as fetcher:
            codes = [fetcher.fetch(url).code for url in urls]
    assert codes == ["port", "scheme", "credentials"] and server.connections == 0


@pytest.mark.parametrize("url", ["socks5://h:1", "http://", "https://h:1", "proxy:3128", "http://me:secret@h:port"])
def test_a_proxy_must_be_a_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"write it like http://proxy:3128") as caught:
        Proxy(url)
    assert "secret" not in str(caught.value)


def connector(timeout: float) -> Connector:
    return Connector(replace(SETTINGS, timeout=timeout), Resolver(lambda host: ["127.0.0.1"]))


def test_a_handshake_that_hangs() -> None:
    with Scripted(b"") as server:
        target = parse(server.url(scheme="https"))
        with pytest.raises(Failure, match=r"timeout: silent for 0\.1 s"):
            connector(0.1).connect(target, time.monotonic() + 60)
        with pytest.raises(Failure, match="deadline"):
            connector(60).connect(target, time.monotonic() + 0.1)


def test_nothing_begins_after_the_deadline() -> None:
    with Scripted(b"") as server, pytest.raises(Failure, match="deadline"):
        connector(60).connect(parse(server.url(host="a.example")), time.monotonic())
    assert server.connections == 0


def test_certificates_are_checked_unless_told_otherwise() -> None:
    strict, lax = tls_context(False), tls_context(True)
    assert strict.verify_mode is ssl.CERT_REQUIRED and strict.check_hostname
    assert lax.verify_mode is ssl.CERT_NONE and not lax.check_hostname


# --- addresses ---


def test_a_name_that_leads_to_a_private_address_later() -> None:
    """DNS rebinding: the address that is connected to is the one that was checked."""
    answers: list[Sequence[str]] = [["127.0.0.1"], ["10.0.0.1"]]

    with (
        Scripted(response(IMAGE, "Connection: close")) as server,
        nullcontext(server.fetcher(lookup=lambda host: answers.pop(0), dns_seconds=0.0, retries=0)) as fetcher,
    ):
        assert fetcher.fetch(server.url(host="rebinding.example")).code == "done"
        found = fetcher.fetch(server.url(host="rebinding.example"))
        assert (found.code, found.detail, len(server.requests)) == ("private_address", "10.0.0.1 is private", 1)
        assert server.requests[0].count(b"Host: rebinding.example") == 1


def test_only_public_ones_of_several_addresses_are_connected_to() -> None:
    with (
        Scripted(response()) as server,
        nullcontext(server.fetcher(lookup=lambda host: ["10.0.0.1", "::ffff:10.0.0.1", "127.0.0.1"])) as fetcher,
    ):
        found = fetcher.fetch(server.url(host="mixed.example"))
        assert (found.code, found.tries, found.host) == ("done", 1, "mixed.example")


def test_the_next_address_is_tried() -> None:
    """No server listens at 127.0.0.2."""
    with (
        Scripted(response()) as server,
        nullcontext(server.fetcher(lookup=lambda host: ["127.0.0.2", "127.0.0.1"], retries=0)) as fetcher,
    ):
        assert fetcher.fetch(server.url(host="two.example")).code == "done"


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "::1", "64:ff9b::7f00:1", "127.1", "evil"])
def test_a_name_with_a_private_address_is_not_connected_to(address: str) -> None:
    with (
        Scripted(response()) as server,
        nullcontext(server.fetcher(allow_networks=(), lookup=lambda host: [address])) as fetcher,
    ):
        found = fetcher.fetch(server.url(host="bad.example"))
        assert (found.code, found.tries, server.connections) == ("private_address", 1, 0)


@pytest.mark.parametrize("location", ["http://10.0.0.1/", "http://[::ffff:10.0.0.1]/", "//metadata.example/"])
def test_a_redirect_does_not_lead_inside(location: str) -> None:
    with (
        Scripted(redirect(location)) as server,
        nullcontext(server.fetcher(lookup=lambda host: ["169.254.169.254"])) as fetcher,
    ):
        assert fetcher.fetch(server.url()).code == "private_address"
