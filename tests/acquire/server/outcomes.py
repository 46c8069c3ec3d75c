"""What is to become of a URL, fault by fault: the table that `test_faults.py` asserts.

Time-outs are such that a busy machine cannot change an outcome: where a limit has to strike, the others are far away;
where none must, all are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.acquire.server.faults import CONTENTS, OPT_OUTS
from tests.acquire.server.images import JPEG
from tests.acquire.server.server import FaultServer, has_ipv6, hosts

COMMON = {"contact": "curator@example.com", "retries": 2, "max_bytes": 1 << 21}
LOOPBACK = {"allow_networks": ("127.0.0.0/8", "::1/128")}
GROUPS: dict[str, dict[str, Any]] = {
    "patient": COMMON | LOOPBACK | {"timeout": 30.0, "deadline_seconds": 60.0},
    "silent": COMMON | LOOPBACK | {"timeout": 0.3, "deadline_seconds": 60.0, "retries": 1},
    "slow": COMMON | LOOPBACK | {"timeout": 60.0, "deadline_seconds": 1.0},
    "strict": COMMON | {"timeout": 30.0, "deadline_seconds": 60.0},
}
"""Settings by name, without the server's ports."""


@dataclass(frozen=True)
class Case:
    name: str
    target: str
    """Path at the server, on the case's address; or a URL with {host}, {port} and kinds of ports: {good}."""
    code: str = "done"
    tries: int = 1
    requests: int | None = None
    """What the server gets at the case's address; None: as many as tries."""
    group: str = "patient"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings beyond the group's."""
    sha256: str | None = None
    md5: str | None = None
    data: bytes = field(default=JPEG, repr=False)
    """What is stored if the code is done."""

    def url(self, server: FaultServer, host: str) -> str:
        if self.target.startswith("/") and not self.target.startswith("//"):
            return server.at(self.target, host)
        return self.target.format(host=host, port=server.port, **server.tls_ports, **server.raw_ports)


def header(*lines: str) -> str:
    """Path of an image with these headers."""
    return f"/header?header={quote(json.dumps(lines))}"


SHA256 = hashlib.sha256(JPEG).hexdigest()
MD5 = hashlib.md5(JPEG).hexdigest()
RETRIED = (408, 425, 429, 500, 502, 503, 504, 599)
BAD_LENGTHS = ("-1", "-5", "abc", "", "1e3", "+5", "0x10", "1_000", "\u00b2", "5, 6", "9" * 5000)
FINAL = (400, 401, 403, 404, 410, 451)

