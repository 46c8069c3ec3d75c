"""`Workspace(url).submit(pipeline) -> Run`: everything that the command line does, for programs.

    workspace = Workspace("s3://bucket/workspace")
    run = workspace.submit(load_recipe("recipe.yaml"))
    result = run.wait()

A run is identified by its workspace and id: any process, on any machine that sees the workspace, can watch it, read its
logs and stop it. Every method raises CurateError (one line) on failure.
"""

from curate.api.clusters import Clusters
from curate.api.stages import abandoned, make_stage, try_row
from curate.api.workspace import Run, Workspace
from curate.core.ledger import Entry
from curate.core.recipe.catalog import Op, describe, ops
from curate.core.recipe.load import json_schema
from curate.core.recipe.load import load as load_recipe
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.engine.plan.lines import PlanLine
from curate.engine.plan.lines import table as plan_table
from curate.engine.progress import duration, speed
from curate.engine.record.diff import StageDiff
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import StageStatus, Status
from curate.engine.record.usage import DatasetInfo, Usage
from curate.engine.run import Result, new_run_id
from curate.engine.state import Options

__all__ = [
    "Clusters", "DatasetInfo", "Entry", "Op", "Options", "Pipeline", "PlanLine", "Result", "Run", "RunRecord",
    "StageDiff", "StageStatus", "Status", "Usage", "Workspace", "abandoned", "describe", "duration", "json_schema",
    "load_recipe", "make_stage", "new_run_id", "ops", "plan_table", "resolve", "speed", "try_row",
]  # fmt: skip
