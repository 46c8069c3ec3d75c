"""Compares our own code with a library's in whole recipes: processor seconds, peak memory and the output.

    python -m bench.weigh [SUBJECT ...] [--images FOLDER] [--rows N] [--texts N] [--repeats N]

SUBJECT is one or more of language, wordnet, clusters, descriptor, balance (default: all). Recipes run on
the local engine, once per variant and repeat, in turn, each in a new process and workspace. Ratios are to the first
variant of the same repeat, which is ours. Other load on the machine hardly changes processor seconds. FOLDER is the
quickstart's corpus by default; `--rows` takes about that many of its images (0: all). The subjects of texts also run on
alt texts of the web, each with an image of 32 pixels: a pool in which texts have the largest share of the cost.
`descriptor` needs scikit-image.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.weigh.recipes import COMPARISONS, Figures, alt_text_pool, some_images

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Measurement:
    cpu_seconds: float
    peak_bytes: int
    figures: Figures


def run_recipe(subject: str, variant: str, images: Path, rows: int, repeat: int, space: Path) -> tuple[float, int]:
    """(processor seconds, peak memory in bytes) of one run. Raises RuntimeError with the last line of its log."""
    comparison = COMPARISONS[subject]
    settings = [f"images={images}", *comparison.settings(repeat, rows)]
    command = [sys.executable, "-m", "bench.weigh", "--variant", f"{subject}:{variant}", "--", "run"]
    command += [f"pipelines/{comparison.recipe}.yaml", "--workspace", str(space), "--engine", "local"]
    command += [word for setting in settings for word in ("--set", setting)]
    with open(space.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(space.with_suffix(".log").read_text().strip().splitlines()[-1])
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def run_variant(name: str, arguments: list[str]) -> None:
    """`curate` with the arguments, after a variant (`subject:variant`) has replaced our code."""
    subject, _, variant = name.partition(":")
    COMPARISONS[subject].variants[variant]()
    from curate.cli import main as curate

    sys.argv = ["curate", *arguments]
    curate()


def compare(name: str, images: Path, rows: int, repeats: int) -> None:
    comparison = COMPARISONS[name]
    found: dict[str, list[Measurement]] = {variant: [] for variant in comparison.variants}
    for repeat in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            spaces = {variant: Path(folder, str(number)) for number, variant in enumerate(comparison.variants)}
            for variant, space in spaces.items():
                try:
                    used = run_recipe(name, variant, images, rows, repeat, space)
                except RuntimeError as error:
                    print(f"  {variant}: failed: {error}")
                    continue
                figures = comparison.judge(space, next(iter(spaces.values())))
                found[variant].append(Measurement(*used, figures))
    ours = next(iter(found.values()))
    for variant, runs in found.items():
        if runs:
            print_measurements(variant, runs, ours)


def print_measurements(variant: str, runs: list[Measurement], ours: list[Measurement]) -> None:
    ratio = statistics.median(run.cpu_seconds / own.cpu_seconds for run, own in zip(runs, ours, strict=False))
    print(
        f"  {variant:<22} {statistics.median(run.cpu_seconds for run in runs):7.1f} s  x {ratio:.3f}"
        f"  {max(run.peak_bytes for run in runs) / 2**20:6.0f} MiB"
    )
    for figure in runs[0].figures:
        print(f"      {figure:<28} {' '.join(f'{run.figures[figure]:.6g}' for run in runs)}")


def pools(name: str, images: Path, rows: int, texts: int, to: Path) -> Iterator[tuple[str, Path, int]]:
    place, count = some_images(images, rows, to / "images")
    yield f"{count:,} clip-arts", place, count
    if COMPARISONS[name].texts:
        place, count = alt_text_pool(texts, to / "texts")
        if count:
            yield f"{count:,} alt texts of the web, images of 32 pixels", place, count


# --- trees of known balance -------------------------------------------------------------------------------------------


def balance(seeds: int) -> None:
    """Compare the `clusters` variants on a disc whose balanced sample is known and on CIFAR-10 with a long tail: means
    over seeds of what `select.hierarchical` would take, and the standard error of the paired difference to ours."""
    from curate.cluster.kmeans import lloyd
    from curate.cluster.tree import level

    before = lloyd.EXCHANGE_ROWS, level.kmeans
    for name, (figures, measure) in balance_cases().items():
        found: dict[str, NDArray[np.float64]] = {}
        for variant, patch in COMPARISONS["clusters"].variants.items():
            patch()
            began = time.process_time()
            found[variant] = np.array([measure(seed) for seed in range(seeds)])
            took = time.process_time() - began
            lloyd.EXCHANGE_ROWS, level.kmeans = before
            print(f"balance: {name}, {seeds} seeds: {variant}, {took / seeds:.1f} s a tree")
            for place, figure in enumerate(figures):
                values, apart = found[variant][:, place], (found[variant] - found["with exchange"])[:, place]
                note = f"difference {apart.mean():+.4f} +- {apart.std(ddof=1) / seeds**0.5:.4f}"
                print(f"      {figure:<28} {values.mean():.4f}  {note}", flush=True)


def balance_cases() -> dict[str, tuple[list[str], Callable[[int], list[float]]]]:
    """Name -> (names of figures, seed -> figures), for the data that are available."""
    from bench.kit.features import bench_points, kl_to_uniform, shared
    from bench.kit.pools import cifar_tail
    from bench.select import hierarchical as bench

    def on_disc(points: NDArray[np.float32], seed: int) -> list[float]:
        tree = bench.fitted(points, bench.DISC_LEVELS, bench.DISC_NEAREST, bench.ROUNDS, seed, unit=False)
        return [kl_to_uniform(points[bench.balanced(tree, bench.DISC_SAMPLE, seed)])]

    def on_cifar(pool: Any, encoder: str, seed: int) -> list[float]:
        vectors = pool.vectors[encoder]
        tree = bench.fitted(vectors, pool.levels, [None] * len(pool.levels), bench.ROUNDS, seed, unit=True)
        return list(bench.class_balance(pool, [bench.balanced(tree, int(bench.SHARE * len(vectors)), seed)]))

    cases: dict[str, tuple[list[str], Callable[[int], list[float]]]] = {}
    points, parquet = bench_points("disc"), shared() / "data" / "cifar10-train.parquet"
    if points is not None:
        cases["disc"] = ["KL to uniform"], lambda seed: on_disc(points, seed)
    if parquet.exists():
        pool = cifar_tail(parquet)
        figures = ["entropy of classes", "share of the smallest", "share of the smaller half"]
        for encoder in ("descriptor", "descriptor, taught"):
            cases[f"CIFAR-10, {encoder}"] = figures, lambda seed, encoder=encoder: on_cifar(pool, encoder, seed)
    return cases


def main() -> None:
    if sys.argv[1:2] == ["--variant"]:
        run_variant(sys.argv[2], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", help=f"{', '.join(COMPARISONS)}, balance (default: all)")
    parser.add_argument("--images", type=Path, default=ROOT / ".cache/openclipart/images", help="folder of images")
    parser.add_argument("--rows", type=int, default=2000, help="images of the folder; 0 takes all")
    parser.add_argument("--texts", type=int, default=10_000, help="alt texts")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each variant")
    given = parser.parse_args()
    for name in given.subjects or [*COMPARISONS, "balance"]:
        if name == "balance":
            balance(max(2, given.repeats))
            continue
        with tempfile.TemporaryDirectory() as folder:
            for pool, images, count in pools(name, given.images, given.rows, given.texts, Path(folder)):
                recipe = COMPARISONS[name].recipe
                print(f"{name}: pipelines/{recipe}.yaml on {pool}, {given.repeats} repeats", flush=True)
                compare(name, images, count, given.repeats)


if __name__ == "__main__":
    main()
