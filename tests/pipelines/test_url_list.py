from __future__ import annotations

import json
from pathlib import Path

import pytest

from curate.api import load_recipe
from pipelines import url_list
from pipelines.serve import ImageServer
from pipelines.url_list import PIPELINE, own_list, served

LIST = "url,caption\n" + "".join(f"https://example.org/{number}.jpg,number {number}\n" for number in range(100))


@pytest.fixture
def links(tmp_path: Path) -> str:
    path = tmp_path / "links.csv"
    path.write_text(f"{LIST},no URL\n")
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--list", "LIST"], "LIST=LIST: CONTACT is missing; give an e-mail address or a URL"),
        (["--list", "LIST", "--contact", "me"], "pool.contact: 'me': expected an e-mail address or a URL"),
        (["--list", "LIST", "--contact", "me@example.org", "--set", "urls.columns={url: link}"], "no column 'link'"),
        (["--list", "nowhere.csv", "--contact", "me@example.org"], "'nowhere.csv' does not exist"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_line(
    words: list[str], message: str, links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["url_list", *(links if word == "LIST" else word for word in words)])
    with pytest.raises(SystemExit) as exit:
        url_list.main()
    said = str(exit.value)
    assert said.startswith("url_list: ") and message.replace("LIST=LIST", f"LIST={links}") in said and "\n" not in said


def test_a_port_in_use_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metadata.jsonl").touch()
    with (
        ImageServer(tmp_path) as other,
        pytest.raises(url_list.InputError, match=rf"^PORT={other.port}: Address already in use; [^\n]*$"),
        served(tmp_path, tmp_path, other.port),
    ):
        pass
    assert capsys.readouterr().out == ""


def test_the_number_of_clusters_fits_the_list(links: str) -> None:
    """Half of the 100 URLs are expected to give an image."""
    settings = own_list(links, "me@example.org", [])
    assert settings == [
        f"list={links}", "contact=me@example.org", "encoder=lite1", "levels=[7]", "target=null", "share=0.5",
    ]  # fmt: skip
    assert load_recipe(PIPELINE, settings).nodes["tree"].stage.parameters()["levels"] == [7]


@pytest.mark.parametrize("given", ["target=20", "sample.target=20"])
def test_a_target_of_your_own_is_used(links: str, given: str) -> None:
    settings = [*own_list(links, "me@example.org", [given]), given]
    parameters = load_recipe(PIPELINE, settings).nodes["sample"].stage.parameters()
    assert (parameters["target"], parameters["share"]) == (20, None)


def test_the_list_of_a_folder_is_written_once(tmp_path: Path) -> None:
    lines = [{"file_name": "a b/ü.png", "caption": "one", "category": "a b"}, {"file_name": "c.png", "caption": ""}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with ImageServer(tmp_path) as server:
        path = url_list.write_list(tmp_path, tmp_path, server)
        first = path.stat()
        assert url_list.write_list(tmp_path, tmp_path, server).stat() == first
        port = server.port
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"url": f"http://127.0.0.1:{port}/images/a%20b/%C3%BC.png", "caption": "one", "category": "a b"},
        {"url": f"http://127.0.0.1:{port}/images/c.png", "caption": ""},
    ]
