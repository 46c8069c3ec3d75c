"""Inputs of the clustering benchmarks: real features, a disc, and made-up groups of a long tail.

The first two are written by `shared/tools/make_bench_data.py`, beside this repository (CURATE_SHARED names
another place); a benchmark says so and skips them where it is absent.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from tests.conftest import ROOT


def shared() -> Path:
    """The folder of images and tools beside the checkout, or the one that CURATE_SHARED names."""
    return Path(os.environ.get("CURATE_SHARED", ROOT.parent / "shared"))


def generator() -> Path:
    return shared() / "tools" / "make_bench_data.py"


def bench_points(name: str) -> np.ndarray | None:
    """`cifar_pca256` (50,000 x 256) or `disc` (100,000 x 2), float32; None without the generator. Kept in the system's
    folder for temporary files, since making it takes a minute."""
    folder = Path(os.environ.get("CURATE_BENCH_DATA", Path(tempfile.gettempdir()) / "curate-bench-data"))
    if not (folder / f"{name}.npy").exists():
        if not generator().exists():
            print(f"{name}: skipped, {generator()} does not exist; set CURATE_SHARED to its folder")
            return None
        subprocess.run([sys.executable, str(generator()), str(folder)], check=True)
    return np.load(folder / f"{name}.npy")


def kl_to_uniform(points: np.ndarray) -> float:
    """How far points (n, 2) are from uniform on the unit disc, in nats: the generator's own measure."""
    spec = importlib.util.spec_from_file_location("make_bench_data", generator())
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return float(module.kl_to_uniform(points))


def tiled(points: np.ndarray, times: int, noise: float = 0.3, seed: int = 0) -> np.ndarray:
    """`times` copies of points (n, d), shuffled, each but the first moved by normal noise of `noise` standard
    deviations of the whole: more rows that lie like these."""
    rng = np.random.default_rng(seed)
    scale = np.float32(noise * points.std())
    copies = [points] + [points + scale * rng.standard_normal(points.shape, dtype=np.float32) for _ in range(times - 1)]
    return np.concatenate(copies)[rng.permutation(times * len(points))]


def tail(rows: int, dim: int = 64, groups: int = 1000, seed: int = 0) -> np.ndarray:
    """Groups of normal points (rows, dim), float32: sizes fall as rank ** -1.2, widths differ by a factor of 6."""
    rng = np.random.default_rng(seed)
    share = np.arange(1, groups + 1) ** -1.2
    group = rng.choice(groups, rows, p=share / share.sum())
    centres = 1.5 * rng.standard_normal((groups, dim), dtype=np.float32)
    widths = rng.uniform(0.2, 1.2, groups).astype(np.float32)
    points = rng.standard_normal((rows, dim), dtype=np.float32)
    points *= widths[group, None]
    points += centres[group]
    return points
