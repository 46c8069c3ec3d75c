"""`curate service user` and `curate service token`: users and tokens, on the service's machine. They need access to the
database, not a token; the audit names the user `service`."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from curate.core.errors import RecipeError
from curate.service.actions import people
from curate.service.auth.roles import SERVICE, Role
from curate.service.commands.common import Config, opened
from curate.service.shapes.common import Order
from curate.service.shapes.people import NewGrant, NewToken, NewUser

T = TypeVar("T", bound=Order)
Name = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


def user(
    name: Name,
    role: Annotated[Role | None, typer.Option(help="Role to give.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Where the role holds (default: the whole service).")] = None,
    disable: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Revoke all tokens and reject logins, or allow logins again."),
    ] = None,
    config: Config = None,
) -> None:
    """Add a user; give a role, disable or enable an existing one."""
    with opened(config) as service:
        known = {one.name: one for one in people.users(service, SERVICE)}
        shape = known.get(name)
        if shape is None and disable is None:
            shape = people.add_user(service, SERVICE, _order(NewUser, name=name))
        if role is not None:
            shape = people.set_grant(service, SERVICE, name, _order(NewGrant, role=role, workspace=workspace))
        if disable is not None:
            shape = people.set_disabled(service, SERVICE, name, disable)
    assert shape is not None
    roles = [f"{grant.role} in {grant.workspace or 'the whole service'}" for grant in shape.grants]
    state = ", disabled" if shape.disabled else ""
    typer.echo(f"user {name}: {', '.join(roles) or 'no role'}{state}")


def token(
    name: Name,
    role: Annotated[Role, typer.Option(help="The most that the token may do.")] = Role.ADMIN,
    days: Annotated[float, typer.Option(min=0, max=3650, help="Days until it expires; 0: never.")] = 90,
    label: Annotated[str, typer.Option(help="What it is for.")] = "made on the service's machine",
    config: Config = None,
) -> None:
    """Make a token for a user, for example to replace a lost one, and print it. It is shown only once."""
    with opened(config) as service:
        order = _order(NewToken, role=role, days=days or None, label=label)
        typer.echo(f"token: {people.make_token(service, SERVICE, name, order).token}")


def _order(kind: type[T], **values: object) -> T:
    """Raises RecipeError with the option that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RecipeError(f"{first['loc'][0]}: {first['input']!r}: {first['msg']}") from None
