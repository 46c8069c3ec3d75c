"""The files in infra/ agree with each other and with the lock, which no test on a cluster checks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from curate.engine.detach import STOP_SECONDS

ROOT = Path(__file__).parents[1]
INFRA = ROOT / "infra"


def loaded(name: str) -> dict[str, Any]:
    return yaml.safe_load((INFRA / name).read_text())


CLUSTERS = {
    "raycluster.yaml": loaded("raycluster.yaml")["spec"],
    "rayjob.yaml": loaded("rayjob.yaml")["spec"]["rayClusterSpec"],
}
every_cluster = pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def shown_command(name: str) -> list[str]:
    """The words of the `curate run` in a file's leading comment, without what follows in the shell."""
    head = re.match(r"(?:#.*\n)+", (INFRA / name).read_text())
    assert head
    text = head[0].replace("\\\n#", " ").replace("\n#", "\n")
    found = re.search(r"curate run [^\n'…]+", text)
    assert found, name
    return shlex.split(found[0])


def test_every_container_uses_the_same_image() -> None:
    images = {box["image"] for cluster in CLUSTERS.values() for pod in pods(cluster) for box in pod["containers"]}
    assert images == {loaded("ray-machines.yaml")["docker"]["image"]}


@every_cluster
def test_ray_is_the_locked_one(cluster: dict[str, Any]) -> None:
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked and cluster["rayVersion"] == locked[1]


@every_cluster
def test_the_head_runs_no_stages_and_its_port_for_jobs_is_for_the_cluster_alone(cluster: dict[str, Any]) -> None:
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == head["rayStartParams"]["num-gpus"] == "0"
    assert head["serviceType"] == "ClusterIP"
    assert cluster["authOptions"] == {"mode": "token"}
    assert not any(
        "hostPort" in port for pod in pods(cluster) for box in pod["containers"] for port in box.get("ports", [])
    )
    assert not any(pod.get("hostNetwork") for pod in pods(cluster))


@every_cluster
def test_one_cluster_has_nodes_for_every_lane(cluster: dict[str, Any]) -> None:
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    for name, group in groups.items():
        assert not cluster.get("enableInTreeAutoscaling")  # a run never asks for nodes: it would only remove them
        assert 1 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        (box,) = group["template"]["spec"]["containers"]
        limits, requests = box["resources"]["limits"], box["resources"]["requests"]
        assert (int(limits.get("nvidia.com/gpu", 0)) > 0) == (name == "gpu")
        assert (limits["cpu"], limits["memory"]) == (requests["cpu"], requests["memory"])  # Ray counts on the limits


@every_cluster
def test_pods_live_long_enough_to_stop_a_run(cluster: dict[str, Any]) -> None:
    assert all(pod["terminationGracePeriodSeconds"] > STOP_SECONDS for pod in pods(cluster))


@every_cluster
def test_every_pod_reaches_the_workspace(cluster: dict[str, Any]) -> None:
    secrets = [box["envFrom"] for pod in pods(cluster) for box in pod["containers"]]
    assert all(one == [{"secretRef": {"name": "curate-storage", "optional": True}}] for one in secrets)


def test_a_stopped_job_may_finish() -> None:
    per_job = yaml.safe_load(loaded("rayjob.yaml")["spec"]["runtimeEnvYAML"])
    assert per_job == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}}
    assert f"RAY_JOB_STOP_WAIT_TIME_S={STOP_SECONDS} " in (INFRA / "Dockerfile").read_text()


def test_a_shell_leaves_the_job_s_command_as_it_is() -> None:
    command = loaded("rayjob.yaml")["spec"]["entrypoint"]
    assert shlex.join(shlex.split(command)) == command


@pytest.mark.parametrize("name", ["rayjob.yaml", "raycluster.yaml", "ray-machines.yaml", "Dockerfile"])
def test_the_commands_exist_in_curate(name: str) -> None:
    from typer.main import get_command

    from curate.cli import app

    words = shlex.split(loaded(name)["spec"]["entrypoint"]) if name == "rayjob.yaml" else shown_command(name)
    assert words[:2] == ["curate", "run"]
    recipe = words[2]
    assert (ROOT / recipe).is_file()
    run = get_command(app).commands["run"]  # type: ignore[attr-defined]
    known = {option for parameter in run.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_machines_start_ray_as_the_clusters_do() -> None:
    machines = loaded("ray-machines.yaml")
    (start,) = [line for line in machines["head_start_ray_commands"] if "--head" in line]
    assert {"--num-cpus=0", "--num-gpus=0", "--dashboard-host=127.0.0.1"} <= set(shlex.split(start))
    assert machines["min_workers"] == machines["max_workers"] == len(machines["provider"]["worker_ips"])
    assert "--env RAY_AUTH_MODE=token" in machines["docker"]["run_options"]


def test_the_image_copies_all_packages() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    wheel = re.search(r"^packages = \[(.*)\]", project, re.MULTILINE)
    assert wheel
    packages = re.findall(r'"(\w+)"', wheel[1])
    dockerfile, context = (INFRA / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text().splitlines()
    for name in packages:
        assert f"COPY {name} {name}\n" in dockerfile
    assert {f"!{name}" for name in [*packages, "requirements.lock", "pyproject.toml"]} <= set(context)
