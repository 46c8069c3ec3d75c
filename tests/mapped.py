"""A small workspace whose run has two maps and an index."""

from __future__ import annotations

from pathlib import Path

from curate.api import Pipeline, Workspace, make_stage
from tests.engine import toys

ROWS, RUN = 60, "mapped-1"


def mapped_workspace(folder: Path) -> Workspace:
    made = Pipeline().add("pool", toys.Numbers(namespace="toys", rows=ROWS, shard_rows=10, broken=7))
    made.add("inspect", make_stage("image.inspect"), "pool")
    made.add("embed", make_stage("image.embed", encoder="tiny"), "inspect")
    made.add("tree", make_stage("cluster.fit", levels=[4], rounds=0), "embed")
    made.add("clusters", make_stage("cluster.assign", levels=1), "embed", tree="tree")
    made.add("one", make_stage("cluster.fit", levels=[1], rounds=0), "embed")
    made.add("alone", make_stage("cluster.assign", levels=1), "embed", tree="one")
    made.add("axes", make_stage("project.fit"), "embed")
    made.add("spread", make_stage("project.fit", method="neighbours", epochs=20), "embed")
    made.add("map", make_stage("project.place"), "clusters", projection="axes")
    made.add("near", make_stage("project.place", into="near"), "map", projection="spread")
    made.add("profile", make_stage("cluster.profile"), "clusters", tree="tree")
    made.add("index", make_stage("search.fit"), "embed")
    made.add("half", make_stage("select.uniform", count=ROWS // 2), "near")
    place = Workspace(str(folder))
    place.submit(made.check(), run_id=RUN).wait()
    return place
