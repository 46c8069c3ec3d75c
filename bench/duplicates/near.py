"""Planted near-duplicates: recall and precision of exact, near and semantic sets, and pairs lost at cell borders.

python -m bench.duplicates.near [FOLDER [ENCODER]]

FOLDER has imagenet-sample-1000.parquet (default: `data` in CURATE_SHARED or ../shared). ENCODER is an encoder of
`image.embed` (default: `descriptor`, which needs no weights).
"""

from __future__ import annotations

import hashlib
import io
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageEnhance, ImageOps

from bench.kit.features import shared
from bench.kit.measure import line
from curate.codec.images import decode
from curate.core.contracts import Batch, Sample
from curate.core.group import MemoryGroup
from curate.core.hashing import make_key
from curate.core.vectors import from_binary, to_binary
from curate.duplicates.near.find import FindDuplicates
from curate.duplicates.reference.match import MatchReference
from curate.duplicates.reference.reference import ReferenceSet
from curate.duplicates.semantic.find import SemanticDuplicates
from curate.duplicates.semantic.kernels import cells_to_visit, pairs_within, unit_rows
from curate.image.embed import Embed
from curate.image.fingerprint import Fingerprint
from curate.kernels.nearest.search import nearest
from tests.core.stored import Stored, members

THREADS = 2
DISTANCES = (-1, 0, 6, 12, 18, 24)
EPS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
CELLS, BORDER_EPS = (20, 100, 400), 0.05
NEIGHBOURS: tuple[int | None, ...] = (0, 1, 2, 4, 8, None)

Vectors = np.ndarray
Pairs = list[tuple[str, str]]  # (dropped key, its keeper)


def jpeg(image: Image.Image, quality: int = 90) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def cropped(image: Image.Image) -> Image.Image:
    """Crop 2.5 % of the width and height from each side."""
    dx, dy = image.width * 0.025, image.height * 0.025
    return image.crop((round(dx), round(dy), round(image.width - dx), round(image.height - dy)))


