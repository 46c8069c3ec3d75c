"""Runs, datasets, workspaces and people as the actions answer them, for pages without a service."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from curate.api import Contents, Values
from curate.service.datasets.datasets import DatasetShape, Lineage, LineageNode
from curate.service.datasets.tags import TagShape
from curate.service.datasets.upkeep import GcShape, PinShape, StorageLine, StorageShape, TombstonesShape
from curate.service.people.quotas import AuditShape, QuotaShape
from curate.service.people.tokens import TokenShape
from curate.service.people.users import GrantShape, Me, UserShape
from curate.service.places.registrations import RegistrationShape
from curate.service.places.targets import TargetShape
from curate.service.places.workspaces import WorkspaceShape
from curate.service.reconcile.targets import Health
from curate.service.runs.shapes import (
    FunnelLine,
    LaneShape,
    LogLine,
    PlanStage,
    RunLine,
    RunShape,
    StageLine,
    StageShape,
    StateChange,
)
from curate.service.states import State

NOW = datetime(2026, 11, 23, 10, 30, tzinfo=UTC)
RUN = "r-20261123-0912-k3vq"
REPORTS = ["reports/quickstart/8a41"]
CLUSTERS = "facts/cluster.assign/clusters"
FINGERPRINT = "9f2c4be1a07d55d3"
BASE = f"datasets/quickstart/{FINGERPRINT}"
RECIPE = """\
# From a folder of images to a balanced, shuffled training set.
description: OpenClipart to a balanced dataset

vars:
  images: images # a registered root
  encoder: tiny # included; timm:…, open_clip:… by name
  min_side: 32 # pixels of the shorter side
  target: 3000

stages:
  pool:
    op: acquire.folder
    path: ${images}
  inspect:
    op: image.inspect
    from: pool
