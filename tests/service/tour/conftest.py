"""One service with its own Ray, for the tours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from PIL import Image

from curate.client import Client
from tests.engine.gates import Gate
from tests.service.one_machine import embedded

IMAGES, SHARDS = 200, 4


@dataclass(frozen=True)
class Tour:
    url: str
    token: str
    folder: Path

    def recipe(self, inspect: dict[str, str], name: str) -> str:
        """200 images in 4 shards. inspect: op and parameters of the second stage."""
        pool = {"op": "acquire.folder", "path": "images", "namespace": name, "shard_rows": IMAGES // SHARDS}
        stages = {
            "pool": pool,
            "inspect": {**inspect, "from": "pool"},
            "all": {"op": "select.all", "from": "inspect"},
            "dataset": {"op": "pack.webdataset", "from": "all", "name": name},
        }
        return yaml.safe_dump({"description": f"Images to {name}", "stages": stages}, sort_keys=False)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    folder = tmp_path_factory.mktemp("tour")
    (folder / "images").mkdir()
    for number in range(IMAGES):
        Image.new("RGB", (16, 16), (number, 255 - number, 0)).save(folder / "images" / f"{number}.png")
    with embedded(folder / "ws", roots={"images": str(folder / "images"), "gate": str(folder)}) as site:
        with Client(site.url, site.token) as client:
            op = {"kind": "op", "name": "dear", "value": "tests.engine.toys.rows:Costly"}
            client.post("registrations", {"workspace": "main", **op})
        yield Tour(site.url, site.token, folder)
    assert site.code == 0 and "Traceback" not in site.err.read_text()


@pytest.fixture
def gate(tour: Tour) -> Iterator[Gate]:
    made = Gate(tour.folder)
    yield made
    made.close()
