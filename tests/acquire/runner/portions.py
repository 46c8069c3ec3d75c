"""Runs portions for tests: images are mounted on a loopback server and fetched by a real runner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from curate.acquire.download.download import AcquireDownload
from curate.acquire.download.runner import Answer, Runner
from pipelines.serve import ImageServer


def settings(*servers: ImageServer, **changes: Any) -> dict[str, Any]:
    """Those of acquire.download, for loopback servers."""
    fields = AcquireDownload.model_fields
    defaults = {name: field.get_default() for name, field in fields.items() if not field.is_required()}
    ours = {
        "contact": "tests@example.org",
        "allow_networks": ["127.0.0.0/8"],
        "allow_ports": [server.port for server in servers],
        "thread_count": 8,
        "host_connections": 8,
    }
    return defaults | ours | changes


def fetched(images: Mapping[str, bytes], **changes: Any) -> dict[str, tuple[Answer, bytes]]:
    """Name -> its answer and the stored bytes, after one portion of all images."""
    names = list(images)
    with ImageServer(mounted=images) as server, Runner(settings(server, **changes)) as runner:
        rows = [{"row": row, "url": server.url(name)} for row, name in enumerate(names)]
        return {names[answer.row]: (answer, runner.read(answer)) for answer in runner.run(rows, 120)}
