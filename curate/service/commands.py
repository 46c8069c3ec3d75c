"""`curate service …`: commands for operators, on the service's machine. They need access to the database, not a token;
the audit names the user `service`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from curate.core.errors import RecipeError
from curate.service.auth.roles import SERVICE, Role
from curate.service.auth.tokens import first_token
from curate.service.database import backup as copies
from curate.service.database import migrate as tables
from curate.service.database.database import Database
from curate.service.people import tokens, users
from curate.service.people.tokens import NewToken
from curate.service.people.users import ChangedUser, NewGrant, NewUser
from curate.service.reconcile import index
from curate.service.service import Service
from curate.service.settings import Settings
from curate.service.shapes import Order

app = typer.Typer(
    help="Operate the service: its database, its first people, and the server itself.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The service's YAML file.", envvar="CURATE_SERVICE_CONFIG")
]
T = TypeVar("T", bound=Order)
Name = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


def settings_of(config: Path | None) -> Settings:
    return Settings.read(config) if config is not None else Settings()


@contextmanager
def opened(config: Path | None) -> Iterator[Service]:
    """The service over a database that is up to date. Raises RecipeError if it is not."""
    service = Service.of(settings_of(config))
    try:
        tables.prepare(service.database)
        yield service
    finally:
        service.close()


@app.command()
def init(config: Config = None) -> None:
    """Create the database and the user `admin`, and print the first token. It is shown only once."""
    with closing(Service.of(settings_of(config))) as service:
        tables.migrate(service.database)
        made = first_token(service)
        typer.echo(f"database: {service.database.url.render_as_string()}")
    if made is None:
        typer.echo("the database has users already; `curate service token USER` makes a token")
    else:
        typer.echo(f"token: {made}")


@app.command()
def serve(
    config: Config = None,
    embedded: Annotated[
        str | None,
        typer.Option(metavar="WORKSPACE", help="All on this machine, for one workspace: SQLite and a local Ray."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --embedded; 0: any free one.")] = 8080,
    host: Annotated[str, typer.Option(help="With --embedded: address to listen on.")] = "127.0.0.1",
    state: Annotated[
        Path | None, typer.Option(help="With --embedded: folder of the database (default: WORKSPACE-service).")
    ] = None,
    recipes: Annotated[
        list[Path] | None, typer.Option(help="With --embedded: folder of recipes to offer; may be repeated.")
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="With --embedded: folder that recipes may read; may be repeated."),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, help="With --embedded: CPUs of the local Ray.")] = None,
) -> None:
    """Serve the API and the pages, and reconcile runs. Several processes with one database are replicas."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level="WARNING")
    logging.getLogger("curate").setLevel(logging.INFO)
    if embedded is None:
        _configured(config)
        return
    from curate.service.embedded import Embedded

    logging.getLogger("curate.audit").setLevel(logging.WARNING)  # a terminal shows the URL; the page shows the audit
    roots = dict(map(_root, root or []))
    Embedded(embedded, host, port, state, recipes or [], roots, cpus=cpus).serve()


def _configured(config: Path | None) -> None:
    from curate.service.serving import listening, serve, url_of

    with opened(config) as service:
        settings = service.settings
        bound = listening(settings.host, settings.port)
        reached = settings.url if settings.port else url_of(bound)
        serve(service, bound, lambda: typer.echo(f"url: {reached}"))


def _root(text: str) -> tuple[str, str]:
    name, mark, folder = text.partition("=")
    if not mark or not name or not folder:
        raise RecipeError(f"--root {text}: expected NAME=FOLDER, such as images=/data/images")
    return name, folder


@app.command()
def migrate(config: Config = None) -> None:
    """Change the database's tables to those of this release. Stop the service and back up the database first."""
    with closing(Service.of(settings_of(config))) as service:
        done = tables.migrate(service.database)
    typer.echo(f"migrated: {', '.join(done)}" if done else "the database is up to date")


@app.command()
def user(
    name: Name,
    role: Annotated[Role | None, typer.Option(help="Role to give.")] = None,
    workspace: Annotated[str | None, typer.Option(help="Where the role holds (default: the whole service).")] = None,
    see_pixels: Annotated[bool, typer.Option(help="Let a viewer see images and videos.")] = False,
    disable: Annotated[
        bool | None,
        typer.Option("--disable/--enable", help="Revoke all tokens and reject logins, or allow logins again."),
    ] = None,
    config: Config = None,
) -> None:
    """Add a user; give a role, disable or enable an existing one."""
    with opened(config) as service:
        known = {one.name: one for one in users.users(service, SERVICE)}
        shape = known.get(name)
        if shape is None and disable is None:
            shape = users.add_user(service, SERVICE, _order(NewUser, name=name))
        if role is not None:
            order = _order(NewGrant, role=role, workspace=workspace, see_pixels=see_pixels)
            shape = users.set_grant(service, SERVICE, name, order)
        if disable is not None:
            shape = users.change_user(service, SERVICE, name, ChangedUser(disabled=disable))
    assert shape is not None
    roles = [f"{grant.role} in {grant.workspace or 'the whole service'}" for grant in shape.grants]
    state = ", disabled" if shape.disabled else ""
    typer.echo(f"user {name}: {', '.join(roles) or 'no role'}{state}")


@app.command()
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
        typer.echo(f"token: {tokens.make_token(service, SERVICE, name, order).token}")


def _order(kind: type[T], **values: object) -> T:
    """Raises RecipeError with the option that is wrong."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RecipeError(f"{first['loc'][0]}: {first['input']!r}: {first['msg']}") from None


@app.command()
def backup(file: Annotated[Path, typer.Argument(help="A new file.")], config: Config = None) -> None:
    """Copy the SQLite database into a new file. The service may run meanwhile. For PostgreSQL use pg_dump."""
    with closing(Database.of(settings_of(config))) as database:
        size = copies.backup(database, file)
    typer.echo(f"{file}: {size:,} bytes")


@app.command()
def reindex(
    workspace: Annotated[str | None, typer.Argument(help="Name of a workspace (default: all).")] = None,
    config: Config = None,
) -> None:
    """Rebuild the lists of runs and datasets from the workspaces. The service may run meanwhile."""
    with opened(config) as service:
        for name, found in index.reindex(service, workspace).items():
            typer.echo(f"{name}: {found.runs:,} runs, {found.datasets:,} datasets")
