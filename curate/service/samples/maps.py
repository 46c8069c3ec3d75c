"""The map of a run: what its points mean, and the points as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import Header, Query, Response
from numpy.typing import NDArray

from curate.core.errors import CorruptError, InputError
from curate.core.hashing import digest
from curate.service.auth.roles import Principal
from curate.service.kept import QUESTION
from curate.service.problems import InvalidProblem
from curate.service.rest.routing import SEEN, Router, Served, Who, Workspace, knows
from curate.service.samples.looking import SAMPLE, Looked, RunName, looked
from curate.service.service import Service
from curate.service.shapes import Shape

router = Router(tags=["data"])
MapStage = Annotated[str | None, Query(max_length=200, description="Stage of `project.place`, if the run has several.")]
ColourBy = Annotated[str, Query(max_length=200, description="Column of any stage; none: one colour.")]
AliveAt = Annotated[str, Query(max_length=200, description="Stage whose rows are marked as alive; none: all rows are.")]


class LegendLine(Shape):
    """`colour`: #rrggbb."""

    label: str
    colour: str
    points: int


class MapShape(Shape):
    """`version` changes with the points; `map` with what was fitted, and a region drawn on it names it. `extent`: left,
    bottom, right, top. `shards`: those whose rows are shown, of all `whole`; `lost`: why others cannot be read."""

    run: str
    stage: str
    column: str
    map: str
    version: str
    points: int
    alive: int
    shards: int
    whole: int
    lost: list[str]
    extent: tuple[float, float, float, float]
    legend: list[LegendLine]


@dataclass(frozen=True)
class MapBytes:
    """The points of a map as they are kept: x and y, category, alive, number of the shard, row."""

    shape: MapShape
    shards: Sequence[str]
    data: NDArray[np.uint8]

    @property
    def sent(self) -> bytes:
        """What browsers get: x, y (n, 2) float32, category (n,) uint8, alive (n,) uint8."""
        return self.data[: 10 * self.shape.points].tobytes()

    def array(self, start: int, kind: str, width: int = 1) -> NDArray[Any]:
        """(n, width) from `start` bytes per point on."""
        count = self.shape.points
        return np.frombuffer(self.data, kind, count * width, start * count).reshape(count, width)

    def place(self, point: int) -> tuple[str, int]:
        """(id of the shard, row) of a point. Raises InvalidProblem."""
        if not 0 <= point < self.shape.points:
            raise InvalidProblem(f"point: {point}: expected 0 to {self.shape.points - 1}")
        return self.shards[int(self.array(10, "<i4")[point, 0])], int(self.array(14, "<i4")[point, 0])


@router.get("/runs/{run}/map", responses=SAMPLE)
def get_map(
    service: Served, who: Who, run: RunName, stage: MapStage = None, colour: ColourBy = "", alive: AliveAt = "",
    workspace: Workspace = None,
) -> MapShape:  # fmt: skip
    """The rows that a stage placed on a map: how many points, where they are, and what their colours mean."""
    return made_map(service, who, run, stage, colour, alive, workspace)[1].shape


@router.get("/runs/{run}/map/points", responses=SAMPLE | SEEN, response_class=Response)
def get_map_points(
    service: Served, who: Who, run: RunName, stage: MapStage = None, colour: ColourBy = "", alive: AliveAt = "",
    workspace: Workspace = None, if_none_match: Annotated[str, Header(max_length=1000)] = "",
) -> Response:  # fmt: skip
    """The n points of a map in a random order, so that the first ones are a fair sample: x and y as n pairs of 32-bit
    floats, little-endian, then the line of the legend as n bytes, then 1 or 0 for alive as n bytes."""
    found = made_map(service, who, run, stage, colour, alive, workspace)[1]
    headers = {"Cache-Control": "private, no-cache", "ETag": f'"{found.shape.version}"'}
    if knows(if_none_match, found.shape.version):
        return Response(status_code=304, headers=headers)
    return Response(found.sent, 200, headers, "application/octet-stream")


def made_map(
    service: Service, who: Principal, run: str, stage: str | None, colour: str, alive: str, workspace: str | None
) -> tuple[Looked, MapBytes]:
    """Points are kept in files. Raises InvalidProblem for an unknown stage or column, and if the run
    has no map."""
    seen = looked(service, who, run, workspace)
    stage = stage or next(iter(seen.made.maps), None)  # a map has one name, whether or not it is given
    about = ("map", seen.one.place.id, seen.one.attempt_id, stage, colour, alive)
    name = digest([*about, seen.one.place.url])[:32]

    def make() -> tuple[MapShape, list[str]]:
        found = seen.run.map(stage, colour, alive)
        places = (found.shard.astype("<i4"), found.row.astype("<i4"))
        arrays = (found.xy.astype("<f4"), found.category, found.alive, *places)
        data = b"".join(array.tobytes() for array in arrays)
        service.maps.put(name, data)
        version = hashlib.sha256(data).hexdigest()[:16]
        legend = [LegendLine.model_validate(vars(line)) for line in found.legend]
        shape = MapShape(
            run=run, stage=found.stage, column=found.column, map=found.map, version=version,
            points=len(found.xy), alive=int(found.alive.sum()), shards=len(found.shards), whole=found.whole,
            lost=found.lost, extent=found.extent, legend=legend,
        )  # fmt: skip
        return shape, found.shards

    try:
        for _ in range(2):  # the folder may have dropped the points
            shape, shards = service.kept.get(
                who, about, make, f"map of run {run}", kind=QUESTION, seconds=seen.one.settled
            )
            data = service.maps.mapped(name)
            if data is not None and len(data) == 18 * shape.points:
                return seen, MapBytes(shape, shards, data)
            service.kept.drop(about)
    except (InputError, CorruptError) as error:
        raise InvalidProblem(str(error)) from None
    raise InvalidProblem(f"map of run {run}: its points cannot be kept; free space for temporary files")
