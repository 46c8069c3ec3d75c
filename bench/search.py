"""Search in a million vectors, beside FAISS HNSW: recall@10, time and private memory of a query, time to build.

python -m bench.search [ROWS]

The vectors are of CIFAR-10's photos by `tiny`, whole and the middle, projected on their 256 principal directions; rows
beyond those of the photos repeat them with noise of 0.3 standard deviations. Queries are photos that are not among the
rows. Each index is opened and searched in a separate process, on one thread.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from bench.kit.features import shared
from bench.kit.measure import line, load
from curate import encoders
from curate.core.group import MemoryGroup, cut
from curate.core.nouns.artifacts import StoredArtifact, save_artifact
from curate.core.store.arrays import write_arrays
from curate.core.store.storage import open_storage
from curate.search.fit import ROWS as STORED
from curate.search.fit import FitSearch
from curate.search.index import SearchIndex

ROWS, DIM, PHOTOS, QUERIES, FOUND = 1_000_000, 256, 20_000, 200, 10
THREADS = 2
LINKS, BUILDS = 32, 40
"""HNSW's M and efConstruction, faiss's defaults."""
EFFORTS = (16, 32, 64, 128, 256, 512)
"""HNSW's efSearch: the first that reaches the recall is compared."""
AIM_RECALL, AIM_SECONDS, AIM_BYTES = 0.95, 0.030, 200 << 20


def photos() -> np.ndarray | None:
    """Vectors (PHOTOS, DIM) of unit length, kept beside the other inputs of benches; None without the photos."""
    path, kept = shared() / "data" / "cifar10-train.parquet", Path(tempfile.gettempdir()) / f"curate-tiny-{PHOTOS}.npy"
    if kept.exists():
        return np.load(kept)
    if not path.exists():
        print(f"skipped, {path} does not exist; set CURATE_SHARED to its folder")
        return None
    encoder, rows = encoders.load("tiny"), pq.read_table(path, columns=["image"]).column("image").slice(0, PHOTOS)
    found = []
    for start in range(0, PHOTOS, 256):
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in rows.slice(start, 256).to_pylist()]
        views = [encoder.prepare(image.crop(box)) for image in images for box in ((0, 0, 32, 32), (6, 6, 26, 26))]
        found.append(encoder.encode(views, patches=False).summary.reshape(len(images), -1))
    whole = unit(np.concatenate(found))
    np.save(kept, unit(whole @ np.linalg.svd(whole, full_matrices=False)[2][:DIM].T))
    return np.load(kept)


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def repeated(vectors: np.ndarray, rows: int, noise: float = 0.3) -> np.ndarray:
    """Rows (n, d) in halves, shuffled: the vectors, and copies of them that are moved by normal noise."""
    rng, made = np.random.default_rng(0), np.empty((rows, vectors.shape[1]), np.float16)
    for start in range(0, rows, len(vectors)):
        some = vectors[: rows - start]
        moved = some + (noise * some.std() if start else 0) * rng.standard_normal(some.shape, dtype=np.float32)
        made[start : start + len(some)] = unit(moved)
    return made[rng.permutation(rows)]


def build(rows: np.ndarray, folder: Path) -> float:
    """Seconds to build our index and to write it."""
    stage = FitSearch(threads=THREADS)
    stage.setup({})
    keys = np.stack([np.zeros(len(rows), np.uint64), np.arange(len(rows), dtype=np.uint64)], axis=1)
    group = MemoryGroup(cut({"vectors": rows, "key": keys}), THREADS)
    storage, began = open_storage(str(folder)), time.perf_counter()
    save_artifact(storage, "index", stage.fit(group))
    for number, arrays in group._stored[STORED].items():
        write_arrays(storage, f"index/{STORED}/{number:06d}.npz", arrays)
    return time.perf_counter() - began


