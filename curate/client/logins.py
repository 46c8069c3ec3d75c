"""Tokens of servers: what `curate login` stores, in $XDG_CONFIG_HOME/curate/servers.json (or ~/.config), mode 0600.

CURATE_TOKEN takes precedence over the file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from curate.client.address import server_url
from curate.core.errors import CurateError

TOKEN = re.compile(r"[\x21-\x7e]{1,512}")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Login:
    url: str
    token: str
    name: str = ""
    """What people may write instead of the URL."""
    user: str = ""

    def __repr__(self) -> str:
        return f"Login({self.url!r}, {self.name!r}, {self.user!r})"  # a traceback does not show the token


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "curate" / "servers.json"


def load() -> dict[str, Login]:
    """Logins by URL. Raises CurateError if the file is corrupt, or can be read by others."""
    file = path()
    try:
        mode = file.stat().st_mode
        found = json.loads(file.read_text("utf-8"))
        known = {login["url"]: Login(**login) for login in found["servers"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a file of `curate login`"
        raise CurateError(f"{file}: cannot be read ({why}); remove it and log in again") from None
    if stat.S_IMODE(mode) & 0o077:
        raise CurateError(f"{file}: others may read it (mode {stat.S_IMODE(mode):04o}); run chmod 600 {file}")
    return known


def save(login: Login) -> None:
    """Add or replace the login of its URL; a name moves to it."""
    kept = {url: one for url, one in load().items() if url != login.url and not (login.name and one.name == login.name)}
    _write(kept | {login.url: login})


def remove(server: str) -> Login:
    """Forget a login by name or URL. Raises CurateError if there is none."""
    known = load()
    login = _known(server, known)
    if login is None:
        raise CurateError(f"{server}: not logged in; {_servers(known)}")
    _write({url: one for url, one in known.items() if url != login.url})
    return login


def find(server: str) -> Login:
    """URL and token of a server, by URL or name. Raises CurateError without a token."""
    given = os.environ.get("CURATE_TOKEN", "").strip()
    known = load() if not given or NAME.fullmatch(server) else {}
    login = _known(server, known)
    url = login.url if login else server_url(server)
    if given:
        return Login(url, checked_token(given, "CURATE_TOKEN"))
    if login is None:
        raise CurateError(f"{server}: no token; run `curate login {server}`, or set CURATE_TOKEN ({_servers(known)})")
    return login


def checked_token(text: str, where: str) -> str:
    """The token without surrounding space. Raises CurateError, without showing it."""
    token = text.strip()
    if not TOKEN.fullmatch(token):
        raise CurateError(f"{where}: not a token; expected one line, cur_… as the service printed it")
    return token


def _known(server: str, known: Mapping[str, Login]) -> Login | None:
    named = next((login for login in known.values() if login.name == server), None)
    return named or known.get(server_url(server))


def _servers(known: Mapping[str, Login]) -> str:
    names = ", ".join(f"{login.name} ({login.url})" if login.name else login.url for login in known.values())
    return f"logged in to {names}" if names else "logged in to no server"


def _write(known: Mapping[str, Login]) -> None:
    file = path()
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    text = json.dumps({"servers": [asdict(login) for login in known.values()]}, indent=1) + "\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        aside.replace(file)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise CurateError(f"{file}: cannot be written ({error.strerror}); set XDG_CONFIG_HOME to a folder") from None
