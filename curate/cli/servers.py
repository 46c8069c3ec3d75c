"""`curate login` and `logout`: tokens of services."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from curate.cli.common import out
from curate.core.errors import CurateError

servers = typer.Typer()


@servers.command()
def login(
    server: Annotated[str, typer.Argument(metavar="URL", help="URL of the service, such as https://curate.example.")],
    name: Annotated[str, typer.Option(help="Short name, for --server NAME and curate://NAME/dataset@tag.")] = "",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token; without it, the token is asked for or read from stdin.")
    ] = None,
) -> None:
    """Store the token of a service for this user, after trying it."""
    from curate.client import Client
    from curate.client.address import is_loopback, server_url
    from curate.client.logins import NAME, Login, checked_token, save

    url = server_url(server)
    if name and not NAME.fullmatch(name):
        raise CurateError(f"--name {name}: expected a letter, then letters, digits, - and _, such as lab")
    if url.startswith("http://") and not is_loopback(url):
        print(f"curate: note: {url} is not encrypted; the network sees the token", file=sys.stderr)
    token = checked_token(_token(token_file), "token")
    with Client(url, token) as client:
        me = client.me()
    save(Login(url, token, name, me["user"]))
    out.print(f"logged in to {url} as {me['user']} ({_roles(me)})", highlight=False, soft_wrap=True)


@servers.command()
def logout(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="URL or name that was logged in to.")],
) -> None:
    """Forget the token of a service. The token stays valid: revoke it on the service's page if it has leaked."""
    from curate.client.logins import remove

    out.print(f"logged out of {remove(server).url}", highlight=False, soft_wrap=True)


def _token(file: Path | None) -> str:
    if file is not None:
        try:
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise CurateError(f"--token-file {file}: cannot be read ({why}); give the file with the token") from None
    if sys.stdin.isatty():
        return str(typer.prompt("token", hide_input=True, err=True))
    return sys.stdin.readline()


def _roles(me: dict[str, Any]) -> str:
    grants = [f"{grant['role']} in {grant['workspace'] or 'the whole service'}" for grant in me["grants"]]
    until = f"; the token expires on {me['expires'][:10]}" if me["expires"] else ""
    return f"{', '.join(grants) or 'no role yet'}{until}"
