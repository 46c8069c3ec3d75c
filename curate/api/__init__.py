"""`Workspace(url).submit(pipeline) -> Run`: everything that the command line does, for programs.

    workspace = Workspace("s3://bucket/workspace")
    run = workspace.submit(load_recipe("recipe.yaml"))
    result = run.wait()

A run is identified by its workspace and id: any process, on any machine that sees the workspace, can watch it, read its
logs and stop it. Every method raises CurateError (one line) on failure.
"""

from curate.api.clusters import Clusters
from curate.api.contents import Contents, Values
from curate.api.maps import MapPoints, Polygon
from curate.api.pixels import SampleFile, small_images
from curate.api.recorded import recorded
from curate.api.releases import Fetched
from curate.api.releases import push as push_release
from curate.api.run import Run
from curate.api.slices import Slice, SlicePage
from curate.api.stages import abandoned, make_stage, try_row
from curate.api.tables import Histogram, Page
from curate.api.tables import write as write_table
from curate.api.workspace import Workspace
from curate.core.fetches import opt_outs
from curate.core.ledger import Entry, told
from curate.core.recipe.catalog import Op, describe, ops
from curate.core.recipe.load import json_schema
from curate.core.recipe.load import load as load_recipe
from curate.core.recipe.pipeline import Pipeline
from curate.core.recipe.registry import resolve
from curate.core.spend import RunSpend, Spend, dollars
from curate.core.spend import words as spend_words
from curate.engine.jobs import ClusterResources, JobInfo, JobServer, stop_environment
from curate.engine.plan.lines import PlanLine
from curate.engine.plan.lines import table as plan_table
from curate.engine.plan.lines import to_json as plan_json
from curate.engine.progress import duration, speed
from curate.engine.record.diff import StageDiff
from curate.engine.record.events import EventsPage
from curate.engine.record.explain import Story, plain
from curate.engine.record.lineage import ArtifactInfo, Lineage, LineageNode
from curate.engine.record.reading_logs import LogPage
from curate.engine.record.runs import RunRecord
from curate.engine.record.status import FetchStatus, StageStatus, Status
from curate.engine.record.summary import Attempt, RunSummary
from curate.engine.record.usage import DatasetInfo, Usage
from curate.engine.run import Result, new_run_id
from curate.engine.state import Options
from curate.engine.takedown.takedown import verify as verify_takedown
from curate.engine.workers.allocation import Allocated
from curate.pack.export import export

__all__ = [
    "Allocated", "ArtifactInfo", "Attempt", "ClusterResources", "Clusters", "Contents", "DatasetInfo", "Entry",
    "EventsPage", "FetchStatus", "Fetched", "Histogram", "JobInfo", "JobServer", "Lineage", "LineageNode", "LogPage",
    "MapPoints", "Op", "Options", "Page", "Pipeline", "PlanLine", "Polygon", "Result", "Run", "RunRecord", "RunSpend",
    "RunSummary", "SampleFile", "Slice", "SlicePage", "Spend", "StageDiff", "StageStatus", "Status", "Story", "Usage",
    "Values", "Workspace", "abandoned", "describe", "dollars", "duration", "export", "json_schema", "load_recipe",
    "make_stage", "new_run_id", "ops", "opt_outs", "plain", "plan_json", "plan_table", "push_release", "recorded",
    "resolve", "small_images", "speed", "spend_words", "stop_environment", "told", "try_row", "verify_takedown",
    "write_table",
]  # fmt: skip
