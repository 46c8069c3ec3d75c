"""Captions a balanced sample of images through an OpenAI-compatible endpoint. `make recaption` runs this.

Without an endpoint, `transformers serve` runs a tiny random model: every step runs, and the texts are nonsense.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from curate.codec.formats import RASTER_EXTENSIONS
from curate.core.endpoints import read_endpoints
from curate.core.errors import InputError
from curate.core.secrets import is_reference
from pipelines import tiny_vlm
from pipelines.commands import count_files, one_line, parser_of, run_pipeline
from pipelines.openclipart import openclipart
from pipelines.quickstart import PHOTOS, levels

PIPELINE = "pipelines/recaption.yaml"
CACHE = Path(".cache")
GIVEN, TINY = "given", "tiny"
"""Names of the endpoints in the files that this script writes."""
TARGET = 500
TINY_TARGET = 40
"""Images to caption with the tiny model, which answers one request after the other."""
NONSENSE = (
    "recaption: no ENDPOINT given, so a tiny model with random weights answers: its texts are nonsense.\n"
    "           For captions: make recaption ENDPOINT=http://HOST:8000/v1 MODEL=NAME [KEY=env:VARIABLE]"
)


def given_endpoint(url: str | None, model: str | None, key: str | None) -> list[str]:
    """Settings to ask an endpoint that runs, or none if nothing is given. The key is a reference; the file does not
    contain its value."""
    if url is None:
        if model or key:
            raise InputError("ENDPOINT is missing; give the base URL of the server, http://HOST:PORT/v1")
        return []
    if model is None:
        raise InputError(f"ENDPOINT={url}: MODEL is missing; give the name of the model that the endpoint serves")
    if key and not is_reference(key):  # the file must not contain the key itself
        raise InputError("KEY: expected a reference to the key, env:NAME or file:PATH, not the key itself")
    about = {"base_urls": [url], "model": model} | ({"key": key} if key else {})
    return [f"endpoints={write_endpoints(GIVEN, about)}"]


def tiny_endpoint() -> list[str]:
    """Settings to start a server with the tiny model."""
    folder = (CACHE / "tiny-vlm").absolute()
    if not folder.exists():  # in its own process, because it imports torch and transformers
        command = [sys.executable, "-m", tiny_vlm.__name__, str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    launch = {"server": "transformers", "gpus": 0, "arguments": ["--dtype", "float32"], "startup_seconds": 300}
    return [f"endpoints={write_endpoints(TINY, {'model': str(folder), 'launch': launch})}"]


def write_endpoints(name: str, about: dict[str, Any]) -> Path:
    """A file with one endpoint. Raises InputError if it is not valid."""
    path = (CACHE / f"endpoint-{name}.yaml").absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({name: about}, sort_keys=False))
    read_endpoints(str(path))
    return path


def images_of(folder: Path | None, target: int) -> list[str]:
    """Settings for the corpus, or for your own folder; its size decides how many clusters there are, and at most half
    of it is captioned."""
    if folder is None:
        return [f"images={openclipart(CACHE / 'openclipart')}", f"target={target}"]
    files = count_files(folder, RASTER_EXTENSIONS, "IMAGES", "images")
    target = min(target, max(1, files // 2))
    own = [
        f"images={folder.absolute()}",
        "namespace=images",
        f"encoder={PHOTOS}",
        "pool.label=-1",
        "dataset.carry={label: meta.label, text_from: best_from}",
    ]
    return [*own, levels(files), f"target={target}"]


def main() -> None:
    arguments = parser_of(__doc__, "--images", "--set", "--endpoint", "--model", "--key").parse_args()
    with one_line("recaption"):
        settings = given_endpoint(arguments.endpoint, arguments.model, arguments.key)
        if not settings:
            print(NONSENSE, flush=True)
            settings = tiny_endpoint()
        settings += images_of(arguments.images, TARGET if arguments.endpoint else TINY_TARGET)
        outputs = run_pipeline(PIPELINE, [*settings, *arguments.set], arguments.workspace, arguments.engine)
    print(f"\ndataset  {outputs['dataset']}\nreport   {outputs['report']}/index.html")
    if not arguments.endpoint:
        print("captions nonsense: a tiny model with random weights wrote them")


if __name__ == "__main__":
    main()
