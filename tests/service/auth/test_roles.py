"""What a role covers, for every role of a user, in a workspace and in the service, under every role of a token."""

from __future__ import annotations

from itertools import product

import pytest

from curate.service.auth.roles import NOBODY, SERVICE, Principal, Role
from curate.service.auth.tokens import Bearer
from curate.service.problems import ForbiddenProblem, NotFoundProblem

ROLES = (None, *Role)


def rank(role: Role | None) -> int:
    return ROLES.index(role)


def principal(everywhere: Role | None, there: Role | None, most: Role) -> Principal:
    grants = [(place, role) for place, role in ((None, everywhere), (7, there)) if role is not None]
    return Bearer("0" * 8, most, 1, "one", tuple(grants)).principal("request")


@pytest.mark.parametrize("needed", list(Role))
@pytest.mark.parametrize("most", list(Role))
def test_roles(most: Role, needed: Role) -> None:
    for everywhere, there in product(ROLES, ROLES):
        check(principal(everywhere, there, most), everywhere, there, most, needed)


def check(who: Principal, everywhere: Role | None, there: Role | None, most: Role, needed: Role) -> None:
    has = min(max(rank(everywhere), rank(there)), rank(most))
    assert rank(who.role(7)) == has
    assert rank(who.role(8)) == min(rank(everywhere), rank(most))
    if has == 0:
        with pytest.raises(NotFoundProblem):
            who.check(needed, 7, "main")
    elif has < rank(needed):
        with pytest.raises(ForbiddenProblem, match=f"needs the role {needed}"):
            who.check(needed, 7, "main")
    else:
        who.check(needed, 7, "main")
    if min(rank(everywhere), rank(most)) < rank(needed):
        with pytest.raises(ForbiddenProblem):
            who.check_service(needed)
    else:
        who.check_service(needed)


def test_a_public_page_has_no_role_and_the_service_all() -> None:
    with pytest.raises(NotFoundProblem):
        NOBODY.check(Role.VIEWER, 1, "main")
    with pytest.raises(ForbiddenProblem):
        NOBODY.check_service(Role.VIEWER)
    SERVICE.check(Role.ADMIN, 1, "main")
    SERVICE.check_service()
