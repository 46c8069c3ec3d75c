"""Runs that lose a node: none may wait forever.

    python -m bench.engine.nodes [--kills 20] [--stages prints,members] [--encoder descriptor] [--seed 0]

A Ray of this machine with three nodes of two logical CPUs beside a head without CPUs. Each round is the quickstart's
recipe on 350 of its images, in shards of 50 and in a new workspace. One node is killed, with all its processes, up to
1.5 s after a stage has started: each stage in turn. A run that has not ended LIMIT_SECONDS later counts as a stall, and
is ended. The line of a round has the stage, the delay, and how long the run took after the kill and in all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest import mock

import yaml

from bench.kit.measure import machine
from curate.core.recipe.load import load
from tests.engine import nodes
from tests.engine.forks import Drivers

IMAGES, NODES, CPUS, MOST_DELAY = 350, 3, 2, 1.5
LIMIT_SECONDS = 240.0
STAGES = "pool,inspect,text,prints,embed,sets,members,unique,tree,clusters,profile,sample,dataset,report"
SETTINGS = ("pool.shard_rows=50", "levels=[40,12,4]", "target=150")
MODULES = ("curate.acquire.folder", "curate.image.embed", "curate.cluster.fit", "curate.report.html")
PATIENCE = {"RAY_raylet_start_wait_time_s": "300", "RAY_worker_niceness": "0"}
"""A busy machine takes minutes to start a node, and longer for workers of the lowest priority, Ray's default."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.engine.nodes")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--images", type=Path, default=Path(".cache/openclipart/images"))
    parser.add_argument("--stages", default=STAGES)
    parser.add_argument("--encoder", default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    stages, chance = given.stages.split(","), random.Random(given.seed)
    print(machine(), flush=True)
    os.environ |= PATIENCE
    slow = mock.patch.dict(nodes.NOTICED, health_check_failure_threshold=6)
    with tempfile.TemporaryDirectory() as name, slow, nodes.started() as cluster, Drivers(*MODULES) as drivers:
        folder = Path(name)
        settings = [f"images={_copied(given.images, folder / 'images')}", f"encoder={given.encoder}", *SETTINGS]
        stalls, alive = 0, list[str]()
        for number in range(given.kills):
            added = [f"{number}-{place}" for place in range(NODES - len(alive))]
            cluster.add(*added, cpus=CPUS)
            alive += added
            nodes.until(lambda: cluster.known() == NODES + 1, 300)
            recipe = folder / f"{number}.yaml"
            recipe.write_text(yaml.safe_dump(load(Path("pipelines/quickstart.yaml"), settings).source, sort_keys=False))
            stage, delay = stages[number % len(stages)], chance.uniform(0, MOST_DELAY)
            victim = alive.pop(chance.randrange(NODES))
            said = _round(cluster, drivers, recipe, stage, delay, victim)
            stalls += said.startswith("stall")
            print(f"{number + 1:2} {stage:8} + {delay:.2f} s: {said}", flush=True)
    print(f"{given.kills} kills, {stalls} stalls")
    sys.exit(bool(stalls))


def _round(cluster: nodes.Nodes, drivers: Drivers, recipe: Path, stage: str, delay: float, victim: str) -> str:
    place, ended = recipe.with_suffix(""), list[dict[str, object]]()
    began = time.monotonic()
    about = {"environment": {"RAY_ADDRESS": cluster.address}, "flush": 0.0, "run_id": "one"}
    drivers.start(place, recipe=str(recipe), engine="ray", **about)
    waits = threading.Thread(target=lambda: ended.append(drivers.end()))
    waits.start()
    while waits.is_alive() and stage not in _begun(place / "runs/one/events"):
        time.sleep(0.02)
    time.sleep(delay)
    over = "over before the kill; " if not waits.is_alive() else ""
    cluster.kill(victim)
    killed = time.monotonic()
    waits.join(LIMIT_SECONDS)
    now = time.monotonic()
    if waits.is_alive():
        logs = sorted((place / "runs/one/logs").glob("driver-*"))
        lines = [json.loads(line)["message"] for file in logs for line in file.read_text().splitlines()]
        os.kill(drivers.driver, 9)
        waits.join()
        return "\n     ".join(["stall", *sorted(_begun(place / "runs/one/events")), *lines[-20:]])
    return f"{over}{ended[0]['error'] or 'done'}, {now - killed:.1f} s after the kill, {now - began:.1f} s in all"


def _begun(events: Path) -> set[str]:
    """Stages that have started."""
    lines = [line for file in events.glob("*.jsonl") for line in file.read_text().splitlines()]
    return {event["stage"] for event in map(json.loads, lines) if event.get("stage")}


def _copied(images: Path, folder: Path) -> Path:
    """Some images of a folder, with their lines of its metadata."""
    lines = (images / "metadata.jsonl").read_text().splitlines()
    chosen = lines[:: len(lines) // IMAGES][:IMAGES]
    for name in (json.loads(line)["file_name"] for line in chosen):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(images / name, folder / name)
    (folder / "metadata.jsonl").write_text("\n".join(chosen))
    return folder


if __name__ == "__main__":
    main()
