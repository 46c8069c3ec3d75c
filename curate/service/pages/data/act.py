"""/runs/{id}/exclude: leave samples that one sees out of later runs."""

from __future__ import annotations

from fastapi import Response

from curate.service.auth.audit import rejections
from curate.service.auth.roles import Role
from curate.service.datasets.upkeep import NewTombstones, add_tombstones
from curate.service.pages.data.tabs import of_run
from curate.service.pages.forms import Form, Pages, done, made, words
from curate.service.pages.kit import Visiting, part
from curate.service.pages.runs import run_with
from curate.service.problems import InvalidProblem
from curate.service.runs.finding import found
from curate.service.samples.exports import keys_of

router = Pages()


@router.form("/runs/{run_id}/exclude", "/runs/{run_id}", run_with)
def exclude(visit: Visiting, form: Form, run_id: str) -> Response:
    workspace = words(form, "workspace") or None
    with rejections(visit.service, visit.who, "tombstone.add", target=run_id):
        with visit.service.database.read() as session:
            found(session, visit.who, run_id, workspace, Role.OPERATOR)
        seen = of_run(visit, run_id)
    keys = [str(key) for key in form.getlist("key")]
    if words(form, "all"):
        stage, rejected, where, text = (words(form, name) for name in ("stage", "rejected", "where", "text"))
        keys = keys_of(visit.service, seen, stage, rejected, where, text)
    if not keys:
        raise InvalidProblem("no sample was chosen; go back, choose some below their images, and repeat")
    add_tombstones(*visit.args, seen.one.place.name, made(NewTombstones, entries=keys, why=words(form, "why")))
    return done(f"/runs/{part(run_id)}", "excluded", workspace=workspace)
