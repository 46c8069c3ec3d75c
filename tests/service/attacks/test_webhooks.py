"""Attacks by a webhook's address: none leads to the service's own machine or network, also if its host resolves to
another address later. Through the code that calls webhooks, against a receiver on loopback."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from curate.core.errors import CurateError
from curate.service.reconcile import hooks
from curate.service.settings import Webhook
from tests.service.reconcile.test_hooks import Receiver, receiver, server

__all__ = ["receiver", "server"]

SECRET = "hunter2-hunter2"


class Resolver:
    """Answers with the next list of addresses each time a name is asked for, and stays at the last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[list[str]] = []
        self.asked: list[str] = []
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *words: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not name.endswith(".example"):
            return self._real(host, port, *words, **options)
        self.asked.append(name)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [entry for one in found for entry in self._real(one, port, *words, **options)]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


DENIED = [
    # this machine
    "http://127.0.0.1:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://0.0.0.0:{port}/",
    "http://[::]:{port}/", "http://127.1:{port}/", "http://2130706433:{port}/", "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/", "http://127.0.0.1.:{port}/", "http://LOCALHOST:{port}/",
    "http://%31%32%37.0.0.1:{port}/",
    # its network, and the metadata of clouds
    "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.0.1/", "http://100.64.0.1/", "http://169.254.169.254/",
    "http://168.63.129.16/", "http://[fd00:ec2::254]/", "http://[fe80::1]/", "http://[fe80::1%25lo]/", "http://224.0.0.1/",
    "http://255.255.255.255/", "http://240.0.0.1/",
    # IPv6 forms of IPv4 addresses
    "http://[::ffff:127.0.0.1]:{port}/", "http://[::ffff:7f00:1]:{port}/", "http://[::127.0.0.1]:{port}/",
    "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::169.254.169.254]/",
    "http://[2002:7f00:1::]/", "http://[2001:0:7f00:1::]/", "http://[64:ff9b:1::1]/",
    # users, and what two parsers could read differently
    "http://public.example@127.0.0.1:{port}/", "http://public.example:80@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@public.example/", "http://127.0.0.1:{port}#@public.example/",
    "http://127.0.0.1:{port}?@public.example/", "http://public.example\t@127.0.0.1:{port}/",
    # other schemes
    "http://127.0.0.1:99999/", "http://127.0.0.1:x/", "ftp://127.0.0.1:{port}/", "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x", "//127.0.0.1:{port}/", "unix:/tmp/x", "http:///", "http://", "",
]  # fmt: skip


@pytest.mark.parametrize("url", DENIED)
def test_it_leads_to_nothing_of_the_service(receiver: Receiver, resolver: Resolver, url: str) -> None:
    resolver.answers = [["127.0.0.1"]]
    with pytest.raises(CurateError) as caught:
        hooks.post(Webhook(url=url.format(port=receiver.server_port)), b"{}")
    assert not receiver.received and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["10.1.2.3", "192.168.1.1"], ["::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]]
)
def test_a_name_is_judged_by_its_addresses(receiver: Receiver, resolver: Resolver, addresses: list[str]) -> None:
    resolver.answers = [addresses]
    with pytest.raises(hooks.FinalError, match="allow_networks"):
        hooks.post(Webhook(url=f"http://hook.example:{receiver.server_port}/"), b"{}")
    assert not receiver.received


def test_a_name_is_resolved_once(receiver: Receiver, resolver: Resolver) -> None:
    """The address that was judged is the one that is connected to."""
    resolver.answers = [["127.0.0.1"], ["127.0.0.9"]]
    hook = Webhook(url=f"http://hook.example:{receiver.server_port}/", allow_networks=("127.0.0.1/32",))
    hooks.post(hook, b"{}")
    assert resolver.asked == ["hook.example"] and len(receiver.received) == 1
    assert receiver.received[0][0]["Host"] == f"hook.example:{receiver.server_port}"


def test_an_address_that_may_not_be_connected_to_is_left_out(receiver: Receiver, resolver: Resolver) -> None:
    resolver.answers = [["10.0.0.1", "127.0.0.1"]]
    hook = Webhook(url=f"http://hook.example:{receiver.server_port}/", allow_networks=("127.0.0.1/32",))
    hooks.post(hook, b"{}")
    assert len(receiver.received) == 1


@pytest.mark.parametrize("location", ["http://127.0.0.1:{port}/", "http://169.254.169.254/", "/", "//127.0.0.1:{port}"])
def test_no_redirect_is_followed(receiver: Receiver, location: str) -> None:
    receiver.statuses, receiver.location = [307], location.format(port=receiver.server_port)
    hook = Webhook(url=f"http://127.0.0.1:{receiver.server_port}/", allow_networks=("127.0.0.1/32",))
    with pytest.raises(hooks.FinalError, match="answered 307"):
        hooks.post(hook, b"{}")
    assert len(receiver.received) == 1


def test_a_proxy_of_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{receiver.server_port}")
    with pytest.raises(CurateError):
        hooks.post(Webhook(url="http://10.0.0.1/"), b"{}")
    assert not receiver.received


def test_a_password_in_the_address_is_sent_to_its_host_alone_and_never_said(receiver: Receiver) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:{receiver.server_port}/{{0}}"
    hooks.post(Webhook(url=url, allow_networks=("127.0.0.1/32",)), b"{}")
    assert SECRET not in str(receiver.received[0][0]["Host"])
    receiver.statuses = [404]
    for hook in (Webhook(url=url), Webhook(url=url, allow_networks=("127.0.0.1/32",))):
        with pytest.raises(CurateError) as caught:
            hooks.post(hook, b"{}")
        assert SECRET not in str(caught.value)
