"""MLflow. MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME apply."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from distill.training.trackers import PROJECT, Tracked

TAG = "distill.fingerprint"
_OTHER = re.compile(r"[^\w\-./ ]")
"""Characters that no name of a metric has."""


class Run:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id = client, run_id

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_OTHER.sub("_", name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def open_run(run: Tracked) -> Run:
    """A resumed run is found by its fingerprint."""
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, DatasetInput

    client = MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    for found in client.search_runs([experiment], f"tags.`{TAG}` = '{run.fingerprint}'", max_results=1):
        client.update_run(found.info.run_id, "RUNNING")
        return Run(client, found.info.run_id)
    run_id = client.create_run(experiment, run_name=run.title, tags={TAG: run.fingerprint}).info.run_id
    inputs = [
        DatasetInput(Dataset(url.rstrip("/").split("/")[-2:][0], digest, "distill", url), tags=[])
        for url, digest in run.inputs.items()
    ]
    client.log_inputs(run_id, inputs)
    client.log_dict(run_id, dict(run.recipe), "recipe.json")
    return Run(client, run_id)
