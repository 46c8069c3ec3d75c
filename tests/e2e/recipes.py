"""The whole real pipeline as a recipe, small, over any source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml


def stages(source: dict[str, Any], **changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every op of the quickstart over a source; `changes` are put over the stages they name."""
    made: dict[str, dict[str, Any]] = {
        "pool": {"namespace": "e2e", **source},
        "inspect": {"op": "image.inspect", "from": "pool", "threads": 1},
        "size": {"op": "image.filter", "from": "inspect", "min_side": 16},
        "text": {"op": "text.clean", "from": "size"},
        "captioned": {"op": "text.filter", "from": "text", "missing": "keep"},
        "prints": {"op": "image.fingerprint", "from": "captioned", "threads": 1},
        "embed": {"op": "image.embed", "from": "captioned", "threads": 1},
        "sets": {"op": "duplicates.find", "from": "prints"},
        "members": {"op": "duplicates.members", "from": "prints", "sets": "sets"},
        "unique": {"op": "duplicates.drop", "from": "members", "reject": "near"},
        "tree": {"op": "cluster.fit", "from": ["unique", "embed"], "levels": [6, 2], "rounds": 2, "threads": 1},
        "clusters": {"op": "cluster.assign", "from": ["unique", "embed"], "tree": "tree", "levels": 2, "threads": 1},
        "sample": {"op": "select.hierarchical", "from": "clusters", "tree": "tree", "target": 12},
        "dataset": {"op": "pack.webdataset", "from": "sample", "name": "small", "shard_rows": 5},
        "report": {"op": "report.html", "from": "dataset", "threads": 1},
    }
    for name, change in changes.items():
        made[name] = {**made[name], **change}
    return made


ORDER = list(stages({}))


def write_recipe(path: Path, source: dict[str, Any], **changes: dict[str, Any]) -> Path:
    plain = json.loads(json.dumps({"stages": stages(source, **changes)}, default=str))
    path.write_text(yaml.safe_dump(plain, sort_keys=False))
    return path
