"""What a fetch may do, as plain values: they reach the runner as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from curate.core.version import __version__

MiB = 2**20


@dataclass(frozen=True)
class FetchSettings:
    """The settings of `acquire.download` that concern the fetch; its page describes them."""

    contact: str
    user_agent: str | None = None
    timeout: float = 10.0
    deadline_seconds: float = 60.0
    retries: int = 2
    backoff_seconds: float = 0.5
    """Longest wait before the first retry; it doubles with each."""
    thread_count: int = 64
    host_connections: int = 4
    max_bytes: int = 64 * MiB
    media: tuple[str, ...] = ("image",)
    max_video_bytes: int = 2048 * MiB
    video_deadline_seconds: float = 1800.0
    max_redirects: int = 5
    allow_ports: tuple[int, ...] = (80, 443)
    allow_networks: tuple[str, ...] = ()
    proxy: str | None = None
    deny_hosts: str | None = None
    deny_urls: str | None = None
    ignore_ssl: bool = False
    dns_seconds: float = 300.0
    opt_out: tuple[str, ...] = ("x-robots-tag", "tdm-reservation", "content-usage")
    disallowed_header_directives: tuple[str, ...] = ("noai", "noimageai", "noindex", "noimageindex")
    robots_txt: str = "off"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> FetchSettings:
        """The fetch's part of all settings, read from JSON."""
        own: dict[str, Any] = {field.name: values[field.name] for field in fields(cls) if field.name in values}
        return cls(**own | {name: tuple(value) for name, value in own.items() if isinstance(value, list)})

    @property
    def agent(self) -> str:
        """Value of the User-Agent header."""
        return self.user_agent or f"curate/{__version__} (+{self.contact})"

    @property
    def product(self) -> str:
        """The name that robots.txt and X-Robots-Tag know us by: the first product of the user agent."""
        return self.agent.split("/")[0].split()[0].lower()
