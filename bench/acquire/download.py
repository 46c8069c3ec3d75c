"""How fast `acquire.download` is beside img2dataset's own command line, and what a second worker costs.

    python -m bench.acquire.download [no|keep_ratio|workers ...] [--images 3000] [--repeats N] [--threads 64]

A server in a separate process serves real photographs from 100 loopback addresses, once those of 31 kB on average and
once those of 51 kB. Each address counts as a host, so the limits by host keep their defaults. Both sides get the same
list and settings, with one worker:

- ours: `curate run` of acquire.list and acquire.download, on the local engine, which has one worker
- img2dataset: its command line in the environment of our runner, with one process, tars as output

They take turns. `whole` counts the command from start to exit, `fetch` from the server's first request to its last one.
Ratios are those of a pair, and the median of all pairs; their range is in brackets.

`workers`: CPU seconds per image of driver, workers and their runners on a Ray of one and of two CPUs, of which those of
a list of 200 URLs are subtracted as start-up. `other` are Ray's own processes, which the sum leaves out.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from bench.kit.measure import line, machine
from curate.acquire.download.environment import clean_environment, environment
from pipelines.serve import ImageServer, Request, Response
from tests.conftest import ROOT

SAMPLE = ROOT.parent / "shared" / "data" / "imagenet-sample-1000.parquet"
SIZES = {31: (12_000, 50_000), 51: (30_000, 70_000)}
"""Mean size of the photographs that are served, in kB -> bytes of the smallest and the largest in the sample."""
HOSTS = 100
PORTION_ROWS = 10_000
REPEATS = {"no": 6, "keep_ratio": 1, "workers": 1}
"""Parts, and how often each is repeated, so that all of them take about 5 minutes."""
POLL_SECONDS = 0.1
RUNNER = os.path.join("acquire", "runner", "main.py")
"""End of the path in the command of a runner."""


@dataclass
class Site:
    """Where the images are."""

    names: list[str]
    port: int
    times: Any
    """When the first request since it was set to 0 came, and when the last one; shared with the server."""

    def urls(self, count: int) -> list[str]:
        """Different URLs; hosts take turns."""
        names, hosts = len(self.names), [f"127.0.0.{1 + number}" for number in range(HOSTS)]
        return [
            f"http://{hosts[number % HOSTS]}:{self.port}/images/{self.names[number % names]}?{number}"
            for number in range(count)
        ]

    def list(self, folder: Path, count: int) -> Path:
        """A list of `count` URLs."""
        path = folder / f"list-{count}.parquet"
        if not path.exists():
            captions = [f"caption {number}" for number in range(count)]
            pq.write_table(pa.table({"url": self.urls(count), "caption": captions}), path)
        return path


class Watched(ImageServer):
    """Writes down when the first and the last request came."""

    times: Any

    def answer(self, request: Request) -> Response:
        now = time.monotonic()
        self.times[:] = self.times[0] or now, now
        return super().answer(request)


def serve(folder: Path, times: Any, port: Any, end: Any) -> None:
    with Watched(folder, addresses=[f"127.0.0.{1 + number}" for number in range(HOSTS)]) as server:
        server.times = times
        port.put(server.port)
        end.wait()


@contextmanager
def served(folder: Path, size: int) -> Iterator[Site]:
    """A server of photographs of `size` kB on average, in another process."""
    images = folder / f"images-{size}"
    images.mkdir()
    for number, data in enumerate(photographs(size)):
        (images / f"{number:04d}.jpg").write_bytes(data)
    context = multiprocessing.get_context("spawn")
    times, port, end = context.Array("d", 2, lock=False), context.Queue(), context.Event()
    server = context.Process(target=serve, args=(images, times, port, end))
    server.start()
    try:
        yield Site(sorted(os.listdir(images)), port.get(timeout=60), times)
    finally:
        end.set()
        server.join()


def photographs(size: int) -> Iterator[bytes]:
    """JPEGs of `size` kB on average: of the sample, or about 50 kB of noise if it is missing."""
    least, most = SIZES[size]
    if SAMPLE.exists():
        for image in pq.read_table(SAMPLE, columns=["image"]).column("image").to_pylist():
            data = image["bytes"] if isinstance(image, dict) else image
            if least < len(data) < most:
                yield data
        return
    chance = np.random.default_rng(0)
    for _ in range(200):
        coarse = Image.fromarray(chance.integers(0, 255, (94, 125, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC))
        noisy = np.clip(smooth + chance.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(file := io.BytesIO(), "JPEG", quality=75)
        yield file.getvalue()


# --- the two sides ----------------------------------------------------------------------------------------------------


@dataclass
class Used:
    """What a command took, with all its processes."""

    seconds: float
    fetching: float
    """Seconds from the server's first request to its last one."""
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU seconds by kind of process."""


def measured(site: Site, command: Sequence[str], variables: dict[str, str], log: Path) -> Used:
    """Run a command. The last 0.1 s of CPU of a process may be missed."""
    found: dict[tuple[int, float], tuple[str, float]] = {}
    with log.open("wb") as out:
        began, site.times[:] = time.monotonic(), (0.0, 0.0)
        process = subprocess.Popen(command, env=variables, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        while True:
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                look(process.pid, found)
            else:
                break
        ended = time.monotonic()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {log.read_text()[-2000:]}")
    used = Used(ended - began, site.times[1] - site.times[0])
    for kind, cpu in found.values():
        used.cpu[kind] += cpu
    return used


def look(pid: int, found: dict[tuple[int, float], tuple[str, float]]) -> None:
    """Note the CPU seconds of a process and its descendants."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return
    for member in family:
        try:
            with member.oneshot():
                times, name = member.cpu_times(), " ".join(member.cmdline())
                found[member.pid, member.create_time()] = kind_of(member.pid == pid, name), times.user + times.system
        except psutil.Error:
            continue


