"""The Python client, the command line and `distill` against the real application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from curate.cli import app
from curate.client import Client, ServerError
from curate.core.errors import DrainedError
from distill.samples.sources.tagged import resolve
from tests.service.served import Served, served

Run = Callable[..., Result]
STAGES = ["pool", "inspect", "all", "dataset"]


@pytest.fixture(scope="module")
def site(migrated_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(migrated_file, tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def client(site: Served) -> Iterator[Client]:
    with Client(site.url, site.people.operator.token) as made:
        yield made


@pytest.fixture
def curate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command; `typed` goes to its standard input."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("curate.cli.remote.LOOK_SECONDS", 0.1)
    for name in ("CURATE_SERVER", "CURATE_TOKEN", "CURATE_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words, typed="": CliRunner().invoke(app, [str(word) for word in words], input=typed)


@pytest.fixture(scope="module")
def done(site: Served, client: Client) -> str:
    """A run that is done."""
    run = client.submit(site.recipe, workspace="main", title="toys", options={"failure_budget": 0.5})
    assert run.wait(120)["state"] == "done"
    return run.id


# --- Python -----------------------------------------------------------------------------------------------------------


def test_me(client: Client) -> None:
    assert client.me()["user"] == "operator"


def test_a_recipe_is_checked_and_planned(site: Served, client: Client) -> None:
    text = site.recipe.read_text()
    assert client.check(text, "main")["ok"]
    found = client.check(text, "main", ["pool.path=/etc"])
    assert not found["ok"] and "/etc" in found["mistakes"][0]["text"]
    assert [stage["stage"] for stage in client.plan(site.recipe, "main")["plan"]] == [
        "pool",
        "inspect",
        "all",
        "dataset",
    ]


def test_events_of_a_run_that_is_done_come_with_its_states(client: Client, done: str) -> None:
    events = list(client.run(done).events())
    states = [event["data"]["state"] for event in events if event["event"] == "state"]
    stages = [event["data"]["stage"] for event in events if event["event"] == "stage"]
    assert states[-1] == "done" and stages == STAGES
    last = [event["id"] for event in events if event["id"]][-2]
    assert len([event for event in client.run(done).events(last) if event["id"]]) == 1


def test_events_come_while_it_runs(site: Served, client: Client) -> None:
    run = client.submit(site.recipe, workspace="main", set=["dataset.name=live"])
    events = list(run.events())
    states = [event["data"]["state"] for event in events if event["event"] == "state"]
    assert states[-1] == "done" and len(states) > 1
    assert "dataset" in [event["data"].get("stage") for event in events if event["event"] == "stage"]


def test_what_a_run_made(client: Client, done: str) -> None:
    [dataset] = client.datasets("main", query="toy")
    assert (dataset["name"], dataset["rows"]) == ("toy", 4)
    assert [line["after"] for line in client.run(done).funnel()] == [4, 4, 4, 4]
    assert client.run(done).status()["options"]["failure_budget"] == 0.5
    assert done in [run["id"] for run in client.runs(workspace="main", state="done", limit=1)]
    assert all(line["level"] != "debug" for line in client.run(done).logs())


def test_a_tag_leads_to_the_dataset(site: Served, client: Client, done: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [dataset] = client.datasets("main", query="toy")
    client.tag("main", "toy", "good", dataset["base"])
    assert client.resolve("toy@good")["url"] == dataset["url"]
    monkeypatch.setenv("CURATE_TOKEN", site.people.viewer.token)
    found = resolve(f"curate://{site.url.removeprefix('http://')}/toy@good?workspace=main")
    assert (found.dataset, found.fingerprint) == (dataset["url"], dataset["fingerprint"])


def test_the_same_id_submits_once(site: Served, client: Client) -> None:
    runs = [client.submit(site.recipe, workspace="main", id="once").id for _ in range(2)]
    assert runs[0] == runs[1]
    with pytest.raises(ServerError) as raised:
        client.submit(site.recipe, workspace="main", id="once", title="another")
    assert raised.value.status == 409


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda c: c.run("nothing").status(), "not_found"),
        (lambda c: c.submit("stages: {}", workspace="main"), "invalid"),
        (lambda c: c.submit("stages: {}", workspace="other"), "not_found"),
        (lambda c: c.submit("stages: {}", workspace="main", priority=5), "forbidden"),
        (lambda c: c.submit("stages: {}", workspace="main", colour="red"), "invalid"),
        (lambda c: c.resolve("toy@nothing"), "not_found"),
    ],
)
def test_problems_have_codes(client: Client, call: Callable[[Client], object], code: str) -> None:
    with pytest.raises(ServerError) as raised:
        call(client)
    assert raised.value.code == code and "\n" not in str(raised.value)


def test_a_queued_run_is_stopped_and_resumed(site: Served, client: Client) -> None:
    with site.full():
        run = client.submit(site.recipe, workspace="main", set=["dataset.name=waited"])
        run.stop()
        with pytest.raises(DrainedError, match=f"^run {run.id}: stopped"):
            run.wait(120)
        assert run.resume()["attempt"] == 2
    assert run.wait(120)["attempt"] == 2
    with pytest.raises(ServerError, match="done"):
        run.resume()


# --- the command line -------------------------------------------------------------------------------------------------


def test_the_verbs(site: Served, curate: Run, done: str) -> None:
    result = curate("login", site.url, "--name", "here", typed=site.people.operator.token + "\n")
    assert result.exit_code == 0, result.exception
    assert "logged in to" in result.output and "as operator (operator in main" in result.output
    assert site.people.operator.token not in result.output

    run = curate(
        "submit", site.recipe, "--server", "here", "--title", "by hand", "--set", "dataset.name=hand"
    ).stdout.strip()
    watched = curate("watch", run, "--server", "here")
    assert watched.exit_code == 0, watched.exception
    assert "dataset: done, 4 rows" in watched.output and f"{run}: done" in watched.output
    assert "dataset  datasets/hand/" in watched.output
    listed = curate("runs", "--server", "here", "-w", "main", "--user", "operator").output
    assert run in listed and "4 of 4" in listed
    assert "done" in str(curate("stop", run, "--server", "here").exception)
    assert "done" in str(curate("resume", run, "--server", "here").exception)
    assert curate("logs", run, "--server", "here", "--level", "debug").exit_code == 0
    shown = curate("status", run, "--server", "here").output
    assert f"{run}: done" in shown and "Funnel" in shown and "datasets/hand/" in shown
    assert run in curate("status", "--server", "here").output
    explained = curate("explain", "0.png", "--run", run, "--server", "here")
    assert explained.exit_code == 0 and "inspect (image.inspect)" in explained.output, explained.exception
    assert "--run: needed with --server" in str(curate("explain", "0.png", "--server", "here").exception)
    assert "done" in str(curate("limit", run, "--server", "here", "--max-tokens", "5").exception)
    assert curate("logout", "here").exit_code == 0
    assert "no token" in str(curate("runs", "--server", site.url).exception)


def test_a_wrong_token_is_not_stored(site: Served, curate: Run, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("cur_01234567_" + "x" * 43)
    result = curate("login", site.url, "--token-file", tmp_path / "token")
    assert str(result.exception).startswith("not logged in")
    assert not (tmp_path / "curate").exists()


def test_a_waiting_run_is_stopped_and_resumed(site: Served, curate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURATE_SERVER", site.url)
    monkeypatch.setenv("CURATE_TOKEN", site.people.operator.token)
    with site.full():
        run = curate("submit", site.recipe, "--set", "dataset.name=cli").stdout.strip()
        assert curate("priority", run, "-3").output.startswith(f"run {run}: priority -3, position ")
        assert "admin" in str(curate("priority", run, "3").exception)
        result = curate("stop", run)
        assert f"run {run}: stopped" in result.output, result.exception
        assert str(curate("watch", run).exception).startswith(f"run {run}: stopped")
        assert curate("resume", run).output.startswith(f"run {run}: queued again, attempt 2")
    assert curate("watch", run).exit_code == 0
