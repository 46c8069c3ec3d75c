"""A run that uses a secret leaves nothing of it: not in the workspace, not on the terminal, not in `ps`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from curate.core import secrets
from curate.core.contracts import Batch, Map, Runtime, Secret
from curate.core.errors import PreflightError
from curate.core.recipe import load as recipe
from curate.core.recipe.pipeline import Pipeline
from curate.engine.backends.local import LocalBackend
from curate.engine.preflight import check_workers
from curate.engine.tasks.running import run_isolated
from curate.engine.workers.scheduler import Scheduler
from tests.e2e.commands import CommandResult, curate
from tests.engine import toys, workspaces
from tests.engine.leaks import VALUE, traces, traces_in


class Sign(Map):
    """Signs captions with a secret, except number 3. `tells`: how it leaks the secret there, `raise` or `fail`."""

    op: ClassVar[str] = "toy.sign"
    batch_rows: ClassVar[int] = 4
    key: Secret = Secret("env:TOY_KEY")
    tells: Annotated[str, Runtime()] = "nothing"
    _value: str = ""

    def setup(self, artifacts: Any) -> None:
        self._value = self.key.value()

    def reads(self) -> tuple[str, ...]:
        return ("caption",)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("signature", pa.string())])

    def process(self, batch: Batch) -> dict[str, Any]:
        captions = batch.column("caption")
        if "picture 3" in captions and self.tells == "fail":
            batch.fail(captions.index("picture 3"), f"refused {self._value}")
        elif "picture 3" in captions:
            login = base64.b64encode(f"user:{self._value}".encode()).decode()
            raise ConnectionError(
                f"500 for key={self._value}, Basic {login}" if self.tells == "raise" else "the endpoint is gone"
            )
        key = self._value.encode()
        return {"signature": [hmac.new(key, text.encode(), hashlib.sha256).hexdigest() for text in captions]}


@pytest.fixture
def value(monkeypatch: pytest.MonkeyPatch) -> str:
    """The secret is set, and no other test has read it."""
    monkeypatch.setattr(secrets, "_read", {})
    monkeypatch.setenv("TOY_KEY", VALUE)
    return VALUE


@pytest.fixture
def written(tmp_path: Path) -> Path:
    here = f"{__name__}:Sign"
    stages = {
        "pool": {"op": "tests.engine.toys:Numbers", "namespace": "toys", "rows": 12, "shard_rows": 6},
        "sign": {"op": here, "from": "pool", "key": "env:TOY_KEY"},
        "sample": {"op": "select.all", "from": "sign"},
        "dataset": {"op": "pack.webdataset", "from": "sample", "name": "signed"},
        "report": {"op": "report.html", "from": "dataset"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"stages": stages}, sort_keys=False))
    return tmp_path / "recipe.yaml"


def test_the_search_finds_planted_traces(tmp_path: Path) -> None:
    login = base64.b64encode(f"user:{VALUE}".encode()).decode()
    pq.write_table(pa.table({"a": [[f"x{VALUE[9:]}"]]}), tmp_path / "rows.parquet", compression="zstd")
    (tmp_path / "basic").write_text(f"Basic {login}")
    (tmp_path / "hex").write_text(VALUE.encode().hex())
    (tmp_path / VALUE[-8:]).write_text("")
    assert {found.split(": ")[0].rpartition("/")[2] for found in traces_in(tmp_path)} == {
        "rows.parquet", "basic", "hex", VALUE[-8:],
    }  # fmt: skip


def outputs_of_a_run(written: Path, workspace: Path, *words: str) -> list[CommandResult]:
    """A run, and the output of all commands about it."""
    place = ("-w", workspace)
    ran = curate("run", written, *place, *words, "--run-id", "one", "--json", workspace.parent / "one.json")
    again = curate("run", written, *place, *words, "--run-id", "two", "--json", workspace.parent / "two.json")
    asked = (("status",), ("status", "one"), ("diff", "one", "two"), ("explain", "000001"), ("explain", "000003"))
    return [ran, again, *(curate(*command, *place) for command in asked), curate("ops", f"{__name__}:Sign")]


@pytest.mark.parametrize("tells", ["nothing", "raise", "fail"])
def test_nothing_of_a_secret_is_left(value: str, written: Path, workspace: Path, tells: str) -> None:
    """Also when the stage puts it into an exception's message or a row's reason."""
    printed = outputs_of_a_run(written, workspace, "--failure-budget", "0.5", "--set", f"sign.tells={tells}")
    assert [each.code for each in printed] == [0] * len(printed), printed
    assert traces("terminal", repr(printed).encode()) == [] and traces_in(workspace.parent) == []
    assert "TOY_KEY" in printed[-1].words and " secret " in printed[-1].words
    record = (workspace / "runs/one/run.json").read_text()
    assert record.count("env:TOY_KEY") == 1  # in the recipe as it was given, and in no parameters


@pytest.mark.parametrize("tells", ["nothing", "raise"])
def test_a_secret_in_messages_of_a_stage_is_redacted(value: str, written: Path, workspace: Path, tells: str) -> None:
    """In the error that stops a run because of its lost rows, and wherever the workspace keeps it."""
    printed = curate("run", written, "-w", workspace, "--set", f"sign.tells={tells}", "--failure-budget", "0")
    assert ("500 for key=[env:TOY_KEY], Basic" if tells == "raise" else "the endpoint is gone") in printed.error
    assert traces("error", repr(printed).encode()) == []
    assert traces_in(workspace) == []


def test_another_reference_computes_nothing_again(
    value: str, written: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", written, "-w", workspace, "--failure-budget", "0.5")
    monkeypatch.setenv("TOY_OTHER", "another value")
    assert curate(*words).code == 0
    before = workspaces.times(workspace)
    assert curate(*words, "--set", "sign.key=env:TOY_OTHER").code == 0
    assert workspaces.times(workspace) == before


def test_a_secret_that_is_not_set_stops_a_run_before_it_begins(
    written: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOY_KEY", raising=False)
    printed = curate("run", written, "-w", workspace)
    problem = "env:TOY_KEY: the environment variable is not set; every machine that runs this stage needs it"
    assert printed.error.endswith(f"recipe.yaml:7: sign.key: {problem}")
    assert not list(workspace.glob("pools/**/*")) and not list(workspace.glob("runs/**/*"))


def test_the_check_names_stage_and_parameter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipeline = Pipeline().add("pool", toys.Numbers(namespace="toys"))
    pipeline.add("sign", Sign(key=Secret(f"file:{tmp_path}/key")), "pool")
    with pytest.raises(PreflightError, match=r"^pipeline: sign\.key: file:.*/key: the file cannot be read \(No such"):
        check_workers(pipeline, Scheduler(LocalBackend()))
    (tmp_path / "key").write_text("x")
    check_workers(pipeline, Scheduler(LocalBackend()))


def test_a_value_on_the_command_line_is_rejected(written: Path, workspace: Path) -> None:
    for setting in (f"sign.key={VALUE}", f"sing.key={VALUE}", VALUE, f"sign.kye={VALUE}"):
        printed = curate("run", written, "-w", workspace, "--set", setting)
        assert printed.error and traces("error", repr(printed).encode()) == []
    assert not workspace.exists()


def words_of_processes(_: Any) -> str:
    """Command lines of all processes of this machine, as `ps` shows them."""
    return "\n".join(path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline"))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_an_isolated_process_gets_the_environment_in_secret(value: str) -> None:
    outcome = run_isolated(words_of_processes, None, 0)
    assert "forkserver" in outcome.value and traces("ps", outcome.value.encode()) == []
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout
    assert traces("ps", listed) == []


def test_what_workers_on_ray_get_of_the_environment() -> None:
    from curate.engine.backends.connection import passed_on

    secret = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "HF_TOKEN", "FSSPEC_S3", "TOY_KEY")
    hidden = ("CURATE_API_KEY", "CURATE_LOGIN_TOKEN", "CURATE_DB_PASSWORD", "CURATE_client_secret")
    given = {"CURATE_WORDNET": "/w", "HF_HOME": "/h", "HF_HUB_OFFLINE": "1"}
    assert passed_on(dict.fromkeys((*secret, *hidden), VALUE) | given) == given


def test_the_same_recipe_in_python_has_the_same_parameters(written: Path) -> None:
    stage = recipe.load(written).nodes["sign"].stage
    assert stage == Sign() and stage.parameters() == {}
