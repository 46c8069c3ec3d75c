"""Downloads a list of URLs, curates the images and trains a student on the dataset. `make url_list` runs this.

Without a list it serves the quickstart's corpus on loopback and downloads that. The server's port is part of every URL,
and so of every key: it is always the same, and the same command again downloads nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from curate.acquire.lists.list import AcquireList
from curate.api import load_recipe
from curate.core.contracts.collect import GROUP
from curate.core.errors import InputError
from pipelines.commands import one_line, parser_of, run_pipeline
from pipelines.openclipart import openclipart
from pipelines.quickstart import PHOTOS, SHARE, levels, teach
from pipelines.serve import ImageServer

PIPELINE = "pipelines/url_list.yaml"
CORPUS = Path(".cache/openclipart")
PORT = 18121
CONTACT = "url-list@example.org"
COUNTED = 100_000
"""Rows up to which a list is counted, which takes a second or two."""
SUCCESS = 0.5
"""Share of a list's URLs that are expected to give an image that is kept."""


def url_list(settings: list[str], workspace: str, engine: str, training: list[str], console: Console) -> dict[str, str]:
    """Run the pipeline, train a student and evaluate it; returns the outputs of the pipeline.

    training: overrides of the training recipe.
    """
    outputs = run_pipeline(PIPELINE, settings, workspace, engine)
    labels = "add SET=dataset.carry.label=meta.COLUMN with a column of the list"
    teach(outputs, workspace, ["name=url_list", *training], console, labels)
    return outputs


@contextmanager
def served(images: Path, lists: Path, port: int = PORT) -> Iterator[list[str]]:
    """Settings to download a folder of images with metadata.jsonl from a loopback server, which ends with the context.
    The list of its URLs is a file in the folder `lists`."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(ImageServer(images, port=port))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise InputError(f"PORT={port}: {why}; end what uses it, or give another port") from None
        print(f"url_list: serving {images} at {server.origin()}", flush=True)
        yield [
            f"list={write_list(images, lists, server)}",
            "namespace=openclipart-urls",
            "allow_networks=[127.0.0.0/8]",
            f"ports=[{server.port}]",
            "urls.portion_rows=1000",  # several shards, as of a longer list
            "dataset.carry={label: meta.category, duplicate_set: duplicate_set}",
            "report.label=meta.category",
        ]


def write_list(images: Path, lists: Path, server: ImageServer) -> Path:
    """The list of a folder's images: their metadata with URLs in place of file names."""
    path = lists / f"urls-{server.port}.jsonl"
    lines = [json.loads(line) for line in (images / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    made = [json.dumps({"url": server.url(line.pop("file_name")), **line}, ensure_ascii=False) for line in lines]
    text = "\n".join(made) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        aside = path.with_suffix(".tmp")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    return path


def own_list(path: str, contact: str | None, given: list[str]) -> list[str]:
    """Settings for your own list; its length decides how many clusters there are."""
    if contact is None:
        raise InputError(
            f"LIST={path}: CONTACT is missing; give an e-mail address or a URL, by which hosts can reach you"
        )
    settings = [f"list={path}", f"contact={contact}", f"encoder={PHOTOS}"]
    target = {"target", "sample.target"} & {setting.partition("=")[0] for setting in given}
    size = [] if target else ["target=null", f"share={SHARE}"]
    stage = load_recipe(PIPELINE, [*settings, *size, *given]).nodes["urls"].stage
    assert isinstance(stage, AcquireList)
    return [*settings, levels(int(SUCCESS * count_rows(stage, COUNTED))), *size]


def count_rows(stage: AcquireList, most: int) -> int:
    """Rows with a URL, counted up to `most`."""
    rows = 0
    for part in stage.plan():
        for table in stage.read(part):
            rows += table.num_rows - table[GROUP].null_count
            if rows >= most:
                return most
    return rows


def main() -> None:
    parser = parser_of(__doc__, "--set")
    parser.add_argument("--list", help="parquet, CSV or JSON lines; default: OpenClipart, served on loopback")
    parser.add_argument("--contact", help="your e-mail address or URL, sent to every host")
    parser.add_argument("--port", type=int, default=PORT, help="port of the loopback server; it is part of every URL")
    arguments = parser.parse_args()
    with one_line("url_list"), ExitStack() as stack:
        if arguments.list:
            settings = own_list(arguments.list, arguments.contact, arguments.set)
        else:
            settings = stack.enter_context(served(openclipart(CORPUS), CORPUS, arguments.port))
        contact = f"contact={arguments.contact or CONTACT}"
        url_list([contact, *settings, *arguments.set], arguments.workspace, arguments.engine, [], Console())


if __name__ == "__main__":
    main()