"""
STAGES = (
    ("pool", "acquire.folder", (), {}),
    ("inspect", "image.inspect", ("pool",), {}),
    ("size", "image.filter", ("inspect",), {}),
    ("text", "text.clean", ("size",), {}),
    ("prints", "image.fingerprint", ("text",), {}),
    ("embed", "image.embed", ("text",), {}),
    ("sets", "duplicates.find", ("prints",), {}),
    ("members", "duplicates.members", ("prints",), {"sets": "sets"}),
    ("unique", "duplicates.drop", ("members",), {}),
    ("tree", "cluster.fit", ("unique", "embed"), {}),
    ("clusters", "cluster.assign", ("unique", "embed"), {"tree": "tree"}),
    ("profile", "cluster.profile", ("clusters",), {"tree": "tree"}),
    ("sample", "select.hierarchical", ("clusters",), {"tree": "tree"}),
    ("dataset", "pack.webdataset", ("sample",), {}),
    ("report", "report.html", ("dataset", "profile"), {}),
)
CONTRACTS = {"acquire": "Source", "pack": "Pack", "report": "Report", "select": "Select"}


def stage(
    name: str, op: str, inputs: tuple[str, ...], ports: dict[str, str], state: str = "done", **more: Any
) -> StageShape:
    values: dict[str, Any] = {"rows": 28_104, "total": 28_104, "left_seconds": None, "text": "", "lanes": []}
    values |= {"waiting": {"rows": 0, "total": None}}.get(state, {})
    contract = CONTRACTS.get(op.split(".")[0], "Map")
    return StageShape(
        stage=name, op=op, contract=contract, inputs=list(inputs), ports=ports, state=state, **values | more
    )


def stages(state: State = State.RUNNING) -> list[StageShape]:
    if state is State.DONE:
        return [stage(*one) for one in STAGES]
    found = []
    for place, one in enumerate(STAGES):
        if state in (State.QUEUED, State.SUBMITTING, State.STARTING):
            found.append(stage(*one, state="waiting"))
        elif one[0] == "embed" and state is State.FAILED:
            remedy = "give it a smaller batch_size or fewer workers, or a target with more memory; then resume"
            found.append(stage(*one, state="unfinished", rows=9_120, remedy=remedy))
        elif one[0] == "embed":
            lanes = [LaneShape(lane="gpu", rows=9_120, rows_per_s=412.5, bytes_per_s=0.0, busy=0.94)]
            found.append(stage(*one, state="running", rows=9_120, left_seconds=46.0, lanes=lanes))
        elif one[0] == "prints" and state is State.RUNNING:
            lanes = [LaneShape(lane="cpu", rows=21_400, rows_per_s=1_730.0, bytes_per_s=24.5e6, busy=0.71)]
            found.append(stage(*one, state="running", rows=21_400, left_seconds=4.0, lanes=lanes))
        elif one[0] == "inspect":
            found.append(stage(*one, state="reused"))
        else:
            found.append(stage(*one, state="done" if place < 4 else "waiting"))
    return found


def line(state: State = State.RUNNING, **more: Any) -> RunLine:
    return RunLine(**_line(state) | more)


def _line(state: State) -> dict[str, Any]:
    begun = state not in (State.QUEUED, State.SUBMITTING, State.STARTING)
    done = {State.DONE: 15, State.RUNNING: 4, State.STOPPING: 4, State.QUEUED: 0}.get(state, 4 if begun else 0)
    reasons = {
        State.QUEUED: "waits: target big has 4 runs, its most",
        State.FAILED: "stage embed: 3 workers ran out of GPU memory",
        State.LOST: "its driver died: the head node was restarted",
        State.KILLED: "killed: it did not drain within 60 s",
        State.STOPPED: "ended on request",
    }
    return {
        "id": RUN, "workspace": "openclipart", "title": "Balanced clip art, November", "user": "ada", "target": "big",
        "submitted": True, "state": state, "reason": reasons.get(state, ""),
        "position": 3 if state is State.QUEUED else None, "created": NOW - timedelta(minutes=80),
        "started": NOW - timedelta(minutes=78) if begun else None,
        "ended": NOW if state.ended else None, "seconds": 4_680.0 if begun else None, "stages": 15, "stages_done": done,
        "rows": 3_000 if state is State.DONE else None, "gpu_hours": 1.31 if begun else 0.0,
        "dollars": 12.4 if begun else 0.0, "alert": "",
    }  # fmt: skip


def run(state: State = State.RUNNING, **more: Any) -> RunShape:
    found = stages(state)
    changes = [("", "queued", "submitted by ada"), ("queued", "submitting", ""), ("submitting", "starting", "")]
    if state not in (State.QUEUED, State.SUBMITTING, State.STARTING):
        changes.append(("starting", "running", ""))
    if state.ended or state is State.STOPPING:
        changes.append(("running", state.value, _line(state)["reason"]))
    values = _line(state) | {
        "attempt": 1, "attempt_id": f"{RUN}-1", "request": "", "requested_by": "", "priority": 0, "retries": 1,
        "changes": [
            StateChange(time=NOW - timedelta(minutes=78 - place), attempt=1, before=before, after=after, reason=reason)
            for place, (before, after, reason) in enumerate(changes)
        ],
        "drain_seconds": 60.0, "recipe": RECIPE, "set": ["encoder=tiny", "target=3000"],
        "options": {"failure_budget": 0.01, "max_dollars": 50.0}, "tokens": 1_250_000,
        "resumable": state.ended and state is not State.DONE, "stoppable": not state.ended, "stage_list": found,
        "datasets": [BASE] if state is State.DONE else [], "reports": REPORTS if state is State.DONE else [],
        "version": 7,
    }  # fmt: skip
    return RunShape(**values | more)


def lines() -> list[RunLine]:
    found = []
    titles = ("Balanced clip art, November", "Recaption with the larger model", "Nightly import", "", "Try min_side 64")
    for place, state in enumerate([*State, State.DONE, State.DONE]):
        more: dict[str, Any] = {
            "id": f"r-202611{23 - place}-0912-k3v{place}", "title": titles[place % len(titles)],
            "created": NOW - timedelta(hours=5 * place), "user": ("ada", "grace", "linus")[place % 3],
        }  # fmt: skip
        if state is State.RUNNING:
            more["alert"] = "82 % of the failure budget is used"
        if place == 11:
            more |= {"submitted": False, "user": "", "target": ""}
        found.append(line(state, **more))
    return found


def funnel() -> list[FunnelLine]:
    def one(stage: str, op: str, before: int, rejected: dict[str, int] | None = None, **more: Any) -> FunnelLine:
        lost = sum((rejected or {}).values()) + sum(sum(more.get(kind, {}).values()) for kind in ("unusable", "error"))
        values = {"unusable": {}, "error": {}} | more
        return FunnelLine(stage=stage, op=op, before=before, rejected=rejected or {}, after=before - lost, **values)

    return [
        one("pool", "acquire.folder", 30_211),
        one("inspect", "image.inspect", 30_211, unusable={"truncated": 12, "not_an_image": 5}),
        one("size", "image.filter", 30_194, {"too_small": 1_702, "too_long": 388}),
        one("text", "text.clean", 28_104),
        one("prints", "image.fingerprint", 28_104, error={"timeout": 2}),
        one("unique", "duplicates.drop", 28_102, {"exact": 512, "near": 2_204}),
    ]


def log_lines(count: int = 40) -> list[LogLine]:
    found = []
    for place in range(count):
        level = "warning" if place % 9 == 4 else "error" if place % 17 == 12 else "info"
        message = {
            "info": f"shard {place:04} of 58: 512 rows in 1.2 s",
            "warning": "worker gpu-1 was slow: 41 s for a batch of 256 rows; its node has 3 other tasks",
            "error": "batch of 256 rows failed: CUDA out of memory; halved",
        }[level]
        trace = 'Traceback:\n  File "embed.py", line 88, in compute\nRuntimeError: CUDA out of memory'
        found.append(
            LogLine(
                time=NOW + timedelta(seconds=place), level=level, stage="embed" if place % 3 else "prints",
                worker="gpu-1", node="10.0.0.7", message=message, traceback=trace if level == "error" else "",
            )
        )  # fmt: skip
    return found


def plan() -> list[PlanStage]:
    found = []
    for place, (name, op, *_) in enumerate(STAGES):
        done = place < 4
        found.append(
            PlanStage(
                stage=name, op=op, kind="map", done=28_104 if done else 0, needed=28_104, compute=0 if done else 28_104,
                after=28_104 - 500 * place, certainty="exact" if done else "estimate",
                seconds=None if done else 12.5 * place, bytes=None if done else 2_400_000 * place,
                gpu_hours=0.12 if name == "embed" else None, requests=None, tokens=None, dollars=None,
                note="depends on unique" if name == "tree" else "",
            )
        )  # fmt: skip
    return found


def checked_stages() -> list[StageLine]:
    return [
        StageLine(stage=name, op=op, contract="Map", inputs=list(inputs), ports=ports)
        for name, op, inputs, ports in STAGES
    ]


def dataset(**more: Any) -> DatasetShape:
    values = {
        "name": "quickstart", "base": BASE, "url": f"s3://curation/openclipart/{BASE}", "fingerprint": FINGERPRINT,
        "rows": 3_000, "tars": 6, "bytes": 84_200_000, "committed": NOW - timedelta(days=1), "run": RUN,
        "tags": ["good", "2026-11"], "pins": ["tag.quickstart.good.9f2c4be1"],
    }  # fmt: skip
    return DatasetShape(**values | more)


def contents(**more: Any) -> Contents:
    quantiles = (32.0, 100.0, 227.5, 500.0, 3720.0)
    label = Values("label", "meta.category", 149, 3, top=(("animals/birds", 408), ("people", 96)))
    score = Values("score", "score", 9, 0, quantiles=quantiles)
    values: dict[str, Any] = {
        "rows": 3_000, "read": 3_000, "files": {"png": 2_900, "mp4": 100}, "texts": 2_972, "text_bytes": quantiles,
        "shorter_side": quantiles, "repeated": 0, "values": (label, score),
        "tars": "quickstart-{000000..000005}.tar", "card": "# quickstart",
    }  # fmt: skip
    return Contents(**values | more)


def tags() -> list[TagShape]:
    return [
        TagShape(name="quickstart", tag="2026-11", base=BASE, time=NOW - timedelta(hours=3), user="ada", version=1),
        TagShape(name="quickstart", tag="good", base=BASE, time=NOW - timedelta(hours=2), user="grace", version=2),
        TagShape(
            name="quickstart",
            tag="before",
            base="datasets/quickstart/11aa22bb33cc44dd",
            time=NOW,
            user="ada",
            version=3,
        ),
    ]


def lineage() -> Lineage:
    nodes = [
        (CLUSTERS, "clusters", "cluster.assign", "facts", 25_386, ["artifacts/tree"]),
        ("artifacts/tree", "tree", "cluster.fit", "artifact", None, []),
        ("selections/sample", "sample", "select.hierarchical", "selection", 3_000, [CLUSTERS, "artifacts/tree"]),
        (BASE, "dataset", "pack.webdataset", "dataset", 3_000, ["selections/sample"]),
        ("reports/quickstart/8a41", "report", "report.html", "report", None, [BASE]),
    ]  # fmt: skip
    made = [LineageNode(id=i, stage=s, op=o, noun=n, rows=r, up=u) for i, s, o, n, r, u in nodes]
    return Lineage(run=RUN, nodes=made, more=True)


def workspaces() -> list[WorkspaceShape]:
    at = NOW - timedelta(days=90)
    return [
        WorkspaceShape(
            name="openclipart", url="s3://curation/openclipart", target="big", role="admin", created=at, version=3
        ),
        WorkspaceShape(
            name="laion-study", url="/data/laion-study", target="local", role="viewer", created=at, version=1
        ),
    ]


def targets() -> list[TargetShape]:
    def one(name: str, active: int, health: Health | None) -> TargetShape:
        return TargetShape(
            name=name, address=f"http://{name}:8265", token="file:/run/secrets/ray" if active else "", max_runs=4,
            max_gpus=0, active=active, created=NOW, version=2, health=health,
        )  # fmt: skip

    good = Health(healthy=True, checked=NOW, version="2.60.0", nodes=5, cpus=160, gpus=16, free_cpus=38, free_gpus=4)
    bad = Health(healthy=False, checked=NOW, error="http://old:8265 does not answer within 6 s: connection refused")
    return [one("big", 4, good), one("local", 0, None), one("old", 0, bad)]


def registrations() -> list[RegistrationShape]:
    return [
        RegistrationShape(
            workspace=None, kind="encoder", name="dinov3", value="hf:facebook/dinov3-vitb16", created=NOW
        ),
        RegistrationShape(
            workspace="openclipart", kind="root", name="images", value="s3://corpora/openclipart", created=NOW
        ),
        RegistrationShape(
            workspace="openclipart", kind="secret", name="captions", value="env:CAPTION_KEY", created=NOW
        ),
    ]


def storage() -> StorageShape:
    rows = [
        ("pool", "acquire.folder", ["pool"], 59, 1_240_000_000, 0),
        ("facts", "image.embed", ["embed"], 58, 86_300_000, 12_000_000),
        ("facts", "image.inspect", ["inspect"], 58, 2_100_000, 0),
        ("dataset", "quickstart", ["dataset"], 14, 168_400_000, 84_200_000),
    ]
    made = [StorageLine(noun=n, name=m, stages=s, files=f, bytes=b, garbage=g) for n, m, s, f, b, g in rows]
    return StorageShape(lines=made, bytes=sum(row[4] for row in rows), garbage=96_200_000, checked=NOW)


def freed() -> GcShape:
    return GcShape(paths=73, bytes=96_200_000, runs=["r-1", "r-2"], deleted=False)


def pins() -> list[PinShape]:
    return [
        PinShape(
            name="tag.quickstart.good.9f2c4be1", base=BASE, fingerprint=FINGERPRINT, run=f"{RUN}-1", stage="dataset"
        ),
        PinShape(name="tree-2026", base="artifacts/cluster.fit/5cc1", fingerprint="5cc1", run=f"{RUN}-1", stage="tree"),
    ]


def tombstones() -> TombstonesShape:
    return TombstonesShape(counts={"key": 12, "sha256": 0, "url": 3}, affected={f"s3://curation/openclipart/{BASE}": 2})


def users() -> list[UserShape]:
    def some(workspace: str, role: str) -> GrantShape:
        return GrantShape(workspace=workspace, role=role)

    every = GrantShape(workspace=None, role="admin")
    both = [some("openclipart", "operator"), some("laion-study", "viewer")]
    return [
        UserShape(name="ada", created=NOW, disabled=None, grants=[every]),
        UserShape(name="grace", created=NOW, disabled=None, grants=both),
        UserShape(name="linus", created=NOW, disabled=NOW, grants=[]),
    ]  # fmt: skip


def me() -> Me:
    return Me(
        user="ada",
        token="1a2b3c4d",
        expires=NOW + timedelta(days=80),
        grants=[GrantShape(workspace=None, role="admin")],
    )


def tokens() -> list[TokenShape]:
    def one(id: str, label: str, **more: Any) -> TokenShape:
        values = {"role": "admin", "created": NOW, "expires": NOW + timedelta(days=90), "used": NOW, "revoked": None}
        return TokenShape(id=id, user="ada", label=label, **values | more)

    return [
        one("1a2b3c4d", "Laptop"), one("99aa88bb", "Nightly job", role="operator", expires=None),
        one("0011ddee", "", used=None, revoked=NOW), one("77ee66ff", "Old laptop", expires=NOW - timedelta(days=900)),
    ]  # fmt: skip


def quotas() -> dict[str, QuotaShape]:
    return {"": QuotaShape(running=4, queued=50, gpu_hours=500.0)}


def audit() -> list[AuditShape]:
    rows = [
        ("ada", "run.submit", "openclipart", RUN, "ok", {"title": "Balanced clip art, November", "priority": 0}),
        ("grace", "run.stop", "openclipart", RUN, "ok", {}),
        ("linus", "run.kill", "laion-study", "r-20261101-1000-aaaa", "forbidden", {}),
        ("-", "login", "", "10.0.0.99", "not_logged_in", {}),
        ("service", "webhook", "openclipart", RUN, "ok", {"state": "done", "status": 204}),
        ("ada", "grant.set", "openclipart", "grace", "ok", {"role": "operator"}),
    ]
    return [
        AuditShape(
            id=100 - place,
            time=NOW - timedelta(minutes=7 * place),
            user=user,
            token_id="1a2b3c4d" if user == "ada" else None,
            action=action,
            workspace=workspace,
            target=target,
            outcome=outcome,
            request_id="q",
            detail=detail,
        )
        for place, (user, action, workspace, target, outcome, detail) in enumerate(rows)
    ]  # fmt: skip