def kind_of(first: bool, command: str) -> str:
    if first:
        return "driver"
    if RUNNER in command:
        return "runner"
    return "worker" if command.startswith("ray::") else "other"


def ours(
    site: Site, rows: Path, mode: str, threads: int, folder: Path, *options: str, portion_rows: int = PORTION_ROWS
) -> Used:
    """Download a list with `curate run`."""
    recipe = folder / "recipe.json"
    download = {
        "op": "acquire.download", "list": "urls", "namespace": "web", "contact": "bench@example.org",
        "allow_networks": ["127.0.0.0/8"], "allow_ports": [site.port], "resize_mode": mode, "thread_count": threads,
    }  # fmt: skip
    rows_of = {"op": "acquire.list", "path": str(rows), "portion_rows": portion_rows}
    recipe.write_text(json.dumps({"stages": {"urls": rows_of, "pool": download}}))
    out = folder / "counts.json"
    command = [
        sys.executable,
        "-m",
        "curate.cli",
        "run",
        str(recipe),
        "--workspace",
        str(folder / "workspace"),
        "--quiet",
    ]
    used = measured(site, [*command, "--json", str(out), *options], dict(os.environ), folder / "log")
    expect(images_of(folder / "workspace"), pq.read_metadata(rows).num_rows)
    return used


def images_of(workspace: Path) -> int:
    """Images in the pool's tables."""
    tables = (workspace / "pools" / "web" / "shards").glob("*.parquet")
    return sum(pq.read_table(path, columns=["size"]).column("size").drop_null().length() for path in tables)


def img2dataset(site: Site, rows: Path, mode: str, threads: int, folder: Path) -> Used:
    """Download a list with img2dataset's command line."""
    options = {
        "url_list": rows, "input_format": "parquet", "url_col": "url", "caption_col": "caption",
        "output_folder": folder / "out", "output_format": "webdataset", "processes_count": 1, "thread_count": threads,
        "number_sample_per_shard": PORTION_ROWS, "resize_mode": mode, "disable_all_reencoding": mode == "no",
        "image_size": 256, "encode_quality": 95, "encode_format": "jpg", "timeout": 10, "retries": 2,
        "extract_exif": False, "compute_hash": "sha256", "enable_wandb": False, "max_shard_retry": 0,
    }  # fmt: skip
    command = [str(environment()), "-I", "-c", "from img2dataset.main import main; main()"]
    arguments = [f"--{name}={value}" for name, value in options.items()]
    used = measured(site, [*command, *arguments], clean_environment(), folder / "log")
    statistics_of = [json.loads(path.read_text()) for path in (folder / "out").glob("*_stats.json")]
    expect(sum(one["successes"] for one in statistics_of), pq.read_metadata(rows).num_rows)
    return used


def expect(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found} images; expected {wanted}")


# --- what is printed --------------------------------------------------------------------------------------------------


