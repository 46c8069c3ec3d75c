"""Small real stages for the engine's own tests, and pipelines of them."""

from __future__ import annotations

from typing import Any

from curate.core.contracts import Stage
from curate.core.recipe.pipeline import Pipeline
from tests.engine.toys.outputs import (
    Choosy,
    Even,
    Means,
    Nothing,
    Page,
    PlainPack,
    Total,
)
from tests.engine.toys.rows import (
    Bad,
    Brighter,
    Brightness,
    Contrasty,
    Costly,
    Divided,
    Light,
    Numbers,
    Parity,
    Shifted,
    image,
)

__all__ = [
    "Bad",
    "Brighter",
    "Brightness",
    "Choosy",
    "Contrasty",
    "Costly",
    "Divided",
    "Even",
    "Light",
    "Means",
    "Nothing",
    "Numbers",
    "Page",
    "Parity",
    "PlainPack",
    "Shifted",
    "Total",
    "chain",
    "fits",
    "image",
    "pipeline",
]

STAGES: dict[str, tuple[type[Stage], tuple[str, ...], dict[str, str]]] = {
    "pool": (Numbers, (), {}),
    "bright": (Brightness, ("pool",), {}),
    "light": (Light, ("bright",), {}),
    "dear": (Costly, ("light",), {}),
    "parity": (Parity, ("dear",), {}),
    "total": (Total, ("light",), {}),
    "contrast": (Brighter, ("parity",), {"total": "total"}),
    "brighter": (Contrasty, ("contrast",), {}),
    "even": (Even, ("brighter",), {}),
    "dataset": (PlainPack, ("even",), {}),
    "page": (Page, ("dataset",), {}),
}


def pipeline(**changes: Any) -> Pipeline:
    """source -> brightness, parity -> total, brighter -> even -> pack -> page; `stage__parameter=value` changes one."""
    made = Pipeline()
    for name, (cls, inputs, ports) in STAGES.items():
        values = {key.partition("__")[2]: value for key, value in changes.items() if key.startswith(f"{name}__")}
        if cls is Numbers:
            values.setdefault("namespace", "toys")
        made.add(name, cls(**values), inputs, **ports)
    return made.check()


def fits(**changes: Any) -> Pipeline:
    """Numbers -> brightness -> means, by a fit of several passes."""
    values = {"namespace": "toys", "rows": 64, "shard_rows": 8} | changes.pop("pool", {})
    made = Pipeline().add("pool", Numbers(**values)).add("bright", Brightness(), "pool")
    return made.add("means", Means(**changes), "bright").check()


def chain(*stages: Stage, **source: Any) -> Pipeline:
    """Numbers and a chain of stages; `stage_1` is the first."""
    made = Pipeline().add("pool", Numbers(**{"namespace": "toys"} | source))
    for number, stage in enumerate(stages, 1):
        made.add(f"stage_{number}", stage, f"stage_{number - 1}" if number > 1 else "pool")
    return made.check()
