"""What a workspace holds, so that two ways to the same result can be compared.

Pools, artifacts, selections and datasets have the same bytes in any case. Facts and masks have the
same rows: how many tables hold them, and so their names, depends on when they were published.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from curate.core.nouns.facts import INPUT, Notes, Published, build, latest, publish, table_path
from curate.core.store.storage import Storage
from curate.engine.passes.answers import index

PASSING = ("runs/", "leases/")
"""Folders of the records of runs, which differ from run to run; they contain no outputs."""
BY_ROWS = ("facts/", "masks/")
"""Folders that tests compare row by row."""


def files(workspace: str | Path, below: str = "") -> dict[str, str]:
    """Digest of every file except manifests (which contain times), records of runs and partly written files."""
    root = Path(workspace)
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        kept = name.startswith(below) and not name.startswith(PASSING)
        if path.is_file() and kept and path.name != "manifest.json" and path.suffix != ".tmp":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def nouns(workspace: str | Path) -> dict[str, str]:
    """Digests of the files whose bytes do not depend on the history of a workspace."""
    return {name: digest for name, digest in files(workspace).items() if not name.startswith(BY_ROWS)}


def times(workspace: str | Path) -> dict[str, int]:
    """Modification time (nanoseconds) of every file, manifests too."""
    root = Path(workspace)
    names = {str(path.relative_to(root)): path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    return {name: time for name, time in names.items() if not name.startswith(PASSING)}


def manifests(workspace: str | Path) -> dict[str, dict[str, Any]]:
    """Every committed manifest by its folder, without times; but those of facts and masks."""
    root = Path(workspace)
    timed = ("seconds", "built_rows", "extra")
    found = {}
    for path in sorted(root.rglob("manifest.json")):
        value = json.loads(path.read_text())
        found[str(path.parent.relative_to(root))] = {name: v for name, v in value.items() if name not in timed}
    return {name: value for name, value in found.items() if not name.startswith(BY_ROWS)}


def facts(workspace: str | Path, op: str = "*") -> dict[str, dict[str, list[dict[str, Any]]]]:
    """<op>/<stage>/<fingerprint> -> shard -> rows of its highest table: place, status, reason and columns."""
    root = Path(workspace) / "facts"
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for folder in sorted(root.glob(f"{op}/*/*")):
        if folder.name not in ("index", "log", "removed"):
            names = [str(path.relative_to(folder)) for path in folder.rglob("*.parquet")]
            tables = {shard: f"{shard}/{number:06d}.parquet" for shard, number in sorted(latest(names).items())}
            rows = {shard: pq.read_table(folder / file).to_pylist() for shard, file in tables.items()}
            found[str(folder.relative_to(root))] = rows
    return found


def rows_of(workspace: str | Path, op: str) -> int:
    """Number of rows with facts over all fingerprints of an op, of any status."""
    return sum(len(rows) for shards in facts(workspace, op).values() for rows in shards.values())


def masks(workspace: str | Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Chain -> shard -> rows of its mask, of the version that was committed last."""
    root = Path(workspace)
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for chain in sorted(root.glob("masks/*")):
        versions = [(json.loads(path.read_text()), path.parent) for path in chain.glob("versions/*/manifest.json")]
        if versions:
            _, folder = max(versions, key=lambda version: version[0]["extra"]["committed"])
            lines = pq.read_table(folder / "shards.parquet").to_pylist()
            found[chain.name] = {line["id"]: pq.read_table(root / line["file"]).to_pylist() for line in lines}
    return found


def fixed(workspace: str | Path) -> dict[str, list[tuple[str, int, int, int, int, bytes]]]:
    """<op>/<stage>/<fingerprint> -> for each shard, the rows by status in its last manifest."""
    root = Path(workspace) / "facts"
    found = {}
    for folder in sorted({path.parent for path in root.glob("*/*/*/versions")}):
        paths = folder.glob("versions/*/manifest.json")
        versions = [(json.loads(path.read_text())["extra"]["committed"], path.parent) for path in paths]
        if versions:
            lines = pq.read_table(max(versions)[1] / "shards.parquet").to_pylist()
            names = ("id", "rows", "done", "unusable", "error")
            found[str(folder.relative_to(root))] = [tuple(line[name] for name in names) for line in lines]
    return found


def answers(workspace: str | Path) -> dict[str, set[bytes]]:
    """<op>/<stage> -> inputs that its index of answers knows."""
    found: dict[str, set[bytes]] = {}
    for given, table in index_lines(workspace):
        found.setdefault("/".join(table.split("/")[1:3]), set()).add(given)
    return found


def index_lines(workspace: str | Path, op: str = "*") -> Counter[tuple[bytes, str]]:
    """Lines (input, path of the table) of the indexes of answers, with how often each is there."""
    root, found = Path(workspace), Counter[tuple[bytes, str]]()
    for path in sorted(root.glob(f"facts/{op}/*/index/*.arrow")):
        stage = path.parent.parent.relative_to(root)
        for line in pa.ipc.open_file(pa.memory_map(str(path))).read_all().to_pylist():
            found[line["input"], f"{stage}/{line['table']}"] += 1
    return found


def an_input(number: int) -> bytes:
    """A digest of an input."""
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def answers_table(rows: Iterable[int]) -> pa.Table:
    """A table of facts with answers to `an_input(row)`."""
    places = np.array(list(rows), np.int64)
    count, columns = len(places), pa.table({"c": [f"x{row}" for row in places]})
    inputs = np.array([*map(an_input, places), None], object)[:-1]
    return build(places, np.zeros(count, np.int8), [None] * count, np.zeros(count, bool), columns, inputs)


def publish_answers(
    storage: Storage, path: str, shard: str, rows: Iterable[int], base: Published | None = None
) -> Published:
    """Publish the table after `base` with answers to `an_input(row)`, and add them to the stage's index, as a unit
    does."""
    folder, _, fingerprint = path.rpartition("/")
    number, fresh = base.number if base else 0, answers_table(rows)
    table = table_path(fingerprint, shard, number + 1)
    index.add(storage, folder, [(given, table) for given in fresh.column(INPUT).to_pylist()])
    return publish(storage, path, shard, number, base and base.table, fresh, Notes())


def assert_same(one: str | Path, two: str | Path, within: float = 0.0) -> None:
    """Two workspaces hold the same and say the same of it. within: relative difference that numbers in facts may have:
    on some processors, the last digits of a model depend on the alignment of its tensors."""
    a, b = nouns(one), nouns(two)
    assert sorted(a) == sorted(b), sorted(a.keys() ^ b.keys())
    different = [name for name in a if a[name] != b[name]]
    assert different == [], different
    assert manifests(one) == manifests(two), sorted({*manifests(one)} ^ {*manifests(two)})
    for held in (facts, fixed, masks, answers):
        ours, theirs = held(one), held(two)
        assert sorted(ours) == sorted(theirs), held.__name__
        assert [name for name in ours if not _same(ours[name], theirs[name], within)] == [], held.__name__


def _same(one: Any, two: Any, within: float) -> bool:
    if within and isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[name], two[name], within) for name in one)
    if within and isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(_same(*both, within) for both in zip(one, two, strict=True))
    if within and isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=within)
    return bool(one == two)
