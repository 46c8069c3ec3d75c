"""What Weights & Biases, MLflow and trackio keep of a training, without a server, in an environment with them.

Each gets the values of metrics.jsonl, the recipe and the datasets' fingerprints; a resumed run continues the first.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from distill.parallel import World
from distill.recipe import parse_recipe
from distill.samples.sources.mixture import open_mixtures
from distill.training.run import TrainingRun
from distill.training.run_folder import RunFolder
from tests.distill.conftest import recipe_values
from tests.distill.datasets import drawn_items, write_dataset

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::sqlalchemy.exc.SADeprecationWarning")
"""The libraries' own warnings."""
FINGERPRINT = "0123456789abcdef" * 2
TITLE = f"toy-{FINGERPRINT[:12]}"
BLOCK_BYTES = 1 << 15
Kept = tuple[dict[int, dict[str, float]], dict[str, str]]
"""What is kept: values by step, and the fingerprints of inputs by URL."""


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("datasets") / "toy", drawn_items(40)))


def train(dataset: str, folder: Path, tracker: str, steps: int) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Lines of metrics.jsonl after the last step, and the fingerprint of each dataset; says nothing."""
    values = recipe_values(dataset, str(folder))
    values["run"]["trackers"], values["train"]["steps"] = [tracker], steps
    recipe = parse_recipe(values, "test")
    run, mixtures, said = RunFolder(folder), open_mixtures([recipe.data]), Console(record=True, quiet=False)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    TrainingRun(recipe, mixtures, run, FINGERPRINT, World(0, 1, torch.device("cpu")), said).train()
    assert "failed" not in said.export_text()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return lines, {source.url: source.fingerprint for source in mixtures[0].sources}


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Records of a file in LevelDB's format of logs, after W&B's 7 bytes. Each part has a checksum, its length, and
    whether it is a whole record (1), or its first (2), a middle (3) or its last part (4)."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if -at % BLOCK_BYTES < 7:
            at += -at % BLOCK_BYTES
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def wandb_kept(folder: Path) -> Kept:
    """Records of the files that `wandb sync` would send, of the first run and of the resumed one."""
    from wandb.proto import wandb_internal_pb2

    steps: dict[int, dict[str, float]] = {}
    inputs: dict[str, str] = {}
    for file in sorted(folder.rglob("*.wandb")):
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            if record.HasField("run"):
                assert (record.run.run_id, record.run.display_name) == (FINGERPRINT, TITLE)
                config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert config["fingerprint"] == FINGERPRINT and config["recipe"]["name"] == "toy"
                inputs = config["inputs"]
            if record.HasField("history"):
                items = {
                    ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                steps[int(record.history.step.num)] = items
    return steps, inputs


def mlflow_kept(folder: Path) -> Kept:
    from mlflow import MlflowClient

    client = MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("distill").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", TITLE)
    assert run.data.tags["distill.fingerprint"] == FINGERPRINT
    assert json.loads(Path(client.download_artifacts(run.info.run_id, "recipe.json")).read_text())["name"] == "toy"
    steps: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            steps.setdefault(metric.step, {})[name] = metric.value
    held = [given.dataset for given in run.inputs.dataset_inputs]
    return steps, {one.source: one.digest for one in held}


def trackio_kept(folder: Path) -> Kept:
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("distill") == [TITLE]
    steps = {int(line["step"]): line for line in SQLiteStorage.get_logs("distill", TITLE)}
    config = SQLiteStorage.get_run_config("distill", TITLE)
    assert config["fingerprint"] == FINGERPRINT and config["recipe"]["name"] == "toy"
    return steps, config["inputs"]


@pytest.mark.parametrize(
    ("tracker", "kept"), [("wandb", wandb_kept), ("mlflow", mlflow_kept), ("trackio", trackio_kept)]
)
def test_a_tracker_keeps_the_metrics_and_the_inputs(
    tracker: str, kept: Any, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    train(dataset, tmp_path / "run", tracker, 2)
    lines, datasets = train(dataset, tmp_path / "run", tracker, 4)
    steps, inputs = kept(tmp_path)
    assert inputs == datasets and [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        for name, value in line.items():
            if name not in ("step", "time", "places") and value is not None:
                assert math.isclose(steps[line["step"]][name], value, rel_tol=1e-6), (name, line["step"])