def half(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def recoloured(image: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(ImageEnhance.Color(image).enhance(1.5)).enhance(1.15)


KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "as PNG": png,
    "half size": lambda image: jpeg(half(image)),
    "JPEG 40": lambda image: jpeg(image, 40),
    "cropped 5 %": lambda image: jpeg(cropped(image)),
    "recoloured": lambda image: jpeg(recoloured(image)),
    "flipped": lambda image: jpeg(ImageOps.mirror(image)),
}


# --- images to columns ----------------------------------------------------------------------------------------------


class Columns:
    """Columns of `image.fingerprint` and `image.embed` for encoded images."""

    def __init__(self, encoder: str) -> None:
        self.prints, self.embed = Fingerprint(), Embed(encoder=encoder, threads=THREADS)
        self.embed.setup({})

    def of(self, name: str, data: list[bytes]) -> pa.Table:
        with ThreadPoolExecutor(THREADS) as pool:
            done = list(pool.map(self._prepare, data))
        names = [str(row) for row in range(len(data))]
        digests = [hashlib.sha256(item).hexdigest() for item in data]
        table = pa.table({"key": [make_key(name, one) for one in names], "source_id": names, "sha256": digests})
        for stage, prepared in ((self.prints, [d[0] for d in done]), (self.embed, [d[1] for d in done])):
            columns = stage.process(Batch(table.select(["key"]), prepared))
            for field in stage.schema():
                values = columns[field.name]
                array = values if isinstance(values, pa.Array) else pa.array(values, field.type)
                table = table.append_column(field, array)
        for side, values in (("width", [d[2][0] for d in done]), ("height", [d[2][1] for d in done])):
            table = table.append_column(side, pa.array(values, pa.int32()))
        return table

    def _prepare(self, data: bytes) -> tuple[Any, Any, tuple[int, int]]:
        sample = Sample(data, decode)
        return self.prints.prepare(sample), self.embed.prepare(sample), sample.image().size


def found_pairs(stage: FindDuplicates | SemanticDuplicates, table: pa.Table) -> Pairs:
    """(dropped key, keeper's key) of every dropped row."""
    if isinstance(stage, FindDuplicates):
        group = MemoryGroup([stage.load(table.select(["key", *stage.reads()]))], THREADS)
        artifact = Stored(stage.fit(group), group)
    else:
        artifact = semantic(stage, table, one_cell(table))
    return [(row["key"], row["keeper"]) for row in members(artifact) if row["key"] != row["keeper"]]


def one_cell(table: pa.Table) -> Vectors:
    return np.ones((1, table.schema.field("embedding").type.byte_width // 2), dtype=np.float32)


def semantic(stage: SemanticDuplicates, table: pa.Table, centroids: Vectors) -> Stored:
    levels = {"levels": [{"clusters": len(centroids)}], "dim": centroids.shape[1]}
    stage.setup({"tree": {"levels": levels, "centroids_1": centroids}})
    group = MemoryGroup([stage.load(table)], THREADS)
    return Stored(stage.fit(group), group)


# --- planted ----------------------------------------------------------------------------------------------------------


def planted(folder: Path, encoder: str) -> pa.Table:
    """Print recall and precision per kind of copy; return the columns of all images."""
    data = pq.read_table(folder / "imagenet-sample-1000.parquet", columns=["image"])["image"].to_pylist()
    columns = Columns(encoder)
    originals = columns.of("original", data)
    with ThreadPoolExecutor(THREADS) as pool:
        images = list(pool.map(decode, data))
    pools = {kind: columns.of(kind, list(map(make, images))) for kind, make in KINDS.items()}
    print(f"\n{len(data):,} ImageNet images, with one changed copy of each: recall in % (precision in %)")
    stages: list[tuple[str, Any]] = [
        *((f"hash, {d} bits" if d >= 0 else "digests", FindDuplicates(max_distance=d)) for d in DISTANCES),
        *((f"{encoder[:12]}, eps {eps}", SemanticDuplicates(eps=eps, threads=THREADS)) for eps in EPS),
    ]
    print(f"{'':<22}" + "".join(f"{kind:>15}" for kind in KINDS) + f"{'no copies':>15}")
    for name, stage in stages:
        cells = [score(found_pairs(stage, pa.concat_tables([originals, changed]))) for changed in pools.values()]
        texts = [rates(right, total, len(data)) for right, total in cells]
        alone = len(found_pairs(stage, originals))
        print(f"{name:<22}" + "".join(f"{text:>15}" for text in texts) + f"{alone:>8} dropped", flush=True)
    contaminated(originals, pools)
    return pa.concat_tables([originals, *pools.values()])


def contaminated(originals: pa.Table, pools: dict[str, pa.Table]) -> None:
    """Use the first half as an evaluation set; copies of the other half must not match."""
    count = originals.num_rows // 2
    names = [str(row) for row in range(count)]
    reference_stage = ReferenceSet()
    state = originals.slice(0, count)
    reference = reference_stage.finish(reference_stage.partial(state))
    for parameters in ({"embedding": None}, {"embedding": "embedding"}):
        stage = MatchReference(**parameters)
        stage.setup({"against": reference})
        texts = []
        for changed in pools.values():
            matched = stage.process(Batch(changed))["contamination"].to_pylist()
            right = sum(name == own for name, own in zip(matched, names, strict=False))
            total = len(matched) - matched.count(None)
            texts.append(rates(right, total, count))
        name = "decontaminate" + ("" if parameters["embedding"] else ", hash only")
        print(f"{name:<22}" + "".join(f"{text:>15}" for text in texts), flush=True)


def rates(right: int, total: int, planted: int) -> str:
    """Recall and, if anything was found, precision, in per cent."""
    return f"{100 * right / planted:.1f} ({f'{100 * right / total:.1f}' if total else '-'})"


def score(pairs: Pairs) -> tuple[int, int]:
    """(pairs of an image and its own copy, all pairs)."""
    return sum(base(a) == base(b) for a, b in pairs), len(pairs)


_BASE = {make_key(name, str(row)): row for name in ("original", *KINDS) for row in range(1000)}


def base(key: str) -> int:
    return _BASE[key]


# --- borders ----------------------------------------------------------------------------------------------------------


def borders(table: pa.Table) -> None:
    """Print how many pairs within eps are never compared, by number of cells and of neighbouring cells visited."""
    import faiss

    vectors = unit_rows(from_binary(table.column("embedding")))
    first, second = all_pairs(vectors, BORDER_EPS)
    print(f"\nall {len(vectors):,} of these images, {len(first):,} pairs within eps {BORDER_EPS}")
    heads = ("neighbours", "pairs lost", "share", "cells a row", "dropped", "rounds", "CPU s")
    print(f"{'cells':>6}" + "".join(f"{head:>12}" for head in heads))
    for cells in CELLS:
        kmeans = faiss.Kmeans(vectors.shape[1], cells, niter=10, seed=1, spherical=True, min_points_per_centroid=1)
        kmeans.train(vectors)
        home = nearest(vectors, kmeans.centroids, THREADS)[0]
        for most in NEIGHBOURS:
            visits = np.zeros((len(vectors), cells), dtype=bool)
            for rows, where in cells_to_visit(vectors, kmeans.centroids, home, BORDER_EPS, most):
                visits[rows, where] = True
            met = (home[first] == home[second]) | visits[first, home[second]] | visits[second, home[first]]
            began = time.process_time()
            stage = SemanticDuplicates(eps=BORDER_EPS, neighbours=most, threads=THREADS)
            summary = semantic(stage, table, kmeans.centroids)["summary"]
            seconds = time.process_time() - began
            lost = int((~met).sum())
            figures = ("all" if most is None else most, f"{lost:,}", f"{100 * lost / max(1, len(first)):.2f} %",
                       f"{1 + visits.sum() / len(home):.2f}", f"{summary['semantic_duplicates']:,}", summary["rounds"],
                       f"{seconds:.1f}")  # fmt: skip
            print(f"{cells:>6}" + "".join(f"{figure:>12}" for figure in figures), flush=True)


def all_pairs(vectors: Vectors, eps: float) -> tuple[Vectors, Vectors]:
    found = [(a[a < b], b[a < b]) for a, b in pairs_within(vectors, vectors, eps)]
    return np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])


def copies() -> None:
    """CPU time of a cell with 10,000 near-copies of one image, compared with a cell whose rows all differ."""
    rng = np.random.default_rng(0)
    print()
    for name, count in (("10,000 rows, all different", 0), ("+ 10,000 near-copies of one of them", 10_000)):
        rows = rng.normal(size=(10_000, 768))
        near = rows[:1] + 0.001 * rng.normal(size=(count, 768))
        column, _ = to_binary(np.concatenate([rows, near]))
        keys = [make_key("copies", str(row)) for row in range(len(column))]
        table = pa.table({"key": pa.array(keys, pa.string()), "embedding": column})
        began = time.process_time()
        summary = semantic(SemanticDuplicates(threads=THREADS), table, one_cell(table))["summary"]
        line(name, f"{time.process_time() - began:.1f} CPU s", f"{summary['semantic_duplicates']:,} dropped")


def main(arguments: list[str] | None = None) -> None:
    given = arguments or []
    folder = Path(given[0]) if given else shared() / "data"
    copies()
    if not (folder / "imagenet-sample-1000.parquet").exists():
        print(f"no imagenet-sample-1000.parquet in {folder}; give its folder to run the other benchmarks")
        return
    borders(planted(folder, given[1] if given[1:] else "descriptor"))


if __name__ == "__main__":
    main(sys.argv[1:])