def build_hnsw(rows: np.ndarray, folder: Path) -> float:
    import faiss

    faiss.omp_set_num_threads(THREADS)
    began = time.perf_counter()
    index = faiss.IndexHNSWFlat(DIM, LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = BUILDS
    index.add(rows.astype(np.float32))
    faiss.write_index(index, str(folder / "hnsw"))
    return time.perf_counter() - began


def exact(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Numbers (n, FOUND) of the nearest rows."""
    import faiss

    best = faiss.IndexFlatIP(DIM)
    found = []
    for start in range(0, len(rows), 1 << 16):
        best.reset()
        best.add(rows[start : start + (1 << 16)].astype(np.float32))
        score, number = best.search(queries, FOUND)
        found.append((score, number + start))
    scores, numbers = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    return np.take_along_axis(numbers, np.argsort(-scores, axis=1)[:, :FOUND], 1)


# --- a process that searches ------------------------------------------------------------------------------------------


def private_bytes() -> int:
    """Memory that is of this process alone; pages of mapped files belong to the cache."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(row.split()[1] for row in status.splitlines() if row.startswith("RssAnon")))


def searched(folder: str, effort: int) -> dict[str, Any]:
    """What an index finds for the queries, the time of each, and private memory above that before it was opened;
    `effort`: efSearch of HNSW, 0 for our index."""
    import faiss

    queries = np.load(f"{folder}/queries.npy")
    faiss.omp_set_num_threads(1)
    before = private_bytes()
    if effort:
        hnsw = faiss.read_index(f"{folder}/hnsw")
        hnsw.hnsw.efSearch = effort
    else:
        ours = SearchIndex(StoredArtifact(open_storage(folder), "index"))
    found, seconds = [], []
    for query in queries:
        began = time.perf_counter()
        if effort:
            found.append(hnsw.search(query[None], FOUND)[1][0].tolist())
        else:
            found.append([int(key, 16) for key in ours.nearest(query, FOUND)[0]])
        seconds.append(time.perf_counter() - began)
    bytes_ = private_bytes() - before
    return {"found": found, "first": seconds[0], "median": float(np.median(seconds[1:])), "bytes": bytes_}


def apart(folder: Path, effort: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.search", "--search", str(folder), str(effort)]
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, env=os.environ | environment)
    return dict(json.loads(done.stdout))


def recall(found: list[list[int]], true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b.tolist())) / FOUND for a, b in zip(found, true, strict=True)]))


def shown(name: str, about: dict[str, Any], true: np.ndarray) -> None:
    line(f"{name}: recall@{FOUND}", f"{recall(about['found'], true):.3f}")
    line(
        f"{name}: median of a query after the first", f"{1e3 * about['median']:.1f} ms", f"first {about['first']:.2f} s"
    )
    line(f"{name}: private memory", f"{about['bytes'] / 2**20:,.0f} MiB")


def main(rows: int = ROWS) -> None:
    made = photos()
    if made is None:
        return
    queries, made = made[:QUERIES], made[QUERIES:]
    points = repeated(made, rows)
    true = exact(points, queries)
    print(f"{rows:,} x {DIM}, {load()}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        np.save(folder / "queries.npy", queries)
        seconds = build(points, folder)
        line("search.fit: built in", f"{seconds:.0f} s", f"{THREADS} threads")
        ours = apart(folder)
        note = f"aims: {AIM_RECALL}, {1e3 * AIM_SECONDS:.0f} ms, {AIM_BYTES >> 20} MiB"
        shown("search", ours, true)
        peer = build_hnsw(points, folder)
        line("FAISS HNSW: built in", f"{peer:.0f} s", f"ratio to ours {peer / seconds:.1f} (aim 1)")
        for effort in EFFORTS:
            about = apart(folder, effort)
            if recall(about["found"], true) >= AIM_RECALL or effort == EFFORTS[-1]:
                shown(f"FAISS HNSW, efSearch {effort}", about, true)
                break
        print(note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--search"]:
        print(json.dumps(searched(sys.argv[2], int(sys.argv[3]))))
    else:
        main(*map(int, sys.argv[1:]))
