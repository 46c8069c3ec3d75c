"""Find by what images show: what the page and REST say was searched, and beside an index."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from curate.api import Workspace
from curate.engine.run import run
from curate.service.app import create_app
from curate.service.samples import find
from curate.service.service import Service
from curate.service.settings import Settings
from curate.service.view import set_up
from tests.api.test_words import photos, recipe
from tests.service.pages.markup import Markup
from tests.text.wordnet.wordnets import real  # noqa: F401  (a fixture)

URL = "http://127.0.0.1:8090"


@pytest.fixture(scope="module")
def client(
    real: Path,  # noqa: F811
    migrated_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TestClient]:
    """Over runs with concepts, without and with an index, and one without concepts."""
    folder = tmp_path_factory.mktemp("shown")
    images = photos(folder / "images")
    made = {"named": recipe(images), "tiny": recipe(images, "tiny"), "vectors": recipe(images, named=False)}
    for name, pipeline in made.items():
        run(pipeline, str(folder / "workspace"), run_id=name)
    shutil.copy(migrated_file, folder / "view.db")
    with closing(Service.of(Settings(database=f"sqlite:///{folder}/view.db", url=URL))) as service:
        service.alone = set_up(service, Workspace(str(folder / "workspace")))
        service.sandbox.start = lambda: None  # type: ignore[method-assign]
        with TestClient(create_app(service, reconcile=False), base_url=URL) as opened:
            yield opened


def page(client: TestClient, text: str, run: str) -> str:
    answer = client.get("/find", params={"q": text, "run": run})
    assert answer.status_code == 200 and Markup(answer.text).problems == []
    return answer.text


def answer(client: TestClient, text: str, run: str, what: str = "find", **params: Any) -> dict[str, Any]:
    found = client.get(f"/api/v1/runs/{run}/{what}", params={"text": text, **params})
    assert found.status_code == 200, found.text
    return dict(found.json())


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"].partition(".")[0] for row in rows}


def test_rest_gives_the_images_that_show_it_and_what_was_searched(client: TestClient) -> None:
    found = answer(client, "red cars", "named")
    assert "car" in names(found["shown"]) and "cab" not in names(found["shown"])
    assert found["words"] == "Images that show cars (car.n.01) and that are red in the middle"
    assert (found["by"], found["rows"]) == ("text", [])
    found = answer(client, "lemon", "named", limit=1)
    assert {"lemon", "lemon_grey"} <= names(found["shown"]) and names(found["rows"]) <= {"lemon", "lemon_cmyk"}
    found = answer(client, "lemon", "named", limit=1, cursor=found["next"] or "0")
    assert (found["shown"], found["words"]) == ([], "")  # they are on the first page


def test_the_page_says_what_it_searched(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(client, "yellow fruit", "named")
    assert "By what images show" in text and "% sure" in text
    assert "Images that show fruit (fruit.n.01) and that are yellow in the middle, the most probable first" in text
    assert "Images that show whale (giant.n.04, whale.n.02): none" in page(client, "whale", "named")
    assert "not searched: zorblax" in page(client, "red zorblax", "named")
    monkeypatch.setattr(find, "SHOWN", 1)
    assert len(answer(client, "fruits", "named")["shown"]) == 1


def test_a_word_that_wordnet_lacks_is_named(client: TestClient) -> None:
    assert "WordNet knows no visible thing &#39;zorblax&#39;" in page(client, "zorblax", "named")
    assert answer(client, "zorblax", "named")["words"] == "WordNet knows no visible thing 'zorblax'"
    assert "visible thing &#39;&lt;script" in page(client, "zorblax <script>".replace("zorblax ", ""), "named").lower()


def test_a_run_without_concepts_names_none(client: TestClient) -> None:
    for text in ("dog", "red", "zorblax"):
        assert answer(client, text, "vectors")["words"] == "" and "WordNet" not in page(client, text, "vectors")
    assert answer(client, "the", "named")["words"] == "" and "images show</h2>" not in page(client, "the", "named")


def test_words_are_not_shown_again_as_meanings(client: TestClient) -> None:
    text = page(client, "dogs", "tiny")
    assert "By what images show" in text and "By meaning" not in text and "similarity" not in text
    assert "By meaning" in page(client, "whale", "tiny")  # no image shows one: the nearest vectors
    found = answer(client, "dogs", "tiny", "search")
    assert found["said"].startswith("Images that show dogs") and "chihuahua" in names(found["hits"])
    assert answer(client, "dogs", "tiny", "search", stage="index")["said"] == ""


def test_the_longest_text_is_answered(client: TestClient) -> None:
    longest = " ".join("abcdefghijklmnopqrstuvwxyz" * 6)[: find.LONGEST]
    assert "WordNet knows no visible thing" in answer(client, longest, "named")["words"]


def test_what_is_like_an_unknown_sample_says_so(client: TestClient) -> None:
    found = client.get("/find", params={"run": "tiny", "like": "nowhere"})
    assert found.status_code == 200 and "Not searched by meaning: " in found.text
