"""What the operator of the service decides: a YAML file, read once when the service starts.

Workspaces, targets, users, quotas and registrations are not here but in the database, because admins change them while
it runs. Webhooks are here, because they must not be set over HTTP.
"""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curate.core.errors import RecipeError
from curate.core.secrets import Secret

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Section):
    """Bounds of what one request, one client or one recipe may use."""

    requests_per_minute: Count = 1200
    """Requests of one user."""
    thumbnails_per_minute: Count = 12_000
    """Thumbnails of one user, which are not counted as requests."""
    requests_at_once: Count = 8
    """Requests of one user that are answered at a time; further ones wait."""
    failures_per_minute: Count = 10
    """Failed logins of one address."""
    streams: Count = 20
    """Event streams at a time of one user."""
    connections: Count = 1000
    """Connections at a time. Beyond, the one that has sent no request for longest is closed."""
    body_bytes: Count = 2_000_000
    recipe_bytes: Count = 262_144
    recipe_stages: Count = 300
    recipe_values: Count = 20_000
    """Scalars, lists and mappings of a recipe."""
    check_seconds: Positive = 60.0
    """Limit of the process that checks or plans a recipe: wall clock, and CPU."""
    check_bytes: Count = 4 << 30
    session_seconds: Positive = 12 * 3600.0
    thumbnail_bytes: Count = 1 << 30
    """Size of the folder of thumbnails, and of that of maps; the oldest files are removed."""


class Webhook(Section):
    """Called with a run's state when it ends. Its address is checked like those of downloads (`core.addresses`)."""

    url: str
    secret: Secret | None = None
    """Signs the body: X-Curate-Signature is its HMAC-SHA256, in hex."""
    allow_networks: tuple[str, ...] = ()
    """Networks in CIDR notation that it may lead to although they are private."""
    states: tuple[str, ...] = ("done", "failed", "stopped", "killed", "lost")


class Settings(Section):
    database: str = "sqlite:///curate-service.db"
    """SQLAlchemy's URL: sqlite:///FILE, or postgresql+psycopg://USER@HOST/NAME."""
    database_password: Secret | None = None
    """Password for the URL above, so that this file holds no secret."""
    url: str = "http://127.0.0.1:8080"
    """How browsers and clients reach it, with another `port` that one; with a reverse proxy, the proxy's https://…"""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """0: any free port."""
    proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies whose X-Forwarded-For is believed."""
    recipes: tuple[str, ...] = ()
    """Folders of recipes that the pages offer to start from."""
    thumbnails: str | None = None
    """Folder of thumbnails, which replicas may share; None: a temporary one."""
    retries: Annotated[int, Field(ge=0)] = 1
    """How often a lost run is resubmitted unless it says otherwise."""
    drain_seconds: Positive = 60.0
    stalled_seconds: Positive = 1800.0
    """A running run without progress for so long has an alert."""
    poll_seconds: Positive = 2.0
    """Between two looks at the runs under way."""
    limits: Limits = Limits()
    webhooks: tuple[Webhook, ...] = ()

    @property
    def secure(self) -> bool:
        """Whether browsers reach it over TLS, so that cookies may demand it."""
        return self.url.startswith("https://")

    @model_validator(mode="before")
    @classmethod
    def _port_of_url(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("port") and "url" not in given:
            return {**given, "url": f"http://127.0.0.1:{given['port']}"}
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        for proxy in self.proxies:
            ip_network(proxy, strict=False)
        if not self.url.startswith(("http://", "https://")) or self.url.endswith("/"):
            raise ValueError("url: expected http://HOST:PORT or https://HOST without a slash at the end")
        return self

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Raises RecipeError with the file and the field."""
        try:
            return cls.model_validate(yaml.safe_load(path.read_text("utf-8")) or {})
        except OSError as error:
            raise RecipeError(
                f"--config {path}: cannot be read ({error.strerror}); give the service's YAML file"
            ) from None
        except yaml.YAMLError as error:
            raise RecipeError(f"--config {path}: not YAML ({' '.join(str(error).split())[:200]})") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise RecipeError(f"--config {path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