CASES = [
    # --- images ---
    *(Case(path, path, data=data) for path, data in CONTENTS.items() if path not in ("/html.jpg", "/svg.jpg")),
    Case("https", "https://{host}:{good}/good.jpg"),
    Case("sha256", "/good.jpg", sha256=SHA256),
    Case("md5", "/good.jpg", md5=MD5),
    Case("changed by sha256", "/changed", "changed", sha256=SHA256),
    Case("changed by md5", "/changed", "changed", md5=MD5),
    Case("html named .jpg", "/html.jpg", "not_image"),
    Case("svg named .jpg", "/svg.jpg", "not_image"),
    Case("empty body", "/empty", "not_image"),
    # --- slow ---
    Case("slow first byte", "/slow-first-byte", "timeout", tries=2, group="silent"),
    Case("silent within the body", "/silent-body", "timeout", tries=2, group="silent"),
    Case("silent from the start", "http://127.0.0.1:{silent}/", "timeout", tries=2, requests=0, group="silent"),
    Case("silent TLS handshake", "https://127.0.0.1:{silent}/", "timeout", tries=2, requests=0, group="silent"),
    Case("not accepted", "http://127.0.0.1:{full}/", "connect", tries=2, requests=0, group="silent"),
    Case("dripping body", "/drip", "deadline", group="slow"),
    Case("dripping header", "/drip-head", "deadline", group="slow"),
    Case("interim responses without end", "/continue-flood", "deadline", group="slow"),
    Case("interim responses", "/early-hints", requests=1, data=JPEG),
    # --- too much ---
    Case("endless body", "/endless", "too_large"),
    Case("endless chunks", "/endless-chunked", "too_large"),
    Case("length of a petabyte", "/huge-length", "too_large"),
    Case("endless headers", "/header-bomb", "headers"),
    Case("endless header line", "/header-line-bomb", "headers"),
    Case("endless trailers", "/trailer-bomb", "headers"),
    Case("gzip bomb", "/gzip-bomb", "encoding"),
    Case("deflate bomb", "/deflate-bomb", "encoding"),
    # --- encoded ---
    Case("gzip", "/gzip"),
    Case("deflate", "/deflate"),
    Case("gzip announced, image sent", "/false-gzip"),
    Case("corrupt gzip", "/corrupt-gzip", "encoding"),
    Case("unknown encoding", "/unknown-encoding", "encoding"),
    # --- broken ---
    Case("length too large", "/wrong-length", "truncated", tries=3),
    Case("length too small", "/short-length"),
    *(Case(f"length {value!r}", f"/bad-length?value={quote(value)}", "headers") for value in BAD_LENGTHS),
    Case("a length twice", header(f"Content-Length: {len(JPEG)}", "Connection: close")),
    Case("truncated", "/truncated", "truncated", tries=3),
    Case("truncated chunks", "/truncated-chunked", "truncated", tries=3),
    Case("reset", "/reset", "reset", tries=3),
    Case("reset within the body", "/reset-body", "reset", tries=3),
    Case("closed without a byte", "/close", "reset", tries=3),
    Case("reset by a stranger", "http://127.0.0.1:{rude}/", "reset", tries=3, requests=0),
    Case("no listener", "http://127.0.0.1:{closed}/", "connect", tries=3, requests=0),
    Case("not HTTP", "/garbage", "headers"),
    # --- redirects ---
    Case("redirected five times", "/redirect-chain/5", requests=6),
    Case("redirected six times", "/redirect-chain/6", "redirects", requests=6),
    Case("redirected too often for the setting", "/redirect-chain/1", "redirects", settings={"max_redirects": 0}),
    Case("permanent redirect to a relative URL", "/redirect?status=308&to=good.jpg", requests=2),
    Case("redirect to a malformed URL", "/redirect?to=http://%5B::1/", "bad_url"),
    Case("redirect loop", "/redirect-loop", "redirects"),
    Case("redirect to nowhere", "/redirect-nowhere", "http_302"),
    Case("redirect to file", "/redirect-file", "scheme"),
    Case("redirect to ftp", "/redirect-ftp", "scheme"),
    Case("redirect to data", "/redirect-data", "scheme"),
    Case("redirect to a private address", "/redirect-private", "private_address"),
    Case("redirect to a cloud's metadata", "/redirect-metadata", "private_address"),
    Case("redirect with credentials", "/redirect-credentials", "credentials"),
    Case("redirect to ssh", "/redirect-port", "port"),
    # --- statuses ---
    *(Case(f"{status}", f"/{status}", f"http_{status}", tries=3) for status in RETRIED),
    *(Case(f"{status}", f"/{status}", f"http_{status}") for status in FINAL),
    Case("500 twice", "/500-twice", tries=3),
    Case("500 without retries", "/500-twice", "http_500", settings={"retries": 0}),
    Case("429 with seconds", "/429-seconds", tries=2),
    Case("429 with a date", "/429-date", tries=2),
    Case("503 with seconds", "/503-seconds", tries=2),
    Case("429 for an hour", "/429-seconds?seconds=3600", "http_429"),
    Case("our user agent", "/forbidden-agent"),
    Case("a browser's user agent", "/forbidden-agent", "http_403", settings={"user_agent": "Mozilla/5.0"}),
    # --- opt-outs ---
    *(Case(f"opt-out {name}", f"/opt-out/{name}", f"opt_out_{name.replace('-', '_')}") for name in OPT_OUTS),
    *(Case(f"{name} ignored", f"/opt-out/{name}", settings={"opt_out": ()}) for name in OPT_OUTS),
    Case("noai for us", header("X-Robots-Tag: curate: noai"), "opt_out_x_robots_tag"),
    Case("noai for another", header("X-Robots-Tag: otherbot: noai")),
    Case("noai in a second header", header("X-Robots-Tag: all", "X-Robots-Tag: noai"), "opt_out_x_robots_tag"),
    Case("noai after another's", header("X-Robots-Tag: bot: nofollow", "X-Robots-Tag: noai"), "opt_out_x_robots_tag"),
    Case("noai at the end of a long header", "/late-opt-out", "opt_out_x_robots_tag"),
    Case("reserved in a second header", header("tdm-reservation: 0", "TDM-Reservation: 1"), "opt_out_tdm_reservation"),
    Case("a date with a comma", header("X-Robots-Tag: unavailable_after: Friday, 01-Jan-2100 00:00:00 GMT")),
    Case("noai after a date", header("X-Robots-Tag: unavailable_after: 2100-01-01, noai"), "opt_out_x_robots_tag"),
    Case("other directives", header("X-Robots-Tag: nofollow, max-image-preview:large")),
    Case("train-ai among others", header("Content-Usage: search=y, train-ai=n;x=1"), "opt_out_content_usage"),
    Case("train-ai allowed", header("Content-Usage: search=n, train-ai=y")),
    Case("no reservation", header("tdm-reservation: 0")),
    Case("robots.txt", "/private/good.jpg", "robots_txt", requests=1, settings={"robots_txt": "cached"}),
    Case("robots.txt with a wildcard", "/a/b.secret", "robots_txt", requests=1, settings={"robots_txt": "cached"}),
    Case("robots.txt allows", "/good.jpg?robots", requests=2, settings={"robots_txt": "cached"}),
    # --- TLS ---
    *(
        Case(f"certificate {kind}", f"https://{{host}}:{{{kind}}}/good.jpg", "tls", requests=0)
        for kind in ("expired", "untrusted", "other_name")
    ),
    Case("certificate ignored", "https://{host}:{expired}/good.jpg", settings={"ignore_ssl": True}),
    Case("not TLS", "https://{host}:{port}/good.jpg", "tls", requests=0),
    Case("reset in the handshake", "https://127.0.0.1:{rude}/", "reset", tries=3, requests=0),
    # --- URLs ---
    *(
        Case(f"URL {url[:40]}", url, code, requests=0)
        for url, code in {
            "file:///etc/passwd": "scheme",
            "ftp://{host}/image.jpg": "scheme",
            "data:image/png;base64,iVBORw0KGgo=": "scheme",
            "gopher://{host}:{port}/": "scheme",
            "image.jpg": "bad_url",
            "//{host}:{port}/good.jpg": "bad_url",
            "http:///good.jpg": "bad_url",
            "http://": "bad_url",
            " ": "bad_url",
            "http://{host}:0/good.jpg": "bad_url",
            "http://{host}:99999/good.jpg": "bad_url",
            "http://exa mple.com/": "bad_url",
            "http://user:secret@{host}:{port}/good.jpg": "credentials",
            "http://{host}:22/": "port",
            "http://{host}:{port}/" + "x" * 10_000_000: "url_too_long",
        }.items()
    ),
    Case("spaces around and unicode in the path", " http://{host}:{port}/good.jpg?ü=ö ä\n"),
    # --- addresses ---
    *(
        Case(f"address {host}", f"http://{host}:{{port}}/good.jpg", "private_address", requests=0, group="strict")
        for host in (
            *("{host}", "localhost", "127.0.0.1.", "0.0.0.0", "10.0.0.1", "169.254.169.254", "224.0.0.1"),
            *("[::]", "[::1]", "[::ffff:127.0.0.1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[fe80::1]", "[fc00::1]"),
            *(
                "[64:ff9b::127.0.0.1]",
                "[64:ff9b:1::127.0.0.1]",
                "[2002:7f00:1::]",
                "[fec0::1]",
                "[ff02::1]",
                "[5f00::1]",
            ),
        )
    ),
    *(
        Case(f"address {host}", f"http://{host}:{{port}}/good.jpg", "bad_url", requests=0, group="strict")
        for host in ("127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1%25lo]", "[127.0.0.1]", "[::1")
    ),
    *([Case("IPv4 in IPv6, allowed", "http://[::ffff:127.0.0.1]:{port}/good.jpg", requests=0)] if has_ipv6() else []),
]


def places() -> dict[str, str]:
    """Address of each case by its name. Cases whose requests are counted have separate ones, HTTPS first; those that
    must not reach the server share 127.0.0.1."""
    counted = [case.name for case in sorted(CASES, key=lambda case: "https:" not in case.target) if case.requests != 0]
    first, *others = hosts(len(counted) + 1)
    return dict.fromkeys([case.name for case in CASES], first) | dict(zip(counted, others, strict=True))
