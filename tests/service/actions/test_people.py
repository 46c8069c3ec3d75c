"""Users, roles, tokens, quotas, audit: who may do what, and what stays true."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from threading import Barrier, Thread
from typing import Any

import pytest
from sqlalchemy import func, select

from curate.service.auth.roles import SERVICE, Principal, Role
from curate.service.auth.tokens import first_token, verified
from curate.service.database.models import AuditEntry, BrowserSession, Grant, Token, User
from curate.service.people import quotas, tokens, users
from curate.service.people.quotas import NewQuota
from curate.service.people.tokens import NewToken
from curate.service.people.users import ChangedUser, NewGrant, NewUser
from curate.service.problems import ConflictProblem, ForbiddenProblem, InvalidProblem, NotFoundProblem, Problem
from curate.service.service import Service
from tests.service.people import People, person

Asked = Callable[[Service, Principal], Any]


def principal_of(service: Service, text: str) -> Principal:
    with service.database.read() as session:
        return verified(session, text, service.clock()).principal()


def entries(service: Service) -> list[tuple[str, str, str]]:
    with service.database.read() as session:
        rows = session.scalars(select(AuditEntry).order_by(AuditEntry.id)).all()
    return [(row.user, row.action, row.outcome) for row in rows]


WRITES: dict[str, tuple[Asked, str]] = {
    "add a user": (lambda s, w: users.add_user(s, w, NewUser(name="new")), "user.add"),
    "disable a user": (lambda s, w: users.change_user(s, w, "viewer", ChangedUser(disabled=True)), "user.disable"),
    "enable a user": (lambda s, w: users.change_user(s, w, "viewer", ChangedUser(disabled=False)), "user.enable"),
    "give a role": (lambda s, w: users.set_grant(s, w, "viewer", NewGrant(role=Role.ADMIN)), "grant.set"),
    "take a role": (lambda s, w: users.remove_grant(s, w, "admin", None), "grant.remove"),
    "make a token of another": (lambda s, w: tokens.make_token(s, w, "admin", NewToken()), "token.make"),
    "set a quota": (lambda s, w: quotas.set_quota(s, w, "viewer", NewQuota(running=1)), "quota.set"),
    "set the default quota": (lambda s, w: quotas.set_default_quota(s, w, NewQuota(running=1)), "quota.set"),
}


@pytest.mark.parametrize("what", WRITES)
def test_only_admins_of_the_service_manage_people(service: Service, people: People, what: str) -> None:
    write, action = WRITES[what]
    others = ("viewer", "operator", "keeper", "stranger")
    for who in others:
        with pytest.raises(ForbiddenProblem, match="in the whole service"):
            write(service, getattr(people, who).principal)
    assert entries(service) == [(who, action, "forbidden") for who in others]


def test_an_admin_of_a_workspace_gives_roles_in_it(service: Service, people: People) -> None:
    keeper = people.keeper.principal
    given = users.set_grant(service, keeper, "stranger", NewGrant(workspace="main", role=Role.OPERATOR))
    assert [(grant.workspace, grant.role) for grant in given.grants] == [("main", Role.OPERATOR)]
    assert principal_of(service, people.stranger.token).role(people.workspace.id) is Role.OPERATOR
    assert users.remove_grant(service, keeper, "stranger", "main").grants == []
    assert principal_of(service, people.stranger.token).role(people.workspace.id) is None
    for who in (people.viewer, people.operator):
        with pytest.raises(ForbiddenProblem):
            users.set_grant(service, who.principal, "stranger", NewGrant(workspace="main", role=Role.VIEWER))
    with pytest.raises(NotFoundProblem):  # may not even know that it exists
        users.set_grant(service, people.stranger.principal, "stranger", NewGrant(workspace="main", role=Role.ADMIN))


def test_people_see_whom_they_manage(service: Service, people: People) -> None:
    def seen(who: Principal) -> list[str]:
        return [user.name for user in users.users(service, who)]

    assert seen(people.admin.principal) == ["admin", "keeper", "operator", "stranger", "viewer"]
    assert seen(people.keeper.principal) == ["keeper", "operator", "viewer"]
    assert seen(people.viewer.principal) == ["viewer"]
    assert seen(people.stranger.principal) == ["stranger"]


def test_me_is_what_the_token_leaves(service: Service, people: People) -> None:
    made = tokens.make_token(service, people.keeper.principal, "keeper", NewToken(role=Role.VIEWER, days=1))
    limited = users.get_me(service, principal_of(service, made.token))
    assert (limited.user, limited.token, limited.expires) == ("keeper", made.id, made.expires)
    assert [(grant.workspace, grant.role) for grant in limited.grants] == [("main", Role.VIEWER)]
    assert users.get_me(service, people.admin.principal).grants[0].workspace is None


def test_users_make_tokens_of_at_most_their_greatest_role(service: Service, people: People) -> None:
    """Although their own token would allow more if they had the role."""
    for who, most in ((people.operator, Role.OPERATOR), (people.keeper, Role.ADMIN), (people.stranger, Role.VIEWER)):
        assert who.principal.token_role is Role.ADMIN
        assert tokens.make_token(service, who.principal, who.name, NewToken()).role is most
    with pytest.raises(
        ForbiddenProblem, match="you are operator at most with this token, and cannot make one of admin"
    ):
        tokens.make_token(service, people.operator.principal, "operator", NewToken(role=Role.ADMIN))
    assert tokens.make_token(service, people.admin.principal, "stranger", NewToken()).role is Role.ADMIN


def test_a_token_makes_tokens_of_at_most_its_role(service: Service, people: People) -> None:
    limited = tokens.make_token(service, people.admin.principal, "admin", NewToken(role=Role.OPERATOR))
    who = principal_of(service, limited.token)
    assert who.everywhere is Role.OPERATOR
    with pytest.raises(ForbiddenProblem, match="operator"):
        tokens.make_token(service, who, "admin", NewToken(role=Role.ADMIN))
    assert tokens.make_token(service, who, "admin", NewToken()).role is Role.OPERATOR
    with pytest.raises(ForbiddenProblem):  # nor manages people
        users.add_user(service, who, NewUser(name="new"))


def test_only_the_digest_of_a_token_is_stored(service: Service, people: People) -> None:
    made = tokens.make_token(service, people.viewer.principal, "viewer", NewToken(label="laptop"))
    with service.database.read() as session:
        rows = [str(vars(row)) for table in (Token, AuditEntry) for row in session.scalars(select(table))]
    assert rows and not any(made.token in row or made.token.split("_", 2)[2] in row for row in rows)
    assert [one.label for one in tokens.tokens(service, people.viewer.principal)].count("laptop") == 1
    assert not any("token" in one.model_dump() for one in tokens.tokens(service, people.viewer.principal))


def test_people_see_and_revoke_their_own_tokens_only(service: Service, people: People) -> None:
    viewer, other = people.viewer.principal, people.operator.principal
    with pytest.raises(ForbiddenProblem):
        tokens.tokens(service, viewer, "operator")
    with pytest.raises(NotFoundProblem):
        tokens.revoke_token(service, viewer, other.token_id)
    with pytest.raises(NotFoundProblem):
        tokens.revoke_token(service, viewer, "00000000")
    revoked = tokens.revoke_token(service, viewer, viewer.token_id)
    assert revoked.revoked is not None
    assert tokens.revoke_token(service, people.admin.principal, viewer.token_id).revoked == revoked.revoked
    assert [one.id for one in tokens.tokens(service, people.admin.principal, "viewer")] == [viewer.token_id]


def test_a_disabled_user_gets_new_tokens_only(service: Service, people: People) -> None:
    now = service.clock()
    with service.database.write() as session:
        token = people.viewer.principal.token_id
        session.add(BrowserSession(digest="x", token_id=token, csrf="y", created=now, expires=now + 100))
    assert users.change_user(service, people.admin.principal, "viewer", ChangedUser(disabled=True)).disabled is not None
    with pytest.raises(ConflictProblem, match="disabled"):
        tokens.make_token(service, people.admin.principal, "viewer", NewToken())
    assert users.change_user(service, people.admin.principal, "viewer", ChangedUser(disabled=False)).disabled is None
    with pytest.raises(Problem, match="not logged in"):
        principal_of(service, people.viewer.token)
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(BrowserSession)) == 0
    made = tokens.make_token(service, people.admin.principal, "viewer", NewToken())
    assert principal_of(service, made.token).user == "viewer"


LAST: dict[str, Asked] = {
    "disable": lambda s, w: users.change_user(s, w, "admin", ChangedUser(disabled=True)),
    "lower": lambda s, w: users.set_grant(s, w, "admin", NewGrant(role=Role.OPERATOR)),
    "remove": lambda s, w: users.remove_grant(s, w, "admin", None),
}


@pytest.mark.parametrize("how", LAST)
def test_the_last_admin_stays(service: Service, people: People, how: str) -> None:
    with pytest.raises(ConflictProblem, match="last admin"):
        LAST[how](service, people.admin.principal)
    second = person(service, "second", Role.ADMIN)
    LAST[how](service, second.principal)
    with pytest.raises(ConflictProblem, match="last admin"):
        users.remove_grant(service, second.principal, "second", None)


def test_two_admins_cannot_remove_each_other_at_once(each_service: Service) -> None:
    service = each_service
    both = [person(service, name, Role.ADMIN) for name in ("one", "two")]
    together, outcomes = Barrier(2), []

    def remove(who: Principal, name: str) -> None:
        together.wait()
        try:
            users.remove_grant(service, who, name, None)
            outcomes.append("ok")
        except Problem as problem:
            outcomes.append(problem.code)

    asked = ((both[0].principal, "two"), (both[1].principal, "one"))
    threads = [Thread(target=remove, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "ok"]


def test_a_role_in_the_service_exists_once_per_user(each_service: Service) -> None:
    service = each_service
    one = person(service, "one", Role.VIEWER)
    users.set_grant(service, SERVICE, "one", NewGrant(role=Role.ADMIN))
    with service.database.read() as session:
        assert session.scalars(select(Grant.role)).all() == ["admin"]
    with pytest.raises(ConflictProblem, match="another request"), service.database.write() as session:
        session.add(Grant(user_id=one.principal.user_id, role="viewer"))


def test_names_are_checked(service: Service, people: People) -> None:
    for name in ("viewer", "VIEWER", "service"):
        with pytest.raises(ConflictProblem):
            users.add_user(service, people.admin.principal, NewUser(name=name))
    for name in ("", "a b", "a\r\nSet-Cookie: x=y", "a\n", "../a", "-a", "a" * 65, "ä", "a\0", "x' OR 1=1"):
        with pytest.raises(ValueError, match="name"):
            NewUser(name=name)


def test_quotas(service: Service, people: People) -> None:
    admin = people.admin.principal
    quotas.set_default_quota(service, admin, NewQuota(running=2))
    quotas.set_quota(service, admin, "viewer", NewQuota(gpu_hours=1.5))
    quotas.set_quota(service, admin, "operator", NewQuota(queued=0))
    quotas.set_default_quota(service, admin, NewQuota(running=3))
    assert {name: quota.running for name, quota in quotas.list_quotas(service, admin).items()} == {
        "": 3, "operator": None, "viewer": None
    }  # fmt: skip
    assert set(quotas.list_quotas(service, people.viewer.principal)) == {"", "viewer"}
    with pytest.raises(NotFoundProblem):
        quotas.set_quota(service, admin, "nobody", NewQuota())


# --- audit ------------------------------------------------------------------------------------------------------------

HOSTILE = [
    "' OR 1=1 --",
    "x'; DROP TABLE audit; --",
    "%",
    "_",
    "\\",
    "x\0",
    "\ud800",
    "x\r\nSet-Cookie: a=b",
    "😀" * 20,
]


def test_filters_are_values_only(each_service: Service) -> None:
    users.add_user(each_service, SERVICE, NewUser(name="new"))
    for name, given in product(("workspace", "user", "action"), HOSTILE):
        check_filter(each_service, name, given)
    assert [entry.action for entry in quotas.list_audit(each_service, SERVICE).items] == ["user.add"]


def check_filter(each_service: Service, name: str, given: str) -> None:
    if given == "\ud800" or (given == "x\0" and not each_service.database.sqlite):
        with pytest.raises(InvalidProblem, match="cannot be stored"):
            quotas.list_audit(each_service, SERVICE, **{name: given})  # type: ignore[arg-type]
    else:
        assert quotas.list_audit(each_service, SERVICE, **{name: given}).items == []  # type: ignore[arg-type]


def test_the_audit_is_paged_newest_first(service: Service, people: People) -> None:
    for number in range(7):
        users.add_user(service, people.admin.principal, NewUser(name=f"user-{number}"))
    seen, cursor = [], None
    while True:
        page = quotas.list_audit(service, people.admin.principal, action="user.add", cursor=cursor, limit=3)
        seen += [entry.target for entry in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert seen == [f"user-{number}" for number in range(6, -1, -1)]
    for wrong in ("x", "1 ", "é", cursor_of("a"), cursor_of(1, 2), cursor_of(2**70)):
        with pytest.raises(InvalidProblem, match="cursor"):
            quotas.list_audit(service, people.admin.principal, cursor=wrong)


def cursor_of(*key: str | int) -> str:
    from curate.service.rest.paging import encode

    return encode(*key)


def test_people_see_the_audit_of_what_they_manage(service: Service, people: People) -> None:
    users.add_user(service, people.admin.principal, NewUser(name="new"))
    users.set_grant(service, people.admin.principal, "new", NewGrant(workspace="main", role=Role.VIEWER))
    tokens.make_token(service, people.viewer.principal, "viewer", NewToken())

    def seen(who: Principal, **filters: str) -> set[str]:
        return {entry.action for entry in quotas.list_audit(service, who, **filters).items}  # type: ignore[arg-type]

    assert seen(people.admin.principal) == {"user.add", "grant.set", "token.make"}
    assert seen(people.keeper.principal) == {"grant.set"}
    assert seen(people.viewer.principal) == {"token.make"}
    assert seen(people.stranger.principal) == seen(people.stranger.principal, user="admin") == set()


def test_an_entry_says_who_what_and_when(service: Service, people: People, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "curate.audit")
    before = datetime.now(UTC)
    users.set_grant(service, people.admin.principal, "stranger", NewGrant(workspace="main", role=Role.VIEWER))
    [entry] = quotas.list_audit(service, people.admin.principal).items
    assert (entry.user, entry.token_id) == ("admin", people.admin.principal.token_id)
    assert (entry.workspace, entry.target, entry.detail) == (
        "main",
        "stranger",
        {"role": "viewer", "see_pixels": False},
    )
    assert before.timestamp() - 1 <= entry.time.timestamp() <= datetime.now(UTC).timestamp() + 1
    [line] = [record.getMessage() for record in caplog.records if record.name == "curate.audit"]
    assert '"action": "grant.set"' in line and "\n" not in line


def test_a_write_that_is_rolled_back_leaves_no_entry_of_success(
    service: Service, people: People, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "curate.audit")
    with pytest.raises(ConflictProblem):
        users.add_user(service, people.admin.principal, NewUser(name="viewer"))
    assert entries(service) == [("admin", "user.add", "conflict")]
    assert sum('"user.add"' in record.getMessage() for record in caplog.records) == 1


def test_the_first_admin_is_made_once(each_service: Service) -> None:
    text = first_token(each_service)
    assert text is not None
    who = principal_of(each_service, text)
    assert (who.user, who.everywhere) == ("admin", Role.ADMIN)
    assert first_token(each_service) is None
    with each_service.database.read() as session:
        assert session.scalars(select(User.name)).all() == ["admin"]
