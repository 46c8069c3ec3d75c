"""Faults by path. Numbers are scaled by the query: /slow-first-byte?seconds=0.5."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from tests.acquire.server.exchange import Exchange
from tests.acquire.server.images import ANIMATED_GIF, EXIF_JPEG, HTML, JPEG, OTHER_JPEG, PNG_16, SVG

Fault = Callable[[Exchange], Awaitable[None]]
FAULTS: dict[str, Fault] = {}
LONG = 1000.0
"""Seconds no test waits for."""
JPEG_TYPE = "Content-Type: image/jpeg"


def fault(*paths: str) -> Callable[[Fault], Fault]:
    def register(function: Fault) -> Fault:
        FAULTS.update(dict.fromkeys(paths, function))
        return function

    return register


def fault_of(path: str) -> Fault | None:
    """The fault of a path: an entry as it is, or one that ends in "/" and starts the path."""
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    return FAULTS.get(path) or FAULTS.get(f"/{first}/")


# --- slow ---


@fault("/slow-first-byte")
async def slow_first_byte(exchange: Exchange) -> None:
    await asyncio.sleep(exchange.number("seconds", LONG))
    exchange.respond(JPEG, headers={"Content-Type": "image/jpeg"})


@fault("/silent-body")
async def silent_body(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG)}")
    exchange.write(JPEG[: len(JPEG) // 2])
    await asyncio.sleep(LONG)


@fault("/drip")
async def drip(exchange: Exchange) -> None:
    """A body that is never silent for long and never ends in time."""
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG)}")
    await exchange.drip(JPEG, exchange.number("seconds", 0.02))


@fault("/drip-head")
async def drip_head(exchange: Exchange) -> None:
    await exchange.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 60_000, exchange.number("seconds", 0.02))


@fault("/continue-flood")
async def continue_flood(exchange: Exchange) -> None:
    """Interim responses, each complete, without end: a client that skips them never sees a time-out."""
    while not exchange.transport.is_closing():
        exchange.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await asyncio.sleep(exchange.number("seconds", 0.02))


@fault("/early-hints")
async def early_hints(exchange: Exchange) -> None:
    """Two interim responses, which a client may not take for the answer (RFC 9110, 15.2)."""
    exchange.head(status="102 Processing")
    exchange.head("Link: </style.css>; rel=preload", status="103 Early Hints")
    exchange.respond(JPEG)


# --- too much ---


@fault("/endless")
async def endless(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, "Connection: close")
    exchange.write(JPEG)
    await exchange.flood(bytes(1 << 16))


@fault("/endless-chunked")
async def endless_chunked(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, "Transfer-Encoding: chunked")
    exchange.write(b"%x\r\n%b\r\n" % (len(JPEG), JPEG))
    await exchange.flood(b"10000\r\n" + bytes(1 << 16) + b"\r\n")


@fault("/huge-length")
async def huge_length(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, f"Content-Length: {1 << 50}")
    await exchange.flood(bytes(1 << 16))


@fault("/header-bomb")
async def header_bomb(exchange: Exchange) -> None:
    """Lines without end."""
    exchange.write(b"HTTP/1.1 200 OK\r\n")
    await exchange.flood(b"X-Bomb: " + b"x" * 1000 + b"\r\n")


@fault("/header-line-bomb")
async def header_line_bomb(exchange: Exchange) -> None:
    """One line without end."""
    exchange.write(b"HTTP/1.1 200 OK\r\nX-Bomb: ")
    await exchange.flood(b"x" * 10_000)


@fault("/trailer-bomb")
async def trailer_bomb(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, "Transfer-Encoding: chunked")
    exchange.write(b"%x\r\n%b\r\n0\r\n" % (len(JPEG), JPEG))
    await exchange.flood(b"X-Bomb: " + b"x" * 1000 + b"\r\n")


BOMB = gzip.compress(bytes(1 << 22), 9) * 256
"""A gigabyte of zeros in 1 MB: 4 MB as a member of a gzip file, repeated."""
DEFLATE_BOMB = zlib.compress(bytes(1 << 23), 9)


@fault("/gzip-bomb")
async def gzip_bomb(exchange: Exchange) -> None:
    exchange.respond(BOMB, headers={"Content-Type": "image/jpeg", "Content-Encoding": "gzip"})


@fault("/deflate-bomb")
async def deflate_bomb(exchange: Exchange) -> None:
    exchange.respond(DEFLATE_BOMB, headers={"Content-Encoding": "deflate"})


# --- encoded ---


@fault("/gzip")
async def gzipped(exchange: Exchange) -> None:
    """Encoded although the client did not ask for it."""
    exchange.respond(gzip.compress(JPEG), headers={"Content-Type": "image/jpeg", "Content-Encoding": "gzip"})


@fault("/deflate")
async def deflated(exchange: Exchange) -> None:
    exchange.respond(zlib.compress(JPEG), headers={"Content-Type": "image/jpeg", "Content-Encoding": "deflate"})


@fault("/corrupt-gzip")
async def corrupt_gzip(exchange: Exchange) -> None:
    exchange.respond(gzip.compress(JPEG)[:1000] + bytes(1000), headers={"Content-Encoding": "gzip"})


@fault("/false-gzip")
async def false_gzip(exchange: Exchange) -> None:
    """Announces an encoding and sends a plain image, as misconfigured servers do."""
    exchange.respond(JPEG, headers={"Content-Encoding": "gzip"})


@fault("/unknown-encoding")
async def unknown_encoding(exchange: Exchange) -> None:
    exchange.respond(bytes(byte ^ 0xFF for byte in JPEG), headers={"Content-Encoding": "x-secret"})


# --- broken ---


@fault("/wrong-length")
async def wrong_length(exchange: Exchange) -> None:
    """Announces more than it sends."""
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG) + 1000}")
    exchange.write(JPEG)
    exchange.close()


@fault("/short-length")
async def short_length(exchange: Exchange) -> None:
    """Announces an image and sends a second one after it, which must not be taken for the next response."""
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG)}")
    exchange.write(JPEG + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON")


@fault("/truncated")
async def truncated(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG)}")
    exchange.write(JPEG[: len(JPEG) // 2])
    exchange.close()


@fault("/truncated-chunked")
async def truncated_chunked(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, "Transfer-Encoding: chunked")
    exchange.write(b"%x\r\n%b" % (len(JPEG), JPEG[: len(JPEG) // 2]))
    exchange.close()


@fault("/bad-length")
async def bad_length(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, f"Content-Length: {exchange.query.get('value', '-5')}", "Connection: close")
    exchange.write(JPEG)
    exchange.close()


@fault("/reset")
async def reset(exchange: Exchange) -> None:
    await exchange.reset()


@fault("/reset-body")
async def reset_body(exchange: Exchange) -> None:
    exchange.head(JPEG_TYPE, f"Content-Length: {len(JPEG)}")
    exchange.write(JPEG[: len(JPEG) // 2])
    await exchange.reset()


@fault("/close")
async def close(exchange: Exchange) -> None:
    """Not a byte."""
    exchange.close()


@fault("/garbage")
async def garbage(exchange: Exchange) -> None:
    exchange.write(b"\x00\xff220 mail.example ESMTP\r\n\r\n")
    exchange.close()


@fault("/empty")
async def empty(exchange: Exchange) -> None:
    exchange.respond(b"", headers={"Content-Type": "image/jpeg"})


# --- redirects ---


@fault("/redirect")
async def redirect(exchange: Exchange) -> None:
    """To `to` of the query, with the status `status`."""
    exchange.respond(status=int(exchange.number("status", 302)), headers={"Location": exchange.query["to"]})


@fault("/redirect-loop")
async def redirect_loop(exchange: Exchange) -> None:
    exchange.respond(status=302, headers={"Location": exchange.request.target})


@fault("/redirect-chain/")
async def redirect_chain(exchange: Exchange) -> None:
    """/redirect-chain/3 redirects three times; the third leads to an image."""
    left = int(exchange.request.path.rpartition("/")[2])
    place = f"/redirect-chain/{left - 1}" if left > 1 else "/good.jpg"
    exchange.respond(status=302, headers={"Location": place})


@fault("/redirect-nowhere")
async def redirect_nowhere(exchange: Exchange) -> None:
    exchange.respond(status=302)


for _name, _place in {
    "file": "file:///etc/passwd",
    "ftp": "ftp://127.0.0.1/image.jpg",
    "data": "data:image/png;base64,iVBORw0KGgo=",
    "private": "http://10.0.0.1/image.jpg",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "credentials": "http://user:secret@127.0.0.1/image.jpg",
    "port": "http://127.0.0.1:22/",
}.items():

    @fault(f"/redirect-{_name}")
    async def redirect_to(exchange: Exchange, place: str = _place) -> None:
        exchange.respond(status=301, headers={"Location": place})


# --- statuses ---


for _status in (400, 401, 403, 404, 408, 410, 425, 429, 451, 500, 502, 503, 504, 599):

    @fault(f"/{_status}")
    async def status(exchange: Exchange, status: int = _status) -> None:
        exchange.respond(b"<html>no</html>", status, {"Content-Type": "text/html"})


@fault("/500-twice")
async def twice(exchange: Exchange) -> None:
    passing(exchange, 500, 2, {})


@fault("/429-seconds")
async def retry_after_seconds(exchange: Exchange) -> None:
    """Once, unless the query says how often, with Retry-After in seconds."""
    seconds = int(exchange.number("seconds", 1))
    passing(exchange, 429, int(exchange.number("times", 1)), {"Retry-After": str(seconds)})


@fault("/429-date")
async def retry_after_date(exchange: Exchange) -> None:
    """As /429-seconds, with a date. It has whole seconds, so the pause is up to one second shorter than asked for."""
    when = datetime.now(UTC) + timedelta(seconds=exchange.number("seconds", 1))
    headers = {"Retry-After": format_datetime(when, usegmt=True)}
    passing(exchange, 429, int(exchange.number("times", 1)), headers)


@fault("/503-seconds")
async def unavailable(exchange: Exchange) -> None:
    passing(exchange, 503, int(exchange.number("times", 1)), {"Retry-After": exchange.query.get("seconds", "1")})


def passing(exchange: Exchange, status: int, times: int, headers: dict[str, str]) -> None:
    """Answers `times` requests of this target with a status, later ones with an image."""
    if exchange.count <= times:
        exchange.respond(b"not now", status, headers)
    else:
        exchange.respond(JPEG, headers={"Content-Type": "image/jpeg"})


@fault("/forbidden-agent")
async def forbidden_agent(exchange: Exchange) -> None:
    """403 unless the user agent says who asks and how to reach them."""
    agent = exchange.request.headers.get("user-agent", "")
    exchange.respond(*((JPEG,) if "(+" in agent else (b"who are you?", 403)))


# --- content ---

OPT_OUTS = {
    "x-robots-tag": {"X-Robots-Tag": "noai, noimageai"},
    "tdm-reservation": {"tdm-reservation": "1"},
    "content-usage": {"Content-Usage": "train-ai=n"},
}


@fault("/opt-out/")
async def opt_out(exchange: Exchange) -> None:
    """/opt-out/NAME: one of OPT_OUTS. Any other header: /header?header=[...]."""
    exchange.respond(JPEG, headers=OPT_OUTS[exchange.request.path.rpartition("/")[2]])


@fault("/late-opt-out")
async def late_opt_out(exchange: Exchange) -> None:
    exchange.respond(JPEG, headers={"X-Robots-Tag": "all, " * 12_000 + "noai"})


@fault("/header")
async def any_header(exchange: Exchange) -> None:
    exchange.head(*json.loads(exchange.query["header"]), f"Content-Length: {len(JPEG)}")
    exchange.write(JPEG)


CONTENTS = {
    "/good.jpg": JPEG,
    "/html.jpg": HTML,
    "/svg.jpg": SVG,
    "/exif.jpg": EXIF_JPEG,
    "/png16.png": PNG_16,
    "/animated.gif": ANIMATED_GIF,
}
for _path, _data in CONTENTS.items():

    @fault(_path)
    async def content(exchange: Exchange, data: bytes = _data) -> None:
        exchange.respond(data, headers={"Content-Type": "image/jpeg"})


@fault("/changed")
async def changed(exchange: Exchange) -> None:
    """Not the bytes whose digest the list has: those are JPEG."""
    exchange.respond(OTHER_JPEG, headers={"Content-Type": "image/jpeg"})


@fault("/robots.txt")
async def robots(exchange: Exchange) -> None:
    """Disallows /private/ and names with a wildcard, for everyone."""
    exchange.respond(b"User-agent: *\nDisallow: /private/\nDisallow: /*.secret$\n")