def rates(site: Site, size: int, mode: str, folder: Path, images: int, repeats: int, threads: int) -> None:
    """Both sides in turn, several times."""
    sides = {"ours": ours, "img2dataset": img2dataset}
    wholes: dict[str, list[float]] = {name: [] for name in sides}
    nets: dict[str, list[float]] = {name: [] for name in sides}
    costs: dict[str, list[float]] = {name: [] for name in sides}
    rows = site.list(folder, images)
    for turn in range(repeats):
        for name in sorted(sides, reverse=bool(turn % 2)):
            with aside(folder) as place:
                used = sides[name](site, rows, mode, threads, place)
            wholes[name].append(images / used.seconds)
            nets[name].append(images / used.fetching)
            costs[name].append(used.cpu.total() / images * 1e3)
            kinds = ", ".join(f"{kind} {value:.1f}" for kind, value in sorted(used.cpu.items()))
            note = f"  {name}: {used.seconds:.1f} s, of which fetching {used.fetching:.1f} s; CPU seconds: {kinds}"
            print(note, file=sys.stderr, flush=True)
    about = f"{size} kB, resize_mode {mode}"
    for what, found in (("whole", wholes), ("fetch", nets)):
        ratios = sorted(a / b for a, b in zip(found["ours"], found["img2dataset"], strict=True))
        mine, theirs = (statistics.median(found[name]) for name in sides)
        spread = f"[{ratios[0]:.2f} to {ratios[-1]:.2f}], {mine:.0f} against {theirs:.0f} images/s (aim 1.00)"
        line(f"{about}, {what}", f"{statistics.median(ratios):.2f}", spread)
    mine, theirs = (statistics.median(costs[name]) for name in sides)
    line(f"{about}, CPU per image", f"{mine / theirs:.2f}", f"{mine:.2f} against {theirs:.2f} ms")


def workers(site: Site, folder: Path, images: int, repeats: int, threads: int) -> None:
    """CPU seconds per image with one and two workers."""
    lists = {200: 100, images: 1000}
    costs: dict[int, list[Counter[str]]] = {1: [], 2: []}
    for turn in range(repeats):
        for count in sorted(costs, reverse=bool(turn % 2)):
            took = []
            for size, portion_rows in lists.items():
                with aside(folder) as place:
                    options = ("--engine", "ray", "--cpus", str(count))
                    rows = site.list(folder, size)
                    took.append(ours(site, rows, "no", threads, place, *options, portion_rows=portion_rows))
            cpu = Counter({kind: took[1].cpu[kind] - took[0].cpu[kind] for kind in took[1].cpu})
            costs[count].append(Counter({kind: value / (images - 200) * 1e3 for kind, value in cpu.items()}))
            parts = ", ".join(f"{kind} {value:.1f}" for kind, value in sorted(cpu.items()))
            print(f"  {count} workers: {took[1].seconds:.1f} s; CPU seconds: {parts}", file=sys.stderr, flush=True)
    medians = {
        count: {kind: statistics.median(one[kind] for one in found) for kind in ("driver", "worker", "runner", "other")}
        for count, found in costs.items()
    }
    sums = {count: sum(value for kind, value in one.items() if kind != "other") for count, one in medians.items()}
    for count, one in medians.items():
        parts = ", ".join(f"{kind} {value:.2f}" for kind, value in one.items())
        line(f"Ray, {count} worker{'s' if count > 1 else ''}: CPU per image", f"{sums[count]:.2f} ms", parts)
    line("two workers against one", f"{sums[2] / sums[1]:.2f}", "(aim: at most 1.10)")


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """An empty folder, removed afterwards."""
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(description="acquire.download beside img2dataset")
    parser.add_argument("parts", nargs="*", default=list(REPEATS))
    parser.add_argument("--images", type=int, default=3_000)
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--threads", type=int, default=64)
    asked = parser.parse_args(arguments)
    environment()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; {asked.images:,} images, {HOSTS} hosts")
    for part, size in itertools.product(asked.parts, asked.sizes):
        repeats = asked.repeats or REPEATS[part]
        with tempfile.TemporaryDirectory(prefix="bench-") as name, served(Path(name), size) as site:
            if part == "workers":
                workers(site, Path(name), asked.images, repeats, asked.threads)
            else:
                rates(site, size, part, Path(name), asked.images, repeats, asked.threads)


if __name__ == "__main__":
    main(sys.argv[1:])
