"""What can become of a URL: a short code, the status that it gives its row, and what it means.

The codes are the reject reasons of pool rows. A row in `error` failed for a reason that may pass, so `curate retry`
fetches it again. An `unusable` row is not fetched again.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

Status = Literal["done", "unusable", "error"]

PASSING_HTTP = frozenset({408, 425, 429, *range(500, 600)})
"""HTTP statuses after which a later attempt may succeed."""

_NAMED: dict[str, tuple[Status, str]] = {
    "done": ("done", "the image or video is stored"),
    "dns": ("error", "the host name has no address, or its name server does not answer"),
    "connect": ("error", "no connection to the host"),
    "timeout": ("error", "the host was silent for too long"),
    "deadline": ("error", "the fetch, or its shard, took too long"),
    "reset": ("error", "the host closed the connection before it answered"),
    "truncated": ("error", "the body's length differs from the announced length"),
    "parked": ("error", "the host asks for a pause that is longer than a URL may take"),
    "runner_died": ("error", "the process that fetched the URL died twice"),
    "unexpected": ("error", "an error that no other code covers; the detail names it"),
    "scheme": ("unusable", "the scheme is neither http nor https"),
    "port": ("unusable", "the port is not allowed"),
    "credentials": ("unusable", "the URL contains a user name or a password"),
    "bad_url": ("unusable", "the text is not an absolute URL with a valid host"),
    "url_too_long": ("unusable", "the URL is too long"),
    "private_address": ("unusable", "the host has no public address"),
    "denied_host": ("unusable", "the host is in the file of denied hosts"),
    "denied_url": ("unusable", "the URL is in the file of denied URLs"),
    "redirects": ("unusable", "too many redirects, or a loop of them"),
    "robots_txt": ("unusable", "the host's robots.txt disallows the URL"),
    "opt_out_x_robots_tag": ("unusable", "X-Robots-Tag forbids the use of the image"),
    "opt_out_tdm_reservation": ("unusable", "tdm-reservation: 1 reserves the rights of text and data mining"),
    "opt_out_content_usage": ("unusable", "Content-Usage: train-ai=n forbids training"),
    "tls": ("unusable", "the host's certificate is invalid, or it does not speak TLS"),
    "headers": ("unusable", "the response's header is malformed or too large"),
    "encoding": ("unusable", "the body's Content-Encoding is unknown or corrupt, or it expands too far"),
    "too_large": ("unusable", "the body is larger than max_bytes, or a video than max_video_bytes"),
    "not_image": ("unusable", "the body is not an image in a format that is decoded"),
    "not_a_video": ("unusable", "the body is not a video in a container that is read, nor another medium of `media`"),
    "changed": ("unusable", "the body's digest differs from the list's"),
    "too_many_pixels": ("unusable", "the image has more pixels than max_pixels"),
    "resize": ("unusable", "img2dataset's resizer rejected the image"),
}


def http_code(number: int) -> str:
    """The code of a response whose HTTP status is `number`, which is not a success."""
    return f"http_{number}"


def _http(number: int) -> tuple[Status, str]:
    phrase = f" ({HTTPStatus(number).phrase})" if number in HTTPStatus.__members__.values() else ""
    return "error" if number in PASSING_HTTP else "unusable", f"the host answered {number}{phrase}"


CODES: dict[str, tuple[Status, str]] = _NAMED | {http_code(number): _http(number) for number in range(100, 1000)}
"""Code -> (status, meaning). Statuses up to 999 exist in the wild, and http.client accepts them."""


class Failure(Exception):
    """Ends the fetch of one URL. `detail` is for people; `wait_seconds` is what Retry-After asked for."""

    def __init__(self, code: str, detail: str = "", wait_seconds: float | None = None) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code = code
        self.detail = detail
        self.wait_seconds = wait_seconds

    @property
    def status(self) -> Status:
        return CODES[self.code][0]
