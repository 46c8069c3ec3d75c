"""Calling one webhook once."""

from __future__ import annotations

import hashlib
import hmac
import socket
from urllib.parse import urlsplit

import httpx2

from curate.core.addresses import networks, reason_denied
from curate.core.errors import CurateError
from curate.service.settings import Webhook

SECONDS = 10.0
"""For each step of a request."""
SIGNATURE = "X-Curate-Signature"
NOT_A_URL = "a webhook's url is not http://… or https://… with a host"
AGAIN = frozenset({408, 425, 429})


class FinalError(CurateError):
    """Trying again would not help."""


def post(hook: Webhook, body: bytes) -> None:
    """Raises CurateError unless the answer is 2xx. Connects to the address that was checked, follows no redirects, and
    reads no answer's body."""
    try:
        url = httpx2.URL(hook.url)
    except httpx2.InvalidURL:  # whose text may have its password
        raise FinalError(NOT_A_URL) from None
    headers = {"Content-Type": "application/json", "User-Agent": "curate", "Host": _authority(hook.url)}
    if hook.secret is not None:
        headers[SIGNATURE] = hmac.new(hook.secret.value().encode(), body, hashlib.sha256).hexdigest()
    address = _address(hook)
    try:
        with (
            httpx2.Client(trust_env=False, follow_redirects=False, timeout=SECONDS) as client,
            client.stream(
                "POST", url.copy_with(host=address), content=body, headers=headers,
                extensions={"sni_hostname": url.host},
            ) as answer,
        ):  # fmt: skip
            status = answer.status_code
    except httpx2.HTTPError as error:
        raise CurateError(f"{url.host}: does not answer ({type(error).__name__}: {error})") from None
    if 200 <= status < 300:
        return
    kind = CurateError if status >= 500 or status in AGAIN else FinalError
    raise kind(f"{url.host}: answered {status}; expected 2xx, and no redirect")


def _authority(url: str) -> str:
    """For the Host header: without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _address(hook: Webhook) -> str:
    """An address of the webhook's host that may be connected to."""
    parts = urlsplit(hook.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise FinalError(NOT_A_URL)
    try:
        allowed = networks(hook.allow_networks)
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError as error:
        raise CurateError(f"{parts.hostname}: not resolved ({error.strerror or error})") from None
    except ValueError as error:
        raise FinalError(f"{parts.hostname}: {error}") from None
    reasons = {str(place[0]): reason_denied(str(place[0]), allowed) for *_, place in found}
    for address, reason in reasons.items():
        if reason is None:
            return address
    why = "; ".join(str(reason) for reason in reasons.values())
    raise FinalError(f"{parts.hostname}: {why}; if it is meant, add its network to allow_networks")
