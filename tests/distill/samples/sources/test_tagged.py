"""`curate://SERVER/NAME@TAG`: datasets by tag, resolved once and recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch.distributed as dist
from rich.console import Console

from curate.client import logins
from curate.core.errors import InputError
from distill.commands.evaluate import evaluate
from distill.commands.tags import with_resolved_tags
from distill.commands.train import train
from distill.parallel import LostRankError
from distill.recipe import parse_recipe
from distill.samples.sources.tagged import _parsed, is_tagged, resolve, tags_of
from distill.training.run_folder import RunFolder
from tests.distill.datasets import drawn_items, write_dataset

QUIET = Console(quiet=True)
TOKEN = "cur_0123"
T = TypeVar("T")


class Service:
    """The one resource of the API that `distill` reads."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                dataset = service.tags.get(self.path.rpartition("/")[2].partition("?")[0])
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self._answer(401, {"code": "not_logged_in", "detail": "log in"})
                elif dataset is None:
                    self._answer(404, {"code": "not_found", "detail": "toy@other: no such tag; its tags are good"})
                else:
                    self._answer(200, {"url": dataset, "fingerprint": "f" + Path(dataset).name})

            def _answer(self, status: int, value: dict[str, Any]) -> None:
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"127.0.0.1:{self.server.server_port}"

    @property
    def good(self) -> str:
        return f"curate://{self.place}/toy@good"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CURATE_TOKEN", TOKEN)
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


class Ranks:
    """Ranks of torchrun, in turn: its agent's store and environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.patch = monkeypatch
        for name, value in {
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
        }.items():
            monkeypatch.setenv(name, value)

    def of(self, rank: int, call: Callable[[], T]) -> T:
        self.patch.setenv("RANK", str(rank))
        return call()


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A dataset that the tag moves to."""
    return write_dataset(tmp_path / "other", drawn_items(40))


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("curate://lab/toy@good", ("lab", "toy@good", None)),
        ("curate://lab.example:8443/toy@good?workspace=main", ("lab.example:8443", "toy@good", "main")),
        ("curate+http://10.0.0.1:8080/a%20b@v1.2", ("http://10.0.0.1:8080", "a b@v1.2", None)),
    ],
)
def test_urls(url: str, parsed: tuple[str, str, str | None]) -> None:
    assert is_tagged(url) and _parsed(url) == parsed


@pytest.mark.parametrize("place", ["/data/toy", "s3://bucket/toy", "curate", "toy@good"])
def test_other_places_are_not_tags(place: str) -> None:
    assert not is_tagged(place)


@pytest.mark.parametrize(
    "url",
    ["curate:///toy@good", "curate://lab/toy", "curate://lab/a/toy@good", "curate://lab/@good", "curate://lab/t@g?x=1"],
)
def test_a_wrong_url_is_one_line(url: str) -> None:
    with pytest.raises(InputError, match=r"^data.sources: curate://.*: expected curate://SERVER/NAME@TAG"):
        resolve(url)


def test_an_unknown_tag_is_one_line(service: Service) -> None:
    with pytest.raises(InputError, match=r"^data.sources: curate://.*/toy@other: toy@other: no such tag"):
        resolve(service.good.replace("good", "other"))


def test_the_token_of_a_login_is_used(service: Service, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.delenv("CURATE_TOKEN")
    with pytest.raises(InputError, match="no token; run `curate login"):
        resolve(service.good)
    logins.save(logins.Login(f"http://{service.place}", TOKEN, "lab"))
    service.tags["toy@good"] = str(folder)
    found = resolve("curate://lab/toy@good?workspace=main")
    assert (found.dataset, found.fingerprint) == (str(folder), "ftoy")
    assert service.asked == ["/api/v1/resolve/toy@good?workspace=main"]


def test_a_run_records_its_dataset_and_stays_with_it(
    service: Service, values: dict[str, Any], folder: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.tags["toy@good"] = str(folder)
    values["data"]["sources"][0]["dataset"] = service.good
    values["train"] |= {"steps": 1, "warmup_steps": 0}
    recipe = parse_recipe(values, "test")
    run = train(recipe, QUIET)
    [source] = run.recipe().data.sources
    assert source.dataset == str(folder) and source.tag is not None
    assert (source.tag.url, source.tag.dataset, source.tag.fingerprint) == (service.good, str(folder), "ftoy")
    assert source.tag.resolved.endswith("Z")

    service.tags["toy@good"] = str(other)  # the same command finds the run, and its dataset
    assert train(recipe, QUIET).fingerprint() == run.fingerprint()
    assert len(service.asked) == 1
    assert evaluate(str(run.path), [], QUIET)["sets"]  # needs no server
    assert len(service.asked) == 1


def test_a_folder_named_by_the_fingerprint_is_resumed_until_the_run_is_finished(
    service: Service, values: dict[str, Any], folder: Path, other: Path, tmp_path: Path
) -> None:
    values["run"]["folder"] = str(tmp_path / "runs [1]" / "{name}-{fingerprint}")
    values["data"]["sources"][0]["dataset"] = service.good
    recipe = parse_recipe(values, "test")

    def dataset() -> str:
        return with_resolved_tags(recipe, QUIET, resume=True).data.sources[0].dataset

    service.tags["toy@good"] = str(folder)
    begun = RunFolder(tmp_path / "runs [1]" / "toy-0123456789ab")
    begun.path.mkdir(parents=True)
    held = with_resolved_tags(recipe, QUIET)
    begun.storage.publish_bytes("recipe.yaml", json.dumps(held.model_dump(mode="json")).encode())
    service.tags["toy@good"] = str(other)
    assert dataset() == str(folder)
    changed = parse_recipe({**values, "seed": 1}, "test")  # another run: the tag as it is now
    assert with_resolved_tags(changed, QUIET, resume=True).data.sources[0].dataset == str(other)
    begun.write("finished.json", {})
    assert dataset() == str(other)


def test_tags_of_stages_and_evaluation_are_resolved_too(service: Service, values: dict[str, Any], folder: Path) -> None:
    service.tags["toy@good"] = str(folder)
    values["stages"] = [{}, {"data": {"sources": [{"dataset": service.good, "max_tokens": 16}]}}]
    values["evaluate"]["datasets"] = [{"name": "more", "dataset": service.good, "train": service.good}]
    recipe = parse_recipe(values, "test")
    assert tags_of(recipe) == [service.good]
    found = with_resolved_tags(recipe, QUIET)
    assert found.staged()[1].data.sources[0].dataset == str(folder)
    assert (found.evaluate.datasets[0].dataset, found.evaluate.datasets[0].train) == (str(folder), str(folder))
    assert len(service.asked) == 1 and found.semantic() == recipe.semantic()


def test_the_first_rank_asks_for_all(service: Service, values: dict[str, Any], folder: Path, ranks: Ranks) -> None:
    service.tags["toy@good"] = str(folder)
    values["data"]["sources"][0]["dataset"] = service.good
    recipe = parse_recipe(values, "test")
    found = [ranks.of(rank, lambda: with_resolved_tags(recipe, QUIET)) for rank in (0, 1)]
    assert found[0] == found[1] and len(service.asked) == 1


def test_an_error_of_the_first_rank_is_that_of_all(service: Service, values: dict[str, Any], ranks: Ranks) -> None:
    values["data"]["sources"][0]["dataset"] = service.good
    recipe = parse_recipe(values, "test")
    for rank, kind in ((0, InputError), (1, LostRankError)):
        with pytest.raises(kind, match="no such tag"):
            ranks.of(rank, lambda: with_resolved_tags(recipe, QUIET))
    assert len(service.asked) == 1
