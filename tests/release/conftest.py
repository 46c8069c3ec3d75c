"""A dataset of downloaded images, made once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from curate.acquire.download.download import AcquireDownload
from curate.acquire.lists.list import AcquireList
from curate.api import Workspace
from curate.core.recipe.pipeline import Pipeline
from curate.filter.where import Where
from curate.image.inspect import Inspect
from curate.pack.webdataset import PackWebDataset
from curate.select.all import SelectAll
from tests.acquire.download.site import Site, write_list
from tests.codec.make_images import encoded, noise

COUNT = 200
LICENCES = ("cc0", "cc-by", "all rights reserved", None)


@dataclass(frozen=True)
class Made:
    """A workspace with the run `first`, and the server of its images, of which tests may change `mounted`."""

    site: Site
    workspace: Workspace
    images: dict[str, bytes]
    licences: dict[str, str | None]
    """By URL, of all rows of the list."""

    def fetching(self, **changes: Any) -> dict[str, Any]:
        return {"allow_networks": ("127.0.0.0/8",), "allow_ports": (self.site.port,)} | changes


def pipeline(site: Site, path: Path, keep: str) -> Pipeline:
    made = Pipeline().add("urls", AcquireList(path=str(path), portion_rows=100))
    made.add("pool", AcquireDownload(**site.settings()), list="urls")
    made.add("inspect", Inspect(), "pool")
    made.add("free", Where(keep=keep, reason="licence"), "inspect")
    made.add("sample", SelectAll(), "free")
    return made.add("dataset", PackWebDataset(name="photos", shard_rows=50), "sample").check()


@pytest.fixture(scope="module")
def made(runner_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """COUNT images with a free licence, and others; the list says who made each."""
    folder = tmp_path_factory.mktemp("made")
    names = [f"{number}.jpg" for number in range(COUNT * 2)]
    images = {name: encoded(noise(16 + number % 7, 16, seed=number), "jpeg") for number, name in enumerate(names)}
    with Site() as site:
        site.mounted = dict(images)
        addresses = site.addresses
        rows = [
            {"url": site.url(name, addresses[number % len(addresses)]), "caption": f"photo {number}",
             "license": LICENCES[number % 4], "source": f"agency {number % 3}"}
            for number, name in enumerate(names)
        ]  # fmt: skip
        workspace = Workspace(str(folder / "workspace"))
        path = write_list(folder / "list.jsonl", rows)
        workspace.submit(pipeline(site, path, "meta.license in ('cc0', 'cc-by')"), run_id="first").wait()
        yield Made(site, workspace, images, {row["url"]: row["license"] for row in rows})
